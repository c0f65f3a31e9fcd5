"""Cost of one train step of a BERT: Limba beside transformers' BertForMaskedLM in PyTorch, in one run.

    python -m benchmarks.encoder_step --size base --batch_size 8 --length 512 --rounds 3

Prints a JSON line for each dtype; progress goes to stderr. The sides are processes that take turns
(benchmarks/sides.py). Both train on the same full rows, 15 % of whose tokens are masked, without dropout, with AdamW
behind a clipped gradient.

- `limba`: `Trainer.train_step` as it trains: logits of the masked tokens alone.
- `huggingface`: BertForMaskedLM in PyTorch, as it is called in scripts: eager with SDPA, labels -100 where nothing is
  masked, AdamW fused, bf16 by autocast, denormals flushed to zero.
"""

import argparse
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import sides
from benchmarks.train_step import DTYPES

# As gin/models/bert.
SIZES = {
    "small": {"emb_dim": 512, "num_heads": 8, "num_layers": 4, "mlp_dim": 2048},
    "base": {"emb_dim": 768, "num_heads": 12, "num_layers": 12, "mlp_dim": 3072},
}
BERT = {"vocab_size": 30592, "head_dim": 64, "num_token_types": 2}
NOISE_DENSITY = 0.15
MASK_ID = 4
LEARNING_RATE = 1e-4


@dataclasses.dataclass(frozen=True)
class Workload:
    """What every side trains on.

    Attributes:
      sizes: fields of `limba.network.encoders.encoder.EncoderConfig`, without `dtype`.
      dtype: of activations; parameters are float32.
      batch_size, length: rows, and tokens of each.
    """

    sizes: dict[str, Any]
    dtype: str
    batch_size: int
    length: int

    def batch(self) -> dict[str, Any]:
        """Rows with their masks, int32 `[batch_size, length]`; where these are and what they were, `[…, masked]`."""
        import numpy as np

        rng = np.random.default_rng(0)
        masked = round(NOISE_DENSITY * (self.length - 2))
        tokens = rng.integers(5, self.sizes["vocab_size"], (self.batch_size, self.length), dtype=np.int32)
        places = 1 + rng.permuted(np.tile(np.arange(self.length - 2), (self.batch_size, 1)), axis=1)[:, :masked]
        places = np.sort(places, axis=1).astype(np.int32)
        targets = np.take_along_axis(tokens, places, axis=1)
        np.put_along_axis(tokens, places, MASK_ID, axis=1)
        return {"inputs": tokens, "places": places, "targets": targets}


class _Vocabulary:
    pad_id, eos_id, extra_ids = 0, 3, 0

    def __init__(self, vocab_size: int):
        self.vocab_size = self.base_vocab_size = vocab_size


def _limba(workload: Workload) -> sides.Side:
    import jax
    import numpy as np
    import optax

    from limba import models
    from limba.devices import freed_memory
    from limba.network.encoders import encoder
    from limba.optimizers import definitions, schedules
    from limba.partitioning import meshes
    from limba.training import trainer

    freed_memory.keep(os.environ)
    no_dropout = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    config = encoder.EncoderConfig(**workload.sizes, dtype=workload.dtype, max_positions=workload.length, **no_dropout)
    clip: Any = optax.clip_by_global_norm(1.0)
    model = models.EncoderOnlyModel(
        encoder.MaskedLanguageModel(config),
        _Vocabulary(config.vocab_size),  # type: ignore[arg-type]
        definitions.chain([clip, definitions.adamw(weight_decay=0.01)]),
        loss_normalizing_factor="NUM_REAL_TARGET_TOKENS",
    )
    limba_trainer: Any = trainer.Trainer(
        model,
        meshes.PjitPartitioner(devices=jax.devices()[:1]),
        schedules.create_learning_rate_scheduler("constant", LEARNING_RATE),
    )
    rows = workload.batch()
    batch = limba_trainer.partitioner.shard_batch(
        {
            "encoder_input_tokens": rows["inputs"],
            "encoder_token_types": np.zeros_like(rows["inputs"]),
            "masked_lm_positions": rows["places"],
            "decoder_target_tokens": rows["targets"],
            "decoder_loss_weights": np.ones_like(rows["targets"]),
        }
    )
    state = limba_trainer.new_state(jax.random.key(0))
    step = limba_trainer.train_step.lower(state, batch).compile()

    def run(num_steps: int) -> None:
        nonlocal state
        for _ in range(num_steps):
            state, _ = step(state, batch)
        jax.block_until_ready(state)

    return run, {
        "parameters": sum(x.size for x in jax.tree.leaves(limba_trainer.param_shapes)),
        "versions": {"jax": jax.__version__},
    }


def _huggingface(workload: Workload) -> sides.Side:
    import numpy as np
    import torch

    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("high")
    import transformers

    sizes = workload.sizes
    config = transformers.BertConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["emb_dim"],
        num_attention_heads=sizes["num_heads"],
        num_hidden_layers=sizes["num_layers"],
        intermediate_size=sizes["mlp_dim"],
        max_position_embeddings=workload.length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model: Any = transformers.BertForMaskedLM(config)
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)
    rows = workload.batch()
    labels = np.full(rows["inputs"].shape, -100, np.int64)
    np.put_along_axis(labels, rows["places"], rows["targets"], axis=1)
    inputs = torch.from_numpy(rows["inputs"]).long().to(device)
    targets = torch.from_numpy(labels).to(device)

    def run(num_steps: int) -> None:
        for _ in range(num_steps):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=workload.dtype == "bfloat16"):
                loss = model(input_ids=inputs, labels=targets).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()

    return run, {
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


SIDES = {"limba": _limba, "huggingface": _huggingface}


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.encoder_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", choices=SIZES, default="small", help="a BERT (small)")
    parser.add_argument("--batch_size", type=int, default=8, help="rows (8)")
    parser.add_argument("--length", type=int, default=512, help="tokens of a row (512)")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES), help="of activations (both)")
    parser.add_argument("--steps", type=int, default=1, help="steps of a side in one round (1)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, of which the median counts (3)")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    for name, least in (("batch_size", 1), ("length", 16), ("steps", 1), ("rounds", 1)):
        if getattr(args, name) < least:
            parser.error(f"--{name} is {getattr(args, name)}; it must be at least {least}")
    return args


def main() -> None:
    args = parse_arguments()
    if args.serve:
        sides.serve(args.serve, lambda workload: SIDES[args.serve](Workload(**workload)))
        return
    for dtype in args.dtype:
        workload = Workload(BERT | SIZES[args.size], dtype, args.batch_size, args.length)
        with tempfile.TemporaryDirectory() as folder:
            fields = dataclasses.asdict(workload)
            script = Path(__file__).resolve()
            reports = sides.measure(script, dtype, fields, list(SIDES), args.steps, args.rounds, Path(folder))
        if isinstance(reports["limba"], str):
            raise SystemExit(f"benchmarks.encoder_step: limba in {dtype}: {reports['limba']}")
        facts = {"size": args.size, "batch_size": args.batch_size, "length": args.length, "rounds": args.rounds}
        line = {"benchmark": "encoder_step", **facts, "dtype": dtype, "cpus": os.cpu_count()}
        print(json.dumps({**line, "cpu_bf16": sides.cpu_bf16(), **reports}), flush=True)


if __name__ == "__main__":
    main()
