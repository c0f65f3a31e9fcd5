"""Breaks the engine line by line and reports which broken lines the tests catch. `python -m tests.mutations --help`.

A mutant is one small change in one function: a comparison flipped, a number moved by one, an operator or a condition
turned around, a result or a call dropped. `tests/mutants.json` keeps the chosen ones. Each names its place by file,
function, kind, text and ordinal, not by line: the same mutants fit an older or a newer tree. The tool works on copies.
"""

import argparse
import ast
import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("limba", "convert", "tasks")
CHOSEN = Path(__file__).with_name("mutants.json")

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
      file: relative to the repository.
      function: qualified name in the file.
      kind: of change, a key of `_MUTATORS`.
      ordinal: counts the nodes of this kind in the function, in the order of the text.
      before: the text that is replaced.
      after: what replaces it.
    """

    file: str
    function: str
    kind: str
    ordinal: int
    before: str
    after: str

    @property
    def place(self) -> tuple[str, str, str, int]:
        return self.file, self.function, self.kind, self.ordinal


# ------------------------------------------------- what can be broken -------------------------------------------------


def _comparison(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Compare):
        return None
    return ast.Compare(node.left, [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]], node.comparators)


def _constant(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, bool | int | float):
        return None
    return ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)


def _operator(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right)
    return None


def _condition(node: ast.AST) -> ast.AST | None:
    """Of `if`; a `while` turned around would seldom do more than wait for the time limit."""
    if isinstance(node, ast.If | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.BoolOp):
        return ast.UnaryOp(ast.Not(), node.test)
    return None


def _result(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        return ast.Return(ast.Constant(None))
    return None


def _call(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.Pass()
    return None


_MUTATORS = {
    "comparison": _comparison,
    "constant": _constant,
    "operator": _operator,
    "condition": _condition,
    "result": _result,
    "call": _call,
}


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        else:
            yield from _functions(node, prefix)


def _nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Of the body, without inner functions, annotations, messages of errors, and f-strings, which have no places."""
    for node in ast.iter_child_nodes(function):
        is_apart = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.arguments)
        if is_apart or isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.match_case):
            continue
        yield node
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield node.value
                yield from _nodes(node.value)
            continue
        yield from _nodes(node)


def _replaced(node: ast.AST, kind: str) -> ast.AST:
    """What the text of a change stands for: of an `if`, its condition."""
    return node.test if kind == "condition" and isinstance(node, ast.If | ast.IfExp) else node


def mutants_of(source: str, file: str) -> list[tuple[Mutant, ast.expr | ast.stmt]]:
    """All mutants of a file with the nodes that they replace."""
    found = []
    for name, function in _functions(ast.parse(source)):
        body = ast.Module(function.body, [])
        for kind, mutate in _MUTATORS.items():
            changed = [(node, new) for node in _nodes(body) if (new := mutate(node)) is not None]
            places = [(_replaced(node, kind), new) for node, new in changed]
            places.sort(key=lambda pair: (pair[0].lineno, pair[0].col_offset, -pair[0].end_col_offset))  # type: ignore[attr-defined]
            for ordinal, (node, new) in enumerate(places):
                before, after = (ast.unparse(ast.fix_missing_locations(x)) for x in (node, new))
                found.append((Mutant(file, name, kind, ordinal, before, after), node))
    return found


def apply(mutant: Mutant, root: Path) -> bool:
    """Writes a mutant into a tree; False where its place is not, or holds another text."""
    path, wanted = root / mutant.file, dataclasses.replace(mutant, ordinal=0)
    if not path.is_file():
        return False
    source = path.read_text(encoding="utf-8")
    # Other changes to the function may have moved the place: the nearest one with the same text.
    same = [(x, node) for x, node in mutants_of(source, mutant.file) if dataclasses.replace(x, ordinal=0) == wanted]
    if not same:
        return False
    _, node = min(same, key=lambda pair: abs(pair[0].ordinal - mutant.ordinal))
    path.write_text(_spliced(source, node, mutant.after), encoding="utf-8")
    return True


def _spliced(source: str, node: ast.expr | ast.stmt, text: str) -> str:
    """The source with the text of a node replaced; offsets of nodes count bytes."""
    lines = source.encode().splitlines(keepends=True)
    end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
    new = text if isinstance(node, ast.stmt) else f"({text})"
    lines[node.lineno - 1 : end_line] = [
        lines[node.lineno - 1][: node.col_offset] + new.encode() + lines[end_line - 1][end:]
    ]
    return b"".join(lines).decode()


