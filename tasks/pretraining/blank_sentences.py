"""Sentences with one word left out: examples of what a model that fills blanks is asked."""

import logging
import re
import unicodedata
from typing import Any

from limba.tasks.pretraining.denoising import Denoise
from limba.tasks.registry import get_subtasks, providers
from limba.tasks.sources.sharded import ShardedSource

logger = logging.getLogger(__name__)

BLANK = "<extra_id_0>"
# Of a sentence that makes an example.
WORDS = range(6, 26)
# Thai and Lao; Burmese; Khmer; kana; Han.
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\uaa60-\uaa7f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
# White space, and U+200B, which stands between words of Khmer, Thai, Lao and Burmese and is not seen.
_SPACES = re.compile("([\\s\u200b]+)")
# ZWNJ and ZWJ, inside of words.
_JOINERS = dict.fromkeys((0x200C, 0x200D))
# Where a sentence ends: its marks, closing quotes and brackets, and white space. Or a line.
_SENTENCE_ENDS = re.compile(r"""(?<=[.!?…؟۔।॥။។៕།።፧፨։])["'”’»)\]]*\s+|(?<!\s)\s*\n\s*""")
_FEWEST_CHARACTERS, _MOST_CHARACTERS = 20, 200


def sentences(text: str) -> list[str]:
    """The sentences of a text, without the white space between them. A line ends a sentence too."""
    found, begin = [], 0
    for match in _SENTENCE_ENDS.finditer(text):
        # Closing quotes belong to the sentence before, white space to none.
        found.append(text[begin : match.end()].strip())
        begin = match.end()
    found.append(text[begin:].strip())
    return [sentence for sentence in found if sentence]


def with_blank(text: str) -> tuple[str, str] | None:
    """The first sentence of a text that makes an example, with a blank for one of its words, and that word.

    The word is the longest of those in the middle. Where a language has no spaces, it is two characters; of languages
    with spaces, sentences of fewer or more words than `WORDS` are passed over.
    """
    for sentence in sentences(text):
        parts = _SPACES.split(sentence.strip(" \u200b"))
        words = parts[::2]
        if len(sentence) > _MOST_CHARACTERS or "<extra_id_" in sentence or not _is_printable(sentence):
            continue
        if len(words) in WORDS:
            middle = range(len(words) // 4, len(words) - max(1, len(words) // 4))
            chosen = max(middle, key=lambda i: len(words[i]) if _is_word(words[i]) else 0)
            if _is_word(words[chosen]):
                return "".join([*parts[: 2 * chosen], BLANK, *parts[2 * chosen + 1 :]]), words[chosen]
        elif len(words) < WORDS.start and len(sentence) >= _FEWEST_CHARACTERS and _has_no_spaces(sentence):
            for begin in range(len(sentence) // 2, len(sentence) - 2):
                if (word := sentence[begin : begin + 2]).isalpha() and not _is_mark(sentence[begin + 2]):
                    return f"{sentence[:begin]}{BLANK}{sentence[begin + 2 :]}", word
    return None


def _is_printable(text: str) -> bool:
    """Whether all characters can stand in a line: spaces of all kinds and marks without a shape can, too."""
    return all(character.isprintable() or unicodedata.category(character) in ("Cf", "Zs") for character in text)


def _is_word(text: str) -> bool:
    """Whether a text is of letters, with the vowel signs and joiners that belong to them in many scripts."""
    letters = "".join(character for character in text.translate(_JOINERS) if not _is_mark(character))
    return letters.isalpha()


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _has_no_spaces(sentence: str) -> bool:
    """Whether most of a sentence is in a script that puts no spaces between words, and it has no U+200B there."""
    return "\u200b" not in sentence and 2 * len(_WITHOUT_SPACES.findall(sentence)) > len(sentence)


def of_task(name: Any, module: str | None, split: str, count: int) -> list[tuple[str, str]]:
    """The first sentences of a task's documents that make examples, one of each document, with their words.

    A warning says why they are fewer than `count`.

    Args:
      name, module: of the task, and what registers it; see `DatasetConfig`.

    Raises:
      ValueError: if the task does not corrupt spans of documents that can be read, or has no such sentence.
    """
    for task in get_subtasks(providers.find_provider(name, module)):
        step = next((step for step in task.preprocessors if isinstance(step, Denoise)), None)
        if step is None or not isinstance(task.source, ShardedSource) or split not in task.splits:
            continue
        read, found = 0, []
        for _, _, document in task.source.numbered_documents(split):
            read += 1
            if example := with_blank(str(document[step.text_column] or "")):
                found.append(example)
            if len(found) == count:
                break
        if 0 < len(found) < count:
            logger.warning(
                "%d of %d sentences are there: of the %d documents of split %r of task %r no more have one of %d to %d "
                "words and at most %d characters, with a word in its middle to leave out.",
                len(found), count, read, split, task.name, WORDS.start, WORDS[-1], _MOST_CHARACTERS,
            )  # fmt: skip
        if found:
            mode = f"{step.mode} " if step.mode else ""
            return [(mode + sentence, word) for sentence, word in found]
    raise ValueError(
        f"{name!r} has no sentences of {WORDS.start} to {WORDS[-1]} words to leave a word out, in a split {split!r} of "
        "documents whose spans are masked; give --input TEXT."
    )
