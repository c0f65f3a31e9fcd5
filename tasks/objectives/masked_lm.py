"""BERT's objective: some tokens of a row are masked, and the model says which they were. NumPy only.

Rows may be of two segments, and then the model also says whether the second follows the first.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from limba.tasks.objectives import sentence_pairs
from limba.tasks.objectives.objective import (
    CorruptedBatch,
    VocabularyIds,
    check_noise_density,
    is_text,
    random_keys,
    random_uniform,
)


@dataclasses.dataclass(frozen=True)
class MaskedLM:
    """Masked language modelling (arXiv:1810.04805, section 3.1): rows `[CLS] text [SEP]`, the loss on masked tokens.

    The features are `inputs`, the row with its masks; `targets`, the tokens that were masked, in order; and
    `target_positions`, where in the row they stand.

    With `pairs` rows are `[CLS] A [SEP] B [SEP]`, and there are two features more: `pair_start`, where in the row B
    begins, and `pair_labels`, 1 where B follows A and 2 where it does not. Tokens of A and of B are masked.

    Attributes:
      noise_density: the share of tokens that is to be predicted; 0.15 in BERT, 0.3 in ModernBERT.
      mask_rate, random_token_rate: of these tokens, how many become [MASK] and how many another token; the others stay.
      whole_words: mask all pieces of a word or none. A word that the masked tokens have no room for is left. Of one
        with more pieces than all of them, as a clause of Chinese in byte-level BPE, single tokens are masked.
      pairs: "next_sentence" (BERT), "sentence_order" (ALBERT) or "" for rows of one segment; see
        `sentence_pairs.arrange`.
      frame: how many special tokens the tokenizer's template puts before and behind a text that stands alone. Of one
        that puts none (1, 1) makes rows `[CLS] text [SEP]`.
    """

    main_feature: ClassVar[str] = "inputs"
    eos_after_documents: ClassVar[bool] = False

    noise_density: float = 0.15
    mask_rate: float = 0.8
    random_token_rate: float = 0.1
    whole_words: bool = False
    pairs: str = ""
    frame: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        if self.pairs not in ("", *sentence_pairs.KINDS):
            choices = " or ".join(map(repr, sentence_pairs.KINDS))
            raise ValueError(f"MaskedLM.pairs is {self.pairs!r}; it is {choices}, or '' for rows without pairs.")
        check_noise_density(self.noise_density)
        rates = (self.mask_rate, self.random_token_rate)
        if min(rates) < 0 or sum(rates) > 1:
            raise ValueError(
                f"mask_rate is {self.mask_rate} and random_token_rate {self.random_token_rate}; both are at least 0 "
                "and together at most 1 (BERT uses 0.8 and 0.1)."
            )

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return ("cls", "sep", "mask") if self.pairs else ("mask",)

    def _around(self, ids: VocabularyIds) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What stands before and behind a row."""
        is_unframed = ids.frame == ((), ()) and tuple(self.frame) == (1, 1)
        if not (self.pairs or is_unframed) or ids.cls_id is None or ids.sep_id is None:
            return ids.frame
        return (ids.cls_id,), (ids.sep_id,)

    @property
    def name(self) -> str:
        words, pairs = "_words" if self.whole_words else "", f"_{self.pairs}" if self.pairs else ""
        return f"masked_lm_{self.noise_density:g}{words}{pairs}"

    @property
    def _num_special(self) -> int:
        """Those of the template; of pairs [CLS], and [SEP] behind each segment."""
        return 3 if self.pairs else sum(self.frame)

    def raw_length(self, length: int) -> int:
        """The row without its special tokens."""
        if length < self._num_special + 2:
            raise ValueError(f"inputs_length is {length}; a row has at least {self._num_special + 2} tokens.")
        return length - self._num_special

    def lengths(self, length: int) -> dict[str, int]:
        masked = int(self._num_masked(np.array(self.raw_length(length))))
        of_pairs = {"pair_start": 1, "pair_labels": 1} if self.pairs else {}
        return {"inputs": length, "targets": masked, "target_positions": masked} | of_pairs

    def _num_masked(self, lengths: np.ndarray) -> np.ndarray:
        return np.maximum(np.rint(lengths * self.noise_density), 1).astype(np.int64)

    def check_sentinels(self, length: int, num_sentinels: int) -> None:
        """Nothing is to be checked."""

    def check_ids(self, ids: VocabularyIds) -> None:
        """Raises ValueError for whole words with a vocabulary that does not know which pieces continue a word, and for
        one whose template has another `frame`.
        """
        if self.whole_words and ids.continues_word is None:
            raise ValueError(
                "MaskedLM.whole_words needs a vocabulary that knows which pieces continue a word, such as "
                "vocabularies.TokenizerVocabulary of a WordPiece tokenizer.json."
            )
        found = tuple(map(len, self._around(ids)))
        if found != tuple(self.frame) and not self.pairs:
            raise ValueError(
                f"MaskedLM.frame is {tuple(self.frame)}, and the tokenizer's template puts {found[0]} special tokens "
                f"before a text and {found[1]} behind it: set objectives.MaskedLM.frame = {found}."
            )

    def corrupt(self, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, ids: VocabularyIds) -> CorruptedBatch:
        """See `Objective`.

        Raises:
          ValueError: as `check_ids`.
        """
        self.check_ids(ids)
        assert ids.mask_id is not None
        before, behind = self._around(ids)
        batch, longest = tokens.shape
        rows, border = np.arange(batch), np.full(batch, longest)  # nothing stands behind the border
        others: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        if self.pairs:
            arranged = sentence_pairs.arrange(self.pairs, tokens, lengths, seeds, ids.continues_word)
            tokens, lengths, border, labels = arranged
            for name, values in (("pair_start", border + 2), ("pair_labels", labels)):
                others[name] = values.astype(np.int32)[:, None], np.ones(batch, np.int64)
        chosen = self._choose(tokens, lengths, seeds, ids, border)
        kind = random_uniform(seeds, longest, draw=1)
        ordinary = np.setdiff1d(np.arange(ids.vocab_size), ids.special_ids)
        random_tokens = ordinary[random_keys(seeds, longest, draw=2) % np.uint64(len(ordinary))]
        corrupted = np.where(kind < self.mask_rate, ids.mask_id, tokens)
        is_random = (kind >= self.mask_rate) & (kind < self.mask_rate + self.random_token_rate)
        corrupted = np.where(is_random, random_tokens, corrupted)
        corrupted = np.where(is_text(tokens, lengths), np.where(chosen, corrupted, tokens), 0)

        inputs = np.zeros((batch, longest + self._num_special), np.int32)
        inputs[:, : len(before)] = before
        np.put_along_axis(inputs, _places(np.arange(longest), border[:, None], len(before)), corrupted, axis=1)
        if self.pairs:
            inputs[rows, border + 1] = ids.sep_id
        for i, id_ in enumerate(reversed(behind), start=1):
            inputs[rows, lengths + self._num_special - i] = id_

        rows, columns = np.nonzero(chosen)
        counts = chosen.sum(axis=1)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        targets, positions = (np.zeros((batch, int(self._num_masked(np.array(longest)))), np.int32) for _ in range(2))
        targets[rows, within] = tokens[rows, columns]
        positions[rows, within] = _places(columns, border[rows], len(before))
        others["target_positions"] = positions, counts
        return CorruptedBatch(inputs, lengths + self._num_special, targets, counts, others)

    def _choose(
        self, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, ids: VocabularyIds, border: np.ndarray
    ) -> np.ndarray:
        """Which tokens are to be predicted: bool `[batch, length]`. A word begins at the border of a row."""
        batch, longest = tokens.shape
        text = is_text(tokens, lengths)
        keys = random_keys(seeds, longest, draw=0)
        budget = self._num_masked(lengths)[:, None]
        word = np.broadcast_to(np.arange(longest), tokens.shape)
        if self.whole_words:
            assert ids.continues_word is not None
            begins = ~ids.continues_word[tokens]
            begins[:, 0] = True
            begins |= np.arange(longest) == border[:, None]
            number = np.cumsum(begins) - 1
            begins |= np.bincount(number)[number].reshape(begins.shape) > budget
            word = np.cumsum(begins, axis=1) - 1
            keys = np.take_along_axis(keys, word, axis=1)
        # Words in a random order, the tokens of each together, padding last.
        order = np.lexsort((word, keys, ~text), axis=1)
        ordered_word = np.take_along_axis(word, order, axis=1)
        ends = np.ones((batch, longest), bool)
        ends[:, :-1] = ordered_word[:, 1:] != ordered_word[:, :-1]
        # Tokens up to the end of each word: the first end at or after a place.
        place = np.broadcast_to(np.arange(1, longest + 1), tokens.shape)
        until = np.minimum.accumulate(np.where(ends, place, longest)[:, ::-1], axis=1)[:, ::-1]
        taken = until <= budget
        chosen = np.zeros((batch, longest), bool)
        np.put_along_axis(chosen, order, taken, axis=1)
        return chosen & text


def _places(columns: np.ndarray, border: np.ndarray, num_before: int) -> np.ndarray:
    """Where tokens of the text stand in the row: [CLS] is in front of them, [SEP] between the segments."""
    return columns + num_before + (columns >= border)
