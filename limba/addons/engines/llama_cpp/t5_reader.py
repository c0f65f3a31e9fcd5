"""A GGUF file of a T5, read by the package gguf, and what llama.cpp computes with it, in NumPy.

No package of Python runs a T5 of llama.cpp. So the file alone says the network here: sizes and epsilon are its
settings, tensors its own, dequantized; nothing is scaled that llama.cpp does not scale.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from limba.addons.engines import t5_check
from limba.addons.engines.llama_cpp import library, t5_file
from limba.addons.engines.llama_cpp.t5_file import Pieces
from limba.checkpoint_files import saved_tensors
from limba.convert.compare import float64, numpy_t5, t5_outputs
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.families.config_files import t5_config
from limba.convert.model_files.model import Folder, T5Model
from limba.network.t5 import MAX_DISTANCE

_ARCHITECTURE = "t5"
# A text of the file is its length and its bytes.
_NAME, _LENGTH_BYTES, _MOST_OF_NAME = "general.name", 8, 2**16
_AT_A_TIME = 2**24


def is_same(written: Path, found: Path) -> bool:
    """Whether a file that was found has the bytes of one that was written, but for the model's name.

    The package gguf reads the written one alone: of a text of 8 bytes it keeps some hundred bytes of objects, and it
    calls itself for each list in a list.
    """
    reader = library.package().GGUFReader(str(written))
    name = reader.fields[_NAME]
    *before, _, text = name.parts
    begin, infos = name.offset + sum(part.nbytes for part in before), [x.field for x in reader.tensors]
    end = max(info.offset + sum(part.nbytes for part in info.parts) for info in infos)
    with written.open("rb") as ours, found.open("rb") as theirs:
        if not _go_on_alike(ours, theirs, begin):
            return False
        ours.seek(_LENGTH_BYTES + text.nbytes, os.SEEK_CUR)
        length = int.from_bytes(theirs.read(_LENGTH_BYTES), "little")
        if length > _MOST_OF_NAME:
            return False
        theirs.seek(length, os.SEEK_CUR)
        if not _go_on_alike(ours, theirs, end - ours.tell()):
            return False
        for file in (ours, theirs):  # Tensors begin at a multiple of the alignment.
            if any(file.read(-file.tell() % reader.alignment)):
                return False
        return _go_on_alike(ours, theirs, written.stat().st_size - ours.tell()) and not theirs.read(1)


def _go_on_alike(a: BinaryIO, b: BinaryIO, num_bytes: int) -> bool:
    """Whether the next bytes of two files are the same."""
    for start in range(0, num_bytes, _AT_A_TIME):
        block = a.read(min(_AT_A_TIME, num_bytes - start))
        if block != b.read(len(block)):
            return False
    return True


class File:
    """An opened file.

    Attributes:
      fields: the settings by key.
      tensors: in float32, by llama.cpp's names.
    """

    def __init__(self, file: Path):
        gguf = library.package()
        reader = gguf.GGUFReader(str(file))
        self.fields: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
        self.tensors: dict[str, np.ndarray] = {
            x.name: gguf.quants.dequantize(x.data, x.tensor_type).reshape(tuple(int(n) for n in x.shape[::-1]))
            for x in reader.tensors
        }

    def of_t5(self, name: str) -> Any:
        """A setting of the architecture."""
        return self.fields[f"{_ARCHITECTURE}.{name}"]

    def content(self) -> dict[str, Any]:
        """What config.json would say of the network."""
        is_gated = "enc.blk.0.ffn_gate.weight" in self.tensors
        return {
            "d_model": self.of_t5("embedding_length"),
            "d_kv": self.of_t5("attention.key_length"),
            "d_ff": self.of_t5("feed_forward_length"),
            "num_heads": self.of_t5("attention.head_count"),
            "num_layers": self.of_t5("block_count"),
            "num_decoder_layers": self.of_t5("decoder_block_count"),
            "layer_norm_epsilon": self.of_t5("attention.layer_norm_rms_epsilon"),
            "relative_attention_num_buckets": self.of_t5("attention.relative_buckets_count"),
            "relative_attention_max_distance": MAX_DISTANCE,  # which llama.cpp has in its code
            "feed_forward_proj": "gated-gelu" if is_gated else "relu",
            "pad_token_id": self.fields["tokenizer.ggml.padding_token_id"],
            "tie_word_embeddings": False,
        }


def compare(model: T5Model, pieces: Pieces, quantization: str, path: Path, context_length: int) -> list[Comparison]:
    """Compares a file with the model that it was made of. Raises ValueError if it cannot be read."""
    try:
        file = File(path)
    except (ValueError, KeyError, IndexError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    names = t5_file.names(model)
    rows = [_settings(model, file, context_length), _pieces(file, pieces), _tensors(model, file, names, quantization)]
    return [*rows, *_logits(model, file, names, quantization)]


def _settings(model: T5Model, file: File, context_length: int) -> Comparison:
    content = t5_config.model_config(model.config, model.family, "float32", None)
    expected = t5_config.explicit(content, model.config) | {"context_length": context_length, "pad_token_id": 0}
    found = file.content() | {"context_length": file.of_t5("context_length")}
    del found["tie_word_embeddings"]  # The output is a tensor of its own.
    # Numbers are float32 in the file.
    differ = [key for key, x in found.items() if x != expected[key] and np.float32(x) != np.float32(expected[key])]
    return Comparison("settings that differ", len(differ), 0, ", ".join(differ) or f"of {len(found)}")


def _pieces(file: File, pieces: Pieces) -> Comparison:
    found = [file.fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type")]
    expected = [pieces.tokens, np.asarray(pieces.scores, np.float32).tolist(), pieces.types]
    differ = sum(x != y for x, y in zip(zip(*found, strict=True), zip(*expected, strict=True), strict=True))
    charsmap = bytes(np.asarray(file.fields.get("tokenizer.ggml.precompiled_charsmap", []), np.uint8))
    differ += charsmap != pieces.charsmap
    return Comparison("pieces that differ", int(differ), 0, f"of {len(pieces.tokens)}")


def _tensors(model: T5Model, file: File, names: Mapping[str, str], quantization: str) -> Comparison:
    """Of each tensor the largest difference must be that of the rounding."""
    stored, differ = t5_file.tensors(model), []
    for name, own in names.items():
        values = np.asarray(stored[name]).astype(np.float32) * t5_file.scale_of(name, model)
        found = file.tensors.get(own)
        if found is None or found.shape != values.shape:
            differ.append(own)
            continue
        kind = t5_file.quantization_of(name, values.shape, quantization)
        if not (np.abs(found - values) <= _rounding(values, kind)).all():
            differ.append(own)
    differ += sorted(file.tensors.keys() - {*names.values()})
    return Comparison("tensors that differ", len(differ), 0, ", ".join(differ[:3]) or f"of {len(names)}")


def _rounding(values: np.ndarray, kind: str) -> np.ndarray:
    """What a number may be changed by."""
    if kind == "float32":
        return np.zeros_like(values)
    if kind == "q8_0":  # Each 32 numbers have a scale, their largest by 127, in float16.
        blocks = values.reshape(*values.shape[:-1], -1, 32)
        largest = np.abs(blocks).max(-1, keepdims=True)
        return (np.broadcast_to(largest, blocks.shape) / 127 * (0.5 + 127 * 2.0**-11) + 1e-7).reshape(values.shape)
    return np.abs(values) * (2.0**-11 if kind == "float16" else 2.0**-8) + 6e-8


def _logits(model: T5Model, file: File, names: Mapping[str, str], quantization: str) -> Iterator[Comparison]:
    """The file in NumPy beside the model; of quantized ones figures, of which nothing is demanded."""
    inputs, targets = t5_check.rows_of(model)
    batch = {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": t5_check.decoder_inputs(model, targets),
        "decoder_target_tokens": targets,
    }
    stored = {name: saved_tensors.from_array(file.tensors[own]) for name, own in names.items() if own in file.tensors}
    if stored.keys() != names.keys():
        return
    found = numpy_t5.logits(
        numpy_t5.TorchWeights(stored), file.content(), inputs, batch["decoder_input_tokens"], float64.Rounding()
    )
    is_token = targets != t5_check.PAD
    of_file = t5_check.scores(found, targets)[is_token]
    if quantization != "float32":
        ours = t5_outputs.in_limba(model, batch)["logits"]
        before, after = (-float(x.mean()) for x in (t5_check.scores(ours, targets)[is_token], of_file))
        note = f"{after - before:+.6f}: {after:.6f} in the file, {before:.6f} with the model's own weights in float32"
        yield Comparison(f"loss, {quantization}", None, 0, note)
        same = int((ours.argmax(-1) == found.argmax(-1))[is_token].sum())
        yield Comparison(f"likeliest tokens, {quantization}", None, 0, f"{same} of {is_token.sum()} are the same")
        return
    content = t5_config.model_config(model.config, model.family, "float32", None)
    of_folder = Folder(t5_config.explicit(content, model.config), t5_file.stored(model), "safetensors")
    measures = t5_outputs.measures(dataclasses.replace(model, folder=of_folder), batch)
    assert not isinstance(measures, str)
    measure = measures["logits"]
    ours = t5_outputs.in_limba(model, batch)["logits"]
    yield measure.row("logits, Limba and NumPy", float64.largest_difference(ours, measure.logits, is_token))
    expected = t5_check.scores(measure.logits, targets)[is_token]
    note = f"of {is_token.sum()} tokens in {len(targets)} rows of several lengths; loss {-float(of_file.mean()):.6f}"
    yield measure.row("log-probabilities, the file", float(np.abs(of_file - expected).max()), 2, note)
