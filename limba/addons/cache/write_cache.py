"""Tokenizes a task once, into files that any number of hosts read by index: `limba.addons.cache.cached_data`.

limba cache my_task --module my_tasks --sequence_length inputs=512,targets=114 --out cached/my_task
"""

import dataclasses
import difflib
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import tqdm

from limba.addons.cache import cache_files, cached_data
from limba.data import contract
from limba.files import json_text, named_flags, os_errors
from limba.files.local_paths import local_path
from limba.gin_config import closed_list
from limba.tasks import objectives
from limba.tasks.pipeline import fingerprints, readers, streams, task_batches
from limba.tasks.pipeline.positions import ReadPlan
from limba.tasks.pretraining import denoising
from limba.tasks.registry import providers, rows
from limba.tasks.registry.tasks import is_mixture
from limba.tasks.vocabularies import sentencepiece_models


@dataclasses.dataclass(frozen=True)
class _KeepWindows:
    """An objective that does nothing: its inputs are the windows that `objective` would corrupt."""

    objective: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def corrupt(
        self, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, ids: objectives.VocabularyIds
    ) -> objectives.CorruptedBatch:
        del seeds, ids
        one = np.ones((len(tokens), 1), np.int32)
        return objectives.CorruptedBatch(tokens, lengths, one, one[:, 0].astype(np.int64))


