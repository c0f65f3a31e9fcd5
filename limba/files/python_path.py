"""The working directory of a command, kept off Python's path: its modules are found only where they are meant.

Python, and everything that it loads, imports by name, also libraries that are not installed (`try: import libtpu`). A
folder that somebody downloaded may have a file of any name. So a command takes its working directory out of `sys.path`,
and a finder behind all others finds a module there only if Limba asked for its name (`ask`: a gin file's import,
`--module`), or if code of that folder imports it. Installed modules come first, as behind `sys.path`.

This is the first module that a command imports: before the path is right it imports only what Python itself has loaded,
which pathlib is not.
"""

# ruff: noqa: PTH100, PTH109, PTH114, PTH117, PTH118, PTH119, PTH120, PTH206
import os
import sys

# The folder `limba`, and the one with gin/ and launch/: in a clone, which links `limba/tasks` to `tasks`, the clone.
PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
IN_CLONE = os.path.islink(os.path.join(PACKAGE, "tasks"))
REPOSITORY = os.path.dirname(PACKAGE) if IN_CLONE else os.path.join(PACKAGE, "share")


def _take_out(folder: str) -> None:
    """Takes a folder out of Python's path; behind everything if PYTHONPATH has it, by its whole path.

    A clone of Limba stays where it is: it is Limba.
    """
    if folder == REPOSITORY:
        return
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(entry)]
    others = [entry for entry in sys.path if os.path.realpath(entry or ".") != folder]
    sys.path[:] = [*others, *(entry for entry in given if os.path.realpath(entry) == folder)]


_is_command = False
# `limba`, or `python -m PACKAGE` while Python looks for the module's own code.
_SCRIPT = [*sys.argv, ""][0]
if os.path.basename(_SCRIPT) in ("-m", "limba"):
    _take_out(os.path.realpath(os.getcwd()))
    if _SCRIPT != "-m":  # Python puts the script's folder first: of commands, no modules.
        _take_out(os.path.dirname(os.path.realpath(_SCRIPT)))
    _is_command = True
# Of a command: an environment of Python's may lie in the working directory, and its script is no code of that folder.
_COMMAND = (os.path.abspath(_SCRIPT), os.path.realpath(_SCRIPT)) if _is_command else ()

# Modules that Python has not loaded yet, so behind that.
import importlib.machinery  # noqa: E402
import sysconfig  # noqa: E402
import types  # noqa: E402
from collections.abc import Iterable, Mapping, Sequence  # noqa: E402

_OURS = tuple(
    folder + os.sep for folder in (PACKAGE, *(os.path.realpath(os.path.join(PACKAGE, x)) for x in ("tasks", "convert")))
)
# In a clone, beside the modules of whoever works there.
_PROGRAMS = tuple(os.path.join(REPOSITORY, name) + os.sep for name in ("benchmarks", "launch", "tests"))
_OF_PYTHON = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_OF_PACKAGES = {"site-packages", "dist-packages"}
# Python does not put the working directory first on the path of a process that has this variable.
_SAFE_PATH = "PYTHONSAFEPATH"


class _Finder:
    """Finds top-level modules of one folder, of the names that were asked for or are imported by its own code."""

    def __init__(self, folder: str):
        self.folder = folder
        self.asked: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if path is not None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, [self.folder], target)
        if spec is None or not (fullname in self.asked or self._is_importing()):
            return None
        self.asked.add(fullname)
        return spec

    def _is_importing(self) -> bool:
        """Whether code of the folder runs: what it imports, also through a library, may be its neighbour."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if is_code_of(frame.f_code.co_filename, self.folder):
                return True
            frame = frame.f_back
        return False


_finder: _Finder | None = None
_set_safe_path = False


def install() -> None:
    """Takes the working directory out of `sys.path`, here and in Python processes that this one starts.

    Does nothing the second time in the same directory.
    """
    global _finder, _set_safe_path
    folder = os.path.realpath(os.getcwd())
    _take_out(folder)
    if not os.environ.get(_SAFE_PATH):
        os.environ[_SAFE_PATH] = "1"
        _set_safe_path = True
    if _finder is None or _finder.folder != folder:
        _remove()
        _finder = _Finder(folder)
        sys.meta_path.append(_finder)  # type: ignore[arg-type]


def _remove() -> None:
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)  # type: ignore[arg-type]


def ask(name: str) -> None:
    """From now on `import name`, or of what is below it, finds the module of the working directory."""
    if _finder is not None:
        _finder.asked.add(name.partition(".")[0])


def asked() -> tuple[str, ...]:
    """The names that were asked for and found, for `continue_with` in another process."""
    return tuple(sorted(_finder.asked)) if _finder is not None else ()


def continue_with(names: Iterable[str]) -> None:
    """In a process that a command started: finds the same modules of the working directory as the command."""
    if names:
        install()
    for name in names:
        ask(name)


def environment_of_users() -> dict[str, str]:
    """The environment for a program of the user's own, which finds its modules as Python finds them."""
    return {name: value for name, value in os.environ.items() if name != _SAFE_PATH or not _set_safe_path}


