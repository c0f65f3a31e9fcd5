"""The labels that a model gives the words of sentences: a classifier of words, or a T5 that writes them."""

import collections
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from limba.addons.pairs import word_files
from limba.addons.pairs.scoreboard.board_rows import OpenedModel
from limba.addons.pairs.scoreboard.evaluation_sets import EvaluationSet
from limba.files.untrusted_files import cut, shown, some
from limba.inference.answering import Answerer
from limba.models import DecoderOnlyModel, EncoderClassifier, EncoderOnlyModel

# Of a word that a model gives no label, which is wrong.
NO_LABEL = "?"
_BATCH_SIZE = 32
_MOST_TOKENS = 2**15
_NO_LABELS = "it gives words no labels: fine-tune it on words with labels (docs/scoreboard.md)."


def labels_of_words(opened: OpenedModel, params: Any, of: EvaluationSet, mode: str = "") -> list[list[str]]:
    """One label for each word of each sentence of a set of words, those of entities in BIO.

    What a T5 writes is divided at its blanks: the first label is that of the first word. Words without a label have
    `NO_LABEL`, and so have those behind the longest row of a classifier.

    Args:
      mode: text in front of what a T5 reads.

    Raises:
      ValueError: for a model that gives words no labels, or none of the labels of the set.
    """
    model: Any = opened.model
    is_classifier = isinstance(model, EncoderClassifier)
    if not model.labels_tokens if is_classifier else isinstance(model, EncoderOnlyModel | DecoderOnlyModel):
        raise ValueError(_NO_LABELS)
    wanted = {label for labels in of.labels for label in labels}
    if is_classifier:
        _check_known(wanted, word_files.as_bio(model.output_vocabulary.labels), of)
        split = model.output_vocabulary.split
    else:
        split = _Written.of(model.output_vocabulary, sorted(wanted)).split
    answerer = Answerer(
        model=model,
        restore_checkpoint_cfg=opened.restore,
        partitioner=opened.partitioner,
        max_inputs_length=_MOST_TOKENS,
        max_decode_length=1 if is_classifier else _longest_answer(model.output_vocabulary, of.labels),
        batch_size=_BATCH_SIZE,
        params=params,
    )
    texts = of.texts if is_classifier or not mode else [f"{mode} {text}" for text in of.texts]
    answers: list[list[str]] = [[] for _ in texts]
    for numbers in _by_length(of.labels):
        answerer.name_line = functools.partial(_place, of.places, numbers)
        for number, answer in zip(numbers, answerer.answer([texts[i] for i in numbers]), strict=True):
            answers[number] = word_files.as_bio(split(answer.prediction))
    if not is_classifier:
        _check_known(wanted, sorted({label for labels in answers for label in labels}), of)
    return [
        [*given[: len(labels)], *[NO_LABEL] * (len(labels) - len(given))]
        for labels, given in zip(of.labels, answers, strict=True)
    ]


class _Written(NamedTuple):
    """Labels with letters that a vocabulary lacks, as it writes them ("NO ⁇ N"), and as they are."""

    labels: Mapping[str, str]

    @classmethod
    def of(cls, vocabulary: Any, labels: Sequence[str]) -> "_Written":
        """Raises ValueError if two labels are written alike."""
        found = dict[str, str]()
        for label in labels:
            written = vocabulary.decode(vocabulary.encode(label))
            if written in found:
                raise ValueError(
                    f"its vocabulary lacks letters of the labels {cut(found[written])} and {cut(label)}, and "
                    f"writes both as {shown(written)}. Train it on labels of letters that it has."
                )
            found[written] = label
        return cls({written: label for written, label in found.items() if written != label})

    def split(self, answer: str) -> list[str]:
        """The labels of an answer."""
        for written in sorted(self.labels, key=len, reverse=True):
            answer = answer.replace(written, self.labels[written])
        return answer.split()


def _place(places: Sequence[str], numbers: Sequence[int], line: int) -> str:
    """Where the sentence of a line stands; lines are numbered from 1."""
    return places[numbers[line - 1]]


def _check_known(wanted: set[str], known: Sequence[str], of: EvaluationSet) -> None:
    if wanted & set(known):
        return
    given = f"it gives the labels {_shown(known)}" if known else "its answers are empty"
    raise ValueError(f"{given}, and {of.file} has {_shown(sorted(wanted))}. Fine-tune it on these labels.")


def _shown(labels: Sequence[str]) -> str:
    return cut(some(labels))


def _longest_answer(vocabulary: Any, labels: Sequence[Sequence[str]]) -> int:
    """Twice the tokens of the longest right answer: other labels may be longer."""
    return 2 * max(len(vocabulary.encode(" ".join(of_sentence))) for of_sentence in labels) + 1


def _by_length(labels: Sequence[Sequence[str]]) -> list[list[int]]:
    """The numbers of sentences, those of like length together: a batch has the length of its longest one."""
    groups: dict[int, list[int]] = collections.defaultdict(list)
    for number, of_sentence in enumerate(labels):
        groups[len(of_sentence).bit_length()].append(number)
    return list(groups.values())
