"""Which checkpoint of a run is the best by a metric that the run measured."""

import difflib

from limba import storage, writers
from limba.checkpoint_directories import all_checkpoints
from limba.storage import AnyPath


def metric_values(model_dir: AnyPath, name: str) -> dict[int, float]:
    """A metric of a run's `metrics.jsonl` by step.

    Args:
      model_dir: the run's directory.
      name: dataset and metric, of which both may contain slashes: `inference_eval/my_task/eval/accuracy`.
    """
    values = {}
    for line in writers.read_metrics(model_dir):
        metric = name.removeprefix(f"{line['dataset']}/")
        # What was not a number is null there: such a step has no metric.
        if metric != name and line.get(metric) is not None:
            values[line["step"]] = float(line[metric])
    return values


def nearest_metrics(model_dir: AnyPath, name: str) -> list[str]:
    """The metrics of a run that are named most like one that it does not have; none if it has measured nothing."""
    known = {
        f"{line['dataset']}/{metric}"
        for line in writers.read_metrics(model_dir)
        for metric in line
        if metric not in ("step", "dataset")
    }
    return difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.0)


def best_checkpoint(model_dir: str | AnyPath, choice: str) -> AnyPath:
    """The checkpoint of a run at whose step a metric is the largest or the smallest; of several, the first.

    Args:
      model_dir: the run's directory.
      choice: `max:` or `min:` and a metric as `metric_values` takes it.

    Raises:
      FileNotFoundError: if the run has no checkpoint.
      ValueError: for a choice that is not of that form, or if no checkpoint has such a metric; names the nearest.
    """
    mode, _, name = choice.partition(":")
    if mode not in ("max", "min") or not name:
        raise ValueError(
            f"--best {choice}: write max:METRIC or min:METRIC, with a metric of metrics.jsonl, such as "
            "max:inference_eval/my_task/eval/accuracy or min:training_eval/my_task/loss."
        )
    directory = storage.as_path(model_dir)
    checkpoints = {int(path.name.rpartition("_")[2]): path for path in all_checkpoints(directory)}
    values = metric_values(directory, name)
    measured = {step: value for step, value in values.items() if step in checkpoints}
    if not measured:
        if values:
            raise ValueError(
                f"--best {choice}: {name} was measured at steps {sorted(values)[:5]} …, and the checkpoints that are "
                f"left of {directory} are of steps {sorted(checkpoints)}."
            )
        nearest = nearest_metrics(directory, name)
        raise ValueError(
            f"--best {choice}: {directory}/metrics.jsonl has no such metric; the nearest are {', '.join(nearest)}."
            if nearest
            else f"--best {choice}: {directory} has no metrics.jsonl."
        )
    pick = max if mode == "max" else min
    return checkpoints[pick(sorted(measured), key=measured.__getitem__)]
