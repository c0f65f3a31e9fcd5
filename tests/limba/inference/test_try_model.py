import builtins
import functools
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from limba.checkpoints import checkpointing
from limba.inference import answering, try_model


class _Upper:
    """Answers in capitals and backwards; a blank is filled with "so"."""

    def __init__(self, restore_checkpoint_cfg=None):
        pass

    def answer(self, lines):
        for line in lines:
            filled = answering.fill_blanks(line, "<extra_id_0> so") if "<extra" in line else line.upper()
            yield answering.Answer(line, line.upper(), filled, -1.0, (line[::-1],) if line == "two" else ())


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        ("a ___ b _____.", "a <extra_id_0> b <extra_id_1>."),
        ("snake_case __init__", "snake_case __init__"),
        ("<extra_id_2> and ___", "<extra_id_2> and <extra_id_3>"),
    ],
)
def test_mark_blanks(line, marked):
    assert try_model.mark_blanks(line) == marked


def test_reply():
    assert try_model.reply(_Upper(), "one\n\n___ it is\ntwo") == "ONE\nso it is\nTWO\n  - owt"
    assert try_model.reply(_Upper(), "___ it is", "fill: ") == "so it is"
    assert try_model.reply(_Upper(), " \n") == ""


class _Fills:
    """Was pre-trained only: it fills blanks, also where there are none."""

    def __init__(self, restore_checkpoint_cfg=None):
        pass

    def answer(self, lines):
        spans = "<extra_id_0> so <extra_id_1> be it"
        return (answering.Answer(line, spans, answering.fill_blanks(line, spans), -1.0) for line in lines)


def test_what_was_filled_is_marked_and_a_text_without_blanks_gets_a_hint():
    assert try_model.reply(_Fills(), "a ___ b ___", mark=try_model._bold) == "a \033[1mso\033[0m b \033[1mbe it\033[0m"
    assert try_model.reply(_Fills(), "a ___ b") == "a so b"
    shown = try_model.reply(_Fills(), "no blank", mark=try_model._bold).splitlines()
    assert shown[0].startswith("<extra_id_0>") and "write ___ where words are missing" in shown[1] and len(shown) == 2


def test_in_the_terminal(monkeypatch, capsys):
    typed = iter(["one", "", "so ___", "caf\udce9"])

    def read(prompt):
        assert prompt == "mine, step 500> "
        try:
            return next(typed).encode().decode()
        except StopIteration:
            raise KeyboardInterrupt from None  # as Ctrl-C

    monkeypatch.setattr(builtins, "input", read)
    try_model.try_model(
        answerer_cls=_Upper,
        restore_checkpoint_cfg=checkpointing.RestoreCheckpointConfig(),
        serve=functools.partial(try_model.serve_terminal, name="mine, step 500"),
        prefix="",
    )
    first, second, third, _ = capsys.readouterr().out.splitlines()[1:]
    assert (first, second) == ("ONE", "so so") and third.startswith("error: 'utf-8' codec can't encode")


def test_a_page_that_cannot_listen_is_refused_before_anything_is_loaded():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for flags, words in (
            (("--port", "99999"), "--port is 99999; it lies between 1 and 65535"),
            (("--port", port), f"No page can listen at --host 127.0.0.1 --port {port} \\(Address already in use"),
            (("--host", "no host"), "No page can listen at --host no host"),
        ):
            with pytest.raises(ValueError, match=words):
                try_model.main(["/absent", "--web", *flags])


@pytest.fixture
def page_url():
    page = try_model.make_page(lambda text, prefix: try_model.reply(_Upper(), text, prefix), "p: ", "mine")
    _, url, _ = page.launch(server_name="127.0.0.1", share=False, quiet=True, prevent_thread_lock=True)
    yield url
    page.close()


def test_the_page_answers_on_this_machine_only(page_url):
    assert page_url.startswith("http://127.0.0.1:")
    body = json.dumps({"data": ["one\nso ___", "p: "]}).encode()
    request = urllib.request.Request(f"{page_url}gradio_api/call/ask", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        event = json.load(reply)["event_id"]
    with urllib.request.urlopen(f"{page_url}gradio_api/call/ask/{event}", timeout=30) as reply:
        said = reply.read().decode()
    assert said == f"event: complete\ndata: {json.dumps(['P: ONE' + chr(10) + 'so so'])}\n\n"
    with urllib.request.urlopen(page_url, timeout=30) as reply:
        assert "Limba: mine" in reply.read().decode()


@pytest.fixture
def browser(tmp_path):
    """A headless Chromium by the WebDriver protocol: `browser(path, body)` is the value of the reply."""
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
    session = ""

    def call(path, body=None, method=None):
        url = f"http://127.0.0.1:{port}/session{session}{path}"
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=60) as reply:
            return json.load(reply)["value"]

    try:
        port = next(found[1] for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line)))
        arguments = ["--headless=new", "--no-sandbox", f"--user-data-dir={tmp_path}"]
        options = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
        session = "/" + call("", {"capabilities": {"alwaysMatch": options}})["sessionId"]
        yield call
        call("", method="DELETE")
    finally:
        driver.terminate()
        driver.wait(30)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("chromedriver") is None, reason="needs Debian's chromium-driver; the endpoint is above"
)
def test_somebody_asks_in_a_browser(page_url, browser):
    def element(css):
        for _ in range(300):  # until the page's script has drawn it
            try:
                (found,) = browser("/element", {"using": "css selector", "value": css}).values()
                return found
            except urllib.error.HTTPError:
                time.sleep(0.1)
        raise AssertionError(f"no {css}")

    browser("/url", {"url": page_url})
    browser(f"/element/{element('#text textarea')}/value", {"text": "one\nso ___"})
    browser(f"/element/{element('#ask')}/click", {})
    answer = element("#answer textarea")
    for _ in range(300):
        if said := browser(f"/element/{answer}/property/value"):
            break
        time.sleep(0.1)
    assert said == "P: ONE\nso so"
