"""The tasks of gin/recipes/encoder.gin and encoder_moods.gin: BERT's objective on short stories, and their moods.

The directory is `$LIMBA_ENCODER_DIR`, `runs/encoder` if that is not set, with the stories of `python -m tasks.moods` in
`stories/` and the vocabulary in `vocab/tokenizer.json`. `bash launch/encoder.sh` makes them.
"""

import os
import pathlib

from tasks import objectives, pretraining, sources, supervised

MOODS = ["glad", "calm", "sad"]

DIRECTORY = pathlib.Path(os.environ.get("LIMBA_ENCODER_DIR", "runs/encoder"))
STORIES = DIRECTORY / "stories"
VOCABULARY_FILE = DIRECTORY / "vocab" / "tokenizer.json"
_HINT = "`bash launch/encoder.sh` makes the files; LIMBA_ENCODER_DIR says where they are."

pretraining.register_pretraining_task(
    "encoder_masked_lm",
    data_files=sources.HuggingFaceSource(
        {"train": STORIES / "corpus.jsonl", "validation": STORIES / "corpus-validation.jsonl"}, hint=_HINT
    ),
    objective=objectives.MaskedLM(),
    vocabulary=VOCABULARY_FILE,
)
supervised.register_supervised_task(
    "encoder_moods",
    supervised.SupervisedDataset("{story}", "mood", labels=MOODS),
    data_files={split: STORIES / f"{split}.csv" for split in ("train", "validation")},
    vocabulary=VOCABULARY_FILE,
)
