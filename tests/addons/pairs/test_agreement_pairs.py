"""Pairs of a treebank written by hand: which words change, which pairs are left out, how texts are joined."""

import gzip
import json

import pytest

from limba.addons.pairs import agreement_pairs, conllu_files, pair_columns, pairs_command

# Word, lemma, part, features, head, relation, and "-" for no blank behind it.
_FIN = "VerbForm=Fin|Tense=Pres|Person=3|Number="
_HE = "He he PRON Number=Sing|Person=3|Gender=Masc"
_BARKS = f"bark VERB {_FIN}Sing 0 root"
_BIG = "big big ADJ Degree=Pos 0 root"
_DOG = ["A a DET _ 2 det", "dog dog NOUN Number=Sing 3 nsubj", f"barks {_BARKS}", "! ! PUNCT _ 3 punct"]
TREEBANK = {
    "dogs": ["Dogs dog NOUN Number=Plur 2 nsubj", f"bark bark VERB {_FIN}Plur 0 root -", ". . PUNCT _ 2 punct"],
    "dog": _DOG,
    # A second time: no second pair.
    "dog again": _DOG,
    # The finite verb is the copula.
    "copula": [f"{_HE} 3 nsubj", f"is be AUX {_FIN}Sing 3 cop", _BIG],
    "copula 1": ["I I PRON Number=Sing|Person=1 3 nsubj", f"am be AUX {_FIN.replace('3', '1')}Sing 3 cop", _BIG],
    "copula 2": ["They they PRON Number=Plur|Person=3 3 nsubj", f"are be AUX {_FIN}Plur 3 cop", _BIG],
    # `read` of the plural is also past: "the dog read" is right.
    "read": ["dogs dog NOUN Number=Plur 2 nsubj", f"read read VERB {_FIN}Plur 0 root"],
    "past": [f"{_HE} 2 nsubj", "read read VERB VerbForm=Fin|Tense=Past 0 root"],
    "reads": [f"{_HE} 2 nsubj", f"reads read VERB {_FIN}Sing 0 root"],
    # A subject that may be plural, two subjects in one, clitics, and a subject with another number.
    "sheep": ["sheep sheep NOUN Number=Sing 2 nsubj", f"barks {_BARKS}"],
    "sheep 2": ["sheep sheep NOUN Number=Plur 0 root"],
    "and": [
        *("dog dog NOUN Number=Sing 4 nsubj", "and and CCONJ _ 3 cc", "cat cat NOUN Number=Sing 1 conj"),
        f"barks {_BARKS}",
    ],
    "who": ["who who PRON PronType=Rel|Number=Sing|Person=3 2 nsubj", f"barks {_BARKS}"],
    "clitic": [f"{_HE} 3 nsubj -", f"'s be AUX {_FIN}Sing 3 cop", _BIG],
    "glued": [f"{_HE} 2 nsubj -", f"barks {_BARKS}"],
    "other number": ["dog dog NOUN Number=Sing 2 nsubj", f"bark bark VERB {_FIN}Plur 0 root"],
}


def _conllu(rows, extra=()):
    lines = ["# text = not read"]
    for number, row in enumerate(rows, 1):
        form, lemma, part, features, head, relation, *glue = row.split()
        misc = "Foo=1|SpaceAfter=No" if glue else "_"
        lines.append("\t".join([str(number), form, lemma, part, "_", features, head, relation, "_", misc]))
    for place, line in extra:
        lines.insert(place, line)
    return "\n".join(lines) + "\n\n"


def _write(tmp_path, text, name="a.conllu"):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def _pairs(tmp_path, text, most=1000, most_words=40):
    sentences = list(conllu_files.read([_write(tmp_path, text)]))
    lexicon = agreement_pairs.Lexicon(sentences)
    found = [pair for sentence in sentences for pair in agreement_pairs.pairs_of(sentence, lexicon, most_words)]
    return agreement_pairs.choose(found, most)


def _shown(pairs):
    return [(pair.sentence_good, pair.sentence_bad, pair.phenomenon) for pair in pairs]


