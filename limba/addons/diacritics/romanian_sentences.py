"""Romanian sentences of a small grammar, whose ambiguity without diacritics is known to the last digit.

    python -m limba.addons.diacritics.romanian_sentences --out corpus

Words are real, and so are the pairs that look alike without marks: fata and fața, pește and peste, casă and casa, cântă
and cânta. Most of them are told apart by the words around them. At some places several forms are possible, and the
grammar draws one with a probability that belongs to the words before; there nobody can do better than to choose the
likelier form. What that reaches is a ceiling for any model: each document has it as `best`, beside its `text`.
"""

import argparse
import json
import pathlib
import random
from collections.abc import Mapping, Sequence

from limba.addons.diacritics import marks, scores
from limba.files import json_text, storage
from limba.tasks.pretraining import blank_sentences

_DOCUMENTS = {"train": 9000, "validation": 160}
_NUM_SHARDS = {"train": 8, "validation": 1}
_SEED = 0

# A word, or the forms that look alike without marks with their probabilities.
Forms = Mapping[str, float]
Word = str | Forms

_MEN = """băiatul bărbatul țăranul învățătorul bunicul vecinul doctorul șoferul pădurarul brutarul copilul împăratul
prințul ciobanul cântărețul croitorul moșul unchiul străinul tâmplarul oșteanul sătenul flăcăul fratele"""
_WOMEN = """bunica învățătoarea vecina țăranca doctorița mătușa sora împărăteasa vânzătoarea cântăreața croitoreasa
stăpâna regina prietena nevasta bătrâna educatoarea tânăra străina"""
_TRANSITIVE = """vede cumpără vinde găsește păstrează aduce caută primește așază lasă ascunde împarte dăruiește plătește
desenează strânge pierde uită cunoaște iubește"""
# Objects with adjectives that agree with them.
_MASCULINE = (
    "mărul cuțitul pământul câinele calul sacul cojocul scăunelul ciocanul vârful fânul brațul căluțul urciorul"
)
_MASCULINE_ADJECTIVES = "roșu mare vechi greu frumos bătrân alb întreg rătăcit uitat ușor"
_FEMININE = """cartea pâinea brânza căciula ușa fereastra găina oaia țeava mânușa scrisoarea cămașa lâna hârtia ață
mașina rochița căruța păpușa sămânța"""
_FEMININE_ADJECTIVES = "caldă mare veche grea frumoasă bătrână albă întreagă rătăcită uitată ușoară roșie"
_NOUNS = ((_MASCULINE, _MASCULINE_ADJECTIVES), (_FEMININE, _FEMININE_ADJECTIVES))
_PLACES = """în pădure|la târg|pe câmp|în grădină|la școală|lângă fântână|în cămară|la țară|în piață|pe stradă|după gard
|lângă râu|sub pătură|la moară|în căruță|pe malul mării|lângă biserică|în odaie|la fereastră|peste drum"""
_TIMES = """astăzi|mâine|dimineața|seara|după-amiază|joi|sâmbătă|duminică|în fiecare zi|acum|din când în când|vara|iarna
|toamna|primăvara|în fiecare vară|până mâine|câteodată|într-o săptămână|la prânz"""
_INTRANSITIVE = (
    "doarme vine așteaptă rămâne muncește călătorește zâmbește tace trăiește învață pleacă mănâncă râde plânge"
)
_JOINS = "și|dar|însă|pentru că|fiindcă|deși|iar|când"

