"""`limba serve`: answers, filled blanks and vectors of one model over HTTP, for a team.

    limba serve runs/mine               # or a folder of `limba convert to-ct2`: faster on a CPU
    curl localhost:8000/v1/completions -d '{"prompt": "The ___ of the house."}'

The endpoints are OpenAI's /v1/completions, /v1/embeddings and /v1/models, and /health, /metrics for Prometheus and a
page at /. Requests that come at about the same time are decoded together. It listens on this machine only, unless
--host says otherwise; it needs a token then, in LIMBA_SERVE_TOKEN. It needs `pip install 'limba[serve]'`.
"""

import argparse
import functools
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from limba import command_line
from limba.addons.serve import ct2_engine, page_example, run_engine, web_guard
from limba.addons.serve.base_engine import BaseEngine
from limba.addons.serve.request_fields import Limits
from limba.addons.serve.start_lines import part
from limba.checkpoint_files import run_folder
from limba.checkpoints import checkpointing, run_configuration
from limba.devices import native_logs
from limba.files import number_ranges, storage
from limba.files.number_ranges import AT_LEAST_1
from limba.gin_config import gin_files

_TOKEN = "LIMBA_SERVE_TOKEN"
_COUNTS = ("max_batch", "max_queue", "max_input_tokens", "max_new_tokens")


def serve(
    *,
    engine_cls: Callable[..., BaseEngine],
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    options: argparse.Namespace,
    name: str,
    has_blanks: bool,
    listening_at: socket.socket,
) -> None:
    """Loads a model and serves it until a signal ends it.

    Args:
      engine_cls: `limba.addons.serve.engine.Engine` with its model.
      options: the flags of the command.
      name: of the model, for clients.
      has_blanks: whether `___` is a blank.
      listening_at: a socket.
    """
    open_run = functools.partial(
        engine_cls,
        restore_checkpoint_cfg=restore_checkpoint_cfg,
        max_batch=options.max_batch,
        max_input_tokens=options.max_input_tokens,
        max_new_tokens=options.max_new_tokens,
        has_blanks=has_blanks,
    )
    with run_engine.opened(open_run, str(restore_checkpoint_cfg.path), options) as engine:
        serve_engine(engine, options, name, listening_at, page_example.find(str(restore_checkpoint_cfg.path)))


def serve_engine(
    engine: BaseEngine, options: argparse.Namespace, name: str, listening_at: socket.socket, example: str = ""
) -> None:
    """Serves a model until a signal ends it; see `serve`. The example is for the page."""
    from limba.addons.serve import app, listening

    engine.warm_up()
    limits = Limits(name, options.max_new_tokens, options.max_queue)
    of_batches = (options.max_batch, options.max_wait_ms, options.timeout_s)
    service = app.Service(engine, limits, *of_batches, options.token, example)
    application: Any = app.make_app(service)
    if not options.token:  # A browser has no token to send for a foreign site.
        application = web_guard.Guard(application, _hosts(options), posts=None)
    host = f"[{options.host}]" if ":" in options.host else options.host
    greeting = f"{name} answers at http://{host}:{listening_at.getsockname()[1]}/ ; Ctrl-C ends."
    listening.make_server(application, greeting, options.timeout_s).run(sockets=[listening_at])
    service.batcher.close()


def main(argv: Sequence[str]) -> int:
    """Parses flags and the run's gin, loads the model, and serves."""
    parser = command_line.argument_parser("serve", __doc__ or "", takes_files=False, takes_run=True)
    _add_flags(parser)
    flags = command_line.parse_flags(parser, argv)
    if not flags.run_dir:
        parser.error("give RUN, a run's directory or one checkpoint")
    _check(flags)
    name = flags.name or _name_of(flags.run_dir)
    if "://" not in flags.run_dir and ct2_engine.is_folder(Path(flags.run_dir)):
        return _serve_ct2(flags, name)
    checkpoint = run_configuration.newest_checkpoint(flags.run_dir)
    bindings: dict[str, Any] = {"CHECKPOINT_PATH": checkpoint}
    if flags.average:
        bindings["infer/checkpoints.RestoreCheckpointConfig.average"] = True
    configured = gin_files.configurable(serve, module="limba.addons.serve.command")
    with part(f"Reading the configuration of {checkpoint}"), native_logs.filtered():
        run_configuration.parse(flags, "gin/runs/serve.gin", bindings, needs_tasks=False)
    if not command_line.goes_on(flags):
        return 0
    with _listen(flags) as listening_at:
        has_blanks = run_folder.has_blanks(storage.as_path(checkpoint))
        configured(name=name, has_blanks=has_blanks, listening_at=listening_at, options=flags)
    return 0


