"""A T5 as any of the formats keeps it: a checkpoint of Limba, one of T5X, or a Hugging Face folder.

Tensors get Limba's names, unrolled and with joined kernels, and are read when they are asked for. What the files do not
say can be told; what they say and what is told must agree.
"""

import argparse
import atexit
import dataclasses
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert import gin_facts, hf_config, hf_folder, hf_tokenizer, lora_merge, names, streams
from limba import saved_tensors, scan_layout, storage
from limba.checkpoint_directories import find_checkpoint
from limba.checkpoint_files import load_run_info
from limba.network import T5Config
from limba.saved_tensors import SavedTensor
from limba.storage import AnyPath

_PARAMETERS = "target/"
_STEP = "state/step"
# Tensors that a T5 with encoder and decoder has.
_OF_BOTH = ("token_embedder/embedding", "encoder/encoder_norm/scale", "decoder/decoder_norm/scale")


@dataclasses.dataclass(frozen=True)
class Told:
    """What somebody says of a model whose files do not say it; None is what they say, or what is usual.

    Attributes:
      family: one of `hf_config.FAMILIES`.
      mlp_activations: ("gelu", "linear"), ("relu",) …
      vocab: the SentencePiece model.
      extra_ids: sentinels behind its pieces.
    """

    family: str | None = None
    mlp_activations: Sequence[str] | None = None
    vocab: str | None = None
    extra_ids: int | None = None


