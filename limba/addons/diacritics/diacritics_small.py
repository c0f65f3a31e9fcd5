"""The tasks of `launch/diacritics.sh`: span corruption and diacritics of Romanian sentences of a known grammar.

The directory is `$LIMBA_DIACRITICS_DIR`, `runs/diacritics` if that is not set, with the corpus in `corpus/`
(`python -m limba.addons.diacritics.romanian_sentences`) and the vocabulary in `vocab/spiece.model`.
"""

import os
import pathlib

from limba.addons import diacritics
from limba.tasks import pretraining, sources

DIRECTORY = pathlib.Path(os.environ.get("LIMBA_DIACRITICS_DIR", "runs/diacritics"))
VOCABULARY_FILE = DIRECTORY / "vocab" / "spiece.model"

_CORPUS = sources.HuggingFaceSource(
    {split: str(DIRECTORY / "corpus" / f"{split}-*.jsonl") for split in ("train", "validation")},
    hint="`bash launch/diacritics.sh` makes the corpus; LIMBA_DIACRITICS_DIR says where it is.",
)

pretraining.register_pretraining_task("diacritics_demo_span_corruption", data_files=_CORPUS, vocabulary=VOCABULARY_FILE)
diacritics.register_diacritics_task("diacritics_demo", data_files=_CORPUS, vocabulary=VOCABULARY_FILE, language="ro")
