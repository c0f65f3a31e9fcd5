"""SeqIO preprocessors for the supervised data sets of T5, under the names and with the arguments of
`t5.data.preprocessors`: GLUE, SuperGLUE, SQuAD and translations, as TensorFlow Datasets has them.

Each takes a `tf.data.Dataset` of examples and returns one with the texts `inputs` and `targets`. A task of one's own
over such data is better registered with `tasks.supervised`, which has the same formats and needs no TensorFlow.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from limba.tasks.supervised.row_formats import LANGUAGES

logger = logging.getLogger(__name__)

_Example = Mapping[str, Any]
# What T5 writes in place of a label that is not known, as of a test split.
_UNKNOWN = "<unk>"


def _map(dataset: tf.data.Dataset, function: Callable[[_Example], dict[str, Any]]) -> tf.data.Dataset:
    return dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)


def _words(*parts: Any) -> tf.Tensor:
    return tf.strings.join(parts, " ")


def _label(number: tf.Tensor, names: Sequence[str]) -> tf.Tensor:
    """The name of a label; -1 is one that is not known."""
    return tf.gather([_UNKNOWN, *names], number + 1)


# ----------------------------------------------------- translation ---------------------------------------------------


def translate(dataset: tf.data.Dataset, source_language: str, target_language: str) -> tf.data.Dataset:
    """`translate German to English: ` and the text of the one language become `inputs`, that of the other `targets`.

    Languages are codes such as "de", which are features of the examples too; of "zh-cn" the first two letters count.

    Raises:
      ValueError: for a code that is no language's.
      ModuleNotFoundError: for a language whose name the package babel has, if it is not installed.
    """
    names = [_language(code) for code in (source_language, target_language)]
    prefix = f"translate {names[0]} to {names[1]}: "
    return _map(
        dataset,
        lambda x: {"inputs": tf.strings.join([prefix, x[source_language]]), "targets": x[target_language]},
    )


def _language(code: str) -> str:
    """The English name of a language."""
    if len(code) > 2:
        logger.warning("The name of the language %s is that of %s, as in T5.", code, code[:2])
    if code[:2] in LANGUAGES:
        return LANGUAGES[code[:2]]
    try:
        from babel import Locale  # as T5, which needs it for nothing else

        name = Locale(code[:2]).english_name
    except ModuleNotFoundError as error:
        known = ", ".join(LANGUAGES)
        raise ModuleNotFoundError(
            f"The English names of {known} are known here, that of {code!r} to babel: pip install babel.", name="babel"
        ) from error
    except ValueError as error:
        raise ValueError(f"There is no language {code!r}: give a code of two letters, such as 'uk'.") from error
    if name is None:
        raise ValueError(f"The English name of the language {code!r} is not known.")
    return name


def multi_translate(dataset: tf.data.Dataset, source_language: str, target_language: str) -> tf.data.Dataset:
    """`translate` of examples that have many languages in `translations`; those without one of the two are dropped."""

    def place(example: _Example, language: str) -> tf.Tensor:
        return tf.where(tf.equal(example["translations"]["language"], language))[:, 0]

    def has_both(example: _Example) -> tf.Tensor:
        return tf.size(place(example, source_language)) * tf.size(place(example, target_language)) > 0

    def pick(example: _Example) -> dict[str, Any]:
        texts = example["translations"]["translation"]
        return {code: texts[place(example, code)[0]] for code in (source_language, target_language)}

    return translate(_map(dataset.filter(has_both), pick), source_language, target_language)


# -------------------------------------------------- questions and answers --------------------------------------------


def _pad_punctuation(text: tf.Tensor) -> tf.Tensor:
    text = tf.strings.regex_replace(text, "([[:punct:]])", r" \1 ")
    return tf.strings.regex_replace(text, r"\s+", " ")


def squad(dataset: tf.data.Dataset, include_context: bool = True) -> tf.data.Dataset:
    """SQuAD: `question: … context: …`, or `squad trivia question: …`; the first answer is the target.

    All answers, with blanks around punctuation, are `answers`, for the postprocessor `qa` and the metric `squad`.
    """

    def make(example: _Example) -> dict[str, Any]:
        answers = _pad_punctuation(example["answers"]["text"])
        question, context = _pad_punctuation(example["question"]), _pad_punctuation(example["context"])
        if include_context:
            inputs = _words("question:", question, "context:", context)
        else:
            inputs = _words("squad trivia question:", question)
        return {
            "inputs": tf.strings.regex_replace(inputs, r"\s+", " "),
            "targets": answers[0],
            "id": example["id"],
            "question": question,
            "context": context,
            "answers": answers,
        }

    return _map(dataset, make)


def record(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """ReCoRD: an example for each answer of a query with a blank; `<unk>` where there is none."""

    def make(example: _Example) -> tf.data.Dataset:
        passage = tf.strings.regex_replace(example["passage"], r"(\.|\?|\!|\"|\')\n@highlight\n", r"\1 ")
        passage = tf.strings.regex_replace(passage, r"\n@highlight\n", ". ")
        entities = tf.strings.reduce_join(example["entities"], separator=", ")
        answers = example["answers"]
        targets = tf.cond(tf.size(answers) > 0, lambda: answers, lambda: tf.constant([_UNKNOWN]))
        of_query = {
            "idx/passage": example["idx"]["passage"],
            "idx/query": example["idx"]["query"],
            "inputs": _words("record query:", example["query"], "entities:", entities, "passage:", passage),
            "answers": answers,
        }
        return tf.data.Dataset.from_tensor_slices(targets).map(lambda answer: {**of_query, "targets": answer})

    return dataset.flat_map(make)


# ------------------------------------------------------- sentences ---------------------------------------------------


def glue(
    dataset: tf.data.Dataset,
    benchmark_name: str,
    label_names: Sequence[str],
    feature_names: Sequence[str] | None = None,
    id_key: str | None = "idx",
) -> tf.data.Dataset:
    """`qqp question1: … question2: …` becomes `inputs`, the name of the label `targets`, `<unk>` for the label -1.

    Args:
      benchmark_name: the first word.
      feature_names: the features in order; None are all but `label` and `idx`, sorted.
      id_key: the feature that is kept as `idx`; None keeps none. Of "multirc" all three numbers are kept.
    """

    def make(example: _Example) -> dict[str, Any]:
        parts: list[Any] = [benchmark_name]
        for name in feature_names or sorted(example.keys() - {"label", "idx"}):
            parts += [f"{name}:", example[name]]
        made = {"inputs": _words(*parts), "targets": _label(example["label"], label_names)}
        if benchmark_name == "multirc":
            without_breaks = tf.strings.regex_replace(made["inputs"], "<br>", " ")
            made["inputs"] = tf.strings.regex_replace(without_breaks, "<(/)?b>", "")
            made |= {f"idx/{name}": example["idx"][name] for name in ("paragraph", "question", "answer")}
        elif id_key:
            made["idx"] = example[id_key]
        return made

    return _map(dataset, make)


def stsb(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """STS-B: the similarity of two sentences, rounded to fifths, as a text such as "3.4"."""

    def make(example: _Example) -> dict[str, Any]:
        inputs = _words("stsb sentence1:", example["sentence1"], "sentence2:", example["sentence2"])
        score = tf.strings.as_string(tf.round(example["label"] * 5) / 5, precision=1)
        return {"inputs": inputs, "targets": score, "idx": example["idx"]}

    return _map(dataset, make)


# ------------------------------------------------------- pronouns ----------------------------------------------------

# What RE2 reads as something else than itself.
_SPECIAL = r"([!-/:-@\[-`{-~])"


def wsc(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """WSC: a text with its noun between asterisks and its pronoun between `#`; whether they are the same."""

    def mark(text: tf.Tensor, words: tf.Tensor, index: tf.Tensor, sign: str) -> tf.Tensor:
        """Puts a sign on both sides of words of the text that begin with its `index`-th."""
        escaped = tf.strings.regex_replace(words, _SPECIAL, r"\\\1")
        pattern = tf.strings.join([r"^((?:\S+\s){", tf.strings.as_string(index), "})(", escaped, ")"])
        return tf.strings.regex_replace(text, pattern, rf"\1{sign} \2 {sign}")

    def make(example: _Example) -> dict[str, Any]:
        noun, pronoun = example["span1_index"], example["span2_index"]
        text = mark(example["text"], example["span1_text"], noun, "*")
        moved = pronoun + 2 * tf.cast(noun < pronoun, pronoun.dtype)  # by the two signs before it
        text = mark(text, example["span2_text"], moved, "#")
        return {
            "inputs": _words("wsc text:", text),
            "targets": _label(example["label"], ("False", "True")),
            "idx": example["idx"],
        }

    return _map(dataset, make)


def wsc_simple(dataset: tf.data.Dataset, label: str = "wsc:", correct_referent_only: bool = False) -> tf.data.Dataset:
    """WSC as a question: the text with its pronoun between asterisks; the noun is the target, also where it is wrong.

    Args:
      label: the first word.
      correct_referent_only: only examples whose noun is the right one, as for training.

    Raises:
      tf.errors.InvalidArgumentError: while reading, if a text has no such pronoun.
    """

    def make(example: _Example) -> dict[str, Any]:
        text = tf.numpy_function(
            _with_marked_pronoun,
            [example["text"], example["span2_text"], example["span2_index"]],
            tf.string,
            stateful=False,
        )
        return {
            "inputs": _words(label, tf.reshape(text, [])),
            "targets": tf.reshape(example["span1_text"], []),
            "label": example.get("label", 0),
            "idx": example["idx"],
        }

    if correct_referent_only:
        dataset = dataset.filter(lambda example: tf.cast(example.get("label", False), tf.bool))
    return _map(dataset, make)


def _with_marked_pronoun(text: bytes, pronoun: bytes, index: Any) -> bytes:
    """The text with asterisks around the pronoun, which is the `index`-th word, or begins a later one.

    What the word ends with, such as a comma and a quote, is then a word of its own, as T5 has it in the one text of
    SuperGLUE where that is so. In another one the index is too small.
    """
    words = text.split(b" ")
    for place in range(int(index), len(words)):
        if words[place] == pronoun:
            return b" ".join([*words[:place], b"*" + pronoun + b"*", *words[place + 1 :]])
        ending = words[place].removeprefix(pronoun)
        if ending != words[place] and not ending[:1].isalnum():
            return b" ".join([*words[:place], b"*" + pronoun + b"*", ending, *words[place + 1 :]]).rstrip()
    raise ValueError(f"The text {text!r} has no pronoun {pronoun!r} from word {index} on.")


def definite_pronoun_resolution_simple(dataset: tf.data.Dataset, label: str = "wsc:") -> tf.data.Dataset:
    """DPR: a sentence with its pronoun between asterisks, the first of them; the right candidate is the target."""

    def make(example: _Example) -> dict[str, Any]:
        pattern = tf.strings.join([" (", example["pronoun"], r")( |\.|,)"])
        sentence = tf.strings.regex_replace(example["sentence"], pattern, r" *\1*\2", replace_global=False)
        return {"inputs": _words(label, sentence), "targets": example["candidates"][example["label"]]}

    return _map(dataset, make)
