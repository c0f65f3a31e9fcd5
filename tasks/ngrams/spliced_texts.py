"""The texts that a model's batches were made of: spans go back to where their sentinels stand."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from limba.data import text_pieces
from limba.tasks.objectives.objective import VocabularyIds

NONE = -1  # where there is no such token


@dataclasses.dataclass(frozen=True)
class SplicedTexts:
    """All text of a batch, one token after the other; special tokens and sentinels are left out.

    Attributes:
      tokens: int64 `[tokens]`.
      begins: bool, whether a text begins with the token: nothing before it belongs to it.
      is_target: bool, whether the model is asked for it.
      sees_targets_before: whether the model sees the targets before the one it predicts, as decoders do.
      sees_text_after: whether it sees the text after a span.
    """

    tokens: np.ndarray
    begins: np.ndarray
    is_target: np.ndarray
    sees_targets_before: bool
    sees_text_after: bool


@dataclasses.dataclass(frozen=True)
class Contexts:
    """What n-grams may know of each target, int64 `[targets]`: what the model sees too.

    Attributes:
      words: the targets.
      left: the token before it; `NONE` at the beginning of a text, and where the model does not see it.
      left_but_one: the one before that.
      right: the first token that is seen after the span, `NONE` if there is none.
      distance: from the target to `right`, at least 1; 0 where there is none. A model has to guess it.
    """

    words: np.ndarray
    left: np.ndarray
    left_but_one: np.ndarray
    right: np.ndarray
    distance: np.ndarray

    def __len__(self) -> int:
        return len(self.words)

    def part(self, rows: slice) -> "Contexts":
        return Contexts(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))


def text_ids(ids: VocabularyIds) -> np.ndarray:
    """Which ids are text, bool `[vocab_size]`: no padding, no EOS, no sentinel, none of BERT's special tokens."""
    return text_pieces.is_text(ids.vocab_size, [*ids.special_ids, ids.eos_id, *ids.sentinels(ids.num_sentinels)])


def splice(batch: Mapping[str, np.ndarray], ids: VocabularyIds) -> SplicedTexts:
    """The texts of a batch of the features in `limba.data.contract`, packed or not.

    Targets without a sentinel before them follow the inputs, as in prefix LM. In rows of decoders EOS ends a text.
    """
    targets = np.asarray(batch["decoder_target_tokens"])
    if "masked_lm_positions" in batch:
        return _of_masked_words(batch, targets, text_ids(ids))
    if "encoder_input_tokens" in batch:
        return _of_spans(batch, targets, ids)
    return _of_rows(batch, targets, ids)


def contexts(texts: SplicedTexts) -> Contexts:
    """Of each target of the texts, in their order."""
    tokens, size = texts.tokens, len(texts.tokens)
    places = np.arange(size)
    first = np.maximum.accumulate(np.where(texts.begins, places, 0))  # of the text that a token is in
    seen = np.ones(size, bool) if texts.sees_targets_before else ~texts.is_target

    def before(steps: int) -> np.ndarray:
        place = np.maximum(places - steps, 0)
        return np.where((places - steps >= first) & seen[place], tokens[place], NONE)

    left = before(1)
    left_but_one = np.where(left == NONE, NONE, before(2))
    right, distance = np.full(size, NONE, np.int64), np.zeros(size, np.int64)
    if texts.sees_text_after and size:
        after = np.minimum.accumulate(np.where(texts.is_target, size, places)[::-1])[::-1]
        place = np.minimum(after, size - 1)
        is_there = (after < size) & (first[place] == first)
        right, distance = np.where(is_there, tokens[place], NONE), np.where(is_there, after - places, 0)
    chosen = texts.is_target
    return Contexts(tokens[chosen], left[chosen], left_but_one[chosen], right[chosen], distance[chosen])


