"""What the engines behind the server share: how a text is read, and what an answer is."""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from limba.addons.serve.candidates import Words
from limba.addons.serve.request_fields import RequestError
from limba.data.token_rows import Row
from limba.inference import blanks, text_batches

SHORTEST, _FACTOR = 32, 4
# Of a text, for each token that it may have: what is longer by far is refused before seconds go into its tokens.
_MOST_CHARACTERS = 64


@dataclasses.dataclass(frozen=True)
class Text:
    """A text as the model reads it.

    Attributes:
      line: with the model's blanks.
      row: its tokens.
      length: to which they are padded.
      max_tokens: of the answer; 0 asks for a vector.
      unknown: a sentence about its characters that the vocabulary does not know; "" if it knows all.
      kind: texts of one kind can go into one batch.
      num_candidates: of the words of each blank; 0 asks for none.
      listener: is given the tokens of the answer, from the thread of `run`; its text is ended if it returns True.
    """

    line: str
    row: Row
    length: int
    max_tokens: int = 0
    temperature: float = 0.0
    unknown: str = ""
    kind: Hashable = None
    num_candidates: int = 0
    listener: Callable[[int], bool] | None = None

    @property
    def ids(self) -> list[int]:
        return self.row.ids


@dataclasses.dataclass(frozen=True)
class Reply:
    """An answer, or a vector.

    Attributes:
      num_tokens: of the answer, without EOS; an encoder answers without tokens.
      finish_reason: "stop", or "length" if the answer has no end within its tokens.
      hint: what to write, for a text that the model cannot have been meant to read, and which of its characters the
        vocabulary does not know; "" for others.
      candidates: of each blank of the text, its likeliest words with their probabilities, where they were asked for.
    """

    text: str = ""
    num_tokens: int = 0
    finish_reason: str = "stop"
    vector: np.ndarray | None = None
    hint: str = ""
    candidates: Sequence[Words] = ()


class BaseEngine(abc.ABC):
    """A model that answers texts, and gives their vectors.

    Attributes:
      decodes: whether answers are sequences.
      max_input_tokens: longer texts are refused.
      has_blanks: whether `___` is a blank.
      texts: how the model reads lines that it answers.
    """

    decodes: bool
    max_input_tokens: int
    has_blanks: bool
    input_vocabulary: Any
    output_vocabulary: Any
    texts: text_batches.TextBatches
    # Whether all rows of a batch are sampled at one temperature.
    has_one_temperature = False
    # Whether it gives the likeliest words of blanks.
    has_candidates = False

    @abc.abstractmethod
    def warm_up(self) -> None:
        """Does what would make the first answers slow."""

    @abc.abstractmethod
    def run(self, texts: Sequence[Text]) -> Sequence[Reply | Exception]:
        """The replies to texts of one kind, at most `max_batch`; of one that has no finite answer, the error."""

    def read(self, text: str, max_tokens: int = 0, temperature: float = 0.0, num_candidates: int = 0) -> Text:
        """A text with its tokens; see `Text`.

        Raises:
          RequestError: 413 if it is too long, 422 if the model cannot answer it.
        """
        if len(text) > (most := _MOST_CHARACTERS * self.max_input_tokens):
            raise RequestError(
                413, f"A text has {len(text):,} characters; at most {most:,} are taken: make it shorter."
            )
        try:
            text.encode()
            line = blanks.typed(text) if self.has_blanks and max_tokens else text
            row = self._encode(line, bool(max_tokens))
        except UnicodeEncodeError as error:
            raise RequestError(422, f"A text is not UTF-8 ({error.reason}); write it again.") from None
        except ValueError as error:
            raise RequestError(422, str(error)) from None
        if row.length > self.max_input_tokens:
            raise RequestError(
                413, f"A text has {row.length} tokens; at most {self.max_input_tokens} are taken: make it shorter."
            )
        if temperature and not self.decodes:
            raise RequestError(
                422, f"temperature is {temperature}; this model is an encoder, which answers at once: leave it out."
            )
        if num_candidates and not self.has_candidates:
            raise RequestError(
                422,
                f"candidates is {num_candidates}; CTranslate2 gives them, for T5s that fill blanks, and this server's "
                "engine does not: leave it out.",
            )
        length = next(x for x in sizes(SHORTEST, self.max_input_tokens) if x >= row.length)
        kind = (bool(max_tokens), length, temperature if self.has_one_temperature else None)
        unknown = text_batches.find_unknown(self.input_vocabulary, [line])
        return Text(line, row, length, max_tokens, temperature, unknown, kind, num_candidates)

    def _encode(self, line: str, is_answered: bool) -> Row:
        """The row of a line. Raises ValueError if the model cannot answer it."""
        return self.texts.encode(line) if is_answered else text_batches.row_of(self.input_vocabulary, line)

    def reply(self, text: Text, row: np.ndarray) -> Reply:
        """The reply of the tokens that were predicted for a text."""
        prediction, answer = self.texts.answer(text.line, row)
        filled = blanks.shown(answer)
        if not self.decodes:
            return Reply(filled, hint=text.unknown)
        hint = blanks.hint(text.line, prediction) if self.has_blanks else ""
        hint = " ".join(filter(None, (hint, text.unknown)))
        ends = (0, self.output_vocabulary.eos_id or 1)
        count = sum(1 for _ in itertools.takewhile(lambda token: token not in ends, row.tolist()))
        return Reply(filled, count, "length" if count >= text.max_tokens else "stop", hint=hint)

    def partial(self, text: Text, ids: list[int]) -> str:
        """The answer so far; "" for a text with blanks, of which a later token may fill the first once more."""
        return "" if blanks.has_blanks(text.line) else self.reply(text, np.array(ids, np.int32)).text


def sizes(first: int, last: int) -> list[int]:
    """`first` times 1, 4, 16 … below `last`, and `last`: batches are padded to these, so that few are compiled."""
    powers = itertools.takewhile(lambda size: size < last, (first * _FACTOR**power for power in itertools.count()))
    return [*powers, last]
