"""Texts that gin wrote: operative configurations, and the files made of them. Their comments and lines stay.

gin calls what a macro stands for in a scope of the macro's name, and writes `MODEL/network.T5Config.emb_dim = 512` into
the operative configuration. Such a line takes precedence over every `network.T5Config.emb_dim`, also in later files.
"""

import re

_MACRO = re.compile(r"^(\w+) =", re.MULTILINE)
# (scope, parameter, value), the value up to the next line that begins with something else than a blank.
_BINDING = re.compile(r"^(?:([\w/]+)/)?([\w.]+\.\w+)( =[^\n]*(?:\n[ \t]+[^\n]*)*)", re.MULTILINE)
_IMPORT = re.compile(r"^(?:from [\w.]+ )?import ([\w.]+)(?: as (\w+))?.*\n", re.MULTILINE)


def without_macro_scopes(text: str) -> str:
    """The text of a gin file; if gin wrote it, without scopes of macros where all scopes give the same value."""
    if "\n# Parameters for " not in text:
        return text
    macros = set(_MACRO.findall(text))
    values: dict[str, set[str]] = {}
    for _, parameter, value in _BINDING.findall(text):
        values.setdefault(parameter, set()).add("".join(value.replace("\\\n", "").split()))
    same = {parameter for parameter, given in values.items() if len(given) == 1}
    return _BINDING.sub(lambda x: x[2] + x[3] if x[1] in macros and x[2] in same else x[0], text)


def without_unused_imports(text: str) -> str:
    """The text without imports of modules that no other line names: those that register tasks, and leftovers."""
    others = _IMPORT.sub("", text)

    def kept(line: re.Match[str]) -> str:
        name = line[2] or line[1]
        is_used = name == "dynamic_registration" or re.search(rf"\b{re.escape(name)}\.", others)
        return line[0] if is_used else ""

    return _IMPORT.sub(kept, text)
