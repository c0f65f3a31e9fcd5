"""Flags of a command line: one that does not exist is answered with the nearest, before anything that is missing."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """`argparse`'s, which says only that a flag is missing where it was written with a dash for an underscore."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        for word in self._given:
            flag = word.partition("=")[0]
            if flag.startswith("--") and (near := self.nearest(flag)):
                found = f"error: {self.prog} has no flag {flag}. Did you mean {near}?"
                self.exit(2, f"{found} `{self.prog} --help` lists the flags.\n")
        super().error(message)

    def nearest(self, flag: str) -> str:
        """The flag that is perhaps meant by one that does not exist; "" if it exists or none is near."""
        flags = list(self._option_string_actions)
        if any(known.startswith(flag) for known in flags):  # as far as argparse completes it
            return ""
        return next(iter(difflib.get_close_matches(flag, flags, n=1, cutoff=0.75)), "")