@dataclasses.dataclass(frozen=True)
class Model:
    """A T5 that is not read yet.

    Attributes:
      path: the checkpoint, or the folder.
      format: "Limba", "T5X" or "Hugging Face".
      config: the network, unrolled and with joined kernels.
      family: one of `hf_config.FAMILIES`.
      tensors: by Limba's names.
      vocabulary: as `run.json` describes it, its file where it can be read now; None if nothing tells.
      step: where its training stood.
      info: what `run.json` says; empty for other formats.
      folder: the files of a Hugging Face folder; None for checkpoints.
    """

    path: AnyPath
    format: str
    config: T5Config
    family: str
    tensors: Mapping[str, SavedTensor]
    vocabulary: Mapping[str, Any] | None
    step: int
    info: Mapping[str, Any]
    folder: hf_folder.Folder | None = None

    @property
    def dtype(self) -> np.dtype:
        """Of the embedding, which stands for all."""
        return np.dtype(self.tensors["token_embedder/embedding"].dtype)

    def cast(self, dtype: np.dtype) -> "Model":
        """The model in another dtype."""

        def rounded(tensors: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
            return {name: streams.cast(t, dtype, f"{self.path}: {name}") for name, t in tensors.items()}

        folder = self.folder and dataclasses.replace(self.folder, stored=rounded(self.folder.stored))
        return dataclasses.replace(self, tensors=rounded(self.tensors), folder=folder)

    @property
    def num_parameters(self) -> int:
        return sum(int(np.prod(t.shape, dtype=np.int64)) for t in self.tensors.values())


_NOTHING = Told()


def open_model(path: str | AnyPath, told: Told = _NOTHING, format_: str | None = None) -> Model:
    """Opens a checkpoint, a run's directory for its newest one, or a Hugging Face folder.

    Args:
      path: of it.
      told: what the files do not say.
      format_: of a folder's weights, where there are several: "safetensors", "torch" or "flax".

    Raises:
      FileNotFoundError: if there is none, or a file of it is missing.
      ValueError: if it is damaged, not a T5, or contradicts itself or what is told.
    """
    path = storage.as_path(path)
    return _open_folder(Path(path), told, format_) if hf_folder.is_folder(path) else open_checkpoint(path, told)


def _open_folder(path: Path, told: Told, format_: str | None) -> Model:
    folder = hf_folder.open_folder(path, format_)
    _check_told(folder.config, told, f"{path}/config.json")
    vocabulary = vocabulary_of_folder(path, told)
    usual = "mt5" if folder.content["model_type"] == "mt5" and not folder.config.logits_via_embedding else None
    return Model(
        path=path,
        format="Hugging Face",
        config=folder.config,
        family=hf_config.find_family(folder.config, vocabulary, told.family or usual),
        tensors=folder.tensors,
        vocabulary=vocabulary,
        step=folder.report.get("step", 0),
        info={},
        folder=folder,
    )


def open_checkpoint(path: str | AnyPath, told: Told = _NOTHING) -> Model:
    """Opens a checkpoint of Limba or T5X; see `open_model`."""
    path = find_checkpoint(path)
    saved = lora_merge.merged(saved_tensors.open_tensors(path), path)
    info: Mapping[str, Any] = {}
    if storage.is_file(path / "run" / "run.json"):
        info = load_run_info(path)
        config, where = _config_of_run(path, info["network"]), f"{path}/run/run.json"
        tensors = _unrolled(path, saved, config.relative_bias_per_layer)
        bound = gin_facts.GinFacts({}, info["vocabulary"])
    else:
        tensors = _unrolled(path, saved, None)
        gin_file = path.parent / "config.gin"
        where = str(gin_file) if storage.is_file(gin_file) else str(path)
        bound = gin_facts.GinFacts({}, {})
        if storage.is_file(gin_file):
            bound = gin_facts.read(storage.read_bytes(gin_file).decode(), where)
        config = _config_of_tensors(path, tensors, bound.network, told)
    names.verify(f"The checkpoint {path}", {n: t.shape for n, t in tensors.items()}, names.shapes(config))
    _check_told(config, told, where)
    vocabulary = _vocabulary(path, bound.vocabulary, config, told)
    return Model(
        path=path,
        format="Limba" if info else "T5X",
        config=config,
        family=hf_config.find_family(config, vocabulary, told.family),
        tensors=tensors,
        vocabulary=vocabulary,
        step=int(np.asarray(saved[_STEP])) if _STEP in saved else 0,
        info=info,
    )


def is_encoder_decoder(tensors: Mapping[str, SavedTensor]) -> bool:
    """Whether a train state is of a network that can be opened as a `Model`."""
    return all(f"{_PARAMETERS}{name}" in tensors for name in _OF_BOTH)


def with_tensors(model: Model, path: AnyPath, saved: Mapping[str, SavedTensor]) -> Model:
    """The model with the parameters of a train state that was made of it."""
    return dataclasses.replace(
        model, path=path, tensors=_unrolled(path, saved, model.config.relative_bias_per_layer), folder=None
    )


def _unrolled(path: AnyPath, saved: Mapping[str, SavedTensor], per_layer: bool | None) -> dict[str, SavedTensor]:
    """The parameters by Limba's names.

    Args:
      path: for messages.
      saved: the train state.
      per_layer: whether layers have tables of relative positions of their own; None if the tables shall tell. Those of
        a T5 that was put into the layout of scalable_t5 are the same in all layers.
    """
    parameters = {name: t for name, t in saved.items() if name.startswith(_PARAMETERS)}
    if not is_encoder_decoder(parameters):
        raise ValueError(f"{path} is not of a T5 with encoder and decoder: it lacks one of {', '.join(_OF_BOTH)}.")
    for network in ("unrolled",) if per_layer else ("t5", "unrolled"):
        try:
            shapes = scan_layout.shapes_for(parameters, network)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        converted, _ = scan_layout.convert(parameters, shapes)
        if all(name in converted for name in shapes):
            break
    return {name.removeprefix(_PARAMETERS): converted[name] for name in shapes}


def _config_of_run(path: AnyPath, fields: Mapping[str, Any]) -> T5Config:
    try:
        config = T5Config(**fields)
    except TypeError as error:
        raise ValueError(
            f"{path}/run/run.json does not describe a limba.network.T5Config of this version ({error}); only that "
            "network can be converted."
        ) from error
    return dataclasses.replace(config, scan_layers=False, joined_attention_kernels=True, remat_policy="none")


def _config_of_tensors(
    path: AnyPath, tensors: Mapping[str, SavedTensor], bound: Mapping[str, Any], told: Told
) -> T5Config:
    """The network as shapes tell it; what they do not tell is bound by gin, told, or usual."""
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
                f"{path.parent}/config.gin has T5Config.{field} = {bound[field]!r}, and the tensors of {path.name} are "
                f"of a network with {value!r}."
            )
    usual = ("gelu", "linear") if gated else ("relu",)
    activations = tuple(bound.get("mlp_activations") or told.mlp_activations or usual)
    if len(activations) != 1 + gated:
        raise ValueError(f"mlp_activations {list(activations)}: {path} has {1 + gated} a layer.")
    return T5Config(
        **found,
        mlp_activations=activations,
        dropout_rate=bound.get("dropout_rate", 0.0),
        relative_bias_per_layer=per_layer,
    )


def _num_layers(shapes: Mapping[str, tuple[int, ...]], stack: str) -> int:
    return len({name.split("/")[1] for name in shapes if name.startswith(f"{stack}/layers_")})


def _check_told(config: T5Config, told: Told, where: str) -> None:
    """Raises ValueError if what is told of the network is not what is known."""
    if told.mlp_activations is not None and tuple(told.mlp_activations) != tuple(config.mlp_activations):
        raise ValueError(
            f"--mlp_activations {' '.join(told.mlp_activations)}: {where} says {' '.join(config.mlp_activations)}."
        )


# ----------------------------------------------------- vocabulary ----------------------------------------------------


