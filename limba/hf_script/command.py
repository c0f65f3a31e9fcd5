r"""`limba run`: span-corruption training with the keys of a Hugging Face script, from a JSON file, flags, or both.

    limba run config.json
    limba run config.json --learning_rate 1e-4 --do_eval
    limba run --model_name_or_path google/t5-v1_1-small --train_file corpus.jsonl --output_dir runs/mine --do_train

The keys become a gin file, which is printed, kept as OUTPUT_DIR/run.gin and run. The same command resumes a run that
was stopped. `--dry_run` prints the gin file only. --gin.NAME=VALUE overrides what it binds.

OUTPUT_DIR at the end:
  config.json, model.safetensors, spiece.model …   the trained model, for `from_pretrained(OUTPUT_DIR)`
  all_results.json                                 losses and accuracy
  run.gin                                          for `limba train --gin_file=OUTPUT_DIR/run.gin`
  run/                                             checkpoints, metrics.jsonl, TensorBoard events
  initial/                                         the model that training began with
"""

import dataclasses
import difflib
import json
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from limba import train
from limba.checkpoints import checkpointing
from limba.hf_script import gin_recipe, script_keys
from limba.hf_script.script_keys import RunArguments
from limba.machine import native_logs
from limba.machine.local_paths import local_path
from limba.reports import writers
from limba.workers import distributed

