"""The best checkpoint of a run by one of its metrics."""

import difflib

from limba.checkpoint_files.directories import all_checkpoints, run_directory
from limba.files.storage import AnyPath
from limba.reports import average_lines, writers

# Names of Hugging Face's Trainer for metrics of another name here.
_TRAINER = {"loss": "nats_per_target_token", "mcc": "matthews_corrcoef"}


def metric_values(model_dir: AnyPath, name: str) -> dict[int, float]:
    """A metric of a run's `metrics.jsonl` by step.

    The name is dataset and metric, both of which may contain slashes: `inference_eval/my_task/eval/accuracy`; or that
    of the log (`accuracy`, `my_task/accuracy`) or of Hugging Face's Trainer (`eval/accuracy`, `eval_accuracy`), if one
    task alone has it. Metrics of predictions come before those of given targets.
    """
    lines = writers.read_metrics(model_dir)
    pairs = dict.fromkeys((line["dataset"], key) for line in lines for key in line if key not in ("step", "dataset"))
    found = [pair for pair in pairs if "/".join(pair) == name]
    for kind in ("inference_eval/", "training_eval/"):
        named = [pair for pair in pairs if pair[0].startswith(kind) and _is_called(*pair, name)]
        # A name without its task is not that of an average beside the task.
        datasets = {dataset for dataset, _ in named}
        found = found or [pair for pair in named if not average_lines.is_of_average(pair[0], datasets)]
    if len(found) != 1:
        return {}
    ((dataset, metric),) = found
    # The file has null for NaN: such a step has no metric.
    of_dataset = (line for line in lines if line["dataset"] == dataset)
    return {line["step"]: float(line[metric]) for line in of_dataset if line.get(metric) is not None}


def _is_called(dataset: str, metric: str, name: str) -> bool:
    """Whether a metric has a name in the log or of Hugging Face's Trainer."""
    metric, name = metric.removeprefix("eval/"), name.replace(" ", "_")
    of_task = f"{dataset.partition('/')[2]}/{metric}"
    if name in (f"{dataset}/{metric}", of_task):
        return True
    short = name.removeprefix("eval/") if name.startswith("eval/") else name.removeprefix("eval_")
    if (short, metric) == ("exact_match", "em"):  # SQuAD's; another metric has the first name here too.
        return True
    return metric == (short if short == name else _TRAINER.get(short, short))


def nearest_metrics(model_dir: AnyPath, name: str) -> list[str]:
    """The metrics of a run with the names nearest to `name`; [] if the run has no metrics.

    A name of Hugging Face's Trainer, `eval/…` or `eval_…`, has those of its kind.
    """
    lines = writers.read_metrics(model_dir)
    pairs = {(line["dataset"], metric) for line in lines for metric in line.keys() - {"step", "dataset"}}
    known = {"/".join(pair) for pair in pairs}
    if name.startswith(("eval/", "eval_")):
        evaluated = {metric for dataset, metric in pairs if dataset.startswith(("inference_eval/", "training_eval/"))}
        known = {name[:5] + metric.removeprefix("eval/") for metric in evaluated} or known
    return difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.0)


def best_checkpoint(model_dir: str | AnyPath, choice: str) -> AnyPath:
    """The checkpoint with the highest or lowest value of a metric; of several, the first.

    Args:
      choice: `max:` or `min:`, followed by a metric in the form of `metric_values`.

    Raises:
      FileNotFoundError: if the run has no checkpoint.
      ValueError: for a choice of another form; or if no checkpoint has the metric, naming the nearest ones.
    """
    mode, _, name = choice.partition(":")
    if mode not in ("max", "min") or not name:
        raise ValueError(
            f"--best {choice}: write max:METRIC or min:METRIC, with a metric of metrics.jsonl, such as "
            "max:inference_eval/my_task/eval/accuracy or min:training_eval/my_task/loss."
        )
    directory = run_directory(model_dir)
    checkpoints = {int(path.name.rpartition("_")[2]): path for path in all_checkpoints(directory)}
    values = metric_values(directory, name)
    measured = {step: value for step, value in values.items() if step in checkpoints}
    if not measured:
        if values:
            raise ValueError(
                f"--best {choice}: {name} was measured at steps {sorted(values)[:5]} …, but {directory} has "
                f"checkpoints of steps {sorted(checkpoints)} only."
            )
        nearest = nearest_metrics(directory, name)
        raise ValueError(
            f"--best {choice}: {directory}/metrics.jsonl has no such metric; the nearest are {', '.join(nearest)}."
            if nearest
            else f"--best {choice}: {directory} has no metrics.jsonl."
        )
    pick = max if mode == "max" else min
    return checkpoints[pick(sorted(measured), key=measured.__getitem__)]