# What may be said of a thing: verb, then the word as it looks without marks, then its forms. Of probability
# 1 is what the verb says for sure.
_AFTER_VERB: dict[str, dict[str, Forms]] = {
    "vede": {
        "fata": {"fata": 0.8, "fața": 0.2},
        "fete": {"fete": 0.7, "fețe": 0.3},
        "casa": {"casa": 0.6, "casă": 0.4},
        "parul": {"părul": 0.3, "parul": 0.7},
    },
    "spală": {
        "fata": {"fața": 0.85, "fata": 0.15},
        "parul": {"părul": 1.0},
        "paturi": {"pături": 0.9, "paturi": 0.1},
        "rata": {"rața": 1.0},
    },
    "vinde": {
        "casa": {"casa": 0.7, "casă": 0.3},
        "paturi": {"paturi": 0.4, "pături": 0.6},
        "rata": {"rața": 0.8, "rață": 0.2},
        "para": {"para": 0.1, "pară": 0.9},
    },
    "caută": {
        "casa": {"casă": 0.65, "casa": 0.35},
        "fete": {"fete": 0.9, "fețe": 0.1},
        "tari": {"țări": 1.0},
        "mama": {"mama": 0.9, "mamă": 0.1},
    },
    "plătește": {"rata": {"rata": 0.75, "rată": 0.15, "rața": 0.1}, "casa": {"casa": 0.8, "casă": 0.2}},
    "primește": {"para": {"para": 0.6, "pară": 0.4}, "rata": {"rata": 0.3, "rața": 0.7}},
    "mănâncă": {"para": {"para": 0.25, "pară": 0.75}, "peste": {"pește": 1.0}, "supa": {"supa": 0.35, "supă": 0.65}},
    "prinde": {"peste": {"pește": 1.0}, "rata": {"rața": 0.9, "rață": 0.1}},
    "bea": {"apa": {"apă": 0.85, "apa": 0.15}, "supa": {"supa": 0.6, "supă": 0.4}},
    "cere": {"apa": {"apă": 0.95, "apa": 0.05}, "supa": {"supă": 0.7, "supa": 0.3}, "cana": {"cana": 0.4, "cană": 0.6}},
    "taie": {"parul": {"părul": 0.7, "parul": 0.3}, "para": {"para": 0.7, "pară": 0.3}},
}
# Where the words before leave no doubt.
_SURE = """o pară|o casă|o rață|o cană|o mamă bună|o supă caldă|casa albă|fata mare|apa rece|cana mea|rata lunii
|nuci tari|două țări|două fete|două fețe triste|multe paturi de lemn|multe pături de lână|un râu|un pește
|o față tristă"""
_HAS = "are vrea aduce găsește"
_ARE = "nucile sunt tari|Franța și Italia sunt țări|oamenii sunt tari|acestea sunt țări bogate"
_WISHES = "cânte citească plece doarmă muncească"
_PAST = {"odinioară", "cândva", "pe vremuri", "demult"}
_PRESENT = {"astăzi", "acum", "de obicei", "adesea"}
# Present and imperfect look alike.
_TENSES = (("cântă", "cânta"), ("sapă", "săpa"), ("sună", "suna"), ("strigă", "striga"))
_NOW = 0.75  # the share of the present where nothing says when


class Grammar:
    """Draws sentences. `random` is where from."""

    def __init__(self, seed: int | str):
        self._random = random.Random(seed)

    def sentence(self) -> list[Word]:
        """A sentence, its first word in lower case, without a full stop."""
        kind = self._random.choices(("clause", "joined", "wish"), (6, 3, 1))[0]
        if kind == "clause":
            return self._clause()
        if kind == "joined":
            return [*self._clause(), *self._pick(_JOINS).split(), *self._clause()]
        return [*self._subject(), "vrea", "să", self._pick(_WISHES), *self._maybe(_TIMES)]

    def _clause(self) -> list[Word]:
        make = self._random.choices(
            (self._ambiguous, self._sure, self._plain, self._quiet, self._tense, self._are, self._across),
            (35, 12, 22, 12, 9, 5, 5),
        )[0]
        return make()

    def _ambiguous(self) -> list[Word]:
        verb = self._random.choice(list(_AFTER_VERB))
        forms = self._random.choice(list(_AFTER_VERB[verb].values()))
        return [*self._subject(), verb, forms, *self._maybe(_PLACES)]

    def _sure(self) -> list[Word]:
        return [*self._subject(), self._pick(_HAS), *self._pick(_SURE).split(), *self._maybe(_TIMES)]

    def _plain(self) -> list[Word]:
        return [*self._subject(), self._pick(_TRANSITIVE), *self._thing(), *self._maybe(_PLACES), *self._maybe(_TIMES)]

    def _quiet(self) -> list[Word]:
        return [*self._subject(), self._pick(_INTRANSITIVE), *self._pick(_PLACES).split(), *self._maybe(_TIMES)]

    def _tense(self) -> list[Word]:
        present, past = self._random.choice(_TENSES)
        when = self._random.choice(["", *sorted(_PAST), *sorted(_PRESENT)])
        now = _NOW if not when else float(when in _PRESENT)
        return [*when.split(), *self._subject(), {present: now, past: 1 - now}, *self._pick(_PLACES).split()]

    def _are(self) -> list[Word]:
        return [*self._pick(_ARE).split()]

    def _across(self) -> list[Word]:
        return [*self._subject(), self._pick("trece sare merge"), "peste", self._pick("râu gard pod câmp")]

    def _subject(self) -> list[Word]:
        return [self._pick(self._random.choice((_MEN, _WOMEN)))]

    def _thing(self) -> list[Word]:
        nouns, adjectives = self._random.choice(_NOUNS)
        return [self._pick(nouns), *self._maybe(adjectives)]

    def _pick(self, choices: str) -> str:
        separated = choices.split("|") if "|" in choices else choices.split()
        return self._random.choice([choice.strip() for choice in separated])

    def _maybe(self, choices: str) -> list[Word]:
        return [*self._pick(choices).split()] if self._random.random() < 0.5 else []

    def draw(self, words: Sequence[Word]) -> str:
        """A sentence as it is written, with a form for each word that has several."""
        draw = self._random.choices
        return _written([word if isinstance(word, str) else draw(list(word), list(word.values()))[0] for word in words])


