"""Pairs about agreement, made of a treebank: a verb or adjective gets another number, gender or person.

The other form is one of the same lemma with the same other features that stands elsewhere in the treebank. Following
MultiBLiMP (arXiv:2504.02768), pairs are left out where the other form, or the subject, may agree after all.
"""

import collections
import dataclasses
import hashlib
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence

from limba.addons.pairs.conllu_files import Sentence, Word

FEATURES = ("Number", "Person", "Gender")
_VERBS = ("VERB", "AUX")
_NOUNS = ("NOUN", "PROPN")
# Words whose form or features are not to be trusted.
_ODD = ("Typo", "Foreign", "Abbr")
_BEFORE_CLITIC = "'’-‐"
_VOWELS = frozenset("aeiouyhœæø")

Features = frozenset[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A pair, and what was changed.

    Attributes:
      phenomenon: such as "subject-verb number".
      feature, value, other_value: "Number", "Sing", "Plur": the wrong word has the other value.
      place: of the sentence in its file.
    """

    sentence_good: str
    sentence_bad: str
    phenomenon: str
    feature: str
    value: str
    other_value: str
    lemma: str
    word_good: str
    word_bad: str
    subject: str
    place: str


class Lexicon:
    """The forms of a treebank: of verbs and adjectives by lemma and features, and features of all words by form."""

    def __init__(self, sentences: Iterable[Sentence]):
        self._forms: dict[tuple[str, str, Features], collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )
        self._analyses: dict[tuple[str, str, str], set[Features]] = collections.defaultdict(set)
        self._of_forms: dict[tuple[str, str], set[Features]] = collections.defaultdict(set)
        self._values: dict[str, set[str]] = collections.defaultdict(set)
        for word in (word for sentence in sentences for word in sentence.words if not _is_odd(word)):
            form, features = word.form.lower(), frozenset(word.features.items())
            self._of_forms[form, word.part].add(features)
            if word.part in (*_VERBS, "ADJ") and _is_plain(form):
                self._forms[word.lemma, word.part, features][form] += 1
                self._analyses[word.lemma, word.part, form].add(features)
                for name, value in features:
                    self._values[name].add(value)

    def other_form(self, word: Word, feature: str, agreed: Mapping[str, str]) -> tuple[str, str] | None:
        """The most frequent form with another value of a feature and the same others, and this value.

        Forms that also have an analysis that agrees are left out: `read` of *the dog read*.

        Args:
          agreed: the features in which the word agrees.
        """
        others = frozenset((name, value) for name, value in word.features.items() if name != feature)
        found: list[tuple[int, str, str]] = []
        for value in self._values[feature] - {word.features[feature]}:
            forms = self._forms.get((word.lemma, word.part, others | {(feature, value)}), collections.Counter[str]())
            found += [(-count, form, value) for form, count in forms.items() if form != word.form.lower()]
        kind = word.features.get("VerbForm")
        for _, form, value in sorted(found):
            analyses = map(dict, self._analyses[word.lemma, word.part, form])
            if not any(x.get("VerbForm") == kind and _agrees(x, agreed) for x in analyses):
                return form, value
        return None

    def is_ambiguous(self, word: Word, feature: str, value: str) -> bool:
        """Whether a form of the treebank may also have another value of a feature: German *sie*."""
        return any(dict(x).get(feature, value) != value for x in self._of_forms[word.form.lower(), word.part])


def _agrees(features: Mapping[str, str], agreed: Mapping[str, str]) -> bool:
    return all(features.get(name, value) == value for name, value in agreed.items())


def _is_odd(word: Word) -> bool:
    return any(name in word.features for name in _ODD)


def _is_plain(form: str) -> bool:
    """Whether a form has letters only: no clitic such as *'s*."""
    return all(unicodedata.category(character)[0] in "LM" for character in form)


def pairs_of(sentence: Sentence, lexicon: Lexicon, most_words: int) -> Iterator[Pair]:
    """All pairs of a sentence that has no more words than that."""
    if len(sentence.words) > most_words:
        return
    children: dict[int, list[Word]] = collections.defaultdict(list)
    for word in sentence.words:
        children[word.head].append(word)
    for controller, target, relation in _relations(sentence, children):
        if target.token is None or not _is_plain(target.form) or _is_odd(target) or _is_odd(controller):
            continue
        if any(_base(child) == "conj" for child in children[controller.number]):
            continue  # *John and Mary* may be singular or plural.
        if controller.features.get("PronType") in ("Rel", "Int", "Int,Rel"):
            continue  # *Who* agrees with what it stands for.
        agreed = {
            feature: value
            for feature in FEATURES
            if (value := _value(controller, feature)) and target.features.get(feature) == value
        }
        for feature, value in agreed.items():
            found = lexicon.other_form(target, feature, agreed)
            if found is None or lexicon.is_ambiguous(controller, feature, value):
                continue
            form = _with_case_of(found[0], target.form)
            if not _fits(sentence, target.token, form):
                continue
            yield Pair(
                sentence_good=sentence.text(),
                sentence_bad=sentence.text({target.token: form}),
                phenomenon=f"{relation} {feature.lower()}",
                feature=feature,
                value=value,
                other_value=found[1],
                lemma=target.lemma,
                word_good=target.form,
                word_bad=form,
                subject=controller.form,
                place=sentence.place,
            )


def _relations(sentence: Sentence, children: Mapping[int, Sequence[Word]]) -> Iterator[tuple[Word, Word, str]]:
    """Words and those that agree with them, and what the two are."""
    for word in sentence.words:
        of_word = children.get(word.number, ())
        subjects = [child for child in of_word if _base(child) == "nsubj"]
        if len(subjects) == 1:
            helpers = [child for child in of_word if _base(child) in ("aux", "cop")]
            for finite in [x for x in (word, *helpers) if x.part in _VERBS and x.features.get("VerbForm") == "Fin"][:1]:
                yield subjects[0], finite, "subject-verb"
            if word.part == "ADJ":
                yield subjects[0], word, "subject-adjective"
            elif word.features.get("VerbForm") == "Part" and _participle_agrees(subjects[0], of_word):
                yield subjects[0], word, "subject-participle"
        if word.part in _NOUNS:
            for child in of_word:
                if child.part == "ADJ" and _base(child) == "amod":
                    yield word, child, "noun-adjective"


def _participle_agrees(subject: Word, children: Sequence[Word]) -> bool:
    """Whether a participle agrees with its subject: not that of an active verb, French *elle a mangé*."""
    relations = [child.relation for child in children]
    is_passive = "pass" in subject.relation or "aux:pass" in relations or "cop" in relations
    return is_passive or not any(relation.partition(":")[0] == "aux" for relation in relations)


def _base(word: Word) -> str:
    return word.relation.partition(":")[0]


def _value(controller: Word, feature: str) -> str | None:
    """A feature of a subject; nouns are of the third person, which treebanks leave out."""
    implied = "3" if feature == "Person" and controller.part in _NOUNS else None
    return controller.features.get(feature, implied)


def _with_case_of(form: str, other: str) -> str:
    if len(other) > 1 and other.isupper():
        return form.upper()
    return form[:1].upper() + form[1:] if other[:1].isupper() else form


def _fits(sentence: Sentence, token: int, form: str) -> bool:
    """Whether another form can stand where a word is written together with the one before it: `l'a`, not `it's`."""
    if token == 0 or sentence.tokens[token - 1][1]:
        return True
    before, old = sentence.tokens[token - 1][0], sentence.tokens[token][0]
    if before[-1:] in _BEFORE_CLITIC:
        return _begins_with_vowel(old) == _begins_with_vowel(form)
    return not before[-1:].isalnum()


def _begins_with_vowel(form: str) -> bool:
    return unicodedata.normalize("NFD", form.lower())[:1] in _VOWELS


def choose(pairs: Iterable[Pair], most: int) -> list[Pair]:
    """At most `most` different pairs of each phenomenon, evenly from the directions of change, in the files' order.

    Of a direction (`Sing` to `Plur`) those with the smallest hash are taken: a sample that depends on the sentences
    alone. Where a direction has few, the others have more.
    """
    groups: dict[str, dict[tuple[str, str], list[tuple[str, int, Pair]]]] = {}
    seen = set()
    for number, pair in enumerate(pairs):
        texts = pair.sentence_good, pair.sentence_bad
        if texts in seen or texts[0] == texts[1]:
            continue
        seen.add(texts)
        key = hashlib.sha256("\t".join(texts).encode()).hexdigest()
        directions = groups.setdefault(pair.phenomenon, {})
        directions.setdefault((pair.value, pair.other_value), []).append((key, number, pair))
    chosen: list[tuple[int, Pair]] = []
    for _, directions in sorted(groups.items()):
        columns = [sorted(found, key=lambda x: x[:2]) for _, found in sorted(directions.items())]
        in_turn = (x for row in itertools.zip_longest(*columns) for x in row if x is not None)
        chosen += [(number, pair) for _, number, pair in itertools.islice(in_turn, most)]
    return [pair for _, pair in sorted(chosen, key=lambda x: x[0])]
