"""A T5 as llama.cpp's file has it: names of tensors, settings and pieces.

llama.cpp's T5 never scales logits, so the output of a tied T5 is the embedding divided by sqrt(d_model). Its MLP has
the tanh GELU with a gate, and ReLU without. A layer without a table of relative positions has that of the first layer.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from limba.addons.engines.engine_export import stored
from limba.addons.engines.llama_cpp import library
from limba.convert.families import heads
from limba.convert.families.config_files import t5_config
from limba.convert.model_files.hf.hf_tokenizer import Tokenizer
from limba.convert.model_files.model import T5Model
from limba.network.layers import LayerNorm
from limba.network.t5 import NUM_BUCKETS

NAME = "model.gguf"
SHARED, OUTPUT = "shared.weight", "lm_head.weight"
# Numbers of gguf's types, by our names of them.
QUANTIZATIONS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}
_NUMBERS_OF_A_BLOCK = 32
# SentencePiece's numbers of the types of pieces, which are GGUF's.
_USER_DEFINED, _UNUSED = 4, 5
_MLPS = (("relu",), ("gelu", "linear"))


@dataclasses.dataclass(frozen=True)
class Pieces:
    """One of each for a row of the embedding."""

    tokens: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def check(model: T5Model) -> None:
    """Raises ValueError for a model that llama.cpp does not have."""
    if model.head != heads.OF_T5:
        raise ValueError(f"{model.path} is a classifier of tokens, which llama.cpp does not have on a T5.")
    if model.family.layer_kind != "t5":
        raise ValueError(
            f"{model.path} is {model.family.title}, and llama.cpp has no such encoder-decoder; `limba convert to-hf` "
            "exports it."
        )
    t5_config.model_config(model.config, model.family, "float32", None)  # What Hugging Face's T5 cannot express.
    if tuple(model.config.mlp_activations) not in _MLPS:
        raise ValueError(
            f"mlp_activations is {tuple(model.config.mlp_activations)}; llama.cpp's T5 has ('relu',), and ('gelu', "
            "'linear')."
        )
    if model.config.decoder_start_token_id != 0:
        raise ValueError(
            f"decoder_start_token_id is {model.config.decoder_start_token_id}; llama.cpp's programs begin T5s with 0."
        )


def pieces_of(tokenizer: Tokenizer, num_rows: int) -> Pieces:
    """Raises ValueError for a vocabulary that is no unigram model of SentencePiece."""
    where = tokenizer.model_file
    if tokenizer.model is None:
        what = "of bytes" if where is None else f"{where}, which no SentencePiece model equals"
        raise ValueError(f"The vocabulary is {what}; llama.cpp's T5s have a unigram model of SentencePiece.")
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        raise ValueError(f"{where} is no unigram model of SentencePiece, which llama.cpp's T5s have.")
    tokens, scores, types = ([getattr(p, name) for p in proto.pieces] for name in ("piece", "score", "type"))
    rest = num_rows - len(tokens)
    tokens += [f"<unused_{i}>" for i in range(rest)]
    scores, types = [*scores, *[0.0] * rest], [*types, *[_UNUSED] * rest]
    for id_, token in tokenizer.special_tokens.items():
        if id_ > 2:  # A sentinel, wherever it lies: a token that a text may have, and one that is shown.
            tokens[id_], scores[id_], types[id_] = token, 0.0, _USER_DEFINED
    normalizer = proto.normalizer_spec
    return Pieces(
        tokens,
        scores,
        types,
        normalizer.precompiled_charsmap,
        normalizer.add_dummy_prefix,
        normalizer.remove_extra_whitespaces,
    )


def tensors(model: T5Model) -> dict[str, Any]:
    """The tensors by Hugging Face's names, with an output of its own."""
    found: dict[str, Any] = stored(model)
    if model.config.logits_via_embedding:
        found[OUTPUT] = found[SHARED]
    return found


def scale_of(name: str, model: T5Model) -> np.float32:
    """What a tensor is multiplied by in the file."""
    is_tied_output = name == OUTPUT and model.config.logits_via_embedding
    return np.float32(model.config.emb_dim**-0.5) if is_tied_output else np.float32(1)


def names(model: T5Model) -> dict[str, str]:
    """llama.cpp's names by Hugging Face's."""
    gguf, layers = library.package(), max(model.config.num_encoder_layers, model.config.num_decoder_layers)
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5, layers)
    return {name: known.get_name(name, try_suffixes=(".weight",)) for name in tensors(model)}


def quantization_of(name: str, shape: Sequence[int], quantization: str) -> str:
    """That of one tensor: norms and tables of positions are float32, and rows that are no whole blocks float16."""
    if len(shape) < 2 or "relative_attention_bias" in name:
        return "float32"
    return "float16" if quantization == "q8_0" and shape[-1] % _NUMBERS_OF_A_BLOCK else quantization


def write(model: T5Model, pieces: Pieces, quantization: str, file: Path, context_length: int) -> None:
    """Writes the file. Memory: all weights, as they are stored.

    Raises:
      ValueError: if a tensor holds NaN or infinite values, or too large ones for float16.
    """
    gguf = library.package()
    writer = gguf.GGUFWriter(str(file), "t5")
    for key, value in settings(model, context_length).items():
        getattr(writer, f"add_{key}")(value)
    writer.add_file_type(
        gguf.LlamaFileType[f"{'ALL' if quantization == 'float32' else 'MOSTLY'}_{QUANTIZATIONS[quantization]}"]
    )
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces.tokens)
    writer.add_token_scores(pieces.scores)
    writer.add_token_types(pieces.types)
    writer.add_add_space_prefix(pieces.add_dummy_prefix)
    writer.add_remove_extra_whitespaces(pieces.remove_extra_whitespaces)
    if pieces.charsmap:
        writer.add_precompiled_charsmap(pieces.charsmap)
    by_name = names(model)
    for name, tensor in tqdm(tensors(model).items(), "writing tensors", unit="tensor", disable=None):
        values = np.asarray(tensor).astype(np.float32) * scale_of(name, model)
        own = quantization_of(name, values.shape, quantization)
        too_large = own == "float16" and np.abs(values).max(initial=0) > np.finfo(np.float16).max
        if too_large or not np.isfinite(values).all():
            what = "numbers beyond float16's 65,504" if too_large else "NaN or infinite values"
            raise ValueError(f"{model.path}: {name} holds {what}.")
        kind = gguf.GGMLQuantizationType[QUANTIZATIONS[own]]
        writer.add_tensor(by_name[name], gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def settings(model: T5Model, context_length: int) -> Mapping[str, Any]:
    """By the names of gguf's writer."""
    config = model.config
    return {
        "name": str(getattr(model.path, "name", model.path)),
        "context_length": context_length,
        "embedding_length": config.emb_dim,
        "feed_forward_length": config.mlp_dim,
        "block_count": config.num_encoder_layers,
        "decoder_block_count": config.num_decoder_layers,
        "head_count": config.num_heads,
        "key_length": config.head_dim,
        "value_length": config.head_dim,
        "layer_norm_eps": LayerNorm.epsilon,
        "layer_norm_rms_eps": LayerNorm.epsilon,
        "relative_attn_buckets_count": NUM_BUCKETS,
        "decoder_start_token_id": config.decoder_start_token_id,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "unk_token_id": 2,
        "add_bos_token": False,
        "add_eos_token": True,
    }
