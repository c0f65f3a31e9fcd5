"""Vocabularies with the interface and the ids of SeqIO's (`seqio.vocabularies`), without TensorFlow.

A subclass of your own is a vocabulary for every task; SeqIO's own are taken wherever ours are.
"""

import abc
import functools
import hashlib
import itertools
import re
import threading
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.data import token_rows
from limba.data.token_rows import Frame, Row, Texts
from limba.files import storage, untrusted_files
from limba.tasks.vocabularies import damaged_models
from limba.tasks.vocabularies import words as of_words
from limba.tasks.vocabularies.words import Words

_MODULE_OF_SEQIO = "seqio.vocabularies"
_load_lock = threading.Lock()


class Vocabulary(abc.ABC):
    """Texts to ids and back. Padding is 0; the last `extra_ids` ids are sentinels, counted down.

    Args:
      extra_ids: how many ids follow those of the pieces.

    Attributes:
      has_pairs: whether a row may have two texts, which differ by their token types.
    """

    has_pairs = False
    pad_id = 0
    bos_id: int | None = None

    def __init__(self, extra_ids: int = 0):
        self._extra_ids = extra_ids or 0

    @property
    @abc.abstractmethod
    def eos_id(self) -> int | None: ...

    @property
    @abc.abstractmethod
    def unk_id(self) -> int | None: ...

    @property
    @abc.abstractmethod
    def _base_vocab_size(self) -> int:
        """Ids that `decode` knows: others are decoded as unknown."""

    @property
    def extra_ids(self) -> int:
        return self._extra_ids

    @property
    def vocab_size(self) -> int:
        """Ids, sentinels included."""
        return self._base_vocab_size + self.extra_ids

    @abc.abstractmethod
    def _encode(self, s: str) -> Sequence[int]: ...

    @abc.abstractmethod
    def _decode(self, ids: Sequence[int]) -> str: ...

    def encode(self, s: str) -> Sequence[int]:
        """The ids of a text, without EOS."""
        return self._encode(s)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, up to the first EOS."""
        ids = [int(i) for i in ids]
        if self.unk_id is not None:
            ids = [self.unk_id if i >= self._base_vocab_size else i for i in ids]
        if self.eos_id is not None and self.eos_id in ids:
            ids = ids[: ids.index(self.eos_id) + 1]
        return self._decode(ids)

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts (UTF-8), int32 `[ids]`, and the number of ids of each, int64 `[texts]`."""
        return flatten([self.encode(text.decode("utf-8", errors="replace")) for text in texts])

    @property
    def frame(self) -> Frame:
        """The special tokens around a text."""
        return token_rows.usual_frame(self)

    @property
    def cuts_left(self) -> bool:
        """Whether a row that is too long loses its beginning, and not its end."""
        return False

    def rows(self, texts: Sequence[Texts], most: int | None = None) -> list[Row]:
        """The rows of texts in their `frame`; see `limba.data.token_rows.of_vocabulary`."""
        flat, lengths = self.encode_batch([token_rows.alone(self, text).encode() for text in texts])
        parts = np.split(flat, np.cumsum(lengths)[:-1]) if len(texts) else []
        return [token_rows.framed(self.frame, ids.tolist(), most) for ids in parts]

    def __eq__(self, other: object) -> bool:
        """Whether it is the same vocabulary, ours or SeqIO's, from the same file."""
        other = without_tensorflow(other)
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    # SeqIO calls these where a vocabulary of ours is a feature of a task of SeqIO's.

    def to_seqio(self) -> Any:
        """SeqIO's vocabulary of the same ids; needs TensorFlow.

        Raises:
          NotImplementedError: for a class that SeqIO does not have.
        """
        raise NotImplementedError(
            f"SeqIO has no vocabulary like {type(self).__name__}: give the class a method to_seqio that makes one, or "
            "keep it to tasks of Limba's own registry."
        )

    def encode_tf(self, s: Any) -> Any:
        """The ids of a `tf.Tensor` of one text."""
        return self.to_seqio().encode_tf(s)

    def decode_tf(self, ids: Any) -> Any:
        """The texts of a `tf.Tensor` of ids `[..., length]`."""
        return self.to_seqio().decode_tf(ids)


