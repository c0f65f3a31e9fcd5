"""The teacher of a distillation: each batch of a training gets the tokens that the teacher finds likely.

    train_script.train.prepare_train_iter_fn = @teacher.add_teacher      (gin/runs/distill.gin)

Every host runs the teacher on its own rows and its own devices, before the student's step gets them. A teacher with
another vocabulary reads the same text in its own tokens (aligned.py).
"""

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from limba.addons.distill import aligned, answers
from limba.addons.distill.distilled_model import LOG_PROBS, TEMPERATURE, TOKENS, WEIGHTS
from limba.convert.model_files import any_format
from limba.convert.model_files.model import Model
from limba.data.contract import Batch, BatchIterator, TaskBatches, encoder_decoder_features
from limba.devices import target
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1, Range
from limba.inference import tasks_door
from limba.models import EncoderDecoderModel
from limba.network import t5
from limba.partitioning.meshes import PjitPartitioner
from limba.tasks.vocabularies import equality

logger = logging.getLogger(__name__)

_DTYPES = ("float32", "bfloat16")
# The least probability of one of the likeliest tokens: 0 has no logarithm.
_LEAST = 1e-30


def open_teacher(path: str) -> Model:
    """A run, a checkpoint or a Hugging Face folder of a T5; its tensors are not read yet.

    Raises:
      FileNotFoundError, ValueError: as `any_format.open_model`; ValueError also for a model that is no T5.
    """
    found: Model = any_format.open_model(path)
    config = found.config
    if not isinstance(config, t5.T5Config) or not (config.num_encoder_layers and config.num_decoder_layers):
        raise ValueError(
            f"The teacher (TEACHER) is {path}, a model of {found.family.title}; give a T5 with encoder and decoder."
        )
    return found


def add_teacher(
    batches: BatchIterator,
    *,
    partitioner: PjitPartitioner,
    checkpoint_cfg: Any,
    teacher: str,
    vocabulary: Any,
    top_k: int = 16,
    temperature: float = 1.0,
    dtype: str = "float32",
    aligns_texts: bool = False,
    answers_folder: str | None = None,
) -> "TaughtBatches":
    """The batches of a training with the teacher's likeliest tokens: a `train.prepare_train_iter_fn`.

    Args:
      batches: of an encoder-decoder, as Limba's `get_dataset` opens them.
      partitioner: its mesh has the devices.
      checkpoint_cfg: unused; `train` gives it.
      teacher: a run, a checkpoint or a Hugging Face folder.
      vocabulary: of the student.
      top_k: how many of the teacher's likeliest tokens each position gets.
      temperature: above 0; divides the logits of both.
      dtype: what the teacher computes in, "float32" or "bfloat16".
      aligns_texts: whether the teacher may have another vocabulary; it then teaches where both have written the same.
      answers_folder: a folder of this machine that keeps what the teacher answered, for another run on the same rows.

    Raises:
      FileNotFoundError: if there is no teacher, or if it does not say its vocabulary.
      ValueError: for a teacher that is no T5, for another vocabulary that is not allowed or not known, for numbers out
        of range, and for a folder that is none or has damaged answers.
    """
    del checkpoint_cfg
    number_ranges.check("add_teacher.top_k", top_k, AT_LEAST_1)
    number_ranges.check("add_teacher.temperature", temperature, Range(is_above=True))
    if dtype not in _DTYPES:
        raise ValueError(f"add_teacher.dtype is {dtype!r}; it is one of {', '.join(_DTYPES)}.")
    if not hasattr(batches, "save_state"):
        raise ValueError(
            "A teacher reads the batches of Limba's own get_dataset, and train.get_dataset_fn is another function: "
            "leave one of the two out."
        )
    opened = open_teacher(teacher)
    if opened.vocabulary is None:
        raise FileNotFoundError(
            f"The teacher (TEACHER) is {teacher}, which does not say its vocabulary. Make a run of it with `limba "
            f"convert from-t5x {teacher} OUT --vocab FILE`, and name OUT."
        )
    of_teacher = tasks_door.open_vocabulary(any_format.known_vocabulary(opened))
    is_same = equality.same_vocabulary(of_teacher, vocabulary)
    if not is_same and not aligns_texts:
        raise ValueError(
            f"The teacher {teacher} has another vocabulary than the student (VOCABULARY). Bind VOCABULARY_FILE to the "
            "teacher's, or take another teacher. Or set TEACHER_ALIGNS_TEXTS = True: then it teaches where its tokens "
            "and the student's end at the same place of a text."
        )
    num_tokens = min(of_teacher.vocab_size, vocabulary.vocab_size)
    if top_k > num_tokens:
        raise ValueError(
            f"add_teacher.top_k (TEACHER_TOP_K) is {top_k}; teacher and student have {num_tokens} tokens. Give at most "
            "as many."
        )
    devices = [x for x in partitioner.mesh.devices.flat if x.process_index == jax.process_index()]
    likeliest: Any = Likeliest(opened, of_teacher, top_k, temperature, dtype, devices)
    if not is_same:
        _check_not_packed(getattr(batches, "is_packed", False))
        likeliest = AlignedLikeliest(likeliest, aligned.Translation(vocabulary, of_teacher))
    if answers_folder is not None:
        likeliest = answers.KeptAnswers(likeliest, answers_folder, vocabulary.vocab_size, top_k, jax.process_index())
    cls = TaughtTaskBatches if isinstance(batches, TaskBatches) else TaughtBatches
    return cls(batches, likeliest)


