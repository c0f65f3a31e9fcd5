"""A scoreboard: its rows with their figures, as a table, as Markdown for a model card, and as JSON."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from limba.addons.pairs.scoreboard import comparisons, leaks, measures
from limba.addons.pairs.scoreboard.comparisons import Difference, Side
from limba.addons.pairs.scoreboard.evaluation_sets import EvaluationSet
from limba.addons.pairs.scoreboard.measures import Figure, Figures, Measured
from limba.reports import markdown, results_table

_MISSING = "–"
_NO_BLANKS = "It reads from left to right, and has no blanks."
_ALL_TOUCHED = "All of it stands in the training corpus."
_WITHOUT_LEAKS = "without leaks"
_PHENOMENON = "accuracy %/"
# What the items of a kind of set are called.
_ITEMS = {"texts": "texts", "pairs": "pairs", "retrieval": "queries", "words": "sentences"}


@dataclasses.dataclass
class RowFigures:
    """A row: what was measured of a model, or of a baseline.

    Attributes:
      kind: "T5", "encoder", "decoder", "n-grams" …
      facts: what else the JSON has of it, such as its checkpoint.
      figures, untouched: by the name of a set; the second without the items that stand in the training corpus.
      reasons: by the name of a set, why there is no figure.
      measured: by the name of a set, what the figures are of: of a mean that of each seed.
    """

    title: str
    kind: str
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    figures: dict[str, Figures] = dataclasses.field(default_factory=dict)
    untouched: dict[str, Figures] = dataclasses.field(default_factory=dict)
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)
    measured: dict[str, Sequence[Measured]] = dataclasses.field(default_factory=dict)

    @property
    def label(self) -> str:
        """The title with the step."""
        step = self.facts.get("step")
        return self.title if step is None else f"{self.title}, {step:,}"

    def add(self, of: EvaluationSet, measured: Measured) -> None:
        """The figures of a set, and those without its leaks."""
        self.measured[of.name] = [measured]
        self.figures[of.name] = measured.figures(np.ones(len(of.items), bool))
        if (others := _untouched(of)) is not None:
            self.untouched[of.name] = measured.figures(others)

    def side(self, of: EvaluationSet) -> Side:
        """What is compared with other rows on a set."""
        return Side(self.label, self.measured[of.name])


def mean_row(title: str, rows: Sequence[RowFigures], sets: Sequence[EvaluationSet]) -> RowFigures:
    """The mean of rows that differ by their seed alone."""
    steps = {row.facts.get("step") for row in rows}
    kinds = {row.kind for row in rows}
    facts = {"step": steps.pop() if len(steps) == 1 else None, "seeds": [row.label for row in rows]}
    made = RowFigures(f"{title}, mean of {len(rows)}", kinds.pop() if len(kinds) == 1 else "", facts)
    for of in sets:
        if lacking := [row.reasons[of.name] for row in rows if of.name in row.reasons]:
            made.reasons[of.name] = lacking[0]
            continue
        made.measured[of.name] = measured = [one for row in rows for one in row.measured[of.name]]
        made.figures[of.name] = comparisons.mean_figures(of, measured)
        if (others := _untouched(of)) is not None:
            made.untouched[of.name] = comparisons.mean_figures(of, measured, others)
    return made


def _untouched(of: EvaluationSet) -> np.ndarray | None:
    """The items of a set that do not stand in the training corpus; None if those are all, or none."""
    if of.leaks is None or not of.leaks.touched.any() or of.leaks.touched.all():
        return None
    return ~of.leaks.touched


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table."""

    of: EvaluationSet
    name: str
    is_untouched: bool = False

    @property
    def title(self) -> str:
        return f"{self.of.name} {self.name}" + (f" {_WITHOUT_LEAKS}" if self.is_untouched else "")

    def figure(self, row: RowFigures) -> Figure | None:
        return (row.untouched if self.is_untouched else row.figures).get(self.of.name, {}).get(self.name)

    def reason(self, row: RowFigures) -> str:
        """Why a row has no figure."""
        if self.is_untouched and self.of.leaks is not None and self.of.leaks.touched.all():
            return _ALL_TOUCHED
        # A set that was measured lacks the figures of blanks alone.
        return row.reasons.get(self.of.name) or _NO_BLANKS


