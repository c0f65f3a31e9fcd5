"""The data that the keys of a Hugging Face script name: where they are, which splits they have, how many examples."""

import dataclasses
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons.run.keys import script_names
from limba.addons.run.keys.request import Request
from limba.addons.run.keys.row_answers import LABEL, NUMBER, TEXT, WORD_LABELS
from limba.addons.run.plan import BUFFER, Corpus, Counted
from limba.files import redaction
from limba.files.local_paths import local_path

logger = logging.getLogger(__name__)

_SPLITS = ("train", "training", "validation", "test")
# Bytes of text a token beyond which files surely fill the buffers, and are not tokenized to find it out.
_BYTES_OF_TOKEN = 8
MOST = {"train": "max_train_samples", "validation": "max_eval_samples", "test": "max_predict_samples"}
# Of the length of labels, as in `limba.inference.text_batches`.
_MULTIPLE = 8


def task_name(corpus: str) -> str:
    """A name for SeqIO, of letters, digits and underscores."""
    return re.sub(r"\W+", "_", corpus).strip("_") or "corpus"


def find(request: Request) -> Corpus:
    """Finds the data. Without a validation split, and if there is to be an evaluation, the script decides.

    Raises:
      FileNotFoundError, ValueError: if there are none, or a split is missing.
    """
    corpus, splits = find_whole(request)
    if request.do_predict and "test" not in splits:
        raise ValueError(
            f"do_predict answers the split 'test', and {corpus.name!r} has {_listed(splits)}: give --test_file."
        )
    if request.do_train and "train" not in splits:
        raise ValueError(
            f"{corpus.name!r} has no split 'train' to learn from; it has {_listed(splits)}: give --train_file."
        )
    parts = dict(corpus.splits or {split: split for split in splits})
    if "validation" not in splits and request.do_eval:
        share = request.validation_split_percentage
        parts |= _evaluated(corpus, splits, request.script, request.is_finetuning, share)
    for split, key in MOST.items():
        most = getattr(request, key)
        if most is not None and split in parts:
            parts[split] = f"{parts[split]}[:{most}]"
    changed = corpus.splits is not None or parts != {split: split for split in splits}
    return dataclasses.replace(
        corpus,
        splits=parts if changed else None,
        has_validation="validation" in parts and request.do_eval,
        has_test="test" in parts,
    )


def _evaluated(corpus: Corpus, splits: Sequence[str], script: str | None, of_rows: bool, share: int) -> dict[str, str]:
    """The parts of splits where there is no validation split: each script has its way, and the log says which.

    Args:
      of_rows: whether rows with answers are learned.
      share: of the training documents that is held out, in percent.

    Raises:
      ValueError: where the script of rows with answers stops, or there is nothing to hold out.
    """
    if of_rows and script == script_names.CLASSES and "test" in splits:
        logger.warning(
            "There is no validation split: the split 'test' is evaluated, as run_classification.py does it. A "
            "checkpoint that is chosen by it is chosen by the test; --validation_file names other rows."
        )
        return {"validation": "test"}
    unread = _unread(corpus, splits)
    if of_rows or "train" not in splits:
        raise ValueError(
            f"{corpus.name!r} has no split 'validation' to evaluate; it has {_listed(splits)}: give "
            f"--validation_file.{unread}"
        )
    logger.info(
        "There is no validation split: the first %d %% of the training documents are held out, as run_mlm.py does "
        "it.%s",
        *(share, unread),
    )
    return {"train": f"train[{share}%:]", "validation": f"train[:{share}%]"}


