"""Prints what an environment has in other versions than a lock file: PYTHON launch/drift.py LOCK…, or --pins LOCK

One line, and exit code 1, if there is such a package, or one that is missing. Later locks count for packages that the
environment has and the first does not name: extras that were installed later. `--pins` prints the pins of all packages
that are there.
"""

import importlib.metadata
import re
import sys
from pathlib import Path

from packaging.markers import Marker

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)\s*(?:;\s*(.*))?$")


def pins(lock: str) -> dict[str, str]:
    """The versions of a lock file by name, as its markers have them for this Python and machine."""
    found = {}
    for match in filter(None, map(_PIN.match, Path(lock).read_text(encoding="utf-8").splitlines())):
        if match[3] is None or Marker(match[3]).evaluate():
            found[match[1]] = match[2]
    return found


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def main(lock: str, *extras: str) -> int:
    if lock == "--pins":  # of the packages that are there
        print("\n".join(f"{name}=={pin}" for name, pin in pins(extras[0]).items() if installed(name) is not None))
        return 0
    wanted = pins(lock)
    for other in extras:
        wanted |= {name: pin for name, pin in pins(other).items() if name not in wanted and installed(name) is not None}
    # A build for an accelerator has a local version: 2.13.0+cpu.
    drifted = [
        f"{name} {has or 'is missing'} ({pin})"
        for name, pin in wanted.items()
        if (has := installed(name)) is None or has.partition("+")[0] != pin.partition("+")[0]
    ]
    print(", ".join(drifted))
    return bool(drifted)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
