"""The masks with which HPLT trained its NorT5s: spans of geometric lengths, `[CLS]` and `[SEP]` around the inputs."""

import dataclasses
import math
from typing import ClassVar

import numpy as np

from limba.tasks.objectives import CorruptedBatch, VocabularyIds
from limba.tasks.objectives.objective import check_noise_density, is_text, random_uniform

# The features of a row have room for this many standard deviations more masked tokens than the mean.
_DEVIATIONS = 3.5
_NUM_SPECIAL = 2


@dataclasses.dataclass(frozen=True)
class MaskedSpans:
    """Spans are masked until there are more masked tokens than a number that is drawn of the row's; they may touch.

    Inputs are the row with `[CLS]` and `[SEP]`, and a sentinel in the place of each span. Targets are the spans, each
    behind its sentinel, and the next sentinel, which ends them; there is no EOS. HPLT's decoder begins with the first
    sentinel, so its targets do not: bind `NorT5Config.decoder_start_token_id` to the id of `[MASK_1]`.

    Lengths follow HPLT-WP4 (`encoder-decoder/dataset.py`), whose rows have any number of targets. Here they have room
    for nearly all that are drawn, and the spans beyond that stay text.

    Attributes:
      noise_density: the probability with which each token counts for the number of masked ones.
      mean_noise_span_length: of the geometric distribution of lengths.
      begins_with_sentinel: whether targets begin with the first sentinel, for a decoder that begins with another token.
    """

    main_feature: ClassVar[str] = "inputs"
    eos_after_documents: ClassVar[bool] = False

    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0
    begins_with_sentinel: bool = False

    def __post_init__(self) -> None:
        check_noise_density(self.noise_density)
        mean = self.mean_noise_span_length
        if not isinstance(mean, int | float | np.floating) or not mean > 1:
            raise ValueError(f"mean_noise_span_length is {mean!r}; it is above 1 (HPLT used 3).")

    @property
    def name(self) -> str:
        return f"masked_spans{self.mean_noise_span_length:g}_{self.noise_density:g}"

    def _num_targets(self, length: int) -> int:
        """Room for the targets of a window of `length` tokens, its last sentinel included."""
        p = self.noise_density
        masked = length * p + _DEVIATIONS * math.sqrt(length * p * (1 - p)) + 2 * self.mean_noise_span_length
        return 3 + math.ceil(masked * (1 + 1.5 / self.mean_noise_span_length))

    def raw_length(self, length: int) -> int:
        if length < _NUM_SPECIAL + 2:
            raise ValueError(f"inputs_length is {length}; a row has at least {_NUM_SPECIAL + 2} tokens.")
        return length - _NUM_SPECIAL

    def lengths(self, length: int) -> dict[str, int]:
        return {"inputs": length, "targets": self._num_targets(self.raw_length(length))}

    def check_sentinels(self, length: int, num_sentinels: int) -> None:
        """Raises ValueError if there are not at least two: a row has as many spans as there are sentinels for."""
        del length
        if num_sentinels < 2:
            raise ValueError(
                f"The vocabulary has {num_sentinels} sentinels, and MaskedSpans takes at least 2; use one with "
                "[MASK_1], [MASK_2] … or <extra_id_0>, <extra_id_1> …"
            )

    def corrupt(self, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, ids: VocabularyIds) -> CorruptedBatch:
        """See `Objective`."""
        before, behind = ids.frame
        text = is_text(tokens, lengths)
        masked = self._masks(text, lengths, seeds, len(before), len(behind), ids.num_sentinels)
        starts = masked & ~np.pad(masked, ((0, 0), (1, 0)))[:, :-1]
        numbers = np.cumsum(starts, axis=1)
        sentinels = np.concatenate([[0], ids.sentinels(int(numbers.max(initial=0)) + 1)])
        rows, width = range(len(tokens)), self._num_targets(tokens.shape[1])
        inputs = np.zeros((len(tokens), tokens.shape[1] + len(before) + len(behind)), np.int32)
        targets, inputs_lengths, targets_lengths = np.zeros((len(tokens), width), np.int32), [], []
        for i in rows:
            kept = text[i] & (~masked[i] | starts[i])
            middle = np.where(starts[i], sentinels[numbers[i]], tokens[i])[kept]
            row = [*before, *middle, *behind]
            # Each token of a span, and before its first one the sentinel.
            spans = np.stack([np.where(starts[i], sentinels[numbers[i]], -1), np.where(masked[i], tokens[i], -1)], 1)
            answer = [*spans[spans >= 0], sentinels[numbers[i, -1] + 1]]
            answer = answer if self.begins_with_sentinel or len(answer) == 1 else answer[1:]
            inputs[i, : len(row)], targets[i, : len(answer)] = row, answer
            inputs_lengths.append(len(row))
            targets_lengths.append(len(answer))
        return CorruptedBatch(inputs, np.array(inputs_lengths), targets, np.array(targets_lengths))

    def _masks(
        self, text: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, before: int, behind: int, num_sentinels: int
    ) -> np.ndarray:
        """Which tokens are masked, bool `[batch, length]`; places of spans are drawn over the row with its ends."""
        wanted = np.sum(text & (random_uniform(seeds, text.shape[1], draw=0) < self.noise_density), axis=1)
        draws = num_sentinels
        sizes = 1 + np.floor(
            np.log1p(-random_uniform(seeds, draws, draw=1)) / np.log1p(-1 / self.mean_noise_span_length)
        ).astype(np.int64)
        places, whole = random_uniform(seeds, draws, draw=2), lengths + before + behind
        positions = before + np.arange(text.shape[1])
        masked, is_open = np.zeros_like(text), np.ones(len(text), bool)
        for i in range(draws):
            is_open &= masked.sum(axis=1) <= wanted
            if not is_open.any():
                break
            begin = np.floor(places[:, i] * (whole + 2 * sizes[:, i] - 1)).astype(np.int64) - (sizes[:, i] - 1)
            span = (positions >= begin[:, None]) & (positions < (begin + sizes[:, i])[:, None])
            wider = masked | (span & text & is_open[:, None])
            spans = np.sum(wider & ~np.pad(wider, ((0, 0), (1, 0)))[:, :-1], axis=1)
            # There is a sentinel behind the last span, and one token of a row stays.
            fits = (wider.sum(axis=1) + spans + 1 <= self._num_targets(text.shape[1])) & (spans < num_sentinels)
            is_open &= fits & (wider.sum(axis=1) < lengths)
            masked = np.where(is_open[:, None], wider, masked)
        return masked
