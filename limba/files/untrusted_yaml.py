"""YAML of sweeps, of values on the command line and of cards, read within limits: each error names the place.

PyYAML keeps the last of two equal keys, and a few lines of anchors and aliases stand for more values than any memory
holds, or for a list that contains itself.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from limba.files import untrusted_files, untrusted_json
from limba.files.untrusted_files import cut, shown

# PyYAML takes up to a second for 10 kB.
_MOST_BYTES = 64 * 1024
# With aliases written out.
_MOST_VALUES = 100_000
_MOST_MERGED = 10_000
# Of a card, which may describe hundreds of parts of a data set.
_MOST_OF_CARD, _MOST_VALUES_OF_CARD = 4 * 2**20, 500_000
_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map", "merge")}
_TAGS |= {f"tag:yaml.org,2002:{kind}" for kind in ("timestamp", "value")}
_UNREADABLE = re.compile("[\0\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, for which a key that comes twice is an error, and each error has a place."""

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, RecursionError) as error:
            if isinstance(error, _YamlError):
                raise
            what = "a number of too many digits" if "digits" in str(error) else cut(str(error))
            raise _YamlError(f"{what}, line {node.start_mark.line + 1}") from error

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MOST_MERGED:
            raise _YamlError(f"<< merges more than {_MOST_MERGED:,} keys, line {node.start_mark.line + 1}")

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise _YamlError(f"the key {shown(key.value)} comes twice, line {key.start_mark.line + 1}")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _YamlError(ValueError):
    """What is wrong, and the line."""


def read(file: Path) -> Any:
    """The content of a file.

    Raises:
      FileNotFoundError: if it is not there.
      ValueError: if it is not YAML, too large, has a key twice, or aliases that stand for too much.
    """
    return parse(untrusted_files.read_text(file, _MOST_BYTES), str(file))


def place(file: Path, *keys: Any) -> str:
    """The file, with the line of the key that these lead to, where the keys are in it."""
    node = yaml.compose(untrusted_files.read_text(file, _MOST_BYTES), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    line = None
    for key in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = next((pair for pair in pairs if pair[0].value == str(key)), None)
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return str(file) if line is None else f"{file}, line {line}"


def parse(text: str, where: str) -> Any:
    """As `read`, of a text that `where` names in messages."""
    try:
        # PyYAML looks at all open brackets again for each one, before Python stops it: 50,000 take half a minute.
        untrusted_json.NestingGuard().feed(text.encode("utf-8", "surrogatepass"))
        content = yaml.load(text, _Loader)
        _check_size(content)
        return content
    except (yaml.YAMLError, _YamlError, untrusted_json.TooDeepError) as error:
        raise ValueError(f"{where} is not YAML: {cut(' '.join(str(error).split()))}.") from error
    except RecursionError:
        raise ValueError(f"{where} is not YAML: brackets are too deep inside of each other.") from None


def check_card(text: str, where: str) -> Any:
    """The nodes of the YAML of a card, None of none: another library reads it, which has no limits.

    Raises:
      ValueError: as `parse`, with the limits of a card; and for a tag that no reader of cards has, such as a class.
    """
    if len(text) > _MOST_OF_CARD:
        raise ValueError(f"{where} has {len(text):,} characters of YAML; a card has at most {_MOST_OF_CARD:,}.")
    try:
        untrusted_json.NestingGuard().feed(text.encode("utf-8", "surrogatepass"))
        node = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        _check_node(node, {})
        return node
    except (yaml.YAMLError, _YamlError, untrusted_json.TooDeepError) as error:
        raise ValueError(f"{where} is not YAML: {cut(' '.join(str(error).split()))}.") from error
    except RecursionError:
        raise ValueError(f"{where} is not YAML: it is too deep.") from None


def _check_node(node: yaml.Node | None, sizes: dict[int, int]) -> int:
    """How many values a node stands for. Raises _YamlError for too many, and for what is no plain value."""
    if node is None or id(node) in sizes:
        if node is not None and not sizes[id(node)]:
            raise _YamlError("an alias stands for the list or table that it is in")
        return 0 if node is None else sizes[id(node)]
    if node.tag not in _TAGS:
        raise _YamlError(f"it has a value of the type {cut(node.tag)}, line {node.start_mark.line + 1}")
    sizes[id(node)] = 0
    parts: list[yaml.Node] = []
    if isinstance(node, yaml.CollectionNode):
        parts = [x for pair in node.value for x in pair] if isinstance(node, yaml.MappingNode) else node.value
    sizes[id(node)] = 1 + sum(_check_node(part, sizes) for part in parts)
    if sizes[id(node)] > _MOST_VALUES_OF_CARD:
        raise _YamlError(f"its aliases stand for more than {_MOST_VALUES_OF_CARD:,} values")
    return sizes[id(node)]


def _check_size(content: Any) -> None:
    """Raises _YamlError for more values than a file of this size can write out, and for texts that no file takes."""
    sizes: dict[int, int] = {}

    def size(value: Any) -> int:
        if isinstance(value, str) and _UNREADABLE.search(value):
            raise _YamlError(f"{shown(value)} has a null byte or half of a character")
        if not isinstance(value, dict | list):
            return 1
        if id(value) in sizes:
            if not sizes[id(value)]:
                raise _YamlError("an alias stands for the list or table that it is in")
            return sizes[id(value)]
        sizes[id(value)] = 0
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(map(size, parts))
        if sizes[id(value)] > _MOST_VALUES:
            raise _YamlError(f"its aliases stand for more than {_MOST_VALUES:,} values")
        return sizes[id(value)]

    size(content)
