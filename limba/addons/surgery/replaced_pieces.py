"""From which pieces of an old SentencePiece model each piece of a new one comes, and a model with more pieces."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from limba.addons.surgery.trimmed_pieces import Pieces

_Piece = sentencepiece_pb2.ModelProto.SentencePiece


@dataclasses.dataclass(frozen=True)
class Origins:
    """The old ids of each new id.

    Attributes:
      ids: by new id, one old id of the same piece, or those that its text has as tokens; none where the old model does
        not know one of its characters.
      shared: by new id, the old id of the same piece; -1 where there is none.
    """

    ids: Sequence[Sequence[int]]
    shared: np.ndarray

    @property
    def num_unknown(self) -> int:
        return sum(not x for x in self.ids)


def origins(before: Pieces, after: Pieces, sentinels: tuple[Sequence[int], Sequence[int]], num_ids: int) -> Origins:
    """Where each id of a new model comes from.

    A piece of the same text and kind is the same piece; padding, EOS and `<unk>` are the same by their roles, sentinels
    by their numbers. Another piece is split by the old model.

    Args:
      sentinels: the ids of `<extra_id_0>`, `<extra_id_1>` … before and after.
      num_ids: of the new vocabulary, with sentinels behind its pieces.
    """
    by_piece = {(piece.piece, piece.type): i for i, piece in enumerate(before.proto.pieces)}
    shared = np.full(num_ids, -1)
    for i, piece in enumerate(after.proto.pieces):
        shared[i] = by_piece.get((piece.piece, piece.type), -1)
    for role in ("pad_id", "eos_id", "unk_id", "bos_id"):
        old, new = (getattr(pieces.processor, role)() for pieces in (before, after))
        if new >= 0:
            shared[new] = old
    for old, new in zip(*sentinels, strict=False):
        shared[new] = old
    ids: list[list[int]] = [[int(old)] if old >= 0 else [] for old in shared]
    split = _splitter(before)
    others = [i for i, piece in enumerate(after.proto.pieces) if shared[i] < 0 and piece.type != _Piece.CONTROL]
    names = [after.proto.pieces[i].piece for i in others]
    for i, tokens in zip(others, split.encode(names), strict=True):
        ids[i] = [] if split.unk_id() in tokens else tokens
    for new in sentinels[1][len(sentinels[0]) :]:  # those that the old vocabulary does not have
        ids[new] = list(sentinels[0])
    return Origins(ids, shared)


def _splitter(pieces: Pieces) -> Any:
    """The processor that sets no blank before a text and changes none: pieces are split as they are."""
    proto = sentencepiece_pb2.ModelProto.FromString(pieces.model)
    proto.normalizer_spec.add_dummy_prefix = proto.normalizer_spec.remove_extra_whitespaces = False
    return Pieces(proto.SerializeToString()).processor


def not_in(known: Collection[str], learned: Pieces) -> list[Any]:
    """The pieces of a model that are not known, the likeliest first, and before them single characters: texts cannot be
    read without them."""
    new = [x for x in learned.proto.pieces if x.type == _Piece.NORMAL and x.piece not in known]
    return sorted(new, key=lambda x: (len(x.piece) > 1, -x.score))


def extended(pieces: Pieces, new: Sequence[Any], first_sentinel: int | None) -> Pieces:
    """A model with more pieces, behind its own or before its sentinels.

    They keep the scores of the model that learned them: logarithms of probabilities, as those of the old pieces.

    Args:
      new: of `not_in`.
      first_sentinel: the id of the first of the sentinels that are the model's last pieces; None if it has none.

    Raises:
      ValueError: if the sentinels are not its last pieces.
    """
    place = len(pieces) if first_sentinel is None else first_sentinel
    old = list(pieces.proto.pieces)
    if any(piece.type == _Piece.NORMAL for piece in old[place:]):
        raise ValueError("The sentinels of this vocabulary are not its last pieces: none can be added before them.")
    proto = sentencepiece_pb2.ModelProto.FromString(pieces.model)
    del proto.pieces[:]
    proto.pieces.extend([*old[:place], *new, *old[place:]])
    proto.trainer_spec.vocab_size = len(proto.pieces)
    proto.DiscardUnknownFields()  # Samples for a test of the model itself, which have the old pieces.
    return Pieces(proto.SerializeToString())
