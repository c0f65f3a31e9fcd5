"""Minimal pairs scored by n-grams of a corpus: what a model that looks at one or two words before gets right."""

from typing import Any

import numpy as np

from limba.addons.pairs import pair_metrics
from limba.addons.pairs.pairs_tasks import ScorePairs
from limba.tasks.metrics.text_metrics import Metrics
from limba.tasks.ngrams import predictors, spliced_texts
from limba.tasks.ngrams.counts import NgramCounts
from limba.tasks.vocabularies import sentencepiece_models
from limba.tasks.vocabularies.vocabulary import encode_batch

# Those that look to the left, as they score sentences; with short names.
NAMES = {predictors.UNIGRAM: "unigram", predictors.BIGRAM: "bigram", predictors.TRIGRAM: "trigram"}
_LONGEST_CONTEXT = 2


def accuracies(task: Any, split: str, counts: NgramCounts, vocabulary: Any) -> dict[str, Metrics]:
    """The metrics of `pair_metrics.pair_accuracy` by n-grams, for each of `NAMES`.

    The score is the log probability of the whole sentence, in which what both sentences begin or end with is left
    out as far as its probability is the same. So there is no `accuracy_per_token`.

    Args:
      task: of `pairs_tasks.make_pairs_task`.
      counts: of the texts of a corpus, with the ids of the vocabulary.
    """
    (step,) = (step for step in task.preprocessors if isinstance(step, ScorePairs))
    rows = [step.columns_of_rows.read(document) for _, _, document in task.source.numbered_documents(split)]
    texts = [text.encode("utf-8", "replace") for row in rows for text in row[:2]]
    flat, lengths = encode_batch(vocabulary, texts)
    is_text = spliced_texts.text_ids(sentencepiece_models.ids_of(vocabulary))
    sentences = [ids[is_text[ids]] for ids in np.split(flat.astype(np.int64), np.cumsum(lengths)[:-1])]
    contexts, owners = _contexts(sentences)
    predicted = predictors.NgramPredictors(counts, is_text).predict(contexts)
    targets = [
        pair_metrics.ScoredSentence(number, is_right, row[2], 1, "")
        for number, row in enumerate(rows)
        for is_right in (True, False)
    ]
    found = {}
    for name, short in NAMES.items():
        scores = np.zeros(len(sentences))
        if name in predicted:  # Without a token that differs all pairs are ties.
            np.add.at(scores, owners[0], -predicted[name].nats[owners[1]])
        metrics = pair_metrics.pair_accuracy(targets, scores.tolist())
        found[short] = {name: value for name, value in metrics.items() if name != "accuracy_per_token"}
    return found


def _contexts(sentences: list[np.ndarray]) -> tuple[spliced_texts.Contexts, tuple[np.ndarray, np.ndarray]]:
    """Each word to predict once, with the two before it; and the sentence and the word of each that is scored."""
    triples, owners = [], []
    for number in range(0, len(sentences), 2):
        pair = sentences[number : number + 2]
        begin, end = _differing(*pair)
        for i, ids in enumerate(pair):
            padded = np.concatenate([np.full(_LONGEST_CONTEXT, spliced_texts.NONE), ids])
            places = np.arange(begin, len(ids) - end)
            triples.append(np.stack([padded[places], padded[places + 1], padded[places + 2]], axis=1))
            owners.append(np.full(len(places), number + i))
    unique, inverse = np.unique(np.concatenate(triples), axis=0, return_inverse=True)
    nothing = np.full(len(unique), spliced_texts.NONE)
    contexts = spliced_texts.Contexts(unique[:, 2], unique[:, 1], unique[:, 0], nothing, np.zeros_like(nothing))
    return contexts, (np.concatenate(owners), inverse.reshape(-1))


def _differing(right: np.ndarray, wrong: np.ndarray) -> tuple[int, int]:
    """How many tokens at the beginning, and at the end, have the same probability in both sentences."""
    most = min(len(right), len(wrong))
    begin = next((i for i in range(most) if right[i] != wrong[i]), most)
    most -= begin
    end = next((i for i in range(most) if right[-1 - i] != wrong[-1 - i]), most)
    return begin, max(end - _LONGEST_CONTEXT, 0)
