import json
import threading
import time

import pytest

from benchmarks import serving


def test_all_requests_are_sent_and_timed_from_a_number_of_clients():
    lock, asked, running, most = threading.Lock(), [], set(), []

    def ask(number):
        with lock:
            asked.append(number)
            running.add(number)
            most.append(len(running))
        time.sleep(0.05 if number == 19 else 0.01)
        running.discard(number)
        return 200

    row = serving.measure(ask, 4, 20)
    assert sorted(asked) == list(range(20)) and 1 < max(most) <= 4 and row["clients"] == 4
    assert 10 <= row["p50 ms"] < row["p95 ms"] and row["p95 ms"] >= 50 and row["requests/s"] < 400


def test_an_answer_that_is_missing_or_another_is_no_measurement(monkeypatch):
    monkeypatch.setattr(serving, "post", lambda port, content: (503, b""))
    with pytest.raises(AssertionError, match="request 0 got 503"):
        serving.measure(serving.asker(0, 4), 1, 2)
    answers = iter(["a"] * serving._NUM_TEXTS + ["b"])
    reply = lambda port, content: (200, json.dumps({"choices": [{"text": next(answers)}]}).encode())  # noqa: E731
    monkeypatch.setattr(serving, "post", reply)
    with pytest.raises(AssertionError, match=f"request {serving._NUM_TEXTS}: 'b', and first 'a'"):
        serving.measure(serving.asker(0, 4), 1, serving._NUM_TEXTS + 1)


def test_a_round_has_both_sides_of_the_same_requests(monkeypatch):
    batches, seconds = [], iter([1.0, 4.0])
    monkeypatch.setattr(serving, "cpu_seconds", lambda process: next(seconds))
    round_ = serving.compare(str, lambda numbers: batches.append([*numbers]) or time.sleep(0.05), 7, 4, 12)
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    ours, theirs, of_server, of_generate = round_
    assert of_server == 0.25 and ours > 0 and of_generate >= 0 and theirs <= 12 / 0.15
    assert serving.spread([2.0, 1.0, 4.0]) == "2.00 (1.00 to 4.00)"
