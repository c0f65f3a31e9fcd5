"""Checkpoints handed from T5X to Limba and back: does the other go on as if nothing had happened?

    python -m benchmarks.handover REFERENCE --t5x_dir T5X --t5x_python PYTHON

REFERENCE is a run that T5X made: `kit/kit.gin` (as of `benchmarks.parity`), `batches.npz`, `losses.json` (its
`loss_per_nonpadding_target_token`), `classic_checkpoint_0` and `classic_checkpoint_10`, and, if it is there,
`orbax_checkpoint_30` of its last step. Limba resumes from T5X's checkpoints of step 10, classic and Orbax, and T5X from
those that Limba writes after the same ten steps: in either format, and by `limba convert to-t5x`. T5X runs in its own
interpreter. Prints by how much the losses then differ from the uninterrupted run's, at most and relative, and with
`orbax_checkpoint_30` how far Limba's last state is from T5X's; the exit code is 1 above the tolerances. T5X's own row
with its own checkpoint says what cannot be had closer.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import gin
import jax
import numpy as np

from benchmarks import parity
from convert.to_t5x import to_t5x
from limba import command_line
from limba.checkpoint_files import assignment_maps
from limba.checkpoints.checkpointing import SaveCheckpointConfig
from limba.checkpoints.restore import load_state
from limba.checkpoints.train_state import TrainState
from limba.devices import native_logs
from limba.gin_config import gin_files, t5x_names
from limba.partitioning.meshes import PjitPartitioner
from limba.training.trainer import Trainer

# Relative, of any step's loss. `benchmarks.parity` has the bound of the tensors.
LOSS_TOLERANCE = 1e-5
HANDED_OVER = 10
GIVEN = ("kit/kit.gin", "batches.npz", "losses.json", "classic_checkpoint_0", f"classic_checkpoint_{HANDED_OVER}")


class Limba:
    """Limba's side: a trainer of the reference's network on one device, and the run's batches."""

    def __init__(self, reference: Path):
        t5x_names.install()
        gin_files.parse_files([str(reference / "kit" / "kit.gin")])
        partitioner = PjitPartitioner(devices=jax.devices()[:1])
        self._trainer = gin.get_configurable(Trainer)(model=parity.macro("MODEL"), partitioner=partitioner)
        with np.load(reference / "batches.npz") as arrays:
            self._batches = {name: arrays[name] for name in arrays.files}
        self.last_step = len(self._batches["decoder_target_tokens"])

    def restore(self, path: Path) -> TrainState:
        return load_state(path, self._trainer.sharded_state_shapes())

    def train(self, state: TrainState, until: int) -> tuple[TrainState, list[float]]:
        """The state after step `until`, and the loss per target token of each step on the way. Donates `state`."""
        losses = []
        for step in range(int(state.step), until):
            batch = {name: rows[step] for name, rows in self._batches.items()}
            state, metrics = self._trainer.train_step(state, self._trainer.partitioner.shard_batch(batch))
            losses.append(float(metrics["loss_per_nonpadding_target_token"].compute()))
        return state, losses


def check(reference: Path, t5x_dir: Path, t5x_python: str) -> None:
    """Raises FileNotFoundError if something that is needed is not there."""
    for name in GIVEN:
        if not (reference / name).exists():
            raise FileNotFoundError(f"{reference / name} is missing; a reference holds {', '.join(GIVEN)}.")
    if not (t5x_dir / "t5x" / "trainer.py").is_file():
        raise FileNotFoundError(f"--t5x_dir={t5x_dir} is not a checkout of github.com/google-research/t5x.")
    if shutil.which(t5x_python) is None:
        raise FileNotFoundError(f"--t5x_python={t5x_python} is not an interpreter.")


def save_every_way(state: TrainState, folder: Path) -> dict[str, Path]:
    """Checkpoints of `state` below `folder`, by the words of the table."""
    checkpoints = {}
    for name, use_orbax in (("orbax", True), ("classic", False)):
        checkpointer = SaveCheckpointConfig().make_checkpointer(folder / name, use_orbax)
        step = checkpointer.save(state, None, {})
        checkpointer.close()
        checkpoints[f"Limba's {name} checkpoint"] = folder / name / f"checkpoint_{step}"
    source = checkpoints["Limba's orbax checkpoint"]
    with contextlib.redirect_stdout(sys.stderr):  # stdout is the table's
        for name in ("orbax", "classic"):
            converted = to_t5x(source, folder / f"to_t5x_{name}", format_=name, verify=False)
            checkpoints[f"the same after convert to-t5x, {name}"] = converted
    return checkpoints


