"""Encoders on disk: a checkpoint of Limba, a Hugging Face folder, or a file of a PyTorch training script."""

import dataclasses
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limba.checkpoint_files import pretraining_parts, run_folder, saved_average, state_checksums
from limba.checkpoint_files.saved_tensors import Index, SavedTensor, from_array
from limba.convert.families import heads, networks
from limba.convert.families.config_files import encoder_config
from limba.convert.families.config_files.encoder_config import ConfigFile
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.convert.families.heads import Head
from limba.convert.families.table import find_encoder
from limba.convert.model_files import encoder_vocabularies, lora_merge
from limba.convert.model_files.hf import hf_folder, tokenizer_settings
from limba.convert.model_files.hf.tokenizer_folder import FILE
from limba.convert.model_files.model import NO_HINTS, EncoderModel, Folder, ModelHints
from limba.convert.tensors import table, tensor_parts, weight_files
from limba.files.output_folder import read_report
from limba.files.storage import AnyPath
from limba.network.encoders.config import EncoderConfig
from limba.network.encoders.encoder import num_unscanned_layers

_PARAMETERS = "target/"


def check_hints(hints: ModelHints) -> None:
    """Raises ValueError for what only T5s are asked."""
    for field in ("family", "mlp_activations", "extra_ids"):
        if (given := getattr(hints, field)) is not None:
            raise ValueError(f"--{field} {given}: this is an encoder, whose files say all of it; leave it out.")


# ----------------------------------------------------- a checkpoint --------------------------------------------------


def open_checkpoint(path: AnyPath, hints: ModelHints = NO_HINTS) -> EncoderModel:
    """Opens a checkpoint of Limba; see `any_format.open_model`. The hints' `vocab` is a tokenizer.json."""
    check_hints(hints)
    info = run_folder.load_run_info(path)
    if hints.generator:
        info = _of_generator(info, path)
    head = heads.of_run(info, path)
    try:
        config = EncoderConfig.from_json(info["network"])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path}/run/run.json does not describe an EncoderConfig of this version ({error})."
        ) from error
    family = find_encoder(config, head)
    of_model = saved_average.chosen(state_checksums.open_tensors(path), path, hints.average)
    if hints.generator:
        of_model = pretraining_parts.of_generator(of_model, path)
    saved = lora_merge.chosen(of_model, path, hints.without_lora)
    parameters = {n.removeprefix(_PARAMETERS): t for n, t in saved.items() if n.startswith(_PARAMETERS)}
    found = _unrolled(parameters, config)
    config = dataclasses.replace(config, scan_layers=False, remat_policy="none", family=family.name)
    whole = networks.shapes(config, head)
    table.verify(f"The checkpoint {path}", {n: t.shape for n, t in found.items()}, whole)
    head = family.held(head)
    wanted = networks.shapes(config, head)
    return EncoderModel(
        path=path,
        format="Limba",
        family=family,
        config=config,
        head=head,
        tensors={name: found[name] for name in wanted},
        vocabulary=encoder_vocabularies.of_checkpoint(path, info.get("vocabulary") or {}, hints),
        step=int(np.asarray(saved["state/step"])) if "state/step" in saved else 0,
        info=info,
        not_held=tuple(name for name in whole if name not in wanted),
        tokenizer_settings=tokenizer_settings.of_checkpoint(path),
    )


def _of_generator(info: Mapping[str, Any], path: AnyPath) -> dict[str, Any]:
    """What `run.json` would say of a run of the generator alone. Raises ValueError for a run that has none."""
    if "generator" not in info:
        raise ValueError(f"{path} has no generator: it is not of a pre-training with models.ElectraModel.")
    return {**info, "network": info["generator"], "head": None}


def _unrolled(saved: Mapping[str, SavedTensor], config: EncoderConfig) -> dict[str, SavedTensor]:
    """The parameters by the names of unrolled layers; see `limba.network.encoders.encoder` for the scanned ones."""
    first, period = num_unscanned_layers(config), config.global_attention_every
    found = {}
    for name, tensor in saved.items():
        inside = re.fullmatch(r"encoder/encoder/(?:layers_(\d+)/)?(.*)", name)
        if inside is None:
            found[name] = tensor
            continue
        axis = min(config.param_scan_axis, tensor.ndim - 1)
        for number in range(tensor.shape[axis]):
            layer = first + number * period + int(inside[1] or 0)
            found[f"encoder/layers_{layer}/{inside[2]}"] = _layer(tensor, axis, number)
    return found


