r"""`limba run`: pre-training and fine-tuning with the keys of a Hugging Face script, from a JSON file, flags, or both.

    limba run config.json
    limba run config.json --learning_rate 1e-4 --do_eval
    limba run run_summarization.py --model_name_or_path google/t5-v1_1-small --train_file a.csv --output_dir runs/mine
    limba run --model_name_or_path google/t5-v1_1-small --train_file corpus.jsonl --output_dir runs/mine --do_train
    limba run --benchmark glue --dataset_name sst2 --model_name_or_path exports/mine --output_dir runs/sst2

The keys become a gin file, which is printed, kept as OUTPUT_DIR/run.gin and run. The same command resumes a run that
was stopped. `--dry_run` only checks, as a run does, and prints the gin files. --gin.NAME=VALUE overrides what it binds.
Several processes of a run that share OUTPUT_DIR are told of each other as by `limba train`: --multiprocess_gpu and its
flags, or the environment.
For a pod whose workers share no folder: `--write_gin FILE --num_devices N`, then launch/worker.sh FILE on each worker.

OUTPUT_DIR at the end:
  config.json, model.safetensors, spiece.model …   the trained model, for `from_pretrained(OUTPUT_DIR)`
  all_results.json                                 losses and metrics, also by part: train_results.json …
  trainer_state.json                               the history of the training
  generated_predictions.txt                        of do_predict: a T5's answers to the test split, one a line
  predict_results.txt, predictions.txt             the same of an encoder: labels or numbers; labels of words
  run.gin                                          for `limba train --gin_file=OUTPUT_DIR/run.gin`
  run/                                             checkpoints, metrics.jsonl, TensorBoard events
  initial/                                         the model that training began with
"""

import argparse
import contextlib
import io
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gin
import jax

from limba import command_line, infer, train
from limba import eval as evaluation
from limba.addons.run import core_words, gin_text, results
from limba.addons.run.keys import script_keys
from limba.addons.run.keys.request import Request
from limba.addons.run.output_dir import earlier_run, refused_starts
from limba.addons.run.plan import Plan
from limba.checkpoint_files import run_folder
from limba.files import json_text, redaction, storage, written_files
from limba.files.local_paths import local_path
from limba.files.storage import AnyPath
from limba.gin_config import gin_files, recipe
from limba.workers import distributed, launchers

logger = logging.getLogger(__name__)

# The model to begin with, where a gin file is only checked.
_MODEL_GIN = "model_of_the_run.gin"
_PREDICTIONS = "predictions"


def main(argv: Sequence[str]) -> int:
    """Trains, evaluates, predicts, exports and uploads, as the keys of a script say.

    The keys become a request, the request a plan, and the plan a gin file; then the programs of `limba train`,
    `eval` and `infer` run, and what they leave becomes the files of the script.
    """
    if not argv or any(flag in ("-h", "--help") for flag in argv):
        print(f"usage: limba run [SCRIPT] [CONFIG.json] [--key value …]\n\n{__doc__}\nkeys:\n{script_keys.help_text()}")
        return 0 if argv else 2
    overrides = [flag for flag in argv if flag.startswith("--gin.")]
    flags, keys = _flags().parse_known_args([flag for flag in argv if flag not in overrides])
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION") or "no"  # of `accelerate launch`
    request, notes = script_keys.from_command_line(keys, precision)
    for note in [*notes, *launchers.without_effect(os.environ)]:
        logger.warning("%s", note)
    if request.hub_token:
        os.environ["HF_TOKEN"] = request.hub_token
    for file in filter(None, (request.train_file, request.validation_file, request.test_file)):
        # In all processes: worker 0 alone writes the gin file, which has URLs without credentials.
        redaction.hide(file)
    command_line.join_others(flags)
    here = jax.device_count()  # by all processes at once: their devices find each other
    with core_words.translated(), refused_starts.put_back(local_path(request.output_dir)) as start:
        written = distributed.from_first("gin file", lambda: _write_gin(request, start, flags, here, overrides))
        if written is None:
            return 0
        plan = Plan.of_json(written, request)
        _check_is_shared(plan)
        checkpoint, found, seconds_of_answers = _train_evaluate_answer(plan, overrides)
    # The others wait: a run whose processes end before the first one's export is finished would be taken for broken.
    distributed.from_first("export", lambda: _finish(plan, checkpoint, found, seconds_of_answers))
    return 0


def _flags() -> argparse.ArgumentParser:
    """The flags that are not keys of a script."""
    parser = argparse.ArgumentParser(prog="limba run", add_help=False, allow_abbrev=False)
    parser.add_argument("--dry_run", action="store_true")
    parser.add_argument("--write_gin", metavar="FILE")
    parser.add_argument("--num_devices", type=int, metavar="N")
    parser.add_argument("--multiprocess_gpu", action="store_true")
    parser.set_defaults(joins_cluster=True)
    distributed.add_flags(parser.add_argument_group("several processes"))
    return parser


