"""`limba report`: pages of made-up runs have the right numbers, are small, and ask no network."""

import errno
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from limba.addons.pages import chart_choice, page, report_command, run_record
from tests import house
from tests.addons.pages.made_up_runs import make_run, set_info, write_lines

pytest.importorskip("bokeh")


def _page(tmp_path, *runs, flags=()):
    """The page without bokeh's own program."""
    out = tmp_path / "page.html"
    assert report_command.main([*map(str, runs), "--out", str(out), *flags]) == 0
    text = out.read_text(encoding="utf-8")
    assert out.stat().st_size < page.MOST_BYTES
    begin, end = text.index("<script>\n/* BEGIN bokeh"), text.index("</head>")
    text = text[:begin] + text[end:]
    assert not re.search(r"(src|href)=['\"](https?:)?//", text), "something is fetched"
    return text


def _cells(text, section):
    """Rows of cells of a section's tables."""
    content = re.search(rf"<h2>{section}</h2>(.*?)</section>", text, re.S)[1]
    rows = re.findall(r"<tr>(.*?)</tr>", content, re.S)
    return [re.findall(r"<t[dh]>(.*?)</t[dh]>", row, re.S) for row in rows]


def _titles(text):
    return re.findall(r"<h2>(.*?)</h2>", text)


def test_a_page_has_the_numbers_of_a_run(tmp_path):
    folder = set_info(make_run(tmp_path / "run", steps=range(10, 51, 10), **{"timing/steps_per_second": 4.0}))
    files = [("a.jsonl", [7]), ("b.jsonl", list(range(9)))]
    documents = [{"task": "t", "file": f"/data/{name}", "rows": rows} for name, rows in files]
    write_lines(folder / "spikes.jsonl", [{"step": 40, "back_to": 30, "reason": "too <high>", "documents": documents}])
    text = _page(tmp_path, folder, flags=["--price", "3"])
    head, row = _cells(text, "Overview")
    assert head == ["run", "step", "loss", "validation loss", "tokens/s", "time so far", "time left", "state"]
    assert row == ["run", "50 of 100", "4.5000", "5.6250", "2,000", "30 min", "30 min", "stopped"]
    passed_over = "a.jsonl: 7; b.jsonl: 0, 1, 2, 3, 4 and 4 more rows"
    assert _cells(text, "Spikes")[1] == ["40", "30", "too &lt;high&gt;", passed_over]
    head, so_far, left = _cells(text, "Cost")
    assert head == ["", "steps", "time", "tokens", "FLOPs", "price, at 3 an hour"]
    assert so_far[:4] == ["so far", "50", "30 min", "25 k"] and so_far[-1] == "1.50"
    assert left[:4] == ["to the end", "50", "30 min", "25 k"] and left[-1] == "1.50"
    assert ["training steps that count", "75.0% (22 min)"] in _cells(text, "Speed")
    assert ["devices", "2 × TPU v4"] in _cells(text, "Environment")
    assert "limba train" in text and "TRAIN_STEPS=200" not in text  # it is resumed, not made longer
    # Nothing of what the run does not have.
    assert not {"Metrics", "Predictions", "Differences", "Other metrics of training"} & set(_titles(text))


def test_a_narrow_page_breaks_no_number_and_its_links_can_be_reached(tmp_path):
    """In a window of 360 pixels links stood in one word beyond its edge, and tables broke 2,40 0 of 2,40 0."""
    text = _page(tmp_path, make_run(tmp_path / "run"))
    links = re.search(r"<nav>(.*?)</nav>", text)[1]
    assert re.findall(r'<a href="#s\d+">(.*?)</a>', links) == _titles(text)
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    for selector, rule in re.findall(r"([^{}]*)\{([^{}]*overflow-wrap: anywhere[^{}]*)\}", style):
        # Anywhere else it makes cells as narrow as a letter.
        assert selector.strip() == "header h1" or "min-width: 130px" in rule
    assert ".numbers td { white-space: nowrap }" in style and text.count("<table") == text.count('<div class="wide">')
    narrow = style.partition("@media (max-width: 640px) {")[2]
    assert "nav { flex-wrap: nowrap; overflow-x: auto }" in narrow
    assert ".facts td:first-child { white-space: normal" in narrow, "names of bindings hid their values"