def test_pairs_of_a_treebank(tmp_path):
    found = _pairs(tmp_path, "".join(map(_conllu, TREEBANK.values())))
    assert _shown(found) == [
        ("Dogs bark.", "Dogs barks.", "subject-verb number"),
        ("A dog barks !", "A dog bark !", "subject-verb number"),
        ("He is big", "He are big", "subject-verb number"),
        ("He is big", "He am big", "subject-verb person"),
        ("I am big", "I is big", "subject-verb person"),
        ("They are big", "They is big", "subject-verb number"),
        ("dogs read", "dogs reads", "subject-verb number"),
    ]
    first = found[0]
    assert (first.feature, first.value, first.other_value) == ("Number", "Plur", "Sing")
    assert (first.lemma, first.word_good, first.word_bad, first.subject) == ("bark", "bark", "barks", "Dogs")
    assert first.place.endswith("a.conllu, line 2")
    assert _pairs(tmp_path, "".join(map(_conllu, TREEBANK.values())), most_words=1) == []


def test_participles_and_adjectives(tmp_path):
    part = "VerbForm=Part|Number="
    text = [
        ["fata fată NOUN Gender=Fem|Number=Sing 2 nsubj", f"venită veni VERB Gender=Fem|{part}Sing 0 root"],
        ["băiatul băiat NOUN Gender=Masc|Number=Sing 2 nsubj", f"VENIT veni VERB Gender=Masc|{part}Sing 0 root"],
        [
            "o un DET _ 2 det",
            "casă casă NOUN Gender=Fem|Number=Sing 0 root",
            "bună bun ADJ Gender=Fem|Number=Sing 2 amod",
        ],
        [
            *("fata fată NOUN Gender=Fem|Number=Sing 3 nsubj", "a avea AUX VerbForm=Fin|Number=Sing 3 aux"),
            f"venită veni VERB Gender=Fem|{part}Sing 0 root",
        ],
        ["case casă NOUN Gender=Fem|Number=Plur 0 root", "bune bun ADJ Gender=Fem|Number=Plur 1 amod"],
    ]
    assert _shown(_pairs(tmp_path, "".join(map(_conllu, text)))) == [
        ("fata venită", "fata venit", "subject-participle gender"),
        ("băiatul VENIT", "băiatul VENITĂ", "subject-participle gender"),
        ("o casă bună", "o casă bune", "noun-adjective number"),
        ("case bune", "case bună", "noun-adjective number"),
    ]


def test_tokens_of_several_words_and_empty_nodes(tmp_path):
    """They are text, not words that change; the form of the token is that of its own line."""
    rows = ["de de ADP _ 3 case", "el el DET _ 3 det", _DOG[1].replace("3", "4"), f"barks {_BARKS}"]
    extra = [(1, "1-2\tdel\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No"), (4, "2.1\tnothing\t_\t_\t_\t_\t_\t_\t_\t_")]
    text = _conllu(rows, extra) + "".join(_conllu(TREEBANK[name]) for name in ("dogs", "dog"))
    assert _shown(_pairs(tmp_path, text))[0] == ("deldog barks", "deldog bark", "subject-verb number")
    whole = [(4, "3-4\tdogbarks\t_\t_\t_\t_\t_\t_\t_\t_")]
    (sentence,) = conllu_files.read([_write(tmp_path, _conllu(rows, [*extra[:1], *whole]))])
    assert sentence.text() == "deldogbarks" and [word.token for word in sentence.words] == [None] * 4


