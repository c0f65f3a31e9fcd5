"""The tasks of gin/recipes/encoder.gin and encoder_moods.gin: BERT's objective, and a classifier of short stories.

The directory is `$LIMBA_ENCODER_DIR`, `runs/encoder` if that is not set, with Python's own documentation in `corpus/`
(`python -m tasks.python_docs`), stories with moods in `stories/` (`python -m tasks.moods`) and the vocabulary in
`vocab/tokenizer.json`. `bash launch/encoder.sh` makes them.
"""

import os
import pathlib

from tasks import objectives, pretraining, sources, supervised

MOODS = ["glad", "calm", "sad"]

DIRECTORY = pathlib.Path(os.environ.get("LIMBA_ENCODER_DIR", "runs/encoder"))
VOCABULARY_FILE = DIRECTORY / "vocab" / "tokenizer.json"
_HINT = "`bash launch/encoder.sh` makes the files; LIMBA_ENCODER_DIR says where they are."

pretraining.register_pretraining_task(
    "encoder_masked_lm",
    data_files=sources.HuggingFaceSource(
        {split: str(DIRECTORY / "corpus" / f"{split}-*.jsonl") for split in ("train", "validation")}, hint=_HINT
    ),
    objective=objectives.MaskedLM(),
    vocabulary=VOCABULARY_FILE,
)
supervised.register_supervised_task(
    "encoder_moods",
    supervised.SupervisedDataset("{story}", "mood", labels=MOODS),
    data_files={split: DIRECTORY / "stories" / f"{split}.csv" for split in ("train", "validation")},
    vocabulary=VOCABULARY_FILE,
)
