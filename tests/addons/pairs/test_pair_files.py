"""`--pairs` takes folders and patterns, and many files have one table by phenomenon and one by file."""

import pytest

from limba.addons.pairs import eval_pairs, pair_files, pair_metrics
from limba.reports import pair_results


@pytest.fixture
def folder(tmp_path):
    """As MultiBLiMP is published, with what else lies beside it."""
    names = ("ron/data.tsv", "eng/data.tsv", "README.md", ".git/hidden.jsonl", "eng/more.jsonl.gz", "a.json.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_tables_of_a_folder_and_of_a_pattern(folder):
    found = pair_files.find([str(folder / "ron/data.tsv"), str(folder)])
    inside = [file.removeprefix(f"{folder}/") for file in found]
    assert inside == ["ron/data.tsv", "eng/data.tsv", "eng/more.jsonl.gz"]
    assert pair_files.find([f"{folder}/*/data.tsv"]) == [f"{folder}/{name}/data.tsv" for name in ("eng", "ron")]
    assert pair_files.find(["hf://datasets/a/b/c.tsv"]) == ["hf://datasets/a/b/c.tsv"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "empty is a folder without a table"),
        ("nowhere.jsonl", "nowhere.jsonl does not exist; give files or a folder"),
        ("*.parquet", r"\*.parquet matches no file"),
    ],
)
def test_what_has_no_file_is_named(folder, name, message):
    (folder / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=message):
        pair_files.find([str(folder / name)])


def test_many_files_have_a_line_each():
    """Of two files with 3 of 4 and 1 of 4 pairs of one phenomenon right; the n-grams have 2 of 4 of each."""
    results = {name: pair_metrics.pooled([_metrics(won)]) for name, won in (("eng", 3), ("ron", 1))}
    ngrams = {name: {"unigram": _metrics(2)} for name in results}
    rows = eval_pairs._rows(results, ngrams, dict.fromkeys(results, "file"), "all_files")
    shown = eval_pairs._by_phenomenon_and_file([{"step": 5} | row for row in rows], "all_files")
    lines = pair_results.table(shown).splitlines()
    assert [line.split() for line in lines if line.startswith(("SV-#", "eng", "ron", "phenomenon"))] == [
        ["phenomenon", "pairs", "chance", "unigram", "step", "5"],
        ["SV-#", "8", "50.0", "50.0", "50.0", "(21.5", "to", "78.5)"],
        ["phenomenon", "pairs", "chance", "unigram", "step", "5"],
        ["eng", "4", "50.0", "50.0", "75.0", "(30.1", "to", "95.4)"],
        ["ron", "4", "50.0", "50.0", "25.0", "(4.6", "to", "69.9)"],
    ]


def _metrics(won):
    low, high = pair_metrics.wilson_interval(won, 4)
    one = {"accuracy": 25.0 * won, "accuracy_low": 100 * low, "accuracy_high": 100 * high, "pairs": 4, "ties": 0}
    return one | {f"{name}/SV-#": value for name, value in one.items()}
