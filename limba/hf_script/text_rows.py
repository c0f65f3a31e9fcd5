"""What no key says of a T5's rows: the columns, as run_summarization.py finds them, and the length of labels."""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from limba.gin_config.hf_keys import script_keys, script_names
from limba.gin_config.hf_keys.run_arguments import RunArguments
from limba.hf_script import encoder_rows, script_data

logger = logging.getLogger(__name__)

_LABEL = "label"
# Of lengths, as in `limba.inference.text_batches`.
_MULTIPLE = 8
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
    if arguments.is_finetuning or not (is_of_labels or arguments.script == script_names.SUMMARIES):
        return {}
    corpus = script_data.find(dataclasses.replace(arguments, label_column_name=_LABEL))
    names = encoder_rows.column_names(corpus, script_data.used_splits(arguments)[0])
    if is_of_labels:
        text = arguments.text_column_name or encoder_rows.text_of(names, _LABEL).replace(" [SEP] ", " ")
        keys: dict[str, Any] = {"text_column_name": text, "label_column_name": _LABEL}
    elif len(names) < 2:
        if arguments.source_prefix:
            raise ValueError(
                f"{corpus.name!r} has only the column {', '.join(names)}: run_summarization learns from two. "
                "source_prefix belongs to it; leave it out to learn from documents."
            )
        return {}
    else:
        keys = _of_summaries(arguments, names)
    logger.info(
        "As %s has it, %s is read and the answer is %r (text_column_name and label_column_name name others).",
        *(arguments.script, repr(keys["text_column_name"]), keys["label_column_name"]),
    )
    return keys


def length_of_labels(arguments: RunArguments, described: Mapping[str, Any]) -> dict[str, Any]:
    """`max_target_length` of answers that are a closed set of labels: the tokens of the longest, rounded up.

    Padding to 128 would cost time. {} where a key says the length, or other answers are written.

    Args:
      described: the vocabulary, as `run.json` describes it.
    """
    from tasks.pretraining import masked_text
    from tasks.supervised.row_formats import Template

    if not arguments.is_finetuning or arguments.max_target_length is not None:
        return {}
    form = script_data.row_form(arguments).format
    if not isinstance(form, Template) or not form.choices:
        return {}
    vocabulary = masked_text.open_vocabulary(described)
    longest = max(len(vocabulary.encode(label)) for label in form.choices) + 1  # and EOS
    length = -(-longest // _MULTIPLE) * _MULTIPLE
    logger.info(
        "The longest of the %d labels has %d tokens with EOS: targets have %d (max_target_length says another length).",
        *(len(form.choices), longest, length),
    )
    return {"max_target_length": length}


def _of_summaries(arguments: RunArguments, names: list[str]) -> dict[str, Any]:
    known = _COLUMNS.get((arguments.dataset_name or "").rstrip("/").rpartition("/")[2], ())
    first, second = known if known and {*known} <= {*names} else names[:2]
    text = arguments.text_column_name or first
    # The second column may be the text that a key names; a text is not its own summary.
    summary = second if second != text else next(name for name in names if name != text)
    metrics = {} if arguments.metrics or not script_keys.has_rouge() else {"metric_names": "rouge"}
    return {"text_column_name": text, "label_column_name": summary, **metrics}
