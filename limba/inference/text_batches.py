"""What a model reads of a line of text, and what its answer is: a sequence, words for masks, or labels."""

import re
from typing import Any, Protocol

import numpy as np

from limba.data.contract import Batch
from limba.inference import blanks
from limba.models import BaseTransformerModel, ContrastiveModel, EncoderClassifier, EncoderOnlyModel
from limba.models.contrastive_model import NO_ANSWERS

_BLANK = re.compile(r"<extra_id_\d+>|\[MASK\]|<mask>")
_BLANK_AND_SPACE = re.compile(rf"( ?)({_BLANK.pattern})")
_SEPARATOR = "[SEP]"
_NO_LABEL = "?"


def tokens_of(vocabulary: Any, text: str) -> list[int]:
    """What a model reads of a text, as in training: `[CLS] text [SEP]`, or with a T5's vocabulary the text and EOS."""
    return _between_special_tokens(vocabulary, vocabulary.encode(text))


def _between_special_tokens(vocabulary: Any, ids: list[int]) -> list[int]:
    if getattr(vocabulary, "cls_id", None) is None:
        return [*ids, vocabulary.eos_id or 1]
    return [vocabulary.cls_id, *ids, vocabulary.sep_id]


def without_blanks(line: str) -> str:
    """A line with a space for each blank."""
    return _BLANK.sub(" ", line)


class TextBatches(Protocol):
    """How a kind of model reads lines."""

    def encode(self, line: str) -> list[int]:
        """The tokens of a line."""
        ...

    def features(self, tokens: np.ndarray) -> Batch:
        """What the model predicts from: of tokens int32 `[rows, length]`, padded with 0."""
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
    return Sequences(model.input_vocabulary, model.output_vocabulary, max_decode_length)


class Sequences:
    """Of a model that decodes; see `for_model`."""

    def __init__(self, input_vocabulary: Any, output_vocabulary: Any, max_decode_length: int):
        self._input, self._output, self._max_decode_length = input_vocabulary, output_vocabulary, max_decode_length

    def encode(self, line: str) -> list[int]:
        return tokens_of(self._input, blanks.set_apart(line) if hasattr(self._input, "sp_model") else line)

    def features(self, tokens: np.ndarray) -> Batch:
        answers = np.zeros((len(tokens), self._max_decode_length), np.int32)  # its length limits the answers
        return {"encoder_input_tokens": tokens, "decoder_input_tokens": answers}

    def answer(self, line: str, row: np.ndarray) -> tuple[str, str]:
        text = blanks.decode_row(self._output, row)
        return text, blanks.fill_blanks(line, text)


class _Masks:
    """Of a masked language model: `[MASK]`, or a sentinel of T5, is one token that is missing."""

    def __init__(self, model: EncoderOnlyModel):
        vocabulary: Any = model.input_vocabulary
        self._vocabulary = vocabulary
        mask = vocabulary.tokenizer.get_added_tokens_decoder().get(vocabulary.mask_id)
        self._takes_blanks = mask is not None and mask.lstrip  # as RoBERTa's

    def encode(self, line: str) -> list[int]:
        if not _BLANK.search(line):
            raise ValueError(f"{line!r} has no [MASK]: write it, or ___, where a word is missing.")
        mask = self._vocabulary.tokenizer.id_to_token(self._vocabulary.mask_id)
        return tokens_of(self._vocabulary, _BLANK.sub(lambda _: mask, line))

    def features(self, tokens: np.ndarray) -> Batch:
        is_mask = tokens == self._vocabulary.mask_id
        # A multiple of 8, so that few widths are compiled.
        width = -(-int(is_mask.sum(axis=1).max(initial=1)) // 8) * 8
        positions = np.zeros((len(tokens), width), np.int32)
        for row, of_row in zip(positions, is_mask, strict=True):
            (places,) = np.nonzero(of_row)
            row[: len(places)] = places
        return {"encoder_input_tokens": tokens, "masked_lm_positions": positions}

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
        self._labels = model.output_vocabulary

    def encode(self, line: str) -> list[int]:
        first, *others = line.split(_SEPARATOR) if hasattr(self._vocabulary, "sep_id") else [line]
        ids = self._vocabulary.encode(first.strip())
        for part in others:
            ids = [*ids, *self._vocabulary.between_texts, *self._vocabulary.encode(part.strip())]
        return _between_special_tokens(self._vocabulary, ids)

    def features(self, tokens: np.ndarray) -> Batch:
        return {"encoder_input_tokens": tokens}

    def answer(self, line: str, row: np.ndarray) -> tuple[str, str]:
        text = self._labels.decode(row.tolist())
        return text, text


class _LabelsOfWords(_Labels):
    """Of a classifier of tokens: the label of each word, which is that of its first piece."""

    def encode(self, line: str) -> list[int]:
        return _between_special_tokens(self._vocabulary, self._encoded(line).ids)

    def answer(self, line: str, row: np.ndarray) -> tuple[str, str]:
        # A word without a piece, or behind the end of a cut line, has none.
        row = row[getattr(self._vocabulary, "cls_id", None) is not None :]  # [CLS] is no word's
        places = self._encoded(line).places
        labels = [self._labels.decode([int(row[x])]) if 0 <= x < len(row) else _NO_LABEL for x in places]
        words = zip(line.split(), labels, strict=True)
        return " ".join(labels), " ".join(f"{word}/{label}" for word, label in words)

    def _encoded(self, line: str) -> Any:
        return self._vocabulary.encode_words([line.split()])[0]
