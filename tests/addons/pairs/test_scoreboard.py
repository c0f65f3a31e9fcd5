"""The figures of `limba scoreboard` computed in a second way, and bad input, which is named before a model is read."""

import json
import re

import numpy as np
import pytest

from limba.addons.pages import scoreboard
from limba.addons.pairs import pair_formats, pair_ngrams, text_reader
from limba.addons.pairs.pair_metrics import ScoredSentence
from limba.addons.pairs.scoreboard import baselines, board, board_picture, board_rows, evaluation_sets, leaks, measures
from tasks.vocabularies import ByteVocabulary

BYTES = ByteVocabulary(100)


def test_the_interval_of_a_ratio_is_that_of_the_jackknife():
    rng = np.random.default_rng(0)
    characters = rng.integers(20, 200, 300)
    nats = characters * rng.normal(1.5, 0.3, 300)
    made = measures.MeasuredTexts(nats, characters, np.zeros(0, np.int64), None).figures(np.ones(300, bool))
    found = made["nats/character"]
    without = (nats.sum() - nats) / (characters.sum() - characters)
    half = 1.96 * np.sqrt(299 / 300 * np.sum((without - without.mean()) ** 2))
    assert found.value == pytest.approx(nats.sum() / characters.sum()) and found.count == characters.sum()
    assert (found.high - found.value, found.value - found.low) == pytest.approx((half, half), rel=0.01)


