"""Reads what `limba cache` wrote: examples by index, from memory-mapped files, without TensorFlow.

    train_script.train.get_dataset_fn = @cached_data.get_dataset
    cached_data.get_dataset.directory = 'cached/my_task'

The global batch at step `n` is a function of seed and `n`: row `r` of it is example `n * batch_size + r` of a sequence
in which every epoch is a permutation of all examples. So any number of hosts read the same batches, and the position of
a run is one number.

A cache is a folder per split with `manifest.json`, and for each feature `NAME.tokens`, all tokens one after another,
and `NAME.ends.npy`, int64 `[examples]`, where each example ends. Windows of text (the feature `tokens`, and an
objective in the manifest) are corrupted when they are read, differently in every epoch; finished examples have
`inputs` and `targets`.
"""

import contextlib
import json
import logging
import secrets
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limba.addons.cache import cache_files
from limba.data import contract
from limba.files import json_text, untrusted_json
from limba.files.local_paths import local_path
from limba.files.number_ranges import AT_LEAST_0
from limba.files.untrusted_files import cut, shown
from limba.gin_config import importing, run_folders
from limba.tasks import objectives
from limba.tasks.objectives.hashing import mix

logger = logging.getLogger(__name__)

_STATE = "cached.json"
# Of one token nothing can be masked.
_FEWEST_TOKENS = 2
_POSITION = AT_LEAST_0._replace(below=2**40)
# What a manifest that `limba cache` did not write, or a file beside it, makes of the code that reads it.
_DAMAGED = (KeyError, TypeError, AttributeError, IndexError, OverflowError, EOFError)


