"""The embedded corpus: the prose that every Python installation carries.

    python -m limba.addons.examples.python_docs --out corpus

Documentation topics, and the docstrings and block comments of the standard library, parsed and never imported, cleaned
of code and markup, deduplicated, and split by hash: `train-*.jsonl`, `train-*.parquet` and `validation-*` of both, with
a column `text`. With `--pairs FOLDER` also pairs for contrastive training, `train.csv` and `validation.csv`: the
first paragraph of a document, usually the summary of a docstring, and the second.
"""

import argparse
import ast
import collections
import csv
import hashlib
import json
import pathlib
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet

from limba.files import json_text, storage, written_files

# One document in so many is for validation.
_VALIDATION_SHARE = 20
_NUM_SHARDS = {"train": 8, "validation": 2}
_MIN_WORDS = 8
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def write_corpus(out: str | pathlib.Path) -> dict[str, int]:
    """Writes the corpus to a directory, unless it is there; returns the number of documents per split.

    The file `corpus.json` is written last: a directory without it is not complete and is written again.

    Raises:
      FileNotFoundError: if this Python has no sources of its standard library.
    """
    out = pathlib.Path(out)
    summary = out / "corpus.json"
    if summary.exists():
        return json.loads(summary.read_text())
    splits: dict[str, list[str]] = {split: [] for split in _NUM_SHARDS}
    for text in sorted(set(_documents())):
        is_validation = int(hashlib.sha256(text.encode()).hexdigest(), 16) % _VALIDATION_SHARE == 0
        splits["validation" if is_validation else "train"].append(text)
    out.mkdir(parents=True, exist_ok=True)
    for split, texts in splits.items():
        # By hash, so that every shard has something of every module; by size, so that shards are equally large.
        texts.sort(key=lambda text: hashlib.sha256(text.encode()).hexdigest())
        shards: list[list[str]] = [[] for _ in range(_NUM_SHARDS[split])]
        sizes = [0] * len(shards)
        for text in texts:
            smallest = sizes.index(min(sizes))
            shards[smallest].append(text)
            sizes[smallest] += len(text)
        for shard, members in enumerate(shards):
            _write_shard(out, f"{split}-{shard:05d}-of-{len(shards):05d}", members)
    counts = {split: len(texts) for split, texts in splits.items()}
    storage.replace_text(summary, json_text.dumps(counts))
    return counts


def write_pairs(corpus: str | pathlib.Path, out: str | pathlib.Path) -> dict[str, int]:
    """Writes the pairs of a corpus that `write_corpus` wrote; returns their number per split."""
    counts = {}
    for split in _NUM_SHARDS:
        lines = (line for file in sorted(pathlib.Path(corpus).glob(f"{split}-*.jsonl")) for line in file.open())
        paragraphs = [json.loads(line)["text"].split("\n")[:2] for line in lines]
        pairs = [pair for pair in paragraphs if len(pair) == 2 and len(pair[1].split()) >= _MIN_WORDS // 2]
        pathlib.Path(out).mkdir(parents=True, exist_ok=True)
        written = written_files.writing(pathlib.Path(out) / f"{split}.csv")
        with written as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("anchor", "positive"), *pairs])
        counts[split] = len(pairs)
    return counts


def _write_shard(out: pathlib.Path, name: str, texts: list[str]) -> None:
    lines = "".join(json_text.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    storage.replace_text(out / f"{name}.jsonl", lines)
    table = pa.table({"text": texts})
    with written_files.writing(out / f"{name}.parquet") as temporary:
        pyarrow.parquet.write_table(table, temporary, row_group_size=1000)


def _documents() -> Iterator[str]:
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
    if len(files) < 200:
        raise FileNotFoundError(
            f"This Python has no sources of its standard library in {str(library)!r} (found {len(files)} files). Use a "
            "Python with them (python.org, uv, conda, or your distribution's full package), or a corpus of your own."
        )
    for file in files:
        source = file.read_bytes()
        tree = _parse(source)
        if tree is None:
            continue
        if file.parent.name == "pydoc_data":
            # A dictionary of topics, each a page of the language reference.
            strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
            texts = [text for text in strings if isinstance(text, str) and len(text) > 200]
        else:
            texts = [*_docstrings(tree), *_block_comments(source.decode("utf-8", errors="replace"))]
        for text in texts:
            cleaned = clean(text)
            if len(cleaned.split()) >= _MIN_WORDS:
                yield cleaned


def _parse(source: bytes) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(source)
    except (SyntaxError, ValueError):
        return None  # lib2to3 and the tests keep files that are wrong on purpose


def _docstrings(tree: ast.Module) -> Iterator[str]:
    # In the order of `ast.walk`, without the expressions, which are most of a tree and hold no docstring.
    nodes: collections.deque[ast.AST] = collections.deque([tree])
    while nodes:
        node = nodes.popleft()
        if isinstance(node, _Documented) and (docstring := ast.get_docstring(node, clean=True)):
            yield docstring
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            nodes.extend(getattr(node, field, ()))


def _block_comments(source: str) -> Iterator[str]:
    for block in re.findall(r"(?:^[ \t]*#.*\n){2,}", source, flags=re.MULTILINE):
        yield re.sub(r"^[ \t]*#+ ?", "", block, flags=re.MULTILINE)


def clean(text: str) -> str:
    """Paragraphs of prose, a line each: without doctests, code, tables and reST markup."""
    paragraphs = []
    for block in re.split(r"\n[ \t]*\n", text.expandtabs()):
        lines = [line.strip() for line in block.splitlines()]
        if any(line.startswith((">>>", "...", "$ ", "% ", "#!", "+--", "|")) for line in lines):
            continue
        paragraph = " ".join(line for line in lines if not re.fullmatch(r"[-=~^*+_#. ]*", line))
        paragraph = re.sub(r"^\.\. [\w-]+::", "", paragraph)
        paragraph = re.sub(r":[\w:+-]+:`~?([^`<]*)(?: <[^>]*>)?`", r"\1", paragraph)
        paragraph = re.sub(r"``?([^`]+)``?_*", r"\1", paragraph)
        paragraph = re.sub(r"\*\*?([\w ]+)\*\*?", r"\1", paragraph)
        paragraph = re.sub(r"\s+", " ", paragraph).strip().removesuffix("::").strip()
        letters = sum(character.isalpha() or character == " " for character in paragraph)
        # Prose is nearly all letters and spaces; signatures, grammars and examples of code are not.
        if len(paragraph.split()) >= 3 and letters >= 0.85 * len(paragraph):
            paragraphs.append(paragraph)
    return "\n".join(paragraphs)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m limba.addons.examples.python_docs", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", required=True, help="the directory to write, such as runs/quickstart/corpus")
    parser.add_argument("--pairs", metavar="FOLDER", help="write pairs of paragraphs of the corpus, too")
    args = parser.parse_args(argv)
    try:
        counts = write_corpus(args.out)
    except FileNotFoundError as error:
        sys.exit(f"error: {error}")
    train, validation = counts["train"], counts["validation"]
    megabytes = sum(file.stat().st_size for file in pathlib.Path(args.out).glob("*.jsonl")) / 1e6
    print(f"{args.out}: {train} training documents, {validation} for validation, {megabytes:.1f} MB")
    if args.pairs:
        pairs = write_pairs(args.out, args.pairs)
        print(f"{args.pairs}: {pairs['train']} training pairs, {pairs['validation']} for validation")


if __name__ == "__main__":
    main()