@dataclasses.dataclass(frozen=True)
class Board:
    """A scoreboard.

    Attributes:
      corpus: what was read to find leaks, such as {"files": […], "documents": 3, "words": 50}; None if nothing was.
      notes: sentences about all rows.
      differences: of rows from the first one.
    """

    sets: Sequence[EvaluationSet]
    rows: Sequence[RowFigures]
    corpus: Mapping[str, Any] | None
    notes: Sequence[str] = ()
    differences: Sequence[Difference] = ()

    def columns(self) -> list[Column]:
        """Those of each set; without leaks only where there are some."""
        made = []
        for of in self.sets:
            made += [Column(of, name) for name in measures.NAMES[of.kind]]
            if of.leaks is not None and of.leaks.touched.any():
                made.append(Column(of, measures.NAMES[of.kind][0], is_untouched=True))
        return [column for column in made if any(column.figure(row) for row in self.rows) or column.is_untouched]

    def cells(self, columns: Sequence[Column], reasons: dict[str, int]) -> list[list[str]]:
        """The cells of a table of columns, with the head first.

        Args:
          reasons: why there is no number, and what stands for it in the cells; new ones are added.
        """
        lines = [["model", "kind", "step", *(column.title for column in columns)]]
        for row in self.rows:
            cells = []
            for column in columns:
                if (figure := column.figure(row)) is not None:
                    cells.append(shown(figure))
                else:
                    number = reasons.setdefault(column.reason(row), len(reasons) + 1)
                    cells.append(f"{_MISSING} [{number}]")
            step = row.facts.get("step")
            lines.append([row.title, row.kind, "" if step is None else f"{step:,}", *cells])
        if self.corpus is not None:
            lines.append(["share in the training corpus", "", "", *map(_share, columns)])
        return lines

    def phenomena(self, of: EvaluationSet) -> list[list[str]]:
        """The cells of a table of the phenomena of pairs, with the head first; [] where there are fewer than two."""
        rows = [(row.label, row.figures.get(of.name, {})) for row in self.rows]
        names = dict.fromkeys(name for _, figures in rows for name in figures if name.startswith(_PHENOMENON))
        if len(names) < 2:
            return []
        with_some = [(label, figures) for label, figures in rows if names.keys() & figures.keys()]
        lines = [[f"phenomenon of {of.name} (chance: 50)", "pairs", *(label for label, _ in with_some)]]
        for name in names:
            found = [figures[name] for _, figures in with_some]
            lines.append([name.removeprefix(_PHENOMENON), f"{found[0].count:,}", *map(shown, found)])
        return lines

    def sentences(self) -> list[str]:
        """Sentences below the table: what its numbers are of, and what they do not say."""
        found = ["In brackets are 95 % intervals. A rank has none: it is the median of the words or queries."]
        found += [f"{of.name}: {_described(of)}" for of in self.sets]
        if any(of.kind == "texts" for of in self.sets) and len({row.kind for row in self.rows} - {""}) > 1:
            found.append(
                "Losses compare within a kind alone: a T5 and an encoder guess each word with all others in sight, a "
                "decoder and n-grams from left to right."
            )
        if self.corpus is None:
            found.append("Leaks were not looked for: --train FILES names the training corpus.")
        else:
            found.append(
                f"Training corpus: {self.corpus['documents']:,} documents, {self.corpus['words']:,} words. What "
                "else a model has seen is not known."
            )
            if "ngram_tokens" in self.corpus:
                found.append(
                    f"N-grams are of its first {self.corpus['ngram_tokens']:,} tokens, in the pieces of "
                    f"{self.corpus['ngram_pieces_of']}."
                )
        if any(row.facts.get("seeds") for row in self.rows):
            found.append("± is the standard deviation over seeds. Intervals of means are of items and of seeds.")
        if self.differences:
            resamples = f"{comparisons.RESAMPLES:,} resamples"
            found.append(f"Differences from {self.differences[0].base}, by the paired bootstrap ({resamples}):")
            found += [difference.sentence() for difference in self.differences]
        return [*found, *self.notes]

    def text(self) -> str:
        """A table for each set, and the sentences below all of them."""
        reasons = dict[str, int]()
        tables = []
        for of in self.sets:
            cells = self.cells([x for x in self.columns() if x.of is of], reasons)
            for table in (cells, self.phenomena(of)):
                if table:
                    tables.append([*results_table.aligned_behind_names(table), ""])
        return "\n".join([line for table in tables for line in table] + [*_numbered(reasons), *self.sentences()]) + "\n"

    def markdown(self) -> str:
        """One table, one for the phenomena of each set, and a list of the sentences about them."""
        reasons = dict[str, int]()
        lines = self.cells(self.columns(), reasons)
        tables = [lines, *filter(None, map(self.phenomena, self.sets))]
        return (
            "\n".join(map(_markdown, tables))
            + "\n"
            + "".join(f"- {markdown.cell(sentence)}\n" for sentence in [*_numbered(reasons), *self.sentences()])
        )

    def json(self) -> dict[str, Any]:
        """Every figure with its interval and its count, those of phenomena too."""
        return {
            "sets": [
                {"name": of.name, "file": of.file, "kind": of.kind, "items": len(of.items), "leaks": _counts(of)}
                for of in self.sets
            ],
            "rows": [
                {
                    "name": row.title,
                    "kind": row.kind,
                    **row.facts,
                    "figures": _plain(row.figures),
                    "without_leaks": _plain(row.untouched),
                    "reasons": row.reasons,
                }
                for row in self.rows
            ],
            "training_corpus": self.corpus,
            "differences": [difference._asdict() for difference in self.differences],
            "notes": self.sentences(),
        }


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "".join(f"| {' | '.join(map(markdown.cell, line))} |\n" for line in rows)


