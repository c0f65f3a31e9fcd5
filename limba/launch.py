"""`limba launch`: the launchers that Limba comes with, run by the Python that runs this.

    limba launch                                        # all of them
    limba launch worker.sh my.gin --gin.TRAIN_STEPS=2000
    limba launch --print worker.sh                      # its text, to read or to copy
    limba launch --to jobset --help                     # a manifest for another scheduler

In a clone, `bash launch/worker.sh` installs exact versions into an environment of the clone. From an installed package
this command uses the environment that it is in, and logs are in `logs/` of the working directory.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from limba.addons import table
from limba.files import named_flags, repository

FOLDER = repository.REPOSITORY / "launch"
# They install a clone, or check one out elsewhere.
_OF_A_CLONE = ("lock.sh", "pod.sh", "setup.sh")
# Of launchers that do a whole job, in a clone in its folder runs/.
_JOBS = ("quickstart", "encoder", "moods", "diacritics", "speedrun")


def main(argv: Sequence[str]) -> int:
    """Prints, or becomes the launcher; returns the exit code."""
    if argv and argv[0].partition("=")[0] == "--to":
        for part in table.parts("launch"):
            return part.main(argv)
        print("error: limba launch --to needs an add-on that writes manifests, and none is here.", file=sys.stderr)
        return 1
    parser = named_flags.Parser(
        prog="limba launch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--print", action="store_true", help="print the launcher instead")
    parser.add_argument("name", nargs="?", metavar="NAME", help="of a launcher, such as worker.sh")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="those of the launcher: --help, too")
    flags = parser.parse_args(argv)
    if flags.name is None:
        _list()
        return 0
    names = [file.name for file in _launchers()]
    name = flags.name if flags.name in names else f"{flags.name}.sh"
    if name in _OF_A_CLONE and not repository.IN_CLONE and not flags.print:
        print(f"error: {name} works in a clone of Limba, and this is an installed package.", file=sys.stderr)
        return 1
    if name not in names:
        print(f"error: there is no launcher {flags.name!r}; there are {', '.join(names)}.", file=sys.stderr)
        return 1
    if flags.print:
        sys.stdout.write((FOLDER / name).read_text("utf-8"))
        return 0
    sys.stdout.flush()
    os.execvpe("bash", ["bash", str(FOLDER / name), *flags.arguments], environment())
    return 0


def environment() -> dict[str, str]:
    """The environment of a launcher: what is set; from an installed package also the Python that runs this."""
    if repository.IN_CLONE:
        return dict(os.environ)
    usual = {"LOCK": "none", "VENV": sys.prefix, "PYTHON": sys.executable, "LIMBA_LOGS": str(Path("logs").absolute())}
    return usual | {f"LIMBA_{job.upper()}_DIR": str(Path("runs", job).absolute()) for job in _JOBS} | os.environ


def _launchers() -> list[Path]:
    """Scripts that are run, and not sourced by others."""
    files = sorted([*FOLDER.glob("*.sh"), *FOLDER.glob("*.sbatch")])
    return [file for file in files if file.read_text("utf-8").startswith("#!")]


def _list() -> None:
    files = _launchers()
    width = max(len(file.name) for file in files)
    for file in files:
        what = file.read_text("utf-8").splitlines()[1].removeprefix("# ").partition(": ")[0]
        print(f"  {file.name:{width}}  {what}")
    print("\n`limba launch NAME --help` says more, and --print before NAME prints it.")