def _of_spans(batch: Mapping[str, np.ndarray], targets: np.ndarray, ids: VocabularyIds) -> SplicedTexts:
    inputs = np.asarray(batch["encoder_input_tokens"])
    is_text = text_ids(ids)
    number = np.full(ids.vocab_size, NONE)
    number[ids.sentinels(ids.num_sentinels)] = np.arange(ids.num_sentinels)
    segment_ids = [batch.get(name) for name in ("encoder_segment_ids", "decoder_segment_ids")]
    most = 1 + max((int(np.max(x, initial=0)) for x in segment_ids if x is not None), default=0)
    of_inputs, of_targets = (_segments(x, y, most) for x, y in zip(segment_ids, (inputs, targets), strict=True))

    # Where in the inputs each sentinel of each segment stands; behind them where it does not.
    place_of = np.full((len(inputs) * most, ids.num_sentinels + 1), inputs.shape[1])
    rows, columns = np.nonzero(number[inputs] != NONE)
    found = number[inputs[rows, columns]]
    place_of[of_inputs[rows, columns], found] = columns

    last = np.maximum.accumulate(np.where(number[targets] != NONE, np.arange(targets.shape[1]), NONE), axis=1)
    last_sentinel = np.take_along_axis(targets, np.maximum(last, 0), axis=1)
    last_segment = np.take_along_axis(of_targets, np.maximum(last, 0), axis=1)
    follows = (last != NONE) & (last_segment == of_targets)
    anchor = place_of[of_targets, np.where(follows, number[last_sentinel], ids.num_sentinels)]

    kept = is_text[targets] & (np.asarray(batch["decoder_loss_weights"]) > 0)
    seen = is_text[inputs]
    segment = np.concatenate([of_inputs[seen], of_targets[kept]])
    place = np.concatenate([np.nonzero(seen)[1], anchor[kept]])
    offset = np.concatenate([np.full(seen.sum(), NONE), np.nonzero(kept)[1]])
    order = np.lexsort((offset, place, segment))
    tokens = np.concatenate([inputs[seen], targets[kept]]).astype(np.int64)[order]
    begins = np.diff(segment[order], prepend=NONE) != 0
    return SplicedTexts(tokens, begins, (offset != NONE)[order], sees_targets_before=True, sees_text_after=True)


def _of_masked_words(batch: Mapping[str, np.ndarray], targets: np.ndarray, is_text: np.ndarray) -> SplicedTexts:
    whole = np.array(batch["encoder_input_tokens"])
    is_target = np.zeros(whole.shape, bool)
    rows, columns = np.nonzero(np.asarray(batch["decoder_loss_weights"]) > 0)
    places = np.asarray(batch["masked_lm_positions"])[rows, columns]
    whole[rows, places] = targets[rows, columns]
    is_target[rows, places] = True
    segments = _segments(batch.get("encoder_segment_ids"), whole, whole.shape[1] + 1)
    return _of_whole_rows(whole, segments, is_target, is_text[whole], sees_targets_before=False, sees_text_after=True)


def _of_rows(batch: Mapping[str, np.ndarray], targets: np.ndarray, ids: VocabularyIds) -> SplicedTexts:
    length = targets.shape[1]
    segments = _segments(batch.get("decoder_segment_ids"), targets, length + 1)
    # Nothing of a document tells what the next one begins with, nor a span what the next one does.
    is_end = np.isin(targets, [ids.eos_id, *ids.sentinels(ids.num_sentinels)])
    segments = segments * (length + 1) + np.cumsum(is_end, axis=1)
    is_text = text_ids(ids)
    is_target = np.asarray(batch["decoder_loss_weights"]) > 0
    return _of_whole_rows(
        targets, segments, is_target, is_text[targets], sees_targets_before=True, sees_text_after=False
    )


def _of_whole_rows(
    tokens: np.ndarray, segments: np.ndarray, is_target: np.ndarray, is_text: np.ndarray, **sees: bool
) -> SplicedTexts:
    begins = np.diff(segments[is_text], prepend=NONE) != 0
    return SplicedTexts(tokens[is_text].astype(np.int64), begins, is_target[is_text], **sees)


def _segments(segment_ids: np.ndarray | None, tokens: np.ndarray, most: int) -> np.ndarray:
    """A number for each segment of each row, int64 like `tokens`: `most` to a row. Rows not packed are one each."""
    rows = np.broadcast_to(np.arange(len(tokens), dtype=np.int64)[:, None] * most, tokens.shape)
    return rows if segment_ids is None else rows + np.asarray(segment_ids)
