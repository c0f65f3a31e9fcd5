"""The tasks of the quickstart: span corruption of Python's own documentation, and the same with more blanks.

Its directory is `$LIMBA_QUICKSTART_DIR`, `runs/quickstart` if that is not set, with the corpus in `corpus/`
(`python -m limba.addons.examples.python_docs`) and the vocabulary in `vocab/spiece.model` (`limba vocab build`).
"""

import os
import pathlib

from limba.tasks import pretraining, sources

DIRECTORY = pathlib.Path(os.environ.get("LIMBA_QUICKSTART_DIR", "runs/quickstart"))
VOCABULARY_FILE = DIRECTORY / "vocab" / "spiece.model"

_SOURCE = sources.HuggingFaceSource(
    {split: str(DIRECTORY / "corpus" / f"{split}-*.jsonl") for split in ("train", "validation")},
    hint="`bash launch/quickstart.sh` makes the corpus; LIMBA_QUICKSTART_DIR says where it is.",
)

pretraining.register_pretraining_task("quickstart_span_corruption", data_files=_SOURCE, vocabulary=VOCABULARY_FILE)
# A third of the text is masked in place of 15%: a step has twice as many targets for the same time.
pretraining.register_pretraining_task(
    "quickstart_many_blanks", data_files=_SOURCE, vocabulary=VOCABULARY_FILE, noise_density=0.33
)
