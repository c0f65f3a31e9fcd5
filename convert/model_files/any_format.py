"""A T5 as any of the formats keeps it: a checkpoint of Limba, one of T5X, or a Hugging Face folder.

Tensors get Limba's names, unrolled and with joined kernels, and are read when they are asked for. The user gives hints
about what the files do not say; hints that contradict the files are errors.
"""

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.families import config_keys, heads, tokenizer_keys
from convert.families.family import Family
from convert.families.heads import Head
from convert.families.table import all_families, find_family
from convert.hf import folder_tokenizer, hf_folder, hf_tokenizer, tokenizer_settings
from convert.hf.tokenizer_settings import Settings
from convert.model_files import gin_facts, lora_merge, network_of_tensors
from convert.tensors import names, tensor_parts, torch_files
from limba.checkpoint_files import layer_layouts, run_folder, saved_tensors
from limba.checkpoint_files.directories import find_checkpoint
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.machine import storage, untrusted_files
from limba.machine.storage import AnyPath
from limba.machine.untrusted_files import shown
from limba.network.layers import LayerNorm
from limba.network.t5 import MAX_DISTANCE, T5Config

_PARAMETERS = "target/"
_STEP = "state/step"
# Keys of the run.json of a checkpoint that was converted.
FAMILY, ASSUMED = "family", "assumed"
# Tensors that a T5 with encoder and decoder has.
_OF_BOTH = ("token_embedder/embedding", "encoder/encoder_norm/scale", "decoder/decoder_norm/scale")


@dataclasses.dataclass(frozen=True)
class ModelHints:
    """What the user says about a model whose files do not say it. None: what the files say, or else the usual.

    Attributes:
      family: the name of one of `convert.families`.
      mlp_activations: ("gelu", "linear"), ("relu",) …
      vocab: the SentencePiece model.
      extra_ids: sentinels behind its pieces.
      ignore_config_keys: keys of a Hugging Face folder's files that have no effect.
    """

    family: str | None = None
    mlp_activations: Sequence[str] | None = None
    vocab: str | None = None
    extra_ids: int | None = None
    ignore_config_keys: tuple[str, ...] = ()

    @property
    def in_bytes(self) -> bool:
        """Whether the family's vocabulary is bytes."""
        return self.family is not None and all_families()[self.family].in_bytes is True


@dataclasses.dataclass(frozen=True)
class Model:
    """A T5 that is not read yet.

    Attributes:
      format: "Limba", "T5X" or "Hugging Face".
      config: the network, unrolled and with joined kernels.
      tensors: by Limba's names.
      vocabulary: as `run.json` records it, with a file that can be read now; None if it is not known.
      step_from: what says the step, for messages; "" where nothing does and it is 0.
      info: the content of `run.json`; empty for other formats.
      assumed: what neither the files nor the user say, with what is taken for it: `{"mlp_activations": "gelu linear"}`.
      folder: the files of a Hugging Face folder; None for checkpoints.
      ignored_config_keys: of the hints.
      head: of a classifier of tokens on the encoder, which has no decoder; None of a T5.
      tokenizer_settings: what its folder says of the tokenizer beside the vocabulary, or said when it was converted.
    """

    path: AnyPath
    format: str
    config: T5Config
    family: Family
    tensors: Mapping[str, SavedTensor]
    vocabulary: Mapping[str, Any] | None
    step: int
    info: Mapping[str, Any]
    folder: hf_folder.Folder | None = None
    step_from: str = ""
    ignored_config_keys: tuple[str, ...] = ()
    assumed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    head: Head | None = None
    tokenizer_settings: Settings = tokenizer_settings.NONE

    @property
    def labels(self) -> tuple[str, ...]:
        """Of a classifier; none of a T5."""
        return self.head.labels if self.head else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know of the network, in sentences."""
        if "mlp_activations" not in self.assumed:
            return ()
        return (
            f"{self.path} does not say all of its network, and no gin file does. Assumed: "
            f"{', '.join(f'{name} {value}' for name, value in self.assumed.items())}; the rest is as in T5X's network "
            f"(epsilon {LayerNorm.epsilon}, distances up to {MAX_DISTANCE}, tied logits divided by sqrt(emb_dim), 0 "
            "begins the decoder). If that is wrong, give --mlp_activations, or put the config.gin of the training "
            "beside the checkpoint.",
        )

    @property
    def dtype(self) -> np.dtype:
        """Of the embedding, which stands for all."""
        return np.dtype(self.tensors["token_embedder/embedding"].dtype)

    def cast(self, dtype: np.dtype) -> "Model":
        """The model in another dtype."""

        def rounded(tensors: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
            return {name: tensor_parts.cast(t, dtype, f"{self.path}: {name}") for name, t in tensors.items()}

        folder = self.folder and dataclasses.replace(self.folder, stored=rounded(self.folder.stored))
        return dataclasses.replace(self, tensors=rounded(self.tensors), folder=folder)

    @property
    def num_parameters(self) -> int:
        return sum(int(np.prod(t.shape, dtype=np.int64)) for t in self.tensors.values())

    def known_vocabulary(self) -> Mapping[str, Any]:
        """The vocabulary. Raises FileNotFoundError if nothing tells it, ValueError if the embedding is too small."""
        if self.vocabulary is None:
            raise FileNotFoundError(
                f"{self.path} does not say its vocabulary; say where the SentencePiece model is with --vocab FILE, or "
                "--family byt5."
            )
        hf_tokenizer.check_sizes(self.vocabulary, self.config.vocab_size, str(self.path))
        return self.vocabulary


NO_HINTS = ModelHints()


def open_model(path: str | AnyPath, hints: ModelHints = NO_HINTS, format_: str | None = None) -> Model:
    """Opens a checkpoint, a run's directory for its newest one, or a Hugging Face folder.

    `format_` is that of a folder's weights, where there are several: "safetensors", "torch" or "flax".

    Raises:
      FileNotFoundError: if there is none, or a file of it is missing.
      ValueError: if it is damaged, not a T5, or contradicts itself or the hints.
    """
    path = storage.as_path(path)
    return _open_folder(Path(path), hints, format_) if hf_folder.is_folder(path) else open_checkpoint(path, hints)


def _open_folder(path: Path, hints: ModelHints, format_: str | None) -> Model:
    folder = hf_folder.open_folder(path, format_, ignored=hints.ignore_config_keys)
    _check_hints(folder.config, hints, f"{path}/config.json")
    step, step_from = hf_folder.training_step(path, folder.report)
    model = _model_of_folder(path, folder, vocabulary_of_folder(path, hints), hints, step, step_from)
    return dataclasses.replace(model, tokenizer_settings=_settings_of(path, hints))


def _settings_of(folder: Path, hints: ModelHints) -> Settings:
    """Of the folder's own tokenizer; none where the user gives another vocabulary."""
    return tokenizer_settings.of_folder(folder) if hints.vocab is None else tokenizer_settings.NONE


