"""What a model card says of a T5."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from convert.families.family import Family
from convert.hf.card_example import Example, neutral, section
from convert.hf.model_card import Description
from limba.checkpoint_files import run_folder
from limba.network.t5 import T5Config


def describe(
    family: Family,
    network: T5Config,
    vocabulary: Mapping[str, Any],
    formats: Sequence[str],
    dtype: str,
    example: Example | None = None,
    assumed: Collection[str] = (),
) -> Description:
    """Of a network whose vocabulary `run.json` describes so.

    Args:
      formats, dtype: of the weights, "safetensors" and "flax".
      example: for the section on the use; None takes a neutral one.
      assumed: fields of the network that the checkpoint did not say.
    """
    example = example or neutral(vocabulary)
    return Description(
        title=f"A {family.title} encoder-decoder",
        tag=family.name,
        pipeline="text2text-generation",
        use=section(example, formats, network.num_decoder_layers <= network.num_encoder_layers),
        network=tuple(_network(network, vocabulary, dtype, assumed)),
        accuracy="accuracy of the next token",
        datasets=example.datasets,
    )


def _network(
    config: T5Config, vocabulary: Mapping[str, Any], dtype: str, assumed: Collection[str]
) -> Iterator[tuple[str, str]]:
    def note(field: str) -> str:
        return " (assumed: the checkpoint did not say it)" if field in assumed else ""

    yield "layers", f"{config.num_encoder_layers} encoder, {config.num_decoder_layers} decoder"
    yield "width", f"{config.emb_dim}; {config.num_heads} heads of {config.head_dim}; feed-forward {config.mlp_dim}"
    yield "activation", f"{' × '.join(config.mlp_activations)}{note('mlp_activations')}"
    if "dropout_rate" in assumed:
        yield "dropout", f"{config.dropout_rate:g}{note('dropout_rate')}"
    yield "output", "the embedding (tied)" if config.logits_via_embedding else "a matrix of its own (untied)"
    yield "stored as", dtype
    sentinels = f", the last {vocabulary['extra_ids']} of them sentinels" if vocabulary["extra_ids"] else ""
    ids = f"{vocabulary['vocab_size']:,} ids{sentinels}"
    kinds = {run_folder.BYTES: "bytes", run_folder.T5_TOKENIZERS: "tokenizer.json"}
    kind = kinds.get(vocabulary["class"], "SentencePiece")
    yield "vocabulary", f"{kind}, {ids}; {config.vocab_size:,} rows of the embedding"
