"""Looks at a Hugging Face folder alone: is it right, in itself and for transformers?

What a reader of Limba's refuses has a code, a place and a remedy here. Where the readers take the folder, the rows of
`limba convert check A B` that are about one folder belong to it, too.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from limba.addons.repair import embedding_findings, hub_folder, token_findings, weight_findings
from limba.addons.repair.findings import Change, Line, not_looked_at, note, right, wrong
from limba.addons.repair.hub_folder import CONFIG, HubFolder
from limba.convert.compare import (
    auto_tokenizer,
    comparison,
    exported_files,
    folder_files,
    folder_settings,
    folder_tokens,
    transformers_library,
)
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files import any_format
from limba.convert.model_files.model import Model, ModelHints
from limba.convert.tensors import weight_files
from limba.convert.tensors.table import MisfitError

_OF_EMBEDDING = (
    *("embedding-missing", "embedding-name", "embedding-doubled", "embeddings-differ", "tied-flag", "vocab-size"),
)
# The beginnings of rows of a comparison, and the codes of what they are about.
_ROWS = {
    "parameters that differ": "weights-differ",
    "tokens that differ": "tokenizer",
    "special tokens that differ": "tokenizer",
    "tokenizers that differ": "tokenizer",
}
# transformers reads tokenizer.json alone, and most T5s of the hub have a spiece.model that differs in some texts.
_TWO = "tokenizers that differ"
_OF_TWO = "The model was trained with one of them. transformers reads tokenizer.json; if it is the other, take that."
_OWN = "weights that transformers rounds"  # `weights-rounded`, with its remedy
_AGAIN = "Download or save it again where it comes from."


def look(path: Path, hints: ModelHints) -> tuple[HubFolder | None, list[Line]]:
    """A folder, and a line for each code; None if its weights cannot be read.

    Raises:
      FileNotFoundError: if there are no weights.
      ValueError: if a file of JSON is damaged, or the network is none that Limba converts.
    """
    names = [file.name for file in path.iterdir()]
    try:
        folder = hub_folder.read(path)
    except (OSError, ValueError) as error:
        if not weight_files.formats(names) or not _is_of_weights(str(error)):
            raise
        return None, [wrong("weights", str(error).rstrip(".") + ".", _AGAIN)]
    lines = [*weight_findings.look(folder)]
    if folder.format == "flax":
        lines += [not_looked_at(code, "the weights are Flax's") for code in _OF_EMBEDDING]
    else:
        lines += embedding_findings.look(folder)
    lines += token_findings.look(folder)
    lines += _as_whole(folder, hints, [line for line in lines if line.is_right is False])
    return folder, lines


def _is_of_weights(message: str) -> bool:
    """Whether an error is about weights, and not about a file of JSON, which is read before them."""
    return any(word in message for word in (".safetensors", ".bin", ".msgpack"))


def _as_whole(folder: HubFolder, hints: ModelHints, findings: Sequence[Line]) -> Iterator[Line]:
    """The lines of what only a reader of the whole folder sees."""
    first = [line.code for line in findings if line.code in _OF_EMBEDDING]
    theirs, line = _of_transformers(folder)
    yield line
    if first:
        yield from (not_looked_at(code, f"{first[0]} comes first") for code in ("tensors", "files"))
        return
    try:
        model = any_format.open_model(folder.path, hints)
    except MisfitError as error:
        yield wrong("tensors", str(error), f"Take the {CONFIG} that was saved with the weights.")
        yield not_looked_at("files", "tensors come first")
        return
    except (OSError, ValueError) as error:
        reason = f"Limba does not read the folder: {str(error).rstrip('.')}"
        yield from (not_looked_at(code, reason) for code in ("tensors", "files"))
        return
    yield right("tensors", f"{len(folder.tensors):,} of {CONFIG}'s network")
    yield from _rows(folder, model, hints, theirs)


def _of_transformers(folder: HubFolder) -> tuple[auto_tokenizer.Found | None, Line]:
    """The tokenizer that transformers makes of the folder, and whether its special ids are those of the files."""
    tokens = hub_folder.tokens_of(folder)
    version = transformers_library.version()
    if tokens is None:
        return None, not_looked_at("tokenizer", "the folder has none")
    if version is None:
        return None, not_looked_at("tokenizer", "transformers is not installed")
    try:
        theirs = auto_tokenizer.read(folder.path, folder_tokens.texts_with(comparison.TEXT))
    except ValueError as error:
        return None, wrong("tokenizer", f"transformers {version} does not load it: {str(error)[:300]}.", _AGAIN)
    ours = tokens.special_ids
    differ = [role for role, id_ in theirs.special_ids.items() if ours.get(role, id_) != id_]
    where = f"{theirs.class_name} of transformers {version}"
    if differ:
        told = ", ".join(f"{role} {ours[role]} and {theirs.special_ids[role]}" for role in differ)
        remedy = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(OUT) writes files that agree."
        return theirs, wrong("tokenizer", f"{tokens.file} and {where} have other ids: {told}.", remedy)
    return theirs, right("tokenizer", f"special ids of {tokens.file} in {where}")


def _rows(folder: HubFolder, model: Model, hints: ModelHints, theirs: auto_tokenizer.Found | None) -> Iterator[Line]:
    """What a comparison says of one folder, as lines."""
    settings = folder_settings.of_folder(folder.path)
    rows = [*folder_files.compare("", model, hints), *folder_settings.contradictions("", settings)]
    if theirs is not None:
        rows += folder_tokens.compare("", model, comparison.TEXT, folder.path, theirs)
    is_fine = True
    for row in rows:
        what = row.what.partition(",")[0]
        if what == _OWN or row.what.endswith("in torch") or (row.value is not None and row.holds):
            continue
        code = _ROWS.get(what, "files")
        is_fine &= code != "files"
        yield _line(code, what, row)
    if is_fine:
        yield right("files", f"{sum(1 for _ in os.scandir(folder.path)):,} of the folder")


def _line(code: str, what: str, row: Comparison) -> Line:
    found = f"{what}: {row.note.removeprefix(exported_files.NOT_COMPARED)}"
    if row.value is None and what == _TWO:
        return note(code, f"{found}.", _OF_TWO)
    if row.value is None and exported_files.may_differ(row):
        return right(code, found)
    if row.value is None:
        return not_looked_at(code, found)
    change = Change(left_out=("flax",)) if code == "weights-differ" and row.what.endswith("in flax") else None
    return wrong(code, f"{found}.", "The format is left out." if change else _AGAIN, change)