def test_charts_have_the_values(tmp_path):
    runs = [run_record.load(make_run(tmp_path / "run"), "run")]
    charts = {chart.title: chart for chart in chart_choice.charts(runs)}
    assert list(charts) == ["Loss of training and validation", "Learning rate", "Tokens a second"]
    from limba.addons.pages.bokeh_charts import Charts

    drawn = Charts(runs, list(charts.values()), "steps", 1000)
    figure = drawn.figure(charts["Loss of training and validation"])
    lines = {x.name: x.data_source.data[x.glyph.y] for x in figure.renderers if x.name}
    np.testing.assert_allclose(lines["train"], np.arange(4.9, 3.95, -0.1))
    np.testing.assert_allclose(lines["stories"], 1.25 * lines["train"], rtol=1e-6)
    assert [item.label.value for item in figure.legend[0].items] == ["train", "stories"] and drawn.lines_per_point == 1
    assert figure.legend[0].glyph_width == 40, "a dot hid the dashes of a line"


def test_a_page_of_100_000_lines_is_small_and_keeps_a_spike(tmp_path):
    from limba.addons.pages.bokeh_charts import Charts

    folder = make_run(tmp_path / "run", steps=[1], total=100_000)
    losses = 2 + 5 / np.sqrt(np.arange(1, 100_001))
    losses[77_776] = 40.0
    more = ", ".join(f'"metric_{i}": {i}.5' for i in range(12))
    with (folder / "metrics.jsonl").open("w") as file:
        for i, loss in enumerate(losses):
            file.write(f'{{"step": {i + 1}, "dataset": "train", "loss": {loss:.6f}, {more}}}\n')
    text = _page(tmp_path, folder)
    assert "the mean of up to 101 lines of metrics.jsonl; the band goes" in text and "100,000 of 100,000" in text
    runs = [run_record.load(folder, "run")]
    charts = chart_choice.charts(runs)
    drawn = Charts(runs, charts, "steps", 1000)
    columns = drawn.figure(charts[0]).renderers[0].data_source.data
    assert max(np.nanmax(x) for name, x in columns.items() if name.endswith("_greatest")) == 40.0


def test_several_runs_share_an_axis_and_their_differences_are_shown(tmp_path):
    first = set_info(make_run(tmp_path / "a", **{"timing/steps_per_second": 4.0}))
    second = make_run(tmp_path / "b", total=200, batch=16)
    text = _page(tmp_path, first, second, flags=["--axis", "hours"])
    assert [row[:2] for row in _cells(text, "Overview")[1:]] == [["a", "100 of 100"], ["b", "100 of 200"]]
    assert _cells(text, "Differences") == [["", "a", "b"], ["BATCH_SIZE", "8", "16"], ["TRAIN_STEPS", "100", "200"]]
    # b does not know tokens and FLOPs.
    assert re.findall(r"<option( selected)?>(\w+)", text) == [("", "steps"), (" selected", "hours")]
    with pytest.raises(ValueError, match=r"--axis tokens: b has not recorded it. Choose one of steps, hours\."):
        report_command.main([str(first), str(second), "--out", str(tmp_path / "x.html"), "--axis", "tokens"])
    assert not (tmp_path / "x.html").exists()


