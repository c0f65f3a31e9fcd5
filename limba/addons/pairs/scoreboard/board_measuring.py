"""The rows of `limba scoreboard` measured one after the other, beside n-grams of the training corpus and chance."""

import argparse
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gin
from tqdm import tqdm

from limba.addons.pairs import model_forms, pair_ngrams, word_files
from limba.addons.pairs.scoreboard import baselines, board_rows, comparisons, evaluation_sets
from limba.addons.pairs.scoreboard.board import Board, RowFigures, mean_row
from limba.addons.pairs.scoreboard.board_rows import BoardRow
from limba.addons.pairs.scoreboard.evaluation_sets import Asked, EvaluationSet
from limba.addons.pairs.scoreboard.leaks import LeakFinder
from limba.addons.pairs.scoreboard.measures import Measurer
from limba.addons.pairs.word_files import LabelledSentence

logger = logging.getLogger(__name__)

NGRAM_TOKENS = 5_000_000
_KINDS = {"FilledBlanks": "T5", "MaskedWords": "encoder", "WholeSentences": "decoder"}
_OTHER_KINDS = {"EncoderClassifier": "classifier"}


def measure(flags: argparse.Namespace, models: Sequence[str], which: str) -> Board:
    """The scoreboard that the flags of `board_command` ask for.

    Args:
      which: of the checkpoints of runs, as `board_rows.find` takes it.

    Raises:
      ValueError, OSError: for bad input, before a model is measured; if nothing could be measured.
    """
    columns = {name: getattr(flags, f"{name}_column") for name in ("text", "good", "bad", "phenomenon")}
    columns["label"] = flags.word_label
    rows = board_rows.find(models, which)
    column = flags.train_column or "text"
    source = evaluation_sets.corpus(flags.train, column) if flags.train else None
    sets = evaluation_sets.read(Asked(flags.text, flags.pairs, flags.retrieval, flags.words, columns))
    labelled = [sentence for file in flags.train_words for sentence in word_files.read(file, flags.word_label)]
    with tempfile.TemporaryDirectory(prefix="limba-scoreboard-") as runs:
        board = _board(board_rows.with_runs(rows, Path(runs)), sets, source, column, labelled, flags)
    gin.clear_config()
    return board


def _board(
    rows: Sequence[BoardRow],
    sets: Sequence[EvaluationSet],
    source: Any,
    column: str,
    labelled: Sequence[LabelledSentence],
    flags: argparse.Namespace,
) -> Board:
    corpus, below = None, list[RowFigures]()
    if source is not None:
        sets, corpus, below = _read_corpus(rows, sets, source, column, flags)
    if labelled:
        below.append(_of_majority(labelled, sets))
    measured = [_measured(i, rows, sets, flags) for i in range(len(rows))]
    shown, alone = _with_means(rows, measured, sets)
    if not any(row.figures for row in measured):
        raise ValueError(f"Nothing could be measured. {next(iter(measured[0].reasons.values()))}")
    guess = RowFigures("chance", "")
    for of in sets:
        if found := baselines.chance(of):
            guess.figures[of.name] = guess.untouched[of.name] = found
        else:
            guess.reasons[of.name] = baselines.NO_CHANCE
    notes = []
    if any(of.kind == "pairs" for of in sets):
        usual = "the words that differ, of decoders the whole sentence (docs/scores.md)"
        notes.append(f"What is scored of pairs: {flags.score or usual}.")
    differences = [*_differences([*alone, *below], sets)] if flags.compare else []
    return Board(sets, [*shown, *below, *([guess] if guess.figures else [])], corpus, notes, differences)


def _with_means(
    rows: Sequence[BoardRow], measured: Sequence[RowFigures], sets: Sequence[EvaluationSet]
) -> tuple[list[RowFigures], list[RowFigures]]:
    """The rows with the mean of each group of seeds behind its last one; and those without the single seeds."""
    shown, alone = list[RowFigures](), list[RowFigures]()
    groups = _groups(rows)
    for number, (row, figures) in enumerate(zip(rows, measured, strict=True)):
        shown.append(figures)
        if not row.group:
            alone.append(figures)
            continue
        places = [i for i, group in enumerate(groups) if group == groups[number]]
        if places[-1] == number:
            title = f"{row.group}, average" if row.is_average else row.group
            mean = mean_row(title, [measured[i] for i in places], sets)
            shown.append(mean)
            alone.append(mean)
    return shown, alone