logger = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Composes the configuration, trains, exports and uploads."""
    if not argv or any(flag in ("-h", "--help") for flag in argv):
        print(f"usage: limba run [CONFIG.json] [--key value …]\n\n{__doc__}\nkeys:\n{script_keys.help_text()}")
        return 0 if argv else 2
    overrides = [flag for flag in argv if flag.startswith("--gin.")]
    keys = [flag for flag in argv if flag != "--dry_run" and flag not in overrides]
    arguments, notes = script_keys.from_command_line(keys)
    for note in notes:
        logger.warning("%s", note)
    if arguments.hub_token:
        os.environ["HF_TOKEN"] = arguments.hub_token
    out = local_path(arguments.output_dir)
    _check(arguments, out)

    from convert import starting_model

    model = starting_model.open_model(arguments.model_name_or_path, arguments.config_name, arguments.tokenizer_name)
    text = _compose(arguments, model)
    print(text)
    if "--dry_run" in argv:
        return 0

    out.mkdir(parents=True, exist_ok=True)
    gin_file = out / "run.gin"
    _warn_of_changes(gin_file, text)
    (out / "run.json").write_text(json.dumps(arguments.without_secrets(), indent=2, ensure_ascii=False) + "\n", "utf-8")
    model.write(out / "initial")
    gin_file.write_text(text, "utf-8")
    train.main([f"--gin_file={gin_file}", *overrides])

    results = _results(out / "run")
    _export(out, arguments)
    (out / "all_results.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", "utf-8")
    print(json.dumps(results))
    return 0


def _check(arguments: RunArguments, out: Path) -> None:
    """Raises ValueError for what would fail after the training has begun."""
    if distributed.find_cluster({}) is not None:
        raise ValueError(
            "This is one of several processes, and `limba run` is for one. Make OUTPUT_DIR/run.gin on one "
            "machine with --max_steps 1, and give it to launch/worker.sh."
        )
    if out.is_file():
        raise ValueError(f"output_dir is {out}, which is a file; name a folder.")
    if (out / "run.json").is_file():
        before = json.loads((out / "run.json").read_text("utf-8"))
        for name in ("model_name_or_path", "config_name", "tokenizer_name"):
            if before.get(name) != (value := getattr(arguments, name)):
                raise ValueError(
                    f"{out} holds a run with {name} {before.get(name)!r}, and this one has {value!r}: choose another "
                    "output_dir."
                )
    source = arguments.model_name_or_path or arguments.config_name
    if source and local_path(source) in (out, out / "config.json"):
        raise ValueError(f"output_dir is {out}, the model to begin with, which the trained one would replace.")
    for name in ("config.json", "model.safetensors"):
        if (out / name).exists() and not (out / "run.json").is_file():
            raise ValueError(
                f"output_dir is {out}, and holds a {name} that no `limba run` has written there: it would be "
                "replaced. Choose another folder."
            )
    if arguments.pushes:
        _check_push(arguments.hub_model_id or out.name)


def _compose(arguments: RunArguments, model: Any) -> str:
    """The gin file of a training that begins with a `convert.starting_model` and reads the corpus."""
    devices = jax.device_count()
    with native_logs.filtered():  # This brings TensorFlow in.
        corpus = _corpus(arguments)
        num_examples, exact = _count_examples(arguments, corpus, model.vocabulary)
    steps, how_many = arguments.max_steps, "max_steps"
    if num_examples is not None:
        steps = gin_recipe.steps_of_epochs(arguments, num_examples, devices)
        about = "" if exact else "about "
        how_many = f"{arguments.num_train_epochs:g} epochs of {about}{num_examples:,} examples"
    initial = (model.step, model.dropout_rate, model.has_weights)
    return gin_recipe.compose(arguments, gin_recipe.Plan(corpus, num_examples, devices, steps, how_many, *initial))


def _check_push(repo: str) -> None:
    """Raises ValueError if the upload at the end cannot work."""
    from convert.hf import hub_models

    hf = hub_models.client()
    if not hf.get_token():
        raise ValueError(f"push_to_hub needs a token for {hf.constants.ENDPOINT}: {hub_models.TOKEN_REMEDY}.")
    try:
        hf.utils.validate_repo_id(repo)
    except hf.errors.HFValidationError as error:
        raise ValueError(f"hub_model_id (or the last part of output_dir) is {repo!r}: {error}") from error


def _corpus(arguments: RunArguments) -> gin_recipe.Corpus:
    """Where the documents are; without a validation split, and if there is to be an evaluation, a part of train."""
    from tasks.pretraining import masked_text

    files: dict[str, list[str]] | None = None
    if arguments.dataset_name is not None and Path(arguments.dataset_name).expanduser().is_dir():
        folder = local_path(arguments.dataset_name)
        name, files = folder.name, masked_text.files_of_folder(folder)
    elif arguments.train_file is not None:
        name = Path(arguments.train_file).stem
        given = {"train": arguments.train_file, "validation": arguments.validation_file}
        files = {
            split: [file if "://" in file else str(local_path(file))]
            for split, file in given.items()
            if file is not None
        }
    if files is not None:
        splits = list(files)
        corpus = gin_recipe.Corpus(gin_recipe.task_name(name), files)
    else:
        dataset, config = arguments.dataset_name, arguments.dataset_config_name
        splits = list(masked_text.open_source(None, dataset, config, None, arguments.text_column_name).splits)
        corpus = gin_recipe.Corpus(gin_recipe.task_name(f"{dataset}_{config or ''}"), None, dataset, config)
    if "validation" in splits or not arguments.do_eval:
        return corpus
    share = arguments.validation_split_percentage
    logger.info("There is no validation split: the first %d %% of the training documents are held out.", share)
    return dataclasses.replace(corpus, splits={"train": f"train[{share}%:]", "validation": f"train[:{share}%]"})


def _count_examples(arguments: RunArguments, corpus: gin_recipe.Corpus, vocabulary: Any) -> tuple[int | None, bool]:
    """Training examples of an epoch, and whether that is exact; None if `max_steps` is given.

    Opens the splits in any case, which finds missing files and columns now.
    """
    from tasks import objectives
    from tasks.pretraining import masked_text

    column = arguments.text_column_name
    source = masked_text.open_source(corpus.files, corpus.dataset, corpus.dataset_config, corpus.splits, column)
    for split in ("train", "validation") if arguments.do_eval else ("train",):
        source.check(split)
    if arguments.max_steps > 0:
        return None, True
    opened = masked_text.open_vocabulary(vocabulary)
    objective = objectives.SpanCorruption(arguments.mlm_probability, arguments.mean_noise_span_length)
    return masked_text.count_examples(source, "train", column, opened, objective, arguments.max_seq_length)


def _warn_of_changes(gin_file: Path, text: str) -> None:
    """Warns of the lines that differ where a run is resumed with other values."""
    if gin_file.is_file():
        before = gin_file.read_text("utf-8").splitlines()
        changes = [line for line in difflib.ndiff(before, text.splitlines()) if line.startswith(("- ", "+ "))]
        if changes:
            logger.warning("The run resumes with other values than before:\n%s", "\n".join(changes))


def _results(model_dir: Path) -> dict[str, Any]:
    """Hugging Face's `all_results.json`, from the run's own record."""
    results: dict[str, Any] = {}
    training = [line for line in writers.read_metrics(model_dir) if line["dataset"] == "train"]
    if training:
        last = training[-1]
        results |= {"step": last["step"], "train_loss": last["loss"]}
    evaluations = writers.read_metrics(model_dir, "training_eval/")
    if evaluations:
        last = evaluations[-1]
        loss = last["nats_per_target_token"]
        results |= {"step": last["step"], "eval_loss": loss, "eval_accuracy": last["accuracy"]}
        results["perplexity"] = math.exp(min(loss, 100.0))
    return results


def _export(out: Path, arguments: RunArguments) -> None:
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
