"""`limba vocab check` of a tokenizer.json: does transformers give the ids that training sees?"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from convert.compare import transformers_library
from convert.hf import hf_tokenizer
from limba.machine import untrusted_files

_FILE = "tokenizer.json"
# A Unigram in a folder is T5's, whose sentinels are compared with SentencePiece's.
_MODELS = ("WordPiece", "BPE", "WordLevel")
_ROLES = ("pad", "unk", "cls", "sep", "mask")
_SIZE = "ids"
_TEXTS = ("Hello, world! 1234", "Ștefan și-a amintit: „da, mâine”.", "Мама мыла раму", "日本語 🦊", "the [MASK] of")


@dataclasses.dataclass(frozen=True)
class Reader:
    """A library that reads the file: a column of the table.

    Attributes:
      special_tokens: ids by role, None for those that it does not have.
      ids: by token.
      encode: gives the ids of a text, without special tokens around it.
    """

    name: str
    special_tokens: Mapping[str, int | None]
    ids: Mapping[str, int]
    encode: Callable[[str], Sequence[int]]


def find_file(model: str) -> Path | None:
    """The tokenizer.json that `model` is, or that its folder has instead of a T5's; None if there is none."""
    path = Path(model).expanduser()
    if path.suffix == ".json" and path.is_file():
        return path
    content = hf_tokenizer.read_json(path / _FILE) if path.is_dir() else {}
    inner = content.get("model")
    return path / _FILE if isinstance(inner, dict) and inner.get("type") in _MODELS else None


def check(file: Path, embedding_rows: int | None) -> tuple[str, list[str]]:
    """The table of special tokens and texts, and what disagrees in whole sentences with the remedy.

    Args:
      embedding_rows: None takes those of the folder's config.json.

    Raises:
      FileNotFoundError, ValueError: if the file cannot be read.
    """
    rows = embedding_rows or hf_tokenizer.read_json(file.parent / "config.json").get("vocab_size")
    ours = _ours(file)
    theirs = _transformers(file)
    readers = [ours] if isinstance(theirs, str) else [ours, theirs]
    table = _table(readers, rows)
    if isinstance(theirs, str):
        table += f"\ntransformers: {theirs}"
    return table, list(_compare(readers, rows, file))


def size_of(file: Path) -> int:
    """The highest id plus 1."""
    return max(_ours(file).ids.values()) + 1


def _ours(file: Path) -> Reader:
    from tasks.vocabularies import TokenizerVocabulary

    opened = TokenizerVocabulary(str(file))
    special_tokens = {role: _id_or_none(opened, role) for role in _ROLES}
    ids = opened.tokenizer.get_vocab(with_added_tokens=True)
    return Reader("training", special_tokens, ids, opened.encode)


def _id_or_none(vocabulary: Any, role: str) -> int | None:
    try:
        return getattr(vocabulary, f"{role}_id")
    except ValueError:
        if vocabulary.vocab_size:  # The file itself can be read.
            return None
        raise


def _transformers(file: Path) -> Reader | str:
    """The folder in transformers, or why it cannot be compared."""
    if transformers_library.version() is None:
        return "is not installed"
    if file.name != _FILE:
        return f"looks for {_FILE}, and the file is {file.name}"
    transformers = transformers_library.load()
    transformers.logging.set_verbosity_error()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent))
    except (OSError, ValueError, TypeError, KeyError, ImportError, AttributeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        return f"does not load the folder: {untrusted_files.cut(reason)}"
    special_tokens = {role: getattr(tokenizer, f"{role}_token_id") for role in _ROLES}
    name = f"transformers {transformers.__version__}"
    return Reader(name, special_tokens, tokenizer.get_vocab(), lambda text: _encode(tokenizer, text))


def _encode(tokenizer: Any, text: str) -> Sequence[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def _compare(readers: Sequence[Reader], rows: int | None, file: Path) -> Iterator[str]:
    ours = readers[0]
    again = f"Build {file.parent} again with `limba vocab build`, or correct its tokenizer_config.json."
    for role, id_ in ours.special_tokens.items():
        if id_ is None and role != "unk":
            yield (
                f"There is no {role} token: masked language models need it, called [{role.upper()}] or as RoBERTa's. "
                "Build a vocabulary that has it: `limba vocab build --kind wordpiece`."
            )
    for reader in readers[1:]:
        for role, id_ in ours.special_tokens.items():
            if id_ is not None and reader.special_tokens[role] != id_:
                found = reader.special_tokens[role]
                yield f"The {role} token is {found} in {reader.name}, and {id_} in training. {again}"
        if other := sorted(token for token in {*ours.ids, *reader.ids} if ours.ids.get(token) != reader.ids.get(token)):
            shown = untrusted_files.shown_list(other)
            yield f"{len(other)} tokens have other ids in {reader.name} than in training: {shown}. {again}"
        for text in _TEXTS:
            if list(reader.encode(text)) != list(ours.encode(text)):
                yield f"The text {text!r} has other ids in {reader.name} than in training. {again}"
    size = max(ours.ids.values()) + 1
    if rows is not None and rows < size:
        yield f"The embedding has {rows} rows, and the highest id is {size - 1}. Give the model {size} rows or more."


def _table(readers: Sequence[Reader], rows: int | None) -> str:
    """Special tokens and texts down, readers across."""
    lines = [["", *(reader.name for reader in readers), "embedding"]]
    for role in _ROLES:
        found = [reader.special_tokens[role] for reader in readers]
        lines.append([role, *("-" if id_ is None else str(id_) for id_ in found), ""])
    sizes = [str(max(reader.ids.values()) + 1) for reader in readers]
    lines.append([_SIZE, *sizes, str(rows or "not known")])
    for text in _TEXTS:
        lines.append([f"ids of {text!r}", *(str(len(reader.encode(text))) for reader in readers), ""])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
