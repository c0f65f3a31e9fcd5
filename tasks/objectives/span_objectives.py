"""Objectives whose sentinels stand for masked spans: T5's span corruption, and i.i.d. denoising.

NumPy only. The formulas are those of `t5.data.preprocessors`.
"""

import dataclasses
import math
from typing import ClassVar

import numpy as np

from limba.tasks.objectives.objective import (
    CorruptedBatch,
    VocabularyIds,
    check_noise_density,
    is_text,
    keep_tokens,
    random_keys,
    random_uniform,
)


@dataclasses.dataclass(frozen=True)
class SpanCorruption:
    """T5's span corruption: each masked span becomes one sentinel, and the targets have the spans.

    Lengths, noise masks and sentinels follow `t5.data.preprocessors` (`random_spans_helper`,
    `random_spans_noise_mask`, `noise_span_to_unique_sentinel`, `nonnoise_span_to_unique_sentinel`): a window begins
    with text and ends with a masked span, sentinels are taken in their order, `<extra_id_0>` first, no sentinel closes
    the targets, and both features end with EOS. (T5 rounds the masked tokens in float32 when it masks and in float64
    when it computes lengths, which differ at some exact halves; this class always uses the latter, so nothing is cut.)

    Attributes:
      noise_density: the share of tokens that is masked.
      mean_noise_span_length: tokens per masked span, on average. ByT5 uses 20 (`objectives.byt5_span_corruption`).
    """

    main_feature: ClassVar[str] = "inputs"
    eos_after_documents: ClassVar[bool] = False

    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0

    def __post_init__(self) -> None:
        check_noise_density(self.noise_density)
        if not isinstance(mean := self.mean_noise_span_length, int | float | np.floating) or not mean >= 1:
            raise ValueError(f"mean_noise_span_length is {mean!r}; a span has at least 1 token (T5 uses 3).")

    @property
    def name(self) -> str:
        return f"span{self.mean_noise_span_length:g}_{self.noise_density:g}"

    def _num_noise_tokens_and_spans(self, length: int) -> tuple[int, int]:
        num_noise_tokens = min(max(round(length * self.noise_density), 1), length - 1)
        # T5's length helper forgets that there is at least one span, and so cuts windows shorter than half a span.
        num_spans = max(round(num_noise_tokens / self.mean_noise_span_length), 1)
        return num_noise_tokens, min(num_spans, length - num_noise_tokens)

    def _lengths_of_window(self, length: int) -> dict[str, int]:
        num_noise_tokens, num_spans = self._num_noise_tokens_and_spans(length)
        return {"inputs": length - num_noise_tokens + num_spans + 1, "targets": num_noise_tokens + num_spans + 1}

    def _fit(self, inputs_length: int) -> tuple[int, int]:
        """The longest window whose inputs fit, and its targets' length: T5's `random_spans_helper`."""
        _check_inputs_length(inputs_length)
        # Inputs never become shorter with the window, and a configuration may name any length.
        length, too_long = 2, 3
        while self._lengths_of_window(too_long)["inputs"] <= inputs_length:
            length, too_long = too_long, 2 * too_long
        while too_long - length > 1:
            middle = (length + too_long) // 2
            if self._lengths_of_window(middle)["inputs"] <= inputs_length:
                length = middle
            else:
                too_long = middle
        targets_length = self._lengths_of_window(length)["targets"]
        # T5's exception: at density 0.5 the targets shall not become longer than the (rounder) inputs.
        if self.noise_density == 0.5 and targets_length > self._lengths_of_window(length)["inputs"]:
            return length - 1, targets_length - 1
        return length, targets_length

    def raw_length(self, length: int) -> int:
        """Tokens of text that fill an example: 568 for 512 inputs with T5's defaults."""
        return self._fit(length)[0]

    def lengths(self, length: int) -> dict[str, int]:
        return {"inputs": length, "targets": self._fit(length)[1]}

    def check_sentinels(self, length: int, num_sentinels: int) -> None:
        """Raises ValueError if a full example has more masked spans than the vocabulary has sentinels."""
        self._check_spans(self.raw_length(length), num_sentinels)

    def _check_spans(self, length: int, num_sentinels: int) -> None:
        num_noise_tokens, num_spans = self._num_noise_tokens_and_spans(length)
        if num_spans <= num_sentinels:
            return
        if num_sentinels < 1:
            raise ValueError(
                "Span corruption needs sentinels and this vocabulary has none; open it with extra_ids=100."
            )
        enough = int(np.ceil(num_noise_tokens / num_sentinels))
        raise ValueError(
            f"A window of {length} tokens with noise_density {self.noise_density} and mean_noise_span_length "
            f"{self.mean_noise_span_length} needs {num_spans} sentinels, and the vocabulary has {num_sentinels}; "
            f"set mean_noise_span_length to {enough} or more, make the inputs shorter, or open the vocabulary with "
            f"extra_ids={num_spans} and the embedding as many rows more."
        )

    def corrupt(self, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, ids: VocabularyIds) -> CorruptedBatch:
        """See `Objective`; raises ValueError if a window needs more sentinels than there are."""
        batch, longest = tokens.shape
        size = self._lengths_of_window(longest)
        inputs = np.zeros((batch, size["inputs"]), np.int32)
        targets = np.zeros((batch, size["targets"]), np.int32)
        inputs_lengths = np.zeros(batch, np.int64)
        targets_lengths = np.zeros(batch, np.int64)
        # Windows of one length have equally many spans and equally long outputs, so they are one array operation.
        for length in np.unique(lengths):
            self._check_spans(int(length), ids.num_sentinels)
            rows = np.flatnonzero(lengths == length)
            some_inputs, some_targets = self._corrupt_equal_lengths(tokens[rows, :length], seeds[rows], ids)
            inputs[rows, : some_inputs.shape[1]] = some_inputs
            targets[rows, : some_targets.shape[1]] = some_targets
            inputs_lengths[rows] = some_inputs.shape[1]
            targets_lengths[rows] = some_targets.shape[1]
        return CorruptedBatch(inputs, inputs_lengths, targets, targets_lengths)

    def _corrupt_equal_lengths(
        self, tokens: np.ndarray, seeds: np.ndarray, ids: VocabularyIds
    ) -> tuple[np.ndarray, np.ndarray]:
        batch, length = tokens.shape
        num_noise_tokens, num_spans = self._num_noise_tokens_and_spans(length)
        text_spans = _random_segments(length - num_noise_tokens, num_spans, seeds, draw=0)
        noise_spans = _random_segments(num_noise_tokens, num_spans, seeds, draw=1)
        noise_ends = np.cumsum(text_spans + noise_spans, axis=1)
        noise_starts = noise_ends - noise_spans
        text_starts = noise_ends - noise_spans - text_spans

        row = np.arange(batch)[:, None]
        is_noise_start = np.zeros((batch, length), bool)
        is_noise_start[row, noise_starts] = True
        is_text_start = np.zeros((batch, length), bool)
        is_text_start[row, text_starts] = True
        # +1 where noise begins, -1 where it ends: the running sum is the mask. The first text start is the window's.
        steps = is_noise_start.astype(np.int8)
        steps[row, text_starts[:, 1:]] = -1
        is_noise = np.cumsum(steps, axis=1, dtype=np.int8).astype(bool)

        sentinels = ids.sentinels(num_spans)
        inputs, targets = tokens.copy(), tokens.copy()
        inputs[row, noise_starts] = sentinels
        targets[row, text_starts] = sentinels
        inputs = inputs[~is_noise | is_noise_start].reshape(batch, length - num_noise_tokens + num_spans)
        targets = targets[is_noise | is_text_start].reshape(batch, num_noise_tokens + num_spans)
        eos = np.full((batch, 1), ids.eos_id, tokens.dtype)
        return np.concatenate([inputs, eos], axis=1), np.concatenate([targets, eos], axis=1)


