"""What `limba convert check` asks of a folder alone, and of an export beside the model that it is of."""

import shlex
from collections.abc import Iterator

from limba.addons.repair import findings, looking, written_again
from limba.addons.repair.findings import Line
from limba.convert import from_hf
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files.hf import hf_folder
from limba.convert.model_files.model import Model, ModelHints

# Without a tokenizer, or transformers, nothing can be said of it.
_MAY_MISS = ("tokenizer", "vocabulary")


def check(model: str, hints: ModelHints) -> None:
    """Prints what is right and wrong with a folder, or a model of the hub.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if something is wrong, or was not looked at.
    """
    path = from_hf.find(model, with_runs=True)
    if not hf_folder.is_folder(path):
        raise ValueError(
            f"{path} is no folder of transformers'. Give B, to compare A with it, or --dtype, to see whether A holds "
            "in this type."
        )
    folder, lines = looking.look(path, hints)
    what = f" ({folder.weights_file}, model_type {folder.family.model_type})" if folder is not None else ""
    print(f"{path}{what}")
    print(findings.table(lines))
    if wrong := [line for line in lines if line.is_right is False]:
        raise ValueError(f"{path}: {_told(wrong)}. {_remedy(path, wrong)}")
    missed = [line for line in lines if line.is_right is None]
    named = "; ".join(f"{line.code} ({line.found})" for line in missed)
    if [line for line in missed if line.code not in _MAY_MISS]:
        raise ValueError(f"{path} has no finding in what was looked at. Not looked at: {named}.")
    ends = [f" in what was looked at. Not looked at: {named}"] if named else []
    ends += [f"; read the note on {line.code}" for line in lines if line.is_note]
    print(f"{path} has no finding{''.join(ends)}.")


def compare_written(label: str, model: Model, other: Model) -> Iterator[Comparison]:
    """See `written_again.compare`."""
    yield from written_again.compare(label, model, other)


def _told(wrong: list[Line]) -> str:
    codes = ", ".join(line.code for line in wrong)
    return f"{len(wrong)} finding{'s' * (len(wrong) > 1)}: {codes}"


def _remedy(path: object, wrong: list[Line]) -> str:
    by_hand = list(dict.fromkeys(line.code for line in wrong if line.change is None))
    if by_hand:
        return f"Not for a repair: {', '.join(by_hand)}; the table says what to do."
    return f"This writes it right: limba convert repair {shlex.quote(str(path))} OUT"
