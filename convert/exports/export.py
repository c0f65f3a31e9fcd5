"""What an export needs to know of a model, of whatever kind it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from convert.compare.comparison_rows import Comparison
from convert.encoders.encoder_model import EncoderModel
from convert.hf.model_card import Description
from convert.model_files.any_format import Model
from limba.checkpoint_files.saved_tensors import SavedTensor


class Export(Protocol):
    """A checkpoint on its way into a Hugging Face folder.

    Attributes:
      model_class: of Hugging Face; of an encoder that of masked language models.
      formats: of the weights that its class has.
      vocabulary_file: None for bytes.
      warnings: what a user of the folder should know, in whole sentences.
    """

    @property
    def model(self) -> Model | EncoderModel: ...

    @property
    def model_class(self) -> str: ...

    @property
    def formats(self) -> tuple[str, ...]: ...

    @property
    def vocabulary_file(self) -> Path | None: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...

    def check_example(self, text: str) -> None:
        """Raises ValueError for a text of `--example` that the model card cannot show."""

    def write_beside(self, folder: Path, dtype: str) -> dict[str, dict[str, Any]]:
        """Writes the tokenizer; returns the JSON files by name, for weights of this dtype."""

    def stored(self, format_: str, dtype: str) -> dict[str, SavedTensor]:
        """The tensors as the files of a format have them."""

    def compare(self, folder: Path, format_: str) -> list[Comparison]:
        """Compares the weights of a format in the folder with the checkpoint."""

    def describe(self, text: str, gin: str, formats: Sequence[str], dtype: str) -> Description:
        """For the model card, with the text of `--example`."""