def test_figures_of_some_items():
    owners = np.array([0, 0, 1, 1, 1, 2])
    ranks = np.array([1, 2, 1, 1, 9, 5])
    texts = measures.MeasuredTexts(np.array([1.0, 2, 4]), np.array([2, 4, 5]), owners, ranks)
    found = texts.figures(np.array([True, False, True]))
    assert found["nats/character"].value == pytest.approx(5 / 7)
    assert (found["word found %"].value, found["word found %"].count) == (pytest.approx(100 / 3), 3)
    assert found["median rank"].value == 2
    sentences = [ScoredSentence(i // 2, i % 2 == 0, "p", 1, "") for i in range(6)]
    pairs = measures.MeasuredPairs(sentences, np.array([2.0, 1, 1, 2, 3, 3]))
    assert pairs.figures(np.array([True, True, True]))["accuracy %"].value == pytest.approx(100 / 3)
    assert pairs.figures(np.array([True, False, True]))["accuracy %/p"].value == 50
    retrieval = measures.MeasuredRetrieval(np.array([1, 4, 1, 2])).figures(np.array([True, True, False, True]))
    guess = baselines.chance(evaluation_sets.EvaluationSet("q", "q.csv", "retrieval", [("a", "b")] * 4, [""] * 4))
    assert (guess["answer found %"].value, guess["median rank"].value) == (25, 2.5)
    assert retrieval["answer found %"].value == pytest.approx(100 / 3) and retrieval["median rank"].value == 2
    assert (retrieval["answer found %"].low, retrieval["answer found %"].high) == pytest.approx((6.15, 79.23), abs=0.01)


def _of_texts(texts, touched=None):
    found = None if touched is None else leaks.Leaks(*[np.array(touched, bool)] * 2, np.zeros(len(texts), bool))
    return evaluation_sets.EvaluationSet("t", "t.txt", "texts", [(x,) for x in texts], texts, leaks=found)


def test_ngrams_of_texts_are_those_counted_by_hand():
    counter = baselines.NgramCounter(BYTES, 100)
    counter.read(["abca", "", "ab"])
    measured = baselines.measure(_of_texts(["ba", "c"]), counter.counts, "FilledBlanks", BYTES)
    assert measured.keys() == set(pair_ngrams.NAMES.values())
    seen, discount = {"a": 3, "b": 2, "c": 1}, 1 / 3  # c was seen once, b twice
    uniform = discount * 3 / 6 / 257  # bytes, and the unknown token
    nats = {x: -np.log(max(count - discount, 0) / 6 + uniform) for x, count in seen.items()}
    assert measured["unigram"].nats == pytest.approx([nats["b"] + nats["a"], nats["c"]])
    # ab was seen twice, bc and ca once: behind b there is always c.
    assert measured["bigram"].nats[0] > measured["unigram"].nats[0]
    counter = baselines.NgramCounter(BYTES, 4)
    counter.read(["abca"])
    counter.read(["ab"])
    assert counter.counts.num_tokens == 4


def test_a_table_says_what_is_missing_and_what_leaked():
    texts = _of_texts(["a b", "c|d", "e f"], [True, False, False])
    row, other = board.RowFigures("run|1", "T5", {"step": 1000}), board.RowFigures("b", "decoder", {"step": None})
    row.add(
        texts, measures.MeasuredTexts(np.array([9.0, 2, 4]), np.array([3, 3, 3]), np.arange(3), np.array([1, 1, 7]))
    )
    other.reasons["t"] = "It is a classifier."
    made = board.Board([texts], [row, other], {"documents": 5, "words": 10})
    reasons = {}
    lines = made.cells(made.columns(), reasons)
    assert lines[0][3:] == ["t nats/character", "t word found %", "t median rank", "t nats/character without leaks"]
    assert lines[1][2:4] == ["1,000", "1.667 (0.307 to 3.027)"] and lines[1][6] == "1.000 (0.347 to 1.653)"
    assert lines[2][3:] == ["– [1]"] * 4 and reasons == {"It is a classifier.": 1}
    assert lines[3][3:] == ["33.3 %", "33.3 %", "33.3 %", ""]
    assert made.json()["rows"][0]["figures"]["t"]["word found %"]["count"] == 3
    assert made.json()["sets"][0]["leaks"] == {"touched": 1, "in_a_row": 1, "whole": 1, "short": 0}
    assert "| run\\|1 |" in made.markdown()
    picture = board_picture.draw(made)
    assert picture.count("<circle") == 3 and "run|1, 1,000: 1.667 (0.307 to 3.027)" in picture


def test_a_folder_of_pairs_is_one_set_with_a_table_of_phenomena(tmp_path):
    """As BLiMP is published, whose files have a phenomenon each."""
    (tmp_path / "blimp/data").mkdir(parents=True)
    for name in ("first", "second"):
        row = {"sentence_good": f"a {name} b", "sentence_bad": f"a {name} c", "linguistics_term": name, "UID": "x"}
        (tmp_path / f"blimp/data/{name}.jsonl").write_text(json.dumps(row) + "\n")
    columns = dict.fromkeys(("text", "good", "bad", "phenomenon", "label"))
    asked = evaluation_sets.Asked([], [str(tmp_path / "blimp")], [], [], columns)
    (of,) = evaluation_sets.read(asked)
    assert (of.name, of.items) == ("blimp", [("a first b", "a first c"), ("a second b", "a second c")])
    task = measures.pairs_task(of, "FilledBlanks", BYTES)
    assert task.splits and len(of.parts) == 2
    row = board.RowFigures("run", "T5", {"step": 7})
    sentences = [ScoredSentence(i // 2, i % 2 == 0, ("first", "second")[i // 2], 1, "") for i in range(4)]
    row.add(of, measures.MeasuredPairs(sentences, np.array([2.0, 1, 1, 2])))
    table = board.Board([of], [row, board.RowFigures("chance", "")], None).phenomena(of)
    assert [line[:2] for line in table] == [
        ["phenomenon of blimp (chance: 50)", "pairs"],
        ["first", "1"],
        ["second", "1"],
    ]
    assert [line[2].partition(" ")[0] for line in table] == ["run,", "100.0", "0.0"]
    (tmp_path / "blimp/other.jsonl").write_text(json.dumps({"good": "a", "bad": "b"}) + "\n")
    with pytest.raises(ValueError, match="blimp has files with different columns"):
        evaluation_sets.read(asked)


def test_a_t5_without_sentinels_is_told_why_it_has_no_scores():
    with pytest.raises(
        ValueError, match=r"has no sentinels .* if its tokenizer lost them, take that of its pre-training"
    ):
        text_reader.TextReader(ByteVocabulary(0), pair_formats.FilledBlanks())


class NoModel:
    """An opened model of a class that scores no texts."""

    partitioner = None

    @property
    def model(self):
        return self

    def params(self):
        return {}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run in the working directory, as far as its folders show it, that keeps an average from step 8 on."""
    monkeypatch.chdir(tmp_path)
    for step in (7, 9):
        (tmp_path / f"run/checkpoint_{step}/state").mkdir(parents=True)
    step_of = lambda path: int(str(path).rpartition("_")[2])  # noqa: E731
    monkeypatch.setattr(board_rows.run_folder, "find_gin", lambda _: "config.gin")
    monkeypatch.setattr(board_rows.parameters, "checkpoint_step", step_of)
    average = {"state/average/updates": 1}
    monkeypatch.setattr(board_rows.saved_tensors, "open_tensors", lambda path: average if step_of(path) > 8 else {})


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("latest", [("run", 9), ("run, average", 9)]),
        ("all", [("run", 7), ("run", 9), ("run, average", 9)]),
        ("7", [("run", 7)]),
        ("9,7", [("run", 9), ("run, average", 9), ("run", 7)]),
    ],
)
def test_rows_of_a_run(run, which, expected):
    assert [(row.title, row.step) for row in board_rows.find(["run"], which)] == expected
    assert [row.title for row in board_rows.find(["run/checkpoint_7"], which)] == ["run/checkpoint_7"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["none", "--text", "texts.txt"], "There is no folder .*none. If you mean a model on the hub: "),
        (["empty", "--text", "texts.txt"], "empty has no config.json"),
        (["run", "--text", "none.txt"], "--text none.txt does not exist"),
        (["run", "--text", "blank.txt"], "--text blank.txt has no text"),
        (["run", "--pairs", "same.jsonl"], r"--pairs, row 1 .*same.jsonl: the two sentences have the same words"),
        (["run", "--retrieval", "same.jsonl"], "none of the known pairs of names"),
        (["run", "--text", "texts.txt", "--train", "none.jsonl"], "none.jsonl"),
        (["run", "--text", "texts.txt", "--output_dir", "out"], r"scoreboard.md exists. Choose .* --overwrite"),
        (["run", "--text", "texts.txt", "--checkpoints", "7,8"], r"--checkpoints 8: run has checkpoints of the steps"),
        (["run", "--text", "texts.txt", "--checkpoints", "last"], "--checkpoints is 'last'; give latest, all, or"),
        (["run", "run", "--text", "texts.txt"], "run is given twice"),
        (["run", "--text", "texts.txt", "--train", "texts.txt", "--ngram_tokens", "0"], "--ngram_tokens is 0"),
        (["run", "--text", "texts.txt"], "Nothing could be measured. run: .* and NoModel does not"),
        (["run", "--train", "texts.txt"], "--train goes with files to measure on"),
        (["run", "--text", "texts.txt", "--good_column", "x"], "--good_column goes with --pairs FILE"),
        (["run", "--text", "texts.txt", "--out", "x.md"], "--out is for evaluations that were made"),
        (["run", "--checkpoints", "7"], "without files to measure on it is latest or all"),
    ],
)
def test_bad_input_is_named_before_a_model_is_read(flags, message, run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(board_rows, "open_row", lambda row: NoModel())
    for name in ("empty", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "out/scoreboard.md").touch()
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    (tmp_path / "blank.txt").write_text("\n \n")
    pairs = [{"good": "a b", "bad": "a c"}, {"good": "a b.", "bad": "a b."}]
    (tmp_path / "same.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    with pytest.raises((ValueError, OSError, SystemExit)) as error:
        scoreboard.main(flags)
    said = capsys.readouterr().err if isinstance(error.value, SystemExit) else str(error.value)
    assert re.search(message, said), said