def _random_segments(num_items: int, num_segments: int, seeds: np.ndarray, draw: int) -> np.ndarray:
    """Lengths of `num_segments` non-empty segments of `num_items` items, uniform over all ways to cut them.

    Returns int64 `[batch, num_segments]`.
    """
    batch = len(seeds)
    bounds = np.zeros((batch, num_segments + 1), np.int64)
    bounds[:, -1] = num_items
    if num_segments > 1:
        keys = random_keys(seeds, num_items - 1, draw)
        cuts = np.argpartition(keys, num_segments - 2, axis=1)[:, : num_segments - 1]
        bounds[:, 1:-1] = np.sort(cuts, axis=1) + 1
    return np.diff(bounds, axis=1)


# Features of i.i.d. denoising are this many standard deviations longer than the mean. This gives the 192 targets that
# T5's configuration (`iid_15_u_u.gin`) has for 512 inputs; one example in some thousands needs more.
_DEVIATIONS = 3.5


@dataclasses.dataclass(frozen=True)
class IidDenoising:
    """T5's `iid_denoising`: each token is masked independently, and runs of masked tokens become one sentinel.

    Inputs and targets are made as in `SpanCorruption`, but the numbers of tokens and spans are random. A window is as
    long as inputs that have nothing masked. Where more targets or sentinels are drawn than there is room for, the last
    masked tokens of the window stay text, so that nothing is cut; T5 cuts the targets.

    Attributes:
      noise_density: the probability with which a token is masked.
    """

    main_feature: ClassVar[str] = "inputs"
    eos_after_documents: ClassVar[bool] = False

    noise_density: float = 0.15

    def __post_init__(self) -> None:
        check_noise_density(self.noise_density)

    @property
    def name(self) -> str:
        return f"iid_{self.noise_density:g}"

    def _num_targets(self, length: int) -> int:
        """Targets that are planned for a window, EOS included."""
        p, q = self.noise_density, 1 - self.noise_density
        # A position adds a target unless it and the one before it are text: a masked token, or a span's sentinel.
        mean = length - (length - 1) * q**2
        variance = (length - 1) * q**2 * (1 - q**2) + 2 * (length - 2) * q**3 * p
        return min(int(1 + mean + _DEVIATIONS * math.sqrt(variance)), length + 1)

    def _num_sentinels(self, length: int) -> int:
        """Sentinels that are planned for a feature of a window."""
        pq = self.noise_density * (1 - self.noise_density)
        mean = (length - 1) * pq + max(self.noise_density, 1 - self.noise_density)
        return math.ceil(mean + _DEVIATIONS * math.sqrt((length - 1) * pq * (1 - 3 * pq)))

    def raw_length(self, length: int) -> int:
        _check_inputs_length(length)
        return length - 1

    def lengths(self, length: int) -> dict[str, int]:
        return {"inputs": length, "targets": self._num_targets(self.raw_length(length))}

    def check_sentinels(self, length: int, num_sentinels: int) -> None:
        """Raises ValueError if examples may well have more masked spans than the vocabulary has sentinels."""
        needed = self._num_sentinels(self.raw_length(length))
        if needed <= num_sentinels:
            return
        if num_sentinels < 1:
            raise ValueError(
                "I.i.d. denoising needs sentinels and this vocabulary has none; open it with extra_ids=100."
            )
        fitting = length
        while fitting > 3 and self._num_sentinels(fitting - 1) > num_sentinels:
            fitting -= 1
        raise ValueError(
            f"I.i.d. denoising of {length} inputs with noise_density {self.noise_density} needs {needed} sentinels, "
            f"and the vocabulary has {num_sentinels}; use at most {fitting} inputs, open the vocabulary with "
            f"extra_ids={needed} and the embedding as many rows more, or mask whole spans "
            "(objectives.SpanCorruption)."
        )

    def corrupt(self, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, ids: VocabularyIds) -> CorruptedBatch:
        text = is_text(tokens, lengths)
        noise = text & (random_uniform(seeds, tokens.shape[1], draw=0) < self.noise_density)
        noise = _unmask_excess(noise, text, self._num_targets(tokens.shape[1]), ids.num_sentinels)
        inputs = _spans_to_sentinels(tokens, noise, text, ids)
        targets = _spans_to_sentinels(tokens, text & ~noise, text, ids)
        return CorruptedBatch(*inputs, *targets)


