"""Two keys of one script that are one key here: which counts where both are given."""

from collections.abc import Mapping
from typing import Any

# By the script's own choice: the first of each pair counts. `num_beams` and `token` are keys of the script, and the
# others of the Trainer; the scripts without a Trainer read `max_length` only where they have no max_source_length.
_PAIRS = (
    ("num_beams", "generation_num_beams"),
    ("max_source_length", "max_length"),
    ("hub_token", "token"),
    ("per_gpu_train_batch_size", "per_device_train_batch_size"),
    ("per_gpu_eval_batch_size", "per_device_eval_batch_size"),
)


def without(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values without keys in whose place another one counts, and a note for each that has another value."""
    left, notes = dict(values), []
    for first, second in _PAIRS:
        if first in values and second in values:
            del left[second]
            if str(values[first]) != str(values[second]):
                notes.append(f"Without effect: {second} ({first} is given, and counts, as in the scripts).")
    return left, notes
