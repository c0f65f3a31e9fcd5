"""Metrics of text tasks, under the names and with the scales of T5's `t5.evaluation.metrics`.

Each takes the targets and the predictions of all examples and returns `{name: value}`; shares are in percent. BLEU and
ROUGE are sacrebleu's and rouge-score's (`pip install 'limba[metrics]'`), imported when they are used. A value is never
NaN: an undefined one is 0 as in scikit-learn, or left out, with a warning that has the reason.
"""

import collections
import logging
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from limba.tasks.metrics import metric_packages, rouge_words

Metrics = dict[str, float]
MetricFn = Callable[[Sequence[Any], Sequence[Any]], Metrics]

logger = logging.getLogger(__name__)

# Labels whose scores are given one by one.
_MOST_LABELS = 20


def check_lengths(targets: Sequence[Any], predictions: Sequence[Any]) -> None:
    if len(targets) != len(predictions):
        raise ValueError(f"There are {len(targets)} targets and {len(predictions)} predictions; each needs its other.")
    if not len(targets):
        raise ValueError("There are no targets and predictions to measure: the split is empty.")


def are_finite(metric: str, **numbers: Sequence[float]) -> bool:
    """Whether all are finite numbers; a warning names those that are not."""
    for name, values in numbers.items():
        if num_wrong := int(np.count_nonzero(~np.isfinite(np.asarray(values, float)))):
            logger.warning(
                "%s is undefined and left out: %d of %d %s are NaN or infinite.", metric, num_wrong, len(values), name
            )
            return False
    return True


def check_texts(targets: Sequence[Any], predictions: Sequence[str]) -> None:
    """`check_lengths`; also warns of empty predictions, which metrics of texts cannot tell from wrong ones."""
    check_lengths(targets, predictions)
    if num_empty := sum(not text.strip() for text in predictions):
        logger.warning("%d of %d predictions are empty.", num_empty, len(predictions))


# ------------------------------------------------------- generated text -----------------------------------------------


@metric_packages.needs("sacrebleu")
def bleu(targets: Sequence[str | Sequence[str]], predictions: Sequence[str], tokenizer: str = "intl") -> Metrics:
    """Corpus BLEU by sacrebleu, smoothed exponentially.

    Targets are a string per example, or T5's layout for several references: one list of strings per reference.
    """
    if not len(targets):
        check_lengths(targets, predictions)
    references = [list(targets)] if isinstance(targets[0], str) else [list(reference) for reference in targets]
    for reference in references:
        check_texts(reference, predictions)
    rouge_words.warn_without_blanks([*map(str, references[0])], tokenizer)
    score = metric_packages.optional("sacrebleu").corpus_bleu(
        list(predictions), references, smooth_method="exp", smooth_value=0.0, force=False, tokenize=tokenizer
    )
    return {"bleu": score.score}


@metric_packages.needs("rouge_score")
def rouge(
    targets: Sequence[str],
    predictions: Sequence[str],
    score_keys: Sequence[str] | None = None,
    tokenizer: Any = None,
    use_stemmer: bool = False,
    lines: Callable[[str], str] = rouge_words.lines_of_t5,
) -> Metrics:
    """ROUGE F by rouge-score: the median that its bootstrap aggregator reports, in percent.

    T5 has no rougeL, which takes a text as one sentence; `lines` puts those of rougeLsum on lines. Where most letters
    of the targets are not Latin, the default tokenizer is `rouge_words.UnicodeWords`, without a stemmer: rouge-score's
    own drops them, and every score would be 0.
    """
    check_texts(targets, predictions)
    tokenizer = tokenizer or rouge_words.tokenizer_for(targets)
    keys = list(score_keys or ("rouge1", "rouge2", "rougeL", "rougeLsum"))
    scorer = metric_packages.optional("rouge_score.rouge_scorer").RougeScorer(keys, use_stemmer, tokenizer=tokenizer)
    aggregator = metric_packages.optional("rouge_score.scoring").BootstrapAggregator()
    for target, prediction in zip(targets, predictions, strict=True):
        aggregator.add_scores(scorer.score(lines(target), lines(prediction)))
    # It draws from NumPy's global generator: the same answers should have the same score.
    before = np.random.get_state()
    np.random.seed(0)
    try:
        scores = aggregator.aggregate()
    finally:
        np.random.set_state(before)
    return {key: 100 * scores[key].mid.fmeasure for key in keys}


# ------------------------------------------------------ question answering --------------------------------------------