def t5x_goes_on(
    reference: Path, checkpoints: Sequence[Path], t5x_dir: Path, t5x_python: str, folder: Path
) -> tuple[dict[str, list[float]], Path]:
    """T5X's losses by checkpoint, and its Orbax checkpoint of the first one's state.

    Raises:
      RuntimeError: with the end of what T5X said, if it fails.
    """
    out, saved = folder / "t5x_losses.json", folder / "t5x_orbax"
    paths = [str(t5x_dir), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    program = Path(__file__).with_name("handover_t5x.py")
    files = [reference / "kit" / "kit.gin", reference / "batches.npz", out, saved, *checkpoints]
    command = [t5x_python, str(program), *map(str, files)]
    result = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        last = "\n".join(result.stderr.strip().splitlines()[-8:])
        raise RuntimeError(f"T5X ended with exit code {result.returncode}:\n{last}")
    return json.loads(out.read_text(encoding="utf-8")), saved / f"checkpoint_{HANDED_OVER}"


def state_distance(expected: TrainState, actual: TrainState) -> float:
    """Of parameters and optimizer state: the largest distance of a tensor, over its norm."""
    theirs, ours = (assignment_maps.flatten_state_dict(jax.device_get(s.state_dict())) for s in (expected, actual))
    return max(parity.distance(np.asarray(theirs[name]), np.asarray(ours[name])) for name in theirs)


def difference(losses: Sequence[float], expected: Sequence[float]) -> float:
    """The largest one of a step's losses, relative.

    Raises:
      ValueError: if there are not as many, because training went on from another step.
    """
    if len(losses) != len(expected):
        raise ValueError(f"{len(losses)} steps were trained, not {len(expected)}: the checkpoint is of another step.")
    return float(np.max(np.abs(np.array(losses) - np.array(expected)) / np.array(expected)))


def handover(
    reference: Path, t5x_dir: Path, t5x_python: str, folder: Path
) -> tuple[list[tuple[str, str, float]], float | None]:
    """The table's rows (who resumes, from where, largest relative difference of a loss), and the state's distance."""
    limba = Limba(reference)
    expected = json.loads((reference / "losses.json").read_text(encoding="utf-8"))["loss_per_nonpadding_target_token"]
    expected_then = expected[HANDED_OVER:]
    t5x_classic = reference / f"classic_checkpoint_{HANDED_OVER}"

    _progress(f"Limba trains to step {HANDED_OVER} and saves")
    state, first = limba.train(limba.restore(reference / "classic_checkpoint_0"), HANDED_OVER)
    ours = save_every_way(state, folder)
    _, then = limba.train(state, limba.last_step)
    rows = [("Limba", "T5X's classic checkpoint of step 0, all steps", difference(first + then, expected))]

    _progress(f"T5X resumes from {1 + len(ours)} checkpoints")
    theirs, t5x_orbax = t5x_goes_on(reference, [t5x_classic, *ours.values()], t5x_dir, t5x_python, folder)

    _progress("Limba resumes from T5X's")
    distance = None
    last = reference / f"orbax_checkpoint_{limba.last_step}"
    for name, path in (("T5X's classic checkpoint", t5x_classic), ("T5X's orbax checkpoint", t5x_orbax)):
        state, losses = limba.train(limba.restore(path), limba.last_step)
        rows.append(("Limba", name, difference(losses, expected_then)))
        if path == t5x_classic and last.exists():
            distance = state_distance(limba.restore(last), state)
    rows.append(("T5X", "T5X's classic checkpoint", difference(theirs[str(t5x_classic)], expected_then)))
    rows += [("T5X", name, difference(theirs[str(path)], expected_then)) for name, path in ours.items()]
    return rows, distance


def _progress(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.handover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reference", type=Path)
    parser.add_argument("--t5x_dir", type=Path, required=True, help="a checkout of github.com/google-research/t5x")
    parser.add_argument("--t5x_python", default=sys.executable, help="an interpreter that can import it (this one)")
    flags = parser.parse_args(argv)
    check(flags.reference, flags.t5x_dir, flags.t5x_python)
    jax.config.update("jax_default_matmul_precision", "highest")
    with tempfile.TemporaryDirectory() as folder:
        rows, distance = handover(flags.reference.resolve(), flags.t5x_dir.resolve(), flags.t5x_python, Path(folder))
    print("| who goes on | from | difference |\n|---|---|---|")
    for who, source, largest in rows:
        print(f"| {who} | {source} | {largest:.1e} |")
    if distance is not None:
        print(f"parameters and optimizer state after Limba's last step against T5X's: {distance:.1e}")
    within = all(largest <= LOSS_TOLERANCE for _, _, largest in rows)
    return 0 if within and (distance is None or distance <= parity.TENSOR_TOLERANCE) else 1


if __name__ == "__main__":
    with native_logs.filtered():
        import seqio  # noqa: F401  (kits bind its vocabularies)
    command_line.run_command(main, sys.argv[1:])
