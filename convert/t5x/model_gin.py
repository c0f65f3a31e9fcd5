"""The gin file of a model: the network and the vocabulary, which a training or `limba infer --run_dir` reads first."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from convert.families import heads
from convert.families.heads import Head
from convert.families.networks import Network
from limba.checkpoint_files import run_folder
from limba.network import own_layers
from limba.network.encoders.config import EncoderConfig
from limba.network.t5 import T5Config

# Fields that belong to a run, not to the network.
_OF_RUNS = (
    *("dtype", "dropout_rate", "attention_dropout_rate", "float32_attention_logits", "one_hot_embedding"),
    *("remat_policy", "param_scan_axis", "kernels"),
)
# Of an encoder in every file: the sizes, and what tells an encoder from a T5.
_ALWAYS = ("emb_dim", "num_heads", "head_dim", "mlp_dim", "num_layers", "position_embedding_type")


def network_fields(config: Network) -> dict[str, Any]:
    """The fields of a network that make it what it is, as JSON has them; the rest belongs to the run."""
    return _t5_fields(config) if isinstance(config, T5Config) else _encoder_fields(config)


def _t5_fields(config: T5Config) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(T5Config) if field.name not in (*_OF_RUNS, *own_layers.FIELDS)]
    fields = {name: getattr(config, name) for name in names}
    own = {name: layer for name in own_layers.FIELDS if (layer := getattr(config, name)) is not None}
    if own:  # The fused kernels have T5's attention only.
        own["kernels"] = config.kernels
    return fields | {"mlp_activations": list(config.mlp_activations)} | own


def _encoder_fields(config: EncoderConfig) -> dict[str, Any]:
    fields = {}
    for field in dataclasses.fields(EncoderConfig):
        given = getattr(config, field.name)
        is_usual = given == field.default and field.name not in _ALWAYS
        if field.name not in (*_OF_RUNS, "scan_layers") and not is_usual:
            fields[field.name] = list(given) if isinstance(given, tuple) else given
    return fields


def write(config: Network, head: Head, vocabulary: Mapping[str, Any] | None, of: str) -> str:
    """The text of the file.

    Args:
      config, head: the network.
      vocabulary: as `run.json` describes it; None leaves it to the reader.
      of: what it is made from, for the first line.
    """
    has_labels = bool(head.labels)
    if isinstance(config, T5Config):
        runs = "pretrain.gin, finetune.gin, eval.gin, infer.gin"
        model = _t5_model(config, has_labels, vocabulary)
    else:
        runs, model = "pretrain.gin", _encoder_model(config, head, vocabulary)
    return (
        f"# The network and the vocabulary of {of}.\n"
        f"# Include a file of gin/runs/ after it: {'finetune.gin, and then PACK = False' if has_labels else runs}.\n"
        "from __gin__ import dynamic_registration\n\n"
        f"{model}{_labels(head) if has_labels else ''}"
    )


_IMPORTS_OF_LABELS = "from limba.network.encoders import classifier\nfrom limba import models\n"


def _t5_model(config: T5Config, has_labels: bool, vocabulary: Mapping[str, Any] | None) -> str:
    fields = network_fields(config)
    del fields["vocab_size"]
    if vocabulary is None:
        vocabulary_lines = "# Set VOCABULARY_FILE to the SentencePiece model.\n"
    elif run_folder.is_bytes(vocabulary):
        vocabulary_lines = (
            "VOCABULARY = @vocabularies.ByteVocabulary()\n"
            f"vocabularies.ByteVocabulary.extra_ids = {vocabulary['extra_ids']}\n"
        )
    elif vocabulary["class"] == run_folder.T5_TOKENIZERS:
        vocabulary_lines = (
            f"VOCABULARY_FILE = {vocabulary['tokenizer_file']!r}\n"
            "VOCABULARY = @vocabularies.T5TokenizerVocabulary()\n"
            "vocabularies.T5TokenizerVocabulary.tokenizer_file = %VOCABULARY_FILE\n"
        )
    else:
        vocabulary_lines = (
            f"VOCABULARY_FILE = {vocabulary['sentencepiece_model_file']!r}\n"
            f"vocabularies.SentencePieceVocabulary.extra_ids = {vocabulary['extra_ids']}\n"
        )
    of_labels = "include 'gin/models/encoder_classifier.gin'\ninclude 'gin/models/t5_encoder.gin'\n"
    return (
        "from tasks import vocabularies\nfrom limba.network import t5 as network\n"
        f"{_IMPORTS_OF_LABELS if has_labels else ''}\n"
        f"include 'gin/models/encoder_decoder.gin'\n{of_labels if has_labels else ''}\n"
        "DROPOUT_RATE = 0.0  # a run's file says its own\n"
        f"{vocabulary_lines}VOCAB_SIZE = {config.vocab_size}\n\n"
        "network.Transformer.config = @network.T5Config()\nnetwork.T5Config:\n"
        f"  vocab_size = %VOCAB_SIZE\n  dtype = 'bfloat16'\n  dropout_rate = %DROPOUT_RATE\n{_bindings(fields)}"
    )


def _encoder_model(config: EncoderConfig, head: Head, vocabulary: Mapping[str, Any] | None) -> str:
    fields = network_fields(config)
    del fields["vocab_size"]
    fields.pop("sparse_attention", None)
    sparse = config.sparse_attention and dataclasses.asdict(config.sparse_attention)
    file = "# Set VOCABULARY_FILE to the tokenizer.json.\n"
    if vocabulary is not None:
        file = f"VOCABULARY_FILE = {vocabulary['tokenizer_file']!r}\n"
    of_head = "include 'gin/models/encoder_pairs.gin'\n" if head.kind == heads.PAIRS else ""
    if head.labels:
        of_head = f"include 'gin/models/encoder_{'regressor' if head.is_number else 'classifier'}.gin'\n"
    return (
        f"{_IMPORT_OF_BLOCKS if sparse else ''}from limba.network.encoders import encoder\n"
        f"{_IMPORTS_OF_LABELS if head.labels else ''}\n"
        f"include 'gin/models/encoder_only.gin'\n{of_head}\n"
        "DROPOUT_RATE = 0.0  # a run's file says its own\n"
        f"{file}VOCAB_SIZE = {config.vocab_size}\n\n"
        f"encoder.EncoderConfig:\n{_bindings(fields)}{_blocks(sparse) if sparse else ''}"
    )


_IMPORT_OF_BLOCKS = "from limba.network.encoders import block_layout\n"


def _blocks(fields: Mapping[str, Any]) -> str:
    layout = "block_layout.BigBirdSparsityConfig"
    return f"  sparse_attention = @{layout}()\n{layout}:\n{_bindings(fields)}"


def _labels(head: Head) -> str:
    """What the file says of a head with labels."""
    network = f"classifier.{head.class_name}"
    model = "models.EncoderRegressor" if head.is_number else "models.EncoderClassifier"
    return f"\nLABELS = {list(head.labels)!r}\n{model}.module = @{network}()\n{network}:\n{_bindings(head.fields)}"


def _bindings(fields: Mapping[str, Any]) -> str:
    """The lines of a block of a gin file."""
    return "".join(f"  {name} = {given!r}\n" for name, given in fields.items())
