"""A corpus of another alphabet for `benchmarks/quality.py`: Debian's translated manual pages.

    apt-get download manpages-ru manpages-ru-dev
    for package in manpages-ru*.deb; do dpkg-deb -x "$package" pages; done
    python -m benchmarks.manual_pages pages --language ru --out runs/manuals
    python -m benchmarks.quality --work runs/quality-ru --corpus 'runs/manuals/{split}-*.jsonl'

A page is a document: its paragraphs of prose, a line each, without roff's requests and fonts, tables and examples. A
paragraph that stands in several pages, as licences do, is kept once. One page in twenty, by the hash of its name, is
for validation.
"""

import argparse
import gzip
import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from limba.files import json_text, storage

_VALIDATION_SHARE = 20
_MIN_LETTERS = 40
# Requests whose argument is text of the sentence around them: fonts, alone or in turns.
_FONTS = re.compile(r"^\.\s*(?:B|I|BR|BI|IR|IB|RB|RI|SM|SB)\s+")
_ESCAPES = (
    (r"\\f(?:\(..|\[[^]]*\]|.)", ""),
    (r"\\s[+-]?\d+", ""),
    (r"\\-", "-"),
    (r"\\e", r"\\"),
    (r"\\[&%:|^/,]", ""),
)
_SPECIAL = {
    "aq": "'",
    "dq": '"',
    "em": "—",
    "en": "–",
    "lq": "“",
    "rq": "”",
    "Fo": "«",
    "Fc": "»",
    "bu": "•",
    "co": "©",
}
_NOT_PROSE = {"nf": "fi", "EX": "EE", "TS": "TE"}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.manual_pages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="where packages were unpacked")
    parser.add_argument("--language", required=True, help="its folder under usr/share/man, such as ru")
    parser.add_argument("--out", required=True, type=Path, help="the folder to write")
    flags = parser.parse_args(argv)
    pages = sorted((flags.folder / "usr/share/man" / flags.language).glob("man*/*.gz"))
    if not pages:
        sys.exit(
            f"error: {flags.folder}/usr/share/man/{flags.language} has no pages; unpack a package into {flags.folder}."
        )
    splits: dict[str, list[str]] = {"train": [], "validation": []}
    seen: set[str] = set()
    for page in pages:
        if page.is_symlink():
            continue
        with gzip.open(page, "rt", encoding="utf-8", errors="replace") as file:
            texts = [text for text in paragraphs(file.read()) if text not in seen]
        seen.update(texts)
        if texts:
            share = int(hashlib.sha256(page.name.encode()).hexdigest(), 16) % _VALIDATION_SHARE
            splits["validation" if share == 0 else "train"].append("\n".join(texts))
    flags.out.mkdir(parents=True, exist_ok=True)
    for split, documents in splits.items():
        lines = (json_text.dumps({"text": text}, ensure_ascii=False) + "\n" for text in documents)
        storage.replace_text(flags.out / f"{split}-00000.jsonl", "".join(lines))
        print(f"{split}: {len(documents)} pages, {sum(map(len, documents))} characters")


def paragraphs(source: str) -> Iterator[str]:
    """The paragraphs of a page in roff that are prose: 40 letters or more, which are most of the characters."""
    words: list[str] = []
    until = None
    for line in [*source.splitlines(), ".P"]:
        request = re.match(r"[.']\s*([A-Za-z]+)", line)
        name = request[1] if request else ""
        if until:
            until = None if name == until else until
        elif name in _NOT_PROSE:
            until = _NOT_PROSE[name]
        elif _FONTS.match(line):
            words.append(_plain(_FONTS.sub("", line).replace('"', "")))
        elif not line.startswith((".", "'")):
            words.append(_plain(line))
        else:  # any other request ends a paragraph: a heading, a list, spacing
            text = " ".join(" ".join(words).split())
            letters = sum(character.isalpha() or character == " " for character in text)
            if letters >= max(_MIN_LETTERS, 0.8 * len(text)):
                yield text
            words = []


def _plain(line: str) -> str:
    line = re.sub(r'\\".*', "", line)
    for pattern, text in _ESCAPES:
        line = re.sub(pattern, text, line)
    return re.sub(r"\\(?:\((..)|\[([^]]*)\])", lambda match: _SPECIAL.get(match[1] or match[2], ""), line)


if __name__ == "__main__":
    main()
