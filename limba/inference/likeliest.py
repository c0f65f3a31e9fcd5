"""The likeliest words of a blank, beside the word that stood there: what a model has learned, in a few lines."""

import math
from collections.abc import Callable, Sequence

from limba.checkpoints import checkpointing
from limba.inference import answering
from limba.inference.answering import Answerer
from limba.inference.decoding_flags import AS_BOUND, Decoding

# Of each sentence.
_SHOWN = 4


def show_likeliest(
    *,
    answerer_cls: Callable[..., Answerer],
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    sentences: Sequence[tuple[str, str]],
    decoding: Decoding = AS_BOUND,
) -> None:
    """Prints sentences with a blank, the word that was left out, and what the model takes for likely.

    Args:
      answerer_cls: `limba.inference.answering.Answerer` with its arguments but the checkpoint.
      sentences: with one blank each, and the word.
      decoding: beams without a length penalty, whose scores are log probabilities.
    """
    answerer = answerer_cls(restore_checkpoint_cfg=restore_checkpoint_cfg, **decoding.arguments())
    found = answerer.decodes([sentence for sentence, _ in sentences])
    for (sentence, word), decodes in zip(sentences, found, strict=True):
        words = ", ".join(f"“{fill}” {share:.1%}" for fill, share in fills(decodes)[:_SHOWN])
        print(
            f"{answering.fill_blanks(sentence, '<extra_id_0> ___')}\n  truth: {word}; likeliest: {words or 'nothing'}"
        )


def fills(decodes: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """The texts of the first blank with their probabilities, the likeliest first.

    A lower bound: only decodes that were found count. Those with the same text for the blank are summed up.

    Args:
      decodes: texts with sentinels, and log probabilities.
    """
    shares: dict[str, float] = {}
    for text, score in decodes:
        fill = answering.fill_blanks("<extra_id_0>", text).strip()
        if fill and not answering.has_blanks(fill):
            shares[fill] = shares.get(fill, 0.0) + math.exp(score)
    return sorted(shares.items(), key=lambda item: -item[1])
