"""Seconds, cpu-seconds and MFU of one train step: Limba against PyTorch and T5X, side by side in one run.

    python -m benchmarks.train_step --size small --batch_size 8 --steps 1 --rounds 5 --against huggingface t5x

Prints one JSON line; progress goes to stderr. The sides are processes that take turns (benchmarks/sides.py). Every side
trains on the same full rows of random tokens, without dropout, with Adafactor, on one device.

- `limba`: `Trainer.train_step` as it trains.
- `huggingface`: T5ForConditionalGeneration in eager PyTorch with transformers' Adafactor set as T5X's (no relative
  step, no momentum), plain cross entropy, float32 parameters, bf16 by autocast, denormals flushed to zero, TF32 for
  float32 on GPUs, as JAX does. Its T5 computes attention itself, without PyTorch's SDPA.
- `huggingface_compiled`: the same through `torch.compile`.
- `t5x`: T5X's own Trainer and network. `T5X_DIR` names its checkout; `T5X_PYTHON` the interpreter of an environment
  with its dependencies, if this one lacks them.

A side that cannot run here is reported as "unavailable: reason".
"""

import argparse
import dataclasses
import functools
import itertools
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import sides
from limba.addons.plan import topologies
from limba.network import flops

DTYPES = ("bfloat16", "float32")
Z_LOSS = 1e-4

# T5 1.1 as in gin/models/t5_1_1, which reads the same but needs gin.
SIZES = {
    "small": {"emb_dim": 512, "num_heads": 6, "num_encoder_layers": 8, "num_decoder_layers": 8, "mlp_dim": 1024},
    "base": {"emb_dim": 768, "num_heads": 12, "num_encoder_layers": 12, "num_decoder_layers": 12, "mlp_dim": 2048},
    "large": {"emb_dim": 1024, "num_heads": 16, "num_encoder_layers": 24, "num_decoder_layers": 24, "mlp_dim": 2816},
}
T5_1_1 = {"vocab_size": 32128, "head_dim": 64, "mlp_activations": ("gelu", "linear"), "logits_via_embedding": False}


def peak_tflops(device_kind: str) -> float | None:
    """Dense bf16 peak of a device; None where it is not known, and for CPUs."""
    peak = topologies.peak_flops(device_kind)
    return None if peak is None else peak / 1e12


@dataclasses.dataclass(frozen=True)
class Workload:
    """What every side trains on.

    Attributes:
      sizes: fields of `limba.network.t5.T5Config`, without `dtype`.
      dtype: "bfloat16" or "float32", of activations; parameters are float32.
      batch_size, inputs, targets: rows, and tokens of each.
    """

    sizes: dict[str, Any]
    dtype: str
    batch_size: int
    inputs: int
    targets: int

    def batch(self) -> dict[str, Any]:
        import numpy as np

        rng = np.random.default_rng(0)
        encoder = rng.integers(3, self.sizes["vocab_size"], (self.batch_size, self.inputs), dtype=np.int32)
        decoder = rng.integers(3, self.sizes["vocab_size"], (self.batch_size, self.targets), dtype=np.int32)
        return {
            "encoder_input_tokens": encoder,
            "decoder_target_tokens": decoder,
            "decoder_input_tokens": np.pad(decoder, ((0, 0), (1, 0)))[:, :-1],
            "decoder_loss_weights": np.ones_like(decoder),
        }


def forward_flops(workload: Workload) -> float:
    """FLOPs of the matrix products of one forward pass, counted by `limba.network.flops`."""
    return workload.batch_size * flops.forward_flops(workload.sizes, workload.inputs, workload.targets)


def model_flops(workload: Workload) -> float:
    """FLOPs of a train step: the backward pass has two products for each of the forward pass. No recomputation."""
    return 3 * forward_flops(workload)


# ----------------------------------------------------- the sides ----------------------------------------------------
# Each builds its model and returns what runs a number of steps and waits for them, and facts for the report.


