"""Counts of the texts of a training, read or as an earlier start has read them."""

import dataclasses
import logging
from typing import Any, Self

import numpy as np

from limba.data import sentinels
from limba.data.contract import DatasetConfig
from limba.training.from_counts import kept_parts, right_context, text_facts
from limba.training.from_counts.factored_bigram import BigramCounts
from limba.training.from_counts.span_ends import SpanEnds

logger = logging.getLogger(__name__)

_COUNTS, _BEHIND = "counts", "behind"


@dataclasses.dataclass(frozen=True)
class CountedTexts:
    """What a start is made of.

    Attributes:
      counts: of pieces, and of pairs of neighbours.
      behind: of a piece and one shortly before it (`right_context.pairs`); None where no piece behind a blank is read.
      targets, firsts: int64 `[vocab]`, how often each id is a target, and the first one of its row.
    """

    counts: BigramCounts
    behind: BigramCounts | None
    targets: np.ndarray
    firsts: np.ndarray

    @property
    def num_tokens(self) -> int:
        return int(self.counts.unigrams.sum())

    def ends(self, vocabulary: Any) -> SpanEnds | None:
        """How often spans end; None for a start that does not read the piece behind a blank."""
        if self.behind is None:
            return None
        return SpanEnds.of(self.targets, self.firsts, sentinels.of_vocabulary(vocabulary), vocabulary.eos_id)

    def arrays(self) -> dict[str, np.ndarray]:
        tables = {_COUNTS: self.counts, **({} if self.behind is None else {_BEHIND: self.behind})}
        of_tables = {f"{name}/{part}": getattr(x, part) for name, x in tables.items() for part in ("keys", "counts")}
        return {"unigrams": self.counts.unigrams, "targets": self.targets, "firsts": self.firsts, **of_tables}

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray]) -> Self:
        unigrams = arrays["unigrams"]
        tables = {
            name: BigramCounts(unigrams, arrays[f"{name}/keys"], arrays[f"{name}/counts"])
            for name in (_COUNTS, _BEHIND)
            if f"{name}/keys" in arrays
        }
        return cls(tables[_COUNTS], tables.get(_BEHIND), arrays["targets"], arrays["firsts"])


def of_training(model: Any, dataset: DatasetConfig, most_tokens: int, has_right: bool) -> CountedTexts:
    """The counts of a training's texts, up to `most_tokens`.

    Args:
      has_right: whether pairs at larger distances are counted, too.

    Raises:
      ValueError, FileNotFoundError: for texts that cannot be read.
    """
    from limba.tasks.pipeline import corpus_ngrams

    of_texts = text_facts.of_split(dataset, model.FEATURE_CONVERTER_CLS)
    facts = {"texts": of_texts, "most_tokens": most_tokens, "has_right": has_right}
    if of_texts is not None and (kept := kept_parts.read("counts", facts)) is not None:
        return CountedTexts.of_arrays(kept)
    logger.info("A start from counts reads %s tokens of the training texts at most.", f"{most_tokens:,}")
    counted = corpus_ngrams.count(
        config=dataset,
        vocabulary=model.output_vocabulary,
        feature_converter=model.FEATURE_CONVERTER_CLS,
        most_tokens=most_tokens,
        trigrams=False,
        before=has_right,
    )
    counts = BigramCounts(counted.unigrams, counted.bigrams.keys, counted.bigrams.counts)
    behind = right_context.pairs(counted.unigrams, counted.before) if has_right else None
    made = CountedTexts(counts, behind, counted.targets, counted.firsts)
    if of_texts is not None:
        kept_parts.write("counts", facts, made.arrays())
    return made
