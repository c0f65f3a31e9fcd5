"""A run that begins as the bigram of its training texts, in place of random values.

    train_script.train.initial_values_fn = @start_from_counts.StartFromCounts()

A random T5 learns the frequencies of pieces for minutes before it finds what stands beside a blank. Counts of the texts
take seconds. The network is an ordinary T5 1.1 afterwards, or a decoder on its own, and trains on.
"""

import dataclasses
import logging
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
from jax.experimental import multihost_utils

from limba.data.contract import DatasetConfig
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_0, AT_LEAST_1, Range
from limba.network import t5
from limba.network.encoders.config import EncoderConfig
from limba.network.encoders.encoder import MaskedLanguageModel
from limba.training.from_counts import (
    counted_texts,
    encoder_wiring,
    factored_bigram,
    fit_processes,
    kept_parts,
    right_context,
    t5_wiring,
)
from limba.training.from_counts.factored_bigram import BigramCounts
from limba.training.from_counts.span_ends import SpanEnds

PyTree = Any

# Unless the user wants more: of 32,000 pieces it takes a minute or two.
_MOST_RANK = 256

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartFromCounts:
    """Changes the initial parameters of a run that begins without a checkpoint.

    Attributes:
      rank: dims of the factored bigram; None takes those that the width has left beside codes and `right_rank`, and at
        most 256: of 128 dims 76 in a T5, 126 in a decoder, and 50 in a BERT, whose one table has both factors.
      right_rank: dims of the piece behind a blank, for a T5 with an encoder and at least three heads; 0 is a start from
        the piece before alone. None takes a fourth of what the width has left, at most a head's, or 0 without room.
      most_tokens: of the training texts that are counted.
      discount: taken off each count of a pair, between 0 and 1, and given to pieces that follow many others.
      fit_steps: after the decomposition. Of a large vocabulary as many are made as take half a minute on two CPU cores,
        47 of 32,000 pieces and rank 256, and the log says so.
      pointer_bias: with which heads of a T5's encoder look at the left neighbour.
      output_scale: of the random kernels whose products are added to the residual; 0 leaves nothing but the bigram.
      seed: of codes.

    Raises:
      ValueError: for numbers out of range.
    """

    rank: int | None = None
    right_rank: int | None = None
    most_tokens: int = 10_000_000
    discount: float = 0.75
    fit_steps: int = 160
    pointer_bias: float = 7.0
    output_scale: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("most_tokens", AT_LEAST_1), ("fit_steps", AT_LEAST_0), ("seed", AT_LEAST_0)):
            number_ranges.check(f"StartFromCounts.{name}", getattr(self, name), allowed)
        number_ranges.check("StartFromCounts.discount", self.discount, Range(below=1, is_above=True), ", such as 0.75")
        number_ranges.check("StartFromCounts.output_scale", self.output_scale, Range())

    def check(self, model: Any, has_own_stream: bool = True) -> None:
        """Raises ValueError for a model or a stream that cannot begin so, before anything is read.

        Args:
          has_own_stream: whether Limba opens the training's task, whose texts are counted.
        """
        self._check_network(model.module)
        if not has_own_stream:
            raise ValueError(
                "A start from counts reads the texts of the training's task, and train.get_dataset_fn is a function of "
                "your own: leave initial_values_fn out, or register the data as a task."
            )
        if model.input_vocabulary != model.output_vocabulary:
            raise ValueError("A start from counts needs one vocabulary for inputs and targets; the model has two.")

    def _check_network(self, module: Any) -> None:
        config: Any = getattr(module, "config", None)
        if not isinstance(config, t5.T5Config | EncoderConfig):
            problem = f"the network is of a {type(config).__name__}; it is for T5 1.1, its decoders, and encoders"
        elif isinstance(config, EncoderConfig) and not isinstance(module, MaskedLanguageModel):
            problem = f"the network is a {type(module).__name__}; of encoders it is for MaskedLanguageModel"
        else:
            problem = _wiring(config).problem(config)
        if problem:
            raise ValueError(
                f"A start from counts (train.initial_values_fn): {problem}, or bind None, for random values."
            )
        self._check_ranks(config)

    def _check_ranks(self, config: t5.T5Config | EncoderConfig) -> None:
        room = 0 if isinstance(config, EncoderConfig) else right_context.room(config)
        if self.right_rank is not None and not 0 <= self.right_rank <= room:
            raise ValueError(
                f"StartFromCounts.right_rank is {self.right_rank}; this network has room for {room} factors of the "
                "piece behind a blank. A T5 with an encoder and three heads has room for as many as a head (head_dim). "
                "0 leaves that piece out, None takes the usual number."
            )
        most = self._most_rank(config)
        if self.rank is not None and not 1 <= self.rank <= most:
            right_rank = self._right_rank(config)
            beside = f" beside {right_rank} of the piece behind a blank (right_rank)" if right_rank else ""
            raise ValueError(
                f"StartFromCounts.rank is {self.rank}; a width (emb_dim) of {config.emb_dim} has room for 1 to {most}"
                f"{beside}, and None takes all of it, at most {_MOST_RANK}."
            )

    def __call__(self, params: PyTree, model: Any, dataset: DatasetConfig) -> PyTree:
        """The parameters with NumPy arrays, the same on every host.

        Args:
          params: the random ones, whole arrays.
          dataset: of the training.
        """
        self.check(model)
        began = time.monotonic()
        config = model.module.config
        counted = counted_texts.of_training(model, dataset, self.most_tokens, self._right_rank(config) > 0)
        counted_in = time.monotonic() - began
        ends = counted.ends(model.output_vocabulary)
        new = self.from_counts(params, config, counted.counts, counted.behind, ends)
        logger.info(
            "The parameters begin from counts: %d tokens, read in %.0f s, and a bigram of rank %d, fitted in %.0f s.",
            counted.num_tokens,
            counted_in,
            self._rank(config),
            time.monotonic() - began - counted_in,
        )
        # Another processor rounds otherwise.
        return new if jax.process_count() == 1 else multihost_utils.broadcast_one_to_all(new)

    def from_counts(
        self,
        params: PyTree,
        config: Any,
        counts: BigramCounts,
        behind: BigramCounts | None = None,
        ends: SpanEnds | None = None,
    ) -> PyTree:
        """The parameters of a network of this configuration.

        Args:
          behind: pairs of a piece and one that stands shortly before it (`right_context.pairs`), for a start that reads
            the piece behind a blank (`right_rank` is not 0).
          ends: with `behind`, how often spans end; None leaves sentinels and EOS an equal share of each prediction.

        Raises:
          ValueError: for texts without pairs of pieces, and for a vocabulary that the embedding has no rows for.
        """
        if len(counts.unigrams) > config.vocab_size:
            raise ValueError(
                f"The vocabulary has {len(counts.unigrams):,} pieces, and the network's tables (vocab_size) "
                f"{config.vocab_size:,} rows."
            )
        if len(counts.keys) < 2:
            raise ValueError("A start from counts needs text, and the training split has no two pairs of pieces in it.")
        if right_rank := self._right_rank(config):
            assert behind is not None, "right_rank is not 0"
            longest, longest_behind = right_context.longest(config)
            bigram, of_behind = _fitted(
                [self._fit(counts, self._rank(config), longest), self._fit(behind, right_rank, longest_behind)]
            )
            wiring = right_context.Wiring(config, self.pointer_bias, self.output_scale, self.seed)
            return wiring.apply_both(params, bigram, of_behind, ends, behind)
        (bigram,) = _fitted([self._fit(counts, self._rank(config), _wiring(config).longest(config))])
        if isinstance(config, EncoderConfig):
            return encoder_wiring.Wiring(config, self.output_scale, self.seed).apply(params, bigram)
        return t5_wiring.Wiring(config, self.pointer_bias, self.output_scale, self.seed).apply(params, bigram)

    def _fit(self, counts: BigramCounts, rank: int, longest: float) -> fit_processes.Fit:
        steps = factored_bigram.affordable_steps(len(counts.unigrams), rank, self.fit_steps)
        if steps < self.fit_steps:
            logger.warning(
                "A start from counts makes %d of %d steps (StartFromCounts.fit_steps): %d pieces and rank %d are many.",
                steps,
                self.fit_steps,
                len(counts.unigrams),
                rank,
            )
        return fit_processes.Fit(counts, rank, longest, self.discount, steps, self.seed)

    def _rank(self, config: t5.T5Config | EncoderConfig) -> int:
        return self.rank or min(self._most_rank(config), _MOST_RANK)

    def _most_rank(self, config: t5.T5Config | EncoderConfig) -> int:
        right_rank = self._right_rank(config)
        if right_rank and isinstance(config, t5.T5Config):
            return right_context.most_rank(config) - right_rank
        return _wiring(config).most_rank(config)

    def _right_rank(self, config: t5.T5Config | EncoderConfig) -> int:
        if isinstance(config, EncoderConfig):
            return 0
        return right_context.usual_rank(config) if self.right_rank is None else self.right_rank


