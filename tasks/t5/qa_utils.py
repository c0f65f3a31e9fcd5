"""Scores of answers to questions, under the names of `t5.evaluation.qa_utils`."""

from collections.abc import Sequence

from limba.tasks.metrics import text_metrics
from limba.tasks.metrics.text_metrics import normalize_squad as normalize_squad
from limba.tasks.metrics.text_metrics import normalize_trivia_qa as normalize_trivia_qa


def qa_metrics(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Exact match (`em`) and F1 of words, in percent: the best over the answers of each question.

    Texts are compared as they are; a language's own rules may have normalized them.
    """
    return text_metrics.best_match(targets, predictions, str)