def open_weights(file: Path, config_file: Path, hints: ModelHints = NO_HINTS) -> Model:
    """Opens a file that a PyTorch training script saved, with the configuration of its network.

    The vocabulary is that of the hints, whose `vocab` may be a folder with a tokenizer here; else one beside the files.
    The step is the one in the file, else the number at the end of its name.

    Raises:
      FileNotFoundError: if a file is missing.
      ValueError: as `open_model`.
    """
    folder = hf_folder.open_weights(file, config_file, hints.ignore_config_keys)
    _check_hints(folder.config, hints, str(config_file))
    if hints.vocab is not None and Path(hints.vocab).is_dir():
        vocabulary = vocabulary_of_folder(Path(hints.vocab), dataclasses.replace(hints, vocab=None))
    else:
        beside = (vocabulary_of_folder(place, hints) for place in (config_file.parent, file.parent))
        vocabulary = next((found for found in beside if found is not None), None)
    return _model_of_folder(file, folder, vocabulary, hints, *step_of_weights(file))


def step_of_weights(file: Path) -> tuple[int, str]:
    """The step of a file that a PyTorch training script saved, and what says it; 0 and "" where nothing does."""
    step = torch_files.training_step(file)
    if step is not None:
        return step, "the file"
    named = re.search(r"(\d+)$", file.stem)
    return (int(named[1]), "the file's name") if named else (0, "")


def _model_of_folder(
    path: Path,
    folder: hf_folder.Folder,
    vocabulary: Mapping[str, Any] | None,
    hints: ModelHints,
    step: int,
    step_from: str,
) -> Model:
    own = hints.family is None and folder.family.fits(folder.config, vocabulary)
    return Model(
        path=path,
        format="Hugging Face",
        config=folder.config,
        family=folder.family if own else find_family(folder.config, vocabulary, hints.family),
        tensors=folder.tensors,
        vocabulary=vocabulary,
        step=step,
        info={},
        folder=folder,
        step_from=step_from,
        ignored_config_keys=hints.ignore_config_keys,
        head=folder.head,
    )


