"""`limba scoreboard`: figures of runs from their files."""

import csv
import json
import re
import sys

import pytest

from limba.addons.cards import card_metadata
from limba.addons.pages import scoreboard, scoreboard_rows

TEXT = {"nats_per_text_token": 5.0, "nats_per_text_token_renormalized": 4.5, "nats_per_character": 1.25}
SHARES = {"text_accuracy": 0.125, "text_top_5_accuracy": 0.25}
OF_PAIRS = "pairs of agreement + more (1,500)"
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
        pairs | {"task": "all_files", "metrics": {"accuracy": 65.0, "pairs": 1500}},
        pairs | {"task": "undefined", "metrics": {}},
    ]
    (first / "eval" / "pairs_results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in results))
    out = tmp_path / "board.csv"
    assert scoreboard.main([str(first), str(second), "--out", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [str(first), str(second), "bigram of the token before"]
    assert rows[0] == {
        "name": str(first),
        "step": "20",
        "nats/character": "0.6250",
        "nats/token": "2.5000",
        "nats among text": "2.2500",
        "likeliest": "12.5%",
        "among five": "25.0%",
        OF_PAIRS: "65.0%",
        "hours": "0.50",
    }
    assert rows[1]["nats/token"] == "5.0000" and rows[1][OF_PAIRS] == ""
    (tmp_path / "of_limba_run").mkdir()
    second.rename(tmp_path / "of_limba_run/run")
    (tmp_path / "of_limba_run/run/checkpoint_20/state").mkdir(parents=True)
    (shown, _) = scoreboard_rows.rows_of_run(tmp_path / "of_limba_run", every_step=False)
    assert (shown.name, shown.figures["nats/token"]) == (str(tmp_path / "of_limba_run"), 5.0)
    assert rows[2] == dict.fromkeys(rows[2], "") | {
        "name": "bigram of the token before",
        "nats among text": "4.7500",
        "likeliest": "20.0%",
    }
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4 and said[1].split() == list(filter(None, rows[0].values()))


def test_averages_stand_beside_their_runs(tmp_path, capsys):
    """Of a run that keeps one; of `limba average`, whose folder has what `limba eval` wrote; and exported ones."""
    run = _run(tmp_path / "a")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    average = {
        "step": 20,
        "dataset": "training_eval/t_average",
        "nats_per_target_token": 3.0,
        "nats_per_text_token": 2.4,
    }
    (run / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in [*lines, average]))
    mean = tmp_path / "a_mean_of_2"
    mean.mkdir()
    (mean / "mean.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"no evaluation of a loss yet: limba eval .*a_mean_of_2 makes one"):
        scoreboard.main([str(mean)])
    (mean / "eval").mkdir()
    loss = {"nats_per_target_token": 3.25, "nats_per_text_token": 2.45, **SHARES}
    row = {"task": "t", "split": "validation", "step": 20, "checkpoint": "x", "loss": loss, "metrics": {}}
    (mean / "eval" / "results.jsonl").write_text(json.dumps(row) + "\n")
    export = tmp_path / "exported"
    export.mkdir()
    (export / "conversion_report.json").write_text(json.dumps({"step": 20, "average": True}))
    metrics = [{"type": "loss", "value": 2.4, "name": "loss, nats per token of text"}]
    of_card = card_metadata.result("t", "t", metrics, "text2text-generation")
    card = card_metadata.front_matter(card_metadata.NO_METADATA, ["t5"], [of_card], "exported", "text2text-generation")
    (export / "README.md").write_text(f"{card}\n\n# exported\n")
    rows = [row for folder in (run, mean, export) for row in scoreboard.rows_of(folder, every_step=False)]
    assert [
        (row.name, row.task, row.figures.get("nats/token", row.figures.get("nats among text")))
        for row in rows
        if "step" in row.figures
    ] == [(str(run), "t", 2.5), (f"{run}, average", "t", 2.4), (str(mean), "t", 2.45), (f"{export}, average", "t", 2.4)]
    scoreboard.main([str(run), str(mean), str(export)])
    said = capsys.readouterr().out
    assert "targets of" not in said and "compare" not in said and said.count("bigram of") == 1
    (export / "README.md").write_text("# exported\n")
    with pytest.raises(FileNotFoundError, match="exported is an export whose model card has no loss; name its run"):
        scoreboard.main([str(export)])


def test_a_picture_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"not installed: pip install 'limba\[pictures\]'"):
        scoreboard.main([str(_run(tmp_path / "a")), "--picture", str(tmp_path / "board.png")])


def _add_pairs(run, file, number):
    (run / "eval").mkdir()
    row = {"task": "t", "split": "pairs", "step": 20, "checkpoint": "x", "loss": {}, "file": f"/data/{file}"}
    row["metrics"] = {"accuracy": 70.0, "pairs": number}
    (run / "eval" / "pairs_results.jsonl").write_text(json.dumps(row) + "\n")


def test_pairs_of_different_files_have_a_column_each_and_are_said(tmp_path, capsys):
    runs = [_run(tmp_path / name) for name in "abc"]
    for run, file, number in zip(runs, ("one.jsonl", "two.jsonl", "one.jsonl"), (400, 1400, 400), strict=True):
        _add_pairs(run, file, number)
    scoreboard.main([*map(str, runs)])
    said = capsys.readouterr().out
    assert "pairs of one.jsonl (400)  pairs of two.jsonl (1,400)" in said
    assert "\nRuns were scored on different files of pairs: accuracies compare within a column alone.\n" in said
    scoreboard.main([str(runs[0]), str(runs[2])])
    said = capsys.readouterr().out
    assert "pairs of one.jsonl (400)" in said and "compare" not in said


def test_other_targets_are_said_and_ngrams_are_named_for_their_runs(tmp_path, capsys):
    runs = [_run(tmp_path / name) for name in "abc"]
    for run, size in zip(runs, (1000, 1000, 2000), strict=True):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines[-1] |= {"num_text_tokens": size, "num_target_tokens": size + 50}
        lines[-1]["left_bigram/nats_per_text_token"] = 4000 / size
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    a, b, c = runs
    scoreboard.main([*map(str, runs)])
    said = capsys.readouterr().out
    assert f"bigram of the token before, beside {a}, {b} " in said and f"before, beside {c} " in said
    assert "Evaluations of t had different targets or n-grams, and their rows do not compare" in said
    assert f"({a}, {b}: 1,000 tokens of text, 1,050 target tokens; {c}: 2,000 tokens of text, 2,050 t" in said
    scoreboard.main([str(a), str(b)])
    said = capsys.readouterr().out
    assert "beside" not in said and "compare" not in said


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
    for flag, name in (("--out", "board.csv"), ("--picture", "board.png")):
        with pytest.raises(FileNotFoundError, match=rf"{flag} .*: the folder .*missing does not exist"):
            scoreboard.main([str(tmp_path / "a"), flag, str(tmp_path / "missing" / name)])


_LINE = {"step": 1, "nats_per_target_token": 1.0, "nats_per_character": 2.0}
_CARD = "---\nmodel-index:\n {}\n---\n"
_METRIC = '{{"name": "loss, nats per target token", {}}}'
_OF_LOSS = '[{{"results": [{{"dataset": {{"name": "d"}}, "metrics": [' + _METRIC + "]}}]}}]"


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ("[" * 100_000, "its model-index: line 1 has more than 200 brackets"),
        (_OF_LOSS.format('"value": "<script>"'), "a metric that is no number"),
        (_OF_LOSS.format('"value": ' + "9" * 400), "a metric that is no number"),
        (_OF_LOSS.format('"kind": 1'), "not as a conversion writes it"),
        ("3", "not as a conversion writes it"),
    ],
)
def test_cards_of_strangers(card, message, tmp_path):
    (tmp_path / "conversion_report.json").write_text('{"step": 3}')
    (tmp_path / "README.md").write_text(_CARD.format(card))
    with pytest.raises(ValueError, match=rf"README.md cannot be read \(.*{message}"):
        scoreboard.rows_of(tmp_path, every_step=False)


