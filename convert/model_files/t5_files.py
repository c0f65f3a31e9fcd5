"""T5s on disk: a checkpoint of Limba or T5X, a Hugging Face folder, or a file of a PyTorch training script."""

import dataclasses
import functools
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from limba.checkpoint_files import layer_layouts, run_folder, saved_average, state_checksums
from limba.checkpoint_files.run_folder import BYTES, SENTENCEPIECE
from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.convert.families import heads, networks
from limba.convert.families.config_files import other_models, t5_config
from limba.convert.families.heads import Head
from limba.convert.families.t5_family import TRANSFORMER, T5Family
from limba.convert.families.table import find_t5, t5_config_class, t5_families
from limba.convert.model_files import lora_merge, t5_vocabularies
from limba.convert.model_files.hf import hf_folder, tokenizer_settings
from limba.convert.model_files.model import NO_HINTS, Folder, ModelHints, T5Model
from limba.convert.tensors import table, tensor_parts, weight_files
from limba.convert.tensors.table import Shape, Tensor
from limba.files import storage, untrusted_files
from limba.files.output_folder import read_report
from limba.files.storage import AnyPath
from limba.files.untrusted_files import shown
from limba.gin_config.recipe import Recipe, given
from limba.network.t5 import T5Config

_PARAMETERS = "target/"
_STEP = "state/step"
# Keys of the run.json of a checkpoint that was converted; an earlier version's has the family there.
FAMILY, ASSUMED = "family", "assumed"
# Modules that a T5 with encoder and decoder has.
_OF_BOTH = ("token_embedder/", "encoder/", "decoder/")

# A network has at most so many tensors of experts for each that is in its files: those of a decoder may be missing.
_MOST_NEW = 10


# ----------------------------------------------------- a checkpoint --------------------------------------------------


def open_checkpoint(path: AnyPath, hints: ModelHints = NO_HINTS) -> T5Model:
    """Opens a checkpoint of Limba or T5X; see `any_format.open_model`."""
    of_model = saved_average.chosen(state_checksums.open_tensors(path), path, hints.average)
    saved = lora_merge.chosen(of_model, path, hints.without_lora)
    info: Mapping[str, Any] = {}
    family: str | None = None
    assumed: Mapping[str, str] = {}
    head = heads.OF_T5
    if run_folder.has_run_info(path):
        info = run_folder.load_run_info(path)
        head = heads.on_t5(info, path)
        config, where = _config_of_run(path, info), f"{path}/run/run.json"
        family, assumed = info.get(FAMILY), info.get(ASSUMED, {})
        if not isinstance(family, str | None) or not isinstance(assumed, dict):
            raise ValueError(f"{where}: {FAMILY} is {shown(family)} and {ASSUMED} {shown(assumed)}; it is damaged.")
        if "mlp_activations" in assumed and hints.mlp_activations is not None:
            config = dataclasses.replace(config, mlp_activations=tuple(hints.mlp_activations))
            assumed = {}
        has_no_table = config.relative_bias_per_layer or not config.is_in_t5x
        tensors = _unrolled(path, saved, has_no_table, head == heads.OF_T5)
        of_vocabulary = info.get("vocabulary") or {}
    else:
        tensors = _unrolled(path, saved, None)
        gin_file = run_folder.find_gin(path)
        where = str(gin_file or path)
        gin = "" if gin_file is None else untrusted_files.decode(storage.read_bytes(gin_file), where)
        fields, of_vocabulary = read_gin(gin, where)
        config, assumed = _network_of_tensors(path, tensors, fields, hints.mlp_activations)
    _check_hints(config, hints, where)
    vocabulary = t5_vocabularies.of_checkpoint(path, of_vocabulary, hints)
    found = find_t5(config, vocabulary, hints.family or family)
    config = dataclasses.replace(config, family=found.name)
    table.verify(f"The checkpoint {path}", {n: t.shape for n, t in tensors.items()}, found.shapes(config, head))
    return T5Model(
        path=path,
        format="Limba" if info else "T5X",
        family=found,
        config=config,
        head=head,
        tensors=tensors,
        vocabulary=vocabulary,
        step=int(np.asarray(saved[_STEP])) if _STEP in saved else 0,
        info=info,
        assumed=assumed,
        tokenizer_settings=tokenizer_settings.of_checkpoint(path),
    )