# ------------------------------------------ which functions which tests run -------------------------------------------

_RECORDER = """
import os

seen = set()


def hit(function):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    if test and (test, function) not in seen:
        seen.add((test, function))
        with open({log!r}, "a") as file:
            file.write(test + chr(9) + function + chr(10))
"""


def instrument(root: Path, log: Path) -> None:
    """Makes every function of a tree write into `log` which test file runs it first in a process."""
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines(keepends=True)
        for name, function in sorted(_functions(ast.parse(source)), key=lambda pair: -pair[1].lineno):
            first = function.body[0]
            is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            if is_docstring and len(function.body) == 1:
                continue
            first = function.body[1] if is_docstring else first
            number = min([first.lineno, *(x.lineno for x in getattr(first, "decorator_list", []))])
            if number == function.lineno:
                continue
            hit = f'__import__("limba_recorder").hit("{path.relative_to(root)}::{name}")\n'
            lines.insert(number - 1, " " * first.col_offset + hit)
        path.write_text("".join(lines), encoding="utf-8")
    (root / "limba_recorder.py").write_text(_RECORDER.format(log=str(log)), encoding="utf-8")


def trace(arguments: list[str]) -> dict[str, list[str]]:
    """The test files that run each function (`file::function`), from a run of pytest in an instrumented copy."""
    with _copy() as copy:
        log = copy.parent / "hits.tsv"
        log.touch()
        instrument(copy, log)
        _pytest(copy, arguments, limit=6 * 3600)
        return read_trace(log)


def read_trace(log: Path) -> dict[str, list[str]]:
    tests: dict[str, set[str]] = {}
    for text in log.read_text(encoding="utf-8").splitlines():
        test, _, function = text.partition("\t")
        tests.setdefault(function, set()).add(test)
    return {function: sorted(tests[function]) for function in sorted(tests)}


# --------------------------------------------- which mutants, which tests ---------------------------------------------


def choose(number: int, seed: int, ran: dict[str, list[str]], root: Path = ROOT) -> list[Mutant]:
    """Mutants in functions that tests run: four of five in `limba/`, kinds in turn, at most one in a function."""
    rng = random.Random(seed)
    by_kind: dict[tuple[str, str], list[Mutant]] = {}
    for path in sorted(path for package in ("convert", "limba") for path in (root / package).rglob("*.py")):
        file = str(path.relative_to(root))
        for mutant, _ in mutants_of(path.read_text(encoding="utf-8"), file):
            if f"{file}::{mutant.function}" in ran:
                by_kind.setdefault((file.partition("/")[0], mutant.kind), []).append(mutant)
    chosen: list[Mutant] = []
    for turn in range(number):
        package = "convert" if turn % 5 == 4 else "limba"
        candidates = by_kind[package, list(_MUTATORS)[turn % len(_MUTATORS)]]
        taken = {(mutant.file, mutant.function) for mutant in chosen}
        chosen.append(rng.choice([m for m in candidates if (m.file, m.function) not in taken]))
    return chosen


def room_of(mutant: Mutant, root: Path) -> list[str]:
    """The tests of a file's room, those that mirror the file first; of a package's own files where there is no room."""
    path = Path(mutant.file)
    folder = Path("tests") / str(path.parent).removeprefix("limba/" if path.parts[1] == "addons" else "")
    own = folder / f"test_{path.stem}.py"
    tests = [str(own)] if (root / own).is_file() else []
    if len(path.parts) > 2 and (root / folder).is_dir():
        tests += sorted(str(x.relative_to(root)) for x in (root / folder).rglob("test_*.py") if x != root / own)
    if not tests:
        tests = sorted(str(x.relative_to(root)) for x in (root / "tests" / path.parts[0]).glob("test_*.py"))
    return tests


def whole_lines(tests: list[str]) -> list[str]:
    """The tests of whole runs among some: they lie in no room."""
    return [test for test in tests if Path(test).parent == Path("tests")]


# ------------------------------------------------------ the run -------------------------------------------------------