def _groups(rows: Sequence[BoardRow]) -> list[tuple[str, bool, int]]:
    """Of each row what it has in common with the other seeds: of several checkpoints of a run also the number."""
    sources = [(row.group, row.is_average, row.name) for row in rows]
    return [(*source[:2], sources[:i].count(source)) for i, source in enumerate(sources)]


def _differences(rows: Sequence[RowFigures], sets: Sequence[EvaluationSet]) -> Iterator[comparisons.Difference]:
    for of in sets:
        sides = [row.side(of) for row in rows if of.name in row.measured]
        yield from comparisons.differences(of, sides)


def _measured(number: int, rows: Sequence[BoardRow], sets: Sequence[EvaluationSet], flags: Any) -> RowFigures:
    """The figures of a row; what the model cannot be asked has a reason in their place."""
    row = rows[number]
    logger.info("model %d of %d: %s%s", number + 1, len(rows), row.title, "" if row.step is None else f", {row.step}")
    opened = board_rows.open_row(row)
    facts = {"source": row.name, "step": row.step, "average": row.is_average}
    try:
        kind = _KINDS[model_forms.form_of(opened.model)]
    except ValueError:
        kind = _OTHER_KINDS.get(type(opened.model).__name__, type(opened.model).__name__)
    figures = RowFigures(row.title, kind, facts)
    measurer = Measurer(opened, opened.params(), flags.mode or "", flags.score)
    for of in sets:
        try:
            figures.add(of, measurer.measure(of))
        except ValueError as error:
            figures.reasons[of.name] = f"{row.title}: {error}"
            logger.warning("%s on %s is left out: %s", row.title, of.name, error)
    return figures


def _of_majority(labelled: Sequence[LabelledSentence], sets: Sequence[EvaluationSet]) -> RowFigures:
    made = RowFigures(baselines.MAJORITY, "")
    for of in sets:
        made.reasons[of.name] = baselines.NO_MAJORITY
        if of.kind == "words":
            try:
                made.add(of, baselines.majority(of, labelled))
                del made.reasons[of.name]
            except ValueError as error:
                made.reasons[of.name] = str(error)
    return made


# ------------------------------------------------ the training corpus -----------------------------------------------


def _read_corpus(
    rows: Sequence[BoardRow], sets: Sequence[EvaluationSet], source: Any, column: str, flags: argparse.Namespace
) -> tuple[list[EvaluationSet], dict[str, Any], list[RowFigures]]:
    """The sets with their leaks, facts about the corpus, and the rows of n-grams; the corpus is read once."""
    finder = LeakFinder([text for of in sets for text in of.texts])
    named = _first_with_words(rows)
    counter = None
    if named is not None and any(of.kind in ("texts", "pairs") for of in sets):
        counter = baselines.NgramCounter(named[2], flags.ngram_tokens or NGRAM_TOKENS)
    readers = [finder, *([] if counter is None else [counter])]
    with tqdm(desc="training corpus", unit=" documents", unit_scale=True, disable=None) as bar:
        for count in baselines.read_once(evaluation_sets.documents(source, column), readers):
            bar.update(count)
    leaks, begin = finder.result(), 0
    with_leaks = []
    for of in sets:
        end = begin + len(of.texts)
        with_leaks.append(of.with_leaks(leaks.part(slice(begin, end))))
        begin = end
    facts = {"files": list(flags.train), "documents": finder.num_documents, "words": finder.num_words}
    if counter is None or named is None:
        return with_leaks, facts, []
    facts |= {"ngram_tokens": counter.counts.num_tokens, "ngram_pieces_of": named[0].title}
    return with_leaks, facts, [*_of_ngrams(counter, named, with_leaks)]


def _first_with_words(rows: Sequence[BoardRow]) -> tuple[BoardRow, str, Any] | None:
    """The first row whose model scores texts, its format, and its vocabulary, in whose pieces n-grams are counted."""
    for row in rows:
        model = board_rows.open_row(row).model
        try:
            return row, model_forms.form_of(model), model.input_vocabulary
        except ValueError:
            continue
    return None


def _of_ngrams(
    counter: baselines.NgramCounter, named: tuple[BoardRow, str, Any], sets: Sequence[EvaluationSet]
) -> Iterator[RowFigures]:
    _, form, vocabulary = named
    made = {name: RowFigures(name, "n-grams") for name in pair_ngrams.NAMES.values()}
    for of in sets:
        found = baselines.measure(of, counter.counts, form, vocabulary)
        for name, figures in made.items():
            if name in found:
                figures.add(of, found[name])
            else:
                figures.reasons[of.name] = baselines.WITHOUT[of.kind]
    yield from made.values()