def squad(targets: Sequence[Sequence[str] | str], predictions: Sequence[str]) -> Metrics:
    """SQuAD's exact match and token F1, the best over the answers of each question; a text is its only answer."""
    return best_match(targets, predictions, normalize_squad)


def squad_v2(targets: Sequence[Sequence[str] | str], predictions: Sequence[str]) -> Metrics:
    """SQuAD 2's exact match and token F1, under the names of its script: of all questions, and of those with an answer
    (`HasAns_exact`, `HasAns_f1`) and without one (`NoAns_…`), for which the empty prediction is right.
    """
    check_texts(targets, predictions)
    scores: dict[str, list[tuple[float, float]]] = {"": [], "HasAns_": [], "NoAns_": []}
    for answers, prediction in zip(targets, predictions, strict=True):
        given = normalize_squad(prediction)
        answers = _listed(answers)
        wanted = [answer for answer in map(normalize_squad, answers) if answer]
        found = [(float(given == answer), _token_f1(answer.split(), given.split())) for answer in wanted]
        if not found:
            found = [(float(not given), float(not given))]
        best = max(exact for exact, _ in found), max(f1 for _, f1 in found)
        for group in ("", "HasAns_" if any(answers) else "NoAns_"):
            scores[group].append(best)
    return {
        f"{group}{name}": 100 * float(np.mean([pair[number] for pair in pairs]))
        for group, pairs in scores.items()
        if pairs
        for number, name in enumerate(("exact", "f1"))
    }


def trivia_qa(targets: Sequence[Sequence[str] | str], predictions: Sequence[str]) -> Metrics:
    """TriviaQA's: as SQuAD's, but punctuation separates words."""
    return best_match(targets, predictions, normalize_trivia_qa)


def span_squad(targets: Sequence[Mapping[str, Any]], predictions: Sequence[str]) -> Metrics:
    """SQuAD's scores of predictions such as "start: 3 end: 6", word positions in the context.

    Targets are `{"answers": [...], "context": str}`; a prediction that is not such a span is an empty answer.
    """
    check_lengths(targets, predictions)
    spans = [_words_at(target["context"], prediction) for target, prediction in zip(targets, predictions, strict=True)]
    return squad([target["answers"] for target in targets], spans)


def _words_at(context: str, prediction: str) -> str:
    words, tokens = (re.sub(r"\W", " ", text).split() for text in (context, prediction))
    # `isdigit` also takes superscripts, of which `int` makes no number.
    if len(tokens) < 4 or not all(re.fullmatch(r"\d{1,9}", tokens[i]) for i in (1, 3)):
        return ""
    return " ".join(words[int(tokens[1]) : int(tokens[3]) + 1])


def _listed(answers: Sequence[str] | str) -> Sequence[str]:
    """The answers of a question, of which a text is one and not its letters."""
    return [answers] if isinstance(answers, str) else answers


def best_match(
    targets: Sequence[Sequence[str] | str], predictions: Sequence[str], normalize: Callable[[str], str]
) -> Metrics:
    """SQuAD's two scores of texts that are normalized first."""
    check_texts(targets, predictions)
    questions = list(map(_listed, targets))
    if without := [number for number, answers in enumerate(questions) if not len(answers)]:
        raise ValueError(
            f"{len(without)} of {len(targets)} questions have no answer to compare with; the first is number "
            f"{without[0]}. A question that cannot be answered has the answer ''."
        )
    exact, f1 = [], []
    for answers, prediction in zip(questions, predictions, strict=True):
        given = normalize(prediction)
        wanted = [normalize(answer) for answer in answers]
        exact.append(max(float(given == answer) for answer in wanted))
        f1.append(max(_token_f1(answer.split(), given.split()) for answer in wanted))
    return {"em": 100 * float(np.mean(exact)), "f1": 100 * float(np.mean(f1))}


def _token_f1(target: Sequence[str], prediction: Sequence[str]) -> float:
    common = (collections.Counter(target) & collections.Counter(prediction)).total()
    return 2 * common / (len(target) + len(prediction)) if common else 0.0


def _without_articles(text: str) -> str:
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def normalize_squad(answer: str) -> str:
    """Lower case, without punctuation and English articles."""
    return _without_articles(answer.lower().translate(str.maketrans("", "", string.punctuation)))


def normalize_trivia_qa(answer: str) -> str:
    """Lower case, with blanks for punctuation, without English articles."""
    punctuation = string.punctuation + "‘’´`_"
    return _without_articles(answer.lower().translate(str.maketrans(punctuation, " " * len(punctuation))))


