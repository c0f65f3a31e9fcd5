"""Objectives whose targets are the text itself: prefix LM, full LM, BERT- and MASS-style masking, deshuffling.

NumPy only. The formulas are those of `t5.data.preprocessors`, the names those of arXiv:1910.10683, table 3.
"""

import dataclasses
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

# Padding, EOS and unknown are never drawn as random tokens.
_NUM_RESERVED_TOKENS = 3


class _WindowOfInputs:
    """A window that the inputs have room for, without sentinels: what most of these objectives share."""

    main_feature: ClassVar[str] = "inputs"
    eos_after_documents: ClassVar[bool] = False

    def raw_length(self, length: int) -> int:
        """One token less than the inputs, for EOS: T5's `split_tokens_to_inputs_length`."""
        if length < 3:
            raise ValueError(f"inputs_length is {length}; an example has at least 3 input tokens.")
        return length - 1

    def lengths(self, length: int) -> dict[str, int]:
        return {"inputs": length, "targets": self.raw_length(length) + 1}

    def check_sentinels(self, length: int, num_sentinels: int) -> None:
        """Nothing is to be checked."""


@dataclasses.dataclass(frozen=True)
class PrefixLM(_WindowOfInputs):
    """T5's `prefix_lm`: a window is cut in two at a random place; `inputs` are its first part, `targets` the rest.

    A window has one token less than the inputs, for EOS. The prefix is drawn evenly from 1 token to all but one,
    or, with a smaller density, from that share on which makes the targets so long on average.

    Attributes:
      noise_density: the share of tokens that are targets, on average; at most 0.5, which T5 and UL2 use.
    """

    noise_density: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.noise_density <= 0.5:
            raise ValueError(
                f"noise_density of a prefix LM is {self.noise_density}; it must lie above 0 and be at most 0.5, which "
                "T5 uses: the prefix is drawn evenly."
            )

    @property
    def name(self) -> str:
        return "prefix_lm" if self.noise_density == 0.5 else f"prefix_lm_{self.noise_density:g}"

    def _shortest_prefix(self, lengths: np.ndarray) -> np.ndarray:
        # T5's `random_prefix_noise_mask`, float32 included.
        shortest = np.round(np.float32(1 - 2 * self.noise_density) * (lengths - 1).astype(np.float32)).astype(np.int64)
        return np.minimum(np.maximum(shortest, 1), lengths - 1)

    def lengths(self, length: int) -> dict[str, int]:
        raw_length = self.raw_length(length)
        return {"inputs": length, "targets": raw_length - int(self._shortest_prefix(np.array(raw_length))) + 1}

    def corrupt(self, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, ids: VocabularyIds) -> CorruptedBatch:
        shortest = self._shortest_prefix(lengths)
        choices = lengths - shortest
        prefix = shortest + (random_uniform(seeds, 1, draw=0)[:, 0] * choices).astype(np.int64)
        is_prefix = np.arange(tokens.shape[1]) < prefix[:, None]
        width = tokens.shape[1] + 1
        return CorruptedBatch(
            *keep_tokens(tokens, is_prefix, width, ids.eos_id),
            *keep_tokens(tokens, is_text(tokens, lengths) & ~is_prefix, width, ids.eos_id),
        )


@dataclasses.dataclass(frozen=True)
class FullLM(_WindowOfInputs):
    """T5's `full_lm`: plain language modelling, `targets` only, EOS at the ends of documents and not of windows.

    For a decoder on its own. The lengths it is asked for are those of `targets`.
    """

    main_feature: ClassVar[str] = "targets"
    eos_after_documents: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "full_lm"

    def raw_length(self, length: int) -> int:
        if length < 2:
            raise ValueError(f"targets_length is {length}; a window of a language model has at least 2 tokens.")
        return length

    def lengths(self, length: int) -> dict[str, int]:
        return {"targets": self.raw_length(length)}

    def corrupt(self, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, ids: VocabularyIds) -> CorruptedBatch:
        del seeds, ids
        lengths = np.asarray(lengths, np.int64)
        targets = np.where(is_text(tokens, lengths), tokens, 0).astype(np.int32)
        return CorruptedBatch(np.zeros((len(tokens), 0), np.int32), np.zeros_like(lengths), targets, lengths)


@dataclasses.dataclass(frozen=True)
class BertStyle(_WindowOfInputs):
    """T5's BERT-style masking: some tokens become the first sentinel or a random token; `targets` are the whole text.

    T5's `iid_15_r10s90_f`. With `random_token_rate=0` every masked token becomes the sentinel: its MASS-style
    (`iid_15_m_f`), see `objectives.mass_style`.

    Attributes:
      noise_density: the probability with which a token is masked.
      random_token_rate: the share of masked tokens that become a random token of the vocabulary.
    """

    noise_density: float = 0.15
    random_token_rate: float = 0.1

    def __post_init__(self) -> None:
        check_noise_density(self.noise_density)
        if not 0 <= self.random_token_rate <= 1:
            raise ValueError(f"random_token_rate is {self.random_token_rate}; it lies between 0 and 1 (T5 uses 0.1).")

    @property
    def name(self) -> str:
        return f"{'bert' if self.random_token_rate else 'mass'}_{self.noise_density:g}"

    def check_sentinels(self, length: int, num_sentinels: int) -> None:
        """Raises ValueError if there is no sentinel to mask with."""
        if num_sentinels < 1:
            raise ValueError("Masking needs a sentinel and this vocabulary has none; open it with extra_ids=100.")

    def corrupt(self, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, ids: VocabularyIds) -> CorruptedBatch:
        length = tokens.shape[1]
        noise = random_uniform(seeds, length, draw=0) < self.noise_density
        is_random = random_uniform(seeds, length, draw=1) < self.random_token_rate
        drawn = random_keys(seeds, length, draw=2) % np.uint64(ids.vocab_size - _NUM_RESERVED_TOKENS)
        replacement = np.where(is_random, drawn.astype(np.int32) + _NUM_RESERVED_TOKENS, ids.first_sentinel)
        text = is_text(tokens, lengths)
        return CorruptedBatch(
            *keep_tokens(np.where(noise, replacement, tokens), text, length + 1, ids.eos_id),
            *keep_tokens(tokens, text, length + 1, ids.eos_id),
        )


@dataclasses.dataclass(frozen=True)
class Deshuffling(_WindowOfInputs):
    """T5's deshuffling (`all_permute`): `inputs` are the tokens of a window in random order, `targets` the text."""

    @property
    def name(self) -> str:
        return "deshuffling"

    def corrupt(self, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, ids: VocabularyIds) -> CorruptedBatch:
        text = is_text(tokens, lengths)
        # Padding stays behind the text: no key is greater.
        keys = np.where(text, random_keys(seeds, tokens.shape[1], draw=0) >> np.uint64(1), ~np.uint64(0))
        shuffled = np.take_along_axis(tokens, np.argsort(keys, axis=1, kind="stable"), axis=1)
        width = tokens.shape[1] + 1
        return CorruptedBatch(
            *keep_tokens(shuffled, text, width, ids.eos_id), *keep_tokens(tokens, text, width, ids.eos_id)
        )