def _check_inputs_length(length: int) -> None:
    if length < 3:
        raise ValueError(f"inputs_length is {length}; a corrupted example has at least 3 input tokens.")


def _starts(spans: np.ndarray) -> np.ndarray:
    """Where the runs of `spans` `[batch, length]` begin."""
    starts = spans.copy()
    starts[:, 1:] &= ~spans[:, :-1]
    return starts


def _spans_to_sentinels(
    tokens: np.ndarray, spans: np.ndarray, text: np.ndarray, ids: VocabularyIds
) -> tuple[np.ndarray, np.ndarray]:
    """Each run of `spans` becomes the next sentinel: T5's `noise_span_to_unique_sentinel`, and EOS."""
    starts = _starts(spans)
    numbers = np.cumsum(starts, axis=1)
    # Row 0 stands before the first span, where the token stays.
    sentinels = np.concatenate([[0], ids.sentinels(int(numbers.max(initial=0)))])
    with_sentinels = np.where(starts, sentinels[numbers], tokens)
    return keep_tokens(with_sentinels, text & (~spans | starts), tokens.shape[1] + 1, ids.eos_id)


def _unmask_excess(noise: np.ndarray, text: np.ndarray, num_targets: int, num_sentinels: int) -> np.ndarray:
    """The mask without its last tokens in rows that would have more targets, or sentinels, than that."""
    noise_starts, text_starts = _starts(noise), _starts(text & ~noise)
    num_noise_spans, num_text_spans = np.cumsum(noise_starts, axis=1), np.cumsum(text_starts, axis=1)
    targets = np.cumsum(noise, axis=1) + num_text_spans + 1
    too_much = (targets[:, -1] > num_targets) | (np.maximum(num_noise_spans, num_text_spans)[:, -1] > num_sentinels)
    # A span of text, with a sentinel of its own, follows the last token that stays masked.
    fits = (targets + 1 <= num_targets) & (num_noise_spans <= num_sentinels) & (num_text_spans + 1 <= num_sentinels)
    return noise & (fits | ~too_much[:, None])
