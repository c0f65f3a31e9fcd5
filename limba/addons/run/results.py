"""What `limba run` leaves, read from its plan: results and answers as the scripts write them, and the export.

train_results.json, eval_results.json, predict_results.json    what each part measured
all_results.json                                               all of it
trainer_state.json                                             the history of the training, as the Trainer keeps it
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons import table
from limba.addons.run import data
from limba.addons.run.keys.row_answers import ANSWERS, TEXT, WORD_LABELS, RowAnswers
from limba.addons.run.plan import Plan
from limba.checkpoint_files import run_folder
from limba.checkpoint_files.directories import checkpoint_steps
from limba.checkpoints import best, checkpointing
from limba.files import json_text, storage, written_files
from limba.files.storage import AnyPath
from limba.reports import goodput, results_table, writers

_TEXTS = ANSWERS[TEXT]
_PREDICTIONS = "*-predict.jsonl-?????-of-?????"
# Which results are of a part; `step` and `epoch` are of all.
_PARTS = {"train": ("train_",), "eval": ("eval_", "perplexity"), "predict": ("predict_",)}
# What is kept of an earlier call, where this one had nothing left to train.
_OF_TIME = ("train_runtime", "train_samples_per_second", "train_steps_per_second")


def of_checkpoint(checkpoint: AnyPath, eval_rows: int = 1, answers: RowAnswers = _TEXTS) -> dict[str, Any]:
    """Hugging Face's results of training and evaluation, from the run's own record.

    The loss is the mean of all steps; the evaluations are those of the checkpoint, with `eval_rows` rows a batch.
    """
    model_dir, step = checkpoint.parent, int(checkpoint.name.rpartition("_")[2])
    results: dict[str, Any] = {}
    training = [line for line in writers.read_metrics(model_dir) if line["dataset"] == "train"]
    if training:
        results |= {"step": training[-1]["step"], "train_loss": _mean_loss(training)}
    evaluations = _until(step, writers.read_metrics(model_dir, "training_eval/"))[-1:]
    predicted = _until(step, writers.read_metrics(model_dir, "inference_eval/"))[-1:]
    if evaluations:
        results["step"] = evaluations[0]["step"]
    return results | of_lines([*evaluations, *predicted], eval_rows, answers)


def _mean_loss(training: list[dict[str, Any]]) -> float | None:
    """The mean of all steps: each line has that of the steps since the one before it."""
    steps = [0, *(line["step"] for line in training)]
    weighted = [(line["loss"], after - before) for line, before, after in zip(training, steps, steps[1:], strict=False)]
    if any(loss is None for loss, _ in weighted):  # The file has null for what is not finite.
        return None
    return sum(loss * count for loss, count in weighted) / max(sum(count for _, count in weighted), 1)


def of_lines(lines: list[dict[str, Any]], eval_rows: int, answers: RowAnswers) -> dict[str, Any]:
    """The results of one evaluation, of its lines of `metrics.jsonl`: by given targets, by predictions, or both."""
    results: dict[str, Any] = {}
    seconds, samples, steps_per_second = 0.0, None, None
    for line in lines:
        seconds += line.get("timing/seconds", line.get("timing/evaluate_seconds")) or math.nan
        if line["dataset"].startswith("training_eval/"):
            results |= _of_loss(line, answers)
            steps_per_second = line.get("timing/steps_per_second")
        else:
            found = {name.removeprefix("eval/"): x for name, x in line.items() if name[:5] == "eval/"}
            results |= _of_answers(found)
            samples, steps_per_second = line.get("num_examples"), None
            results |= {} if answers.network else _gen_len("eval", line)
    if samples is not None:
        steps_per_second = math.ceil(samples / eval_rows) / seconds
    return results | speed("eval", seconds, samples, steps_per_second)


def _gen_len(kind: str, counts: dict[str, Any]) -> dict[str, Any]:
    length = counts.get("tokens_per_prediction")
    return {} if length is None else {f"{kind}_gen_len": round(length, 4)}


def speed(kind: str, seconds: float, samples: float | None, steps_per_second: float | None) -> dict[str, Any]:
    """Time and rates of "train", "eval" or "predict", under transformers' names; only what is known."""
    known: dict[str, Any] = {} if samples is None or kind == "train" else {f"{kind}_samples": int(samples)}
    if not math.isfinite(seconds) or seconds <= 0:
        return known
    known[f"{kind}_runtime"] = round(seconds, 4)
    if samples is not None:
        known[f"{kind}_samples_per_second"] = round(samples / seconds, 3)
    return known | ({} if steps_per_second is None else {f"{kind}_steps_per_second": round(steps_per_second, 3)})


def _until(step: int, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["step"] <= step]


