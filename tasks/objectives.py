"""Pre-training objectives: how a window of text becomes `inputs` and `targets`, and how long both are.

NumPy only, so that gin files and planning tools compute lengths without TensorFlow:

    TASK_FEATURE_LENGTHS = @objectives.span_corruption_lengths()
"""

import dataclasses
from typing import NamedTuple, Protocol

import numpy as np


class CorruptedBatch(NamedTuple):
    """Examples, padded with 0 behind their end.

    Attributes:
      inputs: int32 `[batch, inputs_length]`.
      inputs_lengths: int64 `[batch]`.
      targets: int32 `[batch, targets_length]`.
      targets_lengths: int64 `[batch]`.
    """

    inputs: np.ndarray
    inputs_lengths: np.ndarray
    targets: np.ndarray
    targets_lengths: np.ndarray


class Objective(Protocol):
    """What a preprocessor needs to know about an objective."""

    def lengths(self, inputs_length: int) -> dict[str, int]:
        """Tokens per feature of a full example, EOS included."""
        ...

    def raw_length(self, inputs_length: int) -> int:
        """Tokens of text that fill an example of `inputs_length` inputs."""
        ...

    def check_sentinels(self, inputs_length: int, num_sentinels: int) -> None:
        """Raises ValueError if a full example needs more sentinels than the vocabulary has."""
        ...

    def corrupt(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        seeds: np.ndarray,
        *,
        vocab_size: int,
        num_sentinels: int,
        eos_id: int,
    ) -> CorruptedBatch:
        """Makes examples of `tokens` `[batch, raw_length]`, of which row `i` has `lengths[i]` tokens.

        A row depends on its tokens and on `seeds[i]` alone.
        """
        ...


