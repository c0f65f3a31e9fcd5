"""The script that breaks the engine line by line breaks what it says, and nothing else."""

import ast
import dataclasses
import json

import pytest

from tests import mutations

SOURCE = '''
class A:
    def method(self, x: int = 3):
        """Doc."""
        if x.ok:
            self.call(x, 2)
        y = x + 1 if x < 5 else [
            x,
        ]

        def inner():
            return y and f"é {x + 1}"

        raise ValueError(f"{x}" * 2)
'''
METHOD = {
    "comparison": ["x < 5 -> x >= 5"],
    "constant": ["2 -> 3", "1 -> 2", "5 -> 6"],
    "operator": ["x + 1 -> x - 1"],
    "condition": ["x.ok -> not x.ok"],
    "call": ["self.call(x, 2) -> pass"],
}
INNER = {
    "operator": ["y and f'é {x + 1}' -> y or f'é {x + 1}'"],
    "result": ["return y and f'é {x + 1}' -> return None"],
}


@pytest.mark.parametrize(("function", "expected"), [("A.method", METHOD), ("A.method.inner", INNER)])
def test_all_that_can_be_broken(function, expected):
    found: dict[str, list[str]] = {}
    for mutant, _ in mutations.mutants_of(SOURCE, "a.py"):
        if mutant.function == function:
            assert mutant.ordinal == len(found.setdefault(mutant.kind, []))
            found[mutant.kind].append(f"{mutant.before} -> {mutant.after}")
    assert found == expected


def test_each_changes_its_own_text_alone(tmp_path):
    whole = ast.unparse(ast.parse(SOURCE))
    for mutant, _ in mutations.mutants_of(SOURCE, "a.py"):
        (tmp_path / "a.py").write_text(SOURCE, encoding="utf-8")
        assert mutations.apply(mutant, tmp_path)
        broken = ast.unparse(ast.parse((tmp_path / "a.py").read_text(encoding="utf-8")))
        assert broken == whole.replace(mutant.before, mutant.after, 1) != whole
        assert not mutations.apply(mutant, tmp_path)  # the text is another now


def test_the_chosen_ones_are_in_the_tree():
    chosen = json.loads(mutations.CHOSEN.read_text(encoding="utf-8"))
    assert len(chosen) == 50
    for row in chosen:
        assert all((mutations.ROOT / test).is_file() for test in row.pop("further_tests"))
        text = (mutations.ROOT / row["file"]).read_text(encoding="utf-8")
        found = [dataclasses.asdict(mutant) | {"ordinal": 0} for mutant, _ in mutations.mutants_of(text, row["file"])]
        assert row | {"ordinal": 0} in found, row  # as `apply` finds it, wherever it stands in the function


def test_functions_that_run_are_recorded(tmp_path):
    (tmp_path / "limba").mkdir()
    (tmp_path / "limba" / "a.py").write_text(SOURCE, encoding="utf-8")
    mutations.instrument(tmp_path, tmp_path / "hits")
    text = (tmp_path / "limba" / "a.py").read_text(encoding="utf-8")
    hits = [line for line in text.splitlines() if "limba_recorder" in line]
    assert hits == [
        '        __import__("limba_recorder").hit("limba/a.py::A.method")',
        '            __import__("limba_recorder").hit("limba/a.py::A.method.inner")',
    ]
    (tmp_path / "hits").write_text("t.py\tlimba/a.py::f\nu.py\tlimba/a.py::f\nt.py\tlimba/a.py::f\n")
    assert mutations.read_trace(tmp_path / "hits") == {"limba/a.py::f": ["t.py", "u.py"]}
