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
import dataclasses
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
from limba.addons.run import (
    earlier_run,
    encoder_rows,
    gin_recipe,
    given_files,
    outcome,
    refused_starts,
    result_files,
    script_data,
    text_rows,
    trackers,
    trainer_checkpoints,
)
from limba.addons.run.keys import script_keys
from limba.addons.run.keys.request import Request
from limba.addons.run.keys.row_answers import TEXT, WORD_TASKS
from limba.checkpoint_files import run_folder
from limba.devices import native_logs
from limba.files import json_text, redaction, storage, written_files
from limba.files.local_paths import local_path
from limba.files.storage import AnyPath
from limba.gin_config import gin_files, recipe
from limba.network import own_layers
from limba.workers import distributed, launchers

logger = logging.getLogger(__name__)

# The model to begin with, where a gin file is only checked.
_MODEL_GIN = "model_of_the_run.gin"
_PREDICTIONS = "predictions"
# Keys that ask for an encoder, and what there is of a T5 in place of it.
_OF_ENCODERS = {
    "whole_word_mask": "a T5 learns masked spans",
    "use_nsp": "a T5 has no pairs of sentences",
    "task": "a T5 learns span_corruption or prefix_lm",
    "task_name": "a T5 answers with texts, not with a label for each word",
    "answers": "a T5 answers with texts",
    "do_regression": "a T5 writes numbers as texts: write metric_names pearson_corrcoef",
    **dict.fromkeys(
        ("return_entity_level_metrics", "label_all_tokens"), "a T5 answers with texts, not with a label for each word"
    ),
}


def main(argv: Sequence[str]) -> int:
    """Composes the configuration, trains, evaluates, predicts, exports and uploads, as the keys say."""
    if not argv or any(flag in ("-h", "--help") for flag in argv):
        print(f"usage: limba run [SCRIPT] [CONFIG.json] [--key value …]\n\n{__doc__}\nkeys:\n{script_keys.help_text()}")
        return 0 if argv else 2
    overrides = [flag for flag in argv if flag.startswith("--gin.")]
    flags, keys = _flags().parse_known_args([flag for flag in argv if flag not in overrides])
    request, notes = script_keys.from_command_line(keys, launchers.mixed_precision(os.environ))
    request = trackers.without_absent(request)
    for note in [*notes, *launchers.without_effect(os.environ)]:
        logger.warning("%s", note)
    if request.hub_token:
        os.environ["HF_TOKEN"] = request.hub_token
    for file in filter(None, (request.train_file, request.validation_file, request.test_file)):
        redaction.hide(
            file
        )  # In all processes: worker 0 alone writes the gin file, which has URLs without credentials.
    command_line.join_others(flags)
    out = local_path(request.output_dir)
    here = jax.device_count()  # by all processes at once: their devices find each other
    with refused_starts.put_back(out) as start:
        planned = distributed.from_first("gin file", lambda: _prepare(request, start, flags, here, overrides))
        if planned is None:
            return 0
        plan = result_files.Plan(**planned)
        request = dataclasses.replace(request, **plan.found)
        if not Path(plan.gin_file).is_file():
            raise ValueError(
                f"Worker 0 has written {plan.gin_file}, and it is not here: OUTPUT_DIR must be a folder that all "
                "workers share. Else take `limba run … --write_gin FILE` and launch/worker.sh FILE."
            )
        results: dict[str, Any] = {}
        work = script_data.work_folder(request)
        checkpoint: AnyPath = work / "initial"
        if request.do_train:
            goes_on = trainer_checkpoints.is_taken(request)
            first_step = result_files.last_step(out / "run") or goes_on * result_files.last_step(out / "initial")
            train.main([f"--gin_file={plan.gin_file}", *overrides])
            trained = distributed.from_first("trained", lambda: str(outcome.trained(out / "run", request)))
            checkpoint = storage.as_path(trained)
            results |= result_files.of_training(out, checkpoint, plan, first_step)
        elif request.do_eval:
            evaluation.main(_with_bindings(plan.gin_file, *_evaluation(work, request), overrides))
            if jax.process_index() == 0:
                results |= outcome.of_evaluation(work / "eval", plan.eval_rows, request.row_answers)
        seconds_of_answers: float | None = None
        if request.do_predict:
            was_there, began = outcome.is_answered(work / _PREDICTIONS / checkpoint.name), time.monotonic()
            infer.main(_with_bindings(plan.gin_file, *_prediction(work, request, checkpoint), overrides))
            seconds_of_answers = None if was_there else time.monotonic() - began
    # The others wait: a run whose processes end before the first one's export is finished would be taken for broken.
    distributed.from_first("export", lambda: _finish(out, checkpoint, request, plan, results, seconds_of_answers))
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