def _numbered(reasons: Mapping[str, int]) -> list[str]:
    return [f"[{number}] {reason}" for reason, number in reasons.items()]


def shown(figure: Figure) -> str:
    """A figure in a cell, with its interval."""
    digits = 3 if figure.unit == "characters" else 0 if figure.low is None and figure.value.is_integer() else 1
    value = f"{figure.value:,.{digits}f}" + ("" if figure.spread is None else f" ± {figure.spread:,.{digits}f}")
    if figure.low is None or figure.high is None:
        return value
    return f"{value} ({figure.low:,.{digits}f} to {figure.high:,.{digits}f})"


def _share(column: Column) -> str:
    touched = column.of.leaks
    if touched is None or column.is_untouched:
        return ""
    return f"{100 * touched.touched.mean():.1f} %"


def _described(of: EvaluationSet) -> str:
    items = f"{len(of.items):,} {_ITEMS[of.kind]} of {of.file}"
    if of.kind == "texts":
        items += f", {measures.lengths_of(of.texts).sum():,} characters"
    if of.leaks is None:
        return f"{items}."
    found = _counts(of)
    assert found is not None
    short = ""
    if found["short"]:
        short = f" {found['short']:,} have fewer than {leaks.SHORTEST} words, and were looked for as lines alone."
    return (
        f"{items}. {found['touched']:,} stand in the training corpus: {found['in_a_row']:,} with {leaks.NGRAM} words "
        f"in a row, or all of a shorter text, and {found['whole']:,} as a line.{short}"
    )


def _counts(of: EvaluationSet) -> dict[str, int] | None:
    if of.leaks is None:
        return None
    found = {"touched": of.leaks.touched, "in_a_row": of.leaks.in_a_row, "whole": of.leaks.whole}
    return {name: int(x.sum()) for name, x in (found | {"short": of.leaks.is_short}).items()}


def _plain(figures: Mapping[str, Figures]) -> dict[str, dict[str, Any]]:
    return {of: {name: dataclasses.asdict(figure) for name, figure in found.items()} for of, found in figures.items()}
