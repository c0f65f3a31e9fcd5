"""Vocabularies of Hugging Face's `tokenizers`: a tokenizer.json, with the special tokens of BERT or RoBERTa."""

import dataclasses
import functools
import hashlib
import json
import os
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from limba.data import sentinels
from limba.data.token_rows import Frame, Row, Texts
from limba.files import json_text, missing_vocabulary, rust_panics, storage, untrusted_files, untrusted_json
from limba.tasks.vocabularies import beside_tokenizer, framed_rows, tokenizer_growth
from limba.tasks.vocabularies import words as of_words
from limba.tasks.vocabularies.vocabulary import Vocabulary, flatten
from limba.tasks.vocabularies.words import Words

FILE = "tokenizer.json"
# What special tokens are called: by BERT and ModernBERT, by RoBERTa, by Gemma (mmBERT), and by Llama (EuroBERT). Gemma
# has <s> and </s>, too, as tags of HTML: a name that is flagged as a special token counts before one that is not.
_NAMES = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<bos>", "<|begin_of_text|>"),
    "sep": ("[SEP]", "</s>", "<eos>", "<|end_of_text|>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
    # Of a decoder that has others than the encoder, as NorT5's.
    "bos": ("[BOS]",),
    "eos": ("[EOS]",),
}
# A space, tab, line feed and carriage return at the beginning of a byte-level piece.
_WHITE_SPACE_BYTES = ("Ġ", "ĉ", "Ċ", "č")
# Of a tokenizer.json, what does not change the ids of a text without special tokens.
_NOT_ABOUT_IDS = ("version", "truncation", "padding", "post_processor", "decoder")
# Far more than any vocabulary has: a damaged id must not decide the size of an array.
_MOST_IDS = 2**24
_load_lock = threading.Lock()
# Readers are threads and processes of their own, as with SentencePiece. Set, it also spares a warning at each fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class _TokenizerFile(Vocabulary):
    """The tokens of a tokenizer.json. `encode` sets no special tokens around a text; `rows` sets those of the file.

    A special token that stands in a text as such, "[MASK]", is that token, as in transformers. The file, which may be
    in a bucket, is read when it is first used. Of a folder of Hugging Face count the files beside it, too
    (`beside_tokenizer`).
    """

    # Of a file that has none: of a text, and of a pair; the roles of special tokens in braces.
    _templates: ClassVar[tuple[str, str]]

    def __init__(self, tokenizer_file: str):
        super().__init__()
        file = storage.mounted(os.fspath(tokenizer_file))
        if not file.endswith(".json") and Path(file).is_file():
            raise ValueError(
                f"{type(self).__name__} (its tokenizer_file, VOCABULARY_FILE) is given {file}, which is not a "
                f"{FILE}. Give a file that ends with .json, or a folder that has a {FILE}; a SentencePiece model is "
                "opened by `VOCABULARY = @vocabularies.SentencePieceVocabulary()`."
            )
        self._tokenizer_file = file if file.endswith(".json") else f"{file.rstrip('/')}/{FILE}"

    @property
    def tokenizer_file(self) -> str:
        return self._tokenizer_file

    @property
    def tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer`, without truncation and padding.

        Raises:
          FileNotFoundError, OSError: if the file cannot be read.
          ValueError: if it is not a tokenizer.json.
        """
        return _load(self._tokenizer_file).tokenizer

    @property
    def digest(self) -> str:
        """A checksum of all that decides which ids a text gets.

        What the library fills in by itself, and the layout of the file, do not count.
        """
        return _digest(self._tokenizer_file)

    @property
    def file_checksum(self) -> int:
        """Of the file's content, whatever its layout is."""
        content = _load(self._tokenizer_file).content
        return zlib.crc32(_sha256(content, _NOT_ABOUT_IDS[:-1]).encode())

    @property
    def pad_id(self) -> int:  # type: ignore[override]
        return self._required("pad")

    @property
    def eos_id(self) -> int | None:
        """[SEP] or </s>; None if there is none."""
        return _load(self._tokenizer_file).special_tokens.get("sep")

    @property
    def unk_id(self) -> int | None:
        """None where every text has tokens, as in some byte-level vocabularies."""
        return _load(self._tokenizer_file).special_tokens.get("unk")

    @property
    def _base_vocab_size(self) -> int:
        return _load(self._tokenizer_file).vocab_size

    def _encode(self, s: str) -> list[int]:
        with rust_panics.of_file(self._tokenizer_file):
            return self.tokenizer.encode(s, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        strings = [text.decode("utf-8", errors="replace") for text in texts]
        with rust_panics.of_file(self._tokenizer_file):
            encoded = self.tokenizer.encode_batch_fast(strings, add_special_tokens=False)
        return flatten([of_text.ids for of_text in encoded])

    @property
    def longest_row(self) -> int | None:
        """The tokens to which the file cuts rows where nothing else says a length; None if it does not."""
        return framed_rows.longest(_load(self._tokenizer_file).content)

    @property
    def frame(self) -> Frame:
        """The special tokens around a text."""
        return _frame(self._tokenizer_file, *self._templates)

    @property
    def cuts_left(self) -> bool:
        """Whether a row that is too long loses its beginning, and not its end."""
        return framed_rows.cuts_left(_load(self._tokenizer_file).content)

    def rows(self, texts: Sequence[Texts], most: int | None = None) -> list[Row]:
        """The rows of texts, equal to those of transformers' `tokenizer(text, pair, truncation=True)`.

        A file without a template has the usual one: EOS behind the text of a T5, and `[CLS] text [SEP]`, or
        `[CLS] text [SEP] second text [SEP]`, of an encoder.

        Args:
          texts: a text each, a pair, or several texts; see `framed_rows.make`.
          most: the most tokens of a row.

        Raises:
          ValueError: as `limba.data.token_rows.of_vocabulary`; if the usual template needs a token that the file lacks.
        """
        framing = _framing(self._tokenizer_file, *self._templates)
        with rust_panics.of_file(self._tokenizer_file):
            return framed_rows.make(
                framing, texts, most, lambda most: _cutting(self._tokenizer_file, *self._templates, most)
            )

    def _decode(self, ids: Sequence[int]) -> str:
        """[MASK] and [UNK] are shown, and sentinels; padding, [CLS] and [SEP] are not."""
        special_tokens = _load(self._tokenizer_file).special_tokens
        hidden = {special_tokens.get(role) for role in ("pad", "cls", "sep", "bos", "eos")}
        with rust_panics.of_file(self._tokenizer_file):
            return self.tokenizer.decode([i for i in ids if i not in hidden], skip_special_tokens=False)

    def _required(self, role: str) -> int:
        found = _load(self._tokenizer_file).special_tokens.get(role)
        if found is None:
            raise _no_token(self._tokenizer_file, role)
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._tokenizer_file!r})"

    def encode_words(self, texts: Sequence[Sequence[str]]) -> list[Words]:
        """The tokens of texts whose words are known, as of transformers' `is_split_into_words`."""
        with rust_panics.of_file(self._tokenizer_file):
            encoded = self.tokenizer.encode_batch(texts, is_pretokenized=True, add_special_tokens=False)
        return [
            Words(x.ids, of_words.first_by_number(len(words), x.word_ids))
            for words, x in zip(texts, encoded, strict=True)
        ]


class T5TokenizerVocabulary(_TokenizerFile):
    """The tokenizer.json of a T5, whose last ids may be its sentinels.

    `limba convert from-hf` takes it where no SentencePiece model gives the same tokens. It needs several times as long
    as SentencePiece for a text.

    Sentinels are `<extra_id_0>`, `<extra_id_1>` … in texts, also of a file that calls them `[MASK_1]`, `[MASK_2]` …

    Args:
      tokenizer_file: a file whose name ends with .json, or a folder of Hugging Face with a tokenizer.json.
    """

    _templates = ("$A {sep}", "$A {sep} $B {sep}")

    def _encode(self, s: str) -> list[int]:
        return super()._encode(self._named_as_in_file(s))

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        if any(b"<extra_id_" in text for text in texts):
            texts = [self._named_as_in_file(text.decode("utf-8", errors="replace")).encode() for text in texts]
        return super().encode_batch(texts)

    def rows(self, texts: Sequence[Texts], most: int | None = None) -> list[Row]:
        named = self._named_as_in_file
        return super().rows([named(x) if isinstance(x, str) else [*map(named, x)] for x in texts], most)

    def _decode(self, ids: Sequence[int]) -> str:
        text = super()._decode(ids)
        return sentinels.as_t5s(text) if self._counts_masks else text

    def as_targets(self, row: Row) -> Row:
        """A row as a decoder has it: [BOS] and [EOS], where the file has them, in the place of [CLS] and [SEP]."""
        special_tokens = _load(self._tokenizer_file).special_tokens
        pairs = ((special_tokens.get(a), special_tokens.get(b)) for a, b in (("cls", "bos"), ("sep", "eos")))
        other = {a: b for a, b in pairs if a is not None and b is not None}
        return row._replace(ids=[other.get(i, i) for i in row.ids]) if other else row

    def _named_as_in_file(self, text: str) -> str:
        return sentinels.as_masks(text) if "<extra_id_" in text and self._counts_masks else text

    @property
    def _counts_masks(self) -> bool:
        """Whether sentinels are called `[MASK_1]`, `[MASK_2]` … in the file."""
        tokenizer = _load(self._tokenizer_file).tokenizer
        return tokenizer.token_to_id("[MASK_1]") is not None and tokenizer.token_to_id("<extra_id_0>") is None

    @property
    def eos_id(self) -> int | None:
        """[EOS], or where a file has none [SEP] or </s>."""
        return _load(self._tokenizer_file).special_tokens.get("eos", super().eos_id)

    @property
    def pad_id(self) -> int:  # type: ignore[override]
        """<pad>, or the token that the file's `padding` names, such as Llama's <unk>."""
        opened = _load(self._tokenizer_file)
        padding: Any = opened.content.get("padding")
        is_named = "pad" not in opened.special_tokens and isinstance(padding, Mapping)
        return int(padding["pad_id"]) if is_named else super().pad_id


class TokenizerVocabulary(_TokenizerFile):
    """The tokenizer.json of an encoder, such as BERT. There are no sentinels.

    Padding has the id that the file gives it, which is 1 in RoBERTa's.

    Args:
      tokenizer_file: a file whose name ends with .json, or a folder of Hugging Face with a tokenizer.json.
    """

    has_pairs = True
    _templates = ("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1")

    @property
    def cls_id(self) -> int:
        return self._required("cls")

    @property
    def sep_id(self) -> int:
        return self._required("sep")

    @property
    def mask_id(self) -> int:
        return self._required("mask")

    @property
    def bos_id(self) -> int | None:  # type: ignore[override]
        """[CLS]; None if there is none."""
        return _load(self._tokenizer_file).special_tokens.get("cls")

    @property
    def special_ids(self) -> tuple[int, ...]:
        """All special tokens, sorted: those above, and others that the file says are special."""
        return _load(self._tokenizer_file).special_ids

    @property
    def continues_word(self) -> np.ndarray:
        """Which tokens continue the word of the token before, bool `[vocab_size]`; False for ids without a token.

        In byte-level vocabularies the first word of a text has no space before it, so its first token counts as one
        that continues.

        Raises:
          ValueError: if the file does not say where words begin, or marks their ends.
        """
        return _continues_word(self._tokenizer_file)

    def encode_words(self, texts: Sequence[Sequence[str]]) -> list[Words]:
        """The tokens of texts whose words are known, as of transformers' `is_split_into_words`.

        Byte-level BPE that reads no blank before a text would put words together: it reads them with blanks between.
        """
        if not _joins_words(self._tokenizer_file):
            return super().encode_words(texts)
        joined = [" ".join(words) for words in texts]
        with rust_panics.of_file(self._tokenizer_file):
            encoded = self.tokenizer.encode_batch(joined, add_special_tokens=False)
        return [
            Words(x.ids, of_words.first_by_offset(words, x.offsets)) for words, x in zip(texts, encoded, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class _Opened:
    """A tokenizer.json that was read.

    Attributes:
      content: of the file.
      vocab_size: the highest id plus 1.
      special_tokens: ids by the keys of `_NAMES`, of those that are there.
    """

    tokenizer: Any
    content: Mapping[str, Any]
    vocab_size: int
    special_tokens: Mapping[str, int]
    special_ids: tuple[int, ...]


def _load(file: str) -> _Opened:
    with _load_lock:  # Two readers that ask at once read it once.
        return _read(file)


@functools.cache
def _read(file: str) -> _Opened:
    import tokenizers  # Configurations name vocabularies that nobody opens.

    text = untrusted_files.decode(_read_bytes(file), file)
    with rust_panics.of_file(file):
        if Path(file).name == FILE and Path(file).is_file():
            text = beside_tokenizer.applied(Path(file).parent, text)
        content = untrusted_json.parse_object(text, file)
        tokenizer_growth.check(content, file)
        try:
            tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # The library raises nothing more exact.
            raise ValueError(
                f"{file} is not a tokenizer.json of the library tokenizers {tokenizers.__version__} "
                f"({untrusted_files.cut(str(error))}). Download it again, or build one with `limba vocab build --kind "
                "wordpiece`; a newer version of the library may know newer files."
            ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _check_added_tokens(tokenizer, file)
    with rust_panics.of_file(file):
        for texts in (("a",), ("a", "b")):  # A template may name tokens that are not there.
            tokenizer.encode(*texts)
    ids = tokenizer.get_vocab(with_added_tokens=True)
    if not ids:
        raise ValueError(f"{file} has no tokens. Download it again, or build one with `limba vocab build`.")
    if (highest := max(ids.values())) >= _MOST_IDS:
        raise ValueError(f"{file} has the id {highest:,}; ids are below {_MOST_IDS:,}. Download it again.")
    flagged = {id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    found = {role: [ids[name] for name in names if name in ids] for role, names in _NAMES.items()}
    special_tokens = {
        role: next((id_ for id_ in given if id_ in flagged), given[0]) for role, given in found.items() if given
    }
    return _Opened(
        tokenizer,
        content,
        highest + 1,
        special_tokens,
        tuple(sorted(flagged | set(special_tokens.values()))),
    )


@functools.cache
def _framing(file: str, single: str, pair: str) -> Any:
    """The tokenizer with the template of its file, or with these, where the file has none."""
    import tokenizers

    opened = _load(file)
    if framed_rows.has_template(opened.content):
        return opened.tokenizer
    names = {role: opened.tokenizer.id_to_token(id_) for role, id_ in opened.special_tokens.items()}
    roles = [role for role in ("cls", "sep") if f"{{{role}}}" in pair]
    if missing := [role for role in roles if role not in names]:
        raise _no_token(file, missing[0])
    tokenizer = tokenizers.Tokenizer.from_str(opened.tokenizer.to_str())
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=single.format(**names),
        pair=pair.format(**names),
        special_tokens=[(names[role], opened.special_tokens[role]) for role in roles],
    )
    return tokenizer


