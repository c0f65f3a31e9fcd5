"""Copies standard input to a log file and to standard output, with the time (UTC) before each line.

A progress bar's carriage returns also end a line. `launch/pod.sh logs` sorts lines by their time. Credentials in a
line are shown as `***`, whichever program wrote it: the log stays, and `pod.sh logs` shows it.
"""

import contextlib
import datetime
import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

# Alone: the package needs more than this machine's Python may have.
_above = Path(__file__).resolve().parents[1]
_limba = _above / "limba" if (_above / "limba").is_dir() else _above.parent  # in a package this is limba/share/launch
_spec = importlib.util.spec_from_file_location("redaction", _limba / "files/redaction.py")
assert _spec is not None and _spec.loader is not None
_redaction = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_redaction)

_ENDS = re.compile(rb"[\r\n]")


def main(log_file: str) -> None:
    """Copies until the end of the input. Signals, or a closed standard output, do not end it."""
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    rest = b""
    with Path(log_file).open("ab", buffering=0) as log:
        while chunk := os.read(sys.stdin.fileno(), 65536):
            *lines, rest = _ENDS.split(rest + chunk)
            _write(log, lines)
        _write(log, [rest])


def _write(log, lines: list[bytes]) -> None:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3].encode()
    stamped = b"".join(b"%sZ %s\n" % (now, _redacted(line.rstrip())) for line in lines if line.strip())
    log.write(stamped)
    with contextlib.suppress(OSError):  # The terminal may be closed.
        os.write(sys.stdout.fileno(), stamped)


def _redacted(line: bytes) -> bytes:
    return _redaction.redact(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit("usage: COMMAND 2>&1 | python launch/stamp_lines.py LOG_FILE")
    main(sys.argv[1])
