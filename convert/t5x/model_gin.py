"""The gin file of a model: the network and the vocabulary, which a training or `limba infer --run_dir` reads first."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from limba.checkpoint_files import run_folder
from limba.convert.families import heads
from limba.convert.families.heads import Head
from limba.convert.families.networks import Network
from limba.gin_config import gin_names
from limba.gin_config.recipe import Binding, Block, Include, Recipe, Reference, Statement
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
    apart = (*_OF_RUNS, *own_layers.FIELDS, "gemma_layers")
    fields = {
        field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name not in apart
    }
    if config.gemma_layers is not None:
        fields["gemma_layers"] = dataclasses.asdict(config.gemma_layers)
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


def write(
    config: Network,
    head: Head,
    vocabulary: Mapping[str, Any] | None,
    of: str,
    lora: Mapping[str, Any] | None = None,
) -> str:
    """The text of the file.

    Args:
      config, head: the network.
      vocabulary: as `run.json` describes it; None leaves it to the reader.
      of: what it is made from, for the first line.
      lora: as `run.json` describes the adapters; None if there are none.
    """
    if isinstance(config, T5Config):
        runs, model = "pretrain.gin, finetune.gin, eval.gin, infer.gin", _t5_model(config, head, vocabulary)
    else:
        runs, model = "pretrain.gin", _encoder_model(config, head, vocabulary)
    if head.labels:
        runs, model = "finetune.gin, and then PACK = False", [*model, *_labels(head)]
    if lora is not None:
        model = [
            *model,
            "",
            *map(gin_names.import_line, _modules_of_lora(config, head)),
            "",
            *_lora(config, head, lora),
        ]
    begin = [
        f"# The network and the vocabulary of {of}.",
        f"# Include a file of gin/runs/ after it: {runs}.",
        "from __gin__ import dynamic_registration",
        "",
    ]
    return Recipe([*begin, *model]).text()


def write_lora(config: Network, head: Head, lora: Mapping[str, Any], of: str) -> str:
    """The text of lora.gin, with which the training of adapters goes on; arguments as of `write`."""
    begin: list[Statement] = [
        f"# Trains on the LoRA of {of}. Include it last, after model.gin and a file of gin/runs/.",
        "from __gin__ import dynamic_registration",
        "",
        *map(gin_names.import_line, _modules_of_lora(config, head)),
        "",
        Include("gin/runs/lora.gin"),
        "",
    ]
    return Recipe([*begin, *_lora(config, head, lora)]).text()


def _modules_of_lora(config: Network, head: Head) -> list[str]:
    return ["lora", "models", _of_lora(config, head)[1].partition(".")[0]]


def _of_lora(config: Network, head: Head) -> tuple[str, str]:
    """gin's names of the model and the network that the adapters stand between."""
    if head.labels:
        return _model_of_labels(head), f"classifier.{head.class_name}"
    if isinstance(config, T5Config):
        return "models.EncoderDecoderModel", gin_names.gin_name(type(config.network()))
    return "models.EncoderOnlyModel", f"{'sentence_pairs' if head.kind == heads.PAIRS else 'encoder'}.{head.class_name}"


def _lora(config: Network, head: Head, lora: Mapping[str, Any]) -> list[Statement]:
    model, network = _of_lora(config, head)
    return [
        Binding(f"{model}.module", Reference("@lora.LoRA()")),
        Block("lora.LoRA", {"network": Reference(f"@{network}()"), **lora}),
    ]


def _begin(modules: Sequence[str], files: Sequence[str]) -> list[Statement]:
    """Imports, includes and the rate of dropout."""
    return [
        *map(gin_names.import_line, modules),
        "",
        *(Include(f"gin/models/{file}.gin") for file in files),
        "",
        Binding("DROPOUT_RATE", 0.0, "a run's file says its own"),
    ]


