"""Tables whose cells are in several scripts end at the same columns of a screen."""

import pytest

from limba.reports import results_table, text_width


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("f1", 2), ("コマンド_f1", 11), ("（１）", 6), ("ｶﾞ", 2), ("が", 2), ("ka\u0301", 2), ("조선", 4)],
)
def test_columns_of_a_text(text, columns):
    assert text_width.width(text) == columns
    assert text_width.ljust(text, 12) == text + (12 - columns) * " "
    assert text_width.rjust(text, 12) == (12 - columns) * " " + text


def test_a_table_with_japanese_labels():
    rows = [
        {"task": "t", "split": "s", "step": step, "loss": {}, "metrics": {"コマンド_f1": f1, "f1": f1}}
        for step, f1 in ((5, 1.5), (10, 20.0))
    ]
    assert results_table.table(rows).splitlines()[1:] == [
        "step  コマンド_f1   f1",
        "   5          1.5  1.5",
        "  10           20   20",
    ]


def test_names_in_japanese():
    lines = [["名前", "n"], ["a", "10"], ["ファイル", "1"]]
    assert results_table.aligned_behind_names(lines) == ["名前       n", "a         10", "ファイル   1"]


def test_columns_begin_at_the_same_place():
    assert text_width.columns([["", "a", "b"], ["管理", "1", ""], ["x", "22", "3"]]) == [
        "      a   b",
        "管理  1",
        "x     22  3",
    ]
