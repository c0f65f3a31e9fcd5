"""Texts on which tokenizers of one model differ, made of the vocabulary's own pieces, and the comparison of two."""

import dataclasses
import functools
import math
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.files import untrusted_json
from limba.files.untrusted_files import cut
from limba.tasks.vocabularies.tokenizer_files import T5TokenizerVocabulary
from limba.tasks.vocabularies.vocabulary import SentencePieceVocabulary

_SPACE = "▁"
_NUM_CHARACTERS, _NUM_SENTENCES, _NUM_MARKS = 600, 1000, 20
# Spaces at the ends and doubled, other white space, control characters, and what normalizers change.
_FIXED = (
    *("", " ", "  ", "\t", "\n", " a", "a ", "  a", "a  ", "  a  b  ", "a\tb", "a\n\nb\n", "\na", "a\r\nb", "a \n b"),
    *("a\u00a0b", "a\u2003b", "a\u3000b", "a\u200bb", "a\u200db", "\ufeffa", "a\u00adb", "a\u0007b"),
    *("The house", "Hello, world! 1234", "HELLO", "don't — don’t", "«a» “b” ‘c’", "3.14 1,000 10% $5 €5 №5"),
    *("https://a.b/c?d=e#f", "ＡＢＣ １２３", "ﬁ ½ ① ™ …", "é", "ấ", "Ștefan și-a amintit: „da, mâine”.", "İstanbul ß"),
    *("Київ, їжа, ґанок, йод, м'ята", "Мама мыла раму", "Ελληνικά", "עברית", "العربية", "हिन्दी", "ไทย", "한국어"),
    *("日本語", "中文字", "🦊", "a🦊b", "👩\u200d👩\u200d👧", "👍🏽", "🇷🇴", "𝒜𝓑", "x" * 200, "word" * 60, "a1" * 50),
)
_SENTINEL = re.compile(r"▁?<extra_id_\d+>")
# SentencePiece knows a sentinel only behind a space; transformers' slow tokenizer drops a line break behind one.
_WITH_SENTINELS = (
    *("a <extra_id_0> of <extra_id_1>", "<extra_id_0>.", "a <extra_id_0>, b"),
    *("a (<extra_id_0>) b", "a <extra_id_0>\nb"),
)
# Control symbols are no text for SentencePiece, and tokens for transformers; bytes are no text for either.
_NO_TEXT = re.compile(r"<(pad|unk|/?s|mask|0x[0-9A-F]{2})>|\[(PAD|UNK|CLS|SEP|MASK)\]|\[?unused\d+\]?")


@dataclasses.dataclass(frozen=True)
class Texts:
    """Some thousand texts of three kinds; the same vocabulary gives the same texts.

    Attributes:
      plain: in Unicode's form NFC, without sentinels: all that training reads of most corpora.
      decomposed: letters apart from their accents, and with marks in any order, as people type them: the normalization
        of tokenizer.json knows fewer of them.
      with_sentinels: training sets sentinels between tokens, a user types them.
    """

    plain: Sequence[str]
    decomposed: Sequence[str]
    with_sentinels: Sequence[str]

    @classmethod
    def of(cls, pieces: Iterable[str], added_tokens: Iterable[str] = ()) -> "Texts":
        """The texts for a vocabulary with these pieces, some of which are tokens that were added to it."""
        pieces, rng = sorted(pieces), random.Random(0)
        words = [piece.replace(_SPACE, " ").removeprefix("##") for piece in pieces if not _NO_TEXT.fullmatch(piece)]
        words = [word for word in words if word and not _SENTINEL.search(word)]
        characters = sorted({character for word in words for character in word})
        if len(characters) > _NUM_CHARACTERS:
            characters = rng.sample(characters, _NUM_CHARACTERS)
        texts = [*_FIXED, *characters, *(f"a{c}{c} {c}" for c in characters)]
        for token in added_tokens:
            if not _NO_TEXT.fullmatch(token) and not _SENTINEL.fullmatch(token):
                texts += [f"a{token}b", f"a {token} b", f"{token} a"]
        ends = ("", "", " ", " ", " ", "  ", "\n", "\t", ". ")
        for _ in range(_NUM_SENTENCES if words else 0):
            parts = [f"{rng.choice(words)}{rng.choice(ends)}" for _ in range(8)]
            texts.append(rng.choice(("", "", " ", "  ")) + "".join(parts))
        texts += [changed for text in texts[::3] for changed in (text.upper(), text.lower())]
        texts = [unicodedata.normalize("NFC", text) for text in texts]
        decomposed = [unicodedata.normalize("NFD", text) for text in texts]
        decomposed += _with_marks(characters, rng)
        return cls(
            list(dict.fromkeys(texts)),
            list(dict.fromkeys(text for text in decomposed if not unicodedata.is_normalized("NFC", text))),
            _WITH_SENTINELS if any(map(_SENTINEL.fullmatch, pieces)) else (),
        )


def _with_marks(characters: Sequence[str], rng: random.Random) -> list[str]:
    """Letters with one or two of the marks that the characters have or are composed of, in both orders."""
    letters = [character for character in characters if character.isalpha()]
    marks = {mark for x in characters for mark in unicodedata.normalize("NFD", x) if unicodedata.combining(mark)}
    chosen = rng.sample(sorted(marks), min(len(marks), _NUM_MARKS))
    return [f"{rng.choice(letters)}{a}{b}" for a in chosen for b in ("", *chosen) if letters]


