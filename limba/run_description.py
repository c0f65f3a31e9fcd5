"""What a checkpoint says of its run in `run/`: seeds, network, vocabulary, the operative gin."""

import dataclasses
import json
import logging
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

import limba
from limba import checkpoints, gin_utils
from limba.data import DatasetConfig
from limba.models import EncoderDecoderModel
from limba.storage import AnyPath

logger = logging.getLogger(__name__)


def recorded(model_dir: AnyPath) -> dict[str, Any]:
    """`run.json` of the newest checkpoint in which it is whole; empty for a new run."""
    for step in reversed(checkpoints.checkpoint_steps(model_dir)):
        path = checkpoints.checkpoint_path(model_dir, step)
        try:
            return json.loads(checkpoints.load_files(path, "run")["run.json"])
        except (KeyError, ValueError) as error:
            logger.warning("%s does not say its seeds (%s).", path, error)
    return {}


def choose_seeds(before: Mapping[str, Any], random_seed: int | None, dataset_seed: int | None) -> dict[str, int]:
    """The seeds of this run: configured, else those it began with, else drawn. The same on every host.

    Args:
      before: what `recorded` returned.
      random_seed: of initialization and dropout.
      dataset_seed: of order and corruption of the training data.
    """
    seeds = {}
    for name, configured in (("random", random_seed), ("dataset", dataset_seed)):
        known = before.get("seeds", {})
        # Without a saved position the data start anew: from the same seed they would be the same examples again.
        keep = name in known and (name == "random" or before.get("position_saved", True))
        drawn = known[name] if keep else secrets.randbelow(2**31)
        seeds[name] = configured if configured is not None else drawn
    if jax.process_count() > 1:
        seeds = {name: int(seed) for name, seed in multihost_utils.broadcast_one_to_all(seeds).items()}
    logger.info("Seeds: %s", seeds)
    return seeds


def run_info(
    model: EncoderDecoderModel, dataset_config: DatasetConfig, seeds: Mapping[str, int], initial_step: int = 0
) -> dict[str, Any]:
    """What `run/run.json` of a checkpoint says: all that a converter or a server needs to know of the run."""
    network = getattr(model.module, "config", None)
    fields = dataclasses.asdict(network) if dataclasses.is_dataclass(network) else {}  # type: ignore[arg-type]
    if "dtype" in fields:
        fields["dtype"] = jnp.dtype(fields["dtype"]).name
    vocabulary: Any = model.output_vocabulary
    file = getattr(vocabulary, "sentencepiece_model_file", None)
    return {
        "limba_version": limba.__version__,
        "network": fields,
        "vocabulary": {
            "class": type(vocabulary).__name__,
            "sentencepiece_model_file": _absolute(file) if file else None,
            "extra_ids": getattr(vocabulary, "extra_ids", 0),
            "vocab_size": vocabulary.vocab_size,
        },
        "task": dataset_config.name,
        "feature_lengths": dict(dataset_config.task_feature_lengths or {}),
        "batch_size": dataset_config.batch_size,
        "seeds": dict(seeds),
        "initial_step": initial_step,
    }


def _absolute(file: str) -> str:
    return file if "://" in file else str(Path(file).expanduser().absolute())


def commits() -> dict[str, str]:
    """The git commits of the code, with `-dirty` where tracked files were changed.

    "limba" if it runs from its own checkout, "project" if the working directory is in another one.
    """
    limba_folder = Path(limba.__file__).resolve().parents[1]
    folders = {}
    # An installed package may lie in the checkout of something else.
    if _git(limba_folder, "rev-parse", "--show-toplevel") == str(limba_folder):
        folders["limba"] = limba_folder
    if (here := _git(Path.cwd(), "rev-parse", "--show-toplevel")) and Path(here) != limba_folder:
        folders["project"] = Path(here)
    describe = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return {name: commit for name, folder in folders.items() if (commit := _git(folder, *describe))}


def _git(folder: Path, *command: str) -> str | None:
    """What git prints; None if it is not installed, or the folder is in no checkout."""
    try:
        done = subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, timeout=20)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def run_files(
    model: EncoderDecoderModel,
    dataset_config: DatasetConfig,
    seeds: Mapping[str, int],
    initial_step: int,
    total_steps: int,
    position_saved: bool,
) -> dict[str, bytes]:
    """The content of `run/`: run.json, config.gin, and the vocabulary's file."""
    info = run_info(model, dataset_config, seeds, initial_step) | {
        "total_steps": total_steps,
        "position_saved": position_saved,
        "commits": commits(),
    }
    files = {
        "run.json": json.dumps(info, indent=1).encode(),
        "config.gin": gin_utils.operative_config().encode(),
    }
    vocabulary_file = info["vocabulary"]["sentencepiece_model_file"]
    if vocabulary_file and Path(vocabulary_file).is_file():
        # So that a checkpoint can be used on a machine that has nothing else of the run.
        files["spiece.model"] = Path(vocabulary_file).read_bytes()
    return files
