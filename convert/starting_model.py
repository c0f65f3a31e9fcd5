"""The model that a Hugging Face script names: `model_name_or_path`, `config_name`, `tokenizer_name` of `limba run`."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convert import from_hf
from convert.encoders import encoder_model, new_network, tokenizer_folder
from convert.encoders.table import find_family
from convert.families import byt5, hf_config
from convert.hf import hub_models
from convert.model_files import any_format
from convert.model_files.any_format import ModelHints
from convert.t5x import limba_run
from convert.tensors import weight_files
from limba.checkpoint_files import run_folder
from limba.encoders.config import EncoderConfig
from limba.machine import json_text
from limba.machine.local_paths import local_path
from limba.machine.storage import AnyPath
from limba.network import own_layers
from limba.network.t5 import T5Config

# What transformers' T5Config takes where a config.json says nothing.
_SIZES = {"vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}


@dataclasses.dataclass(frozen=True)
class StartingModel:
    """The model that a training starts from; no weight is read yet.

    Attributes:
      path: a folder of transformers' with weights, or a config.json.
      has_weights: whether there are any; else training is from scratch.
      hints: where the vocabulary is, if it is not the folder's own.
      vocabulary: as `run.json` describes it.
      network: of config.json.
      step: that the weights are of, where Limba exported them; else 0.
      content: of the config.json of a T5, with every size, where there are no weights.
    """

    path: Path
    has_weights: bool
    hints: ModelHints
    vocabulary: Mapping[str, Any]
    network: T5Config | EncoderConfig
    step: int
    content: Mapping[str, Any] | None = None

    @property
    def encoder(self) -> EncoderConfig | None:
        """The network, where it is an encoder and no T5."""
        return self.network if isinstance(self.network, EncoderConfig) else None

    @functools.cached_property
    def no_export(self) -> str:
        """Why no class of Hugging Face holds the network; "" if one does."""
        return _no_class(self.network)

    def write(self, out: Path) -> Path:
        """Writes OUT/model.gin, which is returned, and OUT/checkpoint_<step> if there are weights; see `from_hf`.

        What is there already is left.
        """
        gin_file = out / limba_run.MODEL_GIN
        if gin_file.is_file():
            return gin_file
        path = self.path
        if self.content is not None:
            out.mkdir(parents=True, exist_ok=True)
            path = out / "config.json"
            path.write_text(json_text.dumps(self.content, indent=2), "utf-8")
        from_hf.from_hf(path, out, hints=self.hints)
        return gin_file


def open_model(
    model: str | None, config: str | None, tokenizer: str | None, ignored: tuple[str, ...] = ()
) -> StartingModel:
    """Finds a model and its vocabulary, on this machine or on the hub.

    Args:
      model: model_name_or_path; or
      config: config_name: a config.json, a folder or a name, of a network to train from scratch.
      tokenizer: tokenizer_name: a folder, a SentencePiece model or a name; None takes the model's own.
      ignored: keys of the model's files that have no effect.

    Raises:
      FileNotFoundError: if something is not there, or has no vocabulary.
      ValueError: if it is damaged, or neither a T5 nor an encoder that Limba has.
    """
    path = from_hf.find(model or config or "")
    if encoder_model.is_encoder(path):
        vocab = tokenizer and str(_local_tokenizer(tokenizer))
        return _open_encoder(path, model, ModelHints(vocab=vocab, ignore_config_keys=ignored))
    hints = dataclasses.replace(_hints(tokenizer), ignore_config_keys=ignored)
    if model is not None:
        if path.is_file() or not weight_files.formats([file.name for file in path.iterdir()]):
            raise FileNotFoundError(
                f"model_name_or_path {model!r} has no weights ({path}); to train from scratch give it as config_name."
            )
        opened = any_format.open_model(path, hints)
        if opened.vocabulary is None:
            raise _no_vocabulary(path)
        return StartingModel(path, True, hints, opened.vocabulary, opened.config, opened.step)
    file = path if path.is_file() else path / "config.json"
    content = _SIZES | hf_config.read(file, ignored)
    network = hf_config.network_config(file, content)
    vocabulary = any_format.vocabulary_of_folder(file.parent, hints)
    if vocabulary is None:
        raise _no_vocabulary(file)
    if tokenizer is None and not run_folder.is_bytes(vocabulary):
        # The completed config.json lies elsewhere.
        hints = dataclasses.replace(
            hints, vocab=vocabulary["sentencepiece_model_file"], extra_ids=vocabulary["extra_ids"]
        )
    return StartingModel(file, False, hints, vocabulary, network, 0, content)


def _open_encoder(path: Path, model: str | None, hints: ModelHints) -> StartingModel:
    """As `open_model`, of an encoder."""
    if model is not None:
        opened = encoder_model.open_model(path, hints)
        network, head, vocabulary, step = opened.config, opened.head, opened.known_vocabulary(), opened.step
    else:
        file = path if path.is_file() else path / "config.json"
        (network, head, _), step = new_network.read_network(file, hints.ignore_config_keys), 0
        tokenizer = new_network.tokenizer_beside(file, hints)
        if tokenizer is None:
            raise _no_vocabulary(file)
        vocabulary = tokenizer_folder.describe(tokenizer)
        hints = ModelHints(vocab=str(tokenizer))
    if head.labels:
        raise ValueError(
            f"{path} is a {head.class_name} of the labels {', '.join(head.labels)}, and `limba run` trains masked "
            "language models; docs/encoders.md shows a classifier."
        )
    return StartingModel(path, model is not None, hints, vocabulary, network, step)


def _no_class(network: T5Config | EncoderConfig) -> str:
    if isinstance(network, T5Config):
        own = own_layers.of(network)
        return f"No class of Hugging Face holds this T5: it has {', '.join(own)}." if own else ""
    try:
        find_family(network)
    except ValueError as error:
        return str(error)
    return ""


def no_class_of_run(checkpoint: AnyPath) -> str:
    """Why no class of Hugging Face holds a checkpoint of Limba; "" if one does."""
    fields = run_folder.load_run_info(checkpoint)["network"]
    return _no_class(EncoderConfig.from_json(fields) if encoder_model.is_encoder(checkpoint) else T5Config(**fields))


def _no_vocabulary(path: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{path} has no tokenizer beside it; give tokenizer_name: a folder of transformers', a spiece.model or a name."
    )


def _local_tokenizer(tokenizer: str) -> Path:
    """The file or folder of a tokenizer, downloaded if it is a name on the hub."""
    path = local_path(tokenizer)
    if path.exists():
        return path
    if not hub_models.is_name(tokenizer):
        raise FileNotFoundError(f"tokenizer_name {tokenizer!r} is neither a folder, a file nor a name on the hub.")
    hf = hub_models.client()
    with hub_models.plain_errors(hf, tokenizer):
        return Path(hf.snapshot_download(tokenizer, allow_patterns=["*.json", "*.model"]))


def _hints(tokenizer: str | None) -> ModelHints:
    if tokenizer is None:
        return ModelHints()
    path = _local_tokenizer(tokenizer)
    if path.is_file():
        return ModelHints(vocab=str(path))
    vocabulary = any_format.vocabulary_of_folder(path, ModelHints())
    if vocabulary is None:
        raise FileNotFoundError(f"tokenizer_name {tokenizer!r}: {path} has no tokenizer.")
    if run_folder.is_bytes(vocabulary):
        return ModelHints(family=byt5.FAMILY.name, extra_ids=vocabulary["extra_ids"])
    return ModelHints(vocab=vocabulary["sentencepiece_model_file"], extra_ids=vocabulary["extra_ids"])