def best(words: Sequence[Word]) -> str:
    """A sentence with the likeliest form of each word: who knows the grammar restores this."""
    return _written([word if isinstance(word, str) else max(word, key=word.__getitem__) for word in words])


def expected_word_accuracy(sentences: Sequence[Sequence[Word]]) -> float:
    """Percent of the words that the likeliest forms get right, on average over everything that could be drawn."""
    sure = [1.0 if isinstance(word, str) else max(word.values()) for words in sentences for word in words]
    return 100 * sum(sure) / len(sure)


def _written(words: Sequence[str]) -> str:
    text = " ".join(words)
    return text[0].upper() + text[1:] + "."


# ------------------------------------------------------- corpus ------------------------------------------------------


def write_corpus(out: str | pathlib.Path, documents: Mapping[str, int] = _DOCUMENTS) -> dict[str, float]:
    """Writes documents of a few sentences, with the fields `text` and `best`, unless they are there.

    No sentence of the validation split is one of the training split, not even with other marks.

    Args:
      out: the directory for `train-*.jsonl`, `validation-*.jsonl`, `plain-*.jsonl` (the training text without marks,
        which a vocabulary has to know too), and `corpus.json` when these are whole.
      documents: by split.

    Returns:
      What `corpus.json` has: documents by split; of the validation split the number of sentences, and the expected
      word accuracy of the likeliest forms in percent.
    """
    out = pathlib.Path(out)
    summary = out / "corpus.json"
    if summary.exists():
        return json.loads(summary.read_text())
    out.mkdir(parents=True, exist_ok=True)
    plain = marks.rules_of("ro").without_marks
    seen: set[str] = set()
    held_out: list[list[Word]] = []
    for split in ("train", "validation"):
        grammar = Grammar(f"{_SEED} {split}")
        shards: list[list[dict[str, str]]] = [[] for _ in range(_NUM_SHARDS[split])]
        for number in range(documents[split]):
            sentences: list[list[Word]] = []
            while len(sentences) < (2 + number % 4):
                words = grammar.sentence()
                if split == "train":
                    seen.add(plain(best(words)))
                elif plain(best(words)) in seen:
                    continue
                else:
                    held_out.append(words)
                sentences.append(words)
            document = {
                "text": " ".join(grammar.draw(words) for words in sentences),
                "best": " ".join(best(words) for words in sentences),
            }
            shards[number % len(shards)].append(document)
        for number, shard in enumerate(shards):
            _write(out / f"{split}-{number:05d}-of-{len(shards):05d}.jsonl", shard)
            if split == "train":
                typed = [{"text": plain(document["text"])} for document in shard]
                _write(out / f"plain-{number:05d}-of-{len(shards):05d}.jsonl", typed)
    facts = {**documents, "sentences": len(held_out), "expected_word_accuracy": expected_word_accuracy(held_out)}
    storage.replace_text(summary, json_text.dumps(facts))
    return facts


def _write(file: pathlib.Path, documents: Sequence[Mapping[str, str]]) -> None:
    lines = (json_text.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    storage.replace_text(file, "".join(lines))


def ceilings(corpus: str | pathlib.Path) -> dict[str, dict[str, float]]:
    """The metrics of two restorations of the validation split: `best`, and `copy`, the text as it is typed."""
    metric, rules = scores.metric("ro"), marks.rules_of("ro")
    files = sorted(pathlib.Path(corpus).glob("validation-*.jsonl"))
    documents = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    texts, likeliest = ([s for x in documents for s in blank_sentences.sentences(x[name])] for name in ("text", "best"))
    return {"best": metric(texts, likeliest), "copy": metric(texts, [rules.without_marks(text) for text in texts])}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m limba.addons.diacritics.romanian_sentences", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", required=True, help="the directory to write, such as runs/diacritics/corpus")
    args = parser.parse_args(argv)
    facts = write_corpus(args.out)
    print(
        f"{args.out}: {facts['train']} training documents, {facts['validation']} for validation with "
        f"{facts['sentences']} sentences; the likeliest forms get {facts['expected_word_accuracy']:.2f} % of words"
    )


if __name__ == "__main__":
    main()