class ByteVocabulary(Vocabulary):
    """The bytes of UTF-8 plus 3, after padding, EOS and unknown: ByT5's (arXiv:2105.13626)."""

    eos_id = 1
    unk_id = 2
    _base_vocab_size = 256 + 3

    def _encode(self, s: str) -> list[int]:
        return [byte + 3 for byte in s.encode()]

    def _decode(self, ids: Sequence[int]) -> str:
        return bytes(i - 3 for i in ids if 3 <= i < 259).decode("utf-8", errors="ignore")

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        ids = np.frombuffer(b"".join(texts), np.uint8).astype(np.int32) + 3
        return ids, np.array([len(text) for text in texts], np.int64)

    def encode_words(self, texts: Sequence[Sequence[str]]) -> list[Words]:
        """The bytes of texts whose words are known, with blanks between them."""
        blank = self._encode(" ")
        return [of_words.joined([self._encode(word) for word in words], blank) for words in texts]

    def to_seqio(self) -> Any:
        import seqio

        return seqio.ByteVocabulary(self.extra_ids)

    def __repr__(self) -> str:
        return f"ByteVocabulary(extra_ids={self.extra_ids})"


class LabelVocabulary(Vocabulary):
    """Texts of labels as the ids from 1, in order; another text is 0, no label.

    Args:
      labels: such as `["glad", "sad"]`.

    Raises:
      ValueError: unless they are at least two different texts.
    """

    eos_id = None
    unk_id = None
    _fewest = 2

    def __init__(self, labels: Sequence[str]):
        super().__init__()
        texts = [] if isinstance(labels, str) else list(labels)
        are_texts = all(isinstance(text, str) and text for text in texts)
        if len(texts) < self._fewest or len({*texts}) < len(texts) or not are_texts:
            fewest = "at least two different texts" if self._fewest == 2 else "different texts"
            raise ValueError(f"The labels are {labels!r}; give {fewest}, such as ['glad', 'sad'].")
        self._labels = tuple(texts)

    @property
    def labels(self) -> tuple[str, ...]:
        return self._labels

    @property
    def _base_vocab_size(self) -> int:
        return len(self._labels) + 1

    def _encode(self, s: str) -> list[int]:
        return [self._labels.index(s) + 1 if s in self._labels else 0]

    @property
    def separator(self) -> str:
        """Stands between labels in a text: a blank, or a tab where a label has a blank itself."""
        return "\t" if any(" " in label for label in self._labels) else " "

    def join(self, labels: Iterable[str]) -> str:
        """A text of labels, which `split` divides into them again."""
        return self.separator.join(labels)

    def split(self, text: str) -> list[str]:
        return text.split(self.separator) if text else []

    def _decode(self, ids: Sequence[int]) -> str:
        """The labels, with `separator` between them; ids that are none are left out."""
        return self.join(self._labels[i - 1] for i in ids if 0 < i <= len(self._labels))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._labels)})"


class MultiLabelVocabulary(LabelVocabulary):
    """The right labels of a row as one id a label, in order: 2 where it is right, 1 where it is not.

    A text has the right labels with `separator` between them; the empty one says that none is right. A text with
    anything else gives 0 everywhere, which says that the labels are not known.

    Args:
      labels: such as `["toxic", "insult"]`; one alone is a question of yes or no.

    Raises:
      ValueError: unless they are different texts.
    """

    _fewest = 1

    def _encode(self, s: str) -> list[int]:
        right = self.split(s)
        if not {*right} <= {*self._labels}:
            return [0] * len(self._labels)
        return [1 + (label in right) for label in self._labels]

    def _decode(self, ids: Sequence[int]) -> str:
        return self.join(label for label, i in zip(self._labels, ids, strict=False) if i == 2)


class NumberVocabulary(Vocabulary):
    """Numbers as ids, the bits of their float32, as many as there are names; another text is 0, no number.

    0 is padding, so zero has the bits of minus zero, which is the same number. Blanks separate several numbers of a
    text; one with more or fewer of them has none.

    Args:
      labels: the name of each number, such as `["similarity"]`; other names give the same ids.

    Raises:
      ValueError: unless they are different names.
    """

    eos_id = None
    unk_id = None

    def __init__(self, labels: Sequence[str] = ("number",)):
        super().__init__()
        names = () if isinstance(labels, str) else tuple(labels)
        if not names or len({*names}) < len(names) or not all(isinstance(name, str) and name for name in names):
            raise ValueError(
                f"The labels of numbers are {labels!r}; give the name of each, such as ['similarity'], no two alike."
            )
        self._labels = names

    @property
    def _base_vocab_size(self) -> int:
        return len(self._labels) + 1  # as of a LabelVocabulary; no id is a row of a table

    @property
    def labels(self) -> tuple[str, ...]:
        return self._labels

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberVocabulary) and len(other.labels) == len(self.labels)

    def __hash__(self) -> int:
        return hash((NumberVocabulary, len(self._labels)))

    def _encode(self, s: str) -> list[int]:
        try:
            numbers = np.array(s.split(), np.float32)
        except ValueError:
            numbers = np.zeros(0, np.float32)
        if len(numbers) != len(self._labels):
            return [0] * len(self._labels)
        return np.where(
            np.isfinite(numbers), np.where(numbers == 0, np.float32(-0.0), numbers).view(np.int32), 0
        ).tolist()

    def _decode(self, ids: Sequence[int]) -> str:
        """The numbers with as few digits as tell them from all others, and blanks between them."""
        return " ".join(str(np.int32(i).view(np.float32) + 0) for i in ids if i)

    def __repr__(self) -> str:
        return f"NumberVocabulary({list(self._labels)})"


