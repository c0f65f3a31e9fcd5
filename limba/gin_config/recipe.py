"""A gin file as an object: what it imports, includes and binds. Nothing of it is imported or called.

`Recipe.parse` reads a text by gin's own parser, `Recipe.text` writes it.
"""

import dataclasses
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gin import config_parser

from limba.files.untrusted_files import cut


class Reference(str):
    """`@module.name`, `@scope/name()` or `%MACRO` in a value, as the file has it: a text without quotes."""

    def __repr__(self) -> str:
        return str(self)


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


# A text is the line of an import, a comment, which parsing leaves out, or empty.
Statement = Include | Binding | Block | str


def as_text(statements: Iterable[Statement]) -> str:
    """The lines of statements."""
    return "\n".join(map(str, statements))


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def lines(values: Mapping[str, Any]) -> list[str]:
    """`NAME = value` of those that are not None, for `gin_files.parse_gin_flags`."""
    return [str(Binding(name, value)) for name, value in given(**values).items()]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A gin file, without the files that it includes.

    Attributes:
      statements: in the order of the file; parsed blocks are single bindings.
      modules: that it imports.
      macros_read: the names of `%NAME` in its values.
    """

    statements: Sequence[Statement]
    modules: Sequence[str] = ()
    macros_read: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, file: str = "") -> "Recipe":
        """Reads a text; `file` names it in errors.

        Raises:
          ValueError: if it is not gin.
        """
        reader = _AsWritten()
        statements: list[Statement] = []
        modules: list[str] = []
        try:
            for parsed in config_parser.ConfigParser(text, reader):
                if isinstance(parsed, config_parser.ImportStatement):
                    modules.append(parsed.module)
                    statements.append(parsed.format())
                elif isinstance(parsed, config_parser.IncludeStatement):
                    statements.append(Include(parsed.filename))
                elif isinstance(parsed, config_parser.BindingStatement):
                    name = ".".join(filter(None, (parsed.selector, parsed.arg_name)))
                    name = "/".join(filter(None, (parsed.scope, name)))
                    statements.append(Binding(name, parsed.value, line=parsed.location.line_num))
        except (SyntaxError, tokenize.TokenError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"{file} cannot be read as gin: {cut(str(error)) or type(error).__name__}") from error
        return cls(statements, modules, frozenset(reader.macros))

    def text(self) -> str:
        """The file."""
        return as_text(self.statements) + "\n"

    @property
    def bindings(self) -> list[Binding]:
        return [x for x in self.statements if isinstance(x, Binding)]

    @property
    def macros(self) -> dict[str, Any]:
        """The last value of each macro."""
        return {x.name: x.value for x in self.bindings if not x.function}

    def parameters(self, function: str) -> dict[str, Any]:
        """What is bound of a class or function of this name, in any module and scope; values of macros are put in."""
        macros = self.macros
        bound = {x.parameter: x.value for x in self.bindings if x.function == function}
        return {k: macros.get(x[1:]) if isinstance(x, Reference) and x[0] == "%" else x for k, x in bound.items()}


class _AsWritten(config_parser.ParserDelegate):
    """Leaves references and macros as they are in the text."""

    def __init__(self) -> None:
        self.macros: set[str] = set()

    def configurable_reference(self, scoped_name: str, evaluate: bool) -> Reference:
        return Reference(f"@{scoped_name}{'()' if evaluate else ''}")

    def macro(self, scoped_name: str) -> Reference:
        self.macros.add(scoped_name)
        return Reference(f"%{scoped_name}")
