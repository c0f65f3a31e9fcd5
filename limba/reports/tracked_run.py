"""One run of a tracker, such as Weights & Biases, for one training, also after it resumes: the writers share this."""

import math
import re
from pathlib import Path

from limba.files import json_text, storage, untrusted_files
from limba.reports import average_lines, json_lines
from limba.reports.writers import Scalars


class TrackedRun:
    """What a tracker has of a training, kept in a file of MODEL_DIR.

    Args:
      record: the file, `MODEL_DIR/wandb.json`.
      keep_until: the step from which training resumes, -1 for a new run.
      chosen_id: of the tracker's run, if somebody else has chosen it; else it is the record's.
      ids: what the tracker takes for one, as a regular expression: a record of somebody else may have another.

    Attributes:
      id: of the tracker's run; None for a new one, until `begin`.
    """

    def __init__(self, record: Path, keep_until: int, chosen_id: str | None = None, ids: str = ".*"):
        # A damaged record begins another run of the tracker; the training does not depend on it.
        known = next(iter(json_lines.read_and_repair(record, lambda line: _is_record(line, ids))), {})
        self.id: str | None = chosen_id or known.get("id")
        self._record, self._keep_until = record, keep_until
        self._last_step = known.get("last_step", -1) if known.get("id") == self.id else -1
        self._datasets: set[str] = set()  # that were written

    def begin(self, run_id: str) -> None:
        """Notes the id under which the tracker has the run."""
        self.id = run_id
        self._save()

    def values(self, step: int, dataset: str, scalars: Scalars) -> dict[str, float]:
        """What to send, `train/loss` and so on; {} for what was sent before a stop: a resumed run repeats the numbers.

        Values that are not finite are left out. Evaluations also have the names of Hugging Face's Trainer.
        """
        if step <= self._last_step and step > self._keep_until >= 0:
            return {}
        named = {f"{dataset}/{name}": x for name, x in scalars.items()}
        self._datasets.add(dataset)
        if not average_lines.is_of_average(dataset, self._datasets):
            named |= _names_of_trainer(dataset, scalars)
        return {name: x for name, x in named.items() if math.isfinite(x)}

    def sent(self, step: int) -> None:
        """Notes that the values of a step were sent."""
        if step > self._last_step:
            self._last_step = step
            self._save()

    def _save(self) -> None:
        storage.replace_text(self._record, json_text.dumps({"id": self.id, "last_step": self._last_step}) + "\n")


def _is_record(line: json_lines.Record, ids: str) -> bool:
    """A record may come from somebody else, and a tracker names folders by the id."""
    known, step = line.get("id"), line.get("last_step", -1)
    is_id = untrusted_files.is_inside(known) and str(known).isprintable() and re.fullmatch(ids, str(known)) is not None
    return is_id and type(step) is int and json_lines.is_number(step)


def _names_of_trainer(dataset: str, scalars: Scalars) -> dict[str, float]:
    """Evaluations once more as Hugging Face's Trainer calls them, which sweeps of its scripts look at."""
    if dataset.startswith("inference_eval/"):
        found = {name: x for name, x in scalars.items() if name.startswith("eval/")}
        return ({"eval/exact_match": found["eval/em"]} if "eval/em" in found else {}) | found
    if not dataset.startswith("training_eval/"):
        return {}
    # A task's own accuracy comes later, and replaces that of given targets.
    ours = {"eval/loss": "nats_per_target_token", "eval/accuracy": "accuracy"}
    return {name: scalars[of_limba] for name, of_limba in ours.items() if of_limba in scalars}
