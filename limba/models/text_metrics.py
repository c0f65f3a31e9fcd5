"""How well a model predicts text: sentinels, EOS and the other targets that are no text are counted apart.

A quarter of the targets of span corruption are sentinels and EOS, which are easy and flatter every average.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from limba.data import sentinels, text_pieces
from limba.models import losses
from limba.network.kernels.linear_cross_entropy import LinearLogits

Array = jax.Array

NATS, RENORMALIZED = "nats_per_text_token", "nats_per_text_token_renormalized"
ACCURACY, TOP_5 = "text_accuracy", "text_top_5_accuracy"
ACCURACY_RENORMALIZED, TOP_5_RENORMALIZED = f"{ACCURACY}_renormalized", f"{TOP_5}_renormalized"
NUM_TOKENS = "num_text_tokens"
PER_CHARACTER = "nats_per_character"  # of the host, see `limba.inference.evaluation`


@flax.struct.dataclass
class TextMetrics:
    """Sums over targets, float32 scalars: their number, nats, and of text targets what else there is.

    Attributes:
      text: number, nats, targets that are the likeliest piece, targets among the five likeliest; then the last three
        among the pieces of text alone.
      first_of_span: number and nats of the text targets that follow a sentinel.
      later_in_span: of those that follow these.
      sentinels, eos: likewise.
    """

    text: tuple[Array, ...]
    first_of_span: tuple[Array, ...]
    later_in_span: tuple[Array, ...]
    sentinels: tuple[Array, ...]
    eos: tuple[Array, ...]

    def merge(self, other: "TextMetrics") -> "TextMetrics":
        return jax.tree.map(lambda a, b: a + b, self, other)

    def compute(self) -> dict[str, float]:
        """Means, under the names above; without those of which there is no target.

        Those that end with `_renormalized` compare with n-grams, which do not have to guess where a span ends.
        """
        count, *sums = map(float, self.text)
        names = (NATS, ACCURACY, TOP_5, RENORMALIZED, ACCURACY_RENORMALIZED, TOP_5_RENORMALIZED)
        means = {name: x / count for name, x in zip(names, sums, strict=True)} if count else {}
        values = means | ({NUM_TOKENS: count} if count else {})
        for name, (number, nats_of) in (
            (f"{NATS}/first_of_span", self.first_of_span),
            (f"{NATS}/later_in_span", self.later_in_span),
            ("nats_per_sentinel", self.sentinels),
            ("nats_per_eos", self.eos),
        ):
            if float(number):
                values[name] = float(nats_of) / float(number)
        return values


def text_metrics(logits: Array | LinearLogits, targets: Array, counted: Array, vocabulary: Any) -> TextMetrics:
    """Of one batch.

    Args:
      logits: of `[batch, length, vocab]`.
      targets: int32 `[batch, length]`.
      counted: float32 `[batch, length]`, 1 on each target.
      vocabulary: of the targets.
    """
    rows = logits.vocab if isinstance(logits, LinearLogits) else logits.shape[-1]
    is_text_piece = text_pieces.of_vocabulary(vocabulary, rows)
    is_sentinel_piece = np.zeros(rows, bool)
    is_sentinel_piece[[id_ for id_ in sentinels.of_vocabulary(vocabulary) if id_ < rows]] = True
    scores = losses.text_scores(logits, targets, is_text_piece)
    nats, renormalized = scores.log_z - scores.of_target, scores.log_z_of_text - scores.of_target
    is_text, is_sentinel = (jnp.asarray(x)[targets] * counted for x in (is_text_piece, is_sentinel_piece))
    is_first = is_text * jnp.pad(is_sentinel[:, :-1], ((0, 0), (1, 0)))
    # Targets without a sentinel, as of summaries, have no place in a span.
    is_later = (is_text - is_first) * (jnp.cumsum(is_sentinel, axis=-1) > 0)
    is_eos = (targets == (-1 if vocabulary.eos_id is None else vocabulary.eos_id)) * counted

    def sums(chosen: Array, *values: Array) -> tuple[Array, ...]:
        # Elsewhere a value may be infinite.
        return (jnp.sum(chosen), *(jnp.sum(jnp.where(chosen > 0, x, 0.0)) for x in values))

    return TextMetrics(
        text=sums(
            is_text,
            nats,
            scores.rank < 1,
            scores.rank < 5,
            renormalized,
            scores.rank_in_text < 1,
            scores.rank_in_text < 5,
        ),
        first_of_span=sums(is_first, nats),
        later_in_span=sums(is_later, nats),
        sentinels=sums(is_sentinel, nats),
        eos=sums(is_eos, nats),
    )