@contextlib.contextmanager
def _copy(root: Path = ROOT) -> Iterator[Path]:
    """A copy of the files that git knows, with a repository of its own; some tests ask git."""
    with tempfile.TemporaryDirectory(prefix="limba-mutants-") as folder:
        copy = Path(folder) / "limba"
        subprocess.run(["git", "clone", "--quiet", "--local", str(root), str(copy)], check=True)
        names = subprocess.check_output(["git", "ls-files", "-z"], cwd=root, text=True).split("\0")
        for name in filter(None, names):
            if (root / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / name, copy / name)
        yield copy


def _pytest(copy: Path, tests: list[str], limit: float) -> tuple[int | None, str]:
    """Return code, None after `limit` seconds, and the output of pytest in a copy."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, output


def judge(mutant: Mutant, further: list[str], limit: float, root: Path = ROOT) -> dict[str, object]:
    """Whether the tests of a mutant's room, or the further files, fail; `limit` is for each of the two.

    `outcome` is "caught", "survived", "not in this tree", or "undecided" where no test failed before the limit.
    """
    begun = time.monotonic()
    outcome = "survived"
    with _copy(root) as copy:
        if not apply(mutant, copy):
            return {"outcome": "not in this tree"}
        room = room_of(mutant, copy)
        for where, tests in (("room", room), ("line", [x for x in further if x not in room and (copy / x).is_file()])):
            if not tests:
                continue
            code, output = _pytest(copy, tests, limit)
            seconds = round(time.monotonic() - begun)
            if code is None:  # A slow machine, or an endless loop: nobody knows.
                outcome = "undecided"
                continue
            if code in (1, 2):
                failed = [text for text in output.splitlines() if text.startswith(("FAILED", "ERROR"))]
                return {"outcome": "caught", "by": failed[0] if failed else "", "where": where, "seconds": seconds}
            assert code == 0, output[-3000:]
    return {"outcome": outcome, "seconds": round(time.monotonic() - begun)}


def run(mutants: Iterable[tuple[Mutant, list[str]]], out: Path, limit: float, root: Path = ROOT) -> None:
    """Judges those that `out` does not have yet, and prints a line for each."""
    rows = [json.loads(text) for text in out.read_text().splitlines()] if out.exists() else []
    known = {tuple(row["place"]): row for row in rows}
    caught = 0
    with tempfile.TemporaryDirectory(prefix="limba-compiled-") as compiled:
        os.environ["LIMBA_TESTS_COMPILED"] = compiled  # one folder for all runs
        for number, (mutant, further) in enumerate(mutants, 1):
            row = known.get(mutant.place)
            if row is None:
                row = {"place": mutant.place, **judge(mutant, further, limit, root)}
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            change = f"{mutant.before.splitlines()[0]} -> {mutant.after.splitlines()[0]}"
            place = f"{mutant.file}::{mutant.function}"
            print(f"{number:3} {row['outcome']:9} {place}: {change}", row.get("by", ""), flush=True)
            caught += row["outcome"] == "caught"
    print(f"{caught} of {number} caught")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    actions = parser.add_subparsers(required=True, dest="action")
    chooses = actions.add_parser("choose", help="chooses mutants from a recorded run; writes tests/mutants.json")
    chooses.add_argument("--number", type=int, default=30)
    chooses.add_argument("--seed", type=int, default=0)
    chooses.add_argument("--trace", type=Path, help="recorded earlier; otherwise the tests run now, which takes long")
    runs = actions.add_parser("run", help="breaks a copy with each mutant and runs its tests")
    runs.add_argument("--out", type=Path, default=Path("mutants.jsonl"), help="results; a second call resumes")
    runs.add_argument("--root", type=Path, default=ROOT, help="another checkout, to compare with")
    runs.add_argument("--limit", type=float, default=1200, help="seconds for the tests of a mutant")
    arguments = parser.parse_args()
    if arguments.action == "choose":
        ran = read_trace(arguments.trace) if arguments.trace else trace(["tests"])
        chosen = choose(arguments.number, arguments.seed, ran)
        rows = [dataclasses.asdict(m) | {"further_tests": whole_lines(ran[f"{m.file}::{m.function}"])} for m in chosen]
        CHOSEN.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    else:
        rows = json.loads(CHOSEN.read_text(encoding="utf-8"))
        further = [row.pop("further_tests") for row in rows]
        run(zip([Mutant(**row) for row in rows], further, strict=True), arguments.out, arguments.limit, arguments.root)


if __name__ == "__main__":
    main()