def find_whole(request: Request) -> tuple[Corpus, list[str]]:
    """The data with all their splits, and the names of these."""
    from limba.tasks.pretraining import masked_text
    from limba.tasks.supervised import dataset_table

    files: Mapping[str, list[str]] | None = None
    class_names: Mapping[str, tuple[str, ...]] = {}
    folder = request.dataset_name if request.benchmark is None else None
    given = {"train": request.train_file, "validation": request.validation_file, "test": request.test_file}
    for split, file in given.items():
        if file is not None and local_path(file).is_dir():
            names = f"{file.rstrip('/')}/*.jsonl"
            raise ValueError(f"{split}_file is {file!r}, a folder: name its files, as {names}, or write dataset_name.")
    if folder is not None and local_path(f"{folder}.bin").is_file():
        raise ValueError(
            f"dataset_name is {folder!r}, and {folder}.bin holds tokens that Megatron has indexed; give the texts that "
            "they were made of."
        )
    if folder is not None and Path(folder).expanduser().is_dir():
        files, class_names = _files_of_folder(
            local_path(folder), request.dataset_config_name, local_path(request.output_dir)
        )
        name = local_path(folder).name
    elif any(given.values()):
        files = {
            split: [redaction.hide(file) if "://" in file else str(local_path(file))]
            for split, file in given.items()
            if file is not None
        }
        first = Path(redaction.without_credentials(next(filter(None, given.values()))))
        name = request.entry or first.stem
        # A task is not a split: that of train.csv is named for its folder, as that of *.jsonl is.
        if name == "*" or (request.is_finetuning and name in _SPLITS):
            name = first.parent.absolute().name
    if files is not None:
        return Corpus(task_name(name), files, class_names=class_names), list(files)
    if request.entry is not None:
        entry = dataset_table.find_dataset(request.entry)
        assert entry.splits is not None
        return Corpus(request.entry, splits=entry.splits), list(entry.splits)
    dataset, config = request.dataset_name, request.dataset_config_name
    source = masked_text.open_source(None, dataset, config, None, request.text_column)
    splits = list(source.own_splits)  # type: ignore[attr-defined]  # of a data set on the hub
    return Corpus(task_name(f"{dataset}_{config or ''}"), None, dataset, config), splits


def _files_of_folder(
    folder: Path, config: str | None, without: Path
) -> tuple[Mapping[str, list[str]], Mapping[str, tuple[str, ...]]]:
    """The files of a data set's folder by split, as the scripts find them, and the names that its card has."""
    from limba.tasks.sources import dataset_layout

    found = dataset_layout.of_folder(folder, config, without=without)
    if found.load_args:
        raise ValueError(
            f"README.md of {folder} says how its files are read, {dict(found.load_args)}, and `limba run` reads none "
            "so: name the files with train_file and validation_file, if they can be read without it."
        )
    return found.files, found.class_names


def _unread(corpus: Corpus, splits: Sequence[str]) -> str:
    """A sentence about the split "test", which is there and never chooses a model; empty if it is not there."""
    if "test" not in splits:
        return ""
    files = (corpus.files or {}).get("test", ())
    which = f", {', '.join(Path(file).name for file in files[:3])}{' …' if len(files) > 3 else ''}," if files else ""
    return f" The split 'test'{which} is for do_predict: --validation_file evaluates its files."


def _listed(splits: Sequence[str]) -> str:
    return ", ".join(map(repr, splits)) or "none"


