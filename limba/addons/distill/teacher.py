"""The teacher of a distillation: each batch of a training gets the tokens that the teacher finds likely.

    train_script.train.prepare_train_iter_fn = @teacher.add_teacher      (gin/runs/distill.gin)

Every host runs the teacher on its own rows and its own devices, before the student's step gets them.
"""

import dataclasses
import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util

from limba.addons.distill.distilled_model import LOG_PROBS, TEMPERATURE, TOKENS
from limba.convert.model_files import any_format
from limba.convert.model_files.model import Model
from limba.data.contract import Batch, BatchIterator, TaskBatches
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

    Raises:
      FileNotFoundError: if there is no teacher, or if it does not say its vocabulary.
      ValueError: for a teacher that is no T5 or has another vocabulary, and for numbers out of range.
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
    if not equality.same_vocabulary(of_teacher, vocabulary):
        raise ValueError(
            f"The teacher {teacher} has another vocabulary than the student (VOCABULARY). Both must have the same "
            "tokens: bind VOCABULARY_FILE to the teacher's, or take another teacher."
        )
    if top_k > of_teacher.vocab_size:
        raise ValueError(
            f"add_teacher.top_k (TEACHER_TOP_K) is {top_k}; the teacher has {of_teacher.vocab_size} tokens. Give at "
            "most as many."
        )
    devices = [x for x in partitioner.mesh.devices.flat if x.process_index == jax.process_index()]
    likeliest = Likeliest(opened, of_teacher, top_k, temperature, dtype, devices)
    cls = TaughtTaskBatches if isinstance(batches, TaskBatches) else TaughtBatches
    return cls(batches, likeliest)


class Likeliest:
    """The likeliest tokens of a teacher's vocabulary; its parameters are read when the first batch comes."""

    def __init__(
        self, teacher: Model, vocabulary: Any, top_k: int, temperature: float, dtype: str, devices: Sequence[jax.Device]
    ):
        self._teacher, self._devices = teacher, list(devices)
        plain: dict[str, Any] = {"scan_layers": False, "joined_attention_kernels": True, "remat_policy": "none"}
        config = dataclasses.replace(teacher.config, dtype=jnp.dtype(dtype), **plain)
        self._model = EncoderDecoderModel(config.network(), vocabulary, vocabulary, optax.sgd(0.0))
        self._top_k, self._temperature = top_k, temperature
        # An embedding may have more rows, and the student's may have fewer than the teacher's.
        self._num_tokens = vocabulary.vocab_size

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        """The features of a batch that `distilled_model` names."""
        rows = len(batch["decoder_target_tokens"])
        num = max(n for n in range(1, len(self._devices) + 1) if rows % n == 0)
        params, placed = self._on_devices(num)
        read = {name: x for name, x in batch.items() if name.startswith(("encoder_", "decoder_"))}
        found = self._found(params, {name: jax.device_put(x, placed) for name, x in read.items()})
        temperature = np.full(rows, self._temperature, np.float32)
        return {TEMPERATURE: temperature} | {name: np.asarray(x) for name, x in found.items()}

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
            with target.without_kernels():
                logits = self._model.logits(params, batch)[..., : self._num_tokens].astype(jnp.float32)
            log_probs = jax.nn.log_softmax(logits / self._temperature, axis=-1)
            values, tokens = jax.lax.top_k(log_probs, self._top_k)
            return {TOKENS: tokens.astype(jnp.int32), LOG_PROBS: values}

        return jax.jit(likeliest)


class TaughtBatches:
    """A `BatchIterator` whose batches have the teacher's tokens too; the position is that of the batches below."""

    def __init__(self, batches: Any, likeliest: Likeliest):
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