class _Vocabulary:
    """What the engines ask of a vocabulary when nothing is decoded."""

    eos_id, pad_id, extra_ids = 1, 0, 100

    def __init__(self, vocab_size: int):
        self.vocab_size = self.base_vocab_size = vocab_size


def _limba(workload: Workload, config_class: Any = None) -> sides.Side:
    """A `config_class` other than T5Config is of a network that is derived from T5's."""
    import jax

    from limba import models
    from limba.devices import freed_memory
    from limba.network import t5
    from limba.optimizers import adafactor, schedules
    from limba.partitioning import meshes
    from limba.training import trainer

    freed_memory.keep(os.environ)
    config = (config_class or t5.T5Config)(**workload.sizes, dtype=workload.dtype, dropout_rate=0.0)
    vocabulary: Any = _Vocabulary(config.vocab_size)
    model = models.EncoderDecoderModel(
        config.network(),
        vocabulary,
        vocabulary,
        adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules()),
        z_loss=Z_LOSS,
    )
    limba_trainer: Any = trainer.Trainer(
        model,
        meshes.PjitPartitioner(devices=jax.devices()[:1]),
        schedules.create_learning_rate_scheduler("constant * rsqrt_decay", 1.0, 10_000),
    )
    state = limba_trainer.new_state(jax.random.key(0))
    batch = limba_trainer.partitioner.shard_batch(workload.batch())
    start = time.monotonic()
    step = limba_trainer.train_step.lower(state, batch).compile()
    compile_seconds = time.monotonic() - start

    def run(num_steps: int) -> None:
        nonlocal state
        for _ in range(num_steps):
            state, _ = step(state, batch)
        jax.block_until_ready(state)

    return run, {
        "compile_seconds": round(compile_seconds, 1),
        "temporary_mib": round(step.memory_analysis().temp_size_in_bytes / 2**20),
        "parameters": sum(x.size for x in jax.tree.leaves(limba_trainer.param_shapes)),
        "versions": {"jax": jax.__version__},
    }


def _t5x(workload: Workload) -> sides.Side:
    if not (Path(os.environ.get("T5X_DIR", "")) / "t5x" / "trainer.py").is_file():
        raise RuntimeError("set T5X_DIR to a checkout of github.com/google-research/t5x")
    import jax
    import jax.numpy as jnp
    from t5x import adafactor, models, partitioning, trainer, utils
    from t5x.examples.t5 import network

    if jax.device_count() > 1:
        raise RuntimeError(f"T5X spreads over all {jax.device_count()} devices; show it one")
    sizes = {k: v for k, v in workload.sizes.items() if k in {f.name for f in dataclasses.fields(network.T5Config)}}
    sizes["mlp_activations"] = tuple(sizes["mlp_activations"])  # Flax hashes its modules.
    config = network.T5Config(**sizes, dtype=jnp.dtype(workload.dtype), dropout_rate=0.0)
    vocabulary = _Vocabulary(config.vocab_size)
    optimizer = adafactor.Adafactor(
        decay_rate=0.8, step_offset=0, logical_factor_rules=adafactor.standard_logical_factor_rules()
    )
    model = models.EncoderDecoderModel(network.Transformer(config), vocabulary, vocabulary, optimizer, z_loss=Z_LOSS)
    partitioner = partitioning.PjitPartitioner(
        num_partitions=1, logical_axis_rules=partitioning.standard_logical_axis_rules()
    )
    batch = workload.batch()
    initializer = utils.TrainStateInitializer(
        optimizer_def=optimizer,
        init_fn=model.get_initial_variables,
        input_shapes={name: rows.shape for name, rows in batch.items()},
        input_types={name: rows.dtype for name, rows in batch.items()},
        partitioner=partitioner,
    )
    t5x_trainer = trainer.Trainer(
        model,
        initializer.from_scratch(jax.random.PRNGKey(0)),
        partitioner,
        eval_names=[],
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(0),
        learning_rate_fn=utils.create_learning_rate_scheduler("constant * rsqrt_decay", 1.0, 10_000),
        num_microbatches=None,
    )
    start = time.monotonic()
    t5x_trainer.compile_train(batch)
    compile_seconds = time.monotonic() - start
    batches = itertools.repeat(batch)

    def run(num_steps: int) -> None:
        t5x_trainer.train(batches, num_steps)
        jax.block_until_ready(t5x_trainer.train_state)

    return run, {
        "compile_seconds": round(compile_seconds, 1),
        "parameters": sum(x.size for x in jax.tree.leaves(t5x_trainer.train_state.params)),
        "versions": {"jax": jax.__version__},
    }


