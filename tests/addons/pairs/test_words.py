"""Words with labels: how files are read, what is counted of them, means over seeds, and the paired bootstrap."""

import dataclasses
import gzip
import json
import math
import re
import shutil

import numpy as np
import pytest

from limba.addons.pages import scoreboard
from limba.addons.pairs import conllu_files, word_files, words_command
from limba.addons.pairs.pair_metrics import ScoredSentence
from limba.addons.pairs.scoreboard import (
    baselines,
    board,
    board_measuring,
    board_rows,
    comparisons,
    evaluation_sets,
    measures,
    predicted_labels,
)
from limba.addons.pairs.scoreboard.comparisons import Side
from limba.addons.pairs.scoreboard.evaluation_sets import EvaluationSet
from limba.addons.pairs.scoreboard.majority_labels import MajorityLabels
from limba.addons.pairs.word_files import LabelledSentence
from tasks.sources.read_columns import bounded_lines

TREEBANK = """# text = N-o vede 10 000 .
1-2\tN-o\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
1\tNu\tnu\tPART\t_\tPolarity=Neg|Typo=No\t3\tadvmod\t_\t_
2\to\tel\tPRON\t_\tPerson=3|Gender=Fem\t3\tobj\t_\t_
2.1\tel\tel\tPRON\t_\tNumber=Sing\t_\t_\t0:root\t_
3\tvede\tvedea\tVERB\t_\t_\t0\troot\t_\t_
4\t10 000\t10000\tNUM\t_\tForeign=Yes\t3\tobj\t_\t_

"""


@pytest.mark.parametrize(
    ("label", "labels"),
    [
        (None, ["PART", "PRON", "VERB", "NUM"]),
        ("feats", ["Polarity=Neg", "Gender=Fem|Person=3", "_", "Foreign=Yes"]),
        ("Gender", ["_", "Fem", "_", "_"]),
    ],
)
def test_words_of_a_treebank_are_the_syntactic_ones(label, labels, tmp_path, capsys):
    """As the shared task counts them: no empty nodes, the parts of a token of several words, universal features."""
    file = tmp_path / "a.conllu"
    file.write_text(TREEBANK, "utf-8")
    words_command.write_words([str(file)], str(tmp_path / "a.jsonl"), label)
    line = {
        "tokens": ["Nu", "o", "vede", "10000"],
        "tags": labels,
        "text": "Nu o vede 10000",
        "labels": " ".join(labels),
    }
    assert json.loads((tmp_path / "a.jsonl").read_text("utf-8")) == line
    assert "1 sentences, 4 words" in capsys.readouterr().out
    assert word_files.read(str(tmp_path / "a.jsonl"))[0][:2] == (line["tokens"], labels)


def test_each_word_has_its_most_frequent_label():
    table = MajorityLabels([["a", "b", "a"], ["a", "c", "b"]], [["X", "Y", "Z"], ["Z", "Z", "X"]])
    assert table.label == "Z"
    assert table.of(["a", "b", "c", "d"]) == ["Z", "Y", "Z", "Z"]  # b has two labels once each, d is new
    assert "c" in table and "d" not in table


def test_what_labels_of_words_reach_without_a_model(tmp_path, capsys):
    (tmp_path / "train.bio").write_text("Ana B-A\nvede O\nAna B-A\n.\tO\nea O\n", "utf-8")
    (tmp_path / "test.bio").write_text("Ana B-A\nvede O\n\nIon B-A\n. O\n", "utf-8")
    files = [str(tmp_path / name) for name in ("train.bio", "out.jsonl", "test.bio")]
    words_command.main([*files[:1], "--out", files[1], "--test", files[2]])
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"{files[2]}: O everywhere is right for 50.0 % of 4 words, each word's most frequent label for 75.0 % (entity "
        "F1 66.7 %); 25.0 % of the words are new"
    )
    (of,) = evaluation_sets.read(evaluation_sets.Asked([], [], [], files[2:], {"label": None}))
    row = board_measuring._of_majority(word_files.read(files[0]), [of])
    found = {name: (x.value, x.count) for name, x in row.figures["test"].items()}
    assert found == {"labels right %": (75, 4), "entity F1 %": (pytest.approx(200 / 3), 2)}
    row = board_measuring._of_majority(word_files.read(files[0]), [dataclasses.replace(of, labels=[["X"], ["Y"]])])
    assert "--train_words has the labels B-A, O, and" in row.reasons["test"]