class Likeliest:
    """The likeliest tokens of a teacher's vocabulary; its parameters are read when the first batch comes.

    Attributes:
      top_k, temperature: as `add_teacher` has them.
    """

    def __init__(
        self, teacher: Model, vocabulary: Any, top_k: int, temperature: float, dtype: str, devices: Sequence[jax.Device]
    ):
        self._teacher, self._devices, self._dtype = teacher, list(devices), dtype
        plain: dict[str, Any] = {"scan_layers": False, "joined_attention_kernels": True, "remat_policy": "none"}
        config = dataclasses.replace(teacher.config, dtype=jnp.dtype(dtype), **plain)
        self._model = EncoderDecoderModel(config.network(), vocabulary, vocabulary, optax.sgd(0.0))
        self.top_k, self.temperature = top_k, temperature
        # An embedding may have more rows, and the student's may have fewer than the teacher's.
        self._num_tokens = vocabulary.vocab_size

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        """The features of a batch that `distilled_model` names."""
        found = self.run(self._found, batch)
        weights = np.ones(batch["decoder_target_tokens"].shape, np.float32)
        return {TEMPERATURE: self.temperatures(len(weights)), WEIGHTS: weights} | found

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of all that decides the answers."""
        found = hashlib.blake2b(repr((self.top_k, self.temperature, self._dtype, self._num_tokens)).encode())
        for name, tensor in sorted(traverse_util.flatten_dict(self._params, sep="/").items()):
            found.update(name.encode())
            found.update(np.ascontiguousarray(tensor).data)
        return found.hexdigest()[:32]

    def temperatures(self, rows: int) -> np.ndarray:
        return np.full(rows, self.temperature, np.float32)

    def run(self, compiled: Any, batch: Batch, **more: np.ndarray) -> dict[str, np.ndarray]:
        """What a compiled function makes of the parameters and of a batch's encoder and decoder, with more rows."""
        rows = len(batch["decoder_target_tokens"])
        num = max(n for n in range(1, len(self._devices) + 1) if rows % n == 0)
        params, placed = self._on_devices(num)
        read = {name: x for name, x in batch.items() if name.startswith(("encoder_", "decoder_"))} | more
        found = compiled(params, {name: jax.device_put(x, placed) for name, x in read.items()})
        return {name: np.asarray(x) for name, x in found.items()}

    def log_probs(self, params: Any, batch: Batch) -> jax.Array:
        """Of all tokens at each target, float32 `[batch, length, tokens]`, traced by JAX."""
        with target.without_kernels():
            logits = self._model.logits(params, batch)[..., : self._num_tokens].astype(jnp.float32)
        return jax.nn.log_softmax(logits / self.temperature, axis=-1)

    @functools.cached_property
    def _params(self) -> Mapping[str, Any]:
        logger.info("Reading the teacher %s (%s parameters).", self._teacher.path, f"{self._teacher.num_parameters:,}")
        flat = {name: np.asarray(tensor, np.float32) for name, tensor in self._teacher.tensors.items()}
        return traverse_util.unflatten_dict(flat, sep="/")

    @functools.lru_cache(maxsize=2)  # noqa: B019 - the object lives as long as the training
    def _on_devices(self, num: int) -> tuple[Any, Any]:
        mesh = jax.sharding.Mesh(np.array(self._devices[:num]), ("rows",))
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return jax.device_put(self._params, everywhere), jax.sharding.NamedSharding(
            mesh, jax.sharding.PartitionSpec("rows")
        )

    @functools.cached_property
    def _found(self) -> Any:
        def likeliest(params: Any, batch: Batch) -> dict[str, jax.Array]:
            values, tokens = jax.lax.top_k(self.log_probs(params, batch), self.top_k)
            return {TOKENS: tokens.astype(jnp.int32), LOG_PROBS: values}

        return jax.jit(likeliest)


