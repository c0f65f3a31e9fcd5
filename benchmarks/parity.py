"""The numbers of a run, step by step: runs a numeric kit and writes what came out, to be compared with T5X's.

    python -m benchmarks.parity KIT OUT

A kit is a folder with `kit.gin` (MODEL, Trainer and START_STEP in T5X's vocabulary), `init.npz` (the initial
parameters, named by their paths) and `batches.npz` (each feature `[step, batch, length]`). OUT gets `losses.json`,
`final.npz` and `opt_final.npz`; if KIT holds those too, the distances are printed and the exit code is 1 above the
tolerances.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gin
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from limba import command_line
from limba.checkpoints.train_state import TrainState
from limba.devices import native_logs
from limba.gin_config import gin_files, t5x_names
from limba.models import metrics as metrics_lib
from limba.partitioning.meshes import PjitPartitioner
from limba.training.trainer import Trainer

# Relative, float32: the loss of every step, and each tensor's L2 distance over its norm. A kit in lower precision binds
# TOLERANCE in kit.gin, which is then both.
LOSS_TOLERANCE = 5e-6
TENSOR_TOLERANCE = 3e-5

# The metrics of a row that are ratios of `metrics`; the others are made below.
_METRICS = (
    "loss",
    "z_loss",
    "cross_ent_loss",
    "accuracy",
    "loss_per_nonpadding_target_token",
    "loss_per_all_target_tokens",
    "non_padding_fraction/overall",
    "effective_batch_size/encoder",
    "effective_batch_size/decoder",
)


def run_kit(kit: Path, out: Path) -> None:
    """Runs every batch of a kit on one device.

    Raises:
      FileNotFoundError: if a file of the kit is missing.
      ValueError: if parameters are missing, extra or of another shape than the configured network's.
    """
    for name in ("kit.gin", "init.npz", "batches.npz"):
        if not (kit / name).is_file():
            raise FileNotFoundError(f"{kit / name} is missing; a kit holds kit.gin, init.npz and batches.npz.")
    t5x_names.install()
    gin_files.parse_files([str(kit / "kit.gin")])  # It binds names for this program: START_STEP, TOLERANCE.
    model = macro("MODEL")
    trainer = gin.get_configurable(Trainer)(model=model, partitioner=PjitPartitioner(devices=jax.devices()[:1]))
    state = _initial_state(trainer, np.load(kit / "init.npz"), int(macro("START_STEP")))
    batches = np.load(kit / "batches.npz")

    def step_with_gradients(state: TrainState, batch):
        """A training step, and the norms of the gradients it used."""
        grads, _ = trainer.gradients(state.params, batch, jax.random.key(0))
        norms = jax.tree.map(lambda g: jnp.sqrt(jnp.sum(jnp.square(g))), grads)
        return *trainer.step(state, batch), norms

    replicated = trainer.partitioner.replicated
    step = trainer.partitioner.jit(
        step_with_gradients,  # compiled once, though the first state is on no mesh yet
        in_shardings=(trainer.state_shardings, trainer.partitioner.data_sharding),
        out_shardings=(trainer.state_shardings, replicated, replicated),
    )
    rows = []
    for i in range(len(batches["decoder_target_tokens"])):
        batch = {name: batches[name][i] for name in batches.files}
        before = int(state.step)
        state, metrics, norms = step(state, batch)
        rows.append(_row(before, metrics, norms))

    out.mkdir(parents=True, exist_ok=True)
    (out / "losses.json").write_text(json.dumps({"steps": rows}, indent=1), encoding="utf-8")
    np.savez(out / "final.npz", **_flat(state.params))
    np.savez(out / "opt_final.npz", **_flat({"state": state.state_dict()["state"]}))


def macro(name: str) -> Any:
    """The value of a gin macro, built if it is a reference."""
    value = gin.query_parameter(f"%{name}")
    return value.scoped_configurable_fn() if hasattr(value, "scoped_configurable_fn") else value


def tolerances() -> dict[str, float]:
    """Of each result of `compare`, for the kit that was run last."""
    try:
        declared = float(gin.query_parameter("%TOLERANCE"))
    except ValueError:  # gin's answer for a macro that no file binds
        return {"losses": LOSS_TOLERANCE, "final.npz": TENSOR_TOLERANCE, "opt_final.npz": TENSOR_TOLERANCE}
    return dict.fromkeys(("losses", "final.npz", "opt_final.npz"), declared)


def _initial_state(trainer: Trainer, init, start_step: int) -> TrainState:
    expected = {name: x.shape for name, x in _flat(trainer.param_shapes).items()}
    given = {name: init[name].shape for name in init.files}
    if expected != given:
        wrong = sorted(name for name in expected | given if expected.get(name) != given.get(name))
        details = "; ".join(f"{n}: network {expected.get(n)}, init.npz {given.get(n)}" for n in wrong[:5])
        raise ValueError(f"init.npz does not fit the network of kit.gin, {len(wrong)} tensors differ: {details}")
    params = traverse_util.unflatten_dict({name: jnp.asarray(init[name]) for name in init.files}, sep="/")
    return TrainState(jnp.int32(start_step), params, trainer.model.optimizer_def.init(params))


def _flat(tree: Any) -> dict[str, Any]:
    return traverse_util.flatten_dict(tree, sep="/")


def _row(step: int, metrics: metrics_lib.Metrics, norms: Any) -> dict[str, Any]:
    values = metrics_lib.compute(metrics) | {"loss": metrics["loss"].compute()}  # T5X's: the sum that is minimized
    by_parameter = {name: float(norm) for name, norm in sorted(_flat(norms).items())}
    return {
        "step": step,
        "learning_rate": values["learning_rate"],
        **{name: values[name] for name in _METRICS if name in values},
        "accuracy_weighted_hits": float(metrics["accuracy"].total),
        "weight_sum": float(metrics["accuracy"].count),
        "gradient_global_norm": math.sqrt(sum(norm**2 for norm in by_parameter.values())),
        "gradient_norm_per_parameter": by_parameter,
    }


def compare(kit: Path, out: Path) -> dict[str, float]:
    """The largest distances between two result folders: losses, parameters, optimizer state."""
    losses = [[row["loss"] for row in json.loads((f / "losses.json").read_text())["steps"]] for f in (kit, out)]
    expected, actual = np.array(losses)
    worst = {"losses": float(np.max(np.abs(actual - expected) / np.abs(expected)))}
    for file in ("final.npz", "opt_final.npz"):
        theirs, ours = np.load(kit / file), np.load(out / file)
        if set(theirs.files) != set(ours.files):
            raise ValueError(f"{file}: different tensors: {sorted(set(theirs.files) ^ set(ours.files))[:5]}")
        worst[file] = max(distance(theirs[name], ours[name]) for name in theirs.files)
    return worst


def distance(expected: np.ndarray, actual: np.ndarray) -> float:
    """The L2 norm of the difference over that of `expected`, in float64."""
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    norm = np.linalg.norm(expected)
    return float(np.linalg.norm(actual - expected) / (norm or 1.0))


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kit", type=Path)
    parser.add_argument("out", type=Path)
    flags = parser.parse_args(argv)
    jax.config.update("jax_default_matmul_precision", "highest")
    run_kit(flags.kit, flags.out)
    if not (flags.kit / "losses.json").is_file():
        print(f"wrote {flags.out}; {flags.kit} has no results to compare with")
        return 0
    worst = compare(flags.kit, flags.out)
    within = all(worst[result] <= tolerance for result, tolerance in tolerances().items())
    print(", ".join(f"{name} {distance:.1e}" for name, distance in worst.items()), "ok" if within else "TOO FAR")
    return 0 if within else 1


if __name__ == "__main__":
    with native_logs.filtered():
        import seqio  # noqa: F401  (kits bind its vocabularies)
    command_line.run_command(main, sys.argv[1:])
