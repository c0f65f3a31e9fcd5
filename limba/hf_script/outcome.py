"""What `limba run` leaves: results as the scripts write them, answers to the test split, the exported model."""

import json
import math
from pathlib import Path
from typing import Any

from limba.checkpoints import checkpointing
from limba.hf_script.run_arguments import RunArguments
from limba.reports import results_table, writers

_ANSWERS = "generated_predictions.txt"


def of_training(model_dir: Path) -> dict[str, Any]:
    """Hugging Face's `all_results.json`, from the run's own record."""
    results: dict[str, Any] = {}
    training = [line for line in writers.read_metrics(model_dir) if line["dataset"] == "train"]
    if training:
        last = training[-1]
        results |= {"step": last["step"], "train_loss": last["loss"]}
    evaluations = writers.read_metrics(model_dir, "training_eval/")
    if evaluations:
        results |= {"step": evaluations[-1]["step"], **_of_loss(evaluations[-1])}
    predicted = writers.read_metrics(model_dir, "inference_eval/")
    if predicted:
        results |= {
            name.replace("/", "_"): value for name, value in predicted[-1].items() if name not in ("step", "dataset")
        }
    return results


def of_evaluation(directory: Path) -> dict[str, Any]:
    """The same of an evaluation without a training, from the folder of `limba eval`."""
    row = results_table.read(directory)[-1]
    results = {"step": row["step"], **(_of_loss(row["loss"]) if row["loss"] else {})}
    return results | {f"eval_{name}": value for name, value in row["metrics"].items()}


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
    path.write_text("".join(f"{answer}\n" for answer in answers), "utf-8")
    return path


def export(out: Path, arguments: RunArguments) -> None:
    """Exports the newest checkpoint into a folder of its own, uploads that, and moves its files to `out`."""
    from convert import push, to_hf

    staged = out / ".exported" / out.name  # The model card's title.
    to_hf.to_hf(checkpointing.find_checkpoint(out / "run"), staged, formats=("safetensors",), overwrite=True)
    if arguments.pushes:
        push.push(staged, arguments.hub_model_id or out.name, public=not arguments.hub_private_repo)
    for file in sorted(staged.iterdir()):
        file.replace(out / file.name)
    staged.rmdir()
    staged.parent.rmdir()
    print(f"{out} is the trained model: T5ForConditionalGeneration.from_pretrained({str(out)!r})")