def _write_gin(
    request: Request, start: refused_starts.Start, flags: argparse.Namespace, here: int, overrides: Sequence[str]
) -> dict[str, Any] | None:
    """Plans the run, checks its gin file, and writes it and the model to begin with.

    Returns:
      The plan as JSON; None if there is nothing more to do: of `--dry_run`, which has all the checks of a run, of
      `--write_gin`, and of a training that is at its end.
    """
    from limba.addons.run import planning  # It imports the converters.

    if (planned := planning.make(request, flags, here, overrides)) is None:
        return None
    plan, model = planned
    text = gin_text.compose(plan)
    _check_gin(plan, text, model.gin, overrides, starts=flags.dry_run and not flags.write_gin)
    if flags.dry_run or not flags.write_gin:
        print(text)
    if flags.dry_run:
        print(f"# {plan.named / 'initial' / 'model.gin'}, which the run writes:\n{model.gin}")
        if plan.keys.do_train and not (flags.write_gin or plan.keys.overwrites):
            _warn_of_changes(plan.gin_file, text)
        return None
    _make_folder(plan.work, empty=plan.work != plan.out)  # An earlier evaluation was perhaps of other weights.
    if plan.keys.do_train and not flags.write_gin:
        start.keep_files()
        start.moved = earlier_run.make_room(plan.keys, plan.out, text)
        model = model.kept_in(start.moved) if model.path == plan.out and start.moved is not None else model
    if _warn_of_changes(plan.gin_file, text) and not flags.write_gin:
        start.set_aside(plan.out / _PREDICTIONS)
    keys = json_text.dumps(plan.keys.without_secrets(), indent=2, ensure_ascii=False)
    storage.replace_text(plan.work / "run.json", f"{redaction.redact(keys)}\n")
    model.write(plan.work / "initial")
    if not flags.write_gin:
        storage.replace_text(plan.gin_file, text)
        return plan.as_json(request)
    for name in (run_folder.VOCABULARY, run_folder.TOKENIZER):
        if (plan.work / "initial" / name).is_file():
            text += f"\nVOCABULARY_FILE = {str(plan.named / 'initial' / name)!r}\n"
    plan.gin_file.parent.mkdir(parents=True, exist_ok=True)
    written_files.write_text(plan.gin_file, text)
    print(
        f"{plan.gin_file} is written. On every worker {plan.named / 'initial'} must be what it is here; then:\n"
        f"  bash launch/worker.sh {flags.write_gin} --gin.MODEL_DIR=\"'gs://my-bucket/runs/mine'\""
    )
    return None


def _make_folder(folder: Path, empty: bool) -> None:
    """Raises ValueError if the results would be written through a link of somebody else's folder."""
    if empty:
        written_files.refuse_link(folder)
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("run", "initial", "eval", "evaluated", ".exported", _PREDICTIONS):
        written_files.refuse_link(folder / name)
    folder.mkdir(parents=True, exist_ok=True)


def _check_is_shared(plan: Plan) -> None:
    if not plan.gin_file.is_file():
        raise ValueError(
            f"Worker 0 has written {plan.gin_file}, and it is not here: OUTPUT_DIR must be a folder that all "
            "workers share. Else take `limba run … --write_gin FILE` and launch/worker.sh FILE."
        )


# ----------------------------------------------------- the programs -------------------------------------------------


def _train_evaluate_answer(plan: Plan, overrides: Sequence[str]) -> tuple[AnyPath, dict[str, Any], float | None]:
    """Runs the programs that the plan needs, in this process.

    Returns:
      The checkpoint that the run is for; the results so far; the seconds that the answers took, None if there are none
      or they were there before.
    """
    checkpoint: AnyPath = plan.work / "initial"
    found: dict[str, Any] = {}
    if plan.keys.do_train:
        first_step = results.last_step(plan.out / "run")
        if plan.keys.of_trainer:
            first_step = first_step or results.last_step(plan.out / "initial")
        train.main([f"--gin_file={plan.gin_file}", *overrides])
        checkpoint = storage.as_path(distributed.from_first("trained", lambda: str(results.trained(plan))))
        found |= results.of_training(plan, checkpoint, first_step)
    elif plan.keys.do_eval:
        evaluation.main(_with_bindings(plan, *_evaluation(plan), overrides))
        if jax.process_index() == 0:
            found |= results.of_evaluation(plan.work / "eval", plan.eval_rows, plan.keys.row_answers)
    if not plan.keys.do_predict:
        return checkpoint, found, None
    was_there, began = results.is_answered(plan.work / _PREDICTIONS / checkpoint.name), time.monotonic()
    infer.main(_with_bindings(plan, *_prediction(plan, checkpoint), overrides))
    return checkpoint, found, None if was_there else time.monotonic() - began


