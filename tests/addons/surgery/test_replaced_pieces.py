"""Where the pieces of a new vocabulary come from."""

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from limba.addons.surgery import replaced_pieces
from limba.addons.surgery.trimmed_pieces import Pieces

Piece = sentencepiece_pb2.ModelProto.SentencePiece


def _pieces(names, own_sentinels=0, scores=None):
    proto = sentencepiece_pb2.ModelProto()
    for name, kind in (("<pad>", Piece.CONTROL), ("</s>", Piece.CONTROL), ("<unk>", Piece.UNKNOWN)):
        proto.pieces.add(piece=name, score=0.0, type=kind)
    for number, name in enumerate(names):
        score = -1.0 - number / 10 - 5 * (len(name) == 1) if scores is None else scores[number]
        proto.pieces.add(piece=name, score=score, type=Piece.NORMAL)
    for number in reversed(range(own_sentinels)):
        proto.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=Piece.USER_DEFINED)
    spec = proto.trainer_spec
    spec.model_type = spec.UNIGRAM
    spec.pad_id, spec.eos_id, spec.unk_id, spec.bos_id = 0, 1, 2, -1
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = proto.normalizer_spec.remove_extra_whitespaces = True
    return Pieces(proto.SerializeToString())


OLD = ["▁a", "b", "▁", "a", "c", "bc", "▁ab"]  # ids 3 to 9; sentinels 10 and 11


def test_the_same_piece_its_parts_or_nothing():
    before, after = _pieces(OLD), _pieces(["abc", "▁ab", "b", "ax", "▁c", "▁abca"])
    found = replaced_pieces.origins(before, after, ((11, 10), (11, 10, 9)), 12)
    a, b, bc, c, space, ab = 6, 4, 8, 7, 5, 9
    # No blank is set before "abc": "▁abc" would be other pieces.
    assert found.ids[3:9] == [[a, bc], [ab], [b], [], [space, c], [3, bc, a]]
    assert found.ids[:3] == [[0], [1], [2]] and found.ids[10:] == [[10], [11]]
    assert found.ids[9] == [11, 10]  # a sentinel that the old vocabulary does not have
    assert found.shared.tolist() == [0, 1, 2, -1, ab, b, -1, -1, -1, -1, 10, 11] and found.num_unknown == 1


def test_roles_count_and_not_their_names():
    """`</s>` of one may be `<eos>` of the other; a piece of another kind is another one."""
    before, after = _pieces(OLD), _pieces(["b"])
    proto = sentencepiece_pb2.ModelProto.FromString(after.model)
    proto.pieces[1].piece, proto.pieces[3].type = "<eos>", Piece.USER_DEFINED
    proto.trainer_spec.eos_piece = "<eos>"
    found = replaced_pieces.origins(before, Pieces(proto.SerializeToString()), ((), ()), 4)
    assert found.shared.tolist() == [0, 1, 2, -1] and found.ids[3] == [4]


@pytest.mark.parametrize("own_sentinels", [0, 2])
def test_new_pieces_stand_before_sentinels_and_are_used(own_sentinels):
    before = _pieces(OLD, own_sentinels)
    learned = _pieces(["a", "ca", "bca", "▁a", "d"], scores=[-1.0, -3.0, -2.0, -1.0, -9.0])
    new = replaced_pieces.not_in({piece.piece for piece in before.proto.pieces}, learned)
    assert [x.piece for x in new] == ["d", "bca", "ca"]  # the character first
    after = replaced_pieces.extended(before, new, 10 if own_sentinels else None)
    assert [x.piece for x in after.proto.pieces[10:13]] == ["d", "bca", "ca"] and len(after) == 13 + own_sentinels
    assert after.processor.piece_to_id("▁<extra_id_0>") == (14 if own_sentinels else 2)
    assert after.processor.encode("abca", out_type=str) == ["▁a", "bca"]
    assert before.processor.encode("abca", out_type=str) == ["▁a", "bc", "a"]
    assert [*after.proto.pieces[:10]] == [*before.proto.pieces[:10]]


def test_sentinels_in_the_middle_are_refused():
    before = _pieces(OLD)
    with pytest.raises(ValueError, match="sentinels of this vocabulary are not its last pieces"):
        replaced_pieces.extended(before, [], 5)
    assert np.all(replaced_pieces.origins(before, before, ((), ()), 10).shared == np.arange(10))