def test_runs_share_their_n_grams_and_a_long_legend_has_room(tmp_path):
    from limba.addons.pages.bokeh_charts import Charts

    runs = []
    for number in range(8):
        folder = make_run(tmp_path / f"long_run_{number}")
        text = {"nats_per_text_token": 5 - number / 10, "nats_per_text_token_renormalized": 4.5, "left_bigram": 4.9}
        trigram = 4.5 if number else 4.6  # of other texts
        line = {**text, "left_bigram/nats_per_text_token": 4.9, "left_trigram/nats_per_text_token": trigram}
        write_lines(folder / "metrics.jsonl", [{"step": 9, "dataset": "training_eval/stories", **line}])
        runs.append(run_record.load(folder, folder.name))
    (chart,) = (chart for chart in chart_choice.charts(runs) if chart.title == "Nats per token of text")
    labels = [line.label for line in chart.lines]
    assert labels.count("bigram of the token before") == 1 and not any("_7: bigram" in label for label in labels)
    assert {f"long_run_{i}: trigram of two tokens before" for i in range(8)} < {*labels}
    assert len(labels) == 1 + 3 * 8
    figure = Charts(runs, [chart], "steps", 1000).figure(chart)
    assert figure.legend[0].ncols == 1 and figure.height == 270 + 25 * 23
    shared = [x.glyph.line_color for x in figure.renderers if x.name == "bigram of the token before"]
    assert {*shared} == {"#777777"}
    alone = chart_choice.charts(runs[:1])
    (chart,) = (chart for chart in alone if chart.title == "Nats per token of text")
    assert [line.label for line in chart.lines][2:] == ["bigram of the token before", "trigram of two tokens before"]
    figure = Charts(runs[:1], [chart], "steps", 1000).figure(chart)
    assert figure.legend[0].ncols == 2 and figure.height == 340
    # On a telephone the script sets one column, and the height with which the curves keep theirs.
    assert figure.legend[0].tags == [2] and figure.tags[0] == 340 <= figure.tags[1]


def test_an_encoder_a_fine_tuning_and_averages(tmp_path):
    folder = make_run(tmp_path / "run")
    set_info(folder, network_class="EncoderConfig", network={"position_embedding_type": "absolute"})
    lines = []
    for step in (50, 100):
        lines.append({"step": step, "dataset": "training_eval/stories_average", "nats_per_target_token": 3.0})
        metrics = {"eval/accuracy": step / 2, "eval/macro_f1": 40.0, "eval/glad_f1": 1.0, "num_examples": 9}
        lines.append({"step": step, "dataset": "inference_eval/moods", **metrics})
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(f"{str(line).replace(chr(39), chr(34))}\n" for line in lines)
    runs = [run_record.load(folder, "run")]
    charts = {chart.title: [line.label for line in chart.lines] for chart in chart_choice.charts(runs)}
    assert charts["Loss of training and validation"] == ["train", "stories", "stories, averaged weights"]
    assert charts["Metrics of moods"] == ["accuracy", "macro_f1"]
    text = _page(tmp_path, folder)
    assert _cells(text, "Overview")[1][3] == "5.0000"  # not that of the average
    assert "limba try" not in text and "limba convert to-hf" in text


def test_two_steps_are_enough(tmp_path):
    folder = make_run(tmp_path / "run", steps=[2], total=2)
    (folder / "config.gin").unlink()
    (folder / "goodput.jsonl").unlink()
    text = _page(tmp_path, folder)
    assert _cells(text, "Overview")[1] == ["run", "2", "4.9800", "6.2250", "2,000", "stopped"]
    assert "limba train" not in text and "Configuration" not in _titles(text)


