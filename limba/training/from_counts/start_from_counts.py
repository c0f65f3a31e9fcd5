"""A run that begins as the bigram of its training texts, in place of random values.

    train_script.train.initial_values_fn = @start_from_counts.StartFromCounts()

A random T5 learns the frequencies of pieces for minutes before it finds what stands beside a blank. Counts of the texts
take seconds. The network is an ordinary T5 1.1 afterwards, or a decoder on its own, and trains on.
"""

import dataclasses
import logging
import time
from typing import Any

import jax
from jax.experimental import multihost_utils

from limba.data.contract import DatasetConfig
from limba.inference import tasks_door
from limba.training.from_counts import factored_bigram, t5_wiring

PyTree = Any

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartFromCounts:
    """Changes the initial parameters of a run that begins without a checkpoint.

    Attributes:
      rank: dims of the factored bigram; None takes those that the width has left beside codes of sentinels, 102 of 128,
        and at most 256.
      most_tokens: of the training texts that are counted.
      discount: taken off each count of a pair, between 0 and 1, and given to pieces that follow many others.
      fit_steps: after the decomposition. Of a large vocabulary as many are made as take half a minute on two CPU cores,
        47 of 32,000 pieces and rank 256, and the log says so.
      pointer_bias: with which heads of the encoder look at the left neighbour.
      output_scale: of the random kernels whose products are added to the residual; 0 leaves nothing but the bigram.
      seed: of the codes of sentinels.

    Raises:
      ValueError: for numbers out of range.
    """

    rank: int | None = None
    most_tokens: int = 10_000_000
    discount: float = 0.75
    fit_steps: int = 160
    pointer_bias: float = 7.0
    output_scale: float = 0.2
    seed: int = 0

    def __post_init__(self):
        for name, least in (("most_tokens", 1), ("fit_steps", 0), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"StartFromCounts.{name} is {value!r}; it is a whole number of at least {least}.")
        if not 0 < self.discount < 1:
            raise ValueError(f"StartFromCounts.discount is {self.discount!r}; it lies between 0 and 1, such as 0.75.")
        if not self.output_scale >= 0:
            raise ValueError(f"StartFromCounts.output_scale is {self.output_scale!r}; it is at least 0.")

    def check(self, model: Any, has_own_stream: bool = True) -> None:
        """Raises ValueError for a model or a stream that cannot begin so, before anything is read.

        Args:
          has_own_stream: whether Limba opens the training's task, whose texts are counted.
        """
        config: Any = getattr(model.module, "config", None)
        t5_wiring.check(config)
        t5_wiring.room(config, self.rank)
        if not has_own_stream:
            raise ValueError(
                "A start from counts reads the texts of the training's task, and train.get_dataset_fn is a function of "
                "your own: leave initial_values_fn out, or register the data as a task."
            )
        if model.input_vocabulary != model.output_vocabulary:
            raise ValueError("A start from counts needs one vocabulary for inputs and targets; the model has two.")

    def __call__(self, params: PyTree, model: Any, dataset: DatasetConfig) -> PyTree:
        """The parameters with NumPy arrays, the same on every host.

        Args:
          params: the random ones, whole arrays.
          dataset: of the training.
        """
        self.check(model)
        began = time.monotonic()
        logger.info("A start from counts reads %d tokens of the training texts at most.", self.most_tokens)
        counted = tasks_door.ngrams().count(
            *(dataset, model.output_vocabulary, model.FEATURE_CONVERTER_CLS, self.most_tokens),
            bigrams_only=True,
        )
        counts = factored_bigram.BigramCounts(counted.unigrams, counted.bigrams.keys, counted.bigrams.counts)
        counted_in = time.monotonic() - began
        new = self.from_counts(params, model.module.config, counts)
        logger.info(
            "The parameters begin from counts: %d tokens, read in %.0f s, and a bigram of rank %d, fitted in %.0f s.",
            *(counted.num_tokens, counted_in, t5_wiring.room(model.module.config, self.rank).rank),
            time.monotonic() - began - counted_in,
        )
        # Another processor rounds otherwise.
        return new if jax.process_count() == 1 else multihost_utils.broadcast_one_to_all(new)

    def from_counts(self, params: PyTree, config: Any, counts: factored_bigram.BigramCounts) -> PyTree:
        """The parameters of a network of this configuration.

        Raises:
          ValueError: for texts without pairs of pieces, and for a vocabulary that the embedding has no rows for.
        """
        if len(counts.unigrams) > config.vocab_size:
            raise ValueError(
                f"The vocabulary has {len(counts.unigrams):,} pieces, and the network's tables (T5Config.vocab_size) "
                f"{config.vocab_size:,} rows."
            )
        if len(counts.keys) < 2:
            raise ValueError("A start from counts needs text, and the training split has no two pairs of pieces in it.")
        room = t5_wiring.room(config, self.rank)
        steps = factored_bigram.affordable_steps(len(counts.unigrams), room.rank, self.fit_steps)
        if steps < self.fit_steps:
            logger.warning(
                "A start from counts makes %d of %d steps (StartFromCounts.fit_steps): %d pieces and rank %d are many.",
                *(steps, self.fit_steps, len(counts.unigrams), room.rank),
            )
        logger.info(
            "A start from counts fits a bigram of rank %d to %d pairs of pieces, in %d steps.",
            *(room.rank, len(counts.keys), steps),
        )
        bigram = factored_bigram.fit(counts, room.rank, room.longest, self.discount, steps, self.seed)
        return t5_wiring.Wiring(config, self.pointer_bias, self.output_scale, self.seed).apply(params, bigram)
