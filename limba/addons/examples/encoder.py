"""The tasks of gin/recipes/encoder.gin, encoder_moods.gin and encoder_names.gin.

They are BERT's objective on short stories, the moods of the stories, and labels of their words.

The directory is `$LIMBA_ENCODER_DIR`, `runs/encoder` if that is not set, with the stories of
`limba.addons.examples.moods` in `stories/` and the vocabulary in `vocab/tokenizer.json`. `bash launch/encoder.sh` makes
them.
"""

import os
import pathlib

from limba.tasks import objectives, pretraining, sources, supervised

MOODS = ["glad", "calm", "sad"]
WORD_LABELS = ["O", "B-PERSON", "B-SETTING", "I-SETTING"]

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
supervised.register_token_task(
    "encoder_names",
    supervised.TokenDataset(WORD_LABELS),
    data_files={split: STORIES / f"{split}-words.jsonl" for split in ("train", "validation")},
    vocabulary=VOCABULARY_FILE,
)
