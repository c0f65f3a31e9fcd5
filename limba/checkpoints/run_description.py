"""The description of a run in its checkpoints: seeds, network, vocabulary, the operative gin."""

import dataclasses
import json
import logging
import operator
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from limba.addons import table
from limba.checkpoint_files import run_folder
from limba.checkpoints import checkpointing
from limba.data.contract import DatasetConfig
from limba.files import json_text, storage, untrusted_json
from limba.files.local_paths import local_path
from limba.files.storage import AnyPath
from limba.files.version import VERSION
from limba.gin_config import gin_files
from limba.models import BaseTransformerModel
from limba.models.lora import LoRA
from limba.workers import code_versions, distributed

logger = logging.getLogger(__name__)


# What a run has drawn, from its first start on: one that is killed before its first checkpoint begins again with it.
START = "run_start.json"


def recorded(model_dir: AnyPath) -> dict[str, Any]:
    """`run.json` of the newest checkpoint that has a readable one, as worker 0 reads it.

    Without one, what `keep_seeds` has written; empty for a new run.
    """

    def read() -> dict[str, Any]:
        for step in reversed(checkpointing.checkpoint_steps(model_dir)):
            path = checkpointing.checkpoint_path(model_dir, step)
            try:
                return run_folder.load_run_info(path)
            except (FileNotFoundError, KeyError, ValueError) as error:
                logger.warning("%s has no readable run.json with its seeds (%s).", path, error)
        return _kept_seeds(model_dir)

    return distributed.from_first("record of the run", read)


def _kept_seeds(model_dir: AnyPath) -> dict[str, Any]:
    if not storage.is_file(model_dir / START):
        return {}
    try:
        seeds = untrusted_json.parse_object(storage.read_bytes(model_dir / START), START)["seeds"]
        return {"seeds": {name: operator.index(seeds[name]) for name in ("random", "dataset")}}
    except (KeyError, TypeError, ValueError) as error:
        logger.warning("%s is damaged (%s): seeds are drawn again.", model_dir / START, error)
        return {}


def keep_seeds(model_dir: AnyPath, seeds: Mapping[str, int]) -> None:
    """Writes the seeds of a run that has no checkpoint yet, and says so where an earlier start had them."""
    if storage.is_file(model_dir / START):
        logger.info(
            "An earlier start in %s ended before its first checkpoint: the run begins again, with the seeds %s (%s).",
            model_dir,
            dict(seeds),
            START,
        )
    storage.write_bytes(model_dir / START, json_text.dumps({"seeds": dict(seeds)}).encode())


def choose_seeds(before: Mapping[str, Any], random_seed: int | None, dataset_seed: int | None) -> dict[str, int]:
    """The seeds of this run, the same on every host: the configured ones, else those it began with, else drawn ones.

    `before` is what `recorded` returned.
    """
    seeds, known = {}, before.get("seeds", {})
    for name, configured in (("random", random_seed), ("dataset", dataset_seed)):
        # Without a saved position the data start from the beginning: the same seed would repeat the same examples.
        keep = name in known and (name == "random" or before.get("position_saved", True))
        drawn = known[name] if keep else secrets.randbelow(2**31)
        seeds[name] = configured if configured is not None else drawn
    seeds = distributed.from_first("seeds", lambda: seeds)
    logger.info("Seeds: %s", seeds)
    return seeds


def run_info(
    model: BaseTransformerModel, dataset_config: DatasetConfig, seeds: Mapping[str, int], initial_step: int = 0
) -> dict[str, Any]:
    """The content of `run/run.json`: everything that a converter or a server needs to know of the run."""
    network = getattr(model.module, "config", None)
    labels = getattr(model.output_vocabulary, "labels", None)
    head = getattr(model.module, "head_record", None)
    if head is not None and (problem_type := getattr(model, "problem_type", None)):
        head = head | {"problem_type": problem_type}
    generator = getattr(model, "generator_config", None)
    return {
        "limba_version": VERSION,
        "network_class": type(network).__name__,
        "network": _fields(network),
        **({"lora": model.module.description} if isinstance(model.module, LoRA) else {}),
        "vocabulary": _vocabulary_record(model.output_vocabulary if labels is None else model.input_vocabulary),
        **({} if labels is None else {"labels": list(labels)}),
        **({} if head is None else {"head": head}),
        **({} if generator is None else {"generator": _fields(generator)}),
        "task": dataset_config.name,
        "feature_lengths": dict(dataset_config.task_feature_lengths or {}),
        "batch_size": dataset_config.batch_size,
        "seeds": dict(seeds),
        "initial_step": initial_step,
    }


def _fields(network: Any) -> dict[str, Any]:
    """Of a network's configuration, as JSON has them; none of what is no dataclass."""
    fields = dataclasses.asdict(network) if dataclasses.is_dataclass(network) else {}  # type: ignore[arg-type]
    if "dtype" in fields:
        fields["dtype"] = jnp.dtype(fields["dtype"]).name
    return fields


def _vocabulary_record(vocabulary: Any) -> dict[str, Any]:
    if tokenizer_file := getattr(vocabulary, "tokenizer_file", None):
        kind = type(vocabulary).__name__
        return run_folder.tokenizer_record(_absolute(tokenizer_file), vocabulary.vocab_size, kind)
    file = getattr(vocabulary, "sentencepiece_model_file", None)
    return run_folder.vocabulary_record(
        type(vocabulary).__name__,
        _absolute(file) if file else None,
        getattr(vocabulary, "extra_ids", 0),
        vocabulary.vocab_size,
    )


def _absolute(file: str) -> str:
    return file if "://" in file else str(local_path(file))


def run_files(
    model: BaseTransformerModel,
    dataset_config: DatasetConfig,
    seeds: Mapping[str, int],
    save: checkpointing.SaveCheckpointConfig | None,
    *,
    initial_step: int,
    total_steps: int,
    rows_per_epoch: int | None,
    has_blanks: bool = True,
    machines: Mapping[str, Any] | None = None,
) -> dict[str, bytes]:
    """The content of `run/`; see `limba.checkpoint_files.run_folder`.

    Args:
      has_blanks: whether the task's texts may have blanks.
      machines: entries of `run.json` about them.
    """
    info = run_info(model, dataset_config, seeds, initial_step) | {
        "total_steps": total_steps,
        "position_saved": save is not None and save.save_dataset,
        "rows_per_epoch": rows_per_epoch,
        "has_blanks": has_blanks,
        "commits": code_versions.commits(),
        "modules": code_versions.folders_of([*gin_files.imported_modules(), *filter(None, [dataset_config.module])]),
        **(machines or {}),
    }
    file = Path(run_folder.vocabulary_file(info["vocabulary"]) or "")
    vocabulary = file.read_bytes() if file.is_file() else None
    content = run_folder.files(info, gin_files.operative_config(), vocabulary)
    if vocabulary is not None and (settings := file.with_name(run_folder.TOKENIZER_SETTINGS)).is_file():
        content[run_folder.TOKENIZER_SETTINGS] = settings.read_bytes()
    return content


def with_kernels(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The content of `run/` with the comparisons of kernels in its record, which are made while steps are compiled."""
    info = json.loads(files[run_folder.RECORD])
    info["kernels"] = [dataclasses.asdict(result) for part in table.parts("attention") for result in part.comparisons()]
    return {**files, run_folder.RECORD: run_folder.record(info)}
