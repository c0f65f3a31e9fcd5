"""A Hugging Face folder as it lies on the disk: JSON files, tensors by their names, ids of tokens.

Limba's readers refuse a folder that contradicts itself. Here it is read so far that one can say what is wrong.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.families.config_files import other_models
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.convert.families.family import Family
from limba.convert.families.t5_family import T5Family
from limba.convert.families.table import of_config, t5_families
from limba.convert.model_files.hf import hf_folder, hf_tokenizer, older_tokenizers
from limba.convert.tensors import array_files, weight_files
from limba.files import untrusted_files, untrusted_json
from limba.files.untrusted_files import shown
from limba.tasks.vocabularies import damaged_models

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"
_MAP = "special_tokens_map.json"
ROLES = ("pad", "eos", "bos", "cls", "sep", "mask", "unk")
_T5 = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}
_BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_ROBERTA = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
# What classes of transformers take for a role that no file names, by the beginning of their names.
_OF_CLASSES = {
    **dict.fromkeys(("T5", "MT5", "ByT5"), _T5),
    **dict.fromkeys(("Bert", "RoFormer", "DistilBert", "Electra"), _BERT),
    **dict.fromkeys(("Roberta", "XLMRoberta", "Camembert"), _ROBERTA),
    "MPNet": _ROBERTA | {"unk": "[UNK]"},
    "Llama": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
}
# Names that transformers' classes have for a SentencePiece model with T5's order of ids.
_PIECES = (hf_tokenizer.SPIECE, "tokenizer.model", "sentencepiece.model")


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokenizer of a folder.

    Attributes:
      file: which says the ids.
      size: one more than the highest id.
      special_ids: by role, of those that the tokenizer has.
    """

    file: str
    size: int
    special_ids: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class HubFolder:
    """A folder.

    Attributes:
      files: the contents of config.json, generation_config.json and tokenizer_config.json; {} for a missing one.
      format: of the weights that transformers loads: "safetensors", "torch" or "flax".
      tensors: of these weights, without the names of wrappers.
    """

    path: Path
    family: Family
    files: Mapping[str, Mapping[str, Any]]
    format: str
    tensors: Mapping[str, SavedTensor]

    @property
    def config(self) -> Mapping[str, Any]:
        """With what the class in transformers takes for keys that are not there."""
        given = {key: value for key, value in self.files[CONFIG].items() if value is not None}
        return self.family.completed(given)

    @property
    def is_encoder_alone(self) -> bool:
        return not self.family.has_decoder or other_models.is_encoder_alone(self.files[CONFIG])

    @property
    def is_classifier(self) -> bool:
        """Whether it is a T5 with labels in the place of an output."""
        classes = self.files[CONFIG].get("architectures") or ("",)
        return self.family.has_decoder and any(end in str(classes[0]) for end in _LABELS)

    @property
    def generates(self) -> bool:
        """Whether it is of a class with `generate`."""
        return not (self.is_encoder_alone or self.is_classifier)

    @property
    def of_generate(self) -> str:
        """The file by which `generate` goes, whatever the other one says."""
        return GENERATION if (self.path / GENERATION).is_file() else CONFIG

    @property
    def weights_file(self) -> str:
        """The name of the weights, for messages."""
        return weight_files.FILES[self.format]


# The library has ids of 32 bits.
_MOST_IDS = 2**32
_LABELS = ("ForSequenceClassification", "ForTokenClassification")


def read(path: Path) -> HubFolder:
    """A folder with the weights that transformers loads.

    Raises:
      FileNotFoundError: if a file is not there, such as a shard.
      ValueError: if a file is damaged, or the network is none that Limba converts.
    """
    hf_folder.check_entries(path)
    files = {name: hf_tokenizer.read_json(path / name) for name in (CONFIG, GENERATION, TOKENIZER)}
    other_models.check_classes(path / CONFIG, files[CONFIG])
    family = of_config(files[CONFIG])
    if family is None:
        known = dict.fromkeys(family.model_type for family in t5_families().values() if not family.is_typeless)
        raise other_models.refuse_type(path / CONFIG, files[CONFIG].get("model_type"), [*known])
    if isinstance(family, T5Family) and family.layer_kind != "t5":
        raise ValueError(f"{path} is of {family.title}, which `limba convert repair` does not know; from-hf does.")
    format_, _ = weight_files.find(path)
    tensors = weight_files.open_tensors(path, format_, buffers_of(family))
    return HubFolder(path, family, files, format_, tensors)


def buffers_of(family: Family) -> str:
    """The pattern of names of tensors that are no parameters."""
    return family.buffers if isinstance(family, EncoderFamily) else array_files.NONE