# -------------------------------------------------------- classification ----------------------------------------------


def accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> Metrics:
    """The share of predictions that are the target."""
    check_lengths(targets, predictions)
    return {"accuracy": 100 * float(np.mean([t == p for t, p in zip(targets, predictions, strict=True)]))}


def sequence_accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> Metrics:
    """The share of sequences that are right as a whole."""
    return {"sequence_accuracy": accuracy(targets, predictions)["accuracy"]}


def all_match(targets: Sequence[Any], predictions: Sequence[Any]) -> Metrics:
    """100 if everything is right, else 0."""
    check_lengths(targets, predictions)
    return {"exact_match": 100.0 if np.array_equal(targets, predictions) else 0.0}


def majority_accuracy(targets: Sequence[Any], predictions: Sequence[Any]) -> Metrics:
    """The accuracy of always predicting the most frequent target: a model near it has learned nothing."""
    check_lengths(targets, predictions)
    return {"majority_accuracy": 100 * collections.Counter(targets).most_common(1)[0][1] / len(targets)}


def matthews_corrcoef(targets: Sequence[int], predictions: Sequence[int]) -> Metrics:
    """Matthews' correlation of two classes or more, times 100, as scikit-learn has it: 0 where it is undefined."""
    check_lengths(targets, predictions)
    labels, both = np.unique([targets, predictions], return_inverse=True)
    wanted, given = np.eye(len(labels))[both.reshape(2, -1)]  # [examples, classes]
    covariance = np.sum((wanted - wanted.mean(axis=0)) * (given - given.mean(axis=0)))
    spread = [np.sum((x - x.mean(axis=0)) ** 2) for x in (wanted, given)]
    if not all(spread):
        side = "targets" if not spread[0] else "predictions"
        logger.warning("Matthews' correlation is undefined, and 0 by convention: the %s are of one class only.", side)
        return {"matthews_corrcoef": 0.0}
    return {"matthews_corrcoef": 100 * float(covariance / np.sqrt(spread[0] * spread[1]))}


def f1_score_with_invalid(targets: Sequence[int], predictions: Sequence[int]) -> Metrics:
    """F1 of class 1; a prediction that is neither 0 nor 1 counts as the wrong one of them."""
    check_lengths(targets, predictions)
    wanted, given = np.asarray(targets, int), np.array(predictions, int)
    invalid = (given != 0) & (given != 1)
    given[invalid] = 1 - wanted[invalid]
    return {"f1": 100 * class_f1(wanted, given, 1)}


def multirc_f1_over_all_answers(
    targets: Sequence[Mapping[str, int]], predictions: Sequence[Mapping[str, int]]
) -> Metrics:
    """`f1_score_with_invalid` of the field "value"."""
    return f1_score_with_invalid([t["value"] for t in targets], [p["value"] for p in predictions])


def mean_multiclass_f1(num_classes: int) -> MetricFn:
    """A metric: the mean of the F1 of classes 0 to `num_classes - 1`."""

    def metric(targets: Sequence[int], predictions: Sequence[int]) -> Metrics:
        check_lengths(targets, predictions)
        wanted, given = np.asarray(targets), np.asarray(predictions)
        scores = [class_f1(wanted, given, label) for label in range(num_classes)]
        return {f"mean_{num_classes}class_f1": 100 * float(np.mean(scores))}

    return metric


def class_scores(labels: Sequence[str]) -> MetricFn:
    """A metric of class numbers: `label_scores` of the labels, in their order; a number below 0 is none of them."""

    def metric(targets: Sequence[int], predictions: Sequence[int]) -> Metrics:
        check_lengths(targets, predictions)
        wanted, given = (np.asarray(x)[:, None] == np.arange(len(labels)) for x in (targets, predictions))
        counts = np.stack([wanted & given, given, wanted], axis=-1).sum(axis=0)
        return label_scores(dict(zip(labels, counts.tolist(), strict=True)))

    return metric


