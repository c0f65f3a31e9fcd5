"""`limba vocab check` of a tokenizer.json: does transformers give the ids that training sees?"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.convert.compare import transformers_library
from limba.convert.families.table import of_config
from limba.convert.model_files import encoder_vocabularies
from limba.convert.model_files.hf import hf_tokenizer, older_tokenizers
from limba.files import untrusted_files
from limba.reports import text_width

_FILE = "tokenizer.json"
_ROLES = ("pad", "unk", "cls", "sep", "mask")
_SIZE = "ids"
# The ids of texts.
Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
_WITH_MASK = "the [MASK] of"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What `limba vocab check` found.

    Attributes:
      problems: what disagrees, in whole sentences with the remedy.
      not_compared: which readers there should be, and why they are not.
      notes: what differs and concerns no training.
      size: the number of ids, where the embedding is not known.
    """

    table: str
    problems: Sequence[str]
    not_compared: Sequence[str] = ()
    notes: Sequence[str] = ()
    size: int | None = None


@dataclasses.dataclass(frozen=True)
class Reader:
    """A library that reads the file: a column of the table.

    Attributes:
      special_tokens: ids by role, None for those that it does not have.
      ids: by token.
      encode: gives the ids of texts, without special tokens around them.
    """

    name: str
    special_tokens: Mapping[str, int | None]
    ids: Mapping[str, int]
    encode: Encode


def find_file(model: str) -> Path | None:
    """The tokenizer.json of an encoder that `model` is, or that its folder has or that is made of its older files;
    None if there is none, or a T5's."""
    path = Path(model).expanduser()
    family = of_config(hf_tokenizer.read_json(path / "config.json")) if path.is_dir() else None
    file = path / _FILE if path.is_dir() else path
    if (family is not None and family.has_decoder) or file.suffix != ".json":
        return None
    inner = hf_tokenizer.read_json(file).get("model")
    vocab = inner.get("vocab") if isinstance(inner, dict) else None
    # A list is of a Unigram.
    first = [entry[:1] for entry in vocab[:3]] if isinstance(vocab, list) else []
    if first == [[token] for token in hf_tokenizer.SPECIAL_TOKENS]:
        return None
    found = encoder_vocabularies.file_in(path)
    return found if found.is_file() else None


def check(file: Path, embedding_rows: int | None, folder: Path | None = None) -> Outcome:
    """Compares what training and transformers make of some thousand texts, and of special tokens.

    Args:
      folder: which the file is of; None is where it lies.
      embedding_rows: None takes those of the folder's config.json.

    Raises:
      FileNotFoundError, ValueError: if the file cannot be read.
    """
    from limba.tasks.vocabularies import tokenizer_texts

    folder = folder or file.parent
    rows = embedding_rows or hf_tokenizer.read_json(folder / "config.json").get("vocab_size")
    ours = _ours(file)
    theirs = _transformers(folder, file.name)
    readers = [ours] if isinstance(theirs, str) else [ours, theirs]
    texts = tokenizer_texts.texts_of(_open(file))
    compared = [_WITH_MASK, *texts.plain, *texts.decomposed]
    missing = [f"transformers ({theirs})"] if isinstance(theirs, str) else []
    size = None if embedding_rows else max(ours.ids.values()) + 1
    problems = list(_compare(readers, rows, folder, compared))
    if file.name == _FILE and (two := older_tokenizers.differences(folder)):
        problems.append(f"{two} Limba and transformers' fast classes read tokenizer.json, the others the older files.")
    return Outcome(_table(readers, rows, compared), problems, missing, (), size)


def _open(file: Path) -> Any:
    from limba.tasks.vocabularies import TokenizerVocabulary

    return TokenizerVocabulary(str(file))


def _ours(file: Path) -> Reader:
    from limba.tasks.vocabularies import tokenizer_texts

    opened = _open(file)
    special_tokens = {role: _id_or_none(opened, role) for role in _ROLES}
    ids = opened.tokenizer.get_vocab(with_added_tokens=True)
    return Reader("training", special_tokens, ids, tokenizer_texts.encoder_of(opened))


def _id_or_none(vocabulary: Any, role: str) -> int | None:
    try:
        return getattr(vocabulary, f"{role}_id")
    except ValueError:
        if vocabulary.vocab_size:  # The file itself can be read.
            return None
        raise


def _transformers(folder: Path, file: str) -> Reader | str:
    """The folder in transformers, or why it cannot be compared."""
    if transformers_library.version() is None:
        return "is not installed"
    if file != _FILE:
        return f"looks for {_FILE}, and the file is {file}"
    transformers = transformers_library.load()
    transformers.logging.set_verbosity_error()
    try:
        transformers_library.check_named_files(folder)
    except ValueError as error:
        return f"does not load the folder: {error}"
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **transformers_library.NO_CODE)
    except Exception as error:  # The library in Rust raises Exception itself.
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        return f"does not load the folder: {untrusted_files.cut(reason)}"
    special_tokens = {role: getattr(tokenizer, f"{role}_token_id") for role in _ROLES}
    name = f"transformers {transformers.__version__}"
    return Reader(name, special_tokens, tokenizer.get_vocab(), lambda texts: _encode(tokenizer, texts))


def _encode(tokenizer: Any, texts: Sequence[str]) -> Sequence[Sequence[int]]:
    return tokenizer(list(texts), add_special_tokens=False).input_ids


def _compare(readers: Sequence[Reader], rows: int | None, folder: Path, texts: Sequence[str]) -> Iterator[str]:
    from limba.tasks.vocabularies import tokenizer_texts

    ours = readers[0]
    again = f"Build {folder} again with `limba vocab build`, or correct its tokenizer_config.json."
    for role, id_ in ours.special_tokens.items():
        if id_ is None and role != "unk":
            yield (
                f"There is no {role} token: masked language models need it, called [{role.upper()}] or as RoBERTa's. "
                "Build a vocabulary that has it: `limba vocab build --kind wordpiece`."
            )
    for reader in readers[1:]:
        for role, id_ in ours.special_tokens.items():
            if id_ is not None and reader.special_tokens[role] != id_:
                other_id = reader.special_tokens[role]
                yield f"The {role} token is {other_id} in {reader.name}, and {id_} in training. {again}"
        if other := sorted(token for token in {*ours.ids, *reader.ids} if ours.ids.get(token) != reader.ids.get(token)):
            shown = untrusted_files.shown_list(other)
            yield f"{len(other)} tokens have other ids in {reader.name} than in training: {shown}. {again}"
        if found := tokenizer_texts.differences(texts, reader.encode, ours.encode):
            yield f"{found.describe(reader.name, 'training')}. {again}"
    size = max(ours.ids.values()) + 1
    if rows is not None and rows < size:
        yield f"The embedding has {rows} rows, and the highest id is {size - 1}. Give the model {size} rows or more."


def _table(readers: Sequence[Reader], rows: int | None, texts: Sequence[str]) -> str:
    """Special tokens and texts down, readers across."""
    lines = [["", *(reader.name for reader in readers), "embedding"]]
    for role in _ROLES:
        found = [reader.special_tokens[role] for reader in readers]
        lines.append([role, *("-" if id_ is None else str(id_) for id_ in found), ""])
    sizes = [str(max(reader.ids.values()) + 1) for reader in readers]
    lines.append([_SIZE, *sizes, str(rows or "not known")])
    sums = [f"{sum(map(len, reader.encode(texts))):,}" for reader in readers]
    lines.append([f"ids of {len(texts):,} texts", *sums, ""])
    return "\n".join(text_width.columns(lines))
