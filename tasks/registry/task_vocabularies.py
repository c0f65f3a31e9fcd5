"""The vocabularies of a task, and whether they are the model's."""

from typing import Any

from limba.data import contract
from limba.tasks.registry.providers import find_provider
from limba.tasks.registry.tasks import get_subtasks
from limba.tasks.vocabularies import (
    LabelVocabulary,
    MultiLabelVocabulary,
    NumberVocabulary,
    PassThroughVocabulary,
    SentencePieceVocabulary,
    T5TokenizerVocabulary,
    TokenizerVocabulary,
    same_vocabulary,
    sentencepiece_models,
    without_tensorflow,
)

# The files of gin/runs for the kinds of targets that are no texts.
_RECIPES = {
    LabelVocabulary: "classify.gin",
    MultiLabelVocabulary: "classify_multi_label.gin",
    NumberVocabulary: "regress.gin",
}


def check_task_vocabularies(config: contract.DatasetConfig, inputs: Any, targets: Any) -> None:
    """Checks that a task makes the ids that the model knows, whose vocabularies `inputs` and `targets` are.

    Raises:
      FileNotFoundError: if a vocabulary's file is missing.
      ValueError: if it cannot be opened or is none for T5, or a vocabulary of the task is another.
    """
    for task in get_subtasks(find_provider(config.mixture_or_task_name, config.module)):
        for name, expected in (("inputs", inputs), ("targets", targets)):
            feature = task.output_features.get(name)
            if feature is None:
                continue
            if isinstance(
                without_tensorflow(feature.vocabulary),
                SentencePieceVocabulary | TokenizerVocabulary | T5TokenizerVocabulary,
            ):
                try:
                    sentencepiece_models.check_file(feature.vocabulary)
                except (FileNotFoundError, ValueError) as error:
                    raise type(error)(f"Task {task.name!r}: {error}") from error
            if not same_vocabulary(feature.vocabulary, expected):
                raise ValueError(
                    f"Task {task.name!r} makes {name} with {_describe(feature.vocabulary)}, and the model has "
                    f"{_describe(expected)}: {_remedy(feature.vocabulary, expected)}"
                )


def task_vocabularies(config: contract.DatasetConfig) -> tuple[Any, Any]:
    """The vocabularies of a task's inputs and targets.

    Without both features it is the one that the others have in common; features that pass ids through do not count.

    Raises:
      ValueError: if they have different ones.
    """
    features = find_provider(config.mixture_or_task_name, config.module).output_features
    if {"inputs", "targets"} <= set(features):
        return features["inputs"].vocabulary, features["targets"].vocabulary
    given = [feature.vocabulary for feature in features.values()]
    real = [v for v in given if not isinstance(without_tensorflow(v), PassThroughVocabulary)] or given
    if not all(same_vocabulary(vocabulary, real[0]) for vocabulary in real):
        raise ValueError(f"{config.name!r} has neither inputs and targets nor one vocabulary: {', '.join(features)}.")
    return real[0], real[0]


def _remedy(vocabulary: Any, expected: Any) -> str:
    if isinstance(vocabulary, LabelVocabulary | NumberVocabulary) and type(vocabulary) is type(expected):
        return f"bind LABELS = {list(vocabulary.labels)}."
    if isinstance(vocabulary, LabelVocabulary | NumberVocabulary):
        return f"include gin/runs/{_RECIPES[type(vocabulary)]}, and bind LABELS = {list(vocabulary.labels)}."
    kinds = type(without_tensorflow(vocabulary)), type(without_tensorflow(expected))
    if kinds[0] is not kinds[1]:
        file = contract.vocabulary_file(expected)
        shown = repr(file)
        if kinds == (TokenizerVocabulary, T5TokenizerVocabulary):  # Of a file without sentinels, such as Gemma's.
            shown = f"vocabularies.T5TokenizerVocabulary({file!r})"
        remedy = f"register the task with the model's{f': vocabulary={shown}' if file else ' vocabulary'}"
        if {*kinds} == {SentencePieceVocabulary, T5TokenizerVocabulary}:
            remedy += (
                "; or, if the model is of `limba convert from-hf`, convert it again with the task's: --vocab "
                f"{contract.vocabulary_file(vocabulary)}"
            )
        return f"these are different kinds, which VOCABULARY_FILE does not change; {remedy}."
    return (
        "bind VOCABULARY_FILE, VOCAB_SIZE and extra_ids to the task's, or register the task with the model's "
        "vocabulary."
    )


def _describe(vocabulary: Any) -> str:
    if isinstance(vocabulary, LabelVocabulary):
        what = "several of the labels" if isinstance(vocabulary, MultiLabelVocabulary) else "the labels"
        return f"{what} {', '.join(map(repr, vocabulary.labels))}"
    if isinstance(vocabulary, NumberVocabulary):
        return f"the numbers {', '.join(map(repr, vocabulary.labels))}"
    file = contract.vocabulary_file(vocabulary) or ""
    extra_ids = f", {vocabulary.extra_ids} of them extra_ids" if getattr(vocabulary, "extra_ids", 0) else ""
    return f"{type(vocabulary).__name__} {file} ({vocabulary.vocab_size} ids{extra_ids})".replace("  ", " ")
