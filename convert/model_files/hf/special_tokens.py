"""A T5's special tokens: T5's own are `<pad>` 0, `</s>` 1 and `<unk>` 2, and other families have others."""

from typing import NamedTuple

from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

# In Limba, whatever a folder has.
PAD_ID = 0


class SpecialToken(NamedTuple):
    """Its id and its text."""

    id: int
    name: str


class SpecialTokens(NamedTuple):
    """Those of a T5. Where bytes stand for unknown characters, unk may be None, or padding."""

    pad: SpecialToken = SpecialToken(0, "<pad>")
    eos: SpecialToken = SpecialToken(1, "</s>")
    unk: SpecialToken | None = SpecialToken(2, "<unk>")

    @property
    def by_id(self) -> dict[int, str]:
        return {token.id: token.name for token in self if token is not None}


OF_T5 = SpecialTokens()


def exchanged_model(model: bytes, pad_id: int) -> bytes:
    """A SentencePiece model in which padding, the piece `pad_id`, and the piece 0 have each other's ids."""
    proto, pieces = (sentencepiece_pb2.ModelProto.FromString(model) for _ in range(2))
    if pad_id >= len(proto.pieces):
        raise ValueError(f"pad_token_id is {pad_id}, and the SentencePiece model has {len(proto.pieces)} pieces.")
    for a, b in ((PAD_ID, pad_id), (pad_id, PAD_ID)):
        proto.pieces[a].CopyFrom(pieces.pieces[b])
    # SentencePiece finds padding by the text of its piece.
    if proto.pieces[pad_id].piece != proto.trainer_spec.pad_piece:
        proto.trainer_spec.pad_piece = proto.pieces[PAD_ID].piece
    return proto.SerializeToString() if pad_id != PAD_ID else model
