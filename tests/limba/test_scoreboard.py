"""`limba scoreboard`: figures of runs from their files."""

import csv
import json

import pytest

from limba import scoreboard

TEXT = {"nats_per_text_token": 5.0, "nats_per_text_token_renormalized": 4.5, "nats_per_character": 1.25}
SHARES = {"text_accuracy": 0.125, "text_top_5_accuracy": 0.25}
BIGRAM = {"left_bigram/nats_per_text_token": 4.75, "left_bigram/text_accuracy": 0.2}


def _run(folder, scale=1.0, steps=(10, 20)):
    folder.mkdir()
    lines = [{"step": 15, "dataset": "train", "loss": 3.0}]
    for number, step in enumerate(steps, start=1):
        text = {name: x * scale / number for name, x in TEXT.items()}
        lines.append(
            {"step": step, "dataset": "training_eval/t", "nats_per_target_token": 4.0, **text, **SHARES, **BIGRAM}
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    attempts = [
        {"step": 0, "began": 100.0, "time": 100.0, "seconds": {}},
        {"step": 20, "began": 100.0, "time": 1900.0, "seconds": {"step": 1500.0}},
    ]
    (folder / "goodput.jsonl").write_text("".join(json.dumps(line) + "\n" for line in attempts))
    return folder


def test_runs_stand_side_by_side_with_ngrams_once(tmp_path, capsys):
    first, second = _run(tmp_path / "a"), _run(tmp_path / "b", scale=2.0)
    (first / "eval").mkdir()
    pairs = {"task": "agreement", "split": "pairs", "step": 20, "checkpoint": "x", "loss": {}}
    results = [pairs | {"metrics": {"accuracy": 60.0}}, pairs | {"task": "more", "metrics": {"accuracy": 80.0}}]
    results += [
        pairs | {"task": "all_files", "metrics": {"accuracy": 65.0}},
        pairs | {"task": "undefined", "metrics": {}},
    ]
    (first / "eval" / "pairs_results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in results))
    out = tmp_path / "board.csv"
    assert scoreboard.main([str(first), str(second), "--out", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row[""] for row in rows] == [str(first), str(second), "bigram of the token before"]
    assert rows[0] == {
        "": str(first),
        "step": "20",
        "nats/character": "0.6250",
        "nats/token": "2.5000",
        "nats among text": "2.2500",
        "likeliest": "12.5%",
        "among five": "25.0%",
        "pairs": "65.0%",
        "hours": "0.50",
    }
    assert rows[1]["nats/token"] == "5.0000" and rows[1]["pairs"] == ""
    assert rows[2] == dict.fromkeys(rows[2], "") | {
        "": "bigram of the token before",
        "nats among text": "4.7500",
        "likeliest": "20.0%",
    }
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4 and said[1].split() == list(filter(None, rows[0].values()))


def test_all_checkpoints_and_a_picture(tmp_path, capsys):
    run = _run(tmp_path / "a")
    picture = tmp_path / "board.png"
    assert scoreboard.main([str(run), "--checkpoints", "all", "--picture", str(picture)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in said[1:3]] == ["10", "20"] and "0.50" not in said[1]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing has no metrics.jsonl: name folders of runs"):
        scoreboard.main([str(_run(tmp_path / "a")), str(tmp_path / "nothing")])
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "metrics.jsonl").write_text(json.dumps({"step": 1, "dataset": "train", "loss": 1.0}) + "\n")
    with pytest.raises(FileNotFoundError, match="has no evaluation of a loss yet"):
        scoreboard.main([str(tmp_path / "new")])
    with pytest.raises(SystemExit):
        scoreboard.main([str(tmp_path / "a"), "--out", "board.pdf"])
