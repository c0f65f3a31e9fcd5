"""Scores of many texts on the mesh: rows of like length together, with a bar."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from limba.addons.pairs.scored_rows import ScoredRow
from limba.data.contract import Batch
from limba.devices import out_of_memory
from limba.inference import batch_inference
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner
from limba.tasks.pipeline import converters

# Up to a length rows are padded to the next multiple of the number behind it, so that little is padding.
_STEPS = ((4, 1), (64, 8), (256, 32), (1024, 128))
# Batches of a length that have to be there before it is compiled, which takes as long as many batches. Rows that are
# left are padded to the next power of two.
_WORTH_COMPILING = 8


def padded_length(length: int, longest: int | None = None) -> int:
    """The length that a row is padded to; at most `longest`, the positions of the network."""
    step = next((step for most, step in _STEPS if length <= most), 512)
    rounded = -(-length // step) * step
    return rounded if longest is None else max(min(rounded, longest), length)


def _padded_roughly(length: int, longest: int | None) -> int:
    """The length that a row of a rare length is padded to: the next power of two, at most `longest`."""
    rounded = 1 << max(length - 1, 0).bit_length() if length else 0
    return rounded if longest is None else max(min(rounded, longest), length)


class Scores(NamedTuple):
    """Of texts.

    Attributes:
      scores: log probabilities, float64 `[texts]`.
      num_tokens: how many tokens are scored, int64 `[texts]`.
      ranks: the worst place that a scored token has among all tokens by probability, from 1, int64 `[texts]`: 1 if each
        is the likeliest; None if not asked for.
    """

    scores: np.ndarray
    num_tokens: np.ndarray
    ranks: np.ndarray | None


class Scorer:
    """Log probabilities of texts whose rows `limba.addons.pairs.scored_rows` makes.

    Args:
      batch_size: rows at a time; rounded up to a multiple that the mesh divides.
      longest: tokens that the network has positions for; None is no limit.
      finds_ranks: whether to compute the ranks, too.
    """

    def __init__(
        self,
        model: BaseTransformerModel,
        partitioner: PjitPartitioner,
        batch_size: int = 32,
        longest: int | None = None,
        finds_ranks: bool = False,
    ):
        self._model = model
        self._convert = converters.CONVERTERS[converters.name_of(model.FEATURE_CONVERTER_CLS)]
        self._batch_size = -(-batch_size // partitioner.num_data_shards) * partitioner.num_data_shards
        self._longest = longest
        self._finds_ranks = finds_ranks
        step = self._ranks_step if finds_ranks else model.score_batch
        self._infer = batch_inference.make_infer_fn(step, self._batch_size, partitioner)

    def score(
        self,
        params: Any,
        texts: Iterable[Iterable[ScoredRow]],
        num_texts: int,
        name_text: Callable[[int], str] = "text {}".format,
        unit: str = "text",
    ) -> Scores:
        """The scores of texts.

        Args:
          texts: the rows of each; they are made while the model computes, and not kept.
          num_texts: how many there are; at least 1.
          name_text: the name of a text by its number from 0, for messages.

        Raises:
          ValueError: for a text without a row; if memory is short, with the longest text so far.
          NotFiniteError: for a score that is not finite.
        """
        owners: list[int] = []
        self._longest_text, self._longest_seen = 0, 0
        tokens = np.zeros(num_texts, np.int64)
        hidden = jax.process_index() != 0 or num_texts <= self._batch_size or None
        with tqdm(texts, "score", num_texts, unit=unit, disable=hidden) as bar:
            batches = self._batches(bar, owners, tokens, name_text)
            try:
                found = self._infer(params, batches, None, lambda row: f"{name_text(owners[row])},")
            except Exception as error:
                if not out_of_memory.is_cause(error):
                    raise
                raise ValueError(
                    f"Memory is short: the longest text so far, {name_text(self._longest_text)}, has rows of "
                    f"{self._longest_seen:,} tokens, of which {self._batch_size} are computed together. Split it, "
                    f"leave it out, or take a smaller batch_size. {type(error).__name__}."
                ) from error
        of_rows, aux = batch_inference.split_aux(found)
        scores = np.bincount(owners, weights=np.asarray(of_rows, np.float64), minlength=num_texts)
        if not self._finds_ranks:
            return Scores(scores, tokens, None)
        ranks = np.ones(num_texts, np.int64)
        np.maximum.at(ranks, owners, np.asarray(aux["rank"], np.int64))
        return Scores(scores, tokens, ranks)

    def _ranks_step(self, params: Any, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The score of each row, and the worst rank of its scored tokens."""
        logits = self._model.logits(params, batch)
        own = jnp.take_along_axis(logits, batch["decoder_target_tokens"][..., None], axis=-1)
        ranks = jnp.where(batch["decoder_loss_weights"] > 0, 1 + jnp.sum(logits > own, axis=-1), 1)
        return self._model.score_batch(params, batch), {"rank": jnp.max(ranks, axis=-1)}

    def _batches(
        self, texts: Iterable[Iterable[ScoredRow]], owners: list[int], tokens: np.ndarray, name_text: Any
    ) -> Iterator[tuple[np.ndarray, Batch]]:
        """Numbers of rows, and the features of these, as soon as enough rows of a length are there; the others last."""
        size, enough = self._batch_size, self._batch_size * _WORTH_COMPILING
        waiting: dict[tuple[int, int], list[tuple[int, ScoredRow]]] = {}
        for number, rows in enumerate(texts):
            for row in rows:
                lengths = padded_length(len(row.inputs), self._longest), padded_length(len(row.targets), self._longest)
                group = waiting.setdefault(lengths, [])
                group.append((len(owners), row))
                owners.append(number)
                length = max(len(row.inputs), len(row.targets))
                if length > self._longest_seen:
                    self._longest_text, self._longest_seen = number, length
                tokens[number] += sum(row.weights)
                if len(group) == enough:
                    full = waiting.pop(lengths)
                    yield from (self._batch(full[i : i + size], *lengths) for i in range(0, enough, size))
            if not tokens[number]:
                raise ValueError(f"{name_text(number)} has no token to score: leave it out.")
        left = [row for _, group in sorted(waiting.items()) for row in group]
        for start in range(0, len(left), size):
            group = left[start : start + size]
            longest = (max(len(row[part]) for _, row in group) for part in (0, 1))  # inputs, targets
            yield self._batch(group, *(_padded_roughly(length, self._longest) for length in longest))

    def _batch(
        self, group: Sequence[tuple[int, ScoredRow]], inputs_length: int, targets_length: int
    ) -> tuple[np.ndarray, Batch]:
        numbers, rows = zip(*group, strict=True)
        columns = {"targets": [row.targets for row in rows]}
        if inputs_length:
            columns["inputs"] = [row.inputs for row in rows]
        if rows[0].positions:
            columns["target_positions"] = [row.positions for row in rows]
        lengths = {"inputs": inputs_length}
        padded = {name: _padded(x, lengths.get(name, targets_length)) for name, x in columns.items()}
        batch = self._convert(padded, False)
        weights = _padded([row.weights for row in rows], targets_length)
        return np.array(numbers, np.int32), {**batch, "decoder_loss_weights": weights}


def _padded(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Int32 `[rows, length]`, filled up with 0."""
    made = np.zeros((len(rows), length), np.int32)
    for of_row, row in zip(made, rows, strict=True):
        of_row[: len(row)] = row
    return made
