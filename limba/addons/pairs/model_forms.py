"""Which format a kind of model scores texts in."""

from limba.models import (
    BaseTransformerModel,
    ContrastiveModel,
    DecoderOnlyModel,
    EncoderClassifier,
    EncoderDecoderModel,
    EncoderOnlyModel,
)

# Attention over as many takes four gigabytes for each head of each row.
_MOST_TOKENS = 2**15


def form_of(model: BaseTransformerModel) -> str:
    """What a kind of model reads of a text: the name of a class of `limba.addons.pairs.pair_formats`.

    Raises:
      ValueError: for a classifier, a regressor and a model of vectors, and for a prefix LM that reads its inputs in
        both directions.
    """
    if isinstance(model, EncoderClassifier):
        raise ValueError(
            f"{type(model).__name__} gives labels or numbers, and words no probability: scores need the model that it "
            "was fine-tuned from, an encoder with a masked-LM head, or a T5 or decoder."
        )
    if isinstance(model, ContrastiveModel):
        raise ValueError(
            "ContrastiveModel gives vectors of texts, and words no probability: score the run it began with."
        )
    if isinstance(model, EncoderOnlyModel):
        return "MaskedWords"
    if isinstance(model, DecoderOnlyModel):
        if model.inputs_bidirectional_attention:
            raise ValueError(
                "A prefix LM with inputs_bidirectional_attention scores targets behind inputs, and a text alone has no "
                "inputs: score a language model, with inputs_bidirectional_attention = False."
            )
        return "WholeSentences"
    if isinstance(model, EncoderDecoderModel):
        return "FilledBlanks"
    raise ValueError(
        f"Encoder-decoders, decoders and encoders of limba.models score texts, and {type(model).__name__} does not."
    )


def longest_row(model: BaseTransformerModel) -> int:
    """The tokens that the network has positions for; of one without a limit, as a T5, those that are scored."""
    return getattr(getattr(model.module, "config", None), "longest_row", None) or _MOST_TOKENS