def multi_label_scores(labels: Sequence[str]) -> MetricFn:
    """A metric of rows that may have several labels: 0 or 1 for each, in their order.

    `exact_match` is the share of rows whose labels are all right; `micro_precision`, `micro_recall` and `micro_f1` are
    of all labels of all rows together; the others are those of `label_scores`. In percent.
    """

    def metric(targets: Sequence[Sequence[int]], predictions: Sequence[Sequence[int]]) -> Metrics:
        check_lengths(targets, predictions)
        wanted, given = (np.asarray(x, bool).reshape(-1, len(labels)) for x in (targets, predictions))
        counts = np.stack([wanted & given, given, wanted], axis=-1).sum(axis=0)
        of_all = label_scores({"all": counts.sum(axis=0).tolist()})
        return {
            "exact_match": 100 * float(np.mean(np.all(wanted == given, axis=1))),
            **{f"micro_{name}": of_all[f"macro_{name}"] for name in ("precision", "recall", "f1")},
            **label_scores(dict(zip(labels, counts.tolist(), strict=True))),
        }

    return metric


def label_scores(counts: Mapping[str, Sequence[int]]) -> Metrics:
    """Precision, recall and F1 of each label, such as `sad_f1`, and their means over the labels, such as `macro_f1`.

    As scikit-learn and seqeval have them, in percent: a label that is neither there nor predicted is left out, and a
    share of nothing is 0. Of more than 20 labels only the means are given.

    Args:
      counts: how often each label is predicted and right, is predicted, and is there.
    """
    scores = {}
    for label, (right, given, wanted) in counts.items():
        if given or wanted:
            shares = (right / max(given, 1), right / max(wanted, 1), 2 * right / (given + wanted))
            scores["_".join(label.split())] = [100 * share for share in shares]
    names = ("precision", "recall", "f1")
    means = np.mean(list(scores.values()), axis=0).tolist() if scores else [0.0] * len(names)
    shown = scores if len(counts) <= _MOST_LABELS else {}
    return {
        f"{label}_{name}": value
        for label, values in {**shown, "macro": means}.items()
        for name, value in zip(names, values, strict=True)
    }


def class_f1(targets: np.ndarray, predictions: np.ndarray, label: int, weights: np.ndarray | float = 1.0) -> float:
    right = np.sum(weights * ((targets == label) & (predictions == label)))
    total = np.sum(weights * (targets == label)) + np.sum(weights * (predictions == label))
    return 2 * float(right) / float(total) if total else 0.0


def auc(targets: Sequence[float], predictions: Sequence[float], targets_threshold: float | None = None) -> Metrics:
    """Areas under the ROC curve and the precision-recall curve (average precision), between 0 and 1.

    Both are left out, with a warning, where the targets are of one class only.

    Targets are 0 or 1; any number with a threshold, from which on it is 1.
    """
    check_lengths(targets, predictions)
    if not are_finite("AUC", targets=targets, predictions=predictions):
        return {}
    positive = np.asarray(targets) >= (0.5 if targets_threshold is None else targets_threshold)
    scores = np.asarray(predictions, float)
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if not num_positive or not num_negative:
        logger.warning(
            "AUC is undefined and left out: it needs both classes, and there are %d positive and %d negative targets.",
            num_positive,
            num_negative,
        )
        return {}
    # The share of pairs that are in the right order; ties count half.
    above = _ranks(scores)[positive].sum() - num_positive * (num_positive + 1) / 2
    # Precision where recall rises, one point per different score.
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of those that tie
    hits = np.cumsum(positive[order])[last]
    gains = np.diff(hits, prepend=0) / num_positive
    return {"auc-roc": float(above / (num_positive * num_negative)), "auc-pr": float(np.sum(gains * hits / (last + 1)))}


def score_auc(targets: Sequence[float], scores: Sequence[float], targets_threshold: float | None = None) -> Metrics:
    """`auc` for tasks that score instead of predicting."""
    return auc(targets, scores, targets_threshold)


# ------------------------------------------------------ numbers, correlation ------------------------------------------


def mse(targets: Sequence[float], predictions: Sequence[float]) -> Metrics:
    """The mean squared error of numbers."""
    check_lengths(targets, predictions)
    if not are_finite("The mean squared error", targets=targets, predictions=predictions):
        return {}
    return {"mse": float(np.mean(np.square(np.asarray(targets, float) - np.asarray(predictions, float))))}


def pearson_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> Metrics:
    """Pearson's correlation, times 100; 0 where it is undefined, because one of them is constant."""
    check_lengths(targets, predictions)
    if not are_finite("Pearson's correlation", targets=targets, predictions=predictions):
        return {}
    return {"pearson_corrcoef": 100 * _correlation("Pearson", np.asarray(targets), np.asarray(predictions))}