def open_checkpoint(path: str | AnyPath, hints: ModelHints = NO_HINTS) -> Model:
    """Opens a checkpoint of Limba or T5X; see `open_model`."""
    path = find_checkpoint(path)
    saved = lora_merge.merged(saved_tensors.open_tensors(path), path)
    info: Mapping[str, Any] = {}
    family: str | None = None
    assumed: Mapping[str, str] = {}
    head: Head | None = None
    if run_folder.has_run_info(path):
        info = run_folder.load_run_info(path)
        head = heads.on_t5(info, path) if "labels" in info else None
        config, where = _config_of_run(path, info["network"]), f"{path}/run/run.json"
        family, assumed = info.get(FAMILY), info.get(ASSUMED, {})
        if not isinstance(family, str | None) or not isinstance(assumed, dict):
            raise ValueError(f"{where}: {FAMILY} is {shown(family)} and {ASSUMED} {shown(assumed)}; it is damaged.")
        if "mlp_activations" in assumed and hints.mlp_activations is not None:
            config = dataclasses.replace(config, mlp_activations=tuple(hints.mlp_activations))
            assumed = {}
        tensors = _unrolled(path, saved, config.relative_bias_per_layer, head is None)
        bound = gin_facts.GinFacts({}, info["vocabulary"])
    else:
        tensors = _unrolled(path, saved, None)
        gin_file = run_folder.find_gin(path)
        where, bound = str(gin_file or path), gin_facts.GinFacts({}, {})
        if gin_file is not None:
            bound = gin_facts.read(untrusted_files.decode(storage.read_bytes(gin_file), where), where)
        config, assumed = network_of_tensors.read(path, tensors, bound.network, hints.mlp_activations)
    wanted = names.shapes(config, len(head.labels) if head else 0)
    names.verify(f"The checkpoint {path}", {n: t.shape for n, t in tensors.items()}, wanted)
    _check_hints(config, hints, where)
    vocabulary = _vocabulary(path, bound.vocabulary, hints)
    return Model(
        path=path,
        format="Limba" if info else "T5X",
        config=config,
        family=find_family(config, vocabulary, hints.family or family),
        tensors=tensors,
        vocabulary=vocabulary,
        step=int(np.asarray(saved[_STEP])) if _STEP in saved else 0,
        info=info,
        assumed=assumed,
        head=head,
        tokenizer_settings=tokenizer_settings.of_checkpoint(path),
    )


def is_encoder_decoder(tensors: Mapping[str, SavedTensor]) -> bool:
    """Whether a train state is of a network that can be opened as a `Model`."""
    return all(f"{_PARAMETERS}{name}" in tensors for name in _OF_BOTH)


def _unrolled(
    path: AnyPath, saved: Mapping[str, SavedTensor], per_layer: bool | None, has_decoder: bool = True
) -> dict[str, SavedTensor]:
    """The parameters by Limba's names.

    `per_layer` says whether each layer has its own table of relative positions; None finds out. A T5 in the layout of
    scalable_t5 has the same table in all layers.
    """
    parameters = {name: t for name, t in saved.items() if name.startswith(_PARAMETERS)}
    if has_decoder and not is_encoder_decoder(parameters):
        raise ValueError(f"{path} is not of a T5 with encoder and decoder: it lacks one of {', '.join(_OF_BOTH)}.")
    for network in ("unrolled",) if per_layer else ("t5", "unrolled"):
        try:
            shapes = layer_layouts.shapes_for(parameters, network)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        converted, _ = layer_layouts.convert(parameters, shapes)
        if all(name in converted for name in shapes):
            break
    return {name.removeprefix(_PARAMETERS): converted[name] for name in shapes}


def _config_of_run(path: AnyPath, fields: Mapping[str, Any]) -> T5Config:
    try:
        config = T5Config(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path}/run/run.json does not describe a limba.network.t5.T5Config of this version ({error}); only that "
            "network can be converted."
        ) from error
    return dataclasses.replace(config, scan_layers=False, joined_attention_kernels=True, remat_policy="none")


def _check_hints(config: T5Config, hints: ModelHints, where: str) -> None:
    """Raises ValueError if what the user says of the network is wrong."""
    if hints.mlp_activations is not None and tuple(hints.mlp_activations) != tuple(config.mlp_activations):
        given, found = " ".join(hints.mlp_activations), " ".join(config.mlp_activations)
        raise ValueError(f"--mlp_activations {given}: {where} says {found}.")


# ----------------------------------------------------- vocabulary ----------------------------------------------------


def _vocabulary(path: AnyPath, recorded: Mapping[str, Any], hints: ModelHints) -> Mapping[str, Any] | None:
    """A checkpoint's vocabulary: the user's, kept beside it, or where the run had it."""
    if hints.extra_ids is not None and recorded.get("extra_ids", hints.extra_ids) != hints.extra_ids:
        raise ValueError(f"--extra_ids {hints.extra_ids}: the run of {path} had {recorded['extra_ids']}.")
    kept = run_folder.find_vocabulary(path)
    if (vocabulary := _hinted_vocabulary(hints, recorded)) is not None:
        if kept and not run_folder.is_bytes(vocabulary):
            _check_same(vocabulary, run_folder.with_vocabulary_file(recorded, str(kept)))
        return vocabulary
    if run_folder.is_bytes(recorded):
        return _bytes(recorded.get("extra_ids"))
    file = kept or run_folder.vocabulary_file(recorded)
    if kept and storage.is_remote(kept):
        file = hf_tokenizer.temporary_file(storage.read_bytes(kept), kept.name)
    if file is None:
        return None
    if "vocab_size" in recorded:
        return run_folder.with_vocabulary_file(recorded, str(file))
    extra_ids = hints.extra_ids if hints.extra_ids is not None else recorded.get("extra_ids")
    return hf_tokenizer.describe(storage.mounted(str(file)), extra_ids)


