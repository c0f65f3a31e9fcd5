"""What n-grams of training texts predict of an evaluation's targets."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from limba.data.contract import DatasetConfig
from limba.tasks.ngrams.counts import NgramCounts
from limba.tasks.ngrams.predictors import NgramPredictors, Predicted
from limba.tasks.ngrams.spliced_texts import contexts, splice, text_ids
from limba.tasks.pipeline import corpus_ngrams, task_batches
from limba.tasks.vocabularies import piece_characters, sentencepiece_models


def predict(
    counts: NgramCounts,
    config: DatasetConfig,
    vocabulary: Any,
    feature_converter: Any,
    eval_steps: int | None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, dict[str, float]]]:
    """The metrics of each predictor on the text targets of an evaluation, under the names that the model's have.

    Of an evaluation with more than `NgramPredictors.most_targets`, the first batches that have as many.

    Args:
      counts: of the training texts.
      config: of the evaluation.
      vocabulary, feature_converter: as of `corpus_ngrams.count`.
      eval_steps: batches of each task; None takes all.
      check: called before each batch; it may raise.

    Returns:
      `{task: {"left_bigram": {"nats_per_text_token": 4.9, …}, …}}`, without the tasks that have no text targets.
    """
    ids = sentencepiece_models.ids_of(vocabulary)
    predictors = NgramPredictors(counts, text_ids(ids))
    characters = piece_characters.of_vocabulary(vocabulary)
    sets = task_batches.get_eval_batches(corpus_ngrams.read_once(config, config.batch_size), feature_converter)
    made = {}
    for task, batches in sets.items():
        parts: dict[str, list[Predicted]] = {}
        words: list[np.ndarray] = []
        for batch in itertools.islice(batches, eval_steps):
            check()
            if sum(map(len, words)) >= predictors.most_targets:
                break
            of_batch = contexts(splice(batch, ids))
            words.append(of_batch.words)
            for name, predicted in predictors.predict(of_batch).items():
                parts.setdefault(name, []).append(predicted)
        if sum(map(len, words)):
            made[task] = {name: _metrics(part, words, characters) for name, part in parts.items()}
    return made


def _metrics(
    parts: Sequence[Predicted], words: Sequence[np.ndarray], characters: np.ndarray | None
) -> dict[str, float]:
    nats, rank = (np.concatenate([getattr(part, name) for part in parts]) for name in ("nats", "rank"))
    metrics = {
        "nats_per_text_token": float(nats.mean()),
        "text_accuracy": float(np.mean(rank < 1)),
        "text_top_5_accuracy": float(np.mean(rank < 5)),
    }
    if characters is not None and (total := characters[np.concatenate(words)].sum()):
        metrics["nats_per_character"] = float(nats.sum() / total)
    return metrics
