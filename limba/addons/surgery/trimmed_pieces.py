"""Fewer pieces for a SentencePiece model: those that a corpus uses, and those without which texts cannot be written."""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from limba.tasks.vocabularies.training_text import MULTIPLE, round_up

_BATCH = 1024
_SHOWN = 200
_Piece = sentencepiece_pb2.ModelProto.SentencePiece
_LEARNED = _Piece.NORMAL


@dataclasses.dataclass
class Usage:
    """Which pieces the lines of a corpus use.

    Attributes:
      counts: by id, how often.
      lines: that were read.
      unknown, in_bytes: tokens that are `<unk>`, and tokens that are one byte of a character without a piece.
    """

    counts: np.ndarray
    lines: int = 0
    unknown: int = 0
    in_bytes: int = 0

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())


class Encoder(Protocol):
    """A vocabulary of which tokens are counted; its length is the highest id plus 1.

    Attributes:
      unk_id: -1 if there is none.
      in_bytes: ids of tokens that are one byte of a character without a piece.
    """

    unk_id: int
    in_bytes: Sequence[int]

    def __len__(self) -> int: ...

    def encode(self, lines: Sequence[str]) -> list[list[int]]: ...


def usage(vocabulary: Encoder, batches: Iterable[Sequence[Sequence[int]]]) -> Usage:
    """What tokens of lines, a batch at a time, use."""
    usage = Usage(np.zeros(len(vocabulary), np.int64))
    for batch in batches:
        ids = np.fromiter(itertools.chain.from_iterable(batch), np.int64)
        usage.counts += np.bincount(ids, minlength=len(vocabulary))
        usage.lines += len(batch)
    usage.unknown = int(usage.counts[vocabulary.unk_id]) if vocabulary.unk_id >= 0 else 0
    usage.in_bytes = int(usage.counts[list(vocabulary.in_bytes)].sum())
    return usage


class Pieces:
    """A SentencePiece model, opened, with what its pieces are."""

    def __init__(self, model: bytes):
        self.model = model
        self.proto = sentencepiece_pb2.ModelProto.FromString(model)
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.types = np.array([piece.type for piece in self.proto.pieces])
        self.unk_id: int = self.processor.unk_id()
        self.in_bytes: Sequence[int] = np.flatnonzero(self.types == _Piece.BYTE).tolist()

    def __len__(self) -> int:
        return len(self.types)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return self.processor.encode(list(lines))


def batches(lines: Iterator[str]) -> Iterator[list[str]]:
    """Lines in groups that are encoded at a time."""
    while batch := list(itertools.islice(lines, _BATCH)):
        yield batch


def choose(
    pieces: Pieces, counts: np.ndarray, sentinels: Collection[int], extra_ids: int, min_count: int, size: int | None
) -> np.ndarray:
    """The ids of the pieces that are kept, ascending.

    Always kept are special, control, user-defined and byte pieces, sentinels, and the pieces of one character of which
    those that the corpus uses consist. The others are kept by their frequency in the corpus. The number of ids is
    rounded up to a multiple of 128 with the next pieces: rows without a piece would have logits that mean nothing.

    Args:
      counts: by id, from the corpus.
      sentinels: ids of the pieces that are sentinels.
      extra_ids: sentinels behind the pieces; they count as ids.
      min_count: pieces that are seen less often are left out.
      size: ids to keep, sentinels included; None keeps all that are seen `min_count` times.

    Raises:
      ValueError: if nothing is left out, or `size` is too small for what is always kept.
    """
    used = (counts >= min_count) & (pieces.types == _LEARNED)
    always = pieces.types != _LEARNED
    always &= pieces.types != _Piece.UNUSED
    always[list(sentinels)] = True
    names = [piece.piece for piece in pieces.proto.pieces]
    needed = set(itertools.chain.from_iterable(names[i] for i in np.flatnonzero(used)))
    always[[i for i, name in enumerate(names) if name in needed and pieces.types[i] == _LEARNED]] = True
    wanted = round_up(int((used | always).sum()) + extra_ids)
    least = round_up(int(always.sum()) + extra_ids)
    if size is not None and size < least:
        raise ValueError(
            f"--size is {size}, and {int(always.sum()) + extra_ids:,} ids are always kept (special pieces, sentinels, "
            f"bytes and the characters of the corpus); give --size {least} or more, or a higher --min_count."
        )
    num = min(wanted, size or wanted) - extra_ids
    if num >= len(pieces):
        raise ValueError(
            f"Nothing can be trimmed: the corpus uses {int(used.sum()):,} of {len(pieces):,} pieces; with those that "
            f"are always kept, rounded up to a multiple of {MULTIPLE}, that is all. Give a smaller --size, or a higher "
            "--min_count."
        )
    scores = np.array([piece.score for piece in pieces.proto.pieces])
    others = np.flatnonzero(~always & (pieces.types == _LEARNED))
    order = others[np.lexsort((-scores[others], -counts[others]))]
    return np.sort(np.concatenate([np.flatnonzero(always), order[: num - int(always.sum())]]))


def trimmed(pieces: Pieces, kept: np.ndarray) -> Pieces:
    """The model with these pieces, in their order and with their scores; its normalizer is the same."""
    proto = sentencepiece_pb2.ModelProto.FromString(pieces.model)
    del proto.pieces[:]
    proto.pieces.extend(pieces.proto.pieces[i] for i in kept)
    proto.trainer_spec.vocab_size = len(kept)
    proto.DiscardUnknownFields()  # Samples for a test of the model itself, which have the old pieces.
    return Pieces(proto.SerializeToString())


def numbers_after(kept: np.ndarray, num_ids: int) -> np.ndarray:
    """By the old id the new one, or -1."""
    after = np.full(num_ids, -1)
    after[kept] = np.arange(len(kept))
    return after


@dataclasses.dataclass
class SameTokens:
    """Compares tokens of lines before and after, and counts them.

    Attributes:
      before, after: the vocabularies.
      kept: the old ids of those after.
      compared: lines whose pieces are all kept; their tokens are the same.
      first: the old ids of the first lines, those that are kept.
    """

    before: Encoder
    after: Encoder
    kept: np.ndarray
    compared: int = 0
    first: list[np.ndarray] = dataclasses.field(default_factory=list)

    def usage(self, lines: Iterator[str], num_first: int = 3) -> Usage:
        """What the lines use after the trimming.

        Raises:
          ValueError: if a line whose pieces are all kept has other tokens.
        """
        return usage(self.after, (self._compare(batch, num_first) for batch in batches(lines)))

    def _compare(self, batch: Sequence[str], num_first: int) -> list[list[int]]:
        numbers = numbers_after(self.kept, len(self.before))
        unknown, encoded = self.before.unk_id, self.after.encode(batch)
        for line, old, new in zip(batch, self.before.encode(batch), encoded, strict=True):
            ids = np.array(old, int)
            mapped = numbers[ids]
            if len(self.first) < num_first and (mapped >= 0).any():
                self.first.append(ids[mapped >= 0])
            if (mapped < 0).any() or unknown in old:  # The score of an unknown character depends on the other pieces.
                continue
            self.compared += 1
            if mapped.tolist() != new:
                raise ValueError(
                    f"The trimmed vocabulary splits {line[:_SHOWN]!r} into other pieces, though all of its pieces are "
                    "kept; nothing is written. Is one of them in the vocabulary twice?"
                )
        return encoded
