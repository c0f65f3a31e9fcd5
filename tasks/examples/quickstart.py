"""The task of the quickstart: span corruption of Python's own documentation.

Its directory is `$LIMBA_QUICKSTART_DIR`, `runs/quickstart` if that is not set, with the corpus in `corpus/`
(`python -m tasks.examples.python_docs`) and the vocabulary in `vocab/spiece.model` (`limba vocab build`).
"""

import os
import pathlib

from tasks import pretraining, sources

DIRECTORY = pathlib.Path(os.environ.get("LIMBA_QUICKSTART_DIR", "runs/quickstart"))
VOCABULARY_FILE = DIRECTORY / "vocab" / "spiece.model"

pretraining.register_pretraining_task(
    "quickstart_span_corruption",
    data_files=sources.HuggingFaceSource(
        {split: str(DIRECTORY / "corpus" / f"{split}-*.jsonl") for split in ("train", "validation")},
        hint="`bash launch/quickstart.sh` makes the corpus; LIMBA_QUICKSTART_DIR says where it is.",
    ),
    vocabulary=VOCABULARY_FILE,
)
