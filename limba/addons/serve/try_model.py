"""`limba try`: a prompt in the terminal, or a small page in the browser, for trying a model.

    limba try runs/mine
    limba try runs/mine --web

Type a text: `___` is a blank (so is T5's <extra_id_0>) and gets filled; a text without blanks is answered. The page
listens on this machine only, unless --host says otherwise, and answers browsers only if they ask for a host of
--allowed_hosts, for --host, or for this machine. It needs `pip install 'limba[web]'`.
"""

import argparse
import contextlib
import functools
import logging
import os
import socket
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba import command_line
from limba.addons.serve import web_guard
from limba.checkpoint_files import run_folder
from limba.checkpoints import checkpointing, run_configuration
from limba.checkpoints.parameters import checkpoint_step
from limba.devices import native_logs
from limba.files import storage, untrusted_files
from limba.gin_config import gin_files
from limba.inference import answering, blanks, decoding_flags
from limba.inference.answering import Answerer
from limba.inference.decoding_flags import AS_BOUND, Decoding
from limba.network.finite_numbers.layers import NotFiniteError

logger = logging.getLogger(__name__)

# Of a question on the page, and questions that wait there: others wait as long as these take.
_MOST_LINES, _MOST_CHARACTERS, _MOST_WAITING = 100, 50_000, 16


def try_model(
    *,
    answerer_cls: Callable[..., Answerer],
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    serve: Callable[[Callable[[str, str], str], str], None],
    prefix: str,
    decoding: Decoding = AS_BOUND,
    mark: Callable[[str], str] = str,
    has_blanks: bool = True,
) -> None:
    """Loads a model and serves its answers.

    Args:
      answerer_cls: `limba.inference.answering.Answerer` with its arguments but the checkpoint.
      serve: gets `(text, prefix) -> answer` and the prefix, and returns when the user ends it.
      prefix: put before each text.
      decoding: the values that replace the run's.
      mark: what becomes of the words in a blank.
      has_blanks: whether `___` is a blank, which it is not for a task without them.
    """
    answerer = answerer_cls(restore_checkpoint_cfg=restore_checkpoint_cfg, **decoding.arguments())
    serve(lambda text, before: reply(answerer, text, before, mark, has_blanks), prefix)


def reply(
    answerer: Answerer, text: str, prefix: str = "", mark: Callable[[str], str] = str, has_blanks: bool = True
) -> str:
    """The answers to the lines of a text, a line each; further decodes of a line below it, after a dash.

    Args:
      mark: what becomes of the words in a blank.
      has_blanks: whether `___` is a blank.
    """
    lines = [prefix + (blanks.typed(line) if has_blanks else line) for line in text.splitlines() if line.strip()]
    answers = list(answerer.answer(lines)) if lines else []
    shown = [
        blanks.shown("\n  - ".join(map(answering.visible, [_filled(x, mark).removeprefix(prefix), *x.others])))
        for x in answers
    ]
    if any(blanks.hint(x.input, x.prediction) for x in answers):
        shown.append(f"({blanks.HINT})")
    if lines and (unknown := answerer.find_unknown(lines)):
        shown.append(f"({unknown})")
    return "\n".join(shown)


def _filled(answer: answering.Answer, mark: Callable[[str], str]) -> str:
    is_marked = mark is not str and blanks.has_blanks(answer.input)
    return blanks.fill_blanks(answer.input, answer.prediction, mark) if is_marked else answer.filled


def _bold(words: str) -> str:
    return f"\033[1m{words}\033[0m"


# ---------------------------------------------------- the two ways --------------------------------------------------


