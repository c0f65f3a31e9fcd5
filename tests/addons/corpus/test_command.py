"""`limba corpus`, in the environment that datatrove can be in: rules, counts, leaks, kills, and what is refused."""

import ast
import io
import json
import os
import re
import subprocess
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from limba.addons.corpus import command, counts, recipe_file, report_page
from limba.files import untrusted_yaml
from tests import house
from tests.addons.corpus import small_crawl

# Recipes and their OUT, one after the other in one process, which has a limit of memory as on clusters; after each its
# exit code.
_RUN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (10 * 2**30, 10 * 2**30))
from limba.addons.corpus import command
for words in zip(sys.argv[1::2], sys.argv[2::2]):
    print("===", command.main([*words, "--workers", "2"]), file=sys.stderr)
"""


# What else that process is asked: of an evaluation file that changed, a line that is too long, a task that is killed,
# and a file that changes while it is read.
_MORE = """
import os
from pathlib import Path
from limba.addons.corpus import blocks, stage_runs
from limba.tasks.sources.read_columns import bounded_lines
before = os.stat("eval.csv")
os.utime("eval.csv", (1, 1))
print("===", command.main(["recipe.yaml", "corpus"]), file=sys.stderr)
os.utime("eval.csv", ns=(before.st_atime_ns, before.st_mtime_ns))
bounded_lines.MOST_BYTES = 100_000
print("===", command.main(["long.yaml", "out_long"]), file=sys.stderr)
print("===", command.main(["packed.yaml", "out_packed"]), file=sys.stderr)
die = lambda data, rank, size: os.kill(os.getpid(), 9)
try:
    with stage_runs.console():
        stage_runs.run(blocks.Stage("dies", 2, [die]), Path("dies"), 2, None, sys.stdout)
except ValueError as error:
    print(f"error: {error}\\n=== 1", file=sys.stderr)