@functools.lru_cache(maxsize=64)
def _cutting(file: str, single: str, pair: str, most: int) -> Any:
    """A copy that cuts rows: the settings of the one that readers share must not change."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(_framing(file, single, pair).to_str())
    tokenizer.enable_truncation(most, direction="left" if framed_rows.cuts_left(_load(file).content) else "right")
    return tokenizer


@functools.cache
def _frame(file: str, single: str, pair: str) -> Frame:
    return framed_rows.frame(_framing(file, single, pair))


def _no_token(file: str, role: str) -> ValueError:
    names = _NAMES[role]
    return ValueError(
        f"The tokenizer {file!r} has no {names[0]}: none of its tokens is called {' or '.join(names)}. Give one that "
        "has it, such as `limba vocab build --kind wordpiece` writes."
    )


def _check_added_tokens(tokenizer: Any, file: str) -> None:
    """Raises ValueError for an added token with which the library fails on every text."""
    for id_, token in tokenizer.get_added_tokens_decoder().items():
        if token.normalized and tokenizer.normalizer and not tokenizer.normalizer.normalize_str(token.content):
            raise ValueError(
                f"{file}: nothing is left of the added token {token.content!r} (id {id_}) after the file's normalizer, "
                "and transformers fails on every text with such a tokenizer. Add it as it is, with "
                f"tokenizer.add_tokens(AddedToken({token.content!r}, normalized=False)), and save the tokenizer again; "
                'or set "normalized" of that token to false in the file.'
            )


def _read_bytes(file: str) -> bytes:
    path = storage.as_path(file)
    if storage.is_remote(path):
        return storage.read_bytes(path)
    assert isinstance(path, Path)
    if not os.path.lexists(path):
        raise FileNotFoundError(
            f"There is no tokenizer {file!r} (working directory {str(Path.cwd())!r}). Build one with "
            f"`{missing_vocabulary.build_command(file)}` and name that file, or give a folder of Hugging Face that "
            f"has a {FILE}."
        )
    return untrusted_files.read_bytes(path)


@functools.cache
def _digest(file: str) -> str:
    return _sha256(json.loads(_load(file).tokenizer.to_str()), _NOT_ABOUT_IDS)


def _sha256(content: Mapping[str, Any], left_out: Sequence[str]) -> str:
    about_ids = {key: value for key, value in content.items() if key not in left_out}
    return hashlib.sha256(json_text.dumps(about_ids, sort_keys=True).encode()).hexdigest()


@functools.cache
def _continues_word(file: str) -> np.ndarray:
    opened = _load(file)
    added = set(opened.tokenizer.get_added_tokens_decoder())
    continues = np.zeros(opened.vocab_size, bool)
    pieces = {id_: piece for piece, id_ in opened.tokenizer.get_vocab().items() if id_ not in added}
    ids = np.fromiter(pieces, np.int64, len(pieces))
    kind, mark = _word_mark(opened.content, file)
    if kind == "continues":
        continues[ids] = [piece.startswith(mark) for piece in pieces.values()]
    elif kind == "begins":
        continues[ids] = [not piece.startswith(mark) for piece in pieces.values()]
    continues[list(opened.special_ids)] = False
    continues.flags.writeable = False
    return continues


def _word_mark(content: Mapping[str, Any], file: str) -> tuple[str, str | tuple[str, ...]]:
    """What pieces start with that continue a word ("continues"), that begin one ("begins"), or that all pieces are
    whole words ("words")."""
    model = content["model"]
    kind = model.get("type") or ("WordPiece" if "max_input_chars_per_word" in model else "BPE")
    if kind == "WordLevel":
        return "words", ""
    if kind == "WordPiece":
        return "continues", model.get("continuing_subword_prefix") or "##"
    if model.get("continuing_subword_prefix"):
        return "continues", model["continuing_subword_prefix"]
    parts = [
        *tokenizer_growth.parts(content.get("normalizer")),
        *tokenizer_growth.parts(content.get("pre_tokenizer")),
        *tokenizer_growth.parts(content.get("decoder")),
    ]
    if any(part.get("type") == "ByteLevel" for part in parts):
        return "begins", _WHITE_SPACE_BYTES
    # Metaspace has the mark as `replacement`; Llama's tokenizers write it with Replace.
    marks = [part.get("replacement") for part in parts if part.get("type") == "Metaspace"]
    marks += [part.get("content") for part in parts if part.get("type") == "Replace" and part.get("content") == "▁"]
    if marks and isinstance(marks[0], str):
        return "begins", marks[0]
    raise ValueError(
        f"{file} does not say which tokens begin a word: it is a {untrusted_files.cut(str(kind))} model without "
        "continuing_subword_prefix, ByteLevel or Metaspace. Mask single tokens with it, or build a vocabulary with "
        "`limba vocab build --kind wordpiece`."
    )


@functools.cache
def _joins_words(file: str) -> bool:
    steps = tokenizer_growth.parts(_load(file).content.get("pre_tokenizer"))
    return any(step.get("type") == "ByteLevel" and not step.get("add_prefix_space") for step in steps)