def _check_same(given: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    """Raises ValueError if the user's vocabulary tokenizes otherwise than the one in training."""
    from tasks.pretraining import masked_text
    from tasks.vocabularies import same_vocabulary

    if not same_vocabulary(masked_text.open_vocabulary(given), masked_text.open_vocabulary(kept)):
        file, other = map(run_folder.vocabulary_file, (given, kept))
        raise ValueError(f"--vocab {file} is another vocabulary than in training, which is {other}; leave it out.")


def vocabulary_of_folder(path: Path, hints: ModelHints) -> Mapping[str, Any] | None:
    """A Hugging Face folder's vocabulary; None if it has no tokenizer.

    Raises:
      ValueError: if the hints say that it is another one.
    """
    if hints.in_bytes and (path / hf_tokenizer.SPIECE).is_file():
        raise ValueError(f"--family {hints.family}: {path} has a {hf_tokenizer.SPIECE}.")
    if (vocabulary := _hinted_vocabulary(hints, {})) is not None:
        return vocabulary
    if not any((path / name).is_file() for name in ("tokenizer_config.json", "tokenizer.json", hf_tokenizer.SPIECE)):
        return None
    tokenizer_keys.read(path, tokenizer_keys.T5, hints.ignore_config_keys)
    found = folder_tokenizer.read(path)
    if hints.extra_ids not in (None, found["extra_ids"]):
        raise ValueError(f"--extra_ids {hints.extra_ids}: the tokenizer in {path} has {found['extra_ids']}.")
    return found


def _hinted_vocabulary(hints: ModelHints, recorded: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if hints.extra_ids is not None and hints.extra_ids < 0:
        raise ValueError(f"--extra_ids {hints.extra_ids}: a number of sentinels is 0 or more.")
    if hints.in_bytes:
        if recorded and not run_folder.is_bytes(recorded):
            raise ValueError(f"--family {hints.family}: the run's vocabulary is a {recorded['class']}, not bytes.")
        if hints.vocab is not None:
            raise ValueError(f"--vocab {hints.vocab}: the vocabulary of {hints.family} is bytes; leave it out.")
        return _bytes(hints.extra_ids)
    if hints.vocab is None:
        return None
    is_json = run_folder.vocabulary_name(recorded) == run_folder.TOKENIZER
    if "vocab_size" in recorded and is_json == hints.vocab.endswith(".json"):
        return run_folder.with_vocabulary_file(recorded, hints.vocab)
    extra_ids = hints.extra_ids if hints.extra_ids is not None else recorded.get("extra_ids")
    return hf_tokenizer.describe(hints.vocab, extra_ids)


def _bytes(extra_ids: int | None) -> dict[str, Any]:
    """SeqIO's ByteVocabulary, of 256 bytes and 3 special ids. ByT5 has no sentinels of its own: bytes serve."""
    return hf_tokenizer.Tokenizer(None, hf_tokenizer.NUM_BYTE_IDS, extra_ids or 0).vocabulary


# --------------------------------------------------- command line ---------------------------------------------------


def add_hint_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that make `ModelHints`."""
    hints = parser.add_argument_group("what the files do not say (a contradiction is an error)")
    hints.add_argument("--vocab", metavar="FILE", help="the SentencePiece model, or a T5's tokenizer.json")
    hints.add_argument("--extra_ids", type=int, metavar="N", help="sentinels behind its pieces")
    hints.add_argument("--family", choices=all_families(), help="t5 is T5 1.0; Flan and LM-adapted are t5_1_1")
    hints.add_argument("--mlp_activations", nargs="+", action="extend", metavar="NAME", help="gelu linear, relu …")


def add_ignore_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the option of what reads a Hugging Face folder."""
    parser.add_argument(
        config_keys.FLAG,
        metavar="A,B",
        type=lambda keys: tuple(key for key in keys.split(",") if key),
        default=(),
        help="keys of its JSON files that have no effect on the model, as you know; else unknown ones are an error",
    )


def hints_of(args: argparse.Namespace) -> ModelHints:
    ignored = getattr(args, config_keys.FLAG.removeprefix("--"), ())
    return ModelHints(args.family, args.mlp_activations, args.vocab, args.extra_ids, ignored)