stage_runs.run = lambda *_: os.utime("changing.txt", (1, 1))
print("===", command.main(["changing.yaml", "out_changing"]), file=sys.stderr)
from datatrove.utils.word_tokenizers import load_word_tokenizer
from limba.addons.corpus import word_splitting
word_splitting._MOST_PARTS = 8
words, theirs = (of("deu_Latn").word_tokenize for of in (word_splitting.of_language, load_word_tokenizer))
texts = ["Das ist z.B. gut-gemeint.", "", "Ist  das\\u00a0(gut)?\\n\\n Ja", "5km/h bzw. z. B. 5 km/h", "Das ist ..."]
print([words(x) == theirs(x) and words(x) for x in texts], words.__self__.parts, file=sys.stderr)
from datatrove.utils.text import simplify_text
words, texts = word_splitting.of_simplified("deu_Latn").word_tokenize, [*texts, "Café:\\tÅ 1,5 x\\u0316\\u0301 İ Σ\\n"]
print([words(x) == theirs(simplify_text(x)) and words(x) for x in texts], file=sys.stderr)
print("===", 0, file=sys.stderr)
"""
_OF_MORE = {
    "evaluation": "corpus is of another recipe or other files",
    "long": "line 1 has more than 100,000 bytes",
    "packed": "a text of column 'text' has 120,000 bytes; at most 100,000 are read",
    "killed": "dies failed: a task was killed",
    "changing": "Files of changing.yaml changed while they were read; give --overwrite",
}


def _start(folder: Path, *words: str, program: str = _RUN) -> subprocess.Popen[str]:
    python = os.environ.get("LIMBA_HF5_PYTHON") or str(house.ROOT / ".venv-hf5/bin/python")
    if not Path(python).is_file():
        pytest.fail(f"There is no {python}. tests/run.sh makes that environment; LIMBA_HF5_PYTHON may name another.")
    return subprocess.Popen(
        [python, "-c", program, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(house.ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(folder: Path, *words: str, program: str = _RUN) -> list[tuple[int, str]]:
    """Of each recipe its exit code, and what it said."""
    process = _start(folder, *words, program=program)
    _, said = process.communicate()
    parts = re.findall(r"(.*?)=== (\d+)\n", said, flags=re.DOTALL)
    assert len(parts) == len(words) / 2 + program.removeprefix(_RUN).count("==="), said
    return [(int(code), text) for text, code in parts]


def _rows(folder: Path) -> list[dict]:
    found = []
    for file in sorted(folder.glob("*.jsonl.zst")):
        with pyarrow.CompressedInputStream(pyarrow.OSFile(str(file)), "zstd") as stream:
            found += [json.loads(line) for line in io.TextIOWrapper(stream, encoding="utf-8")]
    return found


_UNREADABLE = {
    "text_column": ("text_column: body", "text_column: none", "no document with text in a column 'none'"),
    "evaluation_files": ("eval.csv", "bad.jsonl", "bad.jsonl cannot be read"),
    "thresholds": ("trusted: good.jsonl", "thresholds: bad.yml", "line 2: dup_line_frac is 3; it is a number"),
    "language": ("eng_Latn", "qqq_Latn", "no words of the language qqq_Latn"),
    "model": ("trusted:", "identify: {model: eval.csv}\ntrusted:", "eval.csv is no model of fastText"),
    "hostile": ("trusted:", "identify: {model: hostile.bin}\ntrusted:", "that read it ended with code -8"),
    "names": ("crawl*.jsonl.gz", "odd*/*.jsonl", "odd\\n/c.jsonl' has a line break"),
    "foreign": ("tail: 0", "tail: 0.1", "out_foreign/.work was not begun by this user on this machine"),
}


@pytest.fixture(scope="module")
def crawl(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crawl")
    small_crawl.write(folder)
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "budget.yaml").write_text(recipe + "words: 600\n")
    (folder / "bad.jsonl").write_text('{"a": "one"}\n{"a": "half\n')
    (folder / "bad.yml").write_text("stopwords: [a]\ndup_line_frac: 3\n" + "".join(
        f"{key}: {value}\n" for key, value in {
            "top_n_grams": [[2, 0.1]], "dup_n_grams": [[5, 0.1]], "line_punct_thr": 0.1, "new_line_ratio": 0.3,
            "min_avg_word_length": 1, "max_avg_word_length": 9, "max_non_alpha_words_ratio": 0.8,
        }.items()
    ))  # fmt: skip
    (folder / "hostile.bin").write_bytes(small_crawl.hostile_model())
    (folder / "odd\n").mkdir()
    (folder / "odd\n/c.jsonl").write_text('{"body": "a text"}\n')
    (folder / "out_foreign/.work").mkdir(parents=True)
    (folder / "out_foreign/.work/counts.json").write_text('{"kept": {"../..": {}}}')
    texts = {"long.txt": "a " * 60_000, "changing.txt": "a text\n", "packed.parquet": ""}
    for name, text in texts.items():
        (folder / name).write_text(text)
        recipe_of = f"language: eng_Latn\nsources: {{a: {{files: {name}}}}}\n"
        (folder / name).with_suffix(".yaml").write_text(recipe_of)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a " * 60_000] * 99}), folder / "packed.parquet")
    for name, (old, new, _) in _UNREADABLE.items():
        (folder / f"{name}.yaml").write_text(recipe.replace(old, new))
    return folder


@pytest.fixture(scope="module")
def results(crawl):
    """Exit codes and messages: a corpus, a budget, the same two for a folder that is complete, and what is wrong."""
    outs = {"recipe": "corpus", "budget": "budget", "again": "corpus", "another": "corpus"}
    recipes = ["recipe", "budget", "recipe", "budget", *_UNREADABLE]
    words = zip(recipes, [*outs.values(), *(f"out_{name}" for name in _UNREADABLE)], strict=True)
    found = _run(crawl, *(word for recipe, out in words for word in (f"{recipe}.yaml", out)), program=_RUN + _MORE)
    return dict(zip([*outs, *_UNREADABLE, *_OF_MORE, "words"], found, strict=True))


@pytest.fixture(scope="module")
def corpus(crawl, results):
    code, said = results["recipe"]
    assert code == 0, said
    return crawl / "corpus", said


def test_each_rule_leaves_out_what_it_is_for(corpus):
    folder, said = corpus
    counts = json.loads((folder / "counts.json").read_text("utf-8"))
    assert counts["read"]["crawl"]["documents"] == 32
    assert counts["rules"] | {"near duplicate": 1, "line_punct_ratio": 1, "in an evaluation file": 2} == counts["rules"]
    assert counts["kept"]["lines"] == {"documents": 6, "words": 432, "characters": 2486}
    kept = {name: _rows(folder / name) for name in ("crawl", "lines")}
    assert {name: len(rows) for name, rows in kept.items()} == {
        "crawl": counts["kept"]["crawl"]["documents"],
        "lines": 6,
    }
    assert counts["kept"]["crawl"]["documents"] + sum(counts["rules"].values()) == 32
    removed = {path.name: [row["text"] for row in _rows(path)] for path in (folder / "removed").iterdir()}
    assert [text.endswith(" More.") for text in removed["duplicates"]] == [True]
    assert any(text.startswith("buy now") for text in removed["repetition"])
    assert len(removed["evaluation_13_grams"]) == len(removed["evaluation_8_grams"]) == 1
    texts = " ".join(row["text"] for row in kept["crawl"])
    assert "example" in texts and "mail.org" not in texts and "8.8.8.8" not in texts, "personal data"
    assert "It\u2019s the road" in texts, "characters"
    assert "31 documents" in said and "2 rows or files could not be read" in said
    assert said.count("5_rules:") < 5, "the bar filled logs"


def test_columns_of_strangers_name_no_file(corpus):
    folder, _ = corpus
    assert not [*folder.parent.rglob("*stolen*"), *folder.parent.parent.glob("*stolen*")]
    assert {"text", "id", "url"} == {*_rows(folder / "crawl")[0]}


def test_the_card_has_licences_and_how_to_train(corpus):
    folder, _ = corpus
    card, page = ((folder / name).read_text("utf-8") for name in ("README.md", "report.html"))
    assert "| crawl | a test | CC0-1.0 | 32 | 25 | 2,294 |" in card
    assert 'register_pretraining_task("recipe_crawl", data_files={"train": "crawl/*.jsonl.zst"}' in card
    assert "buy now cheap" in page and "<script" not in page
    assert '<td>documents</td><td class="n">32</td><td class="n">25</td><td class="n">78.12%</td>' in page
    assert page.count("<table>") == page.count('<div class="wide"><table>') > 2, "a phone scrolls a table, not the page"
    assert (
        "<td>duplicated_<wbr>5_<wbr>n_<wbr>grams</td><td>what comes again of 5 words in a row is too much of it</td>"
        in page
        or ("<td>top_<wbr>2_<wbr>gram</td><td>its most frequent 2 words in a row are too much of it</td>" in page)
    )


def test_a_killed_run_goes_on_and_writes_the_same(corpus, crawl):
    folder, _ = corpus
    process = _start(crawl, "recipe.yaml", "killed")
    while not [*(crawl / "killed").glob(".work/logs/2_signatures/completions/*")] and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert not (crawl / "killed/counts.json").exists()
    ((code, said),) = _run(crawl, "recipe.yaml", "killed")
    assert code == 0, said
    first, second = ({p.relative_to(x): p.read_bytes() for p in x.rglob("*.zst")} for x in (folder, crawl / "killed"))
    assert first == second and len(first) > 4


def test_a_budget_of_words_is_kept(crawl, results):
    code, said = results["budget"]
    assert code == 0, said
    counts = json.loads((crawl / "budget/counts.json").read_text("utf-8"))
    words = sum(len(row["text"].split()) for name in counts["kept"] for row in _rows(crawl / "budget" / name))
    assert 200 < words <= 600 and words == sum(x["words"] for x in counts["kept"].values())


_REFUSED = {
    "nothing": ("language: eng_Latn\n", "sources is missing"),
    "language": (
        "language: english\nsources: {a: {files: x}}\n",
        "line 1: language is 'english'; it is a language and a",
    ),
    "key": ("language: eng_Latn\nsources: {a: {file: x}}\n", "line 2: there is no key 'file'; the nearest is 'files'"),
    "name": ("language: eng_Latn\nsources: {../a: {files: x}}\n", "'../a' is no name of a source"),
    "both": ("language: eng_Latn\nsources: {a: {files: x}}\nthresholds: a\ntrusted: b\n", "leave one of them out"),
    "words": ("language: eng_Latn\nsources: {a: {files: x}}\nwords: 1.5\n", "words is 1.5; it is a whole number"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_is_wrong_in_a_recipe_is_named_with_its_line(name, tmp_path):
    text, message = _REFUSED[name]
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"recipe\.yaml") as error:
        recipe_file.load(tmp_path / "recipe.yaml")
    assert message in str(error.value)


def test_lines_are_looked_for_in_a_recipe_that_is_wrong_alone(tmp_path, monkeypatch):
    """A place takes as long as the whole file."""
    monkeypatch.setattr(untrusted_yaml, "place", None)
    text = "language: eng_Latn\nsources: {a: {files: x}, b: {files: [y, z], license: w}}\n"
    (tmp_path / "recipe.yaml").write_text(text)
    assert [source.files for source in recipe_file.load(tmp_path / "recipe.yaml").sources] == [("x",), ("y", "z")]


@pytest.mark.parametrize("name", _UNREADABLE)
def test_what_cannot_be_read_ends_before_the_work(name, crawl, results):
    code, said = results[name]
    assert code == 1 and said.startswith("error: ") and said.count("\n") == 1 and _UNREADABLE[name][2] in said
    assert not [*(crawl / f"out_{name}").glob(".work/logs/*/completions/*")]


def test_a_corpus_that_is_complete_is_left_as_it_is(corpus, results):
    assert results["again"] == (0, "corpus is complete.\n")
    assert results["another"][0] == 1 and "corpus is of another recipe or other files" in results["another"][1]
    assert (corpus[0] / "counts.json").is_file() and not (corpus[0] / ".work").exists()


@pytest.mark.parametrize("name", _OF_MORE)
def test_what_changes_grows_or_dies_is_told(name, crawl, results):
    code, said = results[name]
    assert code == 1 and _OF_MORE[name] in said
    assert not (crawl / f"out_{name}/counts.json").exists()


def test_words_are_datatroves_also_after_another_spacy_took_over(results):
    """Of five texts; the parts of the last two have no room beside those before."""
    words, parts, simplified = re.fullmatch(r"(\[.*\]) (\{.*\})\n(.*)\n", results["words"][1]).groups()
    found = ast.literal_eval(words)
    assert found[0] == ["Das", "ist", "z.B.", "gut-gemeint", "."] and found[1] == [] and False not in found
    assert ast.literal_eval(parts) == {"Das", "ist", "..."}
    simple = ast.literal_eval(simplified)
    assert simple[2] == ["ist", "das", "gut", "ja"] and simple[5] == ["cafe", "a", "0", "x", "i", "σ"]
    assert False not in simple


def test_what_is_written_over_is_the_commands_own(crawl, tmp_path):
    """A folder of before, with files of its user's: --overwrite removes what the command wrote, and nothing else."""
    ours = ["crawl/train-00000.jsonl.zst", "old/train-00001.jsonl.zst", "removed/words/00000.jsonl.zst", "report.html"]
    theirs = ["notes.txt", "mine/train-00000.jsonl.zst", "old/spiece.model", "removed/words/marked.txt"]
    for name in (*ours, *theirs):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "counts.json").write_text(json.dumps({"kept": {"old": {}, "../mine": {}, "report.html": {}}}))
    command._remove_corpus(tmp_path, recipe_file.load(crawl / "recipe.yaml"))
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {*theirs}
    assert not (tmp_path / "crawl").exists()


