"""The likeliest words of each blank, with their probabilities: what a model takes for possible, beside its answer.

A blank's words are what stands between its sentinel and the next one, or the end. Beam search looks for them behind the
answer up to the sentinel; the score of a beam that has come to its end is the probability of just these words.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from limba.inference import blanks, likeliest

# Of words of a blank that a request may ask for, and of the blanks of a text.
MOST, _MOST_BLANKS = 8, 8
# Tokens of a blank's words.
_TOKENS = 8
# Beams that are worked on at a time: memory grows with them.
_ROWS = 32

# The words of a blank with their probabilities, the likeliest first.
Words = Sequence[tuple[str, float]]


def end_tokens(ids: Mapping[str, int], end: str) -> list[str]:
    """The tokens that end the words of a blank: all sentinels of a vocabulary, and its end; none without sentinels."""
    sentinels = [token for token in ids if blanks.SENTINEL.fullmatch(token)]
    return [*sentinels, end] if sentinels else []


def find(
    translator: Any, source: Sequence[str], answer: Sequence[str], line: str, ends: Sequence[str], most: int
) -> list[list[tuple[list[str], float]]]:
    """The beams of each blank of a line: their tokens, and the logarithms of their probabilities.

    Args:
      translator: of CTranslate2.
      source, answer: the tokens of the line and of its greedy answer.
      ends: of `end_tokens`.
      most: beams with an end that are looked for; twice as many are followed.

    Returns:
      A list for each blank, in order; an empty one for a blank that the answer does not mention, or a later one than
      the first eight.
    """
    places = {token: place for place, token in enumerate(answer)}  # A later one fills the blank once more.
    asked = [f"<extra_id_{number}>" for number in blanks.SENTINEL.findall(line)]
    prefixes = {blank: [*answer[: places[blank] + 1]] for blank in asked[:_MOST_BLANKS] if blank in places}
    beams = 2 * most
    found = translator.translate_batch(
        [source] * len(prefixes),
        target_prefix=[*prefixes.values()],
        beam_size=beams,
        num_hypotheses=beams,
        length_penalty=0,
        end_token=[*ends],
        return_end_token=True,
        return_scores=True,
        max_batch_size=max(1, _ROWS // beams),
        max_input_length=0,
        max_decoding_length=max(map(len, prefixes.values()), default=0) + _TOKENS,
        min_decoding_length=0,
    )
    by_blank = {
        blank: [
            (tokens[len(prefix) : -1], score)
            for tokens, score in zip(result.hypotheses, result.scores, strict=True)
            if tokens[-1] in ends and len(tokens) > len(prefix)
        ]
        for (blank, prefix), result in zip(prefixes.items(), found, strict=True)
    }
    return [by_blank.get(blank, []) for blank in asked]


def words(beams: Sequence[tuple[str, float]], most: int) -> Words:
    """Of the texts of a blank's beams with the logarithms of their probabilities: the likeliest, each text once."""
    return likeliest.fills([(f"<extra_id_0> {text}", score) for text, score in beams])[:most]