def _prepare(
    request: Request, start: refused_starts.Start, flags: argparse.Namespace, here: int, overrides: Sequence[str]
) -> dict[str, Any] | None:
    """Checks everything, and writes the model to begin with and the gin file.

    Returns the fields of `result_files.Plan`; None if there is nothing more to do: of `--dry_run`, which has all the
    checks of a run, and `--write_gin`. `here` is the number of devices, `overrides` are bindings of gin.
    """
    if flags.num_devices is not None and (flags.num_devices < 1 or not flags.write_gin):
        raise ValueError(f"--num_devices is {flags.num_devices}; it is the number of a pod's devices, for --write_gin.")
    out = start.out
    of_trainer = trainer_checkpoints.keys_of(request, out)
    request = dataclasses.replace(request, **of_trainer)
    _check(request, out)
    trackers.check(request, overrides)
    if request.pushes:
        _check_push(request.hub_model_id or out.name, flags.dry_run)

    from limba.addons.run import starting_model

    found: dict[str, Any] = {}
    if starting_model.has_decoder(*_names(request)[:2]):
        with native_logs.filtered():
            found = text_rows.found(request)
        request = dataclasses.replace(request, **found)
        request.check_documents()
    learns_spans = not request.is_finetuning
    model = starting_model.open_model(*_names(request), request.ignored_config_keys, learns_spans)
    with native_logs.filtered():
        complete = script_data.lengths_of_t5 if model.encoder is None else encoder_rows.found
        found |= complete(request, model)
    request = dataclasses.replace(request, **found)
    _check_network(request, model)
    model = model.for_rows_with(request.row_answers.network)
    devices = flags.num_devices or here
    work, named = _folders(request, flags)
    text, counted = _compose(request, model, named, devices)
    if of_trainer:
        if (first := trainer_checkpoints.first_step(request, counted["steps"], out)) is not None:
            model = model.at_step(first)
        elif request.do_eval or request.do_predict:
            of_trainer["do_train"] = False
            request = dataclasses.replace(request, do_train=False)
            work, named = _folders(request, flags)
            text, counted = _compose(request, model, named, devices)
        else:
            return None
    _check_gin(request, work, named, text, model, overrides, flags)
    if not flags.write_gin:
        text += given_files.comment(request)
    _print_gin(text, named, model, flags)
    gin_file = local_path(flags.write_gin) if flags.write_gin else work / "run.gin"
    if flags.dry_run:
        if request.do_train and not (flags.write_gin or request.overwrites):
            _warn_of_changes(gin_file, text)
        return None
    _make_folder(work, empty=work != out)  # An earlier evaluation was perhaps of other weights.
    if request.do_train and not flags.write_gin:
        start.keep_files()
        start.moved = earlier_run.make_room(request, out, text)
        model = model.kept_in(start.moved) if model.path == out and start.moved is not None else model
    if _warn_of_changes(gin_file, text) and not flags.write_gin:
        start.set_aside(out / _PREDICTIONS)
    keys = json_text.dumps(request.without_secrets(), indent=2, ensure_ascii=False)
    storage.replace_text(work / "run.json", f"{redaction.redact(keys)}\n")
    model.write(work / "initial")
    if flags.write_gin:
        for name in (run_folder.VOCABULARY, run_folder.TOKENIZER):
            if (work / "initial" / name).is_file():
                text += f"\nVOCABULARY_FILE = {str(named / 'initial' / name)!r}\n"
        gin_file.parent.mkdir(parents=True, exist_ok=True)
    (written_files.write_text if flags.write_gin else storage.replace_text)(gin_file, text)
    if not flags.write_gin:
        return {"gin_file": str(gin_file), "found": {**of_trainer, **found}, **counted}
    print(
        f"{gin_file} is written. On every worker {named / 'initial'} must be what it is here; then:\n"
        f"  bash launch/worker.sh {flags.write_gin} --gin.MODEL_DIR=\"'gs://my-bucket/runs/mine'\""
    )
    return None


