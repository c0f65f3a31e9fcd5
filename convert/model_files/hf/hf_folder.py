"""A Hugging Face folder, or a file that a training script saved: whether it is one, and which step it is of."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.convert.tensors import weight_files
from limba.files import number_ranges, untrusted_files, untrusted_json
from limba.files.number_ranges import AT_LEAST_0
from limba.files.output_folder import REPORT
from limba.files.storage import AnyPath

TRAINER_STATE = "trainer_state.json"
# What training scripts call the folders of their checkpoints: `checkpoint-500` and, in nanoT5, `checkpoint-pt-500`.
_CHECKPOINT_NAME = re.compile(r"checkpoint-(?:pt-)?(\d+)")
_OF_FILES = (".json", ".model", ".txt", ".safetensors", ".msgpack", ".bin")


def is_folder(path: AnyPath) -> bool:
    return "://" not in str(path) and (Path(path) / "config.json").is_file()


def check_entries(path: Path) -> None:
    """Checks that what has the name of a file is one: otherwise it would count as missing, and a default for it.

    Raises:
      FileNotFoundError: if a link leads to nothing, as after a download that was broken off.
      ValueError: if a FIFO or a device lies in the folder, or a folder has the name of a file.
    """
    for entry in sorted(path.iterdir()):
        # A file may be a pointer of git-lfs: one that is read says so, and of the others nobody needs the content.
        if not entry.is_file() and (entry.suffix in _OF_FILES or not entry.is_dir()):
            untrusted_files.check_is_file(entry)


def training_step(path: Path, report: Mapping[str, Any]) -> tuple[int, str]:
    """The step of training that a folder's weights are of, and what says it; 0 and "" where nothing does.

    A Hugging Face Trainer writes into folders that Limba exported too, after it, so its file comes first. Only where
    the best checkpoint of its training is what was exported, as `limba run` leaves it, the report has the step.

    Args:
      report: `conversion_report.json`.

    Raises:
      ValueError: if the Trainer's file is damaged.
    """
    file = path / TRAINER_STATE
    if file.is_file():
        try:
            state = untrusted_json.read_object(file)
        except ValueError as error:
            raise ValueError(f"{error} Repair it, or remove it for step 0.") from error
        step: Any = state.get("global_step")
        number_ranges.check(f"{file}: global_step", step, AT_LEAST_0._replace(below=2**31))
        if state.get("best_global_step") != report.get("step", -1):
            return step, TRAINER_STATE
    if "step" in report:
        return report["step"], REPORT
    named = _CHECKPOINT_NAME.fullmatch(path.name)
    return (int(named[1]), "the folder's name") if named else (0, "")


def step_of_weights(file: Path) -> tuple[int, str]:
    """The step of a file that a PyTorch training script saved, and what says it; 0 and "" where nothing does."""
    step = weight_files.pickles(str(file)).training_step(file)
    if step is not None:
        return step, "the file"
    named = re.search(r"(\d+)$", file.stem)
    return (int(named[1]), "the file's name") if named else (0, "")
