"""From a request to its plan: the model, the data, an earlier run and the devices are looked up here, once."""

import argparse
import dataclasses
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limba.addons import table
from limba.addons.run import columns, data, starting_model, trackers
from limba.addons.run.keys.request import Request
from limba.addons.run.keys.row_answers import TEXT, WORD_TASKS
from limba.addons.run.output_dir import earlier_run, given_files, trainer_checkpoints
from limba.addons.run.plan import Plan
from limba.addons.run.starting_model import StartingModel
from limba.devices import native_logs
from limba.files.local_paths import local_path
from limba.network import own_layers

logger = logging.getLogger(__name__)

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


def make(
    request: Request, flags: argparse.Namespace, here: int, overrides: Sequence[str]
) -> tuple[Plan, StartingModel] | None:
    """The plan, and the model to begin with; None if a checkpoint of Hugging Face's Trainer leaves nothing to do.

    Args:
      flags: those of `limba run` that are no keys.
      here: the number of devices.
      overrides: bindings of gin.

    Raises:
      FileNotFoundError, ValueError: for all that a run would fail of, before anything is written.
    """
    if flags.num_devices is not None and (flags.num_devices < 1 or not flags.write_gin):
        raise ValueError(f"--num_devices is {flags.num_devices}; it is the number of a pod's devices, for --write_gin.")
    out, devices = local_path(request.output_dir), flags.num_devices or here
    of_trainer = trainer_checkpoints.keys_of(request, out)
    begun = dataclasses.replace(request, report_to=trackers.installed(request.trackers), **of_trainer)
    check_folder(begun, out)
    trackers.check(begun.trackers, overrides)
    if begun.pushes:
        _check_push(begun.hub_model_id or out.name, flags.dry_run)
    keys, model = _complete(begun)
    plan = _plan(keys, model, flags.write_gin, devices)
    if not of_trainer:
        return plan, model
    if (first := trainer_checkpoints.first_step(keys.of_trainer or "", plan.steps, out)) is not None:
        return plan, model.at_step(first)
    if not (keys.do_eval or keys.do_predict):
        return None
    return _plan(dataclasses.replace(keys, do_train=False), model, flags.write_gin, devices), model


def _complete(request: Request) -> tuple[Request, StartingModel]:
    """The request with what the data and the model say where no key does, and the model."""
    weights, network = request.model_name_or_path, request.config_name
    if weights is None and network is None:
        assert request.model_type is not None
        overrides = request.config_overrides or ""
        network = str(starting_model.default_config(request.model_type, request.tokenizer_name, overrides))
    if request.initialize_from_scratch:
        weights, network = None, network or weights
    is_t5 = starting_model.has_decoder(weights, network)
    with native_logs.filtered():
        of_texts = columns.of_t5(request) if is_t5 else {}
    read = dataclasses.replace(request, **of_texts)
    if is_t5:
        read.check_documents()
    model = starting_model.open_model(
        weights, network, request.tokenizer_name, read.ignored_config_keys, learns_sentinels=not read.is_finetuning
    )
    with native_logs.filtered():
        of_model = columns.of_encoder(read, model) if model.encoder is not None else _lengths_of_t5(read, model)
    keys = dataclasses.replace(read, **of_model)
    _check_network(keys, model)
    return keys, model.for_rows_with(keys.row_answers.network)


def _lengths_of_t5(request: Request, model: StartingModel) -> dict[str, Any]:
    """The lengths of texts where the labels or the tokenizer say them."""
    keys: dict[str, Any] = {}
    if request.is_finetuning and request.max_target_length is None:
        of_labels = data.length_of_labels(data.row_form(request), model.vocabulary)
        keys |= {} if of_labels is None else {"max_target_length": of_labels}
    length = data.within(request.inputs_length, None if request.has_own_length else model.tokenizer_length)
    return keys if length == request.inputs_length else {**keys, "max_seq_length": length}


def _plan(keys: Request, model: StartingModel, write_gin: str | None, devices: int) -> Plan:
    """The plan of complete keys.

    The gin file of `write_gin`, for other machines, names the folder as it was given: a relative one is found from
    where they run.
    """
    work = local_path(keys.output_dir) if write_gin else keys.work_folder
    with native_logs.filtered():  # The tasks of a user's own may bring TensorFlow in.
        corpus = data.find(keys)
        examples = data.count_examples(keys, corpus, model.vocabulary, model.encoder is not None)
    of_encoder: dict[str, Any] = {}
    if model.encoder is not None:
        of_encoder = {"is_encoder": True, "attention_dropout_rate": model.encoder.attention_dropout_rate}
    if model.encoder is not None and keys.is_finetuning:
        network = keys.row_answers.network
        of_encoder |= {"labels": columns.label_names(keys), "head": model.head_fields(network)}
        of_encoder["shared_modules"] = model.shared_modules(network)
    elif model.encoder is not None:
        of_encoder["frame"] = data.masked_lm(keys.mlm_probability, keys.use_nsp, model.vocabulary).frame
    return Plan(
        keys=keys,
        work=work,
        named=Path(keys.output_dir) if write_gin else work,
        gin_file=local_path(write_gin) if write_gin else work / "run.gin",
        corpus=corpus,
        examples=examples,
        devices=devices,
        dropout_rate=model.network.dropout_rate,
        vocab_size=model.network.vocab_size,
        has_weights=model.has_weights,
        held="" if write_gin else given_files.comment(keys),
        **of_encoder,
    )


def check_folder(request: Request, out: Path) -> None:
    """Raises ValueError for what would fail after the training has begun."""
    if out.is_file():
        raise ValueError(f"output_dir is {out}, which is a file; name a folder.")
    earlier_run.check(request, out)
    earlier_run.resumed_step(request.resume_from_checkpoint, out)
    is_kept = not request.do_train or request.overwrites
    is_kept = is_kept or trainer_checkpoints.to_go_on_from(request.do_train, out) is not None
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

    if not any(table.parts("upload")):
        raise ValueError("push_to_hub is true, and this Limba has no add-on that uploads (publish); leave it out.")
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
