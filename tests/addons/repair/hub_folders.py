"""Folders as the hub has them, of small random models, saved by transformers; and changes that make them wrong."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from convert.tensors import safetensors_files, weight_files
from limba.checkpoint_files.saved_tensors import from_array
from tests.convert import hub_t5s
from tests.convert.encoders.conftest import SPECIAL_TOKENS, write_tokenizer

_SIZES = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_heads": 3, "num_layers": 2, "num_decoder_layers": 2}
_T5 = _SIZES | {"vocab_size": 512, "decoder_start_token_id": 0, "n_positions": 64}
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_OF_ENCODER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
LENGTH = 64
IDS = np.array([[5, 9, 33, 47, 3, 12], [7, 8, 40, 2, 11, 50]])
STARTS = np.array([[0, 21, 4], [0, 6, 30]])


def _t5_tokenizer(folder: Path, spiece_model: Path) -> None:
    import transformers

    transformers.T5TokenizerFast(str(spiece_model), model_max_length=LENGTH).save_pretrained(folder)
    if folder.name != "t5":  # One has both files, which takes time to compare.
        (folder / "spiece.model").unlink()


def _bytes(folder: Path, first: list[str], config: Mapping[str, Any], frame: str) -> None:
    """A byte-level BPE of letters, with these tokens first, as RoBERTa and Llama have them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*first, *(letter for letter in letters if letter not in first)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in first])
    special = [(token, tokenizer.token_to_id(token)) for token in first if token in frame]
    tokenizer.post_processor = processors.TemplateProcessing(single=frame, special_tokens=special)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": LENGTH, **config}))


def _madlad(folder: Path) -> None:
    """Unigrams with padding 1 and the end 2, as MADLAD-400 has them."""
    first = ["<unk>", "<s>", "</s>"]
    pieces = [*first, "▁", *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in first])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<s>", "eos_token": "</s>"}
    config |= {"unk_token": "<unk>", "model_max_length": LENGTH}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _words(folder: Path, first: list[str], roles: Mapping[str, str], length: int) -> None:
    write_tokenizer(folder / "tokenizer.json", first)
    config = {f"{role}_token": token for role, token in roles.items()}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_OF_ROBERTA = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
_CODE = {"tokenizer_class": "RobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_PILE = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}


def _save(model: Any, folder: Path, **options: Any) -> None:
    """With weights of a size at which the embedding, and what stands for it, decide about the logits."""
    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.2 if parameter.ndim == 1 else 1.0 if "shared" in name else 0.2
            parameter.copy_(torch.randn_like(parameter) * scale + (parameter.ndim == 1) * 1.0)
    model.tie_weights()
    model.save_pretrained(folder, **options)


def write(kind: str, folder: Path, spiece_model: Path) -> Path:
    """A folder of a kind, a key of `KINDS`."""
    import transformers

    if kind in _OF_THE_HUB:
        return hub_t5s.write(_OF_THE_HUB[kind], folder)
    class_name, fields, options, tokenizer = _MADE[kind]
    model_class = getattr(transformers, class_name)
    model = model_class(model_class.config_class(**fields))
    if kind.endswith("in bfloat16"):
        model = model.to(torch.bfloat16)
    _save(model, folder, **options)
    tokenizer(folder, spiece_model)
    return folder


# With the hub's config.json and kinds of tokenizers.
_OF_THE_HUB = {"codet5+": "codet5p", "prott5 in .bin": "prott5", "prostt5": "prostt5", "aya in .bin": "aya"}
# The class, its configuration, how it is saved, and its tokenizer.
_MADE: dict[str, tuple[str, dict[str, Any], dict[str, Any], Callable[[Path, Path], None]]] = {
    "t5": ("T5ForConditionalGeneration", _T5, {}, _t5_tokenizer),
    "t5 in .bin": ("T5ForConditionalGeneration", _T5, {"safe_serialization": False}, _t5_tokenizer),
    "t5 1.1": ("T5ForConditionalGeneration", _T5 | _GATED, {}, _t5_tokenizer),
    "t5 1.1 in shards": ("T5ForConditionalGeneration", _T5 | _GATED, {"max_shard_size": "20KB"}, _t5_tokenizer),
    "t5 1.1 in bfloat16": ("T5ForConditionalGeneration", _T5 | _GATED, {}, _t5_tokenizer),
    "mt5": ("MT5ForConditionalGeneration", _T5 | _GATED, {}, _t5_tokenizer),
    "umt5 in .bin": ("UMT5ForConditionalGeneration", _T5 | _GATED, {"safe_serialization": False}, _t5_tokenizer),
    "encoder of a t5": ("T5EncoderModel", _T5 | _GATED, {}, _t5_tokenizer),
    "encoder of a umt5": ("UMT5EncoderModel", _T5 | _GATED, {}, _t5_tokenizer),
    "madlad": (
        "T5ForConditionalGeneration",
        _T5 | _GATED | {"vocab_size": 64, "pad_token_id": 1, "eos_token_id": 2},
        {},
        lambda folder, _: _madlad(folder),
    ),
    "codet5": (
        "T5ForConditionalGeneration",
        _T5 | {"vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        {},
        lambda folder, _: _bytes(folder, ["<pad>", "<s>", "</s>", "<unk>", "<mask>"], _CODE, "<s> $A </s>"),
    ),
    "pile-t5": (
        "UMT5ForConditionalGeneration",
        _T5 | _GATED | {"vocab_size": 300, "bos_token_id": 1, "eos_token_id": 2, "feed_forward_proj": "gated-silu"},
        {},
        lambda folder, _: _bytes(folder, ["<unk>", "<s>", "</s>"], _PILE, "$A </s>"),
    ),
    "bert": (
        "BertForMaskedLM",
        _OF_ENCODER | {"vocab_size": 64, "max_position_embeddings": 48},
        {},
        lambda folder, _: _words(folder, SPECIAL_TOKENS, _ROLES, 48),
    ),
    "bert in .bin": (
        "BertForMaskedLM",
        _OF_ENCODER | {"vocab_size": 64, "max_position_embeddings": 48},
        {"safe_serialization": False},
        lambda folder, _: _words(folder, SPECIAL_TOKENS, _ROLES, 48),
    ),
    "roberta": (
        "RobertaForMaskedLM",
        _OF_ENCODER | {"vocab_size": 64, "max_position_embeddings": 50, "type_vocab_size": 1, "pad_token_id": 1},
        {},
        lambda folder, _: _words(folder, _OF_ROBERTA, _ROLES, 48),
    ),
}


KINDS = (*_MADE, *_OF_THE_HUB)


# ------------------------------------------------------ changes ------------------------------------------------------


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    return {name: np.asarray(tensor) for name, tensor in weight_files.open_tensors(folder).items()}


def write_tensors(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """As model.safetensors, in the place of what the folder has."""
    for format_ in weight_files.formats([file.name for file in folder.iterdir()]):
        for file in weight_files.find(folder, format_)[1]:
            file.unlink()
        (folder / weight_files.index_name(weight_files.FILES[format_])).unlink(missing_ok=True)
    stored = {name: from_array(np.ascontiguousarray(x)) for name, x in tensors.items()}
    safetensors_files.write(folder, stored, lambda num_bytes: None, 10**9)


def rename_tensors(folder: Path, names: Mapping[str, str]) -> None:
    write_tensors(folder, {names.get(name, name): x for name, x in tensors_of(folder).items()})


def change(folder: Path, file: str, **keys: Any) -> None:
    """Sets keys of a file of JSON; None takes one away."""
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    content |= keys
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
