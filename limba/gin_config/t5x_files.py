"""Limba's replacements for T5X's own gin files, for includes of user files without a checkout of T5X.

Run files, and files without a counterpart in Limba, are below `gin/t5x/`. T5X's model files are composed from Limba's:
the same sizes, with T5X's vocabulary, whose file contains the sentinels.
"""

import re
from pathlib import Path
from typing import NamedTuple


class _Family(NamedTuple):
    """A folder of T5X's model files.

    Attributes:
      folder: Limba's folder with the same sizes.
      vocabulary: T5X's vocabulary file, if it contains the sentinels.
      network: T5X's module. Files that include a model use `network.…` without importing it, so the module must be
        imported under this name before Limba's file imports it under another.
      bound: the class of the network, and the class of its configuration.
    """

    folder: str
    vocabulary: str | None
    network: str = "t5x.examples.t5"
    bound: tuple[str, str] = ("Transformer", "T5Config")


_ENGLISH = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
_MULTILINGUAL = "gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model"

_FAMILIES = {
    "t5x/examples/t5/t5_1_0": _Family("gin/models/t5_1_0", _ENGLISH),
    "t5x/examples/t5/t5_1_1": _Family("gin/models/t5_1_1", _ENGLISH),
    "t5x/examples/t5/mt5": _Family("gin/models/mt5", _MULTILINGUAL),
    "t5x/examples/t5/byt5": _Family("gin/models/byt5", None),
    "t5x/examples/scalable_t5/t5_1_1": _Family("gin/models/scalable_t5", _ENGLISH, "t5x.examples.scalable_t5"),
    "t5x/examples/scalable_t5/mt5": _Family("gin/models/scalable_mt5", _MULTILINGUAL, "t5x.examples.scalable_t5"),
    "t5x/examples/decoder_only/models": _Family(
        "gin/models/decoder_only", _ENGLISH, "t5x.examples.decoder_only", ("DecoderWrapper", "TransformerConfig")
    ),
}

# Macros of T5X's runs without a counterpart in Limba, most of SavedModels. Users' files may set them.
MACROS = ("ACTIVATION_DTYPE", "BEAM_SIZE", "MODEL_NAME", "MODEL_OUTPUT_DIR", "OUTPUT_FEATURES")
# What include paths of T5X's files begin with, and of flaxformer's, whose networks T5X's runs train.
_PLACES = ("t5x/", "flaxformer/")
# Where T5X keeps its gin files.
_FOLDERS = re.compile(r"(^|/)t5x/(configs|examples|contrib|testdata)/")

_T5X_SPELLING = {"3b.gin": "3B.gin", "11b.gin": "11B.gin"}
# The tiny files of all of T5X's families are T5 1.1.
_EXCEPTIONS = {
    f"t5x/examples/t5/{family}/tiny.gin": "t5x/examples/t5/t5_1_1/tiny.gin" for family in ("t5_1_0", "mt5", "byt5")
}

# umT5's run files: a size of mT5 and these optimizers, in T5X's order.
_UMT5 = "t5x/examples/scalable_t5/umt5"
_UMT5_OPTIMIZERS = dict.fromkeys(("small", "base", "large", "xl"), "adafactor") | {"xxl": "adafactor_momentum_nofactor"}


def is_of_t5x(file: str) -> bool:
    """Whether a gin file is T5X's own by its path."""
    return _FOLDERS.search(file) is not None


def replacement(name: str, repository: Path) -> Path | str | None:
    """The file or the text that replaces T5X's gin file `name`; None if there is none.

    Args:
      name: an include path such as `t5x/examples/t5/t5_1_1/base.gin`.
      repository: the folder that holds `gin/`.
    """
    # NVIDIA's copies differ only in values that these files do not set.
    name = name.replace("t5x/contrib/gpu/t5/configs/", "t5x/configs/").replace("t5x/contrib/gpu/", "t5x/examples/")
    name = _EXCEPTIONS.get(name, name)
    file = repository / "gin" / name
    if name.startswith(_PLACES) and file.is_file():
        return file
    folder, _, base = name.rpartition("/")
    size = base.removeprefix("pretrain_").removesuffix(".gin")
    if folder == _UMT5 and base == f"pretrain_{size}.gin" and size in _UMT5_OPTIMIZERS:
        return _umt5_text(size)
    family = _FAMILIES.get(folder)
    if family is None or not (repository / family.folder / base.lower()).is_file():
        return None
    return _model_text(f"{family.folder}/{base.lower()}", family)


def names(repository: Path) -> list[str]:
    """The include paths of T5X's files that Limba replaces."""
    gin = repository / "gin"
    files = [str(path.relative_to(gin)) for place in _PLACES for path in (gin / place).rglob("*.gin")]
    models = [
        f"{folder}/{_T5X_SPELLING.get(path.name, path.name)}"
        for folder, family in _FAMILIES.items()
        for path in (repository / family.folder).glob("*.gin")
    ]
    umt5 = [f"{_UMT5}/pretrain_{size}.gin" for size in _UMT5_OPTIMIZERS]
    return sorted({*files, *models, *umt5, *_EXCEPTIONS})


def _model_text(ours: str, family: _Family) -> str:
    module, config = family.bound
    lines = [
        "from __gin__ import dynamic_registration",
        "import seqio",
        f"from {family.network} import network",
        f"network.{module}.config = @network.{config}()",
        f"include {ours!r}",
    ]
    # T5X's users bind SeqIO's vocabularies.
    if family.vocabulary:
        lines += [
            f"VOCABULARY_FILE = {family.vocabulary!r}",
            "VOCABULARY = @seqio.SentencePieceVocabulary()",
            "seqio.SentencePieceVocabulary.sentencepiece_model_file = %VOCABULARY_FILE",
            "seqio.SentencePieceVocabulary.extra_ids = 0",
        ]
    else:
        lines.append("VOCABULARY = @seqio.ByteVocabulary()")
    return "\n".join(lines) + "\n"


def _umt5_text(size: str) -> str:
    optimizer = f"optimizer/{_UMT5_OPTIMIZERS[size]}"
    pieces = ("architectures/encoder_decoder", "runs/pretraining_common", optimizer, "vocab")
    lines = [
        "from __gin__ import dynamic_registration",
        "from t5x import partitioning",
        f"include 't5x/examples/scalable_t5/mt5/{size}.gin'",
        *(f"include '{_UMT5}/{piece}.gin'" for piece in pieces),
        "MIXTURE_OR_TASK_NAME = %gin.REQUIRED",
        "TRAIN_EVAL_MIXTURE_OR_TASK_NAME = %gin.REQUIRED",
        "TASK_FEATURE_LENGTHS = {'inputs': 1024, 'targets': 229}",
        "USE_CACHED_TASKS = True",
        f"partitioning.PjitPartitioner.model_parallel_submesh = (1, 1, {8 if size == 'xxl' else 1}, 1)",
    ]
    if size == "xxl":
        lines.append("partitioning.standard_logical_axis_rules.parameter_partitioning_dims = 2")
    return "\n".join(lines) + "\n"
