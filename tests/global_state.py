"""Where the code changes something that all threads of a process share: modules, environment, libraries, warnings.

A reader's thread imports `datasets` and a writer's another library while training runs: what one of them changes for a
moment, all see. `found` lists each place, and `tests/test_global_state.py` has the reason of each that may stay.
"""

import ast
from collections import Counter
from collections.abc import Iterator

from tests import house

# Functions that change what is shared.
_CALLS = {
    "os": ("chdir", "dup2", "putenv", "umask", "unsetenv"),
    "contextlib": ("chdir", "redirect_stderr", "redirect_stdout"),
    "faulthandler": ("disable", "enable"),
    "gc": ("disable", "enable", "freeze", "set_threshold"),
    "importlib": ("reload",),
    "locale": ("setlocale",),
    "multiprocessing": ("set_start_method",),
    "random": ("seed",),
    "signal": ("setitimer", "signal"),
    "socket": ("setdefaulttimeout",),
    "sys": ("set_int_max_str_digits", "setrecursionlimit", "setswitchinterval"),
    "warnings": ("catch_warnings", "filterwarnings", "resetwarnings", "simplefilter"),
}
_MAPPINGS = {"os.environ", "sys.modules"}
_LISTS = {"sys.path", "sys.meta_path", "sys.path_hooks"}
_CHANGES = {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}


def found() -> Counter[tuple[str, str]]:
    """File and what is changed there, with how often."""
    places: Counter[tuple[str, str]] = Counter()
    for package in ("limba", "tasks", "convert"):
        for file in sorted((house.ROOT / package).rglob("*.py")):
            for what in _changes(ast.parse(file.read_text(encoding="utf-8"))):
                places[file.relative_to(house.ROOT).as_posix(), what] += 1
    return places


def _changes(tree: ast.Module) -> Iterator[str]:
    modules = {name.asname or name.name.partition(".")[0]: name.name for name in _imported(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _of_call(node, modules)
        for target in _targets(node):
            inner = target.value if isinstance(target, ast.Subscript) else target
            name = _name(inner)
            is_entry = isinstance(target, ast.Subscript) and name in _MAPPINGS | _LISTS
            # `os.environ |= …` and `library.function = …`
            if is_entry or (isinstance(target, ast.Attribute) and name.partition(".")[0] in modules):
                yield name


def _imported(tree: ast.Module) -> Iterator[ast.alias]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from node.names
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (name for name in node.names if (name.asname or name.name).islower())


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [x for target in node.targets for x in (target.elts if isinstance(target, ast.Tuple) else [target])]
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        return [node.target]
    return node.targets if isinstance(node, ast.Delete) else []


def _of_call(node: ast.Call, modules: dict[str, str]) -> Iterator[str]:
    name = _name(node.func)
    owner, _, function = name.rpartition(".")
    if function in _CALLS.get(owner, ()):
        yield name
    elif owner in _MAPPINGS | _LISTS and function in _CHANGES:
        yield owner
    elif name.endswith("config.update"):
        yield name
    elif name == "setattr" and _name(node.args[0]).partition(".")[0] in modules:
        yield f"setattr({_name(node.args[0])})"


def _name(node: ast.AST) -> str:
    """`os.environ` of an expression; "" for one that is no name."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{_name(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""