def _evaluation(plan: Plan) -> tuple[str, dict[str, Any]]:
    """The gin file and the bindings that evaluate the model as it is, without a training."""
    folders = {"CHECKPOINT_PATH": str(plan.work / "initial"), "EVAL_OUTPUT_DIR": str(plan.work / "eval")}
    return "gin/runs/eval_run.gin", folders | plan.of_dataset("eval")


def _prediction(plan: Plan, checkpoint: AnyPath) -> tuple[str, dict[str, Any]]:
    """Those that answer the test split by a checkpoint; each has a folder, as a longer training has other answers."""
    answers = plan.work / _PREDICTIONS / checkpoint.name
    values: dict[str, Any] = {"CHECKPOINT_PATH": str(checkpoint), "INFER_OUTPUT_DIR": str(answers)}
    values |= {"infer/data.DatasetConfig.split": "test", **plan.of_dataset("infer")}
    return "gin/runs/predict_run.gin", values


def _with_bindings(plan: Plan, more: str, values: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """The arguments of a command that follows in this process: gin forgets those of the one before."""
    gin.clear_config()
    bindings = [f"--gin.{name}={value!r}" for name, value in values.items()]
    return [f"--gin_file={plan.gin_file}", f"--gin_file={more}", *bindings, *overrides]


def _check_gin(plan: Plan, text: str, model_gin: str, overrides: Sequence[str], starts: bool) -> None:
    """Reads a gin file as the programs of the run will, with the model as `_MODEL_GIN`. Raises what they would.

    Args:
      starts: checks the start of the training, too: of a dry run. A run looks itself, and the file of `--write_gin` is
        for others' devices.
    """
    text = text.replace(str(plan.named / "initial" / "model.gin"), _MODEL_GIN)
    masks_spans = not plan.is_encoder and not plan.keys.is_finetuning
    commands: list[tuple[str | None, dict[str, Any]]] = [(None, {})] if plan.keys.do_train else []
    if plan.keys.do_eval and not plan.keys.do_train:
        commands.append(_evaluation(plan))
    if plan.keys.do_predict:
        commands.append(_prediction(plan, plan.work / "initial"))
    with tempfile.TemporaryDirectory(prefix="limba-gin-") as folder:
        for name, content in (("run.gin", text), (_MODEL_GIN, model_gin)):
            (Path(folder) / name).write_text(content, "utf-8")
        for more, values in commands:
            gin.clear_config()
            given = [binding.removeprefix("--gin_bindings=") for binding in command_line.rewrite_gin_flags(overrides)]
            bindings = [*recipe.lines(values), *given]
            gin_files.parse_gin_flags([f"{folder}/run.gin", *([more] if more else [])], bindings, folder)
            if masks_spans:
                _check_sentinels(gin.query_parameter("masked_text.task.vocabulary"))
            if more is None and starts:
                _check_start(folder, overrides)
    gin.clear_config()


def _check_sentinels(reference: Any) -> None:
    """Raises ValueError if a T5's vocabulary for documents, as gin has it bound, has no sentinels."""
    from limba.tasks.vocabularies import sentencepiece_models

    sentencepiece_models.check_vocabulary(reference.scoped_configurable_fn())


def _check_start(folder: str, overrides: Sequence[str]) -> None:
    """The checks of `limba train --dry_run`, of a gin file whose vocabulary may be written by the run only."""
    file = gin_files.value_of("%VOCABULARY_FILE")
    if isinstance(file, str) and "://" not in file and not Path(file).is_file():
        logger.warning("Not checked: the start of the training, whose vocabulary %s the run writes.", file)
        return
    gin.clear_config()
    flags = [f"--gin_file={folder}/run.gin", f"--gin_search_paths={folder}", *overrides]
    with contextlib.redirect_stdout(io.StringIO()):  # the configuration
        train.main([*flags, "--gin.INITIAL_CHECKPOINT_PATH=()", "--dry_run"])


# ----------------------------------------------------- what is left --------------------------------------------------


def _finish(plan: Plan, checkpoint: AnyPath, found: dict[str, Any], seconds_of_answers: float | None) -> None:
    """Writes what the run leaves, exports and uploads the trained model."""
    if plan.keys.do_predict:
        found |= results.write_answers(plan, plan.work / _PREDICTIONS / checkpoint.name, seconds_of_answers)
    if plan.keys.do_train:
        results.export(plan, checkpoint)
        results.write_state(plan, checkpoint, found)
    results.write(plan, found)
    if found:
        print(json_text.dumps(found, ensure_ascii=False))


def _warn_of_changes(gin_file: Path, text: str) -> bool:
    """Warns of the lines that differ where a run is resumed with other values; whether there are any."""
    changes = earlier_run.changes(gin_file, text)
    if changes:
        logger.warning(
            "The run resumes with other values than before, which are refused where they change its data or optimizer; "
            "overwrite_output_dir begins a new run:\n%s",
            "\n".join(changes),
        )
    return bool(changes)