def spearman_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> Metrics:
    """Spearman's rank correlation, times 100; 0 where it is undefined, because one of them is constant."""
    check_lengths(targets, predictions)
    if not are_finite("Spearman's correlation", targets=targets, predictions=predictions):
        return {}
    ranks = _ranks(np.asarray(targets)), _ranks(np.asarray(predictions))
    return {"spearman_corrcoef": 100 * _correlation("Spearman", *ranks)}


def correlations(names: Sequence[str]) -> MetricFn:
    """A metric of rows of several numbers: correlations of each, such as `joy_pearson_corrcoef`, and their means."""

    def metric(targets: Sequence[Sequence[float]], predictions: Sequence[Sequence[float]]) -> Metrics:
        check_lengths(targets, predictions)
        found: Metrics = {}
        for of_one in (pearson_corrcoef, spearman_corrcoef):
            by_name: Metrics = {}
            for name, wanted, given in zip(
                names, zip(*targets, strict=True), zip(*predictions, strict=True), strict=True
            ):
                by_name |= {f"{'_'.join(name.split())}_{key}": x for key, x in of_one(wanted, given).items()}
            means = {of_one.__name__: float(np.mean([*by_name.values()]))} if len(by_name) == len(names) else {}
            found |= (by_name if len(names) <= _MOST_LABELS else {}) | means
        return found

    return metric


def _correlation(name: str, targets: np.ndarray, predictions: np.ndarray) -> float:
    for kind, values in (("targets", targets), ("predictions", predictions)):
        if np.ptp(values) == 0:
            logger.warning("%s's correlation is undefined, and given as 0: all %s are the same.", name, kind)
            return 0.0
    return float(np.corrcoef(targets, predictions)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((2 * last - counts + 1) / 2)[inverse]


# ------------------------------------------------------ metrics of metrics --------------------------------------------


def sklearn_metrics_wrapper(
    metric_str: str,
    metric_dict_str: str | None = None,
    metric_post_process_fn: Callable[[float], float] | None = None,
    **metric_fn_kwargs: Any,
) -> MetricFn:
    """A metric that is a function of `sklearn.metrics`, under its own name or `metric_dict_str`."""

    @metric_packages.needs("sklearn")
    def metric(targets: Sequence[Any], predictions: Sequence[Any]) -> Metrics:
        check_lengths(targets, predictions)
        function = getattr(metric_packages.optional("sklearn.metrics"), metric_str)
        value = function(targets, predictions, **metric_fn_kwargs)
        if np.size(value) == 1 and np.isnan(value):
            logger.warning("%s of these targets and predictions is undefined and left out.", metric_str)
            return {}
        return {metric_dict_str or metric_str: metric_post_process_fn(value) if metric_post_process_fn else value}

    return metric


def deduplicate_metric(metric_fn: MetricFn, group_key: str = "group", value_key: str = "value") -> MetricFn:
    """A metric over the first example of each group; targets and predictions are mappings with these keys."""

    @metric_packages.like(metric_fn)
    def metric(targets: Sequence[Mapping], predictions: Sequence[Mapping]) -> Metrics:
        check_lengths(targets, predictions)
        first: dict[Any, tuple[Any, Any]] = {}
        for target, prediction in zip(targets, predictions, strict=True):
            first.setdefault(target[group_key], (target[value_key], prediction[value_key]))
        return metric_fn([t for t, _ in first.values()], [p for _, p in first.values()])

    return metric


def mean_group_metric(
    metric_fn: MetricFn, group_key: str = "group", value_key: str = "value", return_subgroup_scores: bool = False
) -> MetricFn:
    """A metric that is the mean over groups of another; with the scores of each group as `<group>-<name>` if asked."""

    @metric_packages.like(metric_fn)
    def metric(targets: Sequence[Mapping], predictions: Sequence[Mapping]) -> Metrics:
        check_lengths(targets, predictions)
        groups: dict[Any, list[tuple[Any, Any]]] = collections.defaultdict(list)
        for target, prediction in zip(targets, predictions, strict=True):
            groups[target[group_key]].append((target[value_key], prediction[value_key]))
        scores: dict[str, list[float]] = collections.defaultdict(list)
        for group, pairs in groups.items():
            for name, value in metric_fn([t for t, _ in pairs], [p for _, p in pairs]).items():
                scores[name].append(value)
                if return_subgroup_scores:
                    scores[f"{group}-{name}"].append(value)
        return {name: float(np.mean(values)) for name, values in scores.items()}

    return metric
