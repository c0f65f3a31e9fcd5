"""The lines that `python -m tests.mutations` breaks are in the tree."""

import dataclasses
import json

from tests import mutations


def test_the_chosen_ones_are_in_the_tree():
    chosen = json.loads(mutations.CHOSEN.read_text(encoding="utf-8"))
    assert len(chosen) == 50
    for row in chosen:
        assert all((mutations.ROOT / test).is_file() for test in row.pop("further_tests"))
        text = (mutations.ROOT / row["file"]).read_text(encoding="utf-8")
        found = [dataclasses.asdict(mutant) | {"ordinal": 0} for mutant, _ in mutations.mutants_of(text, row["file"])]
        assert row | {"ordinal": 0} in found, row  # as `apply` finds it, wherever it stands in the function