def span_corruption_lengths(
    inputs_length: int = 512, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> dict[str, int]:
    """Feature lengths of span corruption: `{"inputs": 512, "targets": 114}` for T5's defaults."""
    return SpanCorruption(noise_density, mean_noise_span_length).lengths(inputs_length)


@dataclasses.dataclass(frozen=True)
class SpanCorruption:
    """T5's span corruption: each masked span becomes one sentinel, and the targets say what stood there.

    Lengths, noise masks and sentinels follow `t5.data.preprocessors` (`random_spans_helper`,
    `random_spans_noise_mask`, `noise_span_to_unique_sentinel`, `nonnoise_span_to_unique_sentinel`): a window begins
    with text and ends with a masked span, sentinels count down from the last id of the vocabulary, no sentinel closes
    the targets, and both features end with EOS. (T5 rounds the masked tokens in float32 when it masks and in float64
    when it computes lengths, which differ at some exact halves; this class always uses the latter, so nothing is cut.)

    Attributes:
      noise_density: the share of tokens that is masked.
      mean_noise_span_length: tokens per masked span, on average. ByT5 uses 20.
    """

    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0

    def __post_init__(self):
        if not 0 < self.noise_density < 1:
            raise ValueError(f"noise_density is {self.noise_density}; it must lie between 0 and 1 (T5 uses 0.15).")
        if self.mean_noise_span_length < 1:
            raise ValueError(
                f"mean_noise_span_length is {self.mean_noise_span_length}; a span has at least 1 token (T5 uses 3)."
            )

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
        if inputs_length < 3:
            raise ValueError(f"inputs_length is {inputs_length}; a corrupted example has at least 3 input tokens.")
        length = 2
        while self._lengths_of_window(length + 1)["inputs"] <= inputs_length:
            length += 1
        targets_length = self._lengths_of_window(length)["targets"]
        # T5's exception: at density 0.5 the targets shall not become longer than the (rounder) inputs.
        if self.noise_density == 0.5 and targets_length > self._lengths_of_window(length)["inputs"]:
            return length - 1, targets_length - 1
        return length, targets_length

    def raw_length(self, inputs_length: int) -> int:
        """Tokens of text that fill an example: 568 for 512 inputs with T5's defaults."""
        return self._fit(inputs_length)[0]

    def lengths(self, inputs_length: int) -> dict[str, int]:
        return {"inputs": inputs_length, "targets": self._fit(inputs_length)[1]}

    def check_sentinels(self, inputs_length: int, num_sentinels: int) -> None:
        """Raises ValueError if a full example has more masked spans than the vocabulary has sentinels."""
        self._check_spans(self.raw_length(inputs_length), num_sentinels)

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
            f"set mean_noise_span_length to {enough} or more, or make the inputs shorter."
        )

    def corrupt(
        self,
        tokens: np.ndarray,
        lengths: np.ndarray,
        seeds: np.ndarray,
        *,
        vocab_size: int,
        num_sentinels: int,
        eos_id: int,
    ) -> CorruptedBatch:
        """Corrupts windows of text.

        Args:
          tokens: int32 `[batch, raw_length]`.
          lengths: `[batch]`, the tokens of each row, at least 2.
          seeds: uint64 `[batch]`, see `example_seeds`.
          vocab_size: size of the vocabulary with its sentinels: the first sentinel is `vocab_size - 1`.
          num_sentinels: how many of the last ids are sentinels.
          eos_id: appended to both features.

        Raises:
          ValueError: if a window needs more sentinels than there are.
        """
        batch, longest = tokens.shape
        size = self._lengths_of_window(longest)
        inputs = np.zeros((batch, size["inputs"]), np.int32)
        targets = np.zeros((batch, size["targets"]), np.int32)
        inputs_lengths = np.zeros(batch, np.int64)
        targets_lengths = np.zeros(batch, np.int64)
        # Windows of one length have equally many spans and equally long outputs, so they are one array operation.
        for length in np.unique(lengths):
            self._check_spans(int(length), num_sentinels)
            rows = np.flatnonzero(lengths == length)
            some_inputs, some_targets = self._corrupt_equal_lengths(
                tokens[rows, :length], seeds[rows], vocab_size - 1, eos_id
            )
            inputs[rows, : some_inputs.shape[1]] = some_inputs
            targets[rows, : some_targets.shape[1]] = some_targets
            inputs_lengths[rows] = some_inputs.shape[1]
            targets_lengths[rows] = some_targets.shape[1]
        return CorruptedBatch(inputs, inputs_lengths, targets, targets_lengths)

    def _corrupt_equal_lengths(
        self, tokens: np.ndarray, seeds: np.ndarray, first_sentinel: int, eos_id: int
    ) -> tuple[np.ndarray, np.ndarray]:
        batch, length = tokens.shape
        num_noise_tokens, num_spans = self._num_noise_tokens_and_spans(length)
        text_spans = _random_segments(length - num_noise_tokens, num_spans, seeds, stream=0)
        noise_spans = _random_segments(num_noise_tokens, num_spans, seeds, stream=1)
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

        sentinels = first_sentinel - np.arange(num_spans, dtype=tokens.dtype)
        inputs, targets = tokens.copy(), tokens.copy()
        inputs[row, noise_starts] = sentinels
        targets[row, text_starts] = sentinels
        inputs = inputs[~is_noise | is_noise_start].reshape(batch, length - num_noise_tokens + num_spans)
        targets = targets[is_noise | is_text_start].reshape(batch, num_noise_tokens + num_spans)
        eos = np.full((batch, 1), eos_id, tokens.dtype)
        return np.concatenate([inputs, eos], axis=1), np.concatenate([targets, eos], axis=1)


def _random_segments(num_items: int, num_segments: int, seeds: np.ndarray, stream: int) -> np.ndarray:
    """Lengths of `num_segments` non-empty segments of `num_items` items, uniform over all ways to cut them.

    Returns int64 `[batch, num_segments]`.
    """
    batch = len(seeds)
    bounds = np.zeros((batch, num_segments + 1), np.int64)
    bounds[:, -1] = num_items
    if num_segments > 1:
        keys = _random_keys(seeds, num_items - 1, stream)
        cuts = np.argpartition(keys, num_segments - 2, axis=1)[:, : num_segments - 1]
        bounds[:, 1:-1] = np.sort(cuts, axis=1) + 1
    return np.diff(bounds, axis=1)


def example_seeds(seed: int, first_index: int, count: int) -> np.ndarray:
    """One seed per example, uint64 `[count]`: a function of `seed` and the example's index, whatever the batch is."""
    index = np.arange(first_index, first_index + count, dtype=np.uint64)
    return _mix(_mix(np.uint64(seed % 2**64)) + index)


def _random_keys(seeds: np.ndarray, count: int, stream: int) -> np.ndarray:
    """Random uint64 `[batch, count]` from one seed per row. Streams of one seed are independent."""
    position = np.arange(count, dtype=np.uint64) + (np.uint64(stream) << np.uint64(32))
    return _mix(_mix(seeds.astype(np.uint64))[:, None] + position[None, :])


def _mix(value):
    """SplitMix64's finalizer (Steele et al., 2014): a random-looking bijection of uint64, which wraps on purpose."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