class Cache:
    """A split of a cached task, opened and compared with the files it was made of, where they are on this machine.

    `directory` is what `limba cache --out` wrote; split and lengths of `config` must be the cache's.

    Raises:
      FileNotFoundError: if there is no finished cache.
      ValueError: if the cache belongs to another task, split or lengths, is damaged, or older than its sources or its
        task.
    """

    def __init__(self, directory: str | Path, config: contract.DatasetConfig):
        self.folder = local_path(directory) / config.split
        lengths = dict(config.task_feature_lengths or {})
        command = _command(config, lengths, directory)
        if not (self.folder / "manifest.json").is_file():
            raise FileNotFoundError(f"There is no finished cache in {self.folder}; make it: {command}")
        manifest = cache_files.read_manifest(self.folder)
        self.manifest = manifest
        for name, asked in (("task", config.name), ("split", config.split), ("lengths", lengths)):
            if manifest[name] != asked:
                made = cut(repr(manifest[name]))
                raise ValueError(
                    f"The cache {self.folder} was made with {name} {made}, and the configuration asks for "
                    f"{asked!r}. Ask for its values, or make a cache in another folder: {command}"
                )
        if config.pack:
            raise ValueError(
                f"The cache {self.folder} cannot be read with DatasetConfig.pack; set PACK to False, or read the "
                "task itself."
            )
        again = f"Remove it and make it again: {command}"
        check_files(manifest["files"], f"The cache {self.folder} is stale", again)
        if changes := _differences_of_task(manifest, config):
            raise ValueError(
                f"The cache {self.folder} is stale: the task {config.name!r} makes other data now "
                f"({'; '.join(changes)}). {again}"
            )
        self.num_examples = manifest["num_examples"]
        self._lengths = manifest["lengths"]
        self._tokens: dict[str, np.ndarray] = {}
        self._ends: dict[str, np.ndarray] = {}
        run_folders.read_data(self.folder.parent)  # No module that lies in a cache is imported.
        for name, feature in manifest["features"].items():
            self._tokens[name], self._ends[name] = cache_files.open_feature(
                self.folder, name, feature, self.num_examples, again
            )
        self._ids = objectives.VocabularyIds(**manifest["vocabulary"])
        try:
            self._objective = load_objective(manifest["objective"]) if manifest["objective"] else None
            if self._objective is not None:
                self._check_windows(self._objective)
        except ValueError as error:
            raise ValueError(f"{self.folder}/manifest.json: {error}") from error

    def _check_windows(self, objective: objectives.Objective) -> None:
        main = self._lengths[objective.main_feature]
        most = objective.raw_length(main - len(self.manifest["mode"]))
        if not _FEWEST_TOKENS <= (longest := self.manifest["features"]["tokens"]["longest"]) <= most:
            raise ValueError(
                f"windows have up to {longest} tokens; for {main} {objective.main_feature} the longest has "
                f"{_FEWEST_TOKENS} to {most}. Remove {self.folder} and make it again with `limba cache`."
            )

    def batch(self, indexes: np.ndarray, epochs: np.ndarray, seed: int) -> contract.Batch:
        """The model's features of examples int64 `[rows]` of epochs `[rows]`; `seed`, epoch and index corrupt text."""
        if self._objective is None:
            inputs, targets = (self._read(name, indexes, self._lengths[name])[0] for name in ("inputs", "targets"))
            return contract.encoder_decoder_features(inputs, targets)
        windows, lengths = self._read("tokens", indexes, self.manifest["features"]["tokens"]["longest"])
        seeds = mix(mix(mix(np.uint64(seed % 2**64)) + epochs.astype(np.uint64)) + indexes.astype(np.uint64))
        corrupted = self._objective.corrupt(windows, lengths, seeds, self._ids)
        mode = np.array(self.manifest["mode"], np.int32)
        inputs = np.concatenate([np.tile(mode, (len(indexes), 1)), corrupted.inputs], axis=1)
        padded = [
            np.pad(x, [(0, 0), (0, max(length - x.shape[1], 0))])[:, :length]
            for x, length in ((inputs, self._lengths["inputs"]), (corrupted.targets, self._lengths["targets"]))
        ]
        return contract.encoder_decoder_features(*padded)

    def _read(self, name: str, indexes: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int32 `[rows, longest]`, padded with 0, and how many each row has, `[rows]`."""
        tokens, ends = self._tokens[name], self._ends[name]
        starts, stops = np.where(indexes > 0, ends[indexes - 1], 0), ends[indexes]
        fewest = 0 if self._objective is None else _FEWEST_TOKENS
        is_whole = (starts >= 0) & (stops - starts >= fewest) & (stops <= tokens.size)
        if not is_whole.all():
            raise ValueError(
                f"{self.folder / name}.ends.npy is damaged: example {indexes[np.argmin(is_whole)]} is not in the "
                f"{tokens.size} tokens. Remove {self.folder} and make it again with `limba cache`."
            )
        lengths = np.minimum(stops - starts, longest)
        rows = np.zeros((len(indexes), longest), np.int32)
        for row, start, length in zip(rows, starts, lengths, strict=True):
            row[:length] = tokens[start : start + length]
        return rows, lengths


def _command(config: contract.DatasetConfig, lengths: Mapping[str, int], directory: str | Path) -> str:
    """The command that makes a cache."""
    module = f" --module {config.module}" if config.module else ""
    tokens = ",".join(f"{name}={length}" for name, length in lengths.items())
    return f"limba cache {config.name}{module} --split {config.split} --sequence_length {tokens} --out {directory}"


class CachedBatches:
    """This host's rows of the batches of a cache, for ever. Implements `limba.data.contract.BatchIterator`."""

    def __init__(self, cache: Cache, config: contract.DatasetConfig, process_index: int, process_count: int):
        if config.batch_size % process_count:
            raise ValueError(f"A batch of {config.batch_size} does not divide by {process_count} hosts.")
        self._cache = cache
        self._config = config
        rows = config.batch_size // process_count
        self._rows = np.arange(process_index * rows, (process_index + 1) * rows)
        self._is_first_host = process_index == 0
        self._batches = 0
        self._seed = config.seed
        if self._seed is None:
            if process_count > 1:
                raise ValueError("Several hosts need one seed; set DatasetConfig.seed.")
            self._seed = secrets.randbits(31)
            logger.warning("No seed is set for %s: this run draws %d.", config.name, self._seed)

    def __iter__(self) -> "CachedBatches":
        return self

    def __next__(self) -> contract.Batch:
        assert self._seed is not None
        epochs, numbers = np.divmod(self._batches * self._config.batch_size + self._rows, self._cache.num_examples)
        indexes = numbers
        if self._config.shuffle:
            # A batch can touch several epochs of a small cache.
            for epoch in np.unique(epochs):
                is_of_epoch = epochs == epoch
                indexes[is_of_epoch] = permute(numbers[is_of_epoch], self._cache.num_examples, self._seed, int(epoch))
        self._batches += 1
        return self._cache.batch(indexes, epochs, self._seed)

    def save_state(self) -> Mapping[str, bytes]:
        if not self._is_first_host:  # It is the same on all of them.
            return {}
        examples = self._batches * self._config.batch_size
        state = {"batches": self._batches, "epoch": examples // self._cache.num_examples, **self._fingerprint()}
        return {_STATE: json_text.dumps(state, indent=1).encode()}

    def restore_state(self, state: Mapping[str, bytes]) -> None:
        if _STATE not in state:
            raise ValueError(
                f"The saved data position has no {_STATE!r}, only {sorted(state)}: the run began with another source. "
                f"Resume with that source, or {contract.NEW_RUN}."
            )
        saved = untrusted_json.parse_object(state[_STATE], f"The saved data position ({_STATE})")
        if wrong := [key for key in ("batches", "seed") if not _POSITION.has(saved.get(key))]:
            raise ValueError(
                f"The saved data position ({_STATE}) has {wrong[0]} {shown(saved.get(wrong[0]))}; it is {_POSITION}. "
                f"Take an earlier checkpoint, or {contract.NEW_RUN}."
            )
        if self._config.seed is None:
            self._seed = saved["seed"]
        differences = [
            f"{name} was {cut(repr(saved.get(name)))} and is {value!r}"
            for name, value in self._fingerprint().items()
            if saved.get(name) != value
        ]
        if differences:
            raise ValueError(
                f"The saved data position ({_STATE}) belongs to other data: {'; '.join(differences)}. Restore the "
                f"old values, or {contract.NEW_RUN}."
            )
        self._batches = saved["batches"]

    def _fingerprint(self) -> dict[str, Any]:
        manifest = self._cache.manifest
        return {
            "task": manifest["task"],
            "split": manifest["split"],
            "cache": zlib.crc32(json_text.dumps(manifest["fingerprint"], sort_keys=True).encode()),
            "num_examples": manifest["num_examples"],
            "batch_size": self._config.batch_size,
            "seed": self._seed,
            "shuffle": self._config.shuffle,
        }


class CachedEvalBatches:
    """All examples once, in the order of the files; the last batch is filled up with rows of weight 0."""

    def __init__(self, cache: Cache, config: contract.DatasetConfig, process_index: int, process_count: int):
        if config.batch_size % process_count:
            raise ValueError(f"An evaluation batch of {config.batch_size} does not divide by {process_count} hosts.")
        self._cache = cache
        self._batch_size = config.batch_size
        self._seed = config.seed or 0
        rows = config.batch_size // process_count
        self._rows = slice(process_index * rows, (process_index + 1) * rows)

    def __iter__(self) -> Iterator[contract.Batch]:
        for start in range(0, self._cache.num_examples, self._batch_size):
            indexes = np.arange(start, start + self._batch_size)
            exists = indexes < self._cache.num_examples
            batch = self._cache.batch(np.where(exists, indexes, 0), np.zeros_like(indexes), self._seed)
            yield {name: (x * exists[:, None].astype(x.dtype))[self._rows] for name, x in batch.items()}


def get_dataset(
    cfg: contract.DatasetConfig, shard_id: int, num_shards: int, feature_converter_cls: Any, directory: str = ""
) -> contract.BatchIterator:
    """The training stream of a cache: a `limba.data.contract.GetDatasetFn`, once gin has bound the directory.

    The feature converter must be SeqIO's `EncDecFeatureConverter`, or its name.

    Raises:
      FileNotFoundError, ValueError: as `Cache`.
    """
    return CachedBatches(_open(directory, cfg, feature_converter_cls), cfg, shard_id, num_shards)


def get_eval_datasets(
    cfg: contract.DatasetConfig,
    shard_id: int,
    num_shards: int,
    eval_steps: int | None,
    feature_converter_cls: Any,
    directory: str = "",
) -> contract.EvalBatches:
    """The evaluation set of a cache: a `contract.GetEvalDatasetFn`; see `get_dataset`. A seed of None means 0."""
    del eval_steps  # Batches are made when they are asked for.
    cache = _open(directory, cfg, feature_converter_cls)
    return {cfg.name: CachedEvalBatches(cache, cfg, shard_id, num_shards)}


def _open(directory: str, config: contract.DatasetConfig, feature_converter: Any) -> Cache:
    if not directory:
        raise ValueError(
            "Bind cached_data.get_dataset.directory (and get_eval_datasets.directory): where the cache is."
        )
    converter = getattr(feature_converter, "__name__", feature_converter)
    if converter != "EncDecFeatureConverter":
        raise ValueError(f"A cache makes encoder-decoder features, not those of {converter}; read the task itself.")
    try:
        return Cache(directory, config)
    except _DAMAGED as error:
        file = f"{directory}/{config.split}/manifest.json"
        raise ValueError(f"{file} is none that `limba cache` wrote ({error!r}). Make the cache again.") from error


def describe_files(paths: list[str]) -> dict[str, dict[str, int]]:
    """Size, time and checksum of each file of this machine."""
    return {path: {**_stat(Path(path)), "crc32": _checksum(Path(path))} for path in paths if Path(path).is_file()}


def check_files(files: Mapping[str, Mapping[str, int]], problem: str, remedy: str) -> None:
    """Raises ValueError if a file has changed since `describe_files`; files that are not here are not checked."""
    for path, before in files.items():
        try:
            is_here = Path(path).is_file()
        except OSError:  # No file of this machine has such a name.
            is_here = False
        if not is_here:
            continue
        now = _stat(Path(path))
        # A copy has another time, so the content decides; it is read only where the time differs.
        if now["size"] != before["size"] or (
            now["time_ns"] != before["time_ns"] and _checksum(Path(path)) != before["crc32"]
        ):
            raise ValueError(f"{problem}: {cut(path)} has changed since. {remedy}")


def _stat(path: Path) -> dict[str, int]:
    return {"size": path.stat().st_size, "time_ns": path.stat().st_mtime_ns}


def _checksum(path: Path) -> int:
    """Of as much as the file's size says: some of /proc have no size and no end."""
    checksum, left = 0, path.stat().st_size
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            checksum = zlib.crc32(block, checksum)
            left -= len(block)
    return checksum


def permute(numbers: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """These numbers in a permutation of `range(size)`, another one for every seed and epoch.

    A Feistel network over the next power of four, walked on until a number lies in the range (Black and Rogaway,
    "Ciphers with arbitrary finite domains", 2002): no table, whatever the size.
    """
    half = max(((size - 1).bit_length() + 1) // 2, 1)
    mask = np.uint64(2**half - 1)
    keys = mix(mix(mix(np.uint64(seed % 2**64)) + np.uint64(epoch)) + np.arange(1, 9, dtype=np.uint64))

    def encrypt(values: np.ndarray) -> np.ndarray:
        left, right = values >> np.uint64(half), values & mask
        for key in keys:
            left, right = right, left ^ (mix(right + key) & mask)
        return (left << np.uint64(half)) | right

    values = encrypt(numbers.astype(np.uint64))
    while (outside := values >= size).any():
        values[outside] = encrypt(values[outside])
    return values.astype(np.int64)


def describe_objective(objective: objectives.Objective) -> dict[str, Any]:
    """An objective as a manifest has it.

    Raises:
      ValueError: if `load_objective` would not give the same objective.
    """
    kind = type(objective)
    ours = kind.__module__.startswith("limba.tasks.")
    module = kind.__module__.removeprefix("limba.") if ours else kind.__module__
    module = "tasks.objectives" if module.startswith("tasks.objectives.") else module
    try:
        description = json.loads(
            json_text.dumps({"class": f"{module}.{kind.__qualname__}", "arguments": vars(objective)})
        )
        loaded = load_objective(description)
    except (TypeError, ValueError) as error:
        loaded = error
    if loaded != objective or module == "__main__":
        raise ValueError(
            f"A cache cannot name the objective {objective!r} of {module} so that it is found again ({loaded!r}). Make "
            "it a frozen dataclass at the top of a module that can be imported, with numbers, texts or lists as fields."
        )
    return description


def load_objective(description: Mapping[str, Any]) -> Any:
    """The objective of a manifest: one of ours, or of a package that can be imported.

    Raises:
      ValueError: if its class cannot be imported, is not an objective, or does not have these fields.
    """
    module, _, name = description["class"].rpartition(".")
    if module.startswith("tasks.") and name in objectives.__all__:
        module = "limba.tasks.objectives"  # Older caches name the module in which it was.
    try:
        kind = getattr(importing.load(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"The cache needs the objective {description['class']!r}, which cannot be imported ({error}). Put the "
            "package that it is of on PYTHONPATH."
        ) from error
    # Nothing is called that a file names, unless it is an objective.
    if missing := objectives.missing_names(kind):
        raise ValueError(f"The cache names {description['class']!r} as its objective, which lacks {missing}.")
    try:
        return kind(**description["arguments"])
    except TypeError as error:
        objective = description["class"]
        raise ValueError(f"The objective {objective!r} has changed since the cache was made: {error}.") from error


def _differences_of_task(manifest: Mapping[str, Any], config: contract.DatasetConfig) -> list[str]:
    """What the task makes today and the cache does not hold; nothing of a task that is not registered, or SeqIO's."""
    name, module = config.mixture_or_task_name, config.module
    # The reader of a cache needs no task, and what tasks import is then not imported.
    if isinstance(name, str) and not module and "limba.tasks.registry.tasks" not in sys.modules:
        return []
    from limba.tasks.pipeline import fingerprints
    from limba.tasks.registry import providers, tasks
    from limba.tasks.sources.sharded import ShardedSource

    before = manifest["fingerprint"].get("tasks", {}).get(config.name)
    if before is None or (isinstance(name, str) and not module and name not in tasks.all_names()):
        return []
    task = providers.find_provider(name, module)
    if not isinstance(task, tasks.Task):
        return []
    now: dict[str, Any] = {"preprocessors": [fingerprints.describe(step) for step in task.preprocessors]}
    with contextlib.suppress(FileNotFoundError):
        now["vocabulary"] = fingerprints.of_vocabulary(task.output_features["targets"].vocabulary)
        if isinstance(task.source, ShardedSource) and not task.source.needs_network:
            now["source"] = task.source.fingerprint(config.split)
    return list(fingerprints.differences({key: before.get(key) for key in now}, now))
