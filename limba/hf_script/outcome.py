"""What `limba run` leaves: results as the scripts write them, answers to the test split, the exported model."""

import json
import math
from pathlib import Path
from typing import Any

from limba.checkpoints import best, checkpointing
from limba.hf_script import gin_best
from limba.hf_script.run_arguments import RunArguments
from limba.machine import storage, written_files
from limba.machine.storage import AnyPath
from limba.reports import results_table, writers

_ANSWERS = "generated_predictions.txt"


def of_training(checkpoint: AnyPath) -> dict[str, Any]:
    """Hugging Face's `all_results.json`, from the run's own record: the evaluations are those of the checkpoint."""
    model_dir, step = checkpoint.parent, int(checkpoint.name.rpartition("_")[2])
    results: dict[str, Any] = {}
    training = [line for line in writers.read_metrics(model_dir) if line["dataset"] == "train"]
    if training:
        last = training[-1]
        results |= {"step": last["step"], "train_loss": last["loss"]}
    evaluations = _until(step, writers.read_metrics(model_dir, "training_eval/"))
    if evaluations:
        results |= {"step": evaluations[-1]["step"], **_of_loss(evaluations[-1])}
    predicted = _until(step, writers.read_metrics(model_dir, "inference_eval/"))
    if predicted:
        found = ((name, x) for name, x in predicted[-1].items() if name not in ("step", "dataset"))
        results |= _of_answers({name.removeprefix("eval/"): x for name, x in found})
    return results


def _until(step: int, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["step"] <= step]


def of_evaluation(directory: Path) -> dict[str, Any]:
    """The same of an evaluation without a training, from the folder of `limba eval`."""
    row = results_table.read(directory)[-1]
    results = {"step": row["step"], **(_of_loss(row["loss"]) if row["loss"] else {})}
    return results | _of_answers(row["metrics"])


def _of_answers(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics of answers under the names and in the numbers of the scripts: shares are from 0 to 1."""
    found = {}
    for name, value in metrics.items():
        is_percent = isinstance(value, int | float) and gin_best.is_share(name, metrics)
        found[f"eval_{gin_best.OF_SCRIPTS.get(name, name)}".replace("/", "_")] = value / 100 if is_percent else value
    return found


def _of_loss(scalars: dict[str, Any]) -> dict[str, Any]:
    loss = scalars["nats_per_target_token"]
    # A task may have a metric `accuracy` of its own, which comes later and is then `eval_accuracy`.
    return {"eval_loss": loss, "eval_accuracy": scalars["accuracy"], "perplexity": math.exp(min(loss, 100.0))}


def write_answers(directory: Path, out: Path) -> Path:
    """Writes the predictions that `limba infer` left in a directory as the scripts do, one a line."""
    answers = []
    for file in sorted(directory.glob("*-predict.jsonl-?????-of-?????")):
        lines = file.read_text("utf-8").splitlines()
        answers += [" ".join(str(json.loads(line)["prediction"]).split()) for line in lines]
    path = out / _ANSWERS
    storage.replace_text(path, "".join(f"{answer}\n" for answer in answers))
    return path


def export(out: Path, checkpoint: AnyPath, arguments: RunArguments) -> None:
    """Exports a checkpoint into a folder of its own, uploads that, and moves its files to `out`.

    An encoder that no class of Hugging Face holds stays where it is.
    """
    from convert import push, starting_model, to_hf

    if problem := starting_model.no_class_of_run(checkpoint):
        print(f"{checkpoint} is the trained model. {problem}")
        return
    staged = out / ".exported" / out.name  # The model card's title.
    to_hf.to_hf(checkpoint, staged, formats=("safetensors",), overwrite=True)
    if arguments.pushes:
        push.push(staged, arguments.hub_model_id or out.name, public=not arguments.hub_private_repo)
    for file in sorted(staged.iterdir()):
        written_files.move(file, out / file.name)
    staged.rmdir()
    staged.parent.rmdir()
    (model_class,) = json.loads((out / "config.json").read_text("utf-8"))["architectures"]
    print(f"{out} is the trained model: {model_class}.from_pretrained({str(out)!r})")


def trained(model_dir: Path, arguments: RunArguments) -> AnyPath:
    """The checkpoint that the run is for, the newest or the best."""
    if not arguments.load_best_model_at_end:
        return checkpointing.find_checkpoint(model_dir)
    folder, metric = gin_best.measured(arguments)
    # One task is trained, and so evaluated.
    dataset = writers.read_metrics(model_dir, f"{folder}/")[-1]["dataset"]
    return best.best_checkpoint(model_dir, f"{arguments.best_mode}:{dataset}/{metric}")