def is_encoder_decoder(tensors: Mapping[str, SavedTensor]) -> bool:
    """Whether a train state is of a network that can be opened as a `Model`."""
    return all(any(name.startswith(f"{_PARAMETERS}{module}") for name in tensors) for module in _OF_BOTH)


def _unrolled(
    path: AnyPath, saved: Mapping[str, SavedTensor], has_no_table: bool | None, has_decoder: bool = True
) -> dict[str, SavedTensor]:
    """The parameters by Limba's names.

    `has_no_table` says whether a stack has no table of relative positions, as its layers have their own or rotary
    positions; None finds out. A T5 in the layout of scalable_t5 has the same table in all layers.
    """
    parameters = {name: t for name, t in saved.items() if name.startswith(_PARAMETERS)}
    if has_decoder and not is_encoder_decoder(parameters):
        raise ValueError(f"{path} is not of a T5 with encoder and decoder: it lacks one of {', '.join(_OF_BOTH)}.")
    for network in ("unrolled",) if has_no_table else ("t5", "unrolled"):
        try:
            shapes = layer_layouts.shapes_for(parameters, network)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        converted, _ = layer_layouts.convert(parameters, shapes)
        if all(name in converted for name in shapes):
            break
    return {name.removeprefix(_PARAMETERS): converted[name] for name in shapes}


def _config_of_run(path: AnyPath, info: Mapping[str, Any]) -> T5Config:
    try:
        config = t5_config_class(run_folder.network_class(info)).from_json(info["network"])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path}/run/run.json does not describe a limba.network.t5.T5Config of this version ({error}); only that "
            "network can be converted."
        ) from error
    return dataclasses.replace(config, scan_layers=False, joined_attention_kernels=True, remat_policy="none")


