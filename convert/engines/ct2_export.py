"""What a CTranslate2 folder has beside the model: tokenizer files, and a README that says how to load it."""

import abc
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

from tokenizers import Tokenizer

from convert.compare import comparison_rows
from convert.compare.comparison import TEXT
from convert.compare.comparison_rows import Comparison
from convert.engines import ct2_weights
from convert.model_files.model import AFamily, ANetwork, Model

TOKENIZER = "tokenizer.json"


class Ct2Export(abc.ABC, Generic[AFamily, ANetwork]):
    """A model on its way into a CTranslate2 folder.

    Attributes:
      model, quantization: what is written, and how its weights are.
      vocabulary_file: None for bytes.
      warnings: what a user of the folder should know, in whole sentences.
      notes: sentences of the README about the use.
    """

    vocabulary_file: Path | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    def __init__(self, model: Model[AFamily, ANetwork], quantization: str):
        self.model, self.quantization = model, quantization

    @property
    def compute_type(self) -> str:
        """For the program of the README."""
        return "int8" if self.quantization == ct2_weights.INT8 else "float32"

    @abc.abstractmethod
    def write(self, folder: Path) -> None:
        """Writes the model and the tokenizer's files."""

    @abc.abstractmethod
    def compare(self, folder: Path) -> list[Comparison]:
        """Compares the folder with the model, in the engine."""

    @abc.abstractmethod
    def packages(self, folder: Path) -> Sequence[str]:
        """What the program of the README needs beside ctranslate2."""

    @abc.abstractmethod
    def program(self, folder: Path) -> str:
        """The program of the README."""

    def readme(self, folder: Path, name: str, report: Mapping[str, Any], rows: list[Comparison]) -> str:
        """The text of README.md."""
        average = "the average of the parameters at " if report["average"] else ""
        checked = "It was not checked (`--no-check`)."
        if rows:
            checked = f"In CTranslate2 {report['ctranslate2_version']}:\n\n"
            checked += textwrap.indent(comparison_rows.table(rows), "    ")
        notes = ('Say the `compute_type`: `"auto"` may compute in int8 with weights of another type.', *self.notes)
        parts = (
            f"# {name}",
            f"A {self.model.family.title} for [CTranslate2](https://opennmt.net/CTranslate2/), made by Limba from "
            f"{average}`{report['checkpoint']}` (step {report['step']:,}, {report['parameters']:,} parameters). Its "
            f"weights are {self.quantization}.",
            "## Use",
            f"    pip install {' '.join(['ctranslate2', *self.packages(folder)])}",
            f"```python\n{self.program(folder)}\n```",
            "\n".join(f"- {note}" for note in notes),
            "## Check",
            checked,
        )
        return "\n\n".join(parts) + "\n"


def is_fast(folder: Path) -> bool:
    """Whether the library tokenizers reads the folder's tokenizer."""
    return (folder / TOKENIZER).is_file()


def opened(folder: Path) -> list[str]:
    """The lines of the program that open tokenizer.json; the engine would take padding for tokens of a text."""
    pads = Tokenizer.from_file(str(folder / TOKENIZER)).padding is not None
    return [f'tokenizer = Tokenizer.from_file(f"{{folder}}/{TOKENIZER}")', *["tokenizer.no_padding()"] * pads]


def compare_tokens(
    folder: Path, file: str, size: int, unknown: int, expected: Sequence[int] | None
) -> list[Comparison]:
    """Compares tokenizer.json with the tokens that the engine knows.

    Args:
      file: with the tokens by id that was written for the engine.
      size: ids of the vocabulary.
      unknown: the id of unknown tokens.
      expected: the ids of `TEXT`, special ones included.
    """
    written = json.loads((folder / file).read_text("utf-8"))
    ids, tokenizer = {token: id_ for id_, token in enumerate(written)}, Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    differ = sum(tokenizer.id_to_token(i) not in (written[i], None) for i in range(size))
    # The tokens of unknown characters may be these characters, for which the engine, too, takes the unknown token.
    text = [ids.get(token, unknown) for token in tokenizer.encode(TEXT).tokens]
    return [
        Comparison("tokens with other ids", differ, 0, f"of {size}, in {TOKENIZER}"),
        comparison_rows.compare_vocabularies(expected, text),
    ]
