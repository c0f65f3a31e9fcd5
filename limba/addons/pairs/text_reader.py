"""Reads texts for a kind of model: their tokens with places, and the refusal of what the model cannot score."""

from collections.abc import Sequence
from typing import Any

from limba.addons.pairs import token_spans
from limba.addons.pairs.pair_formats import PairFormat
from limba.addons.pairs.token_spans import TokenSpans
from limba.tasks.vocabularies import sentencepiece_models


class TextReader:
    """Texts as tokens.

    Attributes:
      ids: the facts about the vocabulary.

    Raises:
      ValueError, FileNotFoundError: if the vocabulary does not fit the format.
    """

    def __init__(self, vocabulary: Any, form: PairFormat):
        if form.special_tokens:
            sentencepiece_models.check_special_tokens(vocabulary, form.special_tokens)
        elif form.needs_sentinels:
            if not sentencepiece_models.num_sentinels(vocabulary):
                raise ValueError(
                    f"{vocabulary!r} has no sentinels (<extra_id_0> …), and texts are scored by blanks. A T5 that "
                    "never learned to fill blanks has no such score; if its tokenizer lost them, take that of its "
                    "pre-training."
                )
            sentencepiece_models.check_vocabulary(vocabulary)
        else:
            sentencepiece_models.check_file(vocabulary)
        self._vocabulary = vocabulary
        self.ids = ids = sentencepiece_models.ids_of(vocabulary)
        around = {ids.eos_id, ids.cls_id, ids.sep_id, ids.mask_id, *ids.frame[0], *ids.frame[1]}
        self._special = {*ids.sentinels(ids.num_sentinels).tolist(), *around}

    def read(self, texts: Sequence[str]) -> list[TokenSpans]:
        """The tokens of texts.

        Raises:
          ValueError: for a special token in a text.
        """
        tokens = token_spans.encode(self._vocabulary, texts)
        if found := [id_ for of_text in tokens for id_ in of_text.ids if id_ in self._special]:
            raise ValueError(f"a sentence has the special token {self._vocabulary.decode(found[:1])!r} in its text")
        return tokens
