"""A checkpoint on its way into a Hugging Face folder, of whatever kind its model is."""

import abc
from pathlib import Path
from typing import Any, Generic

import jax.numpy as jnp

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare import comparison
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files import any_format
from limba.convert.model_files.model import AFamily, ANetwork, Model
from limba.convert.tensors import tensor_parts


class Export(abc.ABC, Generic[AFamily, ANetwork]):
    """An export.

    Attributes:
      model: the checkpoint's.
      vocabulary: as `run.json` describes it.
      formats: of the weights that the model's class has.
    """

    def __init__(self, model: Model[AFamily, ANetwork], formats: tuple[str, ...]):
        self.model = model
        self.vocabulary = any_format.known_vocabulary(model)
        self.formats = formats

    @property
    def model_class(self) -> str:
        """Of Hugging Face."""
        return self.model.family.class_of(self.model.head.kind)

    @property
    @abc.abstractmethod
    def vocabulary_file(self) -> Path | None:
        """None for bytes."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user of the folder should know, in whole sentences."""
        return self.model.warnings

    @abc.abstractmethod
    def write_beside(self, folder: Path, dtype: str) -> dict[str, dict[str, Any]]:
        """Writes the tokenizer; returns the JSON files by name, for weights of this dtype."""

    def stored(self, format_: str, dtype: str) -> dict[str, SavedTensor]:
        """The tensors as the files of a format have them."""
        kind, family = jnp.dtype(dtype), self.model.family
        stored = {}
        for name, tensor in self.model.cast(kind).stored(as_flax=format_ == "flax").items():
            # What the network has no parameter for is float32.
            stored[family.tensor_name(name)] = tensor if tensor.dtype == kind else tensor_parts.cast(tensor, kind, name)
        return stored

    def compare(self, folder: Path, format_: str) -> list[Comparison]:
        """Compares the weights of a format in the folder with the checkpoint."""
        return comparison.compare(self.model, any_format.open_model(folder, format_=format_))