def _print_gin(text: str, named: Path, model: Any, flags: argparse.Namespace) -> None:
    """Prints the gin file where it is not written alone; of a dry run, that of the model too, which is not written."""
    if flags.dry_run or not flags.write_gin:
        print(text)
    if flags.dry_run:
        print(f"# {named / 'initial' / 'model.gin'}, which the run writes:\n{model.gin}")


def _folders(request: Request, flags: argparse.Namespace) -> tuple[Path, Path]:
    """The folder of the files that are no results, and as the gin file names it.

    A file for other machines names it as it was given: a relative one is found from where they run.
    """
    if flags.write_gin:
        return local_path(request.output_dir), Path(request.output_dir)
    work = script_data.work_folder(request)
    return work, work


def _make_folder(folder: Path, empty: bool) -> None:
    """Raises ValueError if the results would be written through a link of somebody else's folder."""
    if empty:
        written_files.refuse_link(folder)
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("run", "initial", "eval", "evaluated", ".exported", _PREDICTIONS):
        written_files.refuse_link(folder / name)
    folder.mkdir(parents=True, exist_ok=True)


def _names(request: Request) -> tuple[str | None, str | None, str | None]:
    """The model with its weights, or else the network alone, and the tokenizer, as `open_model` takes them."""
    from limba.addons.run import starting_model

    model, config = request.model_name_or_path, request.config_name
    if model is None and config is None:
        assert request.model_type is not None
        overrides = request.config_overrides or ""
        config = str(starting_model.default_config(request.model_type, request.tokenizer_name, overrides))
    if request.initialize_from_scratch:
        model, config = None, config or model
    return model, config, request.tokenizer_name


def _check_gin(
    request: Request,
    out: Path,
    named: Path,
    text: str,
    model: Any,
    overrides: Sequence[str],
    flags: argparse.Namespace,
) -> None:
    """Reads a gin file as the commands of the run will, with the model as `_MODEL_GIN`. Raises what they would.

    A dry run checks the start of the training, too: a run looks itself, and the file of `--write_gin` is for others'
    devices.
    """
    text = text.replace(str(named / "initial" / "model.gin"), _MODEL_GIN)
    masks_spans = model.encoder is None and not request.is_finetuning
    commands: list[tuple[str | None, dict[str, Any]]] = [(None, {})] if request.do_train else []
    if request.do_eval and not request.do_train:
        commands.append(_evaluation(out, request))
    if request.do_predict:
        commands.append(_prediction(out, request, out / "initial"))
    with tempfile.TemporaryDirectory(prefix="limba-gin-") as folder:
        for name, content in (("run.gin", text), (_MODEL_GIN, model.gin)):
            (Path(folder) / name).write_text(content, "utf-8")
        for more, values in commands:
            gin.clear_config()
            given = [binding.removeprefix("--gin_bindings=") for binding in command_line.rewrite_gin_flags(overrides)]
            bindings = [*recipe.lines(values), *given]
            gin_files.parse_gin_flags([f"{folder}/run.gin", *([more] if more else [])], bindings, folder)
            if masks_spans:
                script_data.check_vocabulary(gin.query_parameter("masked_text.task.vocabulary"))
            if more is None and flags.dry_run and not flags.write_gin:
                _check_start(folder, overrides)
    gin.clear_config()


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


