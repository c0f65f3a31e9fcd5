"""Long waits are named."""

import logging
import re
import threading
import time

from limba.files import awaited


def test_a_long_wait_is_named_once_until_it_has_doubled(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(awaited, "_FIRST_SECONDS", 1.5)
    monkeypatch.setattr(awaited, "_TICK_SECONDS", 0.1)
    with awaited.named("the first batch", usual=10.0):
        time.sleep(2.0)
    with awaited.named("a batch of 'my_corpus' for step 8", usual=10.0):
        time.sleep(0.2)
        with awaited.named("https://example.org/part-0001.gz"):
            time.sleep(2.3)
        threading.Thread(target=_wait_shortly).start()
    time.sleep(0.2)
    (message,) = caplog.messages
    assert re.fullmatch(r"Waiting for a batch of 'my_corpus' for step 8 \(2 s\), for https://\S+ \([12] s\)\.", message)


def _wait_shortly() -> None:
    with awaited.named("something that comes"):
        time.sleep(0.1)
