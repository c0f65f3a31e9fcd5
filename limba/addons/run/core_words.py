"""What messages call settings, and the keys of `limba run` that set them: one table for all messages of the core."""

import contextlib
from collections.abc import Iterator, Mapping

from limba.files import setting_names

KEYS: Mapping[str, str] = {
    "--gin.TRAIN_STEPS=…": "max_steps",
    "--vocab": "tokenizer_name",
    "TASK_FEATURE_LENGTHS inputs": "max_seq_length or max_source_length",
    "TASK_FEATURE_LENGTHS targets": "max_target_length or val_max_target_length",
    "task_feature_lengths generated": "generation_max_length",
    "by_kind": "return_entity_level_metrics",
    "data_files": "train_file and validation_file",
    "label_column and inputs": "label_column_name and text_column_name",
    "text_column": "text_column_name",
}


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Messages inside name the keys of `limba run` beside gin's settings.

    Raises:
      ValueError: in place of a missing column's error, with how a name with a comma is written.
    """
    from limba.tasks.sources.damaged_files.missing_columns import MissingColumnError

    with setting_names.also("limba run", KEYS):
        try:
            yield
        except MissingColumnError as error:
            if "," not in (error.nearest or ""):
                raise
            comma = f"A comma in text_column_name stands between two columns: write {{{error.nearest}}} for one."
            raise ValueError(f"{error} {comma}") from error
