"""Whether a task's vocabulary knows the letters of its texts."""

import itertools
from collections.abc import Iterator
from typing import Any

from limba.data.lint_findings import Finding
from limba.tasks.registry import Task
from limba.tasks.registry.steps import Step
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.vocabularies import (
    SentencePieceVocabulary,
    T5TokenizerVocabulary,
    TokenizerVocabulary,
    alphabets,
    known_text,
    without_tensorflow,
)

# Texts that are looked at: the first documents, up to a number of characters.
_NUM_DOCUMENTS, _NUM_CHARACTERS = 2000, 2_000_000
# Unknown letters are found from this share of the text on; those of large scripts count from the second on.
_FEWEST, _SHARE, _SHARE_OF_LARGE = 3, 2e-5, 1e-3
# Of the characters of a text: a script that is rarer is of foreign words.
_OWN_SCRIPT = 0.01
_LARGE_SCRIPTS = ("CJK", "HANGUL")


def check(task: Any, split: str) -> Iterator[Finding]:
    """A finding for each vocabulary that lacks letters, accents, numbers or punctuation of the first documents.

    Foreign scripts, emoji and symbols do not count: few vocabularies have them all.
    """
    if not (isinstance(task, Task) and isinstance(task.source, ShardedSource)):
        return
    vocabularies = {without_tensorflow(feature.vocabulary) for feature in task.output_features.values()}
    steps = [step for step in task.preprocessors if isinstance(step, Step)]
    if any(step.find_missing_letters(vocabulary) is not None for step in steps for vocabulary in vocabularies):
        return  # It looks for the letters of its language itself.
    kinds = SentencePieceVocabulary | TokenizerVocabulary | T5TokenizerVocabulary
    for vocabulary in (found for found in vocabularies if isinstance(found, kinds)):
        try:
            measure = known_text.measure(vocabulary, _texts(task.source, split))
        except (ValueError, OSError, RuntimeError):  # What cannot be read is a finding of the first examples.
            return
        counts = measure.characters.counts
        if found := _of_its_languages(measure.unknown.found, counts):
            yield Finding(
                "unknown_letters",
                "warning",
                f"In the first {measure.texts:,} texts of task {task.name!r}, its vocabulary does not know "
                f"{alphabets.describe(found, measure.characters)}.",
                "the model neither reads nor writes them; a word with one may be unknown as a whole",
                "Build a vocabulary that keeps all letters (`limba vocab build`) or spells rare ones "
                "(--byte_fallback). `limba vocab check --data_files` measures the whole text.",
            )


def _texts(source: ShardedSource, split: str) -> Iterator[tuple[str, str]]:
    left = _NUM_CHARACTERS
    for file, row, document in itertools.islice(source.numbered_documents(split), _NUM_DOCUMENTS):
        for value in document.values():
            if isinstance(value, str):
                yield value[:left], f"{file}, row {row}"
                left -= len(value)
        if left <= 0:
            return


def _of_its_languages(unknown: tuple[str, ...], counts: dict[str, int]) -> list[str]:
    total = sum(counts.values())
    of_script: dict[str, int] = {}
    for character, count in counts.items():
        script = alphabets.script_of(character)
        of_script[script] = of_script.get(script, 0) + count
    own = {script for script, count in of_script.items() if count >= _OWN_SCRIPT * total}
    of_languages = filter(alphabets.is_of_languages, unknown)
    found = [c for c in of_languages if not c.isalpha() or alphabets.script_of(c) in own]
    of_small = sum(counts[c] for c in found if alphabets.script_of(c) not in _LARGE_SCRIPTS)
    is_much = of_small >= max(_FEWEST, _SHARE * total) or sum(counts[c] for c in found) >= _SHARE_OF_LARGE * total
    return found if is_much else []
