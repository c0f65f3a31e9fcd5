"""The likeliest words of a blank, beside the word that stood there: what a model has learned, in a few lines."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from limba.checkpoints import checkpointing
from limba.inference import blanks
from limba.inference.answering import Answerer
from limba.inference.decoding_flags import AS_BOUND, Decoding
from limba.models import BaseTransformerModel, EncoderOnlyModel, beam_search

# Of each sentence.
_SHOWN = 4
_BEAMS = 32
# A sentinel, a piece, and what shows whether the word ends there.
_LENGTH = 3


def show_likeliest(
    *,
    model: BaseTransformerModel,
    answerer_cls: Callable[..., Answerer],
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    sentences: Sequence[tuple[str, str]],
    decoding: Decoding = AS_BOUND,
) -> None:
    """Prints sentences with a blank, the word that was left out, and what the model takes for likely.

    Args:
      model: that of the answerer.
      answerer_cls: `limba.inference.answering.Answerer` with its arguments but the checkpoint.
      sentences: with one blank each, and the word.
      decoding: beams without a length penalty, whose scores are log probabilities. By default words of a piece and
        beginnings of two, whether they end or not. Masked language models have words of one piece.
    """
    arguments: dict[str, Any] = {"decode_fn": _search_without_ends, "num_decodes": _BEAMS, "max_decode_length": _LENGTH}
    if isinstance(model, EncoderOnlyModel):
        arguments = {"num_decodes": _BEAMS}
    if decoding != AS_BOUND:
        arguments = decoding.arguments()
    answerer = answerer_cls(restore_checkpoint_cfg=restore_checkpoint_cfg, **arguments)
    found = answerer.decodes([sentence for sentence, _ in sentences])
    for (sentence, word), decodes in zip(sentences, found, strict=True):
        words = ", ".join(f"“{fill}” {share:.1%}" for fill, share in fills(decodes)[:_SHOWN])
        words = words or f"no word ({_why_none(decodes)})"
        print(f"{blanks.shown(sentence)}\n  truth: {word}; likeliest: {words}")


def _search_without_ends(**arguments: Any) -> Any:
    """Beam search in which EOS is a token like others.

    Of a search with ends, only what has ended counts as soon as one beam has: of a young model, which hardly ever ends
    after three tokens, that is one empty answer.
    """
    return beam_search.beam_search(**{**arguments, "eos_id": -1, "alpha": 0.0})


def _why_none(decodes: Sequence[tuple[str, float]]) -> str:
    text, score = decodes[0]
    probability = f"{math.exp(score):.1%}"
    if not text:
        return f"the model's likeliest answer, of {probability}, is empty"
    begins = "has nothing behind the blank's sentinel" if text.startswith("<extra_id_0>") else "begins otherwise"
    return f"the model's likeliest answer, “{text}” of {probability}, {begins}"


def fills(decodes: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """The texts of the first blank with their probabilities, the likeliest first.

    A lower bound: only decodes that were found count. Those with the same text for the blank are summed up.

    Args:
      decodes: texts with sentinels, and log probabilities.
    """
    shares: dict[str, float] = {}
    for text, score in decodes:
        fill = blanks.fill_blanks("<extra_id_0>", text).strip() if "<extra_id_0>" in text else ""
        if fill and not blanks.has_blanks(fill):
            shares[fill] = shares.get(fill, 0.0) + math.exp(score)
    return sorted(shares.items(), key=lambda item: -item[1])
