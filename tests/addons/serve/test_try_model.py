import argparse
import builtins
import functools
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

from limba.addons.serve import try_model, web_server
from limba.checkpoints import checkpointing, run_configuration
from limba.inference import answering, blanks
from limba.network.finite_numbers import layers as finite_layers


class _Upper:
    """Answers in capitals and backwards; a blank is filled with "so"."""

    def __init__(self, restore_checkpoint_cfg=None):
        pass

    def find_unknown(self, lines):
        return ""

    def answer(self, lines):
        for line in lines:
            filled = blanks.fill_blanks(line, "<extra_id_0> so") if "<extra" in line else line.upper()
            yield answering.Answer(line, line.upper(), filled, -1.0, (line[::-1],) if line == "two" else ())


@pytest.mark.parametrize(
    ("line", "marked"),
    [
        ("a ___ b _____.", "a <extra_id_0> b <extra_id_1>."),
        ("snake_case __init__", "snake_case __init__"),
        ("<extra_id_2> and ___", "<extra_id_2> and <extra_id_3>"),
    ],
)
def test_what_is_typed_has_blanks_for_the_model_and_back(line, marked):
    assert blanks.typed(line) == marked
    assert blanks.shown(f"{marked} [MASK] <mask>") == f"{blanks.shown(line).replace('_____', '___')} ___ ___"


def test_reply():
    assert try_model.reply(_Upper(), "one\n\n___ it is\ntwo") == "ONE\nso it is\nTWO\n  - owt"
    assert try_model.reply(_Upper(), "___ it is", "fill: ") == "so it is"
    assert try_model.reply(_Upper(), " \n") == ""


def test_underscores_are_text_where_a_task_has_no_blanks():
    assert try_model.reply(_Upper(), "a ___ b", has_blanks=False) == "A ___ B"


def test_what_the_vocabulary_does_not_know_is_said_behind_the_answers():
    answerer = _Upper()
    answerer.find_unknown = lambda lines: f"{len(lines)} inputs have ș."
    assert try_model.reply(answerer, "one\ntwo").splitlines()[-1] == "(2 inputs have ș.)"


def test_an_empty_answer_is_shown_as_one():
    answerer = _Upper()
    answerer.answer = lambda lines: [answering.Answer(line, "", "", -1.0) for line in lines]
    assert try_model.reply(answerer, "a\nb") == "(an empty answer)\n(an empty answer)"


class _Fills:
    """Was pre-trained only: it fills blanks, also where there are none."""

    def __init__(self, restore_checkpoint_cfg=None):
        pass

    def find_unknown(self, lines):
        return ""

    def answer(self, lines):
        spans = "<extra_id_0> so <extra_id_1> be it"
        return (answering.Answer(line, spans, blanks.fill_blanks(line, spans), -1.0) for line in lines)


def test_what_was_filled_is_marked_and_a_text_without_blanks_gets_a_hint():
    assert try_model.reply(_Fills(), "a ___ b ___", mark=try_model._bold) == "a \033[1mso\033[0m b \033[1mbe it\033[0m"
    assert try_model.reply(_Fills(), "a ___ b") == "a so b"
    shown = try_model.reply(_Fills(), "no blank", mark=try_model._bold).splitlines()
    assert shown[0].startswith("___ so ___ be") and "write ___ where words are missing" in shown[1] and len(shown) == 2


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


def test_a_run_is_asked_with_the_prefix_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(try_model, "checkpoint_step", lambda checkpoint: 500)
    monkeypatch.setattr(run_configuration, "newest_checkpoint", lambda run: f"{run}/checkpoint_500")
    monkeypatch.setattr(
        run_configuration, "parse", lambda flags, file, bindings, needs_tasks: parsed.append((file, bindings))
    )
    monkeypatch.setattr(
        try_model.gin_files, "configurable", lambda function, module: lambda **arguments: started.append(arguments)
    )
    parsed, started = [], []
    assert try_model.main([str(tmp_path / "mine"), "--prefix", "fill: "]) == 0
    checkpoint = f"{tmp_path}/mine/checkpoint_500"
    assert parsed == [("gin/runs/try.gin", {"CHECKPOINT_PATH": checkpoint, "answers.Answerer.batch_size": 1})]
    (arguments,) = started
    assert arguments["prefix"] == "fill: " and arguments["serve"].keywords == {"name": "mine, step 500"}


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


