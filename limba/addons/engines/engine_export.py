"""A model on its way into the folder of an engine: its files, the proof, and a README that says how to load it."""

import abc
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic

from tokenizers import Tokenizer

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare import comparison_rows, exported_files
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.families.family import Family
from limba.convert.families.networks import Network
from limba.convert.model_files.hf import hf_tokenizer
from limba.convert.model_files.model import AFamily, ANetwork, Model

TOKENIZER = "tokenizer.json"
END, END_ID = "</s>", 1
# The tokens of a text, in a program. `Encoding.tokens` has them as they stand in the text: an added token that takes in
# the blanks beside it is " <extra_id_0> " there, which no engine knows.
TOKENS = "map(tokenizer.id_to_token, tokenizer.encode(text).ids)"


class EngineExport(abc.ABC, Generic[AFamily, ANetwork]):
    """An export.

    Attributes:
      engine, link, package: of the engine: its name, its page, and what pip calls it.
      check_by: what the table of the check is introduced by, before the version of the package.
      model, quantization: what is written, and how its weights are.
      vocabulary_file: None for bytes.
      warnings: what a user of the folder should know, in whole sentences.
      notes: sentences of the README about the use.
    """

    engine: ClassVar[str]
    check_by: ClassVar[str]
    link: ClassVar[str]
    package: ClassVar[str]
    vocabulary_file: Path | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    def __init__(self, model: Model[AFamily, ANetwork], quantization: str):
        self.model, self.quantization = model, quantization

    @property
    @abc.abstractmethod
    def num_bytes(self) -> int:
        """Room on the disk for the model's files, about."""

    @abc.abstractmethod
    def write(self, folder: Path) -> None:
        """Writes the model and the tokenizer's files."""

    def is_same(self, written: Path, found: Path) -> bool:
        """Whether a file of a conversion that was found has what `write` has written into another folder."""
        return exported_files.is_same(written, found)

    @abc.abstractmethod
    def compare(self, folder: Path) -> list[Comparison]:
        """Compares the folder with the model, in the engine."""

    def remove_unneeded(self, folder: Path) -> None:
        """Removes what only the comparison needs."""

    @abc.abstractmethod
    def use(self, folder: Path) -> Sequence[str]:
        """Paragraphs of the README that show how the folder is loaded."""

    def readme(self, folder: Path, name: str, report: Mapping[str, Any], rows: list[Comparison]) -> str:
        """The text of README.md."""
        average = "the average of the parameters at " if report["average"] else ""
        checked = "It was not checked (`--no-check`)."
        if rows:
            checked = f"{self.check_by} {report[f'{self.package}_version']}:\n\n"
            checked += textwrap.indent(comparison_rows.table(rows), "    ")
        parts = (
            f"# {name}",
            f"A {self.model.family.title} for [{self.engine}]({self.link}), made by Limba from "
            f"{average}`{report['checkpoint']}` (step {report['step']:,}, {report['parameters']:,} parameters). Its "
            f"weights are {self.quantization}.",
            "## Use",
            *self.use(folder),
            "\n".join(f"- {note}" for note in self.notes),
            "## Check",
            checked,
        )
        return "\n\n".join(parts) + "\n"


class PythonExport(EngineExport[AFamily, ANetwork]):
    """An export for a package of Python."""

    @abc.abstractmethod
    def packages(self, folder: Path) -> Sequence[str]:
        """What the program of the README needs beside the engine."""

    @abc.abstractmethod
    def program(self, folder: Path) -> str:
        """The program of the README."""

    def use(self, folder: Path) -> Sequence[str]:
        """Paragraphs of the README that show how the folder is loaded."""
        return (
            f"    pip install {' '.join([self.package, *self.packages(folder)])}",
            f"```python\n{self.program(folder)}\n```",
        )


AnyExport = EngineExport[Family, Network]


def stored(model: Model) -> dict[str, SavedTensor]:
    """A model's tensors by Hugging Face's names: a T5's own ones of its folder, if it has one."""
    is_own = model.family.has_decoder and model.folder is not None and not model.folder.is_flax
    return dict(model.folder.stored) if is_own and model.folder else model.stored()


def is_fast(folder: Path) -> bool:
    """Whether the library tokenizers reads the folder's tokenizer."""
    return (folder / TOKENIZER).is_file()


def appends_end(folder: Path) -> bool:
    """Whether a T5's tokenizer.json sets the end behind a text."""
    return Tokenizer.from_file(str(folder / TOKENIZER)).encode("a").tokens[-1:] == [END]


def t5_packages(folder: Path, vocabulary_file: Path | None) -> Sequence[str]:
    """What a program needs for a T5's tokenizer."""
    return () if vocabulary_file is None else ("tokenizers",) if is_fast(folder) else ("sentencepiece",)


def opened(folder: Path) -> list[str]:
    """The lines of a program that open tokenizer.json; an engine would take padding for tokens of a text."""
    pads = Tokenizer.from_file(str(folder / TOKENIZER)).padding is not None
    return [f'tokenizer = Tokenizer.from_file(f"{{folder}}/{TOKENIZER}")', *["tokenizer.no_padding()"] * pads]


def opened_pieces() -> str:
    """The line of a program that opens spiece.model."""
    return f'pieces = sentencepiece.SentencePieceProcessor(f"{{folder}}/{hf_tokenizer.SPIECE}")'
