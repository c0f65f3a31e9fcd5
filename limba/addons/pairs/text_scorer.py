"""Scores of texts that stand alone, and of texts after a context, by a model in memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from limba.addons.pairs import model_forms, pair_formats, scored_rows
from limba.addons.pairs.scored_rows import ScoredRow
from limba.addons.pairs.scorer import Scorer
from limba.addons.pairs.text_reader import TextReader
from limba.addons.pairs.token_spans import TokenSpans
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner

_TEXTS_AT_ONCE = 1024


class TextScore(NamedTuple):
    """A score.

    Attributes:
      score: the log probability, in nats.
      num_tokens: how many tokens it is the sum over, ends of blanks and EOS among them.
      is_likeliest: whether each of these is the likeliest of its place; False if that was not asked for.
    """

    score: float
    num_tokens: int
    is_likeliest: bool = False


class WordScores(NamedTuple):
    """Of texts, word by word.

    Attributes:
      scores: of the kind "whole", float64 `[texts]`.
      owners: the number of the text of each word, int64 `[words]`.
      ranks: of each word, int64 `[words]`: the worst rank that one of its tokens, or its end, has in its blank. None of
        a decoder, which has no blanks.
    """

    scores: np.ndarray
    owners: np.ndarray
    ranks: np.ndarray | None


class TextScorer:
    """A model that scores texts.

    Args:
      params: of the network, on the mesh.
      mode: text in front of the inputs of an encoder-decoder, such as UL2's "[NLU]".
      batch_size: rows at a time.
      finds_ranks: whether to look for the ranks of tokens among all others, too.

    Attributes:
      name_text: the name of a text for messages, by its number from 0; may be set.

    Raises:
      ValueError: for a model that gives words no probability, and for a vocabulary that does not fit it.
    """

    name_text: Callable[[int], str] = "text {}".format

    def __init__(
        self,
        model: BaseTransformerModel,
        partitioner: PjitPartitioner,
        params: Any,
        mode: str = "",
        batch_size: int = 32,
        finds_ranks: bool = False,
    ):
        self._form = model_forms.form_of(model)
        vocabulary: Any = model.input_vocabulary
        self._reader = TextReader(vocabulary, getattr(pair_formats, self._form)())
        if mode and self._form != "FilledBlanks":
            raise ValueError(f"The mode {mode!r} is for models with sentinels, and this model has none: leave it out.")
        tokens = list(vocabulary.encode(mode)) if mode else []
        self._maker = scored_rows.row_maker(self._form, self._reader.ids, tokens)
        self._longest = model_forms.longest_row(model)
        self._scorer = Scorer(model, partitioner, batch_size, self._longest, finds_ranks)
        self._params = params

    def score(self, texts: Sequence[str], kind: str = "whole") -> list[TextScore]:
        """The scores of whole texts, of the kind "whole" or "pieces" (`limba.addons.pairs.scored_rows`).

        Raises:
          ValueError: for another kind; for a text with a special token, without a token, or longer than the network
            reads.
          NotFiniteError: for a score that is not finite.
        """
        scored_rows.check_kind(kind, self._form)
        if kind not in ("whole", "pieces"):
            raise ValueError(f"A text alone has no score of the kind {kind!r}: take 'whole' or 'pieces'.")
        tokens = self._read(texts)
        rows = (scored_rows.of_text(self._maker, kind, *one) for one in zip(texts, tokens, strict=True))
        return self._run(rows, len(texts))

    def score_words(self, texts: Sequence[str]) -> WordScores:
        """The scores of whole texts with the ranks of their words, of a scorer with `finds_ranks`.

        A rank of 1 says that greedy decoding writes the word into its blank. An encoder is told the number of its
        pieces by the masks.

        Raises:
          ValueError, NotFiniteError: as `score`.
        """
        tokens = list(self._read(texts))
        has_blanks = self._form != "WholeSentences"
        counts = [len(scored_rows.word_groups(*one)) if has_blanks else 1 for one in zip(texts, tokens, strict=True)]
        if 0 in counts:
            raise ValueError(f"{self.name_text(counts.index(0))} has no token to score: leave it out.")
        owners = np.repeat(np.arange(len(texts)), counts)
        rows = (word for one in zip(texts, tokens, strict=True) for word in self._maker.by_word(*one))
        names = lambda word: self.name_text(int(owners[word]))  # noqa: E731
        found = self._scorer.score(self._params, rows, len(owners), names, "word" if has_blanks else "text")
        assert found.ranks is not None, "made with finds_ranks"
        scores = np.bincount(owners, weights=found.scores, minlength=len(texts))
        return WordScores(scores, owners, found.ranks if has_blanks else None)

    def continuations(self, contexts: Sequence[str], texts: Sequence[str], ends: bool = True) -> list[TextScore]:
        """The scores of texts, each behind its context; what is between them, such as a blank, is part of one of them.

        Args:
          ends: whether the text ends there, and its end is scored; an encoder reads its special tokens in any case.

        Raises:
          ValueError, NotFiniteError: as `score`.
        """
        joined = [context + text for context, text in zip(contexts, texts, strict=True)]
        begins = map(len, contexts)
        rows = (
            self._maker.continuation(tokens, scored_rows.context_length(tokens, begin), ends)
            for tokens, begin in zip(self._read(joined), begins, strict=True)
        )
        return self._run(rows, len(texts))

    def _run(self, rows: Iterable[Iterable[ScoredRow]], count: int) -> list[TextScore]:
        scores, tokens, ranks = self._scorer.score(self._params, rows, count, self.name_text)
        are_likeliest = [False] * count if ranks is None else (ranks == 1).tolist()
        return [TextScore(*one) for one in zip(scores.tolist(), tokens.tolist(), are_likeliest, strict=True)]

    def _read(self, texts: Sequence[str]) -> Iterator[TokenSpans]:
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            part = texts[first : first + _TEXTS_AT_ONCE]
            try:
                read = self._reader.read(part)
            except ValueError:  # One by one, so that the message names the text.
                read = [self._read_one(first + i, text) for i, text in enumerate(part)]
            for number, tokens in enumerate(read, first):
                self._check_length(number, tokens)
                yield tokens

    def _read_one(self, number: int, text: str) -> TokenSpans:
        try:
            return self._reader.read([text])[0]
        except ValueError as error:
            raise ValueError(
                f"{self.name_text(number)} cannot be scored: {error}. Correct it, or leave it out."
            ) from error

    def _check_length(self, number: int, tokens: TokenSpans) -> None:
        frame = self._reader.ids.frame if self._form == "MaskedWords" else ((), ())
        length = len(tokens.ids) + sum(map(len, frame))
        if self._longest is not None and length > self._longest:
            raise ValueError(
                f"{self.name_text(number)} has {length:,} tokens, and the model reads at most {self._longest:,}: texts "
                "are not cut. Split it, or leave it out."
            )
