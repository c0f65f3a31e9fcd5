"""The files of results that transformers' scripts leave beside the model, of what `limba run` knows.

train_results.json, eval_results.json, predict_results.json    what each part measured
all_results.json                                               all of it
trainer_state.json                                             the history of the training, as the Trainer keeps it
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.addons.run import gin_best, outcome
from limba.addons.run.keys import period_keys
from limba.addons.run.keys.request import Request
from limba.addons.run.keys.row_answers import ANSWERS, TEXT, RowAnswers
from limba.checkpoint_files.directories import checkpoint_steps
from limba.files import json_text, storage
from limba.files.storage import AnyPath
from limba.reports import goodput, writers

# Which results are of a part; `step` and `epoch` are of all.
_PARTS = {"train": ("train_",), "eval": ("eval_", "perplexity"), "predict": ("predict_",)}
# What is kept of an earlier call, where this one had nothing left to train.
_OF_TIME = ("train_runtime", "train_samples_per_second", "train_steps_per_second")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known of a run before it begins.

    Attributes:
      gin_file: its recipe.
      rows: of one update on all devices, and `eval_rows` of an evaluation's batch.
      steps: updates.
      steps_of_epoch, train_samples: of one epoch; None where the examples were not counted exactly.
      found: the keys that the data complete; see `encoder_rows.found`.
    """

    gin_file: str
    rows: int
    eval_rows: int
    steps: int
    steps_of_epoch: int | None = None
    train_samples: int | None = None
    found: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def answers(self) -> RowAnswers:
        return ANSWERS[self.found.get("answers", TEXT)]

    def epoch(self, step: int) -> dict[str, float]:
        """The epoch at a step, where it is known."""
        return {} if self.steps_of_epoch is None else {"epoch": step / self.steps_of_epoch}


def last_step(model_dir: Path) -> int:
    """That of the newest checkpoint; 0 without one."""
    return max(checkpoint_steps(model_dir), default=0) if model_dir.is_dir() else 0


def of_training(out: Path, checkpoint: AnyPath, plan: Plan, first_step: int) -> dict[str, Any]:
    """The results of a training that went on from `first_step`."""
    results = outcome.of_training(checkpoint, plan.eval_rows, plan.answers)
    if plan.train_samples is not None:
        results["train_samples"] = plan.train_samples
    last = last_step(out / "run")
    seconds = _seconds_of_loop(out / "run")
    if (steps := last - first_step) > 0 and seconds > 0:
        results |= outcome.speed("train", seconds, steps * plan.rows, steps / seconds)
    elif (out / "train_results.json").is_file():
        before = json.loads((out / "train_results.json").read_text("utf-8"))
        results |= {name: before[name] for name in _OF_TIME if name in before}
    return plan.epoch(last) | results


def _seconds_of_loop(model_dir: Path) -> float:
    """Those of the last start, as the Trainer counts them: steps, evaluations and checkpoints, and not what is before
    them, the opening of data and the compilation.
    """
    attempts = goodput.read_attempts(model_dir)
    return sum(x for kind, x in attempts[-1].seconds.items() if kind not in ("start", "compile")) if attempts else 0.0


def write(out: Path, results: Mapping[str, Any], request: Request) -> None:
    """Writes the results of each part, and all; those of an earlier training stay, as in the scripts."""
    for part, prefixes in _PARTS.items():
        found = {name: value for name, value in results.items() if name.startswith(prefixes)}
        if found:
            epoch = {"epoch": results["epoch"]} if "epoch" in results and part != "predict" else {}
            _write(out / f"{part}_results.json", epoch | found)
    everything = out / "all_results.json"
    before = json.loads(everything.read_text("utf-8")) if everything.is_file() and not request.do_train else {}
    if results:
        _write(everything, {**before, **results})


def _write(file: Path, content: Mapping[str, Any]) -> None:
    storage.replace_text(file, json_text.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_state(out: Path, checkpoint: AnyPath, request: Request, plan: Plan, results: Mapping[str, Any]) -> None:
    """Writes trainer_state.json; what the Trainer alone knows, such as its floating point operations, is left out."""
    last = last_step(out / "run")
    best: dict[str, Any] = {"best_metric": None, "best_model_checkpoint": None, "best_global_step": None}
    if request.load_best_model_at_end:
        name = gin_best.best_name(request)
        best = {
            "best_metric": results.get(name if name == "perplexity" else f"eval_{name}"),
            "best_model_checkpoint": str(checkpoint),
            "best_global_step": int(checkpoint.name.rpartition("_")[2]),
        }
    epochs: dict[str, Any] = {}
    if request.max_steps < 0:
        epochs = {"num_train_epochs": math.ceil(request.num_train_epochs)}
    elif plan.steps_of_epoch is not None:
        epochs = {"num_train_epochs": math.ceil(request.max_steps / plan.steps_of_epoch)}
    history = _history(out / "run", plan)
    if "train_runtime" in results:
        names = ("train_loss", *_OF_TIME)
        history.append({**{x: results[x] for x in names if x in results}, **plan.epoch(last), "step": last})
    state = {
        **best,
        **plan.epoch(last),
        "eval_steps": period_keys.steps_of(request, "eval", plan.steps),
        "global_step": last,
        "is_hyper_param_search": False,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": history,
        "logging_steps": period_keys.steps_of(request, "logging", plan.steps),
        "max_steps": plan.steps,
        **epochs,
        "save_steps": period_keys.steps_of(request, "save", plan.steps),
        "stateful_callbacks": {},
        "train_batch_size": request.per_device_train_batch_size,
        "trial_name": None,
        "trial_params": None,
    }
    _write(out / "trainer_state.json", state)


def _history(model_dir: Path, plan: Plan) -> list[dict[str, Any]]:
    """What the Trainer logs: lines of training, and evaluations, whose lines of one step are one entry."""
    entries: dict[tuple[bool, int], list[dict[str, Any]]] = {}
    for line in writers.read_metrics(model_dir):
        entries.setdefault((line["dataset"] == "train", line["step"]), []).append(line)
    return [
        {**(_of_step(lines[0]) if is_training else _of_evaluation(lines, plan)), **plan.epoch(step), "step": step}
        for (is_training, step), lines in entries.items()
    ]


def _of_step(line: dict[str, Any]) -> dict[str, Any]:
    rate = line.get("learning_rate/current", line.get("learning_rate"))
    return {"loss": line["loss"]} | ({} if rate is None else {"learning_rate": rate})


def _of_evaluation(lines: list[dict[str, Any]], plan: Plan) -> dict[str, Any]:
    found = outcome.of_lines(lines, plan.eval_rows, plan.answers)
    return {name: value for name, value in found.items() if name not in ("eval_samples", "perplexity")}
