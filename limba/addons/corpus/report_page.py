"""What comes with a corpus: a page about it, a card, and the same figures as JSON. No page has a script."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from limba.addons.corpus.counts import Counts
from limba.addons.corpus.recipe_file import Recipe
from limba.reports.markdown import cell

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1000px; margin: 0 auto; padding: 0 16px 60px }
h1 { font-size: 21px; overflow-wrap: anywhere } h2 { font-size: 18px; margin: 30px 0 6px }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 14px }
th, td { padding: 3px 14px 3px 0; border-bottom: 1px solid #8884; text-align: left; vertical-align: top }
th { vertical-align: bottom } th, .note { opacity: .75 }
.n { text-align: right; font-variant-numeric: tabular-nums }
.bar { background: #3080c0; height: 11px; margin-top: 5px } .share { min-width: 120px }
pre { background: #8882; padding: 8px; white-space: pre-wrap; overflow-wrap: anywhere }
pre { unicode-bidi: plaintext; font-size: 13px; max-height: 260px; overflow-y: auto }
@media (max-width: 640px) { th, td { padding-right: 6px; font-size: 12px } .share { display: none } }
"""
# A task's name, in the program of the card, is of letters, digits and "_".
_NO_NAME = re.compile(r"\W")
# What datatrove's names of rules mean; "#" is a number in them.
_MEANINGS = {
    "near duplicate": "most of it stands in another document, too",
    "in an evaluation file": "it has words in a row of an evaluation file",
    "another language": "the model takes it for another language",
    "word_budget": "beyond the budget of words",
    "empty": "it has no text",
    "dup_line_frac": "too many of its lines came before in it",
    "char_dup_ratio": "lines that came before in it are too much of it",
    "top_#_gram": "its most frequent # words in a row are too much of it",
    "duplicated_#_n_grams": "what comes again of # words in a row is too much of it",
    "line_punct_ratio": "too few of its lines end as sentences do",
    "list_ratio": "too few words for its lines, as in lists",
    "gopher_short_doc": "fewer words than min_words",
    "gopher_long_doc": "more than 100,000 words",
    "gopher_below_avg_threshold": "its words are too short on average",
    "gopher_above_avg_threshold": "its words are too long on average",
    "gopher_too_many_hashes": "too many # for its words",
    "gopher_too_many_ellipsis": "too many … for its words",
    "gopher_too_many_bullets": "too many of its lines are items of lists",
    "gopher_too_many_end_ellipsis": "too many of its lines end with …",
    "gopher_below_alpha_threshold": "too few of its words have a letter",
    "gopher_enough_stop_words": "fewer than two of the frequent words",
}


def page(recipe: Recipe, counts: Counts, notes: Sequence[str]) -> str:
    """HTML in one file: sources, rules with examples, languages, lengths."""
    before = sum(x.get("documents", 0) for x in counts.read.values())
    parts = [f"<h1>{_text(recipe.file.stem)}, {_text(recipe.language)}</h1>"]
    parts += [f'<p class="note">{_text(note)}</p>' for note in notes]
    rows = []
    for source in recipe.sources:
        old, new = (part.get(source.name, {}) for part in (counts.read, counts.kept))
        beside = (source.name, f"license: {source.license or 'not said'}", "")
        for name, key in zip(beside, ("documents", "words", "characters"), strict=True):
            figures = old.get(key, 0), new.get(key, 0)
            rows.append([name, key, *figures, _share(figures[1], figures[0])])
    parts += ["<h2>Sources</h2>", _table(["source", "", "read", "kept", "of read"], rows)]
    rules = sorted(counts.rules.items(), key=lambda found: (-found[1], found[0]))
    shares = [[rule, _meaning(rule), number, _share(number, before)] for rule, number in rules]
    parts += ["<h2>Left out, by the first rule that a document breaks</h2>"]
    parts.append(_table(["rule", "why", "documents", "of all"], shares, bar=True) if shares else "<p>No document.</p>")
    if counts.languages:
        parts += ["<h2>Other languages</h2>", _table(["the model's label", "documents"], [*counts.languages.items()])]
    total = sum(counts.lengths.values())
    by_bits = {int(bits): number for bits, number in counts.lengths.items()}
    lengths = [
        [f"{2 ** (bits - 1):,} to {2**bits - 1:,}", by_bits.get(bits, 0), _share(by_bits.get(bits, 0), total)]
        for bits in range(min(by_bits, default=0), max(by_bits, default=-1) + 1)
    ]
    parts += [
        "<h2>Characters of kept documents</h2>",
        _table(["characters", "documents", "of kept"], lengths, bar=True),
    ]
    if counts.skipped:
        parts += [f"<h2>Not read: {len(counts.skipped):,}</h2>"]
        parts += [f"<pre>{_text(line)}</pre>" for line in counts.skipped[:10]]
    for rule, texts in sorted(counts.examples.items(), key=lambda found: -counts.rules.get(found[0], 0)):
        parts.append(f"<h2>Left out: {_text(rule)}</h2>")
        if why := _meaning(rule):
            parts.append(f'<p class="note">{_text(why)}</p>')
        parts += [f"<pre>{_text(text)}</pre>" for text in texts]
    title = _text(recipe.file.stem)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{"".join(parts)}'
        "</body></html>\n"
    )


