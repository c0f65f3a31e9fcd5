"""Words with labels: treebanks in CoNLL-U, a word a line as in the shared tasks of CoNLL, and tables with lists."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from limba.addons.pairs import conllu_files
from limba.files import untrusted_json
from limba.files.untrusted_files import shown, shown_list
from limba.tasks.sources import corpora
from limba.tasks.supervised import found_columns

CONLLU = (".conllu", ".conllu.gz")
WORD_A_LINE = (".conll", ".bio", ".iob", ".iob2", ".iobes")
# The features that the shared task on parsing counts (CoNLL 2018, UFeats); a treebank may have others.
UNIVERSAL_FEATURES = re.compile(
    "PronType|NumType|Poss|Reflex|Foreign|Abbr|Gender|Animacy|Number|Case|Definite|Degree|VerbForm|Mood|Tense|Aspect|"
    "Voice|Evident|Polarity|Person|Polite"
)
_TOKENS = ("tokens", "words")
_TAGS = ("tags", "ner_tags", "pos_tags", "upos")
_SPLIT = "words"
# Of schemes that mark ends and single words, the letter of BIO.
_AS_BIO = {"E": "I", "L": "I", "S": "B", "U": "B"}
_OF_LANGUAGE = re.compile(r"([a-z][a-z-]+):.")


class LabelledSentence(NamedTuple):
    """A sentence.

    Attributes:
      words: without blanks inside.
      labels: one of each word.
      place: where it stands, for messages.
    """

    words: list[str]
    labels: list[str]
    place: str

    @property
    def text(self) -> str:
        """What a model reads: the words with blanks between them."""
        return " ".join(self.words)


def read(file: str, label: str | None = None) -> list[LabelledSentence]:
    """The sentences of a file, whose format its name says. Entities in IOBES or BILOU become those of BIO.

    Args:
      file: CoNLL-U (.conllu, .conllu.gz); a word a line with its label last and an empty line behind each sentence
        (.conll, .bio, .iob, .iob2, .iobes); or a table with lists of words (`tokens`) and of labels (`tags`,
        `ner_tags` …).
      label: of CoNLL-U "upos", which None is, "feats", or a feature such as "Number"; of a table a column; else None.

    Raises:
      FileNotFoundError: if the file is not there.
      ValueError: for a file without sentences, a line or row that is not of the format, and a label that it lacks.
    """
    if file.endswith(CONLLU):
        found = list(_of_treebank(file, label or "upos"))
    elif file.endswith(WORD_A_LINE):
        if label is not None:
            raise ValueError(f"{file} has the label in the last field of each line; leave the label {label!r} out.")
        found = _without_language(list(_of_lines(file)))
    else:
        found = list(_of_table(file, label))
    if not found:
        raise ValueError(f"{file} has no sentence; give a treebank, or sentences with a label for each word.")
    if file.endswith(CONLLU) and all(set(x.labels) == {"_"} for x in found):
        raise ValueError(
            f"No word of {file} has {label or 'upos'!r}; name upos, feats, or a feature that it has, such as Number."
        )
    return [x._replace(labels=as_bio(x.labels)) for x in found]


def as_bio(labels: Sequence[str]) -> list[str]:
    """Labels of a sentence with IOBES (or BILOU) as BIO: behind an end or a single word an entity begins.

    Labels without these letters stay as they are.
    """
    made, has_ended = list[str](), False
    for label in labels:
        letter, dash, kind = label.partition("-")
        if not dash or letter not in "BIELSU" or len(letter) != 1:
            made.append(label)
            has_ended = False
            continue
        bio = _AS_BIO.get(letter, letter)
        made.append(f"{'B' if has_ended else bio}-{kind}")
        has_ended = letter in _AS_BIO
    return made


def _of_treebank(file: str, label: str) -> Iterator[LabelledSentence]:
    for sentence in conllu_files.read([file]):
        labels = [_label_of(word, label) for word in sentence.words]
        # A form such as "10 000" is one word, and what a model reads has blanks between words alone.
        yield LabelledSentence(["".join(word.form.split()) for word in sentence.words], labels, sentence.place)


def _label_of(word: conllu_files.Word, label: str) -> str:
    if label == "upos":
        return word.part
    if label == "feats":
        found = sorted(f"{name}={value}" for name, value in word.features.items() if UNIVERSAL_FEATURES.fullmatch(name))
        return "|".join(found) or "_"
    return word.features.get(label, "_")


def _of_lines(file: str) -> Iterator[LabelledSentence]:
    words, labels, begin = list[str](), list[str](), 0
    for number, line in conllu_files.numbered_lines(file, newline=None):
        fields = line.split()
        # "# id 3" is a comment; the word "#" has a label and nothing else.
        if fields and fields[0] != "-DOCSTART-" and not (fields[0] == "#" and len(fields) != 2):
            if len(fields) < 2:
                raise ValueError(
                    f"{file}, line {number}, has {shown(line.strip())} where a word and its label are needed."
                )
            begin = begin or number
            words.append(fields[0])
            labels.append(fields[-1])
        elif not fields and words:
            yield LabelledSentence(words, labels, f"{file}, line {begin}")
            words, labels, begin = [], [], 0
    if words:
        yield LabelledSentence(words, labels, f"{file}, line {begin}")


def _without_language(sentences: Sequence[LabelledSentence]) -> list[LabelledSentence]:
    """The sentences without the language that WikiAnn's files have in front of every word: "ro:Ana"."""
    found = [_OF_LANGUAGE.match(word) for sentence in sentences for word in sentence.words]
    if not found or None in found or len({match[1] for match in found if match}) > 1:
        return list(sentences)
    return [x._replace(words=[word.partition(":")[2] for word in x.words]) for x in sentences]


def _of_table(file: str, label: str | None) -> Iterator[LabelledSentence]:
    names = found_columns.of_file(file)
    tokens = next((name for name in _TOKENS if name in names), None)
    tags = label or next((name for name in _TAGS if name in names), None)
    if tokens is None or tags not in names:
        raise ValueError(
            f"{found_columns.described(file, names)}, and words with labels need {_TOKENS[0]!r} and "
            f"{label or _TAGS[0]!r}, two lists. The names of treebanks and of files with a word a line end with "
            f"{', '.join((*CONLLU[:1], *WORD_A_LINE))}."
        )
    source = corpora.HuggingFaceSource({_SPLIT: file}, (), nested_columns=(tokens, tags))
    of_numbers = source.class_names(_SPLIT, tags)
    for name, number, row in source.numbered_documents(_SPLIT):
        place = f"row {number} (the first is 0) of {name}"
        words, labels = _list(row[tokens]), _list(row[tags])
        labels = [of_numbers[x] if type(x) is int and 0 <= x < len(of_numbers) else x for x in labels]
        for column, found in ((tokens, words), (tags, labels)):
            if not found or not all(isinstance(x, str) and x.strip() for x in found):
                value = shown_list(found) if found else shown(row[column])
                raise ValueError(f"{place}: column {column!r} has {value}; write a list of texts there.")
        if len(words) != len(labels):
            raise ValueError(f"{place} has {len(words)} words and {len(labels)} labels; each word has one.")
        yield LabelledSentence(["".join(word.split()) for word in words], labels, place)


def _list(value: Any) -> list[Any]:
    try:
        found = untrusted_json.parse(value, "") if isinstance(value, str | bytes) else value
    except ValueError:
        return []
    return list(found) if isinstance(found, Sequence) and not isinstance(found, str) else []
