"""Which pieces are kept, and what the others become."""

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from limba.addons.surgery import trimmed_pieces
from limba.addons.surgery.trimmed_pieces import Pieces, SameTokens

Piece = sentencepiece_pb2.ModelProto.SentencePiece
LETTERS = "abcdefghij"
WORDS = [f"▁{a}{b}" for a in LETTERS for b in LETTERS] + [f"{a}{b}{c}" for a in "abc" for b in "abc" for c in LETTERS]


def _pieces(byte_fallback=False):
    """3 special pieces, 256 bytes if asked for, a sentinel of its own, 11 of a character, 190 others."""
    proto = sentencepiece_pb2.ModelProto()
    kinds = [("<pad>", Piece.CONTROL), ("</s>", Piece.CONTROL), ("<unk>", Piece.UNKNOWN)]
    kinds += [(f"<0x{byte:02X}>", Piece.BYTE) for byte in range(256)] if byte_fallback else []
    for name, kind in kinds:
        proto.pieces.add(piece=name, score=0.0, type=kind)
    for number, name in enumerate(["▁", *LETTERS, *WORDS]):
        proto.pieces.add(piece=name, score=-1.0 - number / 100 - 5 * (len(name) == 1), type=Piece.NORMAL)
    proto.pieces.add(piece="▁<extra_id_0>", score=0.0, type=Piece.USER_DEFINED)
    spec = proto.trainer_spec
    spec.model_type, spec.byte_fallback = spec.UNIGRAM, byte_fallback
    spec.pad_id, spec.eos_id, spec.unk_id, spec.bos_id = 0, 1, 2, -1
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = proto.normalizer_spec.remove_extra_whitespaces = True
    return Pieces(proto.SerializeToString())


def _names(pieces, ids):
    return [pieces.proto.pieces[i].piece for i in ids]


def _counts(pieces, **numbers):
    counts = np.zeros(len(pieces), np.int64)
    for name, number in numbers.items():
        counts[_names(pieces, range(len(pieces))).index(name)] = number
    return counts


def test_special_pieces_characters_and_the_most_frequent_are_kept():
    pieces = _pieces()
    counts = _counts(pieces, **{"▁ij": 7, "abc": 3, "▁ab": 3, "▁gh": 1})
    kept = _names(pieces, trimmed_pieces.choose(pieces, counts, [], 100, 2, None))
    always = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "c", "i", "j"]
    # 119 ids make 128; the letters g and h, of a piece that is seen once, are not needed.
    assert kept[:9] == always and kept[-1] == "▁<extra_id_0>" and len(kept) == 28
    assert {"▁ij", "abc", "▁ab", "▁gh"} < {*kept}
    # Of those that are never seen, the most probable.
    assert [x for x in kept[9:] if x not in ("▁ij", "abc", "▁ab", "▁gh", "▁<extra_id_0>")] == [
        x for x in WORDS if x != "▁ab"
    ][:14]


def test_size_keeps_the_most_frequent():
    pieces = _pieces()
    counts = _counts(pieces, **{name: 1 + i for i, name in enumerate(reversed(WORDS))})
    kept = trimmed_pieces.choose(pieces, counts, [], 0, 1, 128)
    assert _names(pieces, kept) == ["<pad>", "</s>", "<unk>", "▁", *LETTERS, *WORDS[:113], "▁<extra_id_0>"]
    with pytest.raises(ValueError, match="Nothing can be trimmed: the corpus uses 190 of 205 pieces"):
        trimmed_pieces.choose(pieces, counts, [], 0, 1, None)


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_what_was_trimmed_is_unknown_or_bytes_and_counted(byte_fallback):
    before = _pieces(byte_fallback)
    lines = ["ab ab aba abb", "ij ab", "aba"]
    usage = trimmed_pieces.usage(before, map(before.encode, trimmed_pieces.batches(iter(lines))))
    assert (usage.lines, usage.unknown, usage.in_bytes) == (3, 0, 0) and usage.tokens == usage.counts.sum() > 6
    counts = usage.counts.copy()
    kept = trimmed_pieces.choose(before, counts, [], 100, 2, None)
    letters = [before.processor.piece_to_id(x) for x in ("▁ij", "i", "j")]
    kept = np.array([i for i in kept if i not in letters])
    after = trimmed_pieces.trimmed(before, kept)
    same = SameTokens(before, after, kept)
    used = same.usage(iter(lines))
    assert same.compared == 2 and len(same.first) == 3
    expected = (0, 2) if byte_fallback else (1, 0)  # SentencePiece joins unknown characters.
    assert (used.unknown, used.in_bytes) == expected
    assert after.processor.decode(after.processor.encode("ab aba")) == "ab aba"
    sentinel = after.processor.piece_to_id("▁<extra_id_0>")
    assert sentinel == len(kept) - 1 and after.processor.encode("ab <extra_id_0> aba").count(sentinel) == 1


def test_other_tokens_are_an_error():
    before = _pieces()
    kept = np.arange(len(before) - 50, dtype=int)
    kept = np.union1d(kept, [len(before) - 1])
    after = trimmed_pieces.trimmed(before, kept[::-1][np.r_[-3:0, 0 : len(kept) - 3]])  # in another order
    with pytest.raises(ValueError, match="splits 'ab ab' into other pieces, though all of its pieces are kept"):
        SameTokens(before, after, kept).usage(iter(["ab ab"]))