@pytest.fixture(scope="module")
def page_url():
    page = try_model.make_page(lambda text, prefix: try_model.reply(_Upper(), text, prefix), "p: ", "mine")
    app = try_model.guard_page(page, try_model._allowed_hosts("0.0.0.0", "box.lan, other.lan"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = web_server.Server(app, web_server.Times(ending_s=1))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join(20)
    assert not thread.is_alive()


def _request(url, body=None, method=None, **headers):
    """The status, the headers and the text of what the page answers."""
    sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, sent, method=method), timeout=30) as reply:
            return reply.status, reply.headers, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read().decode()


def test_the_page_answers_on_this_machine_only(page_url):
    body = json.dumps({"data": ["one\nso ___", "p: "]}).encode()
    status, _, reply = _request(f"{page_url}gradio_api/call/ask", body, Origin=page_url.rstrip("/"))
    assert status == 200, reply
    said = _request(f"{page_url}gradio_api/call/ask/{json.loads(reply)['event_id']}")[2]
    assert said == f"event: complete\ndata: {json.dumps(['P: ONE' + chr(10) + 'so so'])}\n\n"
    assert "Limba: mine" in _request(page_url)[2]


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "0.0.0.0", "box.lan@evil.example", "[::1", ""]
)
def test_another_host_s_name_is_refused(page_url, host):
    """DNS rebinding: a foreign site's name has this machine's address."""
    for path in ("", "config", "gradio_api/info"):
        status, _, text = _request(page_url + path, Host=f"{host}:80")
        assert status == 403 and "is not this page's; start it with --allowed_hosts" in text


def test_hosts_that_are_allowed(page_url):
    port = page_url.rsplit(":", 1)[1].strip("/")
    for host in (f"box.lan:{port}", f"OTHER.lan:{port}", f"localhost:{port}", f"[::1]:{port}", "127.8.8.8"):
        assert _request(page_url, Host=host)[0] == 200
    assert try_model._allowed_hosts("192.168.0.7", "") == ["192.168.0.7"]


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1"])
def test_another_site_is_refused_and_gets_no_leave(page_url, origin):
    body = json.dumps({"data": ["one", ""]}).encode()
    preflight = {"Access_Control_Request_Method": "POST", "method": "OPTIONS"}
    for more in ({"body": body}, {}, preflight):
        status, headers, text = _request(f"{page_url}gradio_api/call/ask", Origin=origin, **more)
        assert status == 403 and "The page answers no other site" in text
        assert not [name for name in headers if name.lower().startswith("access-control")]


def test_nothing_is_uploaded_or_read(page_url, tmp_path):
    form = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nhello\r\n--x--\r\n'
    kind = "multipart/form-data; boundary=x"
    for path in ("upload", "gradio_api/upload", "gradio_api/run/ask", "gradio_api/component_server"):
        status, _, text = _request(page_url + path, form, Content_Type=kind)
        assert status == 403 and "The page takes no POST at" in text
    assert _request(f"{page_url}gradio_api/call/ask", form, method="PUT")[0] == 403
    for path in (f"gradio_api/file={__file__}", "gradio_api/proxy=http://127.0.0.1/", "gradio_api/stream/x"):
        status, _, text = _request(page_url + path)
        assert status == 403 and "The page serves nothing at" in text
    for path in ("gradio_api/dev/reload", "gradio_api/deep_link", "openapi.json", "vibe-code/", "assets"):
        assert _request(page_url + path)[0] == 403
    body = json.dumps({"data": ["x" * (3 << 20), ""]}).encode()
    assert _request(f"{page_url}gradio_api/call/ask", body)[0] == 413  # no text is that long


