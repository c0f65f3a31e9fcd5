"""What stands in for T5X's own gin files where a user's file includes them and there is no checkout of T5X.

Run files, and what has no counterpart among ours, are files below `gin/t5x/`. T5X's model files are made of ours: the
same sizes, with T5X's vocabulary, which has the sentinels in its file.
"""

from pathlib import Path
from typing import NamedTuple


class _Family(NamedTuple):
    """A folder of T5X's model files: the folder of ours, and T5X's vocabulary file if it has the sentinels in it."""

    folder: str
    vocabulary: str | None


_ENGLISH = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
_MULTILINGUAL = "gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model"

_FAMILIES = {
    "t5x/examples/t5/t5_1_0": _Family("gin/models/t5_1_0", _ENGLISH),
    "t5x/examples/t5/t5_1_1": _Family("gin/models/t5_1_1", _ENGLISH),
    "t5x/examples/t5/mt5": _Family("gin/models/mt5", _MULTILINGUAL),
    "t5x/examples/t5/byt5": _Family("gin/models/byt5", None),
    "t5x/examples/scalable_t5/t5_1_1": _Family("gin/models/scalable_t5", _ENGLISH),
    "t5x/examples/scalable_t5/mt5": _Family("gin/models/scalable_mt5", _MULTILINGUAL),
    "t5x/examples/decoder_only/models": _Family("gin/models/decoder_only", _ENGLISH),
}

# The tiny files of all of T5X's families are T5 1.1.
_EXCEPTIONS = {
    f"t5x/examples/t5/{family}/tiny.gin": "t5x/examples/t5/t5_1_1/tiny.gin" for family in ("t5_1_0", "mt5", "byt5")
}


def stand_in(name: str, repository: Path) -> Path | str | None:
    """The file, or the text, that stands in for T5X's gin file `name`; None if nothing does.

    Args:
      name: an include path such as `t5x/examples/t5/t5_1_1/base.gin`.
      repository: the folder that holds `gin/`.
    """
    # NVIDIA's copies of the files differ in nothing that is kept here.
    name = name.replace("t5x/contrib/gpu/t5/configs/", "t5x/configs/").replace("t5x/contrib/gpu/", "t5x/examples/")
    name = _EXCEPTIONS.get(name, name)
    file = repository / "gin" / name
    if name.startswith("t5x/") and file.is_file():
        return file
    folder, _, base = name.rpartition("/")
    family = _FAMILIES.get(folder)
    if family is None or not (repository / family.folder / base.lower()).is_file():
        return None
    return _model_text(f"{family.folder}/{base.lower()}", family)


def names(repository: Path) -> list[str]:
    """The include paths of T5X's that something stands in for."""
    files = [str(path.relative_to(repository / "gin")) for path in (repository / "gin" / "t5x").rglob("*.gin")]
    models = [
        f"{folder}/{_t5x_spelling(path.name)}"
        for folder, family in _FAMILIES.items()
        for path in (repository / family.folder).glob("*.gin")
    ]
    return sorted({*files, *models, *_EXCEPTIONS})


def _t5x_spelling(file: str) -> str:
    return {"3b.gin": "3B.gin", "11b.gin": "11B.gin"}.get(file, file)


def _model_text(ours: str, family: _Family) -> str:
    lines = ["from __gin__ import dynamic_registration", "import seqio", f"include {ours!r}"]
    if family.vocabulary:
        lines += [
            "seqio.SentencePieceVocabulary:",
            f"  sentencepiece_model_file = {family.vocabulary!r}",
            "  extra_ids = 0",
        ]
    return "\n".join(lines) + "\n"
