"""What comes with a corpus: a page about it, a card, and the same figures as JSON. No page has a script."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from limba.addons.corpus.counts import Counts
from limba.addons.corpus.recipe_file import Recipe

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 0 auto; padding: 0 16px 60px }
h1 { font-size: 21px; overflow-wrap: anywhere } h2 { font-size: 18px; margin: 30px 0 6px }
table { border-collapse: collapse; font-size: 14px } th, td { padding: 3px 14px 3px 0; border-bottom: 1px solid #eee }
th { text-align: left; color: #555 } td.n { text-align: right; font-variant-numeric: tabular-nums }
.bar { background: #0060a0; height: 11px } .share { width: 240px }
pre { background: #f6f6f6; padding: 8px; white-space: pre-wrap; overflow-wrap: anywhere }
pre { unicode-bidi: plaintext; font-size: 13px }
.note { color: #666 }
"""


def page(recipe: Recipe, counts: Counts, notes: Sequence[str]) -> str:
    """HTML in one file: sources, rules with examples, languages, lengths."""
    before = sum(x.get("documents", 0) for x in counts.read.values())
    parts = [f"<h1>{_text(recipe.file.stem)}, {_text(recipe.language)}</h1>"]
    parts += [f'<p class="note">{_text(note)}</p>' for note in notes]
    rows = []
    for source in recipe.sources:
        old, new = (part.get(source.name, {}) for part in (counts.read, counts.kept))
        figures = [x.get(key, 0) for key in ("documents", "words", "characters") for x in (old, new)]
        rows.append([source.name, *figures, source.license or "not said"])
    heads = ["source", "documents read", "kept", "words read", "kept", "characters read", "kept", "license"]
    parts += ["<h2>Sources</h2>", _table(heads, rows)]
    shares = [[rule, number, _share(number, before)] for rule, number in counts.rules.items()]
    parts += ["<h2>Left out, by the first rule that a document breaks</h2>"]
    parts.append(_table(["rule", "documents", "of all"], shares, bar=True) if shares else "<p>No document.</p>")
    if counts.languages:
        parts += ["<h2>Other languages</h2>", _table(["the model's label", "documents"], [*counts.languages.items()])]
    total = sum(counts.lengths.values())
    lengths = [
        [f"{2 ** (int(bits) - 1):,} to {2 ** int(bits) - 1:,}", number, _share(number, total)]
        for bits, number in counts.lengths.items()
    ]
    parts += [
        "<h2>Characters of kept documents</h2>",
        _table(["characters", "documents", "of kept"], lengths, bar=True),
    ]
    if counts.skipped:
        parts += [f"<h2>Not read: {len(counts.skipped):,}</h2>"]
        parts += [f"<pre>{_text(line)}</pre>" for line in counts.skipped[:10]]
    for rule, texts in counts.examples.items():
        parts.append(f"<h2>Left out: {_text(rule)}</h2>")
        parts += [f"<pre>{_text(text)}</pre>" for text in texts]
    title = _text(recipe.file.stem)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{"".join(parts)}'
        "</body></html>\n"
    )


def card(recipe: Recipe, counts: Counts, notes: Sequence[str], hashes: Mapping[str, str]) -> str:
    """A card for the hub, in Markdown: sources, licences, rules, counts, hashes, and how Limba reads the corpus."""
    licenses = ", ".join(sorted({source.license or "not said" for source in recipe.sources}))
    lines = ["---", "language:", f"- {recipe.language.partition('_')[0]}", "task_categories:", "- fill-mask"]
    lines += ["configs:"]
    for source in recipe.sources:
        if source.name in counts.kept:
            lines += [f"- config_name: {source.name}", f"  data_files: {source.name}/*.jsonl.zst"]
    lines += ["---", f"# {recipe.file.stem}", "", f"Language: {recipe.language}. Licences: {licenses}.", ""]
    lines += [
        *notes,
        "",
        "| source | origin | licence | documents read | kept | words kept |",
        "|---|---|---|---|---|---|",
    ]
    for source in recipe.sources:
        old, new = (part.get(source.name, {}) for part in (counts.read, counts.kept))
        figures = f"{old.get('documents', 0):,} | {new.get('documents', 0):,} | {new.get('words', 0):,}"
        lines.append(f"| {source.name} | {source.origin or 'not said'} | {source.license or 'not said'} | {figures} |")
    lines += ["", "| left out by | documents |", "|---|---|"]
    lines += [f"| {rule} | {number:,} |" for rule, number in counts.rules.items()]
    lines += ["", "To train on it with Limba:", "", "```python", *_registration(recipe, counts), "```", ""]
    lines += ["| file | SHA-256 |", "|---|---|", *(f"| {name} | `{value}` |" for name, value in hashes.items())]
    return "\n".join(lines) + "\n"


def _registration(recipe: Recipe, counts: Counts) -> list[str]:
    """The tasks of a module of the user's: one a source, and where there are several, their mixture."""
    names = [source.name for source in recipe.sources if source.name in counts.kept]
    lines = ["from tasks import pretraining, vocabularies", "from tasks.registry import mixtures", ""]
    lines = lines if len(names) > 1 else [lines[0], ""]
    lines += ['vocabulary = vocabularies.SentencePieceVocabulary("spiece.model")']
    sizes = []
    for name in names:
        task = f"{recipe.file.stem}_{name}".replace("-", "_").replace(".", "_")
        sizes.append(f'"{task}": {counts.kept[name]["characters"]}')
        files = f'{{"train": "{name}/*.jsonl.zst"}}'
        lines.append(f'pretraining.register_pretraining_task("{task}", data_files={files}, vocabulary=vocabulary)')
    if len(names) > 1:
        stem = recipe.file.stem.replace("-", "_").replace(".", "_")
        lines += ["# A temperature above 1 takes more of small sources.", f'mixtures.register_mixture("{stem}", ']
        lines[-1] += f"{{{', '.join(sizes)}}}, temperature=1 / 0.3)"
    return lines


def _share(number: int, total: int) -> float:
    return number / total if total else 0.0


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]], bar: bool = False) -> str:
    heads = [*heads, ""] if bar else heads
    body = []
    for row in rows:
        cells = [f"<td>{_text(row[0])}</td>"]
        for value in row[1:]:
            shown = f"{value:.2%}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
            cells.append(f'<td class="n">{_text(shown)}</td>')
        if bar:
            cells.append(f'<td class="share"><div class="bar" style="width:{100 * row[-1]:.1f}%"></div></td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{''.join(f'<th>{_text(head)}</th>' for head in heads)}</tr>{''.join(body)}</table>"


def _text(value: Any) -> str:
    return html.escape(str(value))
