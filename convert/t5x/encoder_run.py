"""A run's directory from an encoder of Hugging Face: a checkpoint with its `run/`, and the gin file of the model."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convert.compare import comparison, encoder_comparison
from convert.encoders import encoder_model
from convert.encoders.encoder_model import EncoderModel
from convert.families import heads
from convert.families.heads import Head
from convert.t5x.limba_run import (
    AFTER_LABELS,
    IMPORTS_OF_LABELS,
    RunFiles,
    bindings,
    labels_gin,
    write_files_of_run,
)
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
    gin_file = model_gin(model.config, model.head, vocabulary["tokenizer_file"], f"{model.path} ({model.family.name})")
    more = {"ignored_config_keys": list(model.ignored_config_keys)} if model.ignored_config_keys else {}
    settings = model.tokenizer_settings.content()
    files = RunFiles(network_fields(model.config), vocabulary, gin_file, content, model.head.record | more, settings)

    def compare(path: Path, saved: Mapping[str, Any]) -> list[comparison.Comparison]:
        return encoder_comparison.compare(model, encoder_model.open_checkpoint(path), comparison.TEXT)

    return write_files_of_run(source, files, compare, out, verify, overwrite)


def network_fields(config: EncoderConfig) -> dict[str, Any]:
    """The fields of a network that make it what it is, as JSON has them."""
    fields = {}
    for field in dataclasses.fields(EncoderConfig):
        given = getattr(config, field.name)
        if field.name not in _OF_RUNS and (given != field.default or field.name in _ALWAYS):
            fields[field.name] = list(given) if isinstance(given, tuple) else given
    return fields


def model_gin(config: EncoderConfig, head: Head, tokenizer_file: str | None, of: str) -> str:
    """The gin file of a model: what a training reads first.

    Args:
      config, head: the network.
      tokenizer_file: None leaves it to the reader.
      of: what it is made from, for the first line.
    """
    fields = network_fields(config)
    vocab_size = fields.pop("vocab_size")
    fields.pop("sparse_attention", None)
    sparse = config.sparse_attention and dataclasses.asdict(config.sparse_attention)
    vocabulary = (
        "# Set VOCABULARY_FILE to the tokenizer.json.\n"
        if tokenizer_file is None
        else f"VOCABULARY_FILE = {tokenizer_file!r}\n"
    )
    has_labels = bool(head.labels)
    after = AFTER_LABELS if has_labels else "pretrain.gin"
    return (
        f"# The network and the vocabulary of {of}.\n"
        f"# Include a file of gin/runs/ after it: {after}.\n"
        "from __gin__ import dynamic_registration\n\n"
        f"{_IMPORT_OF_BLOCKS if sparse else ''}from limba.encoders import encoder\n"
        f"{IMPORTS_OF_LABELS if has_labels else ''}\n"
        "include 'gin/models/encoder_only.gin'\n"
        f"{_include_of_head(head)}\n"
        "DROPOUT_RATE = 0.0  # a run's file says its own\n"
        f"{vocabulary}VOCAB_SIZE = {vocab_size}\n\n"
        f"encoder.EncoderConfig:\n{bindings(fields)}{_blocks_gin(sparse) if sparse else ''}"
        f"{labels_gin(head) if has_labels else ''}"
    )


_IMPORT_OF_BLOCKS = "from limba.encoders import block_layout\n"


def _blocks_gin(fields: Mapping[str, Any]) -> str:
    layout = "block_layout.BigBirdSparsityConfig"
    return f"  sparse_attention = @{layout}()\n{layout}:\n{bindings(fields)}"


def _include_of_head(head: Head) -> str:
    if not head.labels:
        return "include 'gin/models/encoder_pairs.gin'\n" if head.kind == heads.PAIRS else ""
    return f"include 'gin/models/encoder_{'regressor' if head.is_number else 'classifier'}.gin'\n"