def serve_terminal(ask: Callable[[str, str], str], prefix: str, name: str = "") -> None:
    """Answers the lines that somebody types, until the end of the input or Ctrl-C; `name` stands before each."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  Arrow keys and a history, where Python has it.
    print("Type a text; ___ is a blank. Ctrl-D ends.")
    while True:
        try:
            text = input(f"{name}> ")
            if text.strip():
                print(ask(text, prefix))
        except (EOFError, KeyboardInterrupt):
            print()
            return
        except NotFiniteError:
            raise
        except ValueError as error:  # A line that cannot be read does not end the session.
            print(f"error: {error}")


def make_page(ask: Callable[[str, str], str], prefix: str, name: str) -> Any:
    """The page as Gradio's Blocks, whose one endpoint is `/ask`. Raises ModuleNotFoundError without Gradio."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # Nothing leaves this machine.
    try:
        import gradio
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("The page needs Gradio: pip install 'limba[web]'.", name="gradio") from error
    with gradio.Blocks(title=f"Limba: {name}") as page:
        gradio.Markdown(
            f"## {name}\n`___` is a blank and gets filled; a text without blanks is answered, line by line."
        )
        before = gradio.Textbox(prefix, label="Each line begins with (a task's prefix)", elem_id="prefix")
        text = gradio.Textbox(label="Text", lines=4, elem_id="text")
        button = gradio.Button("Ask", variant="primary", elem_id="ask")
        answer = gradio.Textbox(label="Answer", lines=4, elem_id="answer")
        button.click(ask, [text, before], answer, api_name="ask")
    return page.queue(max_size=_MOST_WAITING)


def main(argv: Sequence[str]) -> int:
    """Parses flags and the run's gin, loads the model, and answers."""
    parser = command_line.argument_parser("try", __doc__ or "", takes_files=False, takes_run=True)
    parser.add_argument(
        "--prefix", default="", help="what each line begins with for the model, such as a task's prefix"
    )
    parser.add_argument("--web", action="store_true", help="a page in the browser, in place of the terminal")
    parser.add_argument("--host", default="127.0.0.1", help="where the page listens (this machine only)")
    parser.add_argument(
        "--allowed_hosts", default="", metavar="A,B", help="names by which browsers may ask for the page"
    )
    parser.add_argument("--port", type=int, default=7860, help="of the page (7860)")
    parser.add_argument("--average", action="store_true", help="the average of the parameters that the run kept")
    decoding_flags.add_flags(parser)
    flags = command_line.parse_flags(parser, argv)
    if not flags.run_dir:
        parser.error("give RUN, a run's directory or one checkpoint")
    name = Path(flags.run_dir).absolute().name
    if flags.web:
        _check_address(flags.host, flags.port)
        make_page(lambda text, before: text, "", name)  # Fails before the model is loaded, if it fails.
    decoding = decoding_flags.from_flags(flags)
    checkpoint = run_configuration.newest_checkpoint(flags.run_dir)
    bindings = {"CHECKPOINT_PATH": checkpoint, "answers.Answerer.batch_size": 1}
    if flags.average:
        bindings["infer/checkpoints.RestoreCheckpointConfig.average"] = True
    configured = gin_files.configurable(try_model, module="limba.addons.serve.try_model")
    with native_logs.filtered():
        run_configuration.parse(flags, "gin/runs/try.gin", bindings, needs_tasks=False)
    asked = f"{name}, step {checkpoint_step(checkpoint)}"
    serve = _web_server(flags, asked) if flags.web else functools.partial(serve_terminal, name=asked)
    mark = _bold if sys.stdout.isatty() and not flags.web else str
    texts = {"prefix": flags.prefix, "has_blanks": run_folder.has_blanks(storage.as_path(checkpoint))}
    if command_line.goes_on(flags):
        configured(serve=serve, decoding=decoding, mark=mark, **texts)
    return 0


def _check_address(host: str, port: int) -> None:
    """Raises ValueError if a page cannot listen there."""
    if not 1 <= port <= 65535:
        raise ValueError(f"--port is {port}; it lies between 1 and 65535.")
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ValueError(
            f"No page can listen at --host {host} --port {port} ({error.strerror or error}); give others."
        ) from error


