"""The grammar whose ambiguity is known: its promises, and a model that comes as near to its ceiling as can be."""

import collections
import json
import math

import pytest

from limba.addons.diacritics import diacritics_table, marks, romanian_sentences
from tasks.pretraining import blank_sentences


def test_a_plain_sentence_has_one_distribution_and_forms_are_drawn_by_it():
    grammar = romanian_sentences.Grammar("test")
    plain = marks.rules_of("ro").without_marks
    of_plain = {}
    drawn = collections.defaultdict(collections.Counter)
    for _ in range(6000):
        words = grammar.sentence()
        known = of_plain.setdefault(plain(romanian_sentences.best(words)), words)
        assert known == words  # else the likeliest forms of one would be those of the other
        assert {plain(form) for word in words if not isinstance(word, str) for form in word} <= {
            plain(next(iter(word))) for word in words if not isinstance(word, str)
        }
        for word, form in zip(words, grammar.draw(words)[:-1].split(), strict=True):
            if not isinstance(word, str):
                drawn[tuple(sorted(word.items()))][form] += 1
    assert len(drawn) > 30
    for shares, counts in drawn.items():
        assert math.isclose(sum(dict(shares).values()), 1)
        for form, share in shares:
            # Five standard deviations.
            assert abs(counts[form] - share * counts.total()) <= 5 * math.sqrt(counts.total() * share * (1 - share)), (
                form
            )


def test_the_corpus_is_split_by_sentence_and_knows_its_ceiling(tmp_path, capsys):
    facts = romanian_sentences.write_corpus(tmp_path, {"train": 200, "validation": 40})
    assert romanian_sentences.write_corpus(tmp_path) == facts
    assert (facts["train"], facts["validation"], facts["sentences"]) == (200, 40, 140)
    plain = marks.rules_of("ro").without_marks
    documents = {
        split: [
            json.loads(x)
            for file in sorted(tmp_path.glob(f"{split}-*"))
            for x in file.read_text("utf-8").split("\n")
            if x
        ]
        for split in ("train", "plain", "validation")
    }
    assert {split: len(x) for split, x in documents.items()} == {"train": 200, "plain": 200, "validation": 40}
    assert sorted(plain(x["text"]) for x in documents["train"]) == sorted(x["text"] for x in documents["plain"])
    seen = {plain(s) for x in documents["train"] for s in blank_sentences.sentences(x["text"])}
    held_out = {plain(s) for x in documents["validation"] for s in blank_sentences.sentences(x["text"])}
    assert not seen & held_out and len(held_out) > 130
    bounds = romanian_sentences.ceilings(tmp_path)
    # What was drawn is near to what could be: a standard deviation is 0.35.
    assert bounds["best"]["word_accuracy"] == pytest.approx(facts["expected_word_accuracy"], abs=1.5)
    assert 96 < bounds["best"]["word_accuracy"] < 100 and bounds["copy"]["word_accuracy"] < 50
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(SystemExit, match=r"error: .*metrics.jsonl' has no predictions of the task 'diacritics_demo'"):
        diacritics_table.main([f"--corpus={tmp_path}", f"--run={run}"])
    metrics = {f"eval/{name}": value for name, value in bounds["copy"].items()}
    line = {"step": 7, "dataset": "inference_eval/diacritics_demo", **metrics}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    diacritics_table.main([f"--corpus={tmp_path}", f"--run={run}"])
    rows = {x.split()[0]: x.split()[1:] for x in capsys.readouterr().out.splitlines()}
    assert rows["step"][0] == "7;" and rows["marked_word_accuracy"][1] == "0.00"
    typed, ceiling = bounds["copy"]["diacritic_error_rate"], bounds["best"]["diacritic_error_rate"]
    assert float(rows["diacritic_error_rate"][3]) == pytest.approx(100 * (100 - typed) / (100 - ceiling), abs=0.01)