def of_evaluation(directory: Path, eval_rows: int = 1, answers: RowAnswers = _TEXTS) -> dict[str, Any]:
    """The same of an evaluation without a training, from the folder of `limba eval`."""
    row = results_table.read(directory)[-1]
    loss = [{"dataset": "training_eval/", **row["loss"]}] if row["loss"] else []
    metrics = {f"eval/{name}": value for name, value in row["metrics"].items()} | row.get("counts", {})
    return {"step": row["step"], **of_lines([*loss, {"dataset": "inference_eval/", **metrics}], eval_rows, answers)}


def _of_answers(metrics: dict[str, Any], kind: str = "eval") -> dict[str, Any]:
    """Metrics of answers, which are in the numbers of the scripts, under the scripts' names; counts are whole."""
    named = {f"{kind}_{name}".replace("/", "_"): value for name, value in metrics.items()}
    return {name: int(value) if name.endswith("_number") else value for name, value in named.items()}


def _of_loss(scalars: dict[str, Any], answers: RowAnswers) -> dict[str, Any]:
    loss = scalars[answers.loss]
    if answers.network:
        return {"eval_loss": loss}
    # A task may have a metric `accuracy` of its own, which comes later and is then `eval_accuracy`.
    return {"eval_loss": loss, "eval_accuracy": scalars["accuracy"], "perplexity": math.exp(min(loss, 100.0))}


def is_answered(directory: Path) -> bool:
    """Whether `limba infer` has written its predictions there."""
    return any(directory.glob(_PREDICTIONS))


def write_answers(plan: Plan, directory: Path, seconds: float | None) -> dict[str, Any]:
    """Writes the predictions that `limba infer` left in a directory as the scripts do, one a line.

    Returns:
      The scripts' results of them; `seconds` is how long they took, or None if they were there before.
    """
    keys, answers = plan.keys, plan.keys.row_answers
    lines = []
    for file in sorted(directory.glob(_PREDICTIONS)):
        lines += [json.loads(line) for line in file.read_bytes().splitlines()]
    predictions = [line["prediction"] for line in lines]
    if keys.answers == TEXT:
        predictions = [_decoded(text) if isinstance(text, str) else text for text in predictions]
    file = plan.out / answers.file
    if answers.network == "SequenceClassifier" and keys.benchmark == "glue":  # as run_glue.py with task_name
        file = file.with_stem(f"{file.stem}_{keys.dataset_name}")
    storage.replace_text(file, "".join(f"{text}\n" for text in answers.lines(predictions)))
    print(f"answers to the test split: {file}")
    tokens = [len(line["prediction_tokens"]) for line in lines if "prediction_tokens" in line]
    counts = {"tokens_per_prediction": sum(tokens) / len(tokens)} if tokens and not answers.network else {}
    steps = None if seconds is None else math.ceil(len(lines) / plan.eval_rows) / seconds
    time = speed("predict", math.nan if seconds is None else seconds, len(lines), steps)
    return time | _gen_len("predict", counts) | _of_answers(_measured(plan, lines), "predict")


def _decoded(text: str) -> str:
    """A T5's text without special tokens."""
    from limba.addons.run import script_metrics

    return script_metrics.without_special_tokens(text)


