"""The network and the vocabulary in a run's config.gin, read without importing the modules it names.

T5X writes the operative configuration into MODEL_DIR. It may import modules of the user, which a conversion
neither has nor needs.
"""

import dataclasses
import tokenize
from collections.abc import Mapping
from typing import Any

from gin import config_parser

from limba.checkpoint_files.run_folder import BYTES, SENTENCEPIECE
from limba.files.untrusted_files import cut


@dataclasses.dataclass(frozen=True)
class GinFacts:
    """Parameters that a gin file binds, macros put in: `T5Config`'s, and of the vocabulary."""

    network: Mapping[str, Any]
    vocabulary: Mapping[str, Any]


class _Names(config_parser.ParserDelegate):
    """References and macros stay what they are in the text."""

    def configurable_reference(self, scoped_name: str, evaluate: bool) -> str:
        return f"@{scoped_name}"

    def macro(self, scoped_name: str) -> "_Macro":
        return _Macro(scoped_name)


class _Macro(str):
    pass


def read(text: str, where: str) -> GinFacts:
    """Reads a gin file.

    Raises:
      ValueError: if it is not gin.
    """
    macros: dict[str, Any] = {}
    bound: dict[str, dict[str, Any]] = {"T5Config": {}, SENTENCEPIECE: {}, BYTES: {}}
    try:
        for statement in config_parser.ConfigParser(text, _Names()):
            if not isinstance(statement, config_parser.BindingStatement):
                continue
            configurable = statement.selector.rpartition(".")[2]
            if not statement.arg_name:
                macros[statement.selector] = statement.value
            elif configurable in bound:
                bound[configurable][statement.arg_name] = statement.value
    except (SyntaxError, tokenize.TokenError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where} cannot be read as gin: {cut(str(error)) or type(error).__name__}") from error

    def resolved(parameters: Mapping[str, Any]) -> dict[str, Any]:
        values = {name: macros.get(x) if isinstance(x, _Macro) else x for name, x in parameters.items()}
        return {name: x for name, x in values.items() if x is not None}

    chosen = str(macros.get("VOCABULARY", "")).rpartition(".")[2]
    kind = chosen if chosen in (SENTENCEPIECE, BYTES) else SENTENCEPIECE
    vocabulary = resolved(bound[kind])
    return GinFacts(resolved(bound["T5Config"]), {"class": kind, **vocabulary} if vocabulary or chosen else {})