# --------------------------------------------------- where modules are ----------------------------------------------


def folders() -> list[str]:
    """The folders of Python's path, and the working directory of a command behind them."""
    found = [os.path.realpath(entry or ".") for entry in sys.path]
    return list(dict.fromkeys([*found, *([_finder.folder] if _finder is not None else [])]))


def is_installed(file: str) -> bool:
    """Whether a file or folder is of Python's library or of an installed package."""
    paths = [f"{path}{os.sep}" for path in (os.path.abspath(file), os.path.realpath(file))]
    return any(x.startswith(_OF_PYTHON) or not _OF_PACKAGES.isdisjoint(x.split(os.sep)) for x in paths)


def is_of_limba(file: str) -> bool:
    """Whether a file or folder is of Limba's own packages, or of the programs and tests of its clone."""
    return f"{os.path.realpath(file)}{os.sep}".startswith((*_OURS, *_PROGRAMS))


def is_code_of(file: str, folder: str) -> bool:
    """Whether a file of code lies below the folder, and is of no installed package, not Limba's and not its command.

    Code that was no file has a name such as `<string>`.
    """
    if not os.path.isabs(file):
        return False
    paths = (os.path.abspath(file), os.path.realpath(file))  # A link in the folder is of the folder.
    is_inside = any(path.startswith(folder.rstrip(os.sep) + os.sep) for path in paths)
    return is_inside and paths[0] not in _COMMAND and not is_installed(file) and not paths[1].startswith(_OURS)


def is_found_by_name(file: str) -> bool:
    """Whether a module's file lies in the working directory of a command, and Python's path does not lead to it."""
    folder = None if _finder is None else _finder.folder
    in_path = (os.path.realpath(entry or ".") for entry in sys.path)
    return folder is not None and is_code_of(file, folder) and not any(is_code_of(file, entry) for entry in in_path)


def find(name: str) -> importlib.machinery.ModuleSpec | None:
    """Where a top-level module is or would be imported from, the working directory last; None if nowhere.

    Imports nothing.
    """
    with_spec = sys.modules.get(name)
    if with_spec is not None and getattr(with_spec, "__spec__", None) is not None:
        return with_spec.__spec__
    for finder in sys.meta_path:
        spec = finder.find_spec(name, None) if hasattr(finder, "find_spec") else None
        if spec is not None:
            return spec
    return importlib.machinery.PathFinder.find_spec(name, [_finder.folder]) if _finder is not None else None


def hidden(name: str) -> tuple[str, str] | None:
    """A module of the user's that another one hides, and that one: their files. None if nothing is hidden.

    The user's is the one in the working directory, of the first part of the name.
    """
    top = name.partition(".")[0]
    own = importlib.machinery.PathFinder.find_spec(top, [_finder.folder if _finder else os.getcwd()])
    if own is None or own.origin is None or is_installed(own.origin) or own.origin.startswith(_OURS):
        return None
    taken = find(top)
    if taken is None or taken.origin is None or os.path.realpath(own.origin) == os.path.realpath(taken.origin):
        return None
    return own.origin, taken.origin


def remedy_of_hidden(name: str) -> str:
    """A sentence for a module of the user's that another hides; "" where none is hidden."""
    found = hidden(name)
    top = name.partition(".")[0]
    if found is None:
        return ""
    what = "of Python's library" if found[1] in ("built-in", "frozen") or found[1].startswith(_OF_PYTHON) else found[1]
    return f"{found[0]} is hidden by the installed module {top!r} ({what}): rename it, to my_{top} for example."


def spec_below(name: str) -> importlib.machinery.ModuleSpec | None:
    """`find` of a whole name, through folders without `__init__.py`, which are no code; of a package, the package."""
    first, *rest = name.split(".")
    spec = find(first)
    while spec is not None and spec.origin is None and spec.submodule_search_locations is not None and rest:
        # By the last part of the name: of a whole one, Python wants the folder above to be imported.
        spec = importlib.machinery.PathFinder.find_spec(rest.pop(0), list(spec.submodule_search_locations))
    return spec


def with_path(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process of Limba's own, with this process' path and these variables."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, _SAFE_PATH: "1", **variables}


if _is_command:
    install()