def _layer(tensor: SavedTensor, axis: int, number: int) -> SavedTensor:
    def read(index: Index) -> np.ndarray:
        return np.squeeze(tensor.read((*index[:axis], slice(number, number + 1), *index[axis:])), axis)

    return SavedTensor(tensor.shape[:axis] + tensor.shape[axis + 1 :], tensor.dtype, read)


# ------------------------------------------------------- a folder ----------------------------------------------------


def open_folder(
    path: Path, hints: ModelHints = NO_HINTS, format_: str | None = None, keeps_pooler: bool = False
) -> EncoderModel:
    """Opens a Hugging Face folder; see `any_format.open_model`. The hints' `vocab` is a tokenizer.json with its ids.

    A folder of the encoder alone, such as a BertModel, gets a new head. `keeps_pooler` takes a masked language model
    whose files have BERT's pooler too, as most have, with the head of sentence pairs, which a classifier begins with.

    Raises:
      FileNotFoundError: if it has no weights.
      ValueError: if it is damaged, or Limba does not have its network.
    """
    check_hints(hints)
    found, _ = weight_files.find(path, format_)
    if found == "flax":
        raise ValueError(
            f"{path} has weights of Flax alone: load it in transformers 4 with from_flax=True, and save it."
        )
    step = hf_folder.training_step(path, read_report(path))
    return _open(path, hints.config_file or path / "config.json", found, step, hints, keeps_pooler)


def open_weights(file: Path, config_file: Path, hints: ModelHints = NO_HINTS) -> EncoderModel:
    """Opens a file that a PyTorch training script saved; see `any_format.open_weights`."""
    check_hints(hints)
    places = [place for place in (config_file.parent, file.parent) if (place / FILE).is_file()]
    if hints.vocab is None and places:
        hints = dataclasses.replace(hints, vocab=str(places[0]))
    return _open(file, config_file, "torch", hf_folder.step_of_weights(file), hints)


def _open(
    path: Path, config_file: Path, format_: str, step: tuple[int, str], hints: ModelHints, keeps_pooler: bool = False
) -> EncoderModel:
    read = encoder_config.read(config_file, hints.ignore_config_keys)
    family, config, head = read.family, read.network, read.head
    # The rows of the embedding are the tokenizer's. config.json often has the class's default, which nobody changed.
    folder = path if path.is_dir() else config_file.parent
    vocabulary, pad_id = encoder_vocabularies.of_folder(folder, read.pad_id, hints)
    if pad_id != read.pad_id:
        _check_padding(config_file, read, pad_id)
    if path.is_dir():
        weights = family.newer_names(weight_files.open_tensors(path, format_, family.buffers))
    else:
        weights = family.newer_names(weight_files.open_file(path, family.buffers))
    if keeps_pooler and head == heads.OF_MASKED_LM and _has_pooler(weights, family):
        head = heads.OF_PAIRS
    wanted = family.table(config, head, pad_id)
    is_tied = family.completed(read.content).get("tie_word_embeddings") is not False
    given, left_out = _named(weights, {t.name for t in wanted}, family, path, is_tied)
    if config.num_layers > len(given):
        raise ValueError(
            f"{config_file}: num_hidden_layers is {config.num_layers}, and {path} has {len(given)} tensors; they "
            "do not belong together."
        )
    of_head = [t for t in wanted if not t.name.startswith(f"{family.prefix}.")]
    is_headless = head.kind == heads.MASKED_LM and bool(of_head) and not any(t.name in given for t in of_head)
    if keeps_pooler and head == heads.OF_PAIRS:
        is_headless = any(t.name not in given and t.constant is None for t in of_head)
    if is_headless:
        # First: of other sizes than the tensors a new head may have any number of values.
        there = {t.name: t.shape for t in wanted if t.constant is None and (t.name in given or t not in of_head)}
        table.verify(str(path), {name: tensor.shape for name, tensor in given.items() if name in there}, there)
        given = _new_head(config, family, pad_id, head) | given
    stored = {
        t.name: given.pop(t.name, from_array(t.constant)) for t in wanted if t.name in given or t.constant is not None
    }
    table.verify(str(path), {n: t.shape for n, t in (stored | given).items()}, {t.name: t.shape for t in wanted})
    return EncoderModel(
        path=path,
        format="Hugging Face",
        family=family,
        config=config,
        head=head,
        tensors=table.limbas(wanted, stored),
        vocabulary=vocabulary,
        step=step[0],
        step_from=step[1],
        folder=Folder(
            content={**read._replace(head=head).explicit, "pad_token_id": pad_id},
            stored=stored,
            format=format_,
            pad_id=pad_id,
            is_headless=is_headless,
            left_out=left_out,
            config_file=hints.config_file,
            tokenizer=folder if hints.vocab is None else None,
        ),
        ignored_config_keys=hints.ignore_config_keys,
        tokenizer_settings=dataclasses.replace(tokenizer_settings.beside(path, hints.vocab), pad_id=pad_id),
    )


