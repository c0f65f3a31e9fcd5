"""A run's directory from an encoder of Hugging Face: a checkpoint with its `run/`, and the gin file of the model."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convert.compare import comparison, encoder_comparison
from convert.encoders import encoder_model
from convert.encoders.encoder_model import EncoderModel
from convert.t5x.limba_run import RunFiles, write_files_of_run
from convert.t5x.t5x_checkpoint import SourceCheckpoint
from limba.checkpoint_files import run_folder, saved_tensors
from limba.encoders.config import EncoderConfig
from limba.machine.output_folder import choose_out

# Fields that belong to a run, not to the network.
_OF_RUNS = (
    *("dtype", "dropout_rate", "attention_dropout_rate", "float32_attention_logits", "scan_layers", "remat_policy"),
    *("param_scan_axis", "kernels"),
)
# In every file: the sizes, and what tells an encoder from a T5.
_ALWAYS = ("emb_dim", "num_heads", "head_dim", "mlp_dim", "num_layers", "position_embedding_type")


def write_run(model: EncoderModel, out: Path, verify: bool, overwrite: bool) -> Path:
    """Writes the directory and returns the checkpoint in it.

    Args:
      out, verify, overwrite: as of `t5x_checkpoint.write_checkpoint`.

    Raises:
      FileNotFoundError: if the vocabulary is not known.
      ValueError: if it is not the model's, or OUT has the checkpoint already.
    """
    vocabulary = model.known_vocabulary()
    out = choose_out(out, model.path)
    content = Path(vocabulary["tokenizer_file"]).read_bytes()
    vocabulary["tokenizer_file"] = str(out / run_folder.TOKENIZER)
    tensors = {f"target/{name}": t for name, t in model.tensors.items()}
    tensors["state/step"] = saved_tensors.from_array(np.int32(model.step))
    source = SourceCheckpoint(model.path, dict(sorted(tensors.items())), model.step)
    gin_file = model_gin(model.config, vocabulary["tokenizer_file"], f"{model.path} ({model.family.name})")
    files = RunFiles(network_fields(model.config), vocabulary, gin_file, content)

    def compare(path: Path, saved: Mapping[str, Any]) -> list[comparison.Comparison]:
        return encoder_comparison.compare(model, encoder_model.with_tensors(model, path, saved), comparison.TEXT)

    return write_files_of_run(source, files, compare, out, verify, overwrite)


def network_fields(config: EncoderConfig) -> dict[str, Any]:
    """The fields of a network that make it what it is, as JSON has them."""
    fields = {}
    for field in dataclasses.fields(EncoderConfig):
        given = getattr(config, field.name)
        if field.name not in _OF_RUNS and (given != field.default or field.name in _ALWAYS):
            fields[field.name] = list(given) if isinstance(given, tuple) else given
    return fields


def model_gin(config: EncoderConfig, tokenizer_file: str | None, of: str) -> str:
    """The gin file of a model: what a training reads first.

    Args:
      config: the network.
      tokenizer_file: None leaves it to the reader.
      of: what it is made from, for the first line.
    """
    fields = network_fields(config)
    vocab_size = fields.pop("vocab_size")
    bindings = "".join(f"  {name} = {given!r}\n" for name, given in fields.items())
    vocabulary = (
        "# Set VOCABULARY_FILE to the tokenizer.json.\n"
        if tokenizer_file is None
        else f"VOCABULARY_FILE = {tokenizer_file!r}\n"
    )
    return (
        f"# The network and the vocabulary of {of}.\n"
        "# Include a file of gin/runs/ after it: pretrain.gin.\n"
        "from __gin__ import dynamic_registration\n\n"
        "from limba.encoders import encoder\n\n"
        "include 'gin/models/encoder_only.gin'\n\n"
        "DROPOUT_RATE = 0.0  # a run's file says its own\n"
        f"{vocabulary}VOCAB_SIZE = {vocab_size}\n\n"
        f"encoder.EncoderConfig:\n{bindings}"
    )