def _fitted(asked: Sequence[fit_processes.Fit]) -> list[factored_bigram.FactoredBigram]:
    """Their bigrams: kept ones, and those that are made now, each of which is kept as soon as it is there."""
    facts = [{"counts": kept_parts.checksum(fit.counts.arrays()), **fit.settings} for fit in asked]
    kept = [None if fit.is_small else kept_parts.read("bigrams", x) for fit, x in zip(asked, facts, strict=True)]
    found = {i: factored_bigram.FactoredBigram(**x) for i, x in enumerate(kept) if x is not None}
    missing = [i for i in range(len(asked)) if i not in found]
    for i in missing:
        logger.info(
            "A start from counts fits a bigram of rank %d to %s pairs of pieces, in %d steps.",
            asked[i].rank,
            f"{len(asked[i].counts.keys):,}",
            asked[i].steps,
        )
    for number, bigram in fit_processes.make([asked[i] for i in missing]):
        i = missing[number]
        found[i] = bigram
        if not asked[i].is_small:
            kept_parts.write("bigrams", facts[i], bigram.arrays())
    return [found[i] for i in range(len(asked))]


def _wiring(config: t5.T5Config | EncoderConfig) -> ModuleType:
    return encoder_wiring if isinstance(config, EncoderConfig) else t5_wiring