def test_texts_of_users_are_escaped(tmp_path):
    evil = "</script><img src=x onerror=alert(1)>"
    folder = make_run(tmp_path / "<img src=x onerror=alert(2)>", **{f"loss/{evil}": 2.0, evil: 1.0})
    (folder / "inference_eval").mkdir()
    row = {"input": {"inputs_pretokenized": evil, "targets_pretokenized": evil}, "target": 1, "output": evil}
    write_lines(folder / "inference_eval" / "stories-000100.jsonl", [row])
    rows = [{"inputs": evil, "targets": "of the first batch"}]
    (folder / "first_rows.json").write_text(json.dumps({"rows": rows, "unknown": {"inputs": 0.0123, "targets": None}}))
    with (folder / "config.gin").open("a") as file:
        file.write(f"# {evil}\nNAME = {evil!r}\n")
    text = _page(tmp_path, folder)
    assert "<img" not in text and text.count("</script>") == text.count("<script") and "&lt;img src=x" in text
    assert re.search(r"\.texts td \{[^}]*unicode-bidi: plaintext; text-align: start", text), "for right-to-left texts"
    assert "<td>1.23% of the inputs of the first batch</td>" in text and "<td>of the first batch</td>" in text
    for damaged in ([], {"rows": 7, "unknown": 3}, {"rows": [None, 3, []]}):
        (folder / "first_rows.json").write_text(json.dumps(damaged))
        assert "of the first batch" not in _page(tmp_path, folder)


def test_bad_input_is_one_message_and_writes_nothing(tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path / "run")
    with pytest.raises(IsADirectoryError, match=r"--out .* is a folder"):
        report_command.main([str(run), "--out", str(tmp_path)])
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist. Make it"):
        report_command.main([str(run), "--out", str(tmp_path / "nowhere" / "page.html")])
    for arguments, message in (
        (["--out", "page.txt"], "its name ends with .html"),
        (["--out", "p.html", "--price", "dear"], "'dear' is not a price of an hour"),
    ):
        with pytest.raises(SystemExit):
            report_command.main([str(run), *arguments])
        assert message in capsys.readouterr().err
    out = tmp_path / "page.html"
    out.write_text("before")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(out))

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(OSError, match="No space left"):
        report_command.main([str(run), "--out", str(out)])
    assert out.read_text() == "before" and sorted(x.name for x in tmp_path.iterdir()) == ["page.html", "run"]


def test_without_bokeh_a_line_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh.util.version", None)
    monkeypatch.setitem(sys.modules, "bokeh", None)
    words = r"`limba report` draws with bokeh, which is missing: pip install 'limba\[report\]'"
    with pytest.raises(ImportError, match=words):
        report_command.main([str(tmp_path), "--out", str(tmp_path / "x.html")])


def test_a_page_that_is_too_large_takes_fewer_points(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", steps=range(1, 901), total=900)
    runs = [run_record.load(run, "run")]
    whole = page.write(runs, "steps", None, "now")
    assert "is the mean of up to" not in whole
    monkeypatch.setattr(page, "MOST_BYTES", len(whole.encode()) - 1000)
    fewer = page.write(runs, "steps", None, "now")
    assert int(re.search(r"is the mean of up to (\d+) lines", fewer)[1]) > 1 and len(fewer.encode()) <= page.MOST_BYTES


# A process of its own: TensorStore reads the address of its bucket once.
_BUCKET_SCRIPT = """
import os, sys
from pathlib import Path
from tests.limba.fake_gcs import FakeGcs

gcs = FakeGcs()
os.environ["TENSORSTORE_GCS_HTTP_URL"] = gcs.url
from limba.addons.pages import report_command

folder = Path(sys.argv[1])
for file in folder.rglob("*"):
    if file.is_file():
        gcs.put("my-bucket", f"runs/mine/{file.relative_to(folder)}", file.read_bytes())
sys.exit(report_command.main(["gs://my-bucket/runs/mine", "--out", sys.argv[2]]))
"""


def test_a_run_in_a_bucket(tmp_path):
    folder, out = set_info(make_run(tmp_path / "run")), tmp_path / "page.html"
    (folder / "checkpoint_100" / "commit_success.txt").touch()
    command = [sys.executable, "-c", _BUCKET_SCRIPT, str(folder), str(out)]
    done = subprocess.run(command, cwd=house.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    text = out.read_text(encoding="utf-8")
    assert _cells(text, "Overview")[1][:3] == ["mine", "100 of 100", "4.0000"]
    assert ["devices", "2 × TPU v4"] in _cells(text, "Environment")
