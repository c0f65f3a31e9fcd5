"""Metrics under the names and in the numbers of Hugging Face's scripts, so that a run shows one number everywhere.

Their shares are from 0 to 1, as `eval_accuracy`. Those of `tasks.metrics` are in percent, as T5 has them. BLEU has the
tokenizer that sacrebleu takes where none is named, as in run_translation.py; ROUGE has run_summarization.py's stemmer.
"""

import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from limba.tasks.metrics import text_metrics
from limba.tasks.metrics.text_metrics import MetricFn, Metrics

# Sentinels, and the unknown token as tokenizer.json and SentencePiece write it. A vocabulary of a T5 reads the same
# texts as these tokens, so an answer cannot have them otherwise.
_SPECIAL = re.compile(r"<extra_id_\d+>|<unk>| \u2047 ")
# Ends of names of metrics that are shares.
_SHARES = ("accuracy", "precision", "recall", "f1", "exact_match", "corrcoef", "combined_score")
# SQuAD's F1, and that of SQuAD 2, which comes with `exact`.
_F1 = ("f1", "HasAns_f1", "NoAns_f1")
_CORRELATIONS = {"pearson_corrcoef": "pearson", "spearman_corrcoef": "spearmanr"}
# With the quotation marks and brackets that close behind it.
_END_OF_SENTENCE = re.compile(r"([.!?…][\"'”’»)\]]*)\s+")


def _sentences_on_lines(text: str) -> str:
    """Nearly as run_summarization.py has them by nltk, which also knows abbreviations."""
    return _END_OF_SENTENCE.sub(r"\1\n", text.strip())


# What the scripts compute under the name of a metric of T5's.
_COMPUTED: Mapping[MetricFn, MetricFn] = {
    text_metrics.bleu: functools.partial(text_metrics.bleu, tokenizer="13a"),
    text_metrics.rouge: functools.partial(text_metrics.rouge, use_stemmer=True, lines=_sentences_on_lines),
}
# The scripts' names, by the answers of `script_task.row_dataset`.
_NAMES: Mapping[str, Mapping[str, str]] = {
    "text": {"em": "exact_match"},
    "label": {"matthews_corrcoef": "matthews_correlation"},
    "number": _CORRELATIONS,
}


def names(answers: str) -> Mapping[str, str]:
    """The scripts' names of metrics that have others in `tasks.metrics`."""
    return _NAMES.get(answers, {})


def is_share(name: str, others: Collection[str]) -> bool:
    """Whether a metric of `tasks.metrics` is a share; `others` are the metrics beside it.

    SQuAD's F1, which comes with an exact match, is in percent in its script too, as ROUGE and BLEU are.
    """
    return name.endswith(_SHARES) and not (name in _F1 and {"em", "exact"} & {*others})


def without_special_tokens(answer: str) -> str:
    """A generated text as the scripts decode it, with `skip_special_tokens`."""
    return _SPECIAL.sub("", answer)


def _as_decoded(values: Any) -> Any:
    """Generated texts without special tokens; scores and answers that are no texts as they are."""
    return _of_texts(values, lambda text: without_special_tokens(text).strip())


def _of_texts(values: Any, function: Callable[[str], str]) -> Any:
    if not isinstance(values, list):
        return values
    return [function(value) if isinstance(value, str) else value for value in values]


@functools.cache  # A task that is registered again has the same metric.
def of_script(metric: MetricFn, answers: str) -> MetricFn:
    """A metric as the scripts have it: its signature stays, and it is its `__wrapped__`."""

    @functools.wraps(metric)
    def measured(*given: Any, **named: Any) -> Metrics:
        if answers == "text":
            # Without the blanks at their ends, as the scripts compare them: most vocabularies have none for these.
            given = (*(_of_texts(x, str.strip) for x in given[:1]), *map(_as_decoded, given[1:]))
            named = {n: _of_texts(x, str.strip) if n == "targets" else _as_decoded(x) for n, x in named.items()}
        found = _COMPUTED.get(metric, metric)(*given, **named)
        return {
            names(answers).get(name, name): x / 100 if isinstance(x, int | float) and is_share(name, found) else x
            for name, x in found.items()
        }

    return measured