def huggingface_config(sizes: dict[str, Any], **more: Any) -> Any:
    """transformers' T5Config of the same sizes, without dropout."""
    import transformers

    return transformers.T5Config(
        vocab_size=sizes["vocab_size"],
        d_model=sizes["emb_dim"],
        d_kv=sizes["head_dim"],
        d_ff=sizes["mlp_dim"],
        num_heads=sizes["num_heads"],
        num_layers=sizes["num_encoder_layers"],
        num_decoder_layers=sizes["num_decoder_layers"],
        tie_word_embeddings=sizes["logits_via_embedding"],
        dropout_rate=0.0,
        decoder_start_token_id=0,
        **more,
    )


def _huggingface(workload: Workload, compiles: bool = False) -> sides.Side:
    import torch

    # Before any thread of PyTorch's exists: they inherit it. Without it float32 on CPUs crawls.
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("high")
    import transformers

    sizes = workload.sizes
    activations = tuple(sizes["mlp_activations"])
    feed_forward = {("relu",): "relu", ("gelu", "linear"): "gated-gelu"}.get(activations)
    if feed_forward is None:
        raise RuntimeError(f"Hugging Face's T5 has no mlp_activations {activations}")
    config = huggingface_config(sizes, feed_forward_proj=feed_forward, use_cache=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model: Any = transformers.T5ForConditionalGeneration(config)
    model.to(device).train()
    called = torch.compile(model) if compiles else model
    optimizer = transformers.Adafactor(
        model.parameters(), lr=0.01, scale_parameter=True, relative_step=False, warmup_init=False
    )
    rows = workload.batch()
    inputs = torch.from_numpy(rows["encoder_input_tokens"]).long().to(device)
    labels = torch.from_numpy(rows["decoder_target_tokens"]).long().to(device)
    mask = (inputs > 0).long()

    def run(num_steps: int) -> None:
        for _ in range(num_steps):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=workload.dtype == "bfloat16"):
                loss = called(input_ids=inputs, attention_mask=mask, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()

    return run, {
        "compile_seconds": None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


SIDES: dict[str, Callable[[Workload], sides.Side]] = {
    "limba": _limba,
    "huggingface": _huggingface,
    "huggingface_compiled": functools.partial(_huggingface, compiles=True),
    "t5x": _t5x,
}


# ---------------------------------------------------- measurement ---------------------------------------------------


def add_rates(workload: Workload, report: dict[str, Any]) -> None:
    """Adds to a side's report what its seconds mean."""
    tflops_per_second = model_flops(workload) / report["seconds"] / 1e12
    peak = peak_tflops(report["device"])
    report |= {
        "tokens_per_second": round(workload.batch_size * (workload.inputs + workload.targets) / report["seconds"]),
        "model_tflops_per_second": float(f"{tflops_per_second:.4g}"),
        "mfu": None if peak is None else round(tflops_per_second / peak, 4),
    }


def measure(workload: Workload, sides_: list[str], steps: int, rounds: int) -> dict[str, Any]:
    """A report per side for one dtype; sides_[0] is what the ratios compare with."""
    with tempfile.TemporaryDirectory() as folder:
        reports = sides.measure(
            Path(__file__).resolve(), workload.dtype, dataclasses.asdict(workload), sides_, steps, rounds, Path(folder)
        )
    for report in reports.values():
        if not isinstance(report, str):
            add_rates(workload, report)
    return reports


def sizes_from_gin(gin_file: str) -> dict[str, Any]:
    """The fields of the `network.T5Config` of a gin file.

    Reads the file's statements and imports none of its modules: its vocabulary would bring TensorFlow in.
    """
    from limba.gin_config.recipe import Include, Recipe, Statement
    from limba.network import t5

    def read(file: str) -> list[Statement]:
        path = next((p for p in (Path(file), sides.REPOSITORY / file) if p.is_file()), None)
        if path is None:
            raise SystemExit(f"--gin_file: {file} exists neither here nor in {sides.REPOSITORY}.")
        statements = Recipe.parse(path.read_text(), file).statements
        return [y for x in statements for y in (read(x.file) if isinstance(x, Include) else [x])]

    fields = Recipe(read(gin_file)).parameters("T5Config")
    for chosen_here in ("dtype", "dropout_rate"):
        fields.pop(chosen_here, None)
    if "vocab_size" not in fields:
        raise SystemExit(f"--gin_file: {gin_file} binds no T5Config.vocab_size; give a file of gin/models.")
    config = t5.T5Config(**fields)
    sizes = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {k: v for k, v in sizes.items() if k not in ("dtype", "dropout_rate")}


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--size", choices=SIZES, default="small", help="a T5 1.1 (small)")
    model.add_argument("--gin_file", help="a model's gin file instead, such as gin/models/t5_1_1/small.gin")
    parser.add_argument("--batch_size", type=int, default=8, help="rows (8)")
    parser.add_argument("--inputs", type=int, default=512, help="tokens of inputs (512)")
    parser.add_argument("--targets", type=int, default=114, help="tokens of targets (114)")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES), help="of activations (both)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a side in one round (5)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, of which the median counts (3)")
    parser.add_argument(
        "--against", nargs="*", choices=[side for side in SIDES if side != "limba"], default=[], help="compare with"
    )
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    for name in ("batch_size", "inputs", "targets", "steps", "rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} is {getattr(args, name)}; it must be at least 1")
    return args


