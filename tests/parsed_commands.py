"""Parses command lines with the commands' own parsers and goes no further.

Its argument is a file with a JSON list of lists of words: `["limba", COMMAND, …]` or `["python", "-m", MODULE, …]`. It
prints a JSON list with what is wrong with each; "" is nothing.
"""

import argparse
import contextlib
import importlib
import io
import json
import runpy
import sys
from pathlib import Path

from limba import cli
from limba.addons.run import command as run
from limba.addons.run.keys import script_keys
from limba.gin_config import macros


class _Parsed(Exception):
    """The words are those of the command."""


def _stop_after(method):
    def parse(parser, *arguments, **options):
        found = method(parser, *arguments, **options)
        if parser.prog == "limba convert" and not arguments[0][0].startswith("-"):
            return found  # the command; its own parser comes next
        raise _Parsed

    return parse


def _run(words):
    if words[0] == "python":
        sys.argv[:] = words[2:]
        source = Path(importlib.util.find_spec(words[2]).origin).read_text("utf-8")
        if "argparse" not in source and "argument_parser" not in source:  # It would run.
            return "" if len(words) == 3 else f"{words[2]} takes no words"
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    elif words[1] == "run":
        _, keys = run._flags().parse_known_args([word for word in words[2:] if not word.startswith("--gin.")])
        for key in keys:
            if key.startswith("--") and key != "--help":
                script_keys.check_key(key[2:].partition("=")[0])
        return ""
    else:
        sys.argv[:] = words
        name = cli._find_command()
        cli._load(name).main(words[1 + len(name.split()) :])
    return f"{words[:3]} did not parse its words"


def problem(words):
    """What is wrong with a command line; "" is nothing."""
    said = io.StringIO()
    for word in words:
        name = word.removeprefix("--gin.").partition("=")[0]
        if word.startswith("--gin.") and name.isupper() and name not in macros.names_of_limba():
            return f"no gin file has {name}"
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return _run(words)
    except _Parsed:
        return ""
    except SystemExit as error:
        return "" if error.code in (0, None) else f"{error.code}: {said.getvalue().strip()[-300:]}"
    except ValueError as error:
        return str(error)


def main(argv):
    """In a process of its own: all parsers stop after their words."""
    for name in ("parse_args", "parse_intermixed_args"):
        setattr(argparse.ArgumentParser, name, _stop_after(getattr(argparse.ArgumentParser, name)))
    print(json.dumps([problem(words) for words in json.loads(Path(argv[0]).read_text("utf-8"))]), file=sys.__stdout__)