def card(recipe: Recipe, counts: Counts, notes: Sequence[str], hashes: Mapping[str, str]) -> str:
    """A card for the hub, in Markdown: sources, licences, rules, counts, hashes, and how Limba reads the corpus."""
    licenses = ", ".join(sorted({cell(source.license or "not said") for source in recipe.sources}))
    lines = ["---", "language:", f"- {recipe.language.partition('_')[0]}", "task_categories:", "- fill-mask"]
    lines += ["configs:"]
    for source in recipe.sources:
        if source.name in counts.kept:
            lines += [f"- config_name: {source.name}", f"  data_files: {source.name}/*.jsonl.zst"]
    lines += ["---", f"# {cell(recipe.file.stem)}", "", f"Language: {recipe.language}. Licences: {licenses}.", ""]
    lines += [
        *map(cell, notes),
        "",
        "| source | origin | licence | documents read | kept | words kept |",
        "|---|---|---|---|---|---|",
    ]
    for source in recipe.sources:
        old, new = (part.get(source.name, {}) for part in (counts.read, counts.kept))
        figures = f"{old.get('documents', 0):,} | {new.get('documents', 0):,} | {new.get('words', 0):,}"
        origin, terms = (cell(text or "not said") for text in (source.origin, source.license))
        lines.append(f"| {source.name} | {origin} | {terms} | {figures} |")
    lines += ["", "| left out by | documents |", "|---|---|"]
    lines += [f"| {cell(rule)} | {number:,} |" for rule, number in counts.rules.items()]
    lines += ["", "To train on it with Limba:", "", "```python", *_registration(recipe, counts), "```", ""]
    lines += ["| file | SHA-256 |", "|---|---|", *(f"| {name} | `{value}` |" for name, value in hashes.items())]
    return "\n".join(lines) + "\n"


def _registration(recipe: Recipe, counts: Counts) -> list[str]:
    """The tasks of a module of the user's: one a source, and where there are several, their mixture."""
    names = [source.name for source in recipe.sources if source.name in counts.kept]
    stem = _NO_NAME.sub("_", recipe.file.stem)
    lines = ["from tasks import pretraining, vocabularies", "from tasks.registry import mixtures", ""]
    lines = lines if len(names) > 1 else [lines[0], ""]
    lines += ['vocabulary = vocabularies.SentencePieceVocabulary("spiece.model")']
    sizes = []
    for name in names:
        task = f"{stem}_{_NO_NAME.sub('_', name)}"
        sizes.append(f'"{task}": {counts.kept[name]["characters"]}')
        files = f'{{"train": "{name}/*.jsonl.zst"}}'
        lines.append(f'pretraining.register_pretraining_task("{task}", data_files={files}, vocabulary=vocabulary)')
    if len(names) > 1:
        lines += ["# A temperature above 1 takes more of small sources.", f'mixtures.register_mixture("{stem}", ']
        lines[-1] += f"{{{', '.join(sizes)}}}, temperature=1 / 0.3)"
    return lines


def _share(number: int, total: int) -> float:
    return number / total if total else 0.0


def _meaning(rule: str) -> str:
    number = "".join(filter(str.isdigit, rule))
    return _MEANINGS.get(rule.replace(number, "#", 1) if number else rule, "").replace("#", number or "#")


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]], bar: bool = False) -> str:
    kinds = [_class(value) for value in rows[0]] if rows else [""] * len(heads)
    named = [f"<th{kind}>{_text(head)}</th>" for head, kind in zip(heads, kinds, strict=True)]
    body = []
    for row in rows:
        cells = [f"<td>{_text(row[0]).replace('_', '_<wbr>')}</td>"]
        for value in row[1:]:
            shown = f"{value:.2%}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
            cells.append(f"<td{_class(value)}>{_text(shown)}</td>")
        if bar:
            cells.append(f'<td class="share"><div class="bar" style="width:{100 * row[-1]:.1f}%"></div></td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    last = '<th class="share"></th>' * bar
    head = f"<tr>{''.join(named)}{last}</tr>"
    return f'<div class="wide"><table>{head}{"".join(body)}</table></div>'


def _text(value: Any) -> str:
    return html.escape(str(value))


def _class(value: Any) -> str:
    return ' class="n"' if isinstance(value, int | float) else ""
