"""What `limba run` leaves: results as the scripts write them, answers to the test split, the exported model."""

import json
import math
from pathlib import Path
from typing import Any

import jax

from limba.addons.run import gin_best, script_data
from limba.addons.run.keys.request import Request
from limba.addons.run.keys.row_answers import ANSWERS, TEXT, RowAnswers
from limba.checkpoints import best, checkpointing
from limba.files import storage, written_files
from limba.files.storage import AnyPath
from limba.reports import results_table, writers

_TEXTS = ANSWERS[TEXT]
_PREDICTIONS = "*-predict.jsonl-?????-of-?????"


def of_training(checkpoint: AnyPath, eval_rows: int = 1, answers: RowAnswers = _TEXTS) -> dict[str, Any]:
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


def write_answers(directory: Path, out: Path, request: Request, seconds: float | None) -> dict[str, Any]:
    """Writes the predictions that `limba infer` left in a directory as the scripts do, one a line.

    Returns:
      The scripts' results of them; `seconds` is how long they took, or None if they were there before.
    """
    lines = []
    for file in sorted(directory.glob(_PREDICTIONS)):
        lines += [json.loads(line) for line in file.read_bytes().splitlines()]
    answers = request.row_answers
    texts = answers.lines(script_data.written(request, [line["prediction"] for line in lines]))
    file = out / answers.file
    if answers.network == "SequenceClassifier" and request.benchmark == "glue":  # as run_glue.py with task_name
        file = file.with_stem(f"{file.stem}_{request.dataset_name}")
    storage.replace_text(file, "".join(f"{text}\n" for text in texts))
    print(f"answers to the test split: {file}")
    tokens = [len(line["prediction_tokens"]) for line in lines if "prediction_tokens" in line]
    counts = {"tokens_per_prediction": sum(tokens) / len(tokens)} if tokens and not answers.network else {}
    rows = request.per_device_eval_batch_size * jax.device_count()
    steps = None if seconds is None else math.ceil(len(lines) / rows) / seconds
    results = speed("predict", math.nan if seconds is None else seconds, len(lines), steps) | _gen_len(
        "predict", counts
    )
    return results | _of_answers(script_data.measure_answers(request, lines), "predict")


def export(out: Path, checkpoint: AnyPath, request: Request) -> None:
    """Exports a checkpoint into a folder of its own, uploads that, and moves its files to `out`.

    An encoder that no class of Hugging Face holds stays where it is.
    """
    from limba.addons.run import starting_model
    from limba.convert import push, to_hf

    staged = out / ".exported" / out.name  # The model card's title.
    written_files.refuse_link(staged)
    if problem := starting_model.no_class_of_run(checkpoint):
        print(f"{checkpoint} is the trained model. {problem}")
        return
    to_hf.to_hf(checkpoint, staged, formats=("safetensors",), overwrite=True, named=out)
    if request.pushes:
        push.push(staged, request.hub_model_id or out.name, public=not request.hub_private_repo)
    for file in sorted(staged.iterdir()):
        file.replace(out / file.name)
    staged.rmdir()
    staged.parent.rmdir()
    (model_class,) = json.loads((out / "config.json").read_text("utf-8"))["architectures"]
    print(f"{out} is the trained model: {model_class}.from_pretrained({str(out)!r})")


def trained(model_dir: Path, request: Request) -> AnyPath:
    """The checkpoint that the run is for, the newest or the best."""
    if not request.load_best_model_at_end:
        return checkpointing.find_checkpoint(model_dir)
    folder, metric = gin_best.measured(request)
    # One task is trained, and so evaluated.
    dataset = writers.read_metrics(model_dir, f"{folder}/")[-1]["dataset"]
    return best.best_checkpoint(model_dir, f"{request.best_mode}:{dataset}/{metric}")
