"""The comparison of workers, as one of them sees it. test_many_processes compares real workers."""

import json

import pytest

from limba import command_line
from limba.data.contract import DatasetConfig
from limba.inference import tasks_door
from limba.workers import code_versions, distributed, handshake
from limba.workers.handshake import DifferentWorkersError
from tests.limba import small


@pytest.fixture
def others(monkeypatch):
    """Makes this process worker 0 of three; the others have its facts, with the changes of the test."""
    monkeypatch.setattr(distributed, "process_count", lambda: 3)
    monkeypatch.setattr(distributed, "_hosts", ["a", "b", "c"])
    changes: dict[int, dict[str, str | None]] = {1: {}, 2: {}}

    def exchange(subject, value, timeout=None):
        if not value.startswith("{"):
            return [value] * 3
        facts = json.loads(value)
        return [value, *(json.dumps(facts | changes[i]) for i in (1, 2))]

    monkeypatch.setattr(distributed, "exchange", exchange)
    return changes


def _message(function, *arguments):
    with pytest.raises(DifferentWorkersError) as error:
        function(*arguments)
    return str(error.value)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"commit of limba": "b" * 40}, f"worker 2 (c): commit of limba: {'b' * 40}, on the others {'a' * 40}"),
        ({"version of jax": "0.9.0"}, "worker 2 (c): version of jax: 0.9.0, on the others 0.10.2"),
        ({"version of jax": None}, "worker 2 (c): version of jax: unknown, on the others 0.10.2"),
        ({"source files of limba and tasks (CRC-32)": "0"}, "worker 2 (c): source files of limba and tasks (CRC-32):"),
    ],
)
def test_code_that_differs(others, monkeypatch, changed, expected):
    monkeypatch.setattr(code_versions, "commits", lambda: {"limba": "a" * 40})
    monkeypatch.setattr(code_versions, "packages", lambda: {"jax": "0.10.2"})
    handshake.compare_code("A = 1")
    others[2] = changed
    assert expected in _message(handshake.compare_code, "A = 1")


def test_lines_of_gin_that_differ():
    config = [f"NAME_{i} = {i}" for i in range(40)]
    other = ["NAME_3 = 4" if i == 3 else line for i, line in enumerate(config) if i != 7]
    of_workers = [{"gin configuration": "\n".join(lines)} for lines in (config, other, config)]
    (line,) = handshake.differences(of_workers)
    assert line == "worker 1: gin configuration: NAME_3 = 4, on the others NAME_3 = 3 | NAME_7 = 7"


def test_of_two_workers_the_first_is_the_measure_and_most_of_several():
    assert handshake.differences([{"x": "1"}, {"x": "2"}]) == ["worker 1: x: 2, on worker 0 1"]
    assert handshake.differences([{"x": "1"}, {"x": "2"}, {"x": "2"}]) == ["worker 0: x: 1, on the others 2"]
    assert handshake.differences([{"x": "1"}, {"x": "2"}, {"x": "3"}]) == [
        "worker 1: x: 2, on worker 0 1",
        "worker 2: x: 3, on worker 0 1",
    ]


def test_data_that_differ(others, tmp_path):
    facts = {"revision of corpus": "r1", "order of the data": "o1"}
    arguments = (small.model(), DatasetConfig("task", {"inputs": 8}, "train", 8), lambda: facts, tmp_path)
    handshake.compare_data(*arguments)
    assert list(tmp_path.iterdir()) == []
    for name, value in (("revision of corpus", "r2"), ("output vocabulary", "another"), ("devices", "8 x TPU v4")):
        others[1] = {name: value}
        message = _message(handshake.compare_data, *arguments)
        assert "differ in their data" in message and f"worker 1 (b): {name}: {value}, on the others" in message


def test_a_stream_of_the_users_own_has_no_facts(monkeypatch):
    config = DatasetConfig("task", {"inputs": 8}, "train", 8)
    monkeypatch.setattr(tasks_door, "facts", lambda config: {"task": config.name})
    assert tasks_door.facts_of(lambda *_: small.Stream(), config) == {}
    assert tasks_door.facts_of(None, config) == tasks_door.facts_of(tasks_door.get_dataset, config) == {"task": "task"}


def test_the_content_of_a_vocabulary_counts_and_not_its_path(tmp_path):
    hashes = []
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        vocabulary = small.FixedVocabulary()
        vocabulary.sentencepiece_model_file = str(tmp_path / name)
        (tmp_path / name).write_bytes(content)
        hashes.append(handshake._vocabulary_hash(vocabulary))
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_directory_that_is_not_shared(others, monkeypatch, tmp_path):
    def exchange(subject, value, timeout=None):
        return [value, "True", "False"] if subject.startswith("look") else [value] * 3

    monkeypatch.setattr(distributed, "exchange", exchange)
    config = DatasetConfig("task", {"inputs": 8}, "train", 8)
    message = _message(handshake.compare_data, small.model(), config, dict, tmp_path)
    assert message.startswith(f"worker 2 (c) cannot see the files that worker 0 (a) writes into MODEL_DIR {tmp_path}: ")


def test_alone_nothing_is_compared(monkeypatch):
    monkeypatch.setattr(code_versions, "commits", pytest.fail)
    assert command_line.goes_on(command_line.parse_flags(command_line.argument_parser("train", ""), []))