def _vocabulary(path: AnyPath, recorded: Mapping[str, Any], config: T5Config, told: Told) -> Mapping[str, Any] | None:
    """A checkpoint's vocabulary: told, kept beside it, or where the run had it."""
    if told.extra_ids is not None and recorded.get("extra_ids", told.extra_ids) != told.extra_ids:
        raise ValueError(f"--extra_ids {told.extra_ids}: the run of {path} had {recorded['extra_ids']}.")
    kept = path / "run" / "spiece.model"  # travels with the checkpoint
    if (vocabulary := _told_vocabulary(told, recorded)) is not None:
        given = vocabulary["sentencepiece_model_file"]
        if given and storage.is_file(kept) and Path(given).read_bytes() != storage.read_bytes(kept):
            raise ValueError(f"--vocab {given} is another file than in training, which is {kept}; leave it out.")
        return vocabulary
    if recorded.get("class") == "ByteVocabulary":
        return _bytes(recorded.get("extra_ids"))
    file = _local(kept) if storage.is_file(kept) else recorded.get("sentencepiece_model_file")
    if file is None:
        return None
    if "vocab_size" in recorded:
        return {**recorded, "sentencepiece_model_file": str(file)}
    extra_ids = told.extra_ids if told.extra_ids is not None else recorded.get("extra_ids")
    return hf_tokenizer.describe(storage.mounted(str(file)), extra_ids)


def vocabulary_of_folder(path: Path, told: Told) -> Mapping[str, Any] | None:
    """A Hugging Face folder's vocabulary; None if it has no tokenizer.

    Raises:
      ValueError: if it is another than is told.
    """
    if told.family == "byt5" and (path / "spiece.model").is_file():
        raise ValueError(f"--family byt5: {path} has a spiece.model.")
    if (vocabulary := _told_vocabulary(told, {})) is not None:
        return vocabulary
    if not _has_tokenizer(path):
        return None
    found = hf_tokenizer.read(path)
    if told.extra_ids not in (None, found["extra_ids"]):
        raise ValueError(f"--extra_ids {told.extra_ids}: the tokenizer in {path} has {found['extra_ids']}.")
    return found


def _has_tokenizer(path: Path) -> bool:
    return any((path / name).is_file() for name in ("tokenizer_config.json", "tokenizer.json", "spiece.model"))


def _told_vocabulary(told: Told, recorded: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if told.extra_ids is not None and told.extra_ids < 0:
        raise ValueError(f"--extra_ids {told.extra_ids}: a number of sentinels is 0 or more.")
    if told.family == "byt5":
        if recorded.get("class", "ByteVocabulary") != "ByteVocabulary":
            raise ValueError(f"--family byt5: the run's vocabulary is a {recorded['class']}, not bytes.")
        if told.vocab is not None:
            raise ValueError(f"--vocab {told.vocab}: the vocabulary of byt5 is bytes; leave it out.")
        return _bytes(told.extra_ids)
    if told.vocab is None:
        return None
    if "vocab_size" in recorded:
        return {**recorded, "sentencepiece_model_file": told.vocab}
    extra_ids = told.extra_ids if told.extra_ids is not None else recorded.get("extra_ids")
    return hf_tokenizer.describe(told.vocab, extra_ids)


def _bytes(extra_ids: int | None) -> dict[str, Any]:
    """SeqIO's ByteVocabulary, of 256 bytes and 3 special ids. ByT5 has no sentinels of its own: bytes serve."""
    return hf_tokenizer.Tokenizer(None, hf_tokenizer.NUM_BYTE_IDS, extra_ids or 0).vocabulary


def _local(file: AnyPath) -> Path:
    """The file, or a copy of it if it lies in a bucket."""
    if not storage.is_remote(file):
        return Path(file)
    folder = tempfile.mkdtemp(prefix="limba-vocabulary-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = Path(folder) / file.name
    copy.write_bytes(storage.read_bytes(file))
    return copy


# --------------------------------------------------- command line ---------------------------------------------------


def add_told_arguments(parser: argparse.ArgumentParser) -> None:
    """What a command asks of a model whose files do not say everything."""
    told = parser.add_argument_group("what the files do not say (a contradiction is an error)")
    told.add_argument("--vocab", metavar="FILE", help="the SentencePiece model")
    told.add_argument("--extra_ids", type=int, metavar="N", help="sentinels behind its pieces")
    told.add_argument("--family", choices=hf_config.FAMILIES, help="t5 is T5 1.0; Flan and LM-adapted are t5_1_1")
    told.add_argument("--mlp_activations", nargs="+", metavar="NAME", help="gelu linear, relu …")


def told_arguments(args: argparse.Namespace) -> Told:
    return Told(args.family, args.mlp_activations, args.vocab, args.extra_ids)
