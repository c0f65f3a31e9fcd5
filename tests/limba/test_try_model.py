import builtins
import json
import socket
import urllib.request

import pytest

from limba import answers, checkpoints, try_model


class _Upper:
    """Answers in capitals and backwards; a blank is filled with "so"."""

    def __init__(self, restore_checkpoint_cfg=None):
        pass

    def answer(self, lines):
        for line in lines:
            filled = answers.fill_blanks(line, "<extra_id_0> so") if "<extra" in line else line.upper()
            yield answers.Answer(line, line.upper(), filled, -1.0, (line[::-1],) if line == "two" else ())


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


def test_in_the_terminal(monkeypatch, capsys):
    typed = iter(["one", "", "so ___", "caf\udce9"])

    def read(prompt):
        try:
            return next(typed).encode().decode()
        except StopIteration:
            raise KeyboardInterrupt from None  # as Ctrl-C

    monkeypatch.setattr(builtins, "input", read)
    try_model.try_model(
        answerer_cls=_Upper,
        restore_checkpoint_cfg=checkpoints.RestoreCheckpointConfig(),
        serve=try_model.serve_terminal,
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


def test_the_page_answers_on_this_machine_only():
    page = try_model.make_page(lambda text, prefix: try_model.reply(_Upper(), text, prefix), "p: ", "mine")
    _, url, _ = page.launch(server_name="127.0.0.1", share=False, quiet=True, prevent_thread_lock=True)
    try:
        assert url.startswith("http://127.0.0.1:")
        body = json.dumps({"data": ["one\nso ___", "p: "]}).encode()
        request = urllib.request.Request(f"{url}gradio_api/call/ask", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            event = json.load(reply)["event_id"]
        with urllib.request.urlopen(f"{url}gradio_api/call/ask/{event}", timeout=30) as reply:
            said = reply.read().decode()
        assert said == f"event: complete\ndata: {json.dumps(['P: ONE' + chr(10) + 'so so'])}\n\n"
        with urllib.request.urlopen(url, timeout=30) as reply:
            assert "Limba: mine" in reply.read().decode()
    finally:
        page.close()
