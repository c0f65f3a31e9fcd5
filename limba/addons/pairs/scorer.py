"""Scores of many texts on the mesh: rows of like length together, with a bar.

Rows that follow each other with the same inputs, such as those of the two sentences of a pair, are read once: the
encoder's work is done for both.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from limba.addons.pairs.scored_rows import ScoredRow
from limba.data.contract import Batch
from limba.devices import out_of_memory
from limba.inference import batch_inference, embedding
from limba.models import BaseTransformerModel, losses
from limba.partitioning.meshes import PjitPartitioner
from limba.tasks.pipeline import converters

# Up to a length rows are padded to the next multiple of the number behind it, so that little is padding.
_STEPS = ((4, 1), (64, 8), (256, 32), (1024, 128))
# Batches of a length that have to be there before it is compiled, which takes as long as many batches. Rows that are
# left are padded to the next power of two.
_WORTH_COMPILING = 8
# Rows with the same inputs that are read together.
_MOST_TARGETS = 2

# The numbers of texts and their rows, which have the same inputs.
_Bundle = list[tuple[int, ScoredRow]]


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
    """Log probabilities of texts whose rows `limba.addons.pairs.scored_rows` makes, in float32.

    Args:
      batch_size: inputs at a time; rounded up to a multiple that the mesh divides.
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
        # Another program then has the same scores; in bfloat16 that of a sentence differs by a quarter of a nat.
        self._model = embedding.in_dtype(model, "float32")
        self._convert = converters.CONVERTERS[converters.name_of(model.FEATURE_CONVERTER_CLS)]
        self._batch_size = -(-batch_size // partitioner.num_data_shards) * partitioner.num_data_shards
        self._longest = longest
        self._finds_ranks = finds_ranks
        self._infer = batch_inference.make_infer_fn(self._step, self._batch_size, partitioner)

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
        owners: list[list[int]] = []
        self._longest_text, self._longest_seen = 0, 0
        tokens = np.zeros(num_texts, np.int64)
        hidden = jax.process_index() != 0 or num_texts <= self._batch_size or None
        with tqdm(texts, "score", num_texts, unit=unit, disable=hidden) as bar:
            batches = self._batches(self._bundles(bar, tokens, name_text), owners)
            try:
                found = self._infer(params, batches, None, lambda number: f"{name_text(owners[number][0])},")
            except Exception as error:
                if not out_of_memory.is_cause(error):
                    raise
                raise ValueError(
                    f"Memory is short: the longest text so far, {name_text(self._longest_text)}, has rows of "
                    f"{self._longest_seen:,} tokens, of which {self._batch_size} are computed together. Split it, "
                    f"leave it out, or take a smaller batch_size. {type(error).__name__}."
                ) from error
        of_rows, aux = batch_inference.split_aux(found)
        counts = np.fromiter(map(len, owners), np.int64, len(owners))
        is_row = np.arange(_MOST_TARGETS) < counts[:, None]
        texts_of_rows = np.fromiter(itertools.chain.from_iterable(owners), np.int64, counts.sum())
        scores = np.bincount(texts_of_rows, weights=np.asarray(of_rows, np.float64)[is_row], minlength=num_texts)
        if not self._finds_ranks:
            return Scores(scores, tokens, None)
        ranks = np.ones(num_texts, np.int64)
        np.maximum.at(ranks, texts_of_rows, np.asarray(aux["rank"], np.int64)[is_row])
        return Scores(scores, tokens, ranks)

    def _step(self, params: Any, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The scores of the rows of each bundle, `[batch, _MOST_TARGETS]`, and the worst ranks of scored tokens."""
        targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
        is_alone = targets.ndim == 2
        if is_alone and not self._finds_ranks:
            return _filled(self._model.score_batch(params, batch)[:, None]), {}
        logits = self._model.logits(params, batch) if is_alone else self._model.logits_of_targets(params, batch)
        scores = jnp.sum(losses.weighted_log_probabilities(logits, targets, weights), axis=-1)
        if not self._finds_ranks:
            return scores, {}
        own = jnp.take_along_axis(logits, targets[..., None], axis=-1)
        ranks = jnp.max(jnp.where(weights > 0, 1 + jnp.sum(logits > own, axis=-1), 1), axis=-1)
        if is_alone:
            scores, ranks = _filled(scores[:, None]), _filled(ranks[:, None])
        return scores, {"rank": ranks}

    def _bundles(self, texts: Iterable[Iterable[ScoredRow]], tokens: np.ndarray, name_text: Any) -> Iterator[_Bundle]:
        """The rows of texts; those that follow each other with the same inputs are together."""
        bundle: _Bundle = []
        for number, rows in enumerate(texts):
            for row in rows:
                length = max(len(row.inputs), len(row.targets))
                if length > self._longest_seen:
                    self._longest_text, self._longest_seen = number, length
                tokens[number] += sum(row.weights)
                is_full = len(bundle) == _MOST_TARGETS
                if bundle and (is_full or not row.inputs or row.inputs != bundle[0][1].inputs):
                    yield bundle
                    bundle = []
                bundle.append((number, row))
            if not tokens[number]:
                raise ValueError(f"{name_text(number)} has no token to score: leave it out.")
        if bundle:
            yield bundle

    def _batches(self, bundles: Iterable[_Bundle], owners: list[list[int]]) -> Iterator[tuple[np.ndarray, Batch]]:
        """Numbers of bundles, and the features of these, as soon as enough of a length are there; the others last."""
        size, enough = self._batch_size, self._batch_size * _WORTH_COMPILING
        waiting: dict[tuple[int, int, int], list[tuple[int, _Bundle]]] = {}
        for bundle in bundles:
            inputs, targets = (padded_length(length, self._longest) for length in _lengths(bundle))
            group = waiting.setdefault((len(bundle), inputs, targets), [])
            group.append((len(owners), bundle))
            owners.append([number for number, _ in bundle])
            if len(group) == enough:
                full = waiting.pop((len(bundle), inputs, targets))
                yield from (self._batch(full[i : i + size], inputs, targets) for i in range(0, enough, size))
        for count in range(1, _MOST_TARGETS + 1):
            left = [one for key, group in sorted(waiting.items()) if key[0] == count for one in group]
            for start in range(0, len(left), size):
                group = left[start : start + size]
                longest = (max(_lengths(bundle)[part] for _, bundle in group) for part in (0, 1))
                yield self._batch(group, *(_padded_roughly(length, self._longest) for length in longest))

    def _batch(
        self, group: Sequence[tuple[int, _Bundle]], inputs_length: int, targets_length: int
    ) -> tuple[np.ndarray, Batch]:
        """The features of bundles with equally many rows, of several rows with targets `[batch, rows, length]`."""
        count = len(group[0][1])
        rows = [row for _, bundle in group for _, row in bundle]
        columns = {"targets": [row.targets for row in rows]}
        if inputs_length:
            columns["inputs"] = [row.inputs for row in rows]
        if rows[0].positions:
            columns["target_positions"] = [row.positions for row in rows]
        lengths = {"inputs": inputs_length}
        padded = {name: _padded(x, lengths.get(name, targets_length)) for name, x in columns.items()}
        batch = self._convert(padded, False)
        batch["decoder_loss_weights"] = _padded([row.weights for row in rows], targets_length)
        if count > 1:
            batch = {
                name: x[::count] if name.startswith("encoder_") else x.reshape(-1, count, *x.shape[1:])
                for name, x in batch.items()
            }
        return np.array([number for number, _ in group], np.int32), batch


def _lengths(bundle: _Bundle) -> tuple[int, int]:
    """Of the inputs, and of the longest targets."""
    return len(bundle[0][1].inputs), max(len(row.targets) for _, row in bundle)


def _filled(x: jax.Array) -> jax.Array:
    """Filled up with 0 to `[batch, _MOST_TARGETS]`."""
    return jnp.pad(x, ((0, 0), (0, _MOST_TARGETS - x.shape[1])))


def _padded(rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Int32 `[rows, length]`, filled up with 0."""
    made = np.zeros((len(rows), length), np.int32)
    for of_row, row in zip(made, rows, strict=True):
        of_row[: len(row)] = row
    return made