def _evaluation(out: Path, request: Request) -> tuple[str, dict[str, Any]]:
    """The gin file and the bindings that evaluate the model as it is, without a training."""
    values: dict[str, Any] = {"CHECKPOINT_PATH": str(out / "initial"), "EVAL_OUTPUT_DIR": str(out / "eval")}
    return "gin/runs/eval_run.gin", values | _of_dataset("eval", request)


def _prediction(out: Path, request: Request, checkpoint: AnyPath) -> tuple[str, dict[str, Any]]:
    """Those that answer the test split by a checkpoint; each has a folder, as a longer training has other answers."""
    answers = out / _PREDICTIONS / checkpoint.name
    values: dict[str, Any] = {"CHECKPOINT_PATH": str(checkpoint), "INFER_OUTPUT_DIR": str(answers)}
    values |= {"infer/data.DatasetConfig.split": "test", **_of_dataset("infer", request)}
    return "gin/runs/predict_run.gin", values


def _of_dataset(role: str, request: Request) -> dict[str, Any]:
    """The bindings of a data set that is evaluated or answered: the length of its targets is that of the answers."""
    values: dict[str, Any] = {"batch_size": request.per_device_eval_batch_size * jax.device_count()}
    if request.is_finetuning:
        values["task_feature_lengths"] = gin_recipe.feature_lengths(request, request.answer_length)
    return {f"{role}/data.DatasetConfig.{name}": value for name, value in values.items()}


