"""A checkpoint of Hugging Face's Trainer that a training goes on from, as in the scripts: checkpoint-20 in OUTPUT_DIR,
or as `resume_from_checkpoint`.

The run begins with its weights at its step, so that the learning rate and the end are those of the whole training. What
only PyTorch can read, the state of the optimizer, and the place in the data are not taken over.
"""

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.addons.run.keys.request import Request
from limba.checkpoint_files.directories import checkpoint_steps
from limba.files.local_paths import local_path

logger = logging.getLogger(__name__)

_NAME = re.compile(r"checkpoint-(\d+)")
# The Trainer writes it into each checkpoint; exports of Limba in folders of such names have none.
_STATE = "trainer_state.json"
_TOKENIZERS = ("tokenizer.json", "spiece.model", "tokenizer_config.json", "vocab.txt", "vocab.json")


def is_one(path: Path) -> bool:
    """Whether a path is a folder that the Trainer wrote as a checkpoint."""
    return path.is_dir() and _NAME.fullmatch(path.name) is not None and (path / _STATE).is_file()


def own_steps(out: Path) -> list[int]:
    """The steps of the checkpoints of Limba's run in OUTPUT_DIR."""
    return checkpoint_steps(out / "run") if (out / "run").is_dir() else []


def newest_in(out: Path) -> Path | None:
    """The Trainer's newest checkpoint in a folder."""
    found = [(step(path), path) for path in out.glob("checkpoint-*") if is_one(path)]
    return max(found, default=(0, None))[1]


def to_go_on_from(is_trained: bool, out: Path) -> Path | None:
    """The Trainer's newest checkpoint in `out`, if a training would begin there beside it."""
    return None if not is_trained or own_steps(out) else newest_in(out)


def keys_of(request: Request, out: Path) -> dict[str, Any]:
    """The keys with which a training goes on from a checkpoint of the Trainer; none if there is no such checkpoint.

    A run in `out` that began with one keeps it, also if it is gone, unless `resume_from_checkpoint` names another.
    """
    if not request.do_train or request.overwrites:
        return {}
    given = local_path(request.resume_from_checkpoint or "false")
    path = given if is_one(given) else to_go_on_from(request.do_train, out)
    if path is None and own_steps(out) and (first := _began_with(out)):
        path = Path(first)
    if path is None:
        return {}
    keys: dict[str, Any] = {"model_name_or_path": str(path), "resume_from_checkpoint": str(path)}
    if not any((path / name).is_file() for name in _TOKENIZERS):
        keys["tokenizer_name"] = request.tokenizer_name or request.model_name_or_path
    return keys | {"config_name": None, "model_type": None, "initialize_from_scratch": False}


def begins_again(model: str | None, out: Path) -> bool:
    """Whether a training goes on from a checkpoint, `model`, with which the run in `out` did not begin."""
    return model is not None and (out / "run.json").is_file() and _began_with(out) != model


def _began_with(out: Path) -> str | None:
    """The checkpoint of the Trainer with which the run in `out` began."""
    keys = json.loads((out / "run.json").read_text("utf-8")) if (out / "run.json").is_file() else {}
    return keys["model_name_or_path"] if _is_taken(keys) else None


def _is_taken(keys: Mapping[str, Any]) -> bool:
    model = keys.get("model_name_or_path")
    return model is not None and model == keys.get("resume_from_checkpoint")


def step(path: Path) -> int:
    """The number of updates that a checkpoint of the Trainer had seen.

    Raises:
      ValueError: if its record is damaged.
    """
    try:
        return int(json.loads((path / _STATE).read_text("utf-8"))["global_step"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path / _STATE} is damaged: it needs `global_step`, a whole number ({error!r}).") from error


def first_step(model: str, steps: int, out: Path) -> int | None:
    """The step that a training of `steps` goes on from; None if none is left. Says so where the training begins.

    Args:
      model: that of `keys_of`.

    Raises:
      ValueError: as `step`.
    """
    path = Path(model)
    first = step(path)
    if own_steps(out) and not begins_again(model, out):
        return first
    if first >= steps:
        logger.warning(
            "%s is a checkpoint of Hugging Face's Trainer at step %d, and this training has %d steps: nothing is "
            "trained, and %s is the trained model. To go on, give more max_steps or num_train_epochs.",
            *(path, first, steps, path),
        )
        return None
    logger.warning(
        "%s is a checkpoint of Hugging Face's Trainer: the training goes on with its weights at step %d of %d. The "
        "state of PyTorch's optimizer and the place in the data are not taken over: the optimizer's moments begin at "
        "0, and the rows with an epoch's first. overwrite_output_dir without resume_from_checkpoint begins at step 0.",
        *(path, first, steps),
    )
    return first
