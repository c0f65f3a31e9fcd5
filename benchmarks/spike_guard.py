"""What looking for spikes costs a training step: the norm of the gradient, and the comparison with the steps before.

    python -m benchmarks.spike_guard --rounds 10

The network of the quickstart (2.5M parameters) or a T5 1.1 small (`--size small`), rows of 128 inputs and 48 targets,
with and without, in turn in one process. Prints JSON: cpu-seconds of a step, and the ratio with over without, the
median over rounds beside its range.
"""

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES: dict[str, dict[str, Any]] = {
    "quickstart": {
        "vocab_size": 4096, "emb_dim": 128, "num_heads": 4, "head_dim": 32, "num_encoder_layers": 3,
        "num_decoder_layers": 3, "mlp_dim": 384,
    },
    "small": {
        "vocab_size": 32128, "emb_dim": 512, "num_heads": 6, "head_dim": 64, "num_encoder_layers": 8,
        "num_decoder_layers": 8, "mlp_dim": 1024,
    },
}  # fmt: skip
ROWS = {"quickstart": 16, "small": 8}
INPUTS, TARGETS, WINDOW = 128, 48, 256


def _batch(rows: int, vocab_size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs, targets = (rng.integers(3, vocab_size, (rows, n), dtype=np.int32) for n in (INPUTS, TARGETS))
    return {
        "encoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
        "decoder_loss_weights": np.ones_like(targets),
    }


def _stepper(size: str, rows: int, guarded: bool, averaged: bool) -> Callable[[], None]:
    """A step, after which the loss is read, as the training loop does."""
    import jax

    from limba import models
    from limba.network import t5
    from limba.optimizers import adafactor, averaging, schedules
    from limba.partitioning import meshes
    from limba.training import trainer
    from limba.training.spikes import going_back, spike_rule

    class Vocabulary:
        eos_id, pad_id, extra_ids, vocab_size = 1, 0, 100, SIZES[size]["vocab_size"]

    vocabulary: Any = Vocabulary()
    network = t5.Transformer(t5.T5Config(dropout_rate=0.0, mlp_activations=("gelu", "linear"), **SIZES[size]))
    optimizer: Any = adafactor.Adafactor()
    if averaged:
        optimizer = averaging.AveragedOptimizer(optimizer)
    model = models.EncoderDecoderModel(
        *(network, vocabulary, vocabulary, optimizer), loss_normalizing_factor="NUM_REAL_TARGET_TOKENS"
    )
    made = trainer.Trainer(
        *(model, meshes.PjitPartitioner(1), schedules.create_learning_rate_scheduler("constant", 1e-3)),
        measures_gradient=guarded,
    )
    state = made.new_state(jax.random.key(0))
    batch = made.partitioner.shard_batch(_batch(rows, SIZES[size]["vocab_size"]))
    guard, before = spike_rule.SpikeGuard(window=WINDOW), deque[spike_rule.Figures](maxlen=WINDOW)
    before.extend(spike_rule.Figures(10.0 + i % 7 / 10, 1.0 + i % 5) for i in range(WINDOW))

    def step() -> None:
        nonlocal state
        state, metrics = made.train_step(state, batch)
        if guarded:
            figures = going_back.figures_of(metrics)
            guard.find(list(before), figures)
            before.append(figures)
        else:
            float(metrics["loss"].compute())

    step()
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="quickstart")
    parser.add_argument("--steps", type=int, default=10, help="of a side in a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--average", action="store_true", help="the side with also keeps an average of the parameters")
    parser.add_argument("--rows", type=int, help=f"of a batch {ROWS}")
    flags = parser.parse_args()
    rows = flags.rows or ROWS[flags.size]
    steppers = {
        name: _stepper(flags.size, rows, name == "with", name == "with" and flags.average)
        for name in ("without", "with")
    }
    seconds: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(flags.rounds):
        for name, step in steppers.items():
            began = time.process_time()
            for _ in range(flags.steps):
                step()
            seconds[name].append((time.process_time() - began) / flags.steps)
    ratios = [a / b for a, b in zip(seconds["with"], seconds["without"], strict=True)]
    print(
        json.dumps(
            {
                "size": flags.size,
                "rows": rows,
                "average": flags.average,
                "cpu_seconds_of_a_step": {name: round(statistics.median(x), 4) for name, x in seconds.items()},
                "ratio": round(statistics.median(ratios), 3),
                "range": [round(min(ratios), 3), round(max(ratios), 3)],
            }
        )
    )


if __name__ == "__main__":
    main()