def count_examples(request: Request, corpus: Corpus, vocabulary: Any, is_encoder: bool = False) -> Counted:
    """Counts the training examples of an epoch, where something needs it.

    Opens the splits in any case, which finds missing files and columns now.
    """
    if request.is_finetuning:
        return _count_rows(request, corpus, vocabulary)
    from limba.addons.run import counted_documents
    from limba.tasks import objectives
    from limba.tasks.pretraining import masked_text

    column = request.text_column
    source = masked_text.open_source(corpus.files, corpus.dataset, corpus.dataset_config, corpus.splits, column)
    for split in request.used_splits:
        counted_documents.check(source, split, column)
    counts = request.counts_examples(source.is_remote)
    if not (counts or (request.do_train and not source.is_remote("train"))):
        return Counted()
    opened = masked_text.open_vocabulary(vocabulary)
    objective: objectives.Objective
    if is_encoder:
        objective = masked_lm(request.mlm_probability, request.use_nsp, vocabulary)
    elif request.task == "prefix_lm":
        objective = objectives.PrefixLM()
    else:
        objective = objectives.SpanCorruption(request.mlm_probability, request.mean_noise_span_length)
    length = request.inputs_length
    fills_buffers = source.num_bytes("train") > BUFFER * objective.raw_length(length) * _BYTES_OF_TOKEN
    if not counts and fills_buffers and request.max_train_samples is None:
        return Counted(buffer=BUFFER)
    if request.line_by_line and not is_encoder:
        logger.warning("Without effect: line_by_line (it is a key of run_mlm.py, and a T5 learns full rows).")
    if request.line_by_line and is_encoder:
        number, is_exact = counted_documents.count_lines(source, "train", column), True
        if not counts:
            return Counted(buffer=min(BUFFER, number))
    elif not counts:
        tokens, _ = counted_documents.count_tokens(source, "train", column, opened)
        return Counted(buffer=min(BUFFER, max(1, tokens // objective.raw_length(length))))
    else:
        number, is_exact = counted_documents.count_examples(source, "train", column, opened, objective, length)
    return Counted(number, is_exact, min(BUFFER, number), drops_last=not is_encoder)


def masked_lm(share: float, of_pairs: bool, vocabulary: Any) -> Any:
    """The objective of an encoder's documents, an `objectives.MaskedLM`; rows are framed as its tokenizer frames them.

    Args:
      share: of the tokens, that is masked.
      of_pairs: whether the next sentence is predicted, too.
      vocabulary: as run.json describes it.
    """
    from limba.tasks import objectives
    from limba.tasks.pretraining import masked_text
    from limba.tasks.vocabularies import sentencepiece_models

    if of_pairs:
        return objectives.MaskedLM(share, pairs="next_sentence")
    before, behind = sentencepiece_models.ids_of(masked_text.open_vocabulary(vocabulary)).frame
    return objectives.MaskedLM(share, frame=(len(before), len(behind)))


def row_form(request: Request) -> Any:
    """How rows become examples, and the metrics of answers: a data set of `tasks.supervised`."""
    from limba.addons.run import script_task

    if request.answers == WORD_LABELS:
        return script_task.word_dataset(*request.word_values)
    return script_task.row_dataset(*request.row_values)


def length_of_labels(form: Any, vocabulary: Any) -> int | None:
    """Tokens of a T5's answers that are a closed set of labels: of the longest, rounded up; None for other answers.

    Padding to 128 would cost time.

    Args:
      form: that of `row_form`.
      vocabulary: as run.json describes it.
    """
    from limba.tasks.pretraining import masked_text
    from limba.tasks.supervised.row_formats import Template

    if not isinstance(form.format, Template) or not form.format.choices:
        return None
    choices = form.format.choices
    opened = masked_text.open_vocabulary(vocabulary)
    longest = max(len(opened.encode(label)) for label in choices) + 1  # and EOS
    length = -(-longest // _MULTIPLE) * _MULTIPLE
    logger.info(
        "The longest of the %d labels has %d tokens with EOS: targets have %d (max_target_length says another length).",
        *(len(choices), longest, length),
    )
    return length


def within(length: int, most: int | None) -> int:
    """The length of inputs, where the script cuts them at the tokenizer's `model_max_length`, `most`."""
    if most is None or length <= most:
        return length
    logger.warning(
        "Rows have at most %d tokens, and not %d: model_max_length of the tokenizer says so, as in the script.",
        *(most, length),
    )
    return most


def _count_rows(request: Request, corpus: Corpus, vocabulary: Any) -> Counted:
    from limba.addons.run import script_task

    form = row_form(request)
    _check_metrics(request, form)
    source = script_task.open_source(form, corpus.files, corpus.dataset, corpus.dataset_config, corpus.splits)
    for split in request.used_splits:
        source.check(split)
        lengths = {"inputs": request.inputs_length}
        if request.answers == TEXT and split != "test":
            lengths["targets"] = request.target_length if split == "train" else request.eval_target_length
        _check_rows(corpus.name, form, source, split, vocabulary, request.answers, lengths)
    if request.counts_examples(source.is_remote):
        number = _num_examples(form, source)
        return Counted(number, buffer=min(BUFFER, number))
    if not request.do_train:
        return Counted()
    most = min(BUFFER, request.max_train_samples or BUFFER)
    # A large file elsewhere is not read, and is taken to have them.
    return Counted(buffer=most if source.has_documents("train", most) else source.count_documents("train"))


def _num_examples(form: Any, source: Any) -> int:
    """Rows of the training split; without those that make no example, unless they are far away and not read."""
    from limba.tasks.supervised.complete_rows import CompleteTemplate

    if isinstance(getattr(form, "format", None), CompleteTemplate) and not source.is_remote("train"):
        return sum(bool(form.format(row)) for _, _, row in source.numbered_documents("train"))
    return sum(map(len, source.documents("train")))


def _check_rows(
    name: str, form: Any, source: Any, split: str, vocabulary: Any, answers: str, lengths: Mapping[str, int]
) -> None:
    """Makes examples of the first rows, as the training does before its first step, and warns of what it finds.

    Raises ValueError for a row that makes none, such as one with an unknown label.
    """
    from limba.tasks import supervised
    from limba.tasks.pretraining import masked_text
    from limba.tasks.registry import Feature
    from limba.tasks.supervised import row_preprocessor
    from limba.tasks.supervised.row_formats import Template
    from limba.tasks.vocabularies import LabelVocabulary

    is_of_words = answers == WORD_LABELS
    step = supervised.LabelTokens(name, form) if is_of_words else row_preprocessor.Supervise(name, form.format)
    feature = Feature(masked_text.open_vocabulary(vocabulary), add_eos=True)
    features = {"inputs": feature, "targets": feature}
    if answers == LABEL and isinstance(form.format, Template):
        features["targets"] = Feature(LabelVocabulary(form.format.choices), add_eos=False)
    found = step.check_rows(source, split, features, lengths)
    of_answers = ("empty_rows", "unanswered_questions")
    row_preprocessor.warn(x for x in found if split != "test" or x.name not in of_answers)  # These get their answers.


def _check_metrics(request: Request, form: Any) -> None:
    """Raises if a metric of texts lacks its package, or none is `metric_for_best_model`: both would stop a training."""
    from limba.tasks.metrics import text_metrics

    of_texts: list[Callable[..., Mapping[str, Any]]] = [text_metrics.accuracy, text_metrics.bleu, text_metrics.rouge]
    of_texts += [text_metrics.squad, text_metrics.squad_v2, text_metrics.trivia_qa]
    # Answers of every kind, so that the metrics of encoders give all their names; those of texts need a text.
    answers: dict[str, Callable[[], list[Any]]] = {
        LABEL: lambda: [form.format.prediction(choice) for choice in form.format.choices],
        NUMBER: lambda: [0.0, 1.0],
        WORD_LABELS: lambda: [[*(request.labels or ())]],
    }
    given = answers.get(request.answers, lambda: ["a"])()
    of_form = {metric: getattr(metric, "__wrapped__", metric) for metric in form.metrics}
    taken = [metric for metric, inner in of_form.items() if request.answers in answers or inner in of_texts]
    known = [name for metric in taken for name in metric(given, given)]
    writes = request.answers not in answers
    known += ["tokens_per_prediction"] if writes else []
    folder, name = request.measured
    name = name.removeprefix("eval/")
    if request.looks_at_best and folder == "inference_eval" and name not in known and len(taken) == len(form.metrics):
        raise ValueError(
            f"metric_for_best_model is {request.metric_for_best_model!r}, and the evaluations have loss, "
            f"{', '.join([*known[:-1], 'gen_len'] if writes else known)}: write one of these, or metric_names."
        )
