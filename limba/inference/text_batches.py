"""What a model reads of a line of text, and what its answer is: a sequence, words for masks, or labels."""

import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from limba.data import sentinels, token_rows
from limba.data.contract import Batch
from limba.data.token_rows import Row
from limba.inference import blanks, tasks_door
from limba.models import BaseTransformerModel, ContrastiveModel, EncoderClassifier, EncoderOnlyModel
from limba.models.contrastive_model import NO_ANSWERS

_BLANK = re.compile(r"<extra_id_[0-9]+>|\[MASK\]|<mask>")
_BLANK_AND_SPACE = re.compile(rf"( ?)({_BLANK.pattern})")
_SEPARATOR = "[SEP]"
_NO_LABEL = "?"


def row_of(vocabulary: Any, text: str, most: int | None = None) -> Row:
    """What a model reads of a text, as in training: special tokens of its vocabulary included; a sentinel is one
    token wherever it stands.

    Raises:
      ValueError: for a sentinel that no model has, by the number of its digits; else as `token_rows.of_vocabulary`.
    """
    for digits in blanks.SENTINEL.findall(text):
        sentinels.number(digits)
    line = blanks.set_apart(text) if hasattr(vocabulary, "sp_model") else text
    return token_rows.of_vocabulary(vocabulary, [line], most)[0]


def padded(rows: Sequence[Row], length: int) -> Batch:
    """`encoder_input_tokens` `[rows, length]`, and `encoder_token_types` where a row has another type than 0."""
    tokens, types = np.zeros((2, len(rows), length), np.int32)
    for row, of_ids, of_types in zip(rows, tokens, types, strict=True):
        of_ids[: len(row.ids)], of_types[: len(row.ids)] = row.ids, row.types
    return {"encoder_input_tokens": tokens, **({"encoder_token_types": types} if types.any() else {})}


def longest_row(model: BaseTransformerModel, most: int) -> int:
    """The tokens of a row: at most `most`, what the network reads, and what the tokenizer's file says."""
    network = getattr(getattr(model.module, "config", None), "longest_row", None)
    of_file = getattr(model.input_vocabulary, "longest_row", None)
    return min(x for x in (most, network, of_file) if x is not None)


def without_blanks(line: str) -> str:
    """A line with a space for each blank."""
    return _BLANK.sub(" ", line)


def find_unknown(vocabulary: Any, lines: Sequence[str]) -> str:
    """A sentence about lines with characters that the vocabulary does not know; "" if it knows all."""
    return tasks_door.describe_unknown(vocabulary, [without_blanks(line) for line in lines])


class TextBatches(Protocol):
    """How a kind of model reads lines."""

    def encode(self, line: str, most: int | None = None) -> Row:
        """The row of a line, of at most `most` tokens."""
        ...

    def features(self, rows: Sequence[Row], length: int) -> Batch:
        """What the model predicts from, `[rows, length]`, padded with 0."""
        ...

    def answer(self, line: str, row: np.ndarray) -> tuple[str, str]:
        """Of a line and the tokens that were predicted for it: the answer, and the line with it."""
        ...


def for_model(model: BaseTransformerModel, max_decode_length: int) -> TextBatches:
    """The way of the model's kind.

    Args:
      max_decode_length: tokens of an answer that is a sequence.

    Raises:
      ValueError: for a model that gives vectors.
    """
    if isinstance(model, ContrastiveModel):
        raise ValueError(NO_ANSWERS)
    if isinstance(model, EncoderClassifier):
        return _LabelsOfWords(model) if model.labels_tokens else _Labels(model)
    if isinstance(model, EncoderOnlyModel):
        return _Masks(model)
    start = getattr(getattr(model.module, "config", None), "decoder_start_token_id", 0)
    return Sequences(model.input_vocabulary, model.output_vocabulary, max_decode_length, start)


class Sequences:
    """Of a model that decodes; see `for_model`. Where the decoder begins with a sentinel, so do answers."""

    def __init__(self, input_vocabulary: Any, output_vocabulary: Any, max_decode_length: int, start: int = 0):
        self._input, self._output, self._max_decode_length = input_vocabulary, output_vocabulary, max_decode_length
        self._before = [start] if start and start in sentinels.of_vocabulary(output_vocabulary) else []

    def encode(self, line: str, most: int | None = None) -> Row:
        return row_of(self._input, line, most)

    def features(self, rows: Sequence[Row], length: int) -> Batch:
        answers = np.zeros((len(rows), self._max_decode_length), np.int32)  # its length limits the answers
        return {**padded(rows, length), "decoder_input_tokens": answers}

    def answer(self, line: str, row: np.ndarray) -> tuple[str, str]:
        text = blanks.decode_row(self._output, np.concatenate([self._before, row]).astype(int))
        return text, blanks.fill_blanks(line, text)