@dataclasses.dataclass(frozen=True)
class Differences:
    """The texts that two tokenizers give other tokens.

    Attributes:
      found: `[(text, tokens of a, tokens of b)]`.
      ties: the same, where the model finds both equally likely; they are no differences.
    """

    found: Sequence[tuple[str, Sequence[Any], Sequence[Any]]]
    num_texts: int
    ties: Sequence[tuple[str, Sequence[Any], Sequence[Any]]] = ()

    def __bool__(self) -> bool:
        return bool(self.found)

    def describe(self, a: str, b: str) -> str:
        """As "12 of 280 texts have other tokens in a than in b: 'The house' is [T, h] in a, and [▁The] in b"."""
        return f"{self._count(self.found)} other tokens in {a} than in {b}: {_examples(self.found, a, b)}"

    def describe_ties(self, a: str, b: str) -> str:
        """As `describe`; with what a tie is."""
        return (
            f"{self._count(self.ties)} two segmentations of the same likelihood, of which {a} takes one and {b} the "
            f"other: {_examples(self.ties, a, b)}"
        )

    def _count(self, found: Sequence[Any]) -> str:
        return f"{len(found):,} of {self.num_texts:,} texts have"


def _examples(found: Sequence[tuple[str, Sequence[Any], Sequence[Any]]], a: str, b: str) -> str:
    # Short texts of words say the most.
    shown = sorted(found, key=lambda x: (not x[0].isascii(), len(x[0].split()) < 2, len(x[0])))[:3]
    return "; ".join(f"{cut(repr(t))} is {_some(x)} in {a}, and {_some(y)} in {b}" for t, x, y in shown)


Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
IsTie = Callable[[Sequence[int], Sequence[int]], bool]


def differences(
    texts: Sequence[str],
    a: Encode,
    b: Encode,
    name: Callable[[int], Any] = int,
    is_tie: IsTie = lambda x, y: False,
) -> Differences:
    """What two tokenizers make of the texts; `name` says what a token is called, `is_tie` what is no difference."""
    return _differences([*zip(texts, a(texts), b(texts), strict=True)], name, is_tie)


def _differences(
    rows: Sequence[tuple[str, Sequence[int], Sequence[int]]], name: Callable[[int], Any], is_tie: IsTie
) -> Differences:
    """Of texts and their tokens in both."""
    found: list[tuple[str, Sequence[Any], Sequence[Any]]] = []
    ties: list[tuple[str, Sequence[Any], Sequence[Any]]] = []
    for text, x, y in rows:
        if list(x) != list(y):
            (ties if is_tie(x, y) else found).append((text, [*map(name, x)], [*map(name, y)]))
    return Differences(found, len(rows), ties)


def ties_of(vocabulary: Any) -> IsTie:
    """Whether a SentencePiece model finds two segmentations of a text equally likely; never, for other vocabularies.

    Pieces such as "x" and "xx" often have such scores, and each library breaks ties in its own way: neither is wrong.
    """
    model: Any = getattr(vocabulary, "tokenizer", None)
    if not hasattr(model, "get_score"):
        return lambda x, y: False

    # Thousands of texts can have ties, of the same pieces again and again.
    piece_of, score_of = functools.cache(model.id_to_piece), functools.cache(model.get_score)

    def is_tie(x: Sequence[int], y: Sequence[int]) -> bool:
        if max([*x, *y], default=0) >= model.get_piece_size() or x.count(model.unk_id()) != y.count(model.unk_id()):
            return False
        (text, score), (other, other_score) = (
            ("".join(map(piece_of, ids)), math.fsum(map(score_of, ids))) for ids in (x, y)
        )
        # SentencePiece adds in float32.
        return text == other and math.isclose(score, other_score, rel_tol=1e-5, abs_tol=1e-5)

    return lambda x, y: is_tie([*map(int, x)], [*map(int, y)])


def texts_of(vocabulary: Any) -> Texts:
    """The texts for a vocabulary of `tasks.vocabularies`; bytes have no pieces."""
    model = getattr(vocabulary, "tokenizer", None)
    if model is None:
        return Texts.of(())
    if hasattr(model, "id_to_piece"):
        return Texts.of(map(model.id_to_piece, range(vocabulary.vocab_size)))
    return Texts.of(model.get_vocab(), [token.content for token in model.get_added_tokens_decoder().values()])


def differences_of_files(vocabulary: Mapping[str, Any], folder: Path) -> Differences:
    """Where a folder's tokenizer.json gives other tokens than a SentencePiece model, whose record this is.

    Only texts count that training reads, and that the libraries read alike: transformers 4 writes no byte fallback into
    tokenizer.json, and no SentencePiece model has the tokens that were added behind its pieces. Ties are no
    differences.
    """
    a = T5TokenizerVocabulary(str(folder / "tokenizer.json"))
    b = SentencePieceVocabulary(vocabulary["sentencepiece_model_file"], vocabulary["extra_ids"])
    plain, size = texts_of(a).plain, b.tokenizer.get_piece_size()
    tokens = [(text, ids) for text, ids in zip(plain, encoder_of(a)(plain), strict=True) if max(ids, default=0) < size]
    others = encoder_of(b)([text for text, _ in tokens])
    rows = [(text, ids, other) for (text, ids), other in zip(tokens, others, strict=True)]
    if not untrusted_json.read_object(folder / "tokenizer.json")["model"].get("byte_fallback"):
        rows = [row for row in rows if not any(b.tokenizer.is_byte(row[2]))]
    return _differences(rows, b.tokenizer.id_to_piece, ties_of(b))


def encoder_of(vocabulary: Any) -> Encode:
    """The tokens of a vocabulary of `tasks.vocabularies`."""

    def encode(texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        ids, lengths = vocabulary.encode_batch([text.encode() for text in texts])
        return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]

    return encode


def _some(tokens: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, tokens[:8]))}{', …' if len(tokens) > 8 else ''}]"