def _check_padding(config_file: Path, read: ConfigFile, pad_id: int) -> None:
    """Says that config.json has another padding than the tokenizer. Raises ValueError if the network counts by it."""
    differ = f"{config_file}: pad_token_id is {read.pad_id}, and the tokenizer's padding is {pad_id}."
    if read.family.first_position(read.pad_id) != read.family.first_position(pad_id):
        raise ValueError(
            f"{differ} {read.family.title} begins its positions behind pad_token_id, and gives that token none. "
            f"Exchange the tokens {pad_id} and {read.pad_id} in the tokenizer, and their rows in the embedding and in "
            "the output's bias."
        )
    print(f"warning: {differ} Limba and its exports take the tokenizer's.", file=sys.stderr)


def _named(
    found: Mapping[str, SavedTensor], wanted: Collection[str], family: EncoderFamily, path: Path, is_tied: bool
) -> tuple[dict[str, SavedTensor], tuple[str, ...]]:
    """The tensors by the names that the class has now, without copies, and the names of those that it does not need.

    Raises:
      ValueError: if the output is not the embedding.
    """
    own = any(name.startswith(f"{family.prefix}.") for name in found)
    named = {}
    for name, tensor in found.items():
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        named[name if own else f"{family.prefix}.{name}"] = tensor
    if f"{family.output}.weight" not in wanted:
        _leave_copies_out(named, family, path, is_tied)
    ignored = re.compile(family.ignored)
    useless = [name for name in named if ignored.search(name) and name not in wanted]
    return {name: t for name, t in named.items() if name not in useless}, tuple(useless)


def _leave_copies_out(named: dict[str, SavedTensor], family: EncoderFamily, path: Path, is_tied: bool) -> None:
    """Leaves out the output where it is the embedding. Raises ValueError if it is not."""
    embedding = next(row.theirs for row in family.rows if row.limba == "token_embedder")
    bias = next(row.theirs for row in family.heads[heads.MASKED_LM].rows if row.limba == "mlm_head")
    output = family.output
    if not is_tied and f"{bias}.bias" in named and f"{output}.weight" not in named:
        raise ValueError(
            f"{path}/config.json says that the output has its own matrix (tie_word_embeddings: false), but there is no "
            f"{output}.weight."
        )
    for copy, of in ((f"{output}.weight", f"{embedding}.weight"), (f"{output}.bias", f"{bias}.bias")):
        if copy == of or copy not in named:
            continue
        if of in named and not tensor_parts.equal(named[copy], named[of]):
            raise ValueError(f"{path}: {copy} is not {of}; the output of Limba's encoders is their embedding.")
        named.setdefault(of, named.pop(copy))


def _has_pooler(weights: Collection[str], family: EncoderFamily) -> bool:
    """Whether tensors, by Hugging Face's names, have the pooler that a class of the family has."""
    rows = family.heads[heads.PAIRS].rows if heads.PAIRS in family.heads else ()
    names = [f"{row.theirs}.weight" for row in rows if row.limba == "classifier_head/dense"]
    return any(name in weights or name.removeprefix(f"{family.prefix}.") in weights for name in names)


def _new_head(config: EncoderConfig, family: EncoderFamily, pad_id: int, head: Head) -> dict[str, SavedTensor]:
    """The tensors of a head as a new network has them, without the pooler, which is there."""
    rng = np.random.default_rng(0)
    ours = {}
    for name, shape in networks.shapes(config, head).items():
        if name.endswith("/kernel"):
            new = rng.normal(0, config.initializer_range, shape)
        else:
            new = np.ones(shape) if name.endswith("/scale") else np.zeros(shape)
        if name.startswith(("mlm_head/", "pair_head/")):
            ours[name] = from_array(new.astype(np.float32))
    rows = family.table(config, head, pad_id)
    return {t.name: t.stored(ours) for t in rows if t.parts and all(part.limba in ours for part in t.parts)}
