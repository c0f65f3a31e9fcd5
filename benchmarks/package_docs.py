"""A large corpus of technical English for docs/leaderboard.md: the documentation in Debian's packages.

    apt-get download …
    python -m benchmarks.package_docs *.deb --out runs/package_docs

A page (HTML, reStructuredText or text) is a document: its paragraphs of prose, a line each, without markup, code and
tables. A paragraph that stands in several pages is kept once. One page in two hundred, by the hash of its name, is for
validation. Pages are in a random order that never changes.

The table's corpus is of these packages of Debian 12:

    apache2-doc aptitude-doc-en autoconf-doc bash-doc cmake-doc csound-doc debian-faq debian-handbook
    debian-policy debian-reference-en developers-reference erlang-doc exim4-doc-html gap-doc ghc-doc git-doc
    gnuplot-doc grass-doc info2man installation-guide-amd64 kicad-doc-en libboost1.74-doc
    libreoffice-help-en-us libvirt-doc lilypond-doc-html lynx-common maint-guide maxima-doc mercurial-common
    mpich-doc octave-doc openjdk-17-doc pacemaker-doc perl-doc petsc3.18-doc postgresql-doc-15
    python-astropy-doc python-django-doc python-pandas-doc python-scipy-doc python-skimage-doc
    python-sklearn-doc python-statsmodels-doc python-sympy-doc qtbase5-doc-html qtdeclarative5-doc-html
    r-doc-html racket-doc rust-doc sagemath-doc sumo-doc swi-prolog-doc
"""

import argparse
import gzip
import hashlib
import html
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from limba.files import json_text, storage

_TRAIN_FILES = 16
_VALIDATION_SHARE = 200
_MOST_BYTES = 8_000_000
_HTML = (".html", ".htm", ".xhtml")
_TEXT = (".rst", ".txt", ".pod")
_NOT_PROSE = re.compile(r"<(script|style|pre)\b.*?</\1>", re.DOTALL | re.IGNORECASE)
_PARAGRAPH = re.compile(
    r"<(p|dd|li|blockquote)\b[^>]*>(.*?)(?=</\1>|<(?:p|dd|li|div|table|pre|ul|dl)\b)", re.DOTALL | re.IGNORECASE
)
# In text files: code, directives and headings.
_NOT_A_PARAGRAPH = ("    ", "\t", "..", "==")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.package_docs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("packages", nargs="+", type=Path, help=".deb files")
    parser.add_argument("--out", required=True, type=Path, help="the folder to write")
    flags = parser.parse_args(argv)
    splits: dict[str, list[str]] = {"train": [], "validation": []}
    seen: set[bytes] = set()
    for package in tqdm(sorted(flags.packages), unit="package", disable=None):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["dpkg-deb", "-x", str(package), folder], check=True)
            for page in sorted(Path(folder).rglob("*")):
                texts = [text for text in _paragraphs(page) if _is_new(text, seen)]
                name = f"{package.name.partition('_')[0]}{page.name}"
                share = int(hashlib.md5(name.encode()).hexdigest(), 16) % _VALIDATION_SHARE
                if texts:
                    splits["validation" if share == 0 else "train"].append("\n".join(texts))
    if not all(splits.values()):
        sys.exit("error: the packages have too few pages of prose for a training and a validation split.")
    random.Random(0).shuffle(splits["train"])
    flags.out.mkdir(parents=True, exist_ok=True)
    for number in range(_TRAIN_FILES):
        name = f"train-{number:05d}-of-{_TRAIN_FILES:05d}.jsonl"
        _write(flags.out / name, splits["train"][number::_TRAIN_FILES])
    _write(flags.out / "validation-00000.jsonl", splits["validation"])
    for split, documents in splits.items():
        print(f"{split}: {len(documents)} pages, {sum(map(len, documents))} characters")


def _write(file: Path, documents: Sequence[str]) -> None:
    storage.replace_text(file, "".join(json_text.dumps({"text": x}, ensure_ascii=False) + "\n" for x in documents))


def _paragraphs(page: Path) -> Iterator[str]:
    """The paragraphs of prose of a page; none of what is no page."""
    name = page.name.lower().removesuffix(".gz")
    if not name.endswith(_HTML + _TEXT) or page.is_symlink() or not page.is_file() or page.stat().st_size > _MOST_BYTES:
        return
    data = page.read_bytes()
    text = (gzip.decompress(data) if page.name.endswith(".gz") else data).decode("utf-8", "ignore")
    if name.endswith(_HTML):
        found = [html.unescape(re.sub(r"<[^>]+>", " ", x[2])) for x in _PARAGRAPH.finditer(_NOT_PROSE.sub("", text))]
    else:
        found = [x for x in re.split(r"\n\s*\n", text) if not x.startswith(_NOT_A_PARAGRAPH)]
    for paragraph in found:
        prose = re.sub(r" ([,.;:)])", r"\1", " ".join(paragraph.split()))
        if _is_prose(prose):
            yield prose


def _is_prose(text: str) -> bool:
    letters = sum(character.isalpha() or character == " " for character in text)
    return 60 <= len(text) <= 6000 and letters > 0.88 * len(text) and text.count(" ") >= 8


def _is_new(text: str, seen: set[bytes]) -> bool:
    key = hashlib.md5(text.encode()).digest()
    if key in seen:
        return False
    seen.add(key)
    return True


if __name__ == "__main__":
    main()