def guard_page(page: Any, hosts: Sequence[str] = ()) -> web_guard.Guard:
    """A page as an ASGI application that answers only what the page itself asks.

    Args:
      page: Gradio's Blocks.
      hosts: names under which the page may be asked for, besides those of the loopback.
    """
    import fastapi
    import gradio

    app = gradio.mount_gradio_app(fastapi.FastAPI(openapi_url=None), page, "/", show_error=False, ssr_mode=False)
    # What the page's script asks, and the endpoint for scripts. Others of Gradio's read files and other sites.
    posts = [f"/gradio_api/{name}" for name in ("queue/join", "call/ask", "cancel", "reset")]
    names = ("info", "queue/data", "heartbeat/", "call/ask/", "startup-events", "app_id", "login_check", "theme.css")
    files = ("", "config", "theme.css", "manifest.json", "favicon.ico", "robots.txt", "assets/", "static/", "svelte/")
    gets = [*(f"/gradio_api/{name}" for name in names), *(f"/{name}" for name in files)]
    checked = web_guard.CheckedBodies(app, lambda body: _find_problem(body, page.fns))
    return web_guard.Guard(checked, hosts, posts, gets)


def _find_problem(body: Mapping[str, Any], functions: Collection[int]) -> str:
    """What is wrong in a request to Gradio: of an object in place of a text it copies the file, or gets the URL."""
    for name, value in body.items():
        if name == "data":
            if not isinstance(value, list) or len(value) != 2 or not all(isinstance(text, str) for text in value):
                return "data is no list of two texts: the text, and what each line begins with."
        elif not isinstance(value, str | int | None):
            return f"{untrusted_files.shown(name)} is neither a text nor a number."
    if (function := body.get("fn_index")) is not None and function not in functions:
        return "fn_index is none of the page's functions."
    return ""


def _web_server(flags: argparse.Namespace, name: str) -> Callable[[Callable[[str, str], str], str], None]:
    def serve(ask: Callable[[str, str], str], prefix: str) -> None:
        from limba.addons.serve import web_server

        failures: list[NotFiniteError] = []

        def answer(text: str, before: str) -> str:
            num_lines, num_characters = len(text.splitlines()), len(text) + len(before)
            if num_lines > _MOST_LINES or num_characters > _MOST_CHARACTERS:
                return (
                    f"error: The text has {num_lines:,} lines and {num_characters:,} characters; at most {_MOST_LINES} "
                    f"and {_MOST_CHARACTERS:,} are answered here. `limba infer` answers files."
                )
            try:
                return ask(text, before)
            except NotFiniteError as error:  # The page goes on, for texts of which it is not so.
                logger.error("%s", error)
                failures.append(error)
                return f"error: {error}"
            except ValueError as error:  # As in the terminal.
                return f"error: {error}"

        hosts = _allowed_hosts(flags.host, flags.allowed_hosts)
        app = guard_page(make_page(answer, prefix, name), hosts)
        shown = f"[{flags.host}]" if ":" in flags.host else flags.host
        greeting = f"{name} answers at http://{shown}:{flags.port}/ ; Ctrl-C ends."
        if not hosts:
            greeting += "\nBrowsers of other machines are refused: give the name by which they ask as --allowed_hosts."
        with socket.create_server((flags.host, flags.port)) as listening_at:
            # Gradio's page keeps an answer open as long as it is shown.
            times = web_server.Times(answer_s=None, ending_s=5)
            web_server.Server(app, times, greeting).run(sockets=[listening_at])
        if failures:
            raise failures[0]

    return serve


def _allowed_hosts(host: str, others: str) -> list[str]:
    """The name at which the page listens, unless that is every address of the machine, and those of --allowed_hosts."""
    listens = [] if host in ("", "0.0.0.0", "::") else [host]
    return listens + [name for name in (name.strip() for name in others.split(",")) if name]


if __name__ == "__main__":
    from limba.addons.serve import try_model as _this

    command_line.run_command(_this.main)
