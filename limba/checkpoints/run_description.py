"""What a checkpoint says of its run in `run/`: seeds, network, vocabulary, the operative gin."""

import dataclasses
import json
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

import limba
from limba import checkpoints, code_versions, distributed, gin_utils
from limba.data import DatasetConfig
from limba.lora import LoRA
from limba.models import EncoderDecoderModel
from limba.storage import AnyPath

logger = logging.getLogger(__name__)


def recorded(model_dir: AnyPath) -> dict[str, Any]:
    """`run.json` of the newest checkpoint in which it is whole, as worker 0 reads it; empty for a new run."""
    return distributed.from_first("record of the run", lambda: _recorded(model_dir))


def _recorded(model_dir: AnyPath) -> dict[str, Any]:
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
    seeds = distributed.from_first("seeds", lambda: seeds)
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
        **({"lora": model.module.description} if isinstance(model.module, LoRA) else {}),
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


def run_files(
    model: EncoderDecoderModel,
    dataset_config: DatasetConfig,
    seeds: Mapping[str, int],
    initial_step: int,
    total_steps: int,
    position_saved: bool,
    rows_per_epoch: int | None = None,
) -> dict[str, bytes]:
    """The content of `run/`: run.json, config.gin, and the vocabulary's file."""
    info = run_info(model, dataset_config, seeds, initial_step) | {
        "total_steps": total_steps,
        "position_saved": position_saved,
        "rows_per_epoch": rows_per_epoch,
        "commits": code_versions.commits(),
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