def _measured(plan: Plan, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The task's metrics of the lines that `limba infer` writes; {} where the right answers are not all there."""
    from limba.tasks.supervised import compared_answers, row_formats
    from limba.tasks.vocabularies import LabelVocabulary

    form = data.row_form(plan.keys)
    texts = [line["inputs"].get("targets_pretokenized", "") for line in lines]
    if plan.keys.answers == WORD_LABELS:
        split = LabelVocabulary(form.labels).split
        targets, predictions = [split(text) for text in texts], [split(line["prediction"]) for line in lines]
        return {name: x for metric in form.metrics for name, x in metric(targets, predictions).items()}
    has_references = all("reference" in line["inputs"] for line in lines)
    if not has_references or row_formats.UNKNOWN in texts or not any(text.strip() for text in texts):
        return {}
    compared = compared_answers.ComparedAnswers(form.format, _answers_vocabulary(plan))
    targets = [compared(text, line["inputs"], is_target=True) for text, line in zip(texts, lines, strict=True)]
    predictions = [compared(line["prediction"]) for line in lines]
    return {name: value for metric in form.metrics for name, value in metric(targets, predictions).items()}


def _answers_vocabulary(plan: Plan) -> Any:
    """The vocabulary that a T5's texts are decoded with; None for labels and numbers, and for ByT5's bytes."""
    from limba.tasks.vocabularies import sentencepiece_models

    folder = plan.work / "initial"
    found = [folder / name for name in (run_folder.VOCABULARY, run_folder.TOKENIZER) if (folder / name).is_file()]
    return sentencepiece_models.open_vocabulary(found[0]) if found and plan.keys.answers == TEXT else None


def export(plan: Plan, checkpoint: AnyPath) -> None:
    """Exports a checkpoint into a folder of its own, uploads that, and moves its files to `out`.

    An encoder that no class of Hugging Face holds stays where it is.
    """
    from limba.addons.run import starting_model
    from limba.convert import to_hf

    out, keys = plan.out, plan.keys
    staged = out / ".exported" / out.name  # The model card's title.
    written_files.refuse_link(staged)
    if problem := starting_model.no_class_of_run(checkpoint):
        print(f"{checkpoint} is the trained model. {problem}")
        return
    to_hf.to_hf(checkpoint, staged, formats=("safetensors",), overwrite=True, named=out)
    if keys.pushes:
        (upload,) = table.parts("upload")
        upload.push(staged, keys.hub_model_id or out.name, public=not keys.hub_private_repo)
    for file in sorted(staged.iterdir()):
        file.replace(out / file.name)
    staged.rmdir()
    staged.parent.rmdir()
    (model_class,) = json.loads((out / "config.json").read_text("utf-8"))["architectures"]
    print(f"{out} is the trained model: {model_class}.from_pretrained({str(out)!r})")


def trained(plan: Plan) -> AnyPath:
    """The checkpoint that the run is for, the newest or the best."""
    keys, model_dir = plan.keys, plan.out / "run"
    if not keys.load_best_model_at_end:
        return checkpointing.find_checkpoint(model_dir)
    folder, metric = keys.measured
    # One task is trained, and so evaluated.
    dataset = writers.read_metrics(model_dir, f"{folder}/")[-1]["dataset"]
    return best.best_checkpoint(model_dir, f"{keys.best_mode}:{dataset}/{metric}")


# ------------------------------------------------------- files ------------------------------------------------------


def last_step(model_dir: Path) -> int:
    """That of the newest checkpoint; 0 without one."""
    return max(checkpoint_steps(model_dir), default=0) if model_dir.is_dir() else 0


def of_training(plan: Plan, checkpoint: AnyPath, first_step: int) -> dict[str, Any]:
    """The results of a training that went on from `first_step`."""
    out = plan.out
    results = of_checkpoint(checkpoint, plan.eval_rows, plan.keys.row_answers)
    if plan.train_samples is not None:
        results["train_samples"] = plan.train_samples
    last = last_step(out / "run")
    seconds = _seconds_of_loop(out / "run")
    if (steps := last - first_step) > 0 and seconds > 0:
        results |= speed("train", seconds, steps * plan.rows, steps / seconds)
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


def write(plan: Plan, results: Mapping[str, Any]) -> None:
    """Writes the results of each part, and all; those of an earlier training stay, as in the scripts."""
    out = plan.out
    for part, prefixes in _PARTS.items():
        found = {name: value for name, value in results.items() if name.startswith(prefixes)}
        if found:
            epoch = {"epoch": results["epoch"]} if "epoch" in results and part != "predict" else {}
            _write(out / f"{part}_results.json", epoch | found)
    everything = out / "all_results.json"
    before = json.loads(everything.read_text("utf-8")) if everything.is_file() and not plan.keys.do_train else {}
    if results:
        _write(everything, {**before, **results})


def _write(file: Path, content: Mapping[str, Any]) -> None:
    storage.replace_text(file, json_text.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_state(plan: Plan, checkpoint: AnyPath, results: Mapping[str, Any]) -> None:
    """Writes trainer_state.json; what the Trainer alone knows, such as its floating point operations, is left out."""
    keys, out = plan.keys, plan.out
    last = last_step(out / "run")
    best: dict[str, Any] = {"best_metric": None, "best_model_checkpoint": None, "best_global_step": None}
    if keys.load_best_model_at_end:
        name = keys.best_name
        best = {
            "best_metric": results.get(name if name == "perplexity" else f"eval_{name}"),
            "best_model_checkpoint": str(checkpoint),
            "best_global_step": int(checkpoint.name.rpartition("_")[2]),
        }
    epochs: dict[str, Any] = {}
    if keys.max_steps < 0:
        epochs = {"num_train_epochs": math.ceil(keys.num_train_epochs)}
    elif plan.train_samples is not None:
        epochs = {"num_train_epochs": math.ceil(keys.max_steps / plan.steps_of_epoch)}
    history = _history(out / "run", plan)
    if "train_runtime" in results:
        names = ("train_loss", *_OF_TIME)
        history.append({**{x: results[x] for x in names if x in results}, **plan.epoch(last), "step": last})
    state = {
        **best,
        **plan.epoch(last),
        "eval_steps": keys.steps_between("eval", plan.steps),
        "global_step": last,
        "is_hyper_param_search": False,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": history,
        "logging_steps": keys.steps_between("logging", plan.steps),
        "max_steps": plan.steps,
        **epochs,
        "save_steps": keys.steps_between("save", plan.steps),
        "stateful_callbacks": {},
        "train_batch_size": keys.per_device_train_batch_size,
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
    found = of_lines(lines, plan.eval_rows, plan.keys.row_answers)
    return {name: value for name, value in found.items() if name not in ("eval_samples", "perplexity")}
