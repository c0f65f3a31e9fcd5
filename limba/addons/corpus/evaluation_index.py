"""The n-grams of evaluation files, for datatrove's filter against leaks.

datatrove's own index is of lighteval's tasks; this one is of any files, in the same format and by the same functions.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datatrove.pipeline.decont.n_grams import NGramsDecontConfig
from datatrove.utils.hashing import create_hash_func
from datatrove.utils.text import ngrams
from loguru import logger

from limba.addons.corpus import word_splitting
from limba.addons.corpus.recipe_file import Recipe, Source
from limba.addons.corpus.source_files import Files, find, reader
from limba.files.untrusted_files import cut

# Words of an n-gram: GPT-3's 13 (arXiv:2005.14165), and fewer for rows that are shorter than that.
N_GRAMS = (13, 8)


class Index(NamedTuple):
    """What was indexed: rows, and those that are too short to be looked for."""

    rows: int
    too_short: int


def write(recipe: Recipe, folder: Path) -> Index:
    """Writes a folder for each length of `N_GRAMS`, with a file for each evaluation file.

    Raises:
      FileNotFoundError, ValueError: as `source_files.find`; ValueError also for a row that cannot be read.
    """
    words_of = word_splitting.of_simplified(recipe.language).word_tokenize
    source = Source("evaluation_files", recipe.evaluation_files, "", "", "")
    rows, short = 0, 0
    for number, files in enumerate(find([source], recipe.file)):
        hashes: dict[int, set[int]] = {n: set() for n in N_GRAMS}
        for text in _rows(files, folder / f"files{number}.txt", f"{recipe.file}: evaluation_files"):
            words = words_of(text)
            n = next((n for n in N_GRAMS if len(words) >= n), None)
            rows += 1
            short += n is None
            if n is not None:
                of_text = create_hash_func(NGramsDecontConfig(n_grams=n).hash_config)
                hashes[n].update(of_text(" ".join(n_gram)) for n_gram in ngrams(words, n))
        for n, found in hashes.items():
            (folder / str(n)).mkdir(parents=True, exist_ok=True)
            kind = NGramsDecontConfig().hash_config.np_descr
            np.array(sorted(found), dtype=kind).tofile(folder / str(n) / f"{number}.index.hashes")
    return Index(rows, short)


def _rows(files: Files, list_file: Path, where: str) -> Iterator[str]:
    """Each text of each row: a question and its answers may come into a corpus apart."""
    step: Any = reader(files, list_file)
    texts: list[str] = []

    def adapter(data: dict[str, Any], path: str, number: int | str) -> dict[str, Any]:
        texts.extend(_texts(data))
        return {"text": "", "id": "", "metadata": {}}

    step.adapter = adapter
    for path in files.paths:
        problems: list[str] = []
        # datatrove's readers log what they cannot read, and go on; here that would be a leak that nobody sees.
        sink = logger.add(lambda message, found=problems: found.append(message.record["message"]), level="WARNING")
        try:
            for _ in step.read_file(path):
                pass
        except Exception as error:
            problems.append(str(error) or type(error).__name__)
        finally:
            logger.remove(sink)
        problems = [problem for problem in problems if not problem.startswith("Found document without text")]
        if problems:
            raise ValueError(f"{where}: {cut(f'{files.root}{path}')} cannot be read: {cut(problems[0])}.")
        yield from texts
        texts.clear()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple | np.ndarray):
        for part in value:
            yield from _texts(part)