def read_gin(text: str, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of T5Config and of classes derived from it, and the vocabulary as `run.json` describes it.

    They are those that a config.gin binds. The modules that it names are not imported: T5X's may be the user's, which
    a conversion neither has nor needs.

    Raises:
      ValueError: if it is not gin.
    """
    recipe = Recipe.parse(text, where)
    chosen = str(recipe.macros.get("VOCABULARY", "")).removesuffix("()").rpartition(".")[2]
    kind = chosen if chosen in (SENTENCEPIECE, BYTES) else SENTENCEPIECE
    vocabulary = given(**recipe.parameters(kind))
    network: dict[str, Any] = {}
    for family in t5_families().values():
        network |= family.fields_of_t5x(recipe.parameters)
    network |= recipe.parameters("T5Config")
    return given(**network), {"class": kind, **vocabulary} if vocabulary or chosen else {}


def _network_of_tensors(
    path: AnyPath, tensors: Mapping[str, SavedTensor], bound: Mapping[str, Any], mlp_activations: Sequence[str] | None
) -> tuple[T5Config, dict[str, str]]:
    """The network that the shapes tell; the rest is bound by gin, the user's, or the usual, which is assumed.

    Args:
      path, tensors: of the checkpoint, and its parameters by Limba's names.
      bound: fields of T5Config in its gin file.
      mlp_activations: what the user says of them.

    Returns:
      The network, and what is assumed, with its value.

    Raises:
      ValueError: if it is no T5 with encoder and decoder, or gin says another network.
    """
    shapes = {name: t.shape for name, t in tensors.items()}
    biases = [shape for name, shape in shapes.items() if name.endswith("relpos_bias/rel_embedding")]
    per_layer = "encoder/relpos_bias/rel_embedding" not in shapes
    tied = "decoder/logits_dense/kernel" not in shapes
    gated = "encoder/layers_0/mlp/wi_0/kernel" in shapes
    try:
        query, wo = shapes["encoder/layers_0/attention/query/kernel"], shapes["encoder/layers_0/mlp/wo/kernel"]
    except KeyError as error:
        raise ValueError(f"{path} is not of a T5 with encoder and decoder: it has no tensor {error}.") from error
    vocab_size, emb_dim = shapes["token_embedder/embedding"]
    num_heads = biases[0][0]
    found: dict[str, Any] = {
        "vocab_size": vocab_size,
        "emb_dim": emb_dim,
        "num_heads": num_heads,
        "head_dim": query[1] // num_heads,
        "mlp_dim": wo[0],
        "num_encoder_layers": _num_layers(shapes, "encoder"),
        "num_decoder_layers": _num_layers(shapes, "decoder"),
        "logits_via_embedding": tied,
    }
    for field, value in found.items():
        if bound.get(field, value) != value:
            raise ValueError(
                f"{run_folder.find_gin(path)} has T5Config.{field} = {bound[field]!r}, and the tensors of "
                f"{path.name} are of a network with {value!r}."
            )
    usual = ("gelu", "linear") if gated else ("relu",)
    said = bound.get("mlp_activations") or mlp_activations
    activations = tuple(said or usual)
    if len(activations) != 1 + gated:
        raise ValueError(f"mlp_activations {list(activations)}: {path} has {1 + gated} a layer.")
    rate = bound.get("dropout_rate", 0.0)
    assumed = {} if said else {"mlp_activations": " ".join(activations)}
    if "dropout_rate" not in bound:
        assumed["dropout_rate"] = str(rate)
    config_class, own, usual_fields = _own_fields(shapes, bound)
    more = {"mlp_activations": activations, "dropout_rate": rate, "relative_bias_per_layer": per_layer}
    return config_class(**found, **more, **own), assumed | usual_fields


def _own_fields(
    names: Collection[str], bound: Mapping[str, Any]
) -> tuple[type[T5Config], dict[str, Any], dict[str, str]]:
    """The class of a network with parameters of these names, its fields that are not T5's, and which are assumed."""
    families, known = t5_families(), {field.name for field in dataclasses.fields(T5Config)}

    def own_fields(config_class: type[T5Config]) -> dict[str, Any]:
        return {field.name: field.default for field in dataclasses.fields(config_class) if field.name not in known}

    if (family := families.get(str(bound.get("family")))) is not None:
        own = own_fields(family.config_class)
        return family.config_class, {name: bound[name] for name in own if name in bound}, {}
    for family in families.values():
        if found := family.fields_of_names(names):
            own = own_fields(family.config_class)
            return family.config_class, found, {name: str(x) for name, x in own.items() if name not in found}
    return T5Config, {}, {}


def _num_layers(shapes: Mapping[str, tuple[int, ...]], stack: str) -> int:
    return len({name.split("/")[1] for name in shapes if name.startswith(f"{stack}/layers_")})


def _check_hints(config: T5Config, hints: ModelHints, where: str) -> None:
    """Raises ValueError if what the user says of the network is wrong."""
    if hints.mlp_activations is not None and tuple(hints.mlp_activations) != tuple(config.mlp_activations):
        given, found = " ".join(hints.mlp_activations), " ".join(config.mlp_activations)
        raise ValueError(f"--mlp_activations {given}: {where} says {found}.")


# ------------------------------------------------------- a folder ----------------------------------------------------

# The first T5s have it in their files; no version of the network reads it.
_UNUSED = "EncDecAttention.relative_attention_bias"


def open_folder(path: Path, hints: ModelHints = NO_HINTS, format_: str | None = None) -> T5Model:
    """Opens a Hugging Face folder; see `any_format.open_model`."""
    config_file = hints.config_file or path / "config.json"
    content = t5_config.read(config_file, hints.ignore_config_keys)
    vocabulary, content = t5_vocabularies.of_config(config_file, content, path, hints)
    files = read_files(path, config_file, content, format_)
    _check_hints(files.config, hints, str(config_file))
    step = hf_folder.training_step(path, read_report(path))
    if hints.vocab is None and not hints.in_bytes:
        files = files._replace(folder=dataclasses.replace(files.folder, tokenizer=path))
    settings = tokenizer_settings.beside(path, hints.vocab)
    return _model(path, files, vocabulary, hints, settings, *step)


def open_weights(file: Path, config_file: Path, hints: ModelHints = NO_HINTS) -> T5Model:
    """Opens a file that a PyTorch training script saved; see `any_format.open_weights`."""
    content = t5_config.read(config_file, hints.ignore_config_keys)
    places, of_vocabulary = [config_file.parent, file.parent], hints
    if hints.vocab is not None and Path(hints.vocab).is_dir():
        places, of_vocabulary = [Path(hints.vocab)], dataclasses.replace(hints, vocab=None)
    place = next((place for place in places if t5_vocabularies.has_tokenizer(place)), places[0])
    vocabulary, content = t5_vocabularies.of_config(config_file, content, place, of_vocabulary)
    files = read_files(file, config_file, content)
    _check_hints(files.config, hints, str(config_file))
    return _model(file, files, vocabulary, hints, tokenizer_settings.NONE, *hf_folder.step_of_weights(file))


class Files(NamedTuple):
    """What config.json and the weights beside it say; the family is the first with the `model_type`."""

    family: T5Family
    config: T5Config
    head: Head
    tensors: Mapping[str, SavedTensor]
    folder: Folder


def _model(
    path: Path,
    files: Files,
    vocabulary: Mapping[str, Any] | None,
    hints: ModelHints,
    settings: tokenizer_settings.Settings,
    step: int,
    step_from: str,
) -> T5Model:
    own = hints.family is None and files.family.fits(files.config, vocabulary)
    family = files.family if own else find_t5(files.config, vocabulary, hints.family)
    return T5Model(
        path=path,
        format="Hugging Face",
        family=family,
        config=dataclasses.replace(files.config, family=family.name),
        head=files.head,
        tensors=files.tensors,
        vocabulary=vocabulary,
        step=step,
        step_from=step_from,
        folder=files.folder,
        ignored_config_keys=hints.ignore_config_keys,
        tokenizer_settings=dataclasses.replace(settings, pad_id=files.folder.pad_id),
    )


def read_files(path: Path, config_file: Path, content: Mapping[str, Any], format_: str | None = None) -> Files:
    """The network of a config.json, and the weights of a folder or those in a file, opened.

    Args:
      path: the folder; or a file that a PyTorch training script saved, its model under T5's names.
      config_file, content: for messages, and what `t5_config.read` gives for it.
      format_: of the weights, where there are several: "safetensors", "torch" or "flax".

    Raises:
      FileNotFoundError: if there are no weights.
      ValueError: if something is damaged, contradicts itself, or is not a T5 that Limba has.
    """
    if path.is_dir():
        found, _ = weight_files.find(path, format_)
        saved = weight_files.open_tensors(path, found)
    else:
        found, saved = "torch", weight_files.open_file(path)
    family = t5_config.family_of(content)
    if family.prefix and not any(name.startswith(family.prefix) for name in saved):
        saved = {f"{family.prefix}{name}": tensor for name, tensor in saved.items()}
    is_flax = found == "flax"
    left_out = _left_out(family, saved)
    family.check_left_out(path, saved)
    saved = {name: tensor for name, tensor in saved.items() if not name.startswith(family.left_out)}
    output, tied_to = (_in_format(name, is_flax) for name in family.output)
    if t5_config.hides_its_output(content) and (family.tensor_name(output) in saved or not family.scales_untied):
        # An output that is the embedding is not written twice; version 5's mT5 does not scale its logits.
        content = {**content, "scale_decoder_outputs": False}
    config = t5_config.network_config(config_file, content)
    if config.num_encoder_layers + config.num_decoder_layers > len(saved):
        raise ValueError(
            f"{config_file}: num_layers is {config.num_encoder_layers} and num_decoder_layers "
            f"{config.num_decoder_layers}, and {path} has {len(saved)} tensors; they do not belong together."
        )
    content = t5_config.explicit(content, config)
    head, pad_id = t5_config.head_of(config_file, content), t5_config.special_ids(config_file, content)["pad_token_id"]
    if is_flax and pad_id:
        raise ValueError(
            f"{path} has weights of Flax, and the padding {pad_id}: load it in transformers 4 with from_flax=True, and "
            "save it."
        )
    num_members = table.num_members(family.shapes(config, head), family.rows)
    if num_members > _MOST_NEW * len(saved):
        raise ValueError(
            f"{config_file} is of a network with {num_members:,} tensors of experts, and {path} has {len(saved):,} "
            "tensors; they do not belong together."
        )
    rows = [t.as_flax() if is_flax else t for t in family.table(config, head, pad_id) if t.parts]
    prefix = "" if head == heads.OF_T5 else f"{TRANSFORMER}."
    aliases = [_in_format(f"{prefix}{name}", is_flax) for name in family.embeddings]
    t5_names = {family.tensor_name(name): name for name in (*aliases, *(row.name for row in rows))}
    named = {t5_names.get(name, name): t for name, t in saved.items()}
    if other_models.is_encoder_alone(content) and named:
        named = _of_new_decoder(rows, config, named) | named
    stored = _without_copies(path, aliases, named, _in_format(_UNUSED, is_flax))
    if not config.logits_via_embedding and t5_config.ties_output(path / "config.json"):
        stored.setdefault(output, stored[tied_to])
    if head == heads.OF_T5:
        _check_output(path, config_file, is_flax, config, stored, output, tied_to)
    table.verify(str(path), {n: t.shape for n, t in stored.items()}, {row.name: row.shape for row in rows})
    tensors = table.limbas(rows, stored)
    embedding = next((x for x in aliases if x in named), "")
    folder = Folder(content, stored, found, pad_id, left_out=left_out, embedding=embedding)
    return Files(family, config, head, tensors, folder)


def _left_out(family: T5Family, saved: Mapping[str, SavedTensor]) -> tuple[str, ...]:
    """The tensors that the network has no place for: the beginnings of their names, and how many each has."""
    counts = ((prefix, sum(name.startswith(prefix) for name in saved)) for prefix in family.left_out)
    return tuple(prefix if count == 1 else f"{prefix} ({count} tensors)" for prefix, count in counts if count)


def _in_format(name: str, is_flax: bool) -> str:
    """A name of PyTorch's, or the one that Flax has for it."""
    if not is_flax:
        return name
    module, _, leaf = name.rpartition(".")
    if leaf != "weight":
        return name.replace(".", "/")
    return f"{module.replace('.', '/')}/{'kernel' if module == 'lm_head' else 'embedding'}"


def _of_new_decoder(
    rows: Sequence[Tensor], config: T5Config, named: Mapping[str, SavedTensor]
) -> dict[str, SavedTensor]:
    new = new_decoder(config, np.dtype(next(iter(named.values())).dtype))
    return {row.name: row.stored(new) for row in rows if row.parts[0].limba in new}


def new_decoder(config: T5Config, dtype: np.dtype) -> dict[str, SavedTensor]:
    """A decoder for the encoder of a T5 alone: the tensors of a new network, drawn when they are read.

    By Limba's names, with the variances of `limba.network.t5`; each tensor's name is its seed.
    """
    found = {}
    for name, shape in networks.shapes(config, heads.OF_T5).items():
        if name.startswith("decoder/"):
            found[name] = SavedTensor(shape, dtype, functools.partial(_new_tensor, name, shape, config.head_dim, dtype))
    return found


def _new_tensor(name: str, shape: Shape, head_dim: int, dtype: np.dtype, index: Index) -> np.ndarray:
    if name.endswith("/scale"):
        return np.ones(shape, dtype)[index]
    variance = 2 / sum(shape) if name.endswith("/rel_embedding") else 1 / shape[0]
    if "/query/" in name:
        variance /= head_dim
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return (rng.standard_normal(shape, np.float32) * np.float32(variance**0.5)).astype(dtype)[index]


def _without_copies(
    path: Path, aliases: Sequence[str], stored: Mapping[str, SavedTensor], unused: str
) -> dict[str, SavedTensor]:
    """The tensors without other names of the embedding, and with its own, the first of `aliases`.

    Raises:
      ValueError: if they differ.
    """
    kept = {name: t for name, t in stored.items() if name not in aliases and unused not in name}
    present = [name for name in aliases if name in stored]
    if not present:
        raise ValueError(f"{path} has no {aliases[0]}, the embedding.")
    shared = stored[present[0]]
    for name in present[1:]:
        if not tensor_parts.equal(shared, stored[name]):
            raise ValueError(f"{path}: {present[0]} and {name} differ; a T5 has one embedding.")
    return kept | {aliases[0]: shared}


def _check_output(
    path: Path,
    config_file: Path,
    is_flax: bool,
    config: T5Config,
    kept: dict[str, SavedTensor],
    output: str,
    tied_to: str,
) -> None:
    """Removes an output that is the embedding `tied_to`. Raises ValueError if it is not what config.json says of it."""
    shared = kept.get(tied_to)
    if config.logits_via_embedding and output in kept and shared is not None:
        same = tensor_parts.transposed(kept[output]) if is_flax else kept[output]
        if not tensor_parts.equal(shared, same):
            raise ValueError(
                f"{config_file} says that the embedding is the output too (tie_word_embeddings), but {output} is "
                "another matrix. If it is the output, set tie_word_embeddings and scale_decoder_outputs to false."
            )
        del kept[output]
    if not config.logits_via_embedding and output not in kept:
        raise ValueError(
            f"{config_file} says that the output has its own matrix (tie_word_embeddings: false), but there is "
            f"no {output}."
        )
