"""Rows with texts for a T5 whose columns no key names: those that run_summarization.py and run_glue.py would read."""

import dataclasses
import logging
from typing import Any

from limba.addons.run import encoder_rows, script_data
from limba.addons.run.keys import script_keys, script_names
from limba.addons.run.keys.request import Request

logger = logging.getLogger(__name__)

_LABEL = "label"
# Texts and summaries of public data sets, by the last part of their names.
_COLUMNS = {
    "cnn_dailymail": ("article", "highlights"),
    "wiki_summary": ("article", "highlights"),
    "xsum": ("document", "summary"),
    "multi_news": ("document", "summary"),
    "samsum": ("dialogue", "summary"),
    "orange_sum": ("text", "summary"),
    "pn_summary": ("article", "summary"),
    "thaisum": ("body", "summary"),
    "big_patent": ("description", "abstract"),
    "psc": ("extract_text", "summary_text"),
    "amazon_reviews_multi": ("review_body", "review_title"),
    "xglue": ("news_body", "news_title"),
}


def found(request: Request) -> dict[str, Any]:
    """The keys that name the columns, where the script finds them in the data; {} if the keys are complete.

    Raises:
      FileNotFoundError, ValueError: if the data are not there, or have too few columns.
    """
    is_of_labels = request.script in script_names.OF_LABELS
    if request.is_finetuning:
        return _labels_of_numbers(request)
    if not (is_of_labels or request.script == script_names.SUMMARIES):
        return encoder_rows.first_column(request)
    corpus = script_data.find(dataclasses.replace(request, label_column_name=_LABEL))
    names = encoder_rows.column_names(corpus, script_data.used_splits(request)[0])
    if is_of_labels:
        text = request.text_column_name or encoder_rows.text_of(names, _LABEL).replace(" [SEP] ", " ")
        keys: dict[str, Any] = {"text_column_name": text, "label_column_name": _LABEL}
    elif len(names) < 2:
        if request.source_prefix:
            only = f"{corpus.name!r} has only the column {', '.join(names)}: run_summarization learns from two"
            raise ValueError(f"{only}. source_prefix belongs to it; leave it out to learn from documents.")
        logger.warning("%r has only the column %s: masked spans are learned, no summaries.", corpus.name, names)
        return encoder_rows.first_column(request)
    else:
        keys = _of_summaries(request, names)
    logger.info(
        "As %s has it, %s is read and the answer is %r (text_column_name and label_column_name name others).",
        *(request.script, repr(keys["text_column_name"]), keys["label_column_name"]),
    )
    return keys | _labels_of_numbers(dataclasses.replace(request, **keys))


def _labels_of_numbers(request: Request) -> dict[str, Any]:
    """`labels` where the answers are numbers of a ClassLabel: a T5 writes the names."""
    column = request.label_column_name
    if column is None or request.labels is not None or request.entry is not None:
        return {}
    names = encoder_rows.class_names(request, script_data.find(request), column)
    return {"labels": encoder_rows.named_labels(names)} if names else {}


def _of_summaries(request: Request, names: list[str]) -> dict[str, Any]:
    known = _COLUMNS.get((request.dataset_name or "").rstrip("/").rpartition("/")[2], ())
    first, second = known if known and {*known} <= {*names} else names[:2]
    text = request.text_column_name or first
    # The second column may be the text that a key names; a text is not its own summary.
    summary = second if second != text else next(name for name in names if name != text)
    metrics = {} if request.metrics or not script_keys.has_rouge() else {"metric_names": "rouge"}
    # Commas stand between columns, but in braces.
    return {"text_column_name": f"{{{text}}}" if "," in text else text, "label_column_name": summary, **metrics}
