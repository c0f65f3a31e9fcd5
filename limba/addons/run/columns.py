"""What is learned from the data where no key says it, as Hugging Face's scripts find it: which columns are read.

Of a T5 the columns of texts and summaries or labels; of an encoder, whether labels, numbers or labels of words are
learned, and which labels there are.
"""

import dataclasses
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons.run import data
from limba.addons.run.keys import script_keys, script_names
from limba.addons.run.keys.request import DOCUMENTS, Request
from limba.addons.run.keys.row_answers import LABEL, NUMBER, TEXT, WORD_LABELS
from limba.addons.run.plan import Corpus
from limba.checkpoint_files import run_folder

logger = logging.getLogger(__name__)

_PAIR = ("sentence1", "sentence2")
_LABEL, _SENTENCE, _WORDS, _TAGS = "label", "sentence", "tokens", "tags"
_AS_PAIR, _NUMBERS = "{sentence1} [SEP] {sentence2}", {"id", "idx", "index", "Unnamed: 0"}
_WHOLE = re.compile(r"[+-]?\d+")
# Beyond that a column has texts and no labels.
_MOST_LABELS = 1000
# Texts and summaries of public data sets, by the last part of their names.
_SUMMARIES = {
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
# Of run_mlm.py, where no key says how long rows are.
_LONGEST = 1024


def of_t5(request: Request) -> dict[str, Any]:
    """The keys that name the columns, where the script finds them in the data; {} if the keys are complete.

    Raises:
      FileNotFoundError, ValueError: if the data are not there, or have too few columns.
    """
    is_of_labels = request.script in script_names.OF_LABELS
    if request.is_finetuning:
        return _labels_of_numbers(request)
    if not (is_of_labels or request.script == script_names.SUMMARIES):
        return first_column(request)
    corpus = data.find(dataclasses.replace(request, label_column_name=_LABEL))
    names = column_names(corpus, request.used_splits[0])
    if is_of_labels:
        text = request.text_column_name or text_of(names, _LABEL).replace(" [SEP] ", " ")
        keys: dict[str, Any] = {"text_column_name": text, "label_column_name": _LABEL}
    elif len(names) < 2:
        if request.source_prefix:
            only = f"{corpus.name!r} has only the column {', '.join(names)}: run_summarization learns from two"
            raise ValueError(f"{only}. source_prefix belongs to it; leave it out to learn from documents.")
        logger.warning("%r has only the column %s: masked spans are learned, no summaries.", corpus.name, names)
        return first_column(request)
    else:
        keys = _of_summaries(names, request.dataset_name or "", request.text_column_name)
        if not request.metrics and script_keys.has_rouge():
            keys["metric_names"] = "rouge"
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
    names = class_names(data.find(request), column, request.used_splits)
    return {"labels": named_labels(names)} if names else {}


def _of_summaries(names: list[str], dataset: str, named: str | None) -> dict[str, Any]:
    """The columns of a text, which may be `named`, and its summary."""
    known = _SUMMARIES.get(dataset.rstrip("/").rpartition("/")[2], ())
    first, second = known if known and {*known} <= {*names} else names[:2]
    text = named or first
    # The second column may be the text that a key names; a text is not its own summary.
    summary = second if second != text else next(name for name in names if name != text)
    # Commas stand between columns, but in braces.
    return {"text_column_name": f"{{{text}}}" if "," in text else text, "label_column_name": summary}


def of_encoder(request: Request, model: Any) -> dict[str, Any]:
    """The keys that say what an encoder, a `limba.addons.run.starting_model`, learns from rows, where the data say it.

    With them the request is complete. {} if documents are learned.

    Raises:
      FileNotFoundError, ValueError: if the data are not there, or none that an encoder can learn.
    """
    if request.languages is not None:
        raise ValueError(f"source_lang is {request.source_lang!r}: an encoder translates nothing; name a T5.")
    if request.questions is not None:
        raise ValueError(
            "The command learns answers to questions (run_qa, run_seq2seq_qa, or question_column and its like), and "
            "model_name_or_path or config_name is an encoder. The extractive question answering of run_qa.py, where an "
            "encoder marks the answer in the context, is not here. What is here is that of run_seq2seq_qa.py, where a "
            "T5 writes the answer: name a T5, such as google/t5-v1_1-small, with the same files and columns."
        )
    if request.script == script_names.SUMMARIES and request.entry is None:
        raise ValueError(
            "The command is one of run_summarization (source_prefix, predict_with_generate and max_source_length are "
            "keys of it): an encoder writes no texts. Name a T5, or leave these keys out."
        )
    keys: dict[str, Any] = {}
    if request.entry is not None:
        kind = _of_entry(request.entry)
        _check_has_labels(model, request.do_train)
    elif request.learns_masks and not request.asks_for_labels:
        return _of_documents(request, model)
    else:
        whole, splits = data.find_whole(request)
        if (columns := _columns(request, whole, _shown_split(request.used_splits, splits))) is None:
            return _of_documents(request, model)
        text, label, kind = columns
        corpus = data.find(dataclasses.replace(request, label_column_name=label))
        _check_has_labels(model, request.do_train)
        if kind == LABEL and model.head.is_number and request.do_regression is None:
            kind = NUMBER
        labels = _labels(request, model.labels, corpus, label, kind)
        kind = NUMBER if labels is None else kind
        keys = {"text_column_name": text, "label_column_name": label, **({} if labels is None else {"labels": labels})}
    completed = dataclasses.replace(request, answers=kind, **keys)
    _check_answers(completed, model)
    of_tokenizer = None if completed.has_own_length else model.tokenizer_length
    length = _length(completed.inputs_length, completed.max_seq_length, of_tokenizer, model.network.max_positions)
    return {**keys, "answers": kind, "max_seq_length": length}


def _of_documents(request: Request, model: Any) -> dict[str, Any]:
    """The length of rows where no key says it or the encoder reads fewer tokens, and which documents are read."""
    length = request.max_seq_length
    if length is None:
        length = min(model.tokenizer_length or _LONGEST, _LONGEST)
        logger.info(
            "Rows have at most %d tokens: without max_seq_length run_mlm.py takes the tokenizer's model_max_length, at "
            "most %d.",
            *(length, _LONGEST),
        )
    if not request.use_nsp:
        _say_other_types(model)
    keys: dict[str, Any] = first_column(request)
    of_tokenizer = None if request.has_own_length else model.tokenizer_length
    length = _length(length, request.max_seq_length, of_tokenizer, model.network.max_positions)
    if length != request.max_seq_length:
        keys["max_seq_length"] = length
    return keys | _rows_of_samples(dataclasses.replace(request, **keys), model.vocabulary)


def _say_other_types(model: Any) -> None:
    """Warns where the tokenizer's template has token types that rows of masked words have not."""
    from limba.tasks.pretraining import masked_text

    if model.vocabulary.get("class") != run_folder.TOKENIZERS:
        return
    vocabulary: Any = masked_text.open_vocabulary(model.vocabulary)
    if any(vocabulary.frame.types) and getattr(model.network, "num_token_types", 0) > 1:
        logger.warning(
            "Rows of masked words have the token type 0; run_mlm.py would give them those of the tokenizer's template."
        )


def _rows_of_samples(request: Request, described: Mapping[str, Any]) -> dict[str, int]:
    """`max_train_samples` and `max_eval_samples` as documents: run_mlm.py counts rows, behind the grouping of texts.

    Args:
      described: the vocabulary of an encoder.
    """
    from limba.addons.run import counted_documents
    from limba.tasks.pretraining import masked_text

    keys = {split: key for split, key in data.MOST.items() if split in request.used_splits and getattr(request, key)}
    if not keys:
        return {}
    corpus = data.find(dataclasses.replace(request, max_train_samples=None, max_eval_samples=None))
    column, length = request.text_column, request.inputs_length
    source = masked_text.open_source(corpus.files, corpus.dataset, corpus.dataset_config, corpus.splits, column)
    objective = data.masked_lm(request.mlm_probability, request.use_nsp, described)
    found = {}
    for split, key in keys.items():
        counted_documents.check(source, split, column)
        wanted, opened = getattr(request, key), masked_text.open_vocabulary(described)
        found[key], made = counted_documents.documents_of_examples(
            source, split, column, opened, objective.raw_length(length), wanted, request.line_by_line
        )
        logger.info(
            "%s %d counts rows of at most %d tokens, as in run_mlm.py: the first %d documents are read, which make %d.",
            *(key, wanted, length, found[key], made),
        )
    return found


def _length(length: int, asked: int | None, of_tokenizer: int | None, most: int) -> int:
    """The tokens of a row, as far as the tokenizer says and the encoder reads, `most`; warns if more were asked for."""
    length = data.within(length, of_tokenizer)
    if asked is not None and length > most:
        logger.warning("max_seq_length is %d, and the encoder reads %d tokens: rows are cut there.", length, most)
    return min(length, most)


def label_names(request: Request) -> tuple[str, ...]:
    """The labels of a complete request, in the order of the logits; the name of a number."""
    from limba.tasks.supervised import row_formats

    if request.answers == WORD_LABELS:
        return tuple(request.labels or ())
    if request.answers == NUMBER:
        return (request.label_column_name or _LABEL,)
    form = data.row_form(request).format
    assert isinstance(form, row_formats.Template)
    return form.choices


def _of_entry(entry: str) -> str:
    from limba.addons.run import script_task
    from limba.tasks.supervised import dataset_table, row_formats

    dataset_table.find_dataset(entry)  # has the nearest names
    try:
        form = script_task.row_dataset(entry, None, "", None, None, None, answers=LABEL)
    except ValueError as error:
        raise ValueError(f"The benchmark {entry} has texts as answers, which a T5 writes and no encoder.") from error
    return NUMBER if isinstance(form.format, row_formats.Number) else LABEL


# ------------------------------------------------------- columns -----------------------------------------------------


def _columns(request: Request, corpus: Corpus, split: str) -> tuple[str, str, str] | None:
    """The text, as `text_column_name` has it, the column of the labels, and the kind; None for documents.

    Raises:
      ValueError: if it is not clear which.
    """
    names = column_names(corpus, split)
    given, text, named_text = request.label_column_name, request.text_column, request.text_column_name
    of_task = f"{request.task_name or 'ner'}_tags"
    named = given or next((x for x in (of_task, "ner_tags", _TAGS) if x in names), None)
    # A number of the row is neither words nor tags.
    unnamed = [x for x in names if x not in (named, "id")]
    words = named_text or (_WORDS if _WORDS in names else next(iter(unnamed), text))
    tags = named or next((x for x in unnamed if x != words), _TAGS)
    are_lists = _have_lists(corpus, split, {words, tags}, names)
    if not request.asks_for_labels and not are_lists:
        if _LABEL not in names:
            return None
        if text in names:
            logger.warning(
                "%r has the columns %r and %r: a classifier is trained, as run_glue.py does it. For masked language "
                "modelling of the texts write task masked_lm.",
                *(corpus.name, text, _LABEL),
            )
    asks_for_words = request.has_word_task or request.return_entity_level_metrics or request.label_all_tokens
    is_of_words = request.answers == WORD_LABELS or asks_for_words
    if is_of_words or (request.answers == TEXT and are_lists and (given or _LABEL not in names)):
        if request.has_word_task and not given and tags != of_task and tags in names:
            logger.warning("%r has no column %r: the tags are those of %r.", corpus.name, of_task, tags)
        return words, tags, WORD_LABELS
    label = given or _LABEL
    if _have_lists(corpus, split, {label}, names):
        raise ValueError(
            f"The column {label!r} has lists, and limba run learns one label of a row. Give each label a run of its "
            "own, with a column that says whether it is right; or write a recipe with several_answers.MultiLabel "
            "(docs/encoders.md)."
        )
    kind = request.answers if request.answers != TEXT else NUMBER if request.do_regression else LABEL
    found = named_text or text_of(names, label)
    if named_text is None and " [SEP] {" in found and found != _AS_PAIR and (len(names) > 3 or _NUMBERS & {*names}):
        logger.warning("As in run_glue.py, the text is %r, of %s (see text_column_names).", found, names)
    return found, label, kind


def first_column(request: Request) -> dict[str, str]:
    """The column of documents where no key names it and none is `text`: the first, as run_mlm.py takes it; else {}."""
    if request.text_column_name is not None:
        return {}
    corpus, splits = data.find_whole(request)
    names = column_names(corpus, _shown_split(request.used_splits, splits))
    if DOCUMENTS in names or not names:
        return {}
    logger.warning(
        "No column is 'text': %r, the first, is read, as in run_mlm.py and run_t5_mlm_flax.py (text_column_name names "
        "another).",
        names[0],
    )
    return {"text_column_name": names[0]}


def _shown_split(used: Sequence[str], splits: Sequence[str]) -> str:
    """The split that shows the columns: the first of those that are read."""
    return next((split for split in used if split in splits), splits[0])


def column_names(corpus: Corpus, split: str) -> list[str]:
    """Of all columns of a split."""
    return _open(corpus, (), ()).column_names(split)


def text_of(names: Sequence[str], label: str) -> str:
    """The text as run_glue.py and run_classification.py find it: of two columns a pair."""
    others = [name for name in names if name != label]
    if {*_PAIR} <= {*others}:
        others = list(_PAIR)
    elif alone := [name for name in (_SENTENCE, DOCUMENTS) if name in others]:
        others = alone[:1]
    return " [SEP] ".join("{" + name + "}" for name in others[:2]) or DOCUMENTS


def _have_lists(corpus: Corpus, split: str, columns: set[str], names: Sequence[str]) -> bool:
    """Whether columns are there and have lists."""
    return columns <= {*names} and all(
        isinstance(next(_values(corpus, split, column, nested=True), None), list) for column in columns
    )


# -------------------------------------------------------- labels -----------------------------------------------------


def _labels(request: Request, of_model: Sequence[str], corpus: Corpus, column: str, kind: str) -> Any:
    """The labels: those of the key, of a model that has them, or those of the training split; None for numbers."""
    if kind == WORD_LABELS and isinstance(request.labels, Mapping):
        raise ValueError(f"labels is {request.labels!r}; those of words are a list, in the order of their numbers.")
    if request.labels is not None:
        return request.labels
    names = () if kind == NUMBER else class_names(corpus, column, request.used_splits)
    if names and {*names} <= {*of_model}:
        return _named_labels(of_model, names, column, kind)
    if of_model and kind != NUMBER:
        is_numbered = kind == WORD_LABELS or any(_WHOLE.fullmatch(label) for label in of_model)
        numbers = {} if is_numbered else {str(number): label for number, label in enumerate(of_model)}
        return {**numbers, **{label: label for label in of_model}} if numbers else list(of_model)
    if not request.do_train:  # It is a model of numbers.
        return None
    from limba.tasks.supervised import cell_texts

    seen: dict[Any, None] = {}
    for value in _values(corpus, "train", column, nested=kind == WORD_LABELS):
        if kind == WORD_LABELS and not isinstance(value, list):
            raise ValueError(f"The column {column!r} has {value!r}, which is no list of labels, one for each word.")
        seen |= dict.fromkeys(value if isinstance(value, list) else [value])
    if kind != WORD_LABELS and any(not cell_texts.as_text(value).strip() for value in seen):
        raise _empty_cells(corpus, column)
    if kind == NUMBER and (wrong := next((value for value in seen if not _is_number(value)), None)) is not None:
        raise ValueError(f"The column {column!r} has {wrong!r}, which is not a number, and do_regression is true.")
    if kind == NUMBER or (kind == LABEL and request.do_regression is None and _are_numbers(corpus, list(seen))):
        return None
    if names and all(isinstance(value, int) for value in seen):
        return _named_labels(names, names, column, kind)
    if kind == WORD_LABELS and all(isinstance(value, int) for value in seen):
        return [str(number) for number in range(max(seen, default=0) + 1)]
    if kind == LABEL and request.script == script_names.CLASSES:
        seen |= _labels_of_other_splits(corpus, column, seen, request.used_splits)
    labels = _sorted_labels(list(seen), column)
    if kind == LABEL and len(labels) < 2:
        raise ValueError(
            f"The column {column!r} of the training split has only one label, {labels[0]!r}; a classifier learns at "
            "least two. Give rows of others, or name the column with the labels (label_column_name)."
        )
    return labels


def class_names(corpus: Corpus, column: str, splits: Sequence[str]) -> tuple[str, ...]:
    """The labels that the numbers of a column stand for, a ClassLabel of `datasets`; () where nothing says so.

    The first of the splits that are read says it.

    Raises:
      ValueError: if splits, or files of one, give a number different names.
    """
    from limba.tasks.sources import class_names as of_files
    from limba.tasks.supervised import cell_texts

    source = _open(corpus, (column,), ())
    first, *others = splits
    names = source.class_names(first, column) or corpus.class_names.get(column, ())
    if names:
        of_others = {repr(split): source.class_names(split, column) or names for split in others}
        of_files.check_same(column, {repr(first): names, **of_others})
    return tuple(map(cell_texts.plain_text, names))


def named_labels(names: Sequence[str]) -> dict[str, str]:
    """Labels of rows whose column has numbers with names, or the names themselves."""
    return {str(number): name for number, name in enumerate(names)} | {name: name for name in names}


def _named_labels(labels: Sequence[str], names: Sequence[str], column: str, kind: str) -> Any:
    """The labels, in their order, of numbers that have names.

    Raises:
      ValueError: for labels of words, whose numbers are places, if the order is another one.
    """
    if kind == LABEL:
        return {label: label for label in labels} | named_labels(names)
    from limba.tasks.sources import class_names as of_files

    of_files.check_numbers(column, tuple(names), dict(enumerate(labels)), "the data")
    return list(labels)


def _labels_of_other_splits(
    corpus: Corpus, column: str, known: Mapping[Any, None], splits: Sequence[str]
) -> dict[Any, None]:
    """Labels that only rows of evaluation or prediction have, which run_classification.py adds to the others."""
    from limba.tasks.supervised import cell_texts

    seen = {"", *(cell_texts.plain_text(cell_texts.as_text(value)) for value in known)}
    more: dict[Any, None] = {}
    for split in splits:
        if split == "train" or column not in column_names(corpus, split):
            continue
        values = dict.fromkeys(_values(corpus, split, column, nested=False))
        texts = {value: cell_texts.plain_text(cell_texts.as_text(value)) for value in values}
        if new := [value for value, text in texts.items() if text not in seen]:
            logger.warning(
                "Labels that only the split %r has are added, as run_classification.py adds them; no training row has "
                "them: %s.",
                *(split, ", ".join(map(repr, new[:10]))),
            )
        seen |= {*texts.values()}
        more |= dict.fromkeys(new)
    return more


def _empty_cells(corpus: Corpus, column: str) -> ValueError:
    """That cells of the training split, of which there are some, have no label."""
    from limba.tasks.supervised import cell_texts

    rows = _open(corpus, (column,), ()).numbered_documents("train")
    empty = [(file, row) for file, row, document in rows if not cell_texts.as_text(document[column]).strip()]
    file, row = empty[0]
    return ValueError(
        f"The column {column!r} is empty in {len(empty):,} rows of the training split; the first is row {row} (the "
        f"first is 0) of {file}. Fill in their labels, or leave these rows out of the file."
    )


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _are_numbers(corpus: Corpus, values: Sequence[Any]) -> bool:
    """Whether the scripts take them for numbers to learn: floats, in csv with a point; texts of JSON are none."""
    endings = {ending for file in (corpus.files or {}).get("train", ()) for ending in Path(file).suffixes}
    if not endings & {".csv", ".tsv"} and any(isinstance(value, str) for value in values):
        return False
    return all(map(_is_number, values)) and any(
        not isinstance(value, bool) and not _WHOLE.fullmatch(str(value)) for value in values
    )


def _sorted_labels(values: Sequence[Any], column: str) -> list[str]:
    from limba.tasks.supervised import cell_texts

    # Those that differ by blanks alone are one; the check of the rows says where there are such.
    texts = list(dict.fromkeys(cell_texts.plain_text(cell_texts.as_text(value)) for value in values))
    if len(texts) > _MOST_LABELS:
        raise ValueError(
            f"The column {column!r} has {len(texts):,} different values, such as {texts[0][:50]!r}; an encoder learns "
            f"at most {_MOST_LABELS:,} labels. Name the column with the labels (label_column_name), or write "
            "do_regression true for numbers."
        )
    are_whole = all(_WHOLE.fullmatch(text) for text in texts)
    return sorted(texts, key=int if are_whole else None)


def _values(corpus: Corpus, split: str, column: str, nested: bool) -> Iterator[Any]:
    """The values of a column; lists, also those that came as JSON, as lists."""
    from limba.tasks.supervised import row_formats

    source = _open(corpus, () if nested else (column,), (column,) if nested else ())
    for documents in source.documents(split):
        for document in documents:
            yield row_formats.record_of(document[column]) if nested else document[column]


def _open(corpus: Corpus, columns: Sequence[str], nested: Sequence[str]) -> Any:
    from limba.addons.run import script_task

    return script_task.open_rows(
        columns, nested, None, corpus.files, corpus.dataset, corpus.dataset_config, corpus.splits
    )


# -------------------------------------------------------- checks -----------------------------------------------------


def _check_has_labels(model: Any, is_trained: bool) -> None:
    """Raises ValueError if nothing is trained, and the model has no head with labels."""
    if not model.labels and not is_trained:
        raise ValueError(
            f"{model.path} is a {model.head.class_name}, which has no labels, and do_train is not given: name a model "
            "that was trained on such rows, or add do_train."
        )


def _check_answers(request: Request, model: Any) -> None:
    """Raises ValueError for keys of a complete request that an encoder has no use for with these answers.

    Also if a model has another head than the answers need, or other labels.
    """
    from limba.tasks.vocabularies import LabelVocabulary

    kind = request.answers
    for name, remedy in (
        ("generation_num_beams", "an encoder generates nothing: leave it out"),
        ("use_nsp", "it belongs to documents: leave it out"),
        ("whole_word_mask", "it belongs to documents: leave it out"),
        ("label_smoothing_factor", "numbers have no labels to smooth: leave it out" if kind == NUMBER else ""),
        ("labels", "numbers have no labels: leave it out" if kind == NUMBER else ""),
        ("metric_names", "labels of words have run_ner.py's metrics: leave it out" if kind == WORD_LABELS else ""),
    ):
        if remedy and (value := getattr(request, name)):
            raise ValueError(f"{name} is {value!r}: {remedy}.")
    of_words = [(name, WORD_LABELS) for name in ("return_entity_level_metrics", "label_all_tokens")]
    for name, of in (*of_words, ("do_regression", NUMBER)):
        if getattr(request, name) and kind != of:
            raise ValueError(f"{name} is true, and the rows are learned with {kind}: leave it out, or answers {kind}.")
    names, answers = label_names(request), request.row_answers
    if request.answers == LABEL:
        LabelVocabulary(names)  # refuses what cannot be one
    # Heads with a problem_type of their own have several labels, or numbers, of a row.
    wanted = answers.network, request.answers == NUMBER, None
    if model.labels and (model.head.class_name, model.head.is_number, model.head.problem_type) != wanted:
        raise ValueError(
            f"{model.path} is a {model.head.class_name} of {', '.join(model.labels)} ({model.head.problem}), and the "
            f"rows have {answers.what}: begin with the encoder that it was made from."
        )
    if model.labels and request.answers != NUMBER and model.labels != names:
        raise ValueError(
            f"{model.path} has the labels {', '.join(model.labels)}, and the rows {', '.join(names)}: begin with the "
            "encoder that it was made from, or leave labels out."
        )
    of_numbers = ("mse", "pearson", "spearman")
    if request.answers == NUMBER and (wrong := [x for x in request.metrics or () if not x.startswith(of_numbers)]):
        raise ValueError(f"metric_names has {wrong[0]}, and the rows have numbers: write mse, pearson or spearmanr.")
    if request.answers == LABEL and "f1" in (request.metrics or ()) and len(names) > 2:
        raise ValueError(
            f"metric_names has f1, which is of two labels, and the rows have {', '.join(names)}: leave it out. The F1 "
            "of each label and their mean, macro_f1, are there without it."
        )
