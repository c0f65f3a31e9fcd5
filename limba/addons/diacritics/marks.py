"""Diacritics of text: the marks of a language, text without them, and sentences to learn from.

Only marks are taken off: a letter of the language's script keeps its base, everything else (punctuation, quotes,
digits, emoji, other scripts) stays as it is. A letter has marks if Unicode decomposes it into a letter and
combining characters, or if a language's row has it, such as Polish ł.
"""

import dataclasses
import difflib
import functools
import re
import sys
import unicodedata
from collections.abc import Mapping

# Combining marks that stand behind letters of Latin and Greek.
_MARKS = "\u0300-\u034e\u0350-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20dc\u20e1\ufe20-\ufe2f"


@dataclasses.dataclass(frozen=True)
class Language:
    """The diacritics of a language.

    Attributes:
      letters: its letters with marks, composed, in lower case, and capitals that only they have: a vocabulary has to
        have them, and the diacritic error rate counts the places where they could stand. Empty: of any letter of the
        script.
      plain: letters that Unicode does not decompose, or that another script writes, with the letters typed for them.
      normalized: other forms of its letters, which targets have in their place.
      script: the letters whose marks are taken off, by the beginning of their Unicode names; empty: of none.
      marks: signs that are marks wherever they stand, such as vowel points.
    """

    letters: str = ""
    plain: Mapping[str, str] = dataclasses.field(default_factory=dict)
    normalized: Mapping[str, str] = dataclasses.field(default_factory=dict)
    script: str = "LATIN"
    marks: str = ""


_D, _L, _O = {"đ": "d"}, {"ł": "l"}, {"ø": "o"}

LANGUAGES: Mapping[str, Language] = {
    "ar": Language(script="", marks="\u064b\u064c\u064d\u064e\u064f\u0650\u0651\u0652\u0670"),
    "az": Language("çğıöşüİ", {"ı": "i", "ə": "e"}),
    "bs": Language("čćđšž", _D),
    "ca": Language("àçéèíïóòúü"),
    "cs": Language("áčďéěíňóřšťúůýž"),
    "cy": Language("âêîôûŵŷ"),
    "da": Language("åø", _O),
    "de": Language("äöü"),
    "el": Language("άέήίόύώϊϋΐΰ", script="GREEK"),
    "eo": Language("ĉĝĥĵŝŭ"),
    "es": Language("áéíñóúü"),
    "et": Language("äõöüšž"),
    "fi": Language("äöå"),
    "fr": Language("àâçéèêëîïôùûü"),
    "ga": Language("áéíóú"),
    "ha": Language("ɓɗƙƴ", {"ɓ": "b", "ɗ": "d", "ƙ": "k", "ƴ": "y"}),
    "he": Language(script="", marks="".join(map(chr, [*range(0x5B0, 0x5BD), 0x5BF, 0x5C1, 0x5C2, 0x5C7]))),
    "hr": Language("čćđšž", _D),
    "hu": Language("áéíóöőúüű"),
    "is": Language("áéíóöúýð", {"ð": "d"}),
    "it": Language("àèéìòù"),
    "lt": Language("ąčęėįšųūž"),
    "lv": Language("āčēģīķļņšūž"),
    "mt": Language("ċġħż", {"ħ": "h"}),
    "nb": Language("åø", _O),
    "nl": Language("éëïóöü"),
    "nn": Language("åø", _O),
    "no": Language("åø", _O),
    "pl": Language("ąćęłńóśźż", _L),
    "pt": Language("áâãàçéêíóôõú"),
    # Cedillas came from code pages without the comma below, which is what Romanian writes.
    "ro": Language("ăâîșț", normalized={"ş": "ș", "ţ": "ț"}),
    "ru": Language("ё", {"ё": "е"}, script=""),
    "sk": Language("áäčďéíĺľňóôŕšťúýž"),
    "sl": Language("čšž"),
    "sq": Language("çë"),
    "sr": Language("čćđšž", _D),
    "sv": Language("åäö"),
    "tr": Language("çğıöşüâİ", {"ı": "i"}),
    "vi": Language("àáâãèéêìíòóôõùúýăđĩũơưạảấầẩẫậắằẳẵặẹẻẽếềểễệỉịọỏốồổỗộớờởỡợụủứừửữựỳỵỷỹ", _D),
    "yo": Language("àáèéẹìíòóọùúṣ"),
}


