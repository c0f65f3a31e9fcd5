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


def exchanged_model(model: bytes, a: int, b: int) -> bytes:
    """A SentencePiece model in which the pieces with the ids `a` and `b` have each other's; the one of 0 is padding."""
    if a == b:
        return model
    proto = sentencepiece_pb2.ModelProto.FromString(model)
    if max(a, b) >= len(proto.pieces):
        raise ValueError(f"pad_token_id is {max(a, b)}, and the SentencePiece model has {len(proto.pieces)} pieces.")
    of_a = sentencepiece_pb2.ModelProto.SentencePiece()
    of_a.CopyFrom(proto.pieces[a])
    proto.pieces[a].CopyFrom(proto.pieces[b])
    proto.pieces[b].CopyFrom(of_a)
    # SentencePiece finds padding by the text of its piece.
    if proto.pieces[b].piece != proto.trainer_spec.pad_piece:
        proto.trainer_spec.pad_piece = proto.pieces[a].piece
    return proto.SerializeToString()