def main() -> None:
    args = parse_arguments()
    if args.serve:
        sides.serve(args.serve, lambda workload: SIDES[args.serve](Workload(**workload)))
        return
    sizes = sizes_from_gin(args.gin_file) if args.gin_file else T5_1_1 | SIZES[args.size]
    compared = ["limba", *dict.fromkeys(args.against)]
    workloads = [Workload(sizes, dtype, args.batch_size, args.inputs, args.targets) for dtype in args.dtype]
    dtypes = {w.dtype: measure(w, compared, args.steps, args.rounds) for w in workloads}
    for dtype, reports in dtypes.items():
        if isinstance(reports["limba"], str):
            raise SystemExit(f"benchmarks.train_step: limba in {dtype}: {reports['limba']}")
    device = dtypes[args.dtype[0]]["limba"]["device"]
    print(
        json.dumps(
            {
                "benchmark": "train_step",
                "model": args.gin_file or f"t5_1_1 {args.size}",
                "sizes": sizes,
                "batch_size": args.batch_size,
                "inputs": args.inputs,
                "targets": args.targets,
                "optimizer": "adafactor",
                "steps": args.steps,
                "rounds": args.rounds,
                "device": device,
                "peak_tflops_per_second": peak_tflops(device),
                "cpus": os.cpu_count(),
                "cpu_bf16": sides.cpu_bf16(),
                "python": platform.python_version(),
                "model_tflops": float(f"{model_flops(workloads[0]) / 1e12:.4g}"),
                "dtypes": dtypes,
            }
        )
    )


if __name__ == "__main__":
    main()