def tokens_of(folder: HubFolder) -> Tokens | None:
    """The ids of a folder's tokens; None if it has no tokenizer.

    Raises:
      ValueError: if its files are damaged.
    """
    path, config = folder.path, folder.files[TOKENIZER]
    if str(config.get("tokenizer_class", "")).startswith("ByT5"):
        extra = config.get("extra_ids", 125)
        size = hf_tokenizer.NUM_BYTE_IDS + _count(extra)
        return Tokens(TOKENIZER, size, {"pad": 0, "eos": 1, "unk": 2})
    file, ids = _ids(path)
    if not ids:
        return None
    named = {role: _text(token) for role, token in _named(folder).items() if token is not None}
    size = max(ids.values()) + 1
    if file == hf_tokenizer.SPIECE and folder.family.has_decoder and "<extra_id_0>" not in ids:
        extra = config.get("extra_ids", hf_tokenizer.DEFAULT_EXTRA_IDS)  # T5's class adds them behind the pieces.
        size += _count(extra)
    return Tokens(file, size, {role: ids[token] for role, token in named.items() if token in ids})


def _count(extra_ids: Any) -> int:
    return extra_ids if type(extra_ids) is int and 0 <= extra_ids < _MOST_IDS else 0


def _text(token: Any) -> str:
    """Of a token, which may have flags."""
    return str(token.get("content") if isinstance(token, Mapping) else token)


def _named(folder: HubFolder) -> dict[str, Any]:
    """The special tokens by role: those of the files, and else the class's."""
    config = folder.files[TOKENIZER]
    named = {**hf_tokenizer.read_json(folder.path / _MAP), **config}
    found = str(config.get("tokenizer_class") or folder.files[CONFIG].get("tokenizer_class") or "")
    usual: Mapping[str, str] = next((roles for name, roles in _OF_CLASSES.items() if found.startswith(name)), {})
    if not found:
        usual = _T5 if folder.family.has_decoder else _BERT if folder.family.name == "bert" else _ROBERTA
    return {role: named.get(f"{role}_token", usual.get(role)) for role in ROLES}


def _ids(path: Path) -> tuple[str, dict[str, int]]:
    """The file that says a folder's ids, and these by token; none if there is no such file."""
    if (path / "tokenizer.json").is_file():
        return "tokenizer.json", _of_json(untrusted_json.read_object(path / "tokenizer.json"), path)
    for name in _PIECES:
        if (path / name).is_file():
            return name, _of_pieces(path, name)
    if older_tokenizers.has_files(path):
        content = json.loads(older_tokenizers.content(path))
        return "the tokenizer's files", _of_json(content, path) | _added(path)
    return "", {}


def _of_json(content: Mapping[str, Any], path: Path) -> dict[str, int]:
    try:
        vocab = content["model"]["vocab"]
        ids = {piece: i for i, (piece, _) in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
        ids |= {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
        assert all(type(id_) is int and 0 <= id_ < _MOST_IDS for id_ in ids.values())
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path / 'tokenizer.json'} is damaged: it does not say the ids of its tokens.") from error
    return ids


def _of_pieces(path: Path, name: str) -> dict[str, int]:
    model, content = sentencepiece.SentencePieceProcessor(), untrusted_files.read_bytes(path / name)
    try:
        damaged_models.check(sentencepiece_model_pb2.ModelProto.FromString(content), str(path / name))
        model.LoadFromSerializedProto(content)
    except (DecodeError, RuntimeError) as error:
        raise ValueError(f"{path / name} is damaged, or no SentencePiece model.") from error
    return {model.id_to_piece(i): i for i in range(model.get_piece_size())} | _added(path)


def _added(path: Path) -> dict[str, int]:
    """added_tokens.json, and what tokenizer_config.json says instead."""
    found: dict[str, int] = {}
    for token, id_ in hf_tokenizer.read_json(path / "added_tokens.json").items():
        if type(id_) is int and 0 <= id_ < _MOST_IDS:
            found[token] = id_
    decoder = hf_tokenizer.read_json(path / TOKENIZER).get("added_tokens_decoder") or {}
    # Python has no number for digits such as "²", nor for thousands of them.
    if not isinstance(decoder, dict) or not all(re.fullmatch("[0-9]{1,10}", number) for number in decoder):
        raise ValueError(
            f"{path / TOKENIZER} is damaged: added_tokens_decoder is {shown(decoder)}; it has tokens by their ids."
        )
    return found | {_text(token): int(number) for number, token in decoder.items()}