def write_cache(task: Any, split: str, lengths: Mapping[str, int], directory: str | Path, seed: int = 0) -> Path:
    """Writes the cache of one split, and returns its folder. A cache that is there and up to date is left as it is.

    A pre-training task (a source of `tasks.sources.corpora` and a `Denoise`) is kept as windows of tokens, which are
    corrupted when they are read, differently in every epoch. Of any other task the finished examples of one epoch are
    kept: random choices of its preprocessors are then the same in every epoch.

    Args:
      task: not a mixture.
      split, lengths: of the task, and tokens per feature.
      directory: gets a folder named for the split.
      seed: of the preprocessors' random choices.

    Raises:
      ValueError, FileNotFoundError: if something is wrong with the task, and if the folder is not a cache of it.
      RuntimeError: if the corpus cannot be read to its end.
      OSError: if the cache cannot be written. Nothing is left of one that is not whole.
    """
    if is_mixture(task):
        raise ValueError(f"{task.name!r} is a mixture; cache its tasks one by one, and mix where they are read.")
    own = local_path(directory)
    names = [path.name for path in own.iterdir() if path.is_file()] if own.is_dir() else []
    if foreign := [name for name in names if not name.startswith(".")]:
        raise ValueError(f"{own} holds other files, such as {foreign[0]}: give a new folder, or that of the caches.")
    config = contract.DatasetConfig(task, lengths, split, 1, shuffle=False, seed=seed, num_readers=1)
    stream = task_batches.open_stream(config, "EncDecFeatureConverter")
    if set(lengths) != {"inputs", "targets"}:
        raise ValueError(f"A cache holds the features inputs and targets; --sequence_length has {sorted(lengths)}.")
    step = task.preprocessors[0]
    keeps_windows = len(task.preprocessors) == 1 and isinstance(step, denoising.Denoise)
    keeps_windows = keeps_windows and stream.reads_chunks(task)
    manifest = _describe(task, stream, seed, step if keeps_windows else None)
    folder = own / split
    if (folder / "manifest.json").is_file():
        before = cache_files.read_manifest(folder)
        differences = list(fingerprints.differences(before["fingerprint"], manifest["fingerprint"]))
        if differences:
            raise ValueError(
                f"{folder} has a cache of other data: {'; '.join(differences)}. Remove it, or give another --out."
            )
        remedy = f"Remove {folder} to make it again."
        cached_data.check_files(before["files"], f"The cache {folder} is stale", remedy)
        return folder
    if folder.exists():
        raise ValueError(f"{folder} is there, and is not a cache. Remove it, or give another --out.")

    unfinished = folder.with_name(f"{split}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
    try:
        unfinished.mkdir(parents=True)
        _write(unfinished, manifest, task, stream, seed, step if keeps_windows else None)
        # Only a finished cache has the folder's name.
        unfinished.rename(folder)
    except OSError as error:
        raise OSError(f"The cache {folder} cannot be written: {os_errors.describe(error) or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _write(
    folder: Path,
    manifest: dict[str, Any],
    task: Any,
    stream: streams.Stream,
    seed: int,
    denoise: denoising.Denoise | None,
) -> None:
    """Writes the files of a cache, and its manifest when they are whole."""
    split, lengths = stream.config.split, dict(stream.config.task_feature_lengths or {})
    examples = _windows(task, split, lengths, denoise) if denoise else _finished(stream, task, seed)
    examples = readers.reading(examples, task.name, "windows" if denoise else "examples")
    names = ["tokens"] if denoise else ["inputs", "targets"]
    vocabulary_size = max(feature.vocabulary.vocab_size for feature in task.output_features.values())
    dtype = np.dtype(np.uint16 if vocabulary_size <= 2**16 else np.int32)
    with tqdm.tqdm(examples, desc=f"{task.name}, {split}", unit=" examples", disable=None) as progress:
        manifest["features"], manifest["num_examples"] = _write_features(folder, progress, names, dtype)
    if not manifest["num_examples"]:
        raise ValueError(f"Split {split!r} of {task.name!r} has no example.")
    (folder / "manifest.json").write_text(json_text.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")


def _write_features(
    folder: Path, examples: Iterator[Mapping[str, np.ndarray]], names: list[str], dtype: np.dtype
) -> tuple[dict[str, dict[str, Any]], int]:
    files = {name: (folder / f"{name}.tokens").open("wb") for name in names}
    lengths: dict[str, list[int]] = {name: [] for name in names}
    try:
        for example in examples:
            for name, file in files.items():
                file.write(example[name].astype(dtype).tobytes())
                lengths[name].append(len(example[name]))
    finally:
        for file in files.values():
            file.close()
    for name in names:
        np.save(folder / f"{name}.ends.npy", np.cumsum(lengths[name], dtype=np.int64))
    features = {
        name: {"dtype": dtype.name, "bytes": sum(of_each) * dtype.itemsize, "longest": max(of_each, default=0)}
        for name, of_each in lengths.items()
    }
    return features, len(lengths[names[0]])


def _windows(
    task: Any, split: str, lengths: Mapping[str, int], step: denoising.Denoise
) -> Iterator[dict[str, np.ndarray]]:
    keep = dataclasses.replace(
        step,
        objective=cast(objectives.Objective, _KeepWindows(step.objective)),
        output_features=task.output_features,
        sequence_length=lengths,
    )
    num_mode_tokens = len(step.mode_tokens(task.output_features))
    documents = task.source.chunks_of(split, shuffle=False, seed=0).documents(num_epochs=1)
    for made in streams.preprocessor([keep])(documents, 0):
        windows = made.columns["inputs"]
        for window, length in zip(windows.padded, windows.lengths, strict=True):
            yield {"tokens": window[num_mode_tokens:length]}


def _finished(stream: streams.Stream, task: Any, seed: int) -> Iterator[dict[str, np.ndarray]]:
    for block in stream.examples(task, ReadPlan(seed, num_epochs=1)):
        for i in range(rows.num_rows(block)):
            yield {name: block[name][i][block[name][i] != 0] for name in ("inputs", "targets")}


def _describe(task: Any, stream: streams.Stream, seed: int, denoise: denoising.Denoise | None) -> dict[str, Any]:
    """The manifest, without the counts, which are known when the cache is written."""
    config = stream.config
    ids = sentencepiece_models.ids_of(task.output_features["targets"].vocabulary)
    files = list(task.source.list_shards(config.split)) if stream.reads_chunks(task) else []
    for feature in task.output_features.values():
        files.append(contract.vocabulary_file(feature.vocabulary) or "")
    return {
        "task": task.name,
        "split": config.split,
        "lengths": dict(config.task_feature_lengths or {}),
        "objective": cached_data.describe_objective(denoise.objective) if denoise else None,
        "mode": denoise.mode_tokens(task.output_features) if denoise else [],
        "vocabulary": {name: getattr(ids, name) for name in ("vocab_size", "num_sentinels", "eos_id")}
        | ({} if ids.sentinel_ids is None else {"sentinel_ids": list(ids.sentinel_ids)}),
        "files": cached_data.describe_files(list(dict.fromkeys(files))),
        "fingerprint": json.loads(json_text.dumps(fingerprints.of_stream(stream, seed, 1))),
    }


def _check_split(task: Any, split: str) -> None:
    """Raises ValueError if a task has no such split, naming the nearest one."""
    if split not in task.splits:
        nearest = difflib.get_close_matches(split, list(task.splits), n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"--split: {task.name!r} has no split {split!r}; it has {', '.join(task.splits)}.{hint}")


def _parse_lengths(text: str) -> dict[str, int]:
    try:
        return {name: int(length) for name, length in (part.split("=") for part in text.split(","))}
    except ValueError:
        raise ValueError(f"--sequence_length is {text!r}; write it like inputs=512,targets=114.") from None


def main(argv: list[str] | None = None) -> None:
    parser = named_flags.Parser(prog="limba cache", description=__doc__.partition("\n")[0])
    parser.add_argument("task", help="a registered task")
    parser.add_argument("--module", help="the module that registers it, such as my_tasks")
    parser.add_argument("--split", default="train", help="splits, separated by commas (train)")
    parser.add_argument("--sequence_length", required=True, help="such as inputs=512,targets=114")
    parser.add_argument("--out", required=True, help="the folder of the cache; each split gets a folder in it")
    parser.add_argument("--seed", type=int, default=0, help="of the preprocessors' random choices (0)")
    args = parser.parse_args(argv)
    try:
        closed_list.give_modules(filter(None, [args.module]))
        task = providers.find_provider(args.task, args.module)
        lengths = _parse_lengths(args.sequence_length)
        splits = args.split.split(",")
        for split in splits:  # all of them, before the first is written
            _check_split(task, split)
        for split in splits:
            folder = write_cache(task, split, lengths, args.out, args.seed)
            manifest = cache_files.read_manifest(folder)
            size = sum(file.stat().st_size for file in folder.iterdir())
            kept = "windows, corrupted differently in every epoch" if manifest["objective"] else "examples, as they are"
            print(f"{folder}: {manifest['num_examples']} {kept}, {size / 1e6:.1f} MB")
    except BrokenPipeError:  # `| head`: `limba` ends without a word.
        raise
    except (ValueError, OSError, RuntimeError) as error:  # A shard that stays broken is a RuntimeError.
        sys.exit(f"error: {os_errors.describe(error) or error}")


if __name__ == "__main__":
    main()