@pytest.mark.parametrize(
    ("name", "content", "words", "labels"),
    [
        ("a.conll", "-DOCSTART- -X- O\n\n# id 1\nAna NNP I-PER\n# O\n\n\n", ["Ana", "#"], ["I-PER", "O"]),
        ("a.iobes", "ro:Satu\tB-LOC\nro:Mare\tE-LOC\nro:Cluj\tS-LOC\nro::\tO", ["Satu", "Mare", "Cluj", ":"], "BIBO"),
        ("a.bio", "ro:Ana\tB-PER\nen:x\tO\n", ["ro:Ana", "en:x"], ["B-PER", "O"]),
    ],
)
def test_a_word_a_line(name, content, words, labels, tmp_path):
    (tmp_path / name).write_text(content, "utf-8")
    (found,) = word_files.read(str(tmp_path / name))
    expected = [f"{x}-LOC" if x != "O" else x for x in labels] if isinstance(labels, str) else labels
    assert (found.words, found.labels) == (words, expected)


@pytest.mark.parametrize(
    ("name", "content", "label", "message"),
    [
        ("a.conllu", TREEBANK, "Tense", "No word of .* has 'Tense'; name upos, feats"),
        ("a.bio", "Ana O\nMaria\n", None, "line 2, has 'Maria' where a word and its label"),
        ("a.bio", "Ana O\n", "upos", "leave the label 'upos' out"),
        ("a.bio", "\n", None, "has no sentence"),
        ("a.jsonl", '{"tokens": ["a"], "tags": ["O", "O"]}\n', None, "row 0 .* has 1 words and 2 labels"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [3]}\n', None, r"row 0 .*column 'tags' has .*3.*; write a list of text"),
        ("a.txt", "a b\n", None, "need 'tokens' and 'tags', two lists"),
    ],
)
def test_files_without_words_and_labels_are_named(name, content, label, message, tmp_path):
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(ValueError, match=message):
        word_files.read(str(tmp_path / name), label)


def test_entities_of_iobes_are_those_of_seqeval():
    # Each list as seqeval 1.2.2 divides it: behind E- and S- an entity begins, whatever follows.
    assert word_files.as_bio(["S-A", "I-A", "E-A", "E-A", "B-A", "I-A", "O", "E-A"]) == [
        *("B-A", "B-A", "I-A", "B-A", "B-A", "I-A", "O", "I-A")
    ]
    assert word_files.as_bio(["NOUN", "X-A", "E", "SYM"]) == ["NOUN", "X-A", "E", "SYM"]


WANTED = [["B-A", "I-A", "O"], ["O", "B-B"], ["O", "O"]]
GIVEN = [["B-A", "I-A", "O"], ["B-A", "B-A"], ["O", "?"]]


def test_labels_and_entities_are_counted():
    found = measures.MeasuredWords(WANTED, GIVEN).figures(np.ones(3, bool))
    assert (found["labels right %"].value, found["labels right %"].count) == (pytest.approx(400 / 7), 7)
    assert (found["entity F1 %"].value, found["entity F1 %"].count) == (pytest.approx(40), 2)  # 1 of 2 and 3
    assert measures.MeasuredWords(WANTED, GIVEN).figures(np.array([False, False, True])).keys() == {"labels right %"}
    assert measures.MeasuredWords([["X", "Y"]], [["X", "X"]]).terms().keys() == {"labels right %"}


