"""Pre-training in bfloat16 beside float32, on padded rows: does it end at the same loss, without a NaN?

    python -m benchmarks.half_precision

Prints a JSON line for each optimizer. A tiny T5 learns to continue rows of a Markov chain: batches of 8 rows of up to
128 tokens, most of which end in padding. The learning rates are high enough that attention logits grow. `loss` is the
mean over held-out batches, in nats a token; one batch of a tiny network says too little.
"""

import argparse
import dataclasses
import json
import math
from typing import Any

import numpy as np

VOCAB_SIZE, FIRST_TOKEN = 64, 2
ROWS, INPUTS, TARGETS = 8, 128, 16
RATES = {"adafactor": 0.03, "adamw": 0.01, "muon": 0.01}
HELD_OUT_BATCHES = 64
# Heads and rows as many as make XLA fuse the softmax with its products, on CPUs.
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "emb_dim": 32,
    "num_heads": 8,
    "head_dim": 8,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "mlp_dim": 32,
    "mlp_activations": ("gelu", "linear"),
    "dropout_rate": 0.0,
}


@dataclasses.dataclass(frozen=True)
class MarkovRows:
    """Rows of a chain in which each token has eight likely followers."""

    seed: int = 0

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """Inputs of 8 to 128 tokens, and the tokens that follow them."""
        words = VOCAB_SIZE - FIRST_TOKEN
        chain = np.random.default_rng(self.seed).integers(0, words, (words, 8))
        rng = np.random.default_rng((self.seed, number))
        steps = np.minimum(rng.geometric(0.5, (ROWS, INPUTS + TARGETS)) - 1, 7)
        tokens = np.zeros((ROWS, INPUTS + TARGETS), np.int32)
        tokens[:, 0] = rng.integers(0, words, ROWS)
        for i in range(1, tokens.shape[1]):
            tokens[:, i] = chain[tokens[:, i - 1], steps[:, i]]
        tokens += FIRST_TOKEN
        inputs, targets = np.zeros((ROWS, INPUTS), np.int32), np.zeros((ROWS, TARGETS), np.int32)
        for row, length in enumerate(rng.integers(8, INPUTS + 1, ROWS)):
            inputs[row, :length] = tokens[row, INPUTS - length : INPUTS]
            targets[row] = tokens[row, INPUTS:]
        return {
            "encoder_input_tokens": inputs,
            "decoder_target_tokens": targets,
            "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
            "decoder_loss_weights": np.ones_like(targets),
        }


class _Vocabulary:
    eos_id, pad_id, extra_ids, vocab_size = 1, 0, 0, VOCAB_SIZE


def _optimizer(name: str) -> Any:
    from limba.optimizers import adafactor, definitions

    if name == "adafactor":
        return adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules())
    return getattr(definitions, name)()


def held_out_loss(optimizer: str, dtype: str, steps: int) -> dict[str, Any]:
    """Trains, and returns the held-out loss and the first step with a loss that is not finite."""
    import jax

    from limba import models
    from limba.network import t5
    from limba.optimizers import schedules
    from limba.partitioning import meshes
    from limba.training import trainer

    vocabulary: Any = _Vocabulary()
    network = t5.Transformer(t5.T5Config(dtype=np.dtype(jax.numpy.dtype(dtype)), **SIZES))
    model = models.EncoderDecoderModel(
        network, vocabulary, vocabulary, _optimizer(optimizer), loss_normalizing_factor="NUM_REAL_TARGET_TOKENS"
    )
    partitioner = meshes.PjitPartitioner(num_partitions=1, devices=jax.devices()[:1])
    rate = schedules.create_learning_rate_scheduler("constant", RATES[optimizer])
    training, rows = trainer.Trainer(model, partitioner, rate), MarkovRows()
    state = training.new_state(jax.random.key(0))
    first_bad = None
    for step in range(steps):
        state, metrics = training.train_step(state, partitioner.shard_batch(rows.batch(step)))
        if first_bad is None and not math.isfinite(float(metrics["loss"].total)):
            first_bad = step
            break
    evaluate = jax.jit(lambda params, batch: model.eval_fn(params, batch)[0])
    losses = [float(evaluate(state.params, rows.batch(steps + i))) for i in range(HELD_OUT_BATCHES)]
    return {"loss": float(np.mean(losses)), "first_step_not_finite": first_bad}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--optimizers", nargs="+", choices=sorted(RATES), default=sorted(RATES))
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    flags = parser.parse_args()
    for optimizer in flags.optimizers:
        of_dtype = {dtype: held_out_loss(optimizer, dtype, flags.steps) for dtype in flags.dtypes}
        report = {"optimizer": optimizer, "learning_rate": RATES[optimizer], "steps": flags.steps} | of_dtype
        if len(of_dtype) == 2:
            report["ratio"] = of_dtype["bfloat16"]["loss"] / of_dtype["float32"]["loss"]
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