def test_what_a_clitic_is_written_together_with_has_the_same_beginning(tmp_path):
    """French `l'a` and `l'ont`, but not `l'a` and `l'sont`."""
    aux = "VerbForm=Fin|Person=3|Number="
    text = [
        ["Paul Paul PROPN Number=Sing 3 nsubj", "l' le PRON _ 3 obj -", f"a avoir VERB {aux}Sing 0 root"],
        ["ils il PRON Number=Plur|Person=3 2 nsubj", f"ont avoir VERB {aux}Plur 0 root"],
        ["Paul Paul PROPN Number=Sing 3 nsubj", "l' le PRON _ 3 obj -", f"est être VERB {aux}Sing 0 root"],
        ["ils il PRON Number=Plur|Person=3 2 nsubj", f"sont être VERB {aux}Plur 0 root"],
    ]
    found = [pair for pair in _shown(_pairs(tmp_path, "".join(map(_conllu, text)))) if "l'" in pair[0]]
    assert found == [("Paul l'a", "Paul l'ont", "subject-verb number")]


def test_a_cap_is_shared_by_the_directions_and_the_choice_is_the_same_each_time(tmp_path):
    names = [f"n{chr(97 + i)}" for i in range(20)]
    rows = [[f"{x} {x} NOUN Number=Plur 2 nsubj", f"bark bark VERB {_FIN}Plur 0 root"] for x in names]
    rows += [[f"{x}s {x}s NOUN Number=Sing 2 nsubj", f"barks bark VERB {_FIN}Sing 0 root"] for x in names[:3]]
    text = "".join(map(_conllu, rows))
    found = _pairs(tmp_path, text, most=8)
    assert [pair.value for pair in found] == ["Plur"] * 5 + ["Sing"] * 3
    assert found == _pairs(tmp_path, text, most=8)
    assert [pair.value for pair in _pairs(tmp_path, text, most=4)] == ["Plur", "Plur", "Sing", "Sing"]
    turned = {pair.sentence_good for pair in _pairs(tmp_path, "".join(map(_conllu, rows[::-1])), most=8)}
    assert turned == {pair.sentence_good for pair in found}  # The order of the files does not matter.


def test_the_command(tmp_path, capsys):
    text = "".join(map(_conllu, TREEBANK.values()))
    file = tmp_path / "b.conllu.gz"
    file.write_bytes(gzip.compress(text.encode()))
    out = tmp_path / "made/pairs.jsonl"
    pairs_command.main([str(file), "--out", str(out)])
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert len(rows) == 7 and rows[0]["sentence_bad"] == "Dogs barks."
    assert rows[0]["phenomenon"] == "subject-verb number"
    assert pair_columns.find(str(out), None, None, None) == pair_columns.PairColumns()
    printed = capsys.readouterr().out
    assert "subject-verb number, Plur to Sing: 3\n" in printed and "7 pairs of 16 sentences" in printed
    with pytest.raises(SystemExit, match=r"pairs.jsonl exists. Choose another name, or give --overwrite"):
        pairs_command.main([str(file), "--out", str(out)])
    pairs_command.main([str(file), "--out", str(out), "--overwrite", "--per_phenomenon", "1"])
    assert len(out.read_text("utf-8").splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\ta\n\n", "a.conllu, line 1, has 2 fields, and CoNLL-U 10 with tabs between them: '1"),
        (_conllu(["a a X _ 0 root"]).replace("1\ta", "2\ta"), "line 2 has the word 2 where 1 is expected"),
        (_conllu(["a a X _ b root"]), "a word with ID '1' and HEAD 'b', not numbers"),
        (_conllu(["a a X _ 0 root"]), "No pair can be made of 1 sentences, 0 of whose words have features"),
        ("", "No pair can be made of 0 sentences"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    with pytest.raises(SystemExit, match=message):
        pairs_command.main([_write(tmp_path, text), "--out", str(tmp_path / "pairs.jsonl")])
    assert not (tmp_path / "pairs.jsonl").exists()


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(SystemExit, match=r"There is no file nowhere.conllu"):
        pairs_command.main(["nowhere.conllu", "--out", str(tmp_path / "pairs.jsonl")])
    latin = tmp_path / "latin.conllu"
    latin.write_bytes(b"1\t\xe9\t_\t_\t_\t_\t0\troot\t_\t_\n\n")
    with pytest.raises(SystemExit, match=r"latin.conllu is not UTF-8"):
        pairs_command.main([str(latin), "--out", str(tmp_path / "pairs.jsonl")])