def _name_of(run_dir: str) -> str:
    """The run's name: of `runs/mine`, and of `runs/mine/model` and its checkpoints, `mine`."""
    path = Path(run_dir).absolute()
    while path.parent.name and (path.name == "model" or path.name.startswith("checkpoint_")):
        path = path.parent
    return path.name


def _serve_ct2(flags: argparse.Namespace, name: str) -> int:
    """Serves a folder of `limba convert to-ct2`. Raises ValueError for flags that only a run has."""
    if flags.average or flags.gin_file or flags.gin_bindings:
        raise ValueError(f"{flags.run_dir} is a folder for CTranslate2: leave out --average, --gin_file and --gin.")
    if flags.engine == run_engine.JAX:
        raise ValueError(
            f"--engine jax: {flags.run_dir} is a folder for CTranslate2; serve the run that it was made of."
        )
    with part(f"Loading {flags.run_dir} into CTranslate2"):
        engine = ct2_engine.Ct2Engine(Path(flags.run_dir), flags.max_input_tokens)
    if not flags.dry_run:
        with _listen(flags) as listening_at:
            serve_engine(engine, flags, name, listening_at)
    return 0


def _add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="where it listens (this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="8000; 0 takes one that is free")
    parser.add_argument("--token", help=f"that requests must carry; better in {_TOKEN}, which nobody sees in `ps`")
    parser.add_argument(
        "--allowed_hosts", default="", metavar="A,B", help="names by which others ask for a server without a token"
    )
    parser.add_argument("--name", help="of the model, for clients (the name of the folder)")
    parser.add_argument("--average", action="store_true", help="the average of the parameters that the run kept")
    parser.add_argument(
        "--engine", choices=run_engine.ENGINES, default=run_engine.AUTO,
        help="what computes the answers (auto: CTranslate2 for a T5 on a CPU, if it is installed; else JAX)",
    )  # fmt: skip
    group = parser.add_argument_group("limits")
    for flag, default, text in (
        ("max_batch", 16, "texts that are worked on together"),
        ("max_queue", 256, "texts that wait; more are refused with 503"),
        ("max_input_tokens", 512, "of a text; longer ones are refused with 413"),
        ("max_new_tokens", 128, "of an answer, and where a request does not say"),
    ):
        group.add_argument(f"--{flag}", type=int, default=default, metavar="N", help=f"{text} ({default})")
    group.add_argument("--max_wait_ms", type=float, default=5, metavar="MS", help="that a text waits for others (5)")
    group.add_argument("--timeout_s", type=float, default=60, metavar="S", help="seconds until 504 (60)")


def _check(flags: argparse.Namespace) -> None:
    """Takes the token from the environment. Raises ValueError for values that cannot be."""
    for name in _COUNTS:
        number_ranges.check(f"--{name}", getattr(flags, name), AT_LEAST_1)
    if flags.max_queue < flags.max_batch:
        raise ValueError(f"--max_queue is {flags.max_queue}, less than --max_batch {flags.max_batch}; give more.")
    if not 0 <= flags.max_wait_ms <= 60_000:
        raise ValueError(f"--max_wait_ms is {flags.max_wait_ms:g}; it lies between 0 and 60,000.")
    if not 0 < flags.timeout_s <= 86_400:
        raise ValueError(f"--timeout_s is {flags.timeout_s:g}; it is above 0, and at most 86,400 (a day).")
    where = "--token" if flags.token is not None else _TOKEN
    flags.token = os.environ.get(_TOKEN, "") if flags.token is None else flags.token
    is_sendable = flags.token.isascii() and flags.token.isprintable() and flags.token.strip() == flags.token != ""
    if where in ("--token", *os.environ) and not is_sendable:
        raise ValueError(
            f"{where} is empty, or has characters other than letters, digits and signs of ASCII, or a blank at an end, "
            "which no request can send."
        )
    if not flags.token and not web_guard.is_loopback(flags.host):
        raise ValueError(
            f"--host {flags.host} without a token: whoever reaches this machine could use the model. Set {_TOKEN}."
        )


def _hosts(flags: argparse.Namespace) -> list[str]:
    """Names under which a server without a token may be asked, besides those of this machine."""
    return [flags.host, *filter(None, map(str.strip, flags.allowed_hosts.split(",")))]


def _listen(flags: argparse.Namespace) -> socket.socket:
    """The server's socket; its port is taken before the model is loaded, which may take minutes."""
    try:
        from limba.addons.serve import app, listening  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"The server needs {error.name}: pip install 'limba[serve]'.", name=error.name
        ) from error
    return listening.bind(flags.host, flags.port)