def _with_bindings(gin_file: str, more: str, values: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """The arguments of a command that follows in this process: gin forgets those of the one before."""
    gin.clear_config()
    bindings = [f"--gin.{name}={value!r}" for name, value in values.items()]
    return [f"--gin_file={gin_file}", f"--gin_file={more}", *bindings, *overrides]


def _finish(
    out: Path,
    checkpoint: AnyPath,
    request: Request,
    plan: result_files.Plan,
    results: dict[str, Any],
    seconds_of_answers: float | None,
) -> None:
    """Writes what the run leaves, exports and uploads the trained model."""
    if request.do_predict:
        answers = script_data.work_folder(request) / _PREDICTIONS / checkpoint.name
        results |= outcome.write_answers(answers, out, request, seconds_of_answers)
    if request.do_train:
        outcome.export(out, checkpoint, request)
        result_files.write_state(out, checkpoint, request, plan, results)
    result_files.write(out, results, request)
    if results:
        print(json_text.dumps(results, ensure_ascii=False))


def _check(request: Request, out: Path) -> None:
    """Raises ValueError for what would fail after the training has begun."""
    if out.is_file():
        raise ValueError(f"output_dir is {out}, which is a file; name a folder.")
    earlier_run.check(request, out)
    earlier_run.resumed_step(request, out)
    is_kept = not request.do_train or request.overwrites
    is_kept = is_kept or trainer_checkpoints.to_go_on_from(request, out) is not None
    for name in ("config.json", "model.safetensors", "README.md", "trainer_state.json", "all_results.json"):
        if (out / name).exists() and not (out / "run.json").is_file() and not is_kept:
            raise ValueError(
                f"output_dir is {out}, and holds the file {name}, which no `limba run` has written there: it would "
                "be replaced. Choose another folder, with model_name_or_path "
                f"{out} to begin with its weights, if it is a model; or write overwrite_output_dir, which moves such "
                "files into a folder before_1 there."
            )
    above = next(folder for folder in out.parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"output_dir is {out}, and nothing can be written in {above}; name another folder.")


def _compose(request: Request, model: Any, out: Path, devices: int) -> tuple[str, dict[str, Any]]:
    """The gin file of a training that begins with a `limba.addons.run.starting_model` and reads the corpus.

    Returns:
      It, and the other fields of `result_files.Plan`.
    """
    with native_logs.filtered():  # The tasks of a user's own may bring TensorFlow in.
        corpus = script_data.find(request)
        examples = script_data.count_examples(request, corpus, model.vocabulary, model.encoder is not None)
    steps, how_many = max(request.max_steps, 0), "max_steps"
    if examples.number is not None and request.max_steps < 0:
        steps = gin_recipe.steps_of_epochs(request, examples, devices)
        about = "" if examples.is_exact else "about "
        how_many = f"{request.num_train_epochs:g} epochs of {about}{examples.number:,} examples"
    initial = (model.network.dropout_rate, model.has_weights, model.network.vocab_size, model.encoder)
    of_encoder: dict[str, Any] = {}
    if model.encoder is not None and request.is_finetuning:
        network = request.row_answers.network
        of_encoder["labels"] = encoder_rows.label_names(request)
        of_encoder |= {"head": model.head_fields(network), "shared_modules": model.shared_modules(network)}
    elif model.encoder is not None:
        of_encoder["frame"] = script_data.masked_lm(request, model.vocabulary).frame
    plan = gin_recipe.Plan(corpus, out, examples, devices, steps, how_many, *initial, **of_encoder)
    counted: dict[str, Any] = {
        "rows": gin_recipe.batch_size(request, devices),
        "eval_rows": request.per_device_eval_batch_size * devices,
        "steps": steps,
    }
    if examples.number is not None and examples.is_exact:
        one = dataclasses.replace(request, num_train_epochs=1.0)
        counted["steps_of_epoch"] = gin_recipe.steps_of_epochs(one, examples, devices)
        counted["train_samples"] = examples.number
    return gin_recipe.compose(request, plan), counted


def _check_network(request: Request, model: Any) -> None:
    """Raises ValueError for keys that the network has no use for; warns if no class of Hugging Face holds it."""
    if model.encoder is None:
        for name in own_layers.of(model.network):
            own_layers.attention_class(name)  # Not only its name: a class of PyTorch cannot be trained.
        for name, instead in _OF_ENCODERS.items():
            value = getattr(request, name)
            if value in (True, "masked_lm", *WORD_TASKS) or (name == "answers" and value != TEXT):
                said = "true" if value is True else repr(value)
                raise ValueError(f"{name} is {said}, and belongs to encoders; {instead}.")
    elif not request.is_finetuning:
        if model.labels:
            raise ValueError(
                f"{model.path} is a {model.head.class_name} of {', '.join(model.labels)}, which learns rows with "
                "labels: name their columns with text_column_name and label_column_name."
            )
        if request.task not in (None, "masked_lm"):
            raise ValueError(f"task is {request.task!r}, and {model.path} is an encoder, which learns masked tokens.")
        request.check_documents()
    if model.no_export:
        if request.pushes:
            raise ValueError(f"push_to_hub uploads an export. {model.no_export}")
        logger.warning("%s", model.no_export)


def _check_push(repo: str, is_dry: bool) -> None:
    """Raises ValueError if the upload at the end cannot work. A dry run needs no token, and warns."""
    from limba.convert.model_files.hf import hub_models

    hf = hub_models.client()
    if not hf.get_token():
        needed = f"push_to_hub needs a token for {hf.constants.ENDPOINT}: {hub_models.TOKEN_REMEDY}."
        if not is_dry:
            raise ValueError(needed)
        logger.warning("%s", needed)
    try:
        hf.utils.validate_repo_id(repo)
    except hf.errors.HFValidationError as error:
        raise ValueError(f"hub_model_id (or the last part of output_dir) is {repo!r}: {error}") from error


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
