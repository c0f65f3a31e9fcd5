"""Marks of several languages taken off, and nothing else."""

import unicodedata

import pytest

from limba.addons.diacritics import marks
from tasks.pretraining import blank_sentences

# Language, a text with marks, and what is typed without.
CASES = [
    ("ro", "Învață să pâlpâie: ÎN FAȚA ȘCOLII, țările și Ăla!", "Invata sa palpaie: IN FATA SCOLII, tarile si Ala!"),
    ("pl", "Zażółć gęślą jaźń, Łódź", "Zazolc gesla jazn, Lodz"),
    ("hr", "Đuro čuje žabu", "Duro cuje zabu"),
    ("nb", "Blåbærsyltetøy på Ørnes", "Blabærsyltetoy pa Ornes"),
    ("tr", "Işık İstanbul'da, Iğdır ığüş", "Isik Istanbul'da, Igdir igus"),
    ("vi", "Đường phố Việt Nam, ưở Ễ", "Duong pho Viet Nam, uo E"),
    ("cs", "Příliš žluťoučký kůň úpěl ďábelské ódy", "Prilis zlutoucky kun upel dabelske ody"),
    ("hu", "árvíztűrő tükörfúrógép", "arvizturo tukorfurogep"),
    ("de", "Größe, Öl und Straße", "Große, Ol und Straße"),
    ("es", "¿Qué? ¡Añejo pingüino!", "¿Que? ¡Anejo pinguino!"),
    ("el", "Ελλάδα, ΐ και Café", "Ελλαδα, ι και Café"),
    ("ru", "ёлка и Йод, Café", "елка и Йод, Café"),
    ("he", "שָׁלוֹם é", "שלום é"),
    ("ar", "مُحَمَّدٌ أحمد", "محمد أحمد"),
    ("yo", "ọ̀rọ̀ Yorùbá ṣé", "oro Yoruba se"),
    ("mt", "Ħaż-Żebbuġ", "Haz-Zebbug"),
    (None, "naïve façade, Łódź ø đ", "naive facade, Łodz ø đ"),
]


@pytest.mark.parametrize(("language", "marked", "typed"), CASES, ids=lambda x: str(x)[:8])
def test_marks_and_only_marks(language, marked, typed):
    rules = marks.rules_of(language)
    decomposed = unicodedata.normalize("NFD", marked)
    for given in (marked, decomposed) if marks.find_language(language).script == "LATIN" else (marked,):
        target = rules.with_marks(given)
        assert target == marked
        assert rules.without_marks(target) == typed
    assert rules.without_marks(typed) == typed


@pytest.mark.parametrize("language", ["ro", "pl", "vi", None])
def test_other_characters_stay(language):
    text = "„Așa” — ‘da’… 1½ 5′ 3² ﬁ ™ № 日本語が 한국어 Привет, ёж й עִברית नि 🙂"
    text += "👩\u200d👧 1\ufe0f\u20e3 \u212b\u2126 €\u00a0x\ty"
    rules = marks.rules_of(language)
    assert rules.with_marks(text) == text
    assert rules.without_marks(text) == text.replace("Așa", "Asa")


def test_romanian_cedillas_become_commas_and_french_ones_stay():
    rules = marks.rules_of("ro")
    assert rules.with_marks("Ştiinţă ŞŢ s\u0327t\u0327 s\u0326 François") == "Știință ȘȚ șț ș François"
    assert rules.without_marks("Știință François") == "Stiinta Francois"
    assert marks.rules_of("tr").with_marks("Şişli") == "Şişli"


def test_marks_that_nothing_composes():
    rules = marks.rules_of("ro")
    assert rules.with_marks("a\u0306\u0302x\u0302") == "ă\u0302x\u0302"
    assert rules.without_marks("ă\u0302x\u0302") == "ax"
    assert marks.rules_of("vi").without_marks("e\u0302\u0323") == "e"


def test_every_letter_of_every_language_has_a_plain_form():
    for code, language in marks.LANGUAGES.items():
        rules = marks.rules_of(code)
        for letter in rules.letters:
            plain = rules.without_marks(letter)
            assert len(plain) == 1 and plain != letter, (code, letter)
        assert unicodedata.normalize("NFC", language.letters) == language.letters
        assert rules.places == {rules.without_marks(letter) for letter in rules.letters}
    assert marks.rules_of("ro").places == set("aistAIST")


def test_languages_by_name():
    with pytest.raises(ValueError, match=r"'rom'.*did you mean 'ro'.*ar, az, bs.*Language\(letters"):
        marks.rules_of("rom")
    own = marks.Language("ŋ", {"ŋ": "n"})
    assert marks.rules_of(own).without_marks("Ŋaŋé") == "Nane"


def test_sentences():
    text = '  El zice: „Vin!” (Da?) Apoi 3.5 lei.\nA doua linie\n\n\n…și gata...  "Chiar?" Nu'
    assert blank_sentences.sentences(text) == [
        *("El zice: „Vin!”", "(Da?)", "Apoi 3.5 lei.", "A doua linie", "…și gata...", '"Chiar?"', "Nu")
    ]
    assert blank_sentences.sentences(" \n ") == []


def test_capital_i_with_a_dot_is_a_letter_of_turkish():
    """Its mark was at no place, so that the error rate of "Istanbul" was 0."""
    for code in ("tr", "az"):
        assert "I" in marks.rules_of(code).places and "İ" in marks.rules_of(code).letters
        assert marks.rules_of(code).without_marks("İI ıi") == "II ii"


def test_signs_have_one_order_and_arabic_questions_end():
    """A shadda is typed before its vowel, and stands behind it in Unicode's form NFC."""
    typed, canonical = "م\u0651\u064e", "م\u064e\u0651"
    assert marks.rules_of("ar").with_marks(typed) == marks.rules_of("ar").with_marks(canonical) == canonical
    assert marks.rules_of("he").with_marks("ש\u05bc\u05c1\u05b8") == "ש\u05b8\u05bc\u05c1"
    assert blank_sentences.sentences("هل أنت بخير؟ نعم.") == ["هل أنت بخير؟", "نعم."]