def find_language(language: str | Language | None) -> Language:
    """The rules of a code of ISO 639-1 such as "ro"; None is any language in Latin letters.

    Raises:
      ValueError: for a code without a row.
    """
    if language is None:
        return Language()
    if isinstance(language, Language):
        return language
    if language not in LANGUAGES:
        near = difflib.get_close_matches(str(language), LANGUAGES, n=1, cutoff=0.5)
        raise ValueError(
            f"There are no rules of the language {language!r}{f' (did you mean {near[0]!r}?)' if near else ''}; there "
            f"are {', '.join(LANGUAGES)}. Give diacritics.Language(letters=…), or None for all marks of Latin letters."
        )
    return LANGUAGES[language]


@dataclasses.dataclass(frozen=True)
class Rules:
    """A language's rules, ready for texts; `rules_of` makes them.

    Attributes:
      letters: that may carry marks, lower and upper case.
      places: plain letters where a mark may stand; empty where signs stand at any letter.
    """

    letters: frozenset[str]
    places: frozenset[str]
    _composed: re.Pattern[str] | None
    _marked: re.Pattern[str] | None
    _normalized: Mapping[int, str]
    _plain: Mapping[int, str]

    def is_place(self, letter: str) -> bool:
        """Whether a plain letter could have a mark."""
        return letter in self.places if self.places else letter.isalpha()

    def with_marks(self, text: str) -> str:
        """A text as it is learned: letters composed, marks in Unicode's order, other forms of letters normalized."""
        if self._composed is not None:
            text = self._composed.sub(lambda match: unicodedata.normalize("NFC", match[0]), text)
        return text.translate(self._normalized)

    def without_marks(self, text: str) -> str:
        """A text as it is typed without diacritics."""
        text = text.translate(self._plain)
        return text if self._marked is None else self._marked.sub("", text)


@functools.cache
def _rules_of(code: str | None) -> Rules:
    return _make_rules(find_language(code))


def rules_of(language: str | Language | None) -> Rules:
    """The rules of a language; see `find_language`."""
    return _make_rules(language) if isinstance(language, Language) else _rules_of(language)


@functools.cache
def _letters_of(script: str) -> list[str]:
    """All letters of a script, in the order of their codes."""
    letters = map(chr, range(sys.maxunicode + 1 if script else 0))
    return [x for x in letters if x.isalpha() and unicodedata.name(x, "").startswith(script)]


def _make_rules(language: Language) -> Rules:
    bases, plain = _letters_of(language.script), dict.fromkeys(map(ord, language.marks), "")
    for letter in bases:
        decomposed = unicodedata.normalize("NFD", letter)
        if len(decomposed) > 1:
            plain[ord(letter)] = "".join(c for c in decomposed if not unicodedata.combining(c))
    both = {letter: base for pair in language.plain.items() for letter, base in _cases(*pair).items()}
    plain |= {ord(letter): base for letter, base in both.items()}
    normalized = {letter: form for pair in language.normalized.items() for letter, form in _cases(*pair).items()}
    composed = marked = None
    if bases:
        of_script = _character_class(bases)
        composed = re.compile(f"{of_script}[{_MARKS}]+")
        marked = re.compile(f"(?<={of_script})[{_MARKS}]+")
    elif language.marks:
        composed = re.compile(f"[{language.marks}]{{2,}}")
    letters = frozenset(letter for lower in language.letters for letter in _cases(lower))
    carry = letters or {chr(code) for code, base in plain.items() if base}
    places = frozenset(plain.get(ord(letter), letter) for letter in carry)
    return Rules(letters, places, composed, marked, {ord(k): v for k, v in normalized.items()}, plain)


def _cases(lower: str, form: str = "") -> dict[str, str]:
    """A letter and its form in lower and upper case; Turkish ı has no capital that takes another form."""
    upper = lower.upper()
    return {lower: form} | ({upper: form.upper()} if len(upper) == 1 and upper.lower() == lower else {})


def _character_class(letters: list[str]) -> str:
    """`[a-zA-Z…]` of letters in the order of their codes."""
    ranges: list[list[int]] = []
    for code in map(ord, letters):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in ranges)}]"
