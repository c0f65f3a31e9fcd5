"""Words of texts in other alphabets than the Latin one, for ROUGE and BLEU; rouge-score keeps a-z and 0-9 alone."""

import collections
import functools
import itertools
import logging
import re
import unicodedata
from collections.abc import Sequence

logger = logging.getLogger(__name__)

# Thai and Lao, Myanmar, Khmer, kana, Chinese characters: scripts whose words have no blanks between them.
_WITHOUT_BLANKS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff]"
)

# Above this share of letters that rouge-score drops, a warning says so; English texts with some names are below.
_DROPPED = 0.02


class UnicodeWords:
    """A tokenizer of rouge-score's kind: words of any alphabet, in lower case; a character where words have no blanks.

    Letters, their marks and digits are words, and all else separates them, an apostrophe too, as in rouge-score's own.
    Texts are normalized (NFKC), as T5's vocabularies do: a prediction is, and its reference may not be.
    """

    def tokenize(self, text: str) -> list[str]:
        words: list[str] = []
        for is_word, characters in itertools.groupby(unicodedata.normalize("NFKC", text.lower()), _is_of_word):
            if is_word:
                words += _units("".join(characters))
        return words


def tokenizer_for(references: Sequence[str]) -> UnicodeWords | None:
    """The tokenizer for these references: None, which is rouge-score's own, unless most letters are not Latin."""
    counts = collections.Counter(itertools.chain.from_iterable(references))
    letters = {character: count for character, count in counts.items() if character.isalpha()}
    num_latin = sum(count for character, count in letters.items() if "LATIN" in unicodedata.name(character, ""))
    if 2 * num_latin >= sum(letters.values()):
        if sum(n for letter, n in letters.items() if not letter.isascii()) > _DROPPED * sum(letters.values()):
            _log_once(
                "ROUGE takes letters beyond a-z for blanks, as in T5: words that differ in them may count as the same. "
                "tokenizer=rouge_words.UnicodeWords() of text_metrics.rouge takes whole words.",
                logging.WARNING,
            )
        return None
    _log_once(
        "Most letters of the references are not Latin, and rouge-score's tokenizer would drop them: "
        "ROUGE takes Unicode words, and characters in scripts without blanks (Chinese, Japanese, Thai)."
    )
    return UnicodeWords()


def warn_without_blanks(references: Sequence[str], tokenizer: str) -> None:
    """Warns where BLEU's words are what blanks separate, and the references have none between their words."""
    letters = [character for text in references for character in text if character.isalpha()]
    if tokenizer in ("intl", "13a") and 2 * sum(map(bool, map(_WITHOUT_BLANKS.match, letters))) > len(letters):
        _log_once(
            f"The references have no blanks between words, where BLEU's tokenizer {tokenizer!r} splits: the score is "
            "near 0. text_metrics.bleu takes tokenizer='zh' for Chinese, 'ja-mecab' for Japanese, 'char' for all.",
            logging.WARNING,
        )


def _is_of_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"


def _units(word: str) -> list[str]:
    """The word, or its characters, each with the marks on it, and the words of other scripts between them."""
    if not _WITHOUT_BLANKS.search(word):
        return [word]
    units: list[str] = []
    is_single = True
    for character in word:
        is_mark = unicodedata.category(character)[0] == "M"
        was_single, is_single = is_single, is_single if is_mark else bool(_WITHOUT_BLANKS.match(character))
        if units and (is_mark or not (is_single or was_single)):
            units[-1] += character
        else:
            units.append(character)
    return units


def lines_of_t5(text: str) -> str:
    """Sentences on lines, as T5's metric has them: a blank, a full stop and a blank end one."""
    return text.replace(" . ", " .\n")


@functools.cache
def _log_once(message: str, level: int = logging.INFO) -> None:
    logger.log(level, message)
