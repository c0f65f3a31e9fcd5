"""ROUGE-L of answers that have several right ones, as benchmarks of instructions report it."""

from collections.abc import Sequence

from limba.tasks.metrics import metric_packages, rouge_words, text_metrics
from limba.tasks.metrics.text_metrics import Metrics


@metric_packages.needs("rouge_score")
def rouge_of_references(targets: Sequence[Sequence[str] | str], predictions: Sequence[str]) -> Metrics:
    """Mean ROUGE-L F of stemmed words by rouge-score, in percent. A target is a list of references, or the only one.

    `rougeL` takes the best reference of each prediction, as Super-NaturalInstructions does (arXiv:2204.07705);
    `rougeL_one_reference` the first, which is the one that the model learns. Where most letters are not Latin, words
    are those of `rouge_words.UnicodeWords`, without a stemmer.
    """
    text_metrics.check_texts(targets, predictions)
    references = [[target] if isinstance(target, str) else list(target) for target in targets]
    tokenizer = rouge_words.tokenizer_for([text for of_target in references for text in of_target])
    scorer = metric_packages.optional("rouge_score.rouge_scorer").RougeScorer(["rougeL"], True, tokenizer=tokenizer)
    best, first = 0.0, 0.0
    for of_target, prediction in zip(references, predictions, strict=True):
        scores = [scorer.score(reference, prediction)["rougeL"].fmeasure for reference in of_target]
        best, first = best + max(scores), first + scores[0]
    return {"rougeL": 100 * best / len(targets), "rougeL_one_reference": 100 * first / len(targets)}