@pytest.mark.parametrize("name", ["removed", "removed/words", "crawl", "old"])
def test_what_is_written_over_lies_behind_no_link(crawl, tmp_path, name):
    """An OUT of somebody else: shards elsewhere stay."""
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    for shard in ("train-0.jsonl.zst", "words/0.jsonl.zst"):
        (elsewhere / shard).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / shard).touch()
    (out / name).parent.mkdir(parents=True)
    (out / name).symlink_to(elsewhere)
    (out / "counts.json").write_text(json.dumps({"kept": {"old": {}}}))
    with pytest.raises(ValueError, match=f"out/{name} is a link to .*elsewhere"):
        command._remove_corpus(out, recipe_file.load(crawl / "recipe.yaml"))
    assert len([*elsewhere.rglob("*.zst")]) == 2


def test_a_card_has_no_markup_and_no_program_of_a_recipe(crawl, tmp_path):
    recipe = tmp_path / 'a", evil(), "<b>.yaml'
    markup = "<img src=x onerror=y> | `x` [a](b)\n# c"
    source = json.dumps({"files": "x", "license": markup, "origin": markup})
    recipe.write_text(f"language: eng_Latn\nsources: {{x-1.y: {source}}}\n")
    figures = {"documents": 1, "words": 2, "characters": 3}
    of_x = {"x-1.y": figures}
    found = counts.Counts(of_x, of_x, {markup: 1}, {}, {}, [], {})
    card = report_page.card(recipe_file.load(recipe), found, [markup], {})
    assert "<img" not in card and "<b>" not in card and " `x` [" not in card and "\n# c" not in card
    (program,) = re.findall("```python\n(.*?)```", card, flags=re.DOTALL)
    assert 'register_pretraining_task("a___evil______b__x_1_y", data_files={"train": "x-1.y/*' in program
    table = [line for line in card.splitlines() if line.startswith("| x-1.y")]
    assert len(re.findall(r"(?<!\\)\|", table[0])) == 7


def test_a_folder_of_another_program_is_refused(tmp_path):
    (tmp_path / "counts.json").write_text('{"words": 3}')
    with pytest.raises(ValueError, match="is not empty, and no corpus of this command"):
        command._opened(tmp_path)
    assert not (tmp_path / ".work").exists()
