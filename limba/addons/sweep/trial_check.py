"""Checks trials of `program: train` before the first one starts: as `limba train --dry_run`, and their metric.

python -m limba.addons.sweep.trial_check METRIC FLAGS…   the flags of `limba train`

It is a process of its own, because gin keeps what it has read.
"""

import contextlib
import difflib
import io
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba import command_line
from limba.addons.sweep import own_command, trial_command
from limba.addons.sweep.sweep_file import Sweep
from limba.data.contract import DatasetConfig
from limba.files import python_path
from limba.gin_config import gin_files
from limba.inference import tasks_door

_EVALUATIONS = ("training_eval", "inference_eval")
# Of predictions, beside the task's own.
_OF_EVERY_EVALUATION = ("num_examples", "tokens_per_prediction", "timing/evaluate_seconds")


def check(sweep: Sweep, parameters: Mapping[str, Any]) -> None:
    """Checks the first trial's bindings, and every other value that is listed. Another program checks its own.

    Raises:
      ValueError: if gin does not take a binding, or the recipe has no task of the metric's name.
    """
    if sweep.command or sweep.program != "train":
        return
    listed = [
        own_command.gin_flag(parameter.name, value) for parameter in sweep.parameters for value in parameter.values
    ]
    flags = trial_command.train_flags(sweep, parameters, Path("trial"))
    result = subprocess.run(
        [sys.executable, "-m", __name__, sweep.metric, *listed, *flags],
        cwd=trial_command.working_directory(sweep),
        env=trial_command.environment(sweep, None) | python_path.with_path({}),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise ValueError(f"{sweep.file}: no trial can start: {lines[-1].removeprefix('error: ')}")


def check_metric(metric: str, names: Sequence[str]) -> None:
    """Raises ValueError for the metric of an evaluation of none of the tasks of these names."""
    kind, _, rest = metric.partition("/")
    nearest_kind = difflib.get_close_matches(kind, _EVALUATIONS, n=1, cutoff=0.8)
    if not nearest_kind:
        return
    name, _, last = rest.partition("/")
    if kind not in _EVALUATIONS or name not in names:
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"metric is {metric}, and the evaluations of this recipe are of {', '.join(names)}. Did you mean "
            f"{nearest_kind[0]}/{nearest}/{last}?"
        )


def check_name(metric: str, known: Sequence[str]) -> None:
    """Raises ValueError for a metric of teacher-forced evaluation that is nearly one of the model's.

    Evaluations have more than these, such as figures of the task's own and of n-grams.
    """
    if not metric.startswith("training_eval/"):
        return
    dataset, _, name = metric.rpartition("/")
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    if nearest and nearest[0] != name:
        raise ValueError(
            f"metric is {metric}, and the model's are {', '.join(sorted(known))}. Did you mean {dataset}/{nearest[0]}?"
        )


def check_prediction(metric: str, known: Mapping[str, Sequence[str]]) -> None:
    """Raises ValueError for a metric of predictions that an evaluation of its task does not have.

    Args:
      known: the names by task, without those whose names are not known.
    """
    kind, _, rest = metric.partition("/")
    task, _, name = rest.partition("/")
    if kind != "inference_eval" or task not in known:
        return
    names = [*(f"eval/{x}" for x in known[task]), *_OF_EVERY_EVALUATION]
    if name in names or name in known[task]:
        return
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"metric is {metric}, and predictions of {task} are measured by {', '.join(names)}. Did you mean "
        f"{kind}/{task}/{nearest}?"
    )


def _metrics_of_predictions() -> dict[str, list[str]]:
    config = gin_files.value_of("train.infer_eval_dataset_cfg")
    return tasks_door.metric_names(config) if isinstance(config, DatasetConfig) else {}


def _metrics_of_model() -> list[str]:
    """Those of teacher-forced evaluation, without any numbers; none where only data tell the shapes of a batch."""
    import jax

    from limba.models import text_metrics
    from limba.training import configured_trainer

    model, config, partitioner, trainer_cls = (
        gin_files.value_of(f"train.{name}")
        for name in ("model", "train_eval_dataset_cfg", "partitioner", "trainer_cls")
    )
    try:
        trainer = configured_trainer.make_trainer(trainer_cls, model, partitioner)
        batch = configured_trainer.batch_to_compile(trainer, config)
    except (AttributeError, ValueError):
        return []
    with partitioner.activate():
        metrics = jax.eval_shape(lambda params, batch: model.eval_fn(params, batch)[1], trainer.param_shapes, batch)
    return [*metrics, "num_target_tokens", "unigram_nats_per_target_token", text_metrics.PER_CHARACTER]


def main(argv: Sequence[str]) -> int:
    """Makes the checks of `limba train --dry_run`, and checks the metric."""
    from limba import train

    metric, *flags = argv
    with contextlib.redirect_stdout(io.StringIO()):  # the configuration, which --dry_run prints
        train.main([*flags, "--dry_run"])
    task, module = (gin_files.value_of(f"%{name}") for name in ("MIXTURE_OR_TASK_NAME", "MIXTURE_OR_TASK_MODULE"))
    if isinstance(task, str):
        check_metric(metric, tasks_door.evaluation_names(task, module))
    check_name(metric, _metrics_of_model())
    if metric.startswith("inference_eval/"):
        check_prediction(metric, _metrics_of_predictions())
    return 0


if __name__ == "__main__":
    command_line.run_command(main)
