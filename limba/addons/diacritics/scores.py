"""Metrics of restored diacritics, in percent. A prediction that changes anything but marks is wrong there.

| metric | is |
|---|---|
| `word_accuracy` | target words that were predicted exactly, of the target words and those that were added |
| `marked_word_accuracy` | the same of the target words that have marks |
| `diacritic_error_rate` | letters with a wrong mark, or none, or one too many, of all letters that could have one |
| `exact_sentences` | predictions that are the target, white space aside |
"""

import logging
from collections.abc import Callable, Sequence

from limba.addons.diacritics import marks
from limba.tasks.metrics import text_metrics

logger = logging.getLogger(__name__)

# A target word and the predicted word; None where there is no such word.
# Changes, then words that are not exact.
Cost = tuple[int, int]
Pair = tuple[str | None, str | None]


def metric(language: str | marks.Language | None) -> text_metrics.MetricFn:
    """The metrics of a language; see `diacritics.find_language`.

    A metric that is undefined, because no word has marks or there is no letter that could have one, is left out, and a
    warning says so.
    """
    marks.find_language(language)

    def restored_diacritics(targets: Sequence[str], predictions: Sequence[str]) -> text_metrics.Metrics:
        """The metrics of this module over texts with marks.

        Raises:
          ValueError: if there are not as many predictions as targets.
        """
        if (a := len(targets)) != (b := len(predictions)):
            raise ValueError(f"There are {a} targets and {b} predictions; each needs its other.")
        rules = marks.rules_of(language)
        words = right = marked = marked_right = places = errors = exact = 0
        for target, prediction in zip(targets, predictions, strict=True):
            wanted, given = rules.with_marks(target).split(), rules.with_marks(prediction).split()
            exact += wanted == given
            for want, got in align(wanted, given, rules.without_marks):
                words += 1
                if want is None:
                    continue
                plain = rules.without_marks(want)
                right += want == got
                marked += want != plain
                marked_right += want != plain and want == got
                might, wrong = _places(want, got or "", rules)
                places += might
                errors += wrong
        shares = {
            "word_accuracy": (right, words, "there are no words"),
            "marked_word_accuracy": (marked_right, marked, "no target word has marks"),
            "diacritic_error_rate": (errors, places, "no letter could have marks"),
            "exact_sentences": (exact, len(targets), "there are no examples"),
        }
        for name, (_, total, why) in shares.items():
            if not total:
                logger.warning("%s is undefined, because %s; it is left out.", name, why)
        return {name: 100 * part / total for name, (part, total, _) in shares.items() if total}

    return restored_diacritics


def _places(want: str, got: str, rules: marks.Rules) -> tuple[int, int]:
    """How many letters of a target word could have marks, and at how many the prediction differs."""
    plain = rules.without_marks(want)
    might = sum(map(rules.is_place, plain))
    if want == got:
        return might, 0
    if plain != rules.without_marks(got):
        return might, might
    pairs = zip(_letters(want, rules), _letters(got, rules), strict=True)
    return might, sum(a != b and rules.is_place(rules.without_marks(a)) for a, b in pairs)


def _letters(word: str, rules: marks.Rules) -> list[str]:
    """A word's characters, each with the marks that stand behind it."""
    letters: list[str] = []
    for character in word:
        if letters and not rules.without_marks(letters[-1] + character)[1:]:
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def align(wanted: Sequence[str], given: Sequence[str], without_marks: Callable[[str], str]) -> list[Pair]:
    """Pairs of target and predicted words: the fewest changes (Levenshtein) between the words without marks.

    Of equally few changes it takes those with the most words exactly right.
    """
    plain = [[without_marks(word) for word in words] for words in (wanted, given)]
    if plain[0] == plain[1]:
        return list(zip(wanted, given, strict=True))
    # Cost of the best alignment of wanted[i:] and given[j:]: changes, then words that are not exact.
    rows, columns = len(wanted), len(given)
    best = [[(0, 0)] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows, -1, -1):
        for j in range(columns, -1, -1):
            if i < rows or j < columns:
                best[i][j] = min(cost for cost, _ in _moves(best, wanted, given, plain, i, j))
    pairs: list[Pair] = []
    i = j = 0
    while i < rows or j < columns:
        _, (down, right) = min(_moves(best, wanted, given, plain, i, j))
        pairs.append((wanted[i] if down else None, given[j] if right else None))
        i, j = i + down, j + right
    return pairs


def _moves(
    best: Sequence[Sequence[Cost]],
    wanted: Sequence[str],
    given: Sequence[str],
    plain: Sequence[Sequence[str]],
    i: int,
    j: int,
) -> list[tuple[Cost, tuple[int, int]]]:
    """The costs of a pair, of a missing word and of an added one, where they are possible, with their steps."""
    moves = []
    if i < len(wanted) and j < len(given):
        changes, wrong = best[i + 1][j + 1]
        moves.append(((changes + (plain[0][i] != plain[1][j]), wrong + (wanted[i] != given[j])), (1, 1)))
    if i < len(wanted):
        changes, wrong = best[i + 1][j]
        moves.append(((changes + 1, wrong + 1), (1, 0)))
    if j < len(given):
        changes, wrong = best[i][j + 1]
        moves.append(((changes + 1, wrong), (0, 1)))
    return moves