def test_evaluations_of_strangers(tmp_path, capsys):
    tasks = ["=cmd| b\n# <script>alert(1)</script>![x](y)", "\x1b[2J" + "x" * 1000]
    content = "".join(json.dumps({**_LINE, "dataset": f"training_eval/{task}"}) + "\n" for task in tasks)
    half = content.splitlines()[0].replace("=cmd|", r"\ud800")
    (tmp_path / "metrics.jsonl").write_text(f"{content}{half}\n")
    (tmp_path / "eval").mkdir()
    wrong = {"task": [], "split": {}, "step": 1, "checkpoint": "c", "loss": {}, "metrics": {"accuracy": 1}}
    pairs = {**wrong, "task": "p", "split": "s", "metrics": {"accuracy": "x"}}
    (tmp_path / "eval/pairs_results.jsonl").write_text(f"{json.dumps(wrong)}\n{json.dumps(pairs)}\n")
    scoreboard.main([str(tmp_path), "--out", str(tmp_path / "board.csv")])
    assert ",'=cmd|" in (tmp_path / "board.csv").read_text()
    scoreboard.main([str(tmp_path), "--out", str(tmp_path / "board.md")])
    assert not re.search("\x1b|x{201}", capsys.readouterr().out)
    rows = (tmp_path / "board.md").read_text().splitlines()
    assert len(rows) == 2 + len(tasks) and {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert r"&lt;script&gt;alert(1)&lt;/script&gt;!\[x\](y)" in rows[2]