class AlignedLikeliest:
    """The student's tokens with which the likeliest tokens of a teacher with another vocabulary begin.

    The student's target itself has the probability of all the teacher's tokens that write it, where their end is the
    target's; what the first of them brought to another token is taken from there. All that the teacher's likeliest 256
    tokens (`_CANDIDATES` for each of `top_k`) do not hold is in the rest.
    """

    _CANDIDATES = 16
    # Each length is compiled once.
    _MULTIPLE = 32

    def __init__(self, likeliest: Likeliest, translation: aligned.Translation):
        self._likeliest, self._translation = likeliest, translation

    @functools.cached_property
    def fingerprint(self) -> str:
        found = hashlib.blake2b(self._likeliest.fingerprint.encode())
        found.update(self._translation.table.tobytes())
        return found.hexdigest()[:32]

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        """The features of a batch that `distilled_model` names.

        Raises:
          ValueError: for packed rows, whose texts would have to be taken apart.
        """
        _check_not_packed(any(name.endswith("segment_ids") for name in batch))
        targets = batch["decoder_target_tokens"]
        inputs = [self._translation.inputs(_without_padding(row)) for row in batch["encoder_input_tokens"]]
        rows = [self._translation.targets(_without_padding(row)) for row in targets]
        at = np.full((len(rows), targets.shape[1] + 1), -1, np.int32)
        for place, row in enumerate(rows):
            at[place, : len(row.at)] = row.at
        # Of the special tokens at the ends no other follows.
        until = np.where(at[:, 1:] > at[:, :-1], at[:, 1:], -1)
        at = at[:, :-1]
        read = encoder_decoder_features(self._padded(inputs), self._padded([row.ids for row in rows]))
        found = self._likeliest.run(self._found, read, at=at, until=until, of_student=targets)
        weights = ((at >= 0) & (targets != 0)).astype(np.float32)
        return {TEMPERATURE: self.temperatures(len(at)), WEIGHTS: weights} | found

    def temperatures(self, rows: int) -> np.ndarray:
        return self._likeliest.temperatures(rows)

    def _padded(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        length = max(1, *map(len, rows))
        padded = np.zeros((len(rows), -(-length // self._MULTIPLE) * self._MULTIPLE), np.int32)
        for place, row in enumerate(rows):
            padded[place, : len(row)] = row
        return padded

    @functools.cached_property
    def _found(self) -> Any:
        table, none = jnp.asarray(self._translation.table), self._translation.num_tokens
        top_k, num_candidates = self._likeliest.top_k, self._likeliest.top_k * self._CANDIDATES

        def likeliest(params: Any, batch: Batch) -> dict[str, jax.Array]:
            log_probs = self._likeliest.log_probs(params, batch)
            own = batch["decoder_target_tokens"]
            written = jnp.take_along_axis(log_probs, own[..., None], axis=-1)[..., 0]
            before = jnp.pad(jnp.cumsum(written, axis=1), ((0, 0), (1, 0)))
            at, until = (jnp.maximum(batch[name], 0) for name in ("at", "until"))
            of_target = jnp.exp(jnp.take_along_axis(before, until, 1) - jnp.take_along_axis(before, at, 1))
            of_target = jnp.where(batch["until"] >= 0, of_target, 0.0)
            values, tokens = jax.lax.top_k(log_probs, min(num_candidates, log_probs.shape[-1]))
            values, tokens = (jnp.take_along_axis(x, at[..., None], axis=1) for x in (values, tokens))
            rows, places = jnp.ogrid[: at.shape[0], : at.shape[1]]
            probs = (
                jnp.zeros((*at.shape, none + 1))
                .at[rows[..., None], places[..., None], table[tokens]]
                .add(jnp.exp(values))
            )
            first = table[jnp.take_along_axis(own, at, axis=1)]
            moved = jnp.where(first == batch["of_student"], 0.0, of_target)
            probs = probs.at[rows, places, first].add(-moved).at[rows, places, batch["of_student"]].add(moved)
            values, tokens = jax.lax.top_k(jnp.maximum(probs[..., :none], 0.0), top_k)
            return {TOKENS: tokens.astype(jnp.int32), LOG_PROBS: jnp.log(jnp.maximum(values, _LEAST))}

        return jax.jit(likeliest)


def _check_not_packed(is_packed: bool) -> None:
    if is_packed:
        raise ValueError(
            "A teacher with another vocabulary (TEACHER_ALIGNS_TEXTS) reads rows of one text, and these are packed: "
            "set DatasetConfig.pack = False."
        )


def _without_padding(row: np.ndarray) -> list[int]:
    return row[: len(np.trim_zeros(row, "b"))].tolist()


class TaughtBatches:
    """A `BatchIterator` whose batches have the teacher's tokens too; the position is that of the batches below."""

    def __init__(self, batches: Any, likeliest: Callable[[Batch], dict[str, np.ndarray]]):
        self._batches, self._likeliest = batches, likeliest

    def __iter__(self) -> "TaughtBatches":
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        return {**batch, **self._likeliest(batch)}

    def save_state(self) -> Mapping[str, bytes]:
        return self._batches.save_state()

    def restore_state(self, state: Mapping[str, bytes]) -> None:
        self._batches.restore_state(state)

    def __getattr__(self, name: str) -> Any:
        """What a stream may have beside these."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._batches, name)


class TaughtTaskBatches(TaughtBatches):
    """The same of a stream that knows its tasks: `TaskBatches`."""

    @property
    def task_groups(self) -> Mapping[str, Sequence[int]]:
        return self._batches.task_groups

    def epochs(self) -> Mapping[str, float]:
        return self._batches.epochs()
