"""A student that begins with some of its teacher's layers, in place of random values.

train_script.train.initial_values_fn = @student.FromTeacher()
"""

import dataclasses
import logging
import re
from typing import Any

import numpy as np
from flax import traverse_util

from limba.addons.distill.teacher import open_teacher
from limba.convert.model_files import any_format
from limba.data.contract import DatasetConfig
from limba.inference import tasks_door
from limba.network import t5
from limba.tasks.vocabularies import equality

PyTree = Any

logger = logging.getLogger(__name__)

_LAYER = re.compile(r"^(encoder|decoder)/layers_(\d+)/")
_DEPTHS = {"encoder": "num_encoder_layers", "decoder": "num_decoder_layers"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FromTeacher:
    """The initial parameters of a run that begins without a checkpoint.

    Layers are taken at equal distances, from the first to the last: four of twelve are 0, 4, 7 and 11. All other
    parameters are copies of the teacher's. So student and teacher have the same widths, and the student has at most as
    many layers.

    Attributes:
      teacher: a run, a checkpoint or a Hugging Face folder.
    """

    teacher: str

    def check(self, model: Any, has_own_stream: bool = True) -> None:
        """Raises ValueError for a student that cannot begin so, FileNotFoundError without a teacher."""
        del has_own_stream
        config, opened = getattr(model.module, "config", None), open_teacher(self.teacher)
        teacher = opened.config
        if not isinstance(config, t5.T5Config) or config.scan_layers or not config.joined_attention_kernels:
            raise ValueError(
                "A student that begins with its teacher's layers (train.initial_values_fn) is a T5 with unrolled "
                "layers and joined attention kernels. Take a file such as those of gin/models/t5_1_1, or leave "
                "student.FromTeacher out."
            )
        depths = {name: getattr(config, name) for name in _DEPTHS.values()}
        for side, name in _DEPTHS.items():
            if depths[name] > getattr(teacher, name):
                raise ValueError(
                    f"T5Config.{name} is {depths[name]}, and the {side} of the teacher {self.teacher} has "
                    f"{getattr(teacher, name)} layers. A student that begins with its teacher's layers has at most as "
                    "many: lower it, or leave student.FromTeacher out."
                )
        if opened.vocabulary is not None:
            of_teacher = tasks_door.open_vocabulary(any_format.known_vocabulary(opened))
            if not equality.same_vocabulary(of_teacher, model.output_vocabulary):
                raise ValueError(
                    "A student that begins with its teacher's layers has its teacher's vocabulary, and "
                    f"{self.teacher} has another one. Bind VOCABULARY_FILE to the teacher's, or leave "
                    "student.FromTeacher out."
                )
        wanted = _shapes(model.param_shapes_and_axes()[0])
        given = {name: tuple(tensor.shape) for name, tensor in opened.tensors.items()}
        for name, shape in wanted.items():
            source = name_in_teacher(name, config, teacher)
            if given.get(source) != shape:
                raise ValueError(
                    f"A student that begins with its teacher's layers has the same widths: {name} is {list(shape)} in "
                    f"the student and {list(given[source]) if source in given else 'missing'} in {self.teacher}. "
                    "Change T5Config, or leave student.FromTeacher out: a teacher teaches students of any width."
                )

    def __call__(self, params: PyTree, *, model: Any, dataset: DatasetConfig) -> PyTree:
        """The teacher's parameters in the student's places; `params` has their names alone."""
        del dataset
        teacher, config = open_teacher(self.teacher), model.module.config
        flat = traverse_util.flatten_dict(params, sep="/")
        sources = {name: name_in_teacher(name, config, teacher.config) for name in flat}
        kept = {side: layers(getattr(config, x), getattr(teacher.config, x)) for side, x in _DEPTHS.items()}
        logger.info("The student begins with layers %s of %s.", kept, self.teacher)
        read = {name: np.asarray(teacher.tensors[source], np.float32) for name, source in sources.items()}
        return traverse_util.unflatten_dict(read, sep="/")


def layers(num_layers: int, of_teacher: int) -> list[int]:
    """Which of the teacher's `of_teacher` layers a student of `num_layers` takes."""
    if num_layers == 1:
        return [0]
    return [int(i * (of_teacher - 1) / (num_layers - 1) + 0.5) for i in range(num_layers)]


def name_in_teacher(name: str, student: t5.T5Config, teacher: t5.T5Config) -> str:
    """The name of the teacher's tensor that a student's parameter takes."""
    found = _LAYER.match(name)
    if found is None:
        return name
    side, number = found[1], int(found[2])
    depth = _DEPTHS[side]
    source = layers(getattr(student, depth), getattr(teacher, depth))[number]
    return f"{side}/layers_{source}/{name[found.end() :]}"


def _shapes(params: PyTree) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in traverse_util.flatten_dict(params, sep="/").items()}
