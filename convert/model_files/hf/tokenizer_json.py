"""tokenizer.json, the format of the tokenizers library, from a SentencePiece model and back.

transformers reads the file as it is, in every version, without sentencepiece and protobuf. What it builds from a
SentencePiece model by itself differs from SentencePiece: it has no byte fallback, and version 5 sets a space before
what follows a sentinel. The rules here were found by comparing ids.
"""

import base64
import collections
import functools
import itertools
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from limba.convert.model_files.hf.special_tokens import OF_T5, SpecialTokens
from limba.files.untrusted_files import cut


class OtherThanSentencePiece(ValueError):
    """A tokenizer.json that no SentencePiece model tokenizes like."""


Piece = sentencepiece_pb2.ModelProto.SentencePiece

_SPACE, _BOS = "▁", "<s>"
# Nothing around a special token belongs to it, as in SentencePiece.
FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
# SentencePiece drops spaces at the end and repeated ones. Each stretch between sentinels is normalized on its own: the
# space before a sentinel goes, as it must, because the sentinel's piece has one. Strip would take line breaks too.
_SPACES_AT_END = {"type": "Replace", "pattern": {"Regex": r" +\z"}, "content": ""}
_REPEATED_SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": _SPACE}
# What T5's class does: each word begins with a space, also behind a token that was added.
WORDS = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "WhitespaceSplit"},
        {"type": "Metaspace", "replacement": _SPACE, "prepend_scheme": "always", "split": True},
    ],
}


def from_model(
    model: sentencepiece_pb2.ModelProto,
    extra_ids: int,
    special_tokens: Mapping[int, str],
    eos_id: int = OF_T5.eos.id,
) -> dict[str, Any]:
    """The content of tokenizer.json.

    Args:
      model, extra_ids: a unigram model, and the number of sentinels behind its pieces.
      special_tokens: by id: `<pad>`, `</s>`, `<unk>` and the sentinels; also those that are pieces of the model.
      eos_id: of them the one behind a text.
    """
    vocab = [[piece.piece, piece.score] for piece in model.pieces] + [["", 0.0] for _ in range(extra_ids)]
    for id_, token in special_tokens.items():
        vocab[id_][0] = token  # a sentinel that is a piece is called "▁<extra_id_0>" there
    byte_fallback = any(piece.type == Piece.BYTE for piece in model.pieces)
    unk_id = next(id_ for id_, piece in enumerate(model.pieces) if piece.type == Piece.UNKNOWN)
    spaces = {
        "type": "Metaspace",
        "replacement": _SPACE,
        "prepend_scheme": "first" if model.normalizer_spec.add_dummy_prefix else "never",
        # A piece of several words can only be found where words are not taken apart.
        "split": not any(_SPACE in piece.piece[1:] for piece in model.pieces if piece.type == Piece.NORMAL),
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id_, "content": special_tokens[id_], **FLAGS} for id_ in sorted(special_tokens)],
        "normalizer": {"type": "Sequence", "normalizers": list(_normalizers(model))},
        "pre_tokenizer": spaces,
        "post_processor": _append(special_tokens[eos_id], eos_id),
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, spaces]} if byte_fallback else spaces,
        "model": {"type": "Unigram", "unk_id": unk_id, "vocab": vocab, "byte_fallback": byte_fallback},
    }


def _normalizers(model: sentencepiece_pb2.ModelProto) -> Iterator[dict[str, Any]]:
    spec = model.normalizer_spec
    if spec.precompiled_charsmap:
        table = base64.b64encode(spec.precompiled_charsmap).decode()
        precompiled = {"type": "Precompiled", "precompiled_charsmap": table}
        yield from _composing(precompiled) if _composes(model) else [precompiled]
    if spec.remove_extra_whitespaces:
        yield _SPACES_AT_END
        yield _REPEATED_SPACES


def _composes(model: sentencepiece_pb2.ModelProto) -> bool:
    """Whether the model normalizes a letter and its accents to both in one, so that NFC changes nothing."""
    normalize = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString()).normalize
    letters = filter(unicodedata.decomposition, map(chr, range(0xC0, 0x3100)))
    composed = {unicodedata.normalize("NFC", letter) for letter in (*letters, *"가각힣")}
    return all(normalize(unicodedata.normalize("NFD", letter)) == normalize(letter) for letter in composed)


