"""The model that a Hugging Face script names: `model_name_or_path`, `config_name`, `tokenizer_name` of `limba run`."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convert import from_hf, hf_config, hub, limba_run, models, weight_files
from convert.models import Told

# What transformers' T5Config takes where a config.json says nothing.
_SIZES = {"vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}


@dataclasses.dataclass(frozen=True)
class StartingModel:
    """What a training begins with; no weight is read yet.

    Attributes:
      path: a folder of transformers' with weights, or a config.json.
      has_weights: whether there are any; else training is from scratch.
      told: where the vocabulary is, if it is not the folder's own.
      vocabulary: as `run.json` describes it.
      dropout_rate: of config.json.
      step: that the weights are of, where Limba exported them; else 0.
      content: of config.json, with every size, where there are no weights.
    """

    path: Path
    has_weights: bool
    told: Told
    vocabulary: Mapping[str, Any]
    dropout_rate: float
    step: int
    content: Mapping[str, Any] | None = None

    def write(self, out: Path) -> Path:
        """Writes OUT/model.gin, and OUT/checkpoint_<step> if there are weights; what is there already is left.

        Returns:
          The gin file.

        Raises:
          ValueError: as `from_hf`.
        """
        gin_file = out / limba_run.MODEL_GIN
        if gin_file.is_file():
            return gin_file
        path = self.path
        if self.content is not None:
            out.mkdir(parents=True, exist_ok=True)
            path = out / "config.json"
            path.write_text(json.dumps(self.content, indent=2), "utf-8")
        from_hf.from_hf(path, out, told=self.told)
        return gin_file


def open_model(model: str | None, config: str | None, tokenizer: str | None) -> StartingModel:
    """Finds a model and its vocabulary, on this machine or on the hub.

    Args:
      model: model_name_or_path; or
      config: config_name: a config.json, a folder or a name, of a network to train from scratch.
      tokenizer: tokenizer_name: a folder, a SentencePiece model or a name; None takes the model's own.

    Raises:
      FileNotFoundError: if something is not there, or has no vocabulary.
      ValueError: if it is damaged or no T5.
    """
    told = _told(tokenizer)
    path = from_hf.find(model or config or "")
    if model is not None:
        if path.is_file() or not weight_files.formats([file.name for file in path.iterdir()]):
            raise FileNotFoundError(
                f"model_name_or_path {model!r} has no weights ({path}); to train from scratch give it as config_name."
            )
        opened = models.open_model(path, told)
        if opened.vocabulary is None:
            raise _no_vocabulary(path)
        rate = hf_config.network_config(path / "config.json", hf_config.read(path / "config.json")).dropout_rate
        return StartingModel(path, True, told, opened.vocabulary, rate, opened.step)
    file = path if path.is_file() else path / "config.json"
    content = _SIZES | hf_config.read(file)
    network = hf_config.network_config(file, content)
    vocabulary = models.vocabulary_of_folder(file.parent, told)
    if vocabulary is None:
        raise _no_vocabulary(file)
    if told == Told() and vocabulary["class"] == "SentencePieceVocabulary":
        # The completed config.json lies elsewhere.
        told = Told(vocab=vocabulary["sentencepiece_model_file"], extra_ids=vocabulary["extra_ids"])
    return StartingModel(file, False, told, vocabulary, network.dropout_rate, 0, content)


def _no_vocabulary(path: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{path} has no tokenizer beside it; give tokenizer_name: a folder of transformers', a spiece.model or a name."
    )


def _told(tokenizer: str | None) -> Told:
    if tokenizer is None:
        return Told()
    path = Path(tokenizer).expanduser().absolute()
    if path.is_file():
        return Told(vocab=str(path))
    if not path.is_dir():
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", tokenizer):
            raise FileNotFoundError(f"tokenizer_name {tokenizer!r} is neither a folder, a file nor a name on the hub.")
        path = _download_tokenizer(tokenizer)
    vocabulary = models.vocabulary_of_folder(path, Told())
    if vocabulary is None:
        raise FileNotFoundError(f"tokenizer_name {tokenizer!r}: {path} has no tokenizer.")
    if vocabulary["class"] == "ByteVocabulary":
        return Told(family="byt5", extra_ids=vocabulary["extra_ids"])
    return Told(vocab=vocabulary["sentencepiece_model_file"], extra_ids=vocabulary["extra_ids"])


def _download_tokenizer(name: str) -> Path:
    hf = hub.client()
    with hub.plain_errors(hf, name):
        return Path(hf.snapshot_download(name, allow_patterns=["*.json", "*.model"]))