@pytest.mark.parametrize("path", ["call/ask", "queue/join"])
@pytest.mark.parametrize(
    "body",
    [
        *({"data": data} for data in (None, "one", ["one"], ["one", None], ["one", "", ""], [["one"], ""])),
        {"data": [{"path": __file__, "meta": {"_type": "gradio.FileData"}}, ""]},
        {"data": [{"path": "http://127.0.0.1:1/", "meta": {"_type": "gradio.FileData"}}, ""]},
        *({"data": ["one", ""], "fn_index": index} for index in (1, -1, "0", 10**4000)),
        {"data": ["one", ""], "event_data": {"path": __file__, "meta": {"_type": "gradio.FileData"}}},
        ["one", ""],
    ],
)
def test_a_question_is_two_texts(page_url, path, body):
    """Gradio copies the file, or gets the URL, that an object in place of a text names."""
    status, _, text = _request(f"{page_url}gradio_api/{path}", json.dumps(body).encode())
    assert status == 422 and text.strip()
    body = {"data": ["one", ""], "fn_index": 0, "session_hash": "x", "trigger_id": 4, "event_data": None}
    assert _request(f"{page_url}gradio_api/queue/join", json.dumps(body).encode())[0] == 200


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


class _NotFinite(_Upper):
    def find_unknown(self, lines):
        return ""

    def answer(self, lines):
        raise finite_layers.NotFiniteError(f"The output for line 1, {lines[0]!r}, is not finite.")


def test_an_answer_that_is_not_finite_ends_the_session(monkeypatch, capsys):
    monkeypatch.setattr(builtins, "input", lambda prompt: "one")
    with pytest.raises(finite_layers.NotFiniteError, match="'one', is not finite"):
        try_model.try_model(
            answerer_cls=_NotFinite,
            restore_checkpoint_cfg=checkpointing.RestoreCheckpointConfig(),
            serve=try_model.serve_terminal,
            prefix="",
        )


def test_an_answer_that_is_not_finite_is_on_the_page_and_fails_the_command(monkeypatch, caplog):
    pages, answers = [], []
    monkeypatch.setattr(try_model, "make_page", lambda ask, prefix, name: pages.append(ask))
    monkeypatch.setattr(try_model, "guard_page", lambda page, hosts: None)

    def run(server, sockets):
        answers.extend(pages[0](text, "p: ") for text in ("one", "two"))

    monkeypatch.setattr(web_server.Server, "run", run)
    ask = lambda text, prefix: try_model.reply({"one": _NotFinite, "two": _Upper}[text](), text, prefix)  # noqa: E731
    serve = try_model._web_server(argparse.Namespace(host="127.0.0.1", port=0, allowed_hosts=""), "mine")
    with pytest.raises(finite_layers.NotFiniteError, match="'p: one', is not finite"):
        serve(ask, "p: ")
    assert answers == ["error: The output for line 1, 'p: one', is not finite.", "P: TWO"]
    assert "is not finite" in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\n" * 101, "error: The text has 101 lines and 203 characters; at most 100 and 50,000 are answered here."),
        ("a" * 50_001, "error: The text has 1 lines and 50,002 characters; at most"),
        (f"<extra_id_{'1' * 5000}> ___", "error: The sentinel <extra_id_111111111…> has a number of 5,000 digits"),
    ],
)
def test_a_text_that_cannot_be_answered_is_an_error_on_the_page(monkeypatch, text, words):
    pages, answers = [], []
    monkeypatch.setattr(try_model, "make_page", lambda ask, prefix, name: pages.append(ask))
    monkeypatch.setattr(try_model, "guard_page", lambda page, hosts: None)
    monkeypatch.setattr(web_server.Server, "run", lambda server, sockets: answers.append(pages[0](text, "p")))
    listens = argparse.Namespace(host="127.0.0.1", port=0, allowed_hosts="")
    try_model._web_server(listens, "mine")(lambda text, prefix: try_model.reply(_Upper(), text, prefix), "p")
    assert answers[0].startswith(words)