def is_as_t5s(model: sentencepiece_pb2.ModelProto, sentinels: Collection[int]) -> bool:
    """Whether a model splits and normalizes as T5's does: at every white space, with a space before the text.

    That is what version 5 of transformers builds for T5's class, whatever tokenizer.json says: each word begins with a
    space, and there are no bytes for unknown characters.
    """
    spec = model.normalizer_spec
    pieces = [piece for id_, piece in enumerate(model.pieces) if id_ > 2 and id_ not in sentinels]
    if not (spec.precompiled_charsmap and spec.remove_extra_whitespaces and spec.add_dummy_prefix):
        return False
    if any(piece.type != Piece.NORMAL or _SPACE in piece.piece[1:] for piece in pieces):
        return False
    normalize = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString()).normalize
    # No normalization that people train with changes U+0085, and no text has it.
    spaces = (character for character in map(chr, range(1, 0x3001)) if character.isspace() and character != "\x85")
    return not any(character.isspace() and character != " " for character in normalize("a".join(spaces)))


def is_of_t5s_class(content: Mapping[str, Any], sentinels: Collection[int]) -> bool:
    """Whether a tokenizer.json splits and normalizes as `is_as_t5s` says, or as T5's class itself writes it."""
    unigram = content["model"]
    steps = _flat(content.get("normalizer"), "normalizers")
    splits = _flat(content.get("pre_tokenizer"), "pretokenizers")
    is_its_own = (
        unigram.get("type") == "Unigram"
        and not unigram.get("byte_fallback")
        and all(step.get("type") in ("Precompiled", "Strip") or step == _REPEATED_SPACES for step in steps)
        and [step.get("type") for step in splits] == ["WhitespaceSplit", "Metaspace"]
        and [splits[1].get(key) for key in ("replacement", "prepend_scheme", "split")] == [_SPACE, "always", True]
    )
    if is_its_own:
        return True
    try:
        return is_as_t5s(to_model(content, 0, "tokenizer.json"), sentinels)
    except OtherThanSentencePiece:
        return False


def ends_with_eos(content: Mapping[str, Any]) -> bool:
    """Whether a row is a text and </s>, as T5's class makes it."""
    single = (content.get("post_processor") or {}).get("single") or ()
    return [next(iter(part.values())).get("id") for part in single] == ["A", "</s>"]


def _append(token: str, id_: int) -> dict[str, Any]:
    """The post-processor that ends each text with a token."""
    text, pair = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    end = {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [text, end],
        "pair": [text, end, pair, end],
        "special_tokens": {token: {"id": token, "ids": [id_], "tokens": [token]}},
    }


def to_model(
    content: Mapping[str, Any], sentinels: int, where: str, special: SpecialTokens = OF_T5
) -> sentencepiece_pb2.ModelProto:
    """The SentencePiece model whose ids a tokenizer.json gives.

    A model with pieces for all 256 bytes gets byte fallback: T5's tokenizers of transformers 4 leave it out.

    Args:
      content, where: of tokenizer.json, and its path for messages.
      sentinels: how many entries at its end become no pieces.
      special: its special tokens.

    Raises:
      OtherThanSentencePiece: if it is not a unigram model, or normalizes in a way that SentencePiece does not know.
      ValueError: if it is damaged.
    """
    unigram = content["model"]
    if not isinstance(unigram.get("vocab"), list):
        raise OtherThanSentencePiece(
            f"{where} holds a {unigram.get('type')} model, and only a Unigram is SentencePiece's. {_REMEDY}"
        )
    model = sentencepiece_pb2.ModelProto()
    _set_normalizer(model.normalizer_spec, content, where)
    user_defined = {token["id"] for token in content.get("added_tokens", ()) if not token.get("special")}
    entries = unigram["vocab"][: len(unigram["vocab"]) - sentinels]
    all_bytes = {f"<0x{byte:02X}>" for byte in range(256)}
    byte_fallback = all_bytes <= {entry[0] for entry in entries}
    for id_, (piece, score) in enumerate(entries):
        kind = Piece.USER_DEFINED if id_ in user_defined else Piece.NORMAL
        if id_ == unigram["unk_id"]:
            kind = Piece.UNKNOWN
        elif id_ in special.by_id or (piece == _BOS and special != OF_T5):
            kind = Piece.CONTROL
        elif byte_fallback and piece in all_bytes:
            kind = Piece.BYTE
        elif score == 0.0:  # The logarithm of a share is negative: a sentinel, or a symbol that the user defined.
            kind = Piece.USER_DEFINED
        model.pieces.add(piece=piece, score=score, type=kind)
    spec = model.trainer_spec
    spec.model_type = sentencepiece_pb2.TrainerSpec.UNIGRAM
    spec.vocab_size = len(entries)
    spec.byte_fallback = byte_fallback
    spec.unk_id, spec.bos_id, spec.eos_id, spec.pad_id = unigram["unk_id"], -1, special.eos.id, special.pad.id
    spec.pad_piece, spec.eos_piece, spec.unk_piece = special.pad.name, special.eos.name, entries[spec.unk_id][0]
    return model