class PassThroughVocabulary(Vocabulary):
    """Ids stay what they are: for features that are not text.

    Args:
      size: how many ids there are.
      eos_id: the id that ends a feature, or None.
    """

    unk_id = None

    def __init__(self, size: int, eos_id: int | None = None):
        super().__init__()
        self._size = size
        self._eos_id = eos_id

    @property
    def size(self) -> int:
        return self._size

    @property
    def eos_id(self) -> int | None:
        return self._eos_id

    @property
    def _base_vocab_size(self) -> int:
        return self._size

    def _encode(self, s: Any) -> Any:
        return s

    def decode(self, ids: Iterable[Any]) -> Any:
        """The values up to EOS, which need not be whole numbers."""
        values = list(ids)
        return values[: values.index(self._eos_id) + 1] if self._eos_id in values else values

    def _decode(self, ids: Any) -> Any:
        return ids

    def to_seqio(self) -> Any:
        import seqio

        return seqio.PassThroughVocabulary(self._size, self._eos_id)

    def __repr__(self) -> str:
        return f"PassThroughVocabulary(size={self._size}, eos_id={self._eos_id})"


class SentencePieceVocabulary(Vocabulary):
    """The pieces of a SentencePiece model, and `extra_ids` sentinels behind the last.

    The file, which may be in a bucket, is read when it is first used.

    Args:
      sentencepiece_model_file: the `.model` file.
      extra_ids: T5's models have 100.
    """

    def __init__(self, sentencepiece_model_file: str, extra_ids: int = 0):
        super().__init__(extra_ids)
        self._sentencepiece_model_file = storage.mounted(str(sentencepiece_model_file))

    @property
    def sentencepiece_model_file(self) -> str:
        return self._sentencepiece_model_file

    @property
    def tokenizer(self) -> Any:
        """The `SentencePieceProcessor`, sentinels included.

        Raises:
          FileNotFoundError, OSError: if the file cannot be read.
          google.protobuf.message.DecodeError, RuntimeError: if it is not a SentencePiece model, or has the sentinels.
        """
        return _load(self._sentencepiece_model_file, self.extra_ids)[0]

    @property
    def sp_model(self) -> bytes:
        """The model with its sentinels, serialized."""
        return _load(self._sentencepiece_model_file, self.extra_ids)[1]

    @property
    def digest(self) -> str:
        """A checksum of all that decides which ids a text gets: pieces, scores, types, normalization, sentinels."""
        return _digest(self._sentencepiece_model_file, self.extra_ids)

    @property
    def file_checksum(self) -> int:
        """Of the bytes of the model with its sentinels."""
        return zlib.crc32(self.sp_model)

    @property
    def bos_id(self) -> int:  # type: ignore[override]
        return self.tokenizer.bos_id()

    @property
    def eos_id(self) -> int:
        return self.tokenizer.eos_id()

    @property
    def unk_id(self) -> int:
        return self.tokenizer.unk_id()

    @property
    def _base_vocab_size(self) -> int:
        return self.tokenizer.get_piece_size()

    @property
    def vocab_size(self) -> int:
        return self._base_vocab_size

    def _encode(self, s: str) -> list[int]:
        return self.tokenizer.encode(s)

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def encode_batch(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        strings = [text.decode("utf-8", errors="replace") for text in texts]
        return flatten(self.tokenizer.encode(strings, num_threads=1))

    def rows(self, texts: Sequence[Texts], most: int | None = None) -> list[Row]:
        """See `Vocabulary.rows`. `</s>`, `<unk>` and `<pad>` in a text are the tokens, as transformers' classes read
        it; `encode` reads their letters, as SeqIO does.
        """
        special = _special_pieces(self._sentencepiece_model_file, self.extra_ids)
        whole = [token_rows.alone(self, text) for text in texts]
        found = super().rows(whole, most)
        for i, text in enumerate(whole):
            if any(piece in text for piece in special):
                parts = re.split(f"({'|'.join(map(re.escape, special))})", text)
                ids = [[special[x]] if x in special else self.encode(x) for x in parts]
                found[i] = token_rows.framed(self.frame, list(itertools.chain.from_iterable(ids)), most)
        return found

    def encode_words(self, texts: Sequence[Sequence[str]]) -> list[Words]:
        """The pieces of texts whose words are known: those of each word, as no piece of a T5's crosses a blank."""
        return [of_words.joined(self.tokenizer.encode(list(words), num_threads=1), []) for words in texts]

    def to_seqio(self) -> Any:
        import seqio

        return seqio.SentencePieceVocabulary(self.sentencepiece_model_file, self.extra_ids)

    def __repr__(self) -> str:
        return f"SentencePieceVocabulary({self._sentencepiece_model_file!r}, extra_ids={self.extra_ids})"


def without_tensorflow(vocabulary: Any) -> Any:
    """A vocabulary of SeqIO's as ours; one that is ours, or of a class that is not SeqIO's own, is itself."""
    kind = type(vocabulary)
    if kind.__module__ != _MODULE_OF_SEQIO:
        return vocabulary
    if kind.__name__ == "ByteVocabulary":
        return ByteVocabulary(vocabulary.extra_ids)
    if kind.__name__ == "PassThroughVocabulary":
        return PassThroughVocabulary(vocabulary.size, vocabulary.eos_id)
    # One that normalizes otherwise, or counts its sentinels up, stays SeqIO's.
    changed = getattr(vocabulary, "_normalizer_spec_overrides", None) or not getattr(
        vocabulary, "_reverse_extra_ids", True
    )
    if kind.__name__ == "SentencePieceVocabulary" and not changed:
        return SentencePieceVocabulary(vocabulary.sentencepiece_model_file, vocabulary.extra_ids)
    return vocabulary


def encode_batch(vocabulary: Any, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """`Vocabulary.encode_batch` of any vocabulary."""
    vocabulary = without_tensorflow(vocabulary)
    if isinstance(vocabulary, Vocabulary):
        return vocabulary.encode_batch(texts)
    return flatten([vocabulary.encode(text.decode("utf-8", errors="replace")) for text in texts])


def flatten(ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all texts, int32 `[ids]`, and the number of ids of each, int64 `[texts]`."""
    lengths = np.array([len(of_text) for of_text in ids], np.int64)
    return np.fromiter(itertools.chain.from_iterable(ids), np.int32, lengths.sum()), lengths


def _load(file: str, extra_ids: int) -> tuple[Any, bytes]:
    with _load_lock:  # Two readers that ask at once read it once.
        return _read(file, extra_ids)


@functools.cache
def _read(file: str, extra_ids: int) -> tuple[Any, bytes]:
    # Configurations name vocabularies that nobody opens: 40 ms.
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    path = storage.as_path(file)
    content = storage.read_bytes(path) if storage.is_remote(path) else untrusted_files.read_bytes(Path(file))
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    damaged_models.check(model, file)
    user_defined = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
    for i in reversed(range(extra_ids)):
        model.pieces.add(piece=f"▁<extra_id_{i}>", score=0.0, type=user_defined)
    serialized = model.SerializeToString()
    tokenizer = sentencepiece.SentencePieceProcessor()
    tokenizer.load_from_serialized_proto(serialized)
    return tokenizer, serialized


@functools.cache
def _special_pieces(file: str, extra_ids: int) -> dict[str, int]:
    """The control pieces and the unknown one, with their ids: no text becomes one of them in SentencePiece."""
    model, _ = _load(file, extra_ids)
    return {
        model.id_to_piece(i): i for i in range(model.get_piece_size()) if model.is_control(i) or model.is_unknown(i)
    }


@functools.cache
def _digest(file: str, extra_ids: int) -> str:
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(_load(file, extra_ids)[1])
    normalizer, trainer = model.normalizer_spec, model.trainer_spec
    normal = sentencepiece_model_pb2.ModelProto.SentencePiece.NORMAL
    settings = (
        *(normalizer.add_dummy_prefix, normalizer.remove_extra_whitespaces, normalizer.escape_whitespaces),
        *(trainer.model_type, trainer.byte_fallback, trainer.treat_whitespace_as_suffix),
    )
    digest = hashlib.sha256(repr(settings).encode())
    digest.update(normalizer.precompiled_charsmap)
    digest.update(model.denormalizer_spec.precompiled_charsmap)
    # Only a normal piece's score decides anything.
    pieces = ((piece.piece, piece.type, piece.score if piece.type == normal else 0) for piece in model.pieces)
    digest.update(repr([*pieces]).encode())
    return digest.hexdigest()
