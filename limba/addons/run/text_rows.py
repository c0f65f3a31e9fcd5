"""Rows with texts for a T5 whose columns no key names: those that run_summarization.py and run_glue.py would read."""

import dataclasses
import logging
from typing import Any

from limba.addons.run import encoder_rows, script_data
from limba.addons.run.keys import script_keys, script_names
from limba.addons.run.keys.run_arguments import RunArguments

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


def found(arguments: RunArguments) -> dict[str, Any]:
    """The keys that name the columns, where the script finds them in the data; {} if the keys are complete.

    Raises:
      FileNotFoundError, ValueError: if the data are not there, or have too few columns.
    """
    is_of_labels = arguments.script in script_names.OF_LABELS
    if arguments.is_finetuning:
        return _labels_of_numbers(arguments)
    if not (is_of_labels or arguments.script == script_names.SUMMARIES):
        return encoder_rows.first_column(arguments)
    corpus = script_data.find(dataclasses.replace(arguments, label_column_name=_LABEL))
    names = encoder_rows.column_names(corpus, script_data.used_splits(arguments)[0])
    if is_of_labels:
        text = arguments.text_column_name or encoder_rows.text_of(names, _LABEL).replace(" [SEP] ", " ")
        keys: dict[str, Any] = {"text_column_name": text, "label_column_name": _LABEL}
    elif len(names) < 2:
        if arguments.source_prefix:
            only = f"{corpus.name!r} has only the column {', '.join(names)}: run_summarization learns from two"
            raise ValueError(f"{only}. source_prefix belongs to it; leave it out to learn from documents.")
        logger.warning("%r has only the column %s: masked spans are learned, no summaries.", corpus.name, names)
        return encoder_rows.first_column(arguments)
    else:
        keys = _of_summaries(arguments, names)
    logger.info(
        "As %s has it, %s is read and the answer is %r (text_column_name and label_column_name name others).",
        *(arguments.script, repr(keys["text_column_name"]), keys["label_column_name"]),
    )
    return keys | _labels_of_numbers(dataclasses.replace(arguments, **keys))


def _labels_of_numbers(arguments: RunArguments) -> dict[str, Any]:
    """`labels` where the answers are numbers of a ClassLabel: a T5 writes the names."""
    column = arguments.label_column_name
    if column is None or arguments.labels is not None or arguments.entry is not None:
        return {}
    names = encoder_rows.class_names(arguments, script_data.find(arguments), column)
    return {"labels": encoder_rows.named_labels(names)} if names else {}


def _of_summaries(arguments: RunArguments, names: list[str]) -> dict[str, Any]:
    known = _COLUMNS.get((arguments.dataset_name or "").rstrip("/").rpartition("/")[2], ())
    first, second = known if known and {*known} <= {*names} else names[:2]
    text = arguments.text_column_name or first
    # The second column may be the text that a key names; a text is not its own summary.
    summary = second if second != text else next(name for name in names if name != text)
    metrics = {} if arguments.metrics or not script_keys.has_rouge() else {"metric_names": "rouge"}
    # Commas stand between columns, but in braces.
    return {"text_column_name": f"{{{text}}}" if "," in text else text, "label_column_name": summary, **metrics}