_REMEDY = "Give the SentencePiece model that the tokenizer came from with --vocab FILE."


def _set_normalizer(spec: sentencepiece_pb2.NormalizerSpec, content: Mapping[str, Any], where: str) -> None:
    charsmap = b""
    collapses = splits = False
    for step in _flat(content.get("normalizer"), "normalizers"):
        if step["type"] == "Precompiled":
            try:
                charsmap = base64.b64decode(step["precompiled_charsmap"] or "", validate=True)
            except ValueError as error:
                raise ValueError(f"{where}: precompiled_charsmap is not base64 ({error}). {_REMEDY}") from error
        elif step["type"] == "Replace" and step["pattern"] == _REPEATED_SPACES["pattern"]:
            collapses = True
        elif step != _SPACES_AT_END and step["type"] != "Strip" and not _is_composing(step):
            raise OtherThanSentencePiece(
                f"{where} normalizes with {cut(str(step.get('type')))}, which SentencePiece cannot. {_REMEDY}"
            )
    spaces = None
    for step in _flat(content.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "Metaspace" and step["replacement"] == _SPACE:
            spaces = step
        elif step["type"] == "WhitespaceSplit":
            splits = True
        else:
            raise OtherThanSentencePiece(
                f"{where} splits texts with {cut(str(step.get('type')))}, which SentencePiece cannot. {_REMEDY}"
            )
    # Without a charsmap other white space than spaces stays in SentencePiece, where WhitespaceSplit drops it.
    if spaces is None or not (splits or collapses) or (splits and not charsmap):
        raise OtherThanSentencePiece(f"{where} treats white space in another way than SentencePiece. {_REMEDY}")
    spec.name = "precompiled" if charsmap else "identity"
    spec.precompiled_charsmap = charsmap
    spec.remove_extra_whitespaces = True
    spec.add_dummy_prefix = spaces.get("prepend_scheme", "always") != "never" and spaces.get("add_prefix_space", True)


def _flat(step: Mapping[str, Any] | None, inner: str) -> Sequence[Mapping[str, Any]]:
    """The steps of a nested sequence."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [leaf for part in step[inner] for leaf in _flat(part, inner)]
    return [step]


# SentencePiece finds letters with marks in a table of sequences: a letter apart from all its marks, in Unicode's order.
# The tokenizers library looks the same table up by graphemes. It finds no sequence of more than 5 bytes, such as a
# Japanese letter and its mark, and leaves out what stands behind the first part that it finds. Unicode's form NFC
# composes what the library does not find. By itself it does too much: it changes the order of marks, as of a shadda
# and a vowel in Arabic, and composes ê and an accent, as many Vietnamese texts have them.
_COMPOSE = {"type": "NFC"}
# No text has this code point: Unicode keeps it for programs.
_NOWHERE_IN_TEXTS = "\ufdd0"


def _composing(precompiled: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The normalizers in place of the library's `Precompiled`, for a table that has all composed letters."""
    return [
        {"type": "Replace", "pattern": {"Regex": _marks_apart()}, "content": _NOWHERE_IN_TEXTS},
        _COMPOSE,
        dict(precompiled),
        _COMPOSE,  # of half-width kana, which the table makes letters with a mark
        {"type": "Replace", "pattern": {"String": _NOWHERE_IN_TEXTS}, "content": ""},
    ]


def _is_composing(step: Mapping[str, Any]) -> bool:
    """Whether a normalizer is one of `_composing` beside the table."""
    return step in _composing({})


@functools.cache
def _marks_apart() -> str:
    """Where a mark stands behind something with which no sequence of SentencePiece's table has it."""
    is_mark = lambda character: unicodedata.category(character).startswith("M")  # noqa: E731
    composed, bases, following = set(), set(), collections.defaultdict(set)
    for letter in map(chr, range(0xC0, 0x3100)):  # Korean letters, which are behind, have no marks.
        apart = unicodedata.normalize("NFD", letter)
        if apart == letter or unicodedata.normalize("NFC", apart) != letter:
            continue
        for mark, other in itertools.pairwise(apart if is_mark(apart[0]) else apart[1:]):
            following[mark].add(other)
        if not is_mark(letter):
            composed.add(letter)
            bases.add(apart[0])
    others = {base for base in bases if not unicodedata.category(base).startswith("L")}
    behind = rf"(?<=[\p{{M}}{''.join(sorted(composed))}])|(?<=[^\p{{L}}\p{{M}}{''.join(sorted(others))}])"
    known = "|".join(f"(?<={mark})[{''.join(sorted(following[mark]))}]" for mark in sorted(following))
    return rf"(?:{behind})(?=\p{{M}})(?!{known})"