def _t5_model(config: T5Config, head: Head, vocabulary: Mapping[str, Any] | None) -> list[Statement]:
    of_run = {"vocab_size": Reference("%VOCAB_SIZE"), "dtype": "bfloat16", "dropout_rate": Reference("%DROPOUT_RATE")}
    fields = {name: value for name, value in network_fields(config).items() if name != "vocab_size"}
    more = ["encoder_classifier", "t5_encoder"] if head.labels else []
    name, network = (gin_names.gin_name(type(x)) for x in (config, config.network()))
    of_network = network.partition(".")[0]
    of_classes = dict.fromkeys([of_network, name.partition(".")[0]])
    modules, blocks = ["vocabularies", *of_classes, *_modules_of(head)], []
    own: list[Statement] = []
    if of_network != "network":  # The one of gin/models/encoder_decoder.gin.
        modules.append("models")
        own = [Binding("models.EncoderDecoderModel.module", Reference(f"@{network}()"))]
    if (layers := fields.pop("gemma_layers", None)) is not None:
        of_layers = "gemma_layers.GemmaLayers"
        modules, blocks = ["gemma_layers", *modules], [Block(of_layers, layers)]
        fields["gemma_layers"] = Reference(f"@{of_layers}()")  # It is the last, as its block follows.
    return [
        *_begin(modules, ["encoder_decoder", *more]),
        *_t5_vocabulary(vocabulary),
        Binding("VOCAB_SIZE", config.vocab_size),
        "",
        *own,
        Binding(f"{network}.config", Reference(f"@{name}()")),
        Block(name, of_run | fields),
        *blocks,
    ]


def _t5_vocabulary(vocabulary: Mapping[str, Any] | None) -> list[Statement]:
    if vocabulary is None:
        return ["# Set VOCABULARY_FILE to the SentencePiece model."]
    name = f"vocabularies.{vocabulary['class']}"
    chosen = Binding("VOCABULARY", Reference(f"@{name}()"))
    if run_folder.is_bytes(vocabulary):
        return [chosen, Binding(f"{name}.extra_ids", vocabulary["extra_ids"])]
    file = Binding("VOCABULARY_FILE", run_folder.vocabulary_file(vocabulary))
    if vocabulary["class"] == run_folder.T5_TOKENIZERS:
        return [file, chosen, Binding(f"{name}.tokenizer_file", Reference("%VOCABULARY_FILE"))]
    return [file, Binding("vocabularies.SentencePieceVocabulary.extra_ids", vocabulary["extra_ids"])]


def _encoder_model(config: EncoderConfig, head: Head, vocabulary: Mapping[str, Any] | None) -> list[Statement]:
    fields = {name: value for name, value in network_fields(config).items() if name != "vocab_size"}
    modules, more, blocks = ["encoder", *_modules_of(head)], [], []
    if config.sparse_attention:
        layout = gin_names.gin_name(type(config.sparse_attention))
        modules, blocks = (
            [layout.partition(".")[0], *modules],
            [Block(layout, dataclasses.asdict(config.sparse_attention))],
        )
        del fields["sparse_attention"]  # It is the last, as its block follows.
        fields["sparse_attention"] = Reference(f"@{layout}()")
    if head.labels:
        files = {heads.REGRESSION: "encoder_regressor", heads.MULTI_LABEL: "encoder_multi_label"}
        more = [files.get(head.problem, "encoder_classifier")]
    elif head.kind == heads.DETECTOR:
        more = ["encoder_electra"]
    elif head.kind == heads.PAIRS:
        more = ["encoder_pairs"]
    file = "# Set VOCABULARY_FILE to the tokenizer.json."
    return [
        *_begin(modules, ["encoder_only", *more]),
        file if vocabulary is None else Binding("VOCABULARY_FILE", vocabulary["tokenizer_file"]),
        Binding("VOCAB_SIZE", config.vocab_size),
        "",
        Block("encoder.EncoderConfig", fields),
        *blocks,
    ]


def _modules_of(head: Head) -> list[str]:
    return ["classifier", "models"] if head.labels else []


def _model_of_labels(head: Head) -> str:
    if head.has_several_labels:
        return "models.EncoderMultiLabelClassifier"
    return "models.EncoderRegressor" if head.is_number else "models.EncoderClassifier"


def _labels(head: Head) -> list[Statement]:
    """What the file says of a head with labels."""
    network, model = f"classifier.{head.class_name}", _model_of_labels(head)
    return [
        "",
        Binding("LABELS", list(head.labels)),
        Binding(f"{model}.module", Reference(f"@{network}()")),
        Block(network, head.fields),
    ]
