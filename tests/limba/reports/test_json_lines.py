"""Damaged lines are passed over, and set aside when a run resumes."""

import json
import logging

import pytest

from limba.reports import goodput, json_lines, writers

GOOD = {"step": 2, "dataset": "train", "loss": 1.5, "lr": None}


@pytest.mark.parametrize(
    "damage",
    [
        b'{"step": 3, "dataset": "tr',
        '{"step": 3, "dataset": "train", "text": "пр'.encode()[:-1],
        b"12",
        b"[]",
        b"\0\0\0\0",
        b'{"step": 3}',
        b'{"step": "3", "dataset": "train"}',
        b'{"step": 3, "dataset": "train", "loss": "low"}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_line_of_metrics_is_set_aside(tmp_path, caplog, damage):
    file = tmp_path / "metrics.jsonl"
    good = json.dumps(GOOD).encode()
    file.write_bytes(good + b"\n" + damage + b"\n" + good + b"\n")
    assert writers.read_metrics(tmp_path) == [GOOD, GOOD]
    assert damage in file.read_bytes(), "reading changes nothing"
    with caplog.at_level(logging.WARNING):
        writers.JsonLinesWriter(tmp_path, keep_until=2).close()
    assert file.read_bytes() == (good + b"\n") * 2
    assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == damage + b"\n"
    assert caplog.messages == [f"{file} had 1 damaged line, which is in metrics.jsonl.damaged now."]


def test_damage_is_added_to_earlier_damage(tmp_path):
    file = tmp_path / "lines.jsonl"
    for damage in (b"one\ntwo\n", b"three"):
        file.write_bytes(b'{"a": 1}\n' + damage)
        assert json_lines.read_and_repair(file, lambda record: "a" in record) == [{"a": 1}]
    assert (tmp_path / "lines.jsonl.damaged").read_bytes() == b"one\ntwo\nthree\n"
    assert json_lines.read_and_repair(tmp_path / "none.jsonl", lambda record: True) == []


LINE = {"began": 100.0, "time": 110.0, "step": 5, "seconds": {"step": 8.0, "start": 2.0}}


@pytest.mark.parametrize(
    "change",
    [
        {"time": None},
        {"began": "100"},
        {"seconds": None},
        {"seconds": {"step": "8"}},
        {"seconds": {"sleep": 8.0}},
        {"step": None},
        {"step": True, "time": True},
    ],
)
def test_a_damaged_line_of_goodput_is_set_aside(tmp_path, change):
    file = tmp_path / goodput.FILE_NAME
    bad = json.dumps({key: value for key, value in (LINE | change).items() if value is not None})
    file.write_text(f"{json.dumps(LINE)}\n{bad}\n")
    assert len(goodput.read_attempts(tmp_path)) == 1
    kept = goodput.Goodput(tmp_path, 5, 0.0)
    assert kept.seconds()["step"] == 8.0
    assert json.loads(file.read_text()) == LINE
    assert (tmp_path / "goodput.jsonl.damaged").read_text() == f"{bad}\n"


def test_a_hole_is_not_copied(tmp_path):
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.truncate(20 * 2**20)
    with pytest.raises(ValueError, match=r"metrics\.jsonl has a line of 20,971,520 bytes, which no run writes"):
        json_lines.read_and_repair(tmp_path / "metrics.jsonl", lambda record: True)
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]
