"""A gin file as an object: what it imports, includes and binds. Nothing of it is imported or called.

`Recipe.parse` reads a text by gin's own parser, `Recipe.text` writes it. A statement of a recipe is one of the classes
below, or a text for a comment or an empty line, which gin's parser leaves out.
"""

import dataclasses
import itertools
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gin import config_parser

from limba.files.untrusted_files import cut


class Reference(str):
    """`@module.name`, `@scope/name()` or `%MACRO` in a value, as the file has it: a text without quotes."""

    def __repr__(self) -> str:
        return str(self)


def flag(name: str, value: Any) -> str:
    """`--gin.NAME=value`, for the command line of another command."""
    return f"--gin.{name}={value!r}"


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Import:
    """`import a.b`, `from a import b`, `from a import b as c`: `code` is the line, `module` is a.b."""

    code: str
    module: str
    line: int = dataclasses.field(default=0, compare=False)

    def __str__(self) -> str:
        return self.code


@dataclasses.dataclass(frozen=True)
class Include:
    file: str

    def __str__(self) -> str:
        return f"include {self.file!r}"


@dataclasses.dataclass(frozen=True)
class Binding:
    """`NAME = value` of a macro, or `scope/module.function.parameter = value`; `note` is a comment behind it."""

    name: str
    value: Any
    note: str = dataclasses.field(default="", compare=False)
    line: int = dataclasses.field(default=0, compare=False)

    @property
    def function(self) -> str:
        """The class or function, without scope and module; "" of a macro."""
        return self.name.rpartition("/")[2].rpartition(".")[0].rpartition(".")[2]

    @property
    def parameter(self) -> str:
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.name} = {self.value!r}" + (f"  # {self.note}" if self.note else "")


@dataclasses.dataclass(frozen=True)
class Block:
    """The parameters of one class or function."""

    name: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        return "\n".join([f"{self.name}:", *(f"  {Binding(name, value)}" for name, value in self.values.items())])


Statement = Import | Include | Binding | Block | str


def lines(values: Mapping[str, Any]) -> list[str]:
    """`NAME = value` of each, for `gin_files.parse_gin_flags`; None is left out."""
    return [str(Binding(name, value)) for name, value in values.items() if value is not None]


def as_text(statements: Iterable[Statement]) -> str:
    """The lines of statements."""
    return "\n".join(map(str, statements))


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A gin file, without the files that it includes.

    Attributes:
      statements: in the order of the file; parsed blocks are single bindings.
      macros_read: the names of `%NAME` in its values.
    """

    statements: Sequence[Statement]
    macros_read: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, file: str = "") -> "Recipe":
        """Reads a text; `file` names it in errors.

        Raises:
          ValueError: if it is not gin.
        """
        reader = _AsWritten()
        try:
            parsed = [_statement(x) for x in config_parser.ConfigParser(text, reader)]
        except (SyntaxError, tokenize.TokenError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"{file} cannot be read as gin: {cut(str(error)) or type(error).__name__}") from error
        return cls([x for x in parsed if x is not None], frozenset(reader.macros))

    def text(self) -> str:
        """The file."""
        return as_text(self.statements) + "\n"

    @property
    def imports(self) -> list[Import]:
        return [x for x in self.statements if isinstance(x, Import)]

    @property
    def includes(self) -> list[str]:
        return [x.file for x in self.statements if isinstance(x, Include)]

    @property
    def bindings(self) -> list[Binding]:
        each = (
            [Binding(f"{x.name}.{name}", value) for name, value in x.values.items()] if isinstance(x, Block) else [x]
            for x in self.statements
        )
        return [x for x in itertools.chain.from_iterable(each) if isinstance(x, Binding)]

    @property
    def values(self) -> dict[str, Any]:
        """The last value of each name: `{"BATCH_SIZE": 8, "train/data.DatasetConfig.batch_size": %BATCH_SIZE}`."""
        return {x.name: x.value for x in self.bindings}

    @property
    def macros(self) -> dict[str, Any]:
        """The last value of each macro."""
        return {x.name: x.value for x in self.bindings if not x.function}

    def parameters(self, function: str) -> dict[str, Any]:
        """What is bound of a class or function of this name, in any module and scope; values of macros are put in."""
        macros = self.macros
        bound = {x.parameter: x.value for x in self.bindings if x.function == function}
        return {
            name: macros.get(value[1:]) if isinstance(value, Reference) and value.startswith("%") else value
            for name, value in bound.items()
        }


class _AsWritten(config_parser.ParserDelegate):
    """Leaves references and macros as they are in the text."""

    def __init__(self) -> None:
        self.macros: set[str] = set()

    def configurable_reference(self, scoped_name: str, evaluate: bool) -> Reference:
        return Reference(f"@{scoped_name}{'()' if evaluate else ''}")

    def macro(self, scoped_name: str) -> Reference:
        self.macros.add(scoped_name)
        return Reference(f"%{scoped_name}")


def _statement(parsed: Any) -> Statement | None:
    """None of a block's first line, whose bindings follow it."""
    match parsed:
        case config_parser.ImportStatement():
            return Import(parsed.format(), parsed.module, parsed.location.line_num)
        case config_parser.IncludeStatement():
            return Include(parsed.filename)
        case config_parser.BindingStatement():
            name = ".".join(filter(None, (parsed.selector, parsed.arg_name)))
            return Binding("/".join(filter(None, (parsed.scope, name))), parsed.value, line=parsed.location.line_num)
    return None