class _Masks:
    """Of a masked language model: `[MASK]`, or a sentinel of T5, is one token that is missing."""

    def __init__(self, model: EncoderOnlyModel):
        vocabulary: Any = model.input_vocabulary
        self._vocabulary = vocabulary
        mask = vocabulary.tokenizer.get_added_tokens_decoder().get(vocabulary.mask_id)
        self._takes_blanks = mask is not None and mask.lstrip  # as RoBERTa's

    def encode(self, line: str, most: int | None = None) -> Row:
        if not _BLANK.search(line):
            raise ValueError(f"{line!r} has no [MASK]: write it, or ___, where a word is missing.")
        mask = self._vocabulary.tokenizer.id_to_token(self._vocabulary.mask_id)
        return row_of(self._vocabulary, _BLANK.sub(lambda _: mask, line), most)

    def features(self, rows: Sequence[Row], length: int) -> Batch:
        batch = padded(rows, length)
        is_mask = batch["encoder_input_tokens"] == self._vocabulary.mask_id
        # 8, 32, 128 …: few widths are compiled, whatever numbers of masks strangers send to a server.
        width, most = 8, is_mask.sum(axis=1).max(initial=1)
        while width < most:
            width *= 4
        positions = np.zeros((len(rows), width), np.int32)
        for of_row, row in zip(positions, is_mask, strict=True):
            (places,) = np.nonzero(row)
            of_row[: len(places)] = places
        return {**batch, "masked_lm_positions": positions}

    def answer(self, line: str, row: np.ndarray) -> tuple[str, str]:
        tokens = [token for token in row.tolist() if token]
        words = [self._vocabulary.decode([token]).strip() for token in tokens]
        # A cut line may have fewer words than masks.
        found = list(zip(_BLANK.findall(line), words, strict=False))
        # As T5 answers, where the blanks are its sentinels.
        text = " ".join(f"{blank} {word}" if blanks.has_blanks(blank) else word for blank, word in found)
        remaining = iter(zip(tokens, words, strict=True))
        return text, _BLANK_AND_SPACE.sub(lambda match: self._filled(match, *next(remaining, (0, match[2]))), line)

    def _filled(self, match: re.Match, token: int, word: str) -> str:
        """A word in place of its blank, without a space before a piece that goes on with a word."""
        if word.startswith("##") and token:
            return word.removeprefix("##")
        goes_on = token and self._takes_blanks and self._vocabulary.continues_word[token]
        return word if goes_on else match[1] + word


class _Labels:
    """Of a classifier: a text, or two with `[SEP]` between them where the vocabulary has it."""

    def __init__(self, model: EncoderClassifier):
        self._vocabulary: Any = model.input_vocabulary
        self._labels: Any = model.output_vocabulary
        self._has_pairs = token_rows.has_pairs(self._vocabulary)

    def encode(self, line: str, most: int | None = None) -> Row:
        if not self._has_pairs or _SEPARATOR not in line:
            return row_of(self._vocabulary, line, most)
        return token_rows.of_vocabulary(self._vocabulary, [_texts_of_pair(line)], most)[0]

    def features(self, rows: Sequence[Row], length: int) -> Batch:
        # The network with token types takes them from the tokenizer, and makes none of its own.
        types = {"encoder_token_types": np.zeros((len(rows), length), np.int32)} if self._has_pairs else {}
        return {**types, **padded(rows, length)}

    def answer(self, line: str, row: np.ndarray) -> tuple[str, str]:
        text = self._labels.decode(row.tolist())
        return text, text


def _texts_of_pair(line: str) -> list[str]:
    """The texts between separators, without the blanks around these; a regular expression would take n² steps."""
    texts = line.split(_SEPARATOR)
    if len(texts) == 1:
        return texts
    return [texts[0].rstrip(), *map(str.strip, texts[1:-1]), texts[-1].lstrip()]


class _LabelsOfWords(_Labels):
    """Of a classifier of tokens: the label of each word, which is that of its first piece."""

    def encode(self, line: str, most: int | None = None) -> Row:
        row = self._read(line, most)
        return Row(row.ids, row.types, row.length)

    def answer(self, line: str, row: np.ndarray) -> tuple[str, str]:
        # A word without a piece, or behind the end of a cut line, has none.
        places = self._read(line, len(row)).places
        labels = [self._labels.decode([int(row[x])]) if x >= 0 else _NO_LABEL for x in places]
        words = zip(line.split(), labels, strict=True)
        return self._labels.join(labels), " ".join(f"{word}/{label}" for word, label in words)

    def _read(self, line: str, most: int | None) -> token_rows.WordRow:
        return token_rows.of_words(self._vocabulary, [line.split()], most)[0]