def test_figures_are_ratios_of_their_terms():
    sentences = [ScoredSentence(i // 2, i % 2 == 0, "p", 1, "") for i in range(6)]
    ranks, owners = np.array([1, 2, 1, 1, 9]), np.array([0, 0, 1, 2, 2])
    for measured in (
        measures.MeasuredTexts(np.array([1.0, 2, 4]), np.array([2, 4, 5]), owners, ranks),
        measures.MeasuredPairs(sentences, np.array([2.0, 1, 1, 2, 3, 3])),
        measures.MeasuredRetrieval(np.array([1, 4, 1])),
        measures.MeasuredWords(WANTED, GIVEN),
    ):
        figures = measured.figures(np.ones(3, bool))
        assert measured.terms()
        for name, (above, below) in measured.terms().items():
            assert above.sum() / below.sum() == pytest.approx(figures[name].value), name


def _of_items(number):
    return EvaluationSet("w", "w.conllu", "retrieval", [("a", "b")] * number, [""] * number)


def _ranks(right):
    return measures.MeasuredRetrieval(np.where(right, 1, 2))


def test_the_paired_bootstrap_agrees_with_the_normal_distribution():
    rng = np.random.default_rng(0)
    first, second = rng.random(600) < 0.7, rng.random(600) < 0.75
    sides = [Side("a", [_ranks(first)]), Side("b", [_ranks(second)]), Side("c", [_ranks(first)])]
    found, same = comparisons.differences(_of_items(600), sides)
    difference = 100 * (second.astype(float) - first)
    half = 1.96 * difference.std() / np.sqrt(600)
    assert found.value == pytest.approx(difference.mean()) and (found.base, found.title) == ("a", "b")
    assert ((found.high - found.low) / 2, (found.high + found.low) / 2) == pytest.approx((half, found.value), rel=0.06)
    assert found.p_value == pytest.approx(
        2 * (1 - 0.5 * (1 + math.erf(found.value * 1.96 / half / math.sqrt(2)))), abs=0.01
    )
    assert (same.value, same.low, same.p_value) == (0, 0, 1)
    assert "w answer found %: c has +0.0 (+0.0 to +0.0; p = 1.000)" in same.sentence()
    assert list(comparisons.differences(_of_items(600), sides[:1])) == []


def test_a_mean_over_seeds_has_their_spread_and_an_interval_of_items_and_seeds():
    rng = np.random.default_rng(0)
    seeds = [_ranks(rng.random(400) < share) for share in (0.5, 0.55, 0.6, 0.65, 0.7)]
    (found,) = (comparisons.mean_figures(_of_items(400), seeds)[name] for name in ("answer found %",))
    values = [seed.figures(np.ones(400, bool))["answer found %"].value for seed in seeds]
    assert (found.value, found.spread) == (pytest.approx(np.mean(values)), pytest.approx(np.std(values, ddof=1)))
    # Two variances of the mean of five: of seeds, and of items, which differ independently here.
    deviation = np.sqrt(np.var(values) / 5 + 100**2 * 0.24 / 400 / 5)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * deviation, rel=0.06)
    assert board.shown(found).startswith(f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f} (")
    alone = comparisons.mean_figures(_of_items(400), seeds[:1])["answer found %"]
    assert alone.spread is None and (alone.high - alone.low) / 2 == pytest.approx(4.9, rel=0.06)


def test_seeds_have_a_mean_row_for_each_checkpoint():
    rows = [board_rows.BoardRow(name, "", step, group="t5") for name in ("a", "b") for step in (7, 9)]
    rows.append(board_rows.BoardRow("c", "", 9))
    of, figures = _of_items(2), []
    for row, right in zip(rows, [[1, 0], [1, 1], [0, 0], [1, 0], [1, 1]], strict=True):
        figures.append(board.RowFigures(row.title, "T5", {"step": row.step}))
        figures[-1].add(of, _ranks(np.array(right) == 1))
    shown, alone = board_measuring._with_means(rows, figures, [of])
    assert [row.label for row in shown] == [
        *("a, 7", "a, 9", "b, 7", "t5, mean of 2, 7", "b, 9", "t5, mean of 2, 9", "c, 9")
    ]
    assert [row.figures["w"]["answer found %"].value for row in alone] == [25, 75, 100]
    figures[0].measured.clear(), figures[0].reasons.update(w="no")
    assert board_measuring._with_means(rows, figures, [of])[1][0].reasons == {"w": "no"}


def test_names_of_seeds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x=1").mkdir()
    assert board_rows._seeds("t5=runs/a,runs/b") == [("t5", "runs/a"), ("t5", "runs/b")]
    assert board_rows._seeds("x=1") == [("", "x=1")] and board_rows._seeds("runs/a") == [("", "runs/a")]
    for wrong in ("t5=", "=runs/a"):
        with pytest.raises(ValueError, match=f"'{wrong}' names no model; write NAME=FOLDER,FOLDER"):
            board_rows._seeds(wrong)


class Letters:
    """A vocabulary without the letter U."""

    def encode(self, text):
        return list(text.replace("U", "\0"))

    def decode(self, tokens):
        return "".join(tokens).replace("\0", " ⁇ ")


def test_labels_that_a_vocabulary_cannot_write_are_read():
    written = predicted_labels._Written.of(Letters(), ["ADJ", "NOUN", "NUM"])
    assert written.split("ADJ NO ⁇ N N ⁇ M X") == ["ADJ", "NOUN", "NUM", "X"]
    with pytest.raises(ValueError, match=r"lacks letters of the labels U and \\x00, and writes both"):
        predicted_labels._Written.of(Letters(), ["U", "\0"])


def _of_one_label(label):
    return EvaluationSet("words", "x.conllu", "words", [("a",)], ["line 1"], labels=[[label]])


@pytest.mark.parametrize(
    "message",
    [
        lambda label: predicted_labels._check_known({label}, ["O"], _of_one_label(label)),
        lambda label: predicted_labels._check_known({"O"}, [label], _of_one_label("O")),
        lambda label: predicted_labels._Written.of(Letters(), ["U" + label, "\0" + label]),
        lambda label: baselines.majority(_of_one_label("O"), [LabelledSentence(["a"], [label], "line 1")]),
    ],
)
def test_a_long_label_is_cut_in_messages(message):
    with pytest.raises(ValueError) as error:
        message("\x1b" + "N" * 10_000)
    assert len(str(error.value)) < 900 and str(error.value).isprintable()


def test_a_scoreboard_of_words_has_what_the_class_of_the_export_predicts(tmp_path, spiece_model):
    """Of an encoder of a T5 with labels of words; the second sentence has a length of its own."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    labels = ["O", "B-A", "I-A"]
    named = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    sizes = {"vocab_size": 512, "d_model": 16, "d_kv": 4, "d_ff": 20, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**sizes, **named, tie_word_embeddings=False)
    model = transformers.T5ForTokenClassification(config).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)
    model.classifier.bias.data.zero_()
    model.save_pretrained(tmp_path / "hf")
    shutil.copy(spiece_model, tmp_path / "hf/spiece.model")
    sentences = [["ba", "bona", "mumu", "ba"], ["gogo", "lu", "ba", "fi", "bona", "cedi", "ba", "lu", "ba", "fi"]]
    tokenizer = transformers.T5Tokenizer(str(spiece_model), legacy=False)
    given = []
    for words in sentences:
        batch = tokenizer(" ".join(words), return_tensors="pt")
        starts = [len(tokenizer(" ".join(words[:i])).input_ids) - 1 for i in range(len(words))]
        with torch.no_grad():
            found = model(**batch).logits[0].argmax(-1).tolist()
        given.append([labels[found[start]] for start in starts])
    assert len({label for of in given for label in of}) > 1
    wanted = [["B-A", "I-A", "O", "O"], given[1]]
    lines = [{"tokens": words, "tags": of} for words, of in zip(sentences, wanted, strict=True)]
    (tmp_path / "w.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert (
        scoreboard.main([str(tmp_path / "hf"), "--words", str(tmp_path / "w.jsonl"), "--output_dir", str(tmp_path)])
        == 0
    )
    figures = json.loads((tmp_path / "scoreboard.json").read_text("utf-8"))["rows"][0]["figures"]["w"]
    expected = measures.MeasuredWords(wanted, given).figures(np.ones(2, bool))
    assert {name: x["value"] for name, x in figures.items()} == {name: x.value for name, x in expected.items()}
    assert re.search("classifier", (tmp_path / "scoreboard.md").read_text("utf-8"))


def _row(number="1", head="0", form="a"):
    return f"{number}\t{form}\t{form}\tX\t_\t_\t{head}\troot\t_\t_\n".encode()


_HOSTILE = {
    "number.conllu": (_row("9" * 5000), "ID '9{60}…' and HEAD '0', not numbers"),
    "head.conllu": (_row(head="²"), "HEAD '²', not numbers"),
    "words.conllu": (b"".join(_row(str(n)) for n in range(1, 12)), "line 1, has more than 10 words"),
    "unpacked.conllu.gz": (gzip.compress((_row() + b"\n") * 200_000), "unpacked it has more than 3,145,728 bytes"),
    "line.conllu.gz": (gzip.compress(b"a" * 2**22), "line.conllu.gz: line 1 has more than 2,097,152 bytes"),
    "no.conllu.gz": (b"no gzip", r"no.conllu.gz cannot be decompressed \(Not a gzipped file"),
    "long.conll": (b"x" * 1000, r"line 1, has 'x{60}…' where"),
    "deep.jsonl": (b'{"tokens": "' + b"[" * 50_000 + b'", "tags": ["X"]}\n', r"column 'tokens' has '\[{60}…'; write"),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_a_hostile_file_is_one_short_message(name, tmp_path, monkeypatch):
    monkeypatch.setattr(conllu_files, "MOST_WORDS", 10)
    monkeypatch.setattr(conllu_files, "MOST_UNPACKED", 3 * 2**20)
    monkeypatch.setattr(bounded_lines, "MOST_BYTES", 2**21)
    content, message = _HOSTILE[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        word_files.read(str(tmp_path / name))
    assert len(str(error.value)) < 500


def test_long_labels_and_those_that_move_a_terminal_are_shown(tmp_path, capsys):
    (tmp_path / "a.conll").write_text("a B-" + "x" * 10_000 + "\nb I-\x1b[2J\n")
    words_command.write_words([str(tmp_path / "a.conll")], str(tmp_path / "out.jsonl"), None)
    said = capsys.readouterr().out
    assert r"I-\x1b[2J 1" in said and "x" * 201 not in said
