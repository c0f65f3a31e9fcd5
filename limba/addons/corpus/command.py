"""`limba corpus`: from a crawl to a corpus, by datatrove's blocks.

    limba corpus recipe.yaml corpus/

reads the sources, keeps the language, finds near duplicates in all of them, applies rules of quality, writes others in
place of e-mail addresses, and leaves out what is in your evaluation files. OUT has a folder of JSON lines for each
source, `removed/` with what each rule left out, report.html, and a card that says how to train on it. A command that
was killed goes on where it was (docs/corpus.md).
"""

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from limba.addons.corpus import recipe_file
from limba.addons.corpus.recipe_file import Recipe
from limba.files import json_text, named_flags, untrusted_files, untrusted_json, written_files

if TYPE_CHECKING:
    from limba.addons.corpus.counts import Counts
    from limba.addons.corpus.source_files import Files
    from limba.addons.corpus.thresholds import Thresholds

_WORK, _REQUEST, _COUNTS, _NOTE = ".work", "request.json", "counts.json", "thresholds.txt"
# Of limba[corpus], those that datatrove's blocks fail without at their first document.
_PACKAGES = ("datatrove", "spacy", "zstandard", "xxhash", "trafilatura", "lxml_html_clean", "ftfy", "fasttext")
_MOST_TASKS = 100
# Documents of the trusted sample that thresholds are computed of.
_MOST_TRUSTED = 20_000


def main(argv: Sequence[str]) -> int:
    """Makes a corpus; returns the exit code."""
    parser = named_flags.Parser(
        prog="limba corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a YAML file: language, sources, rules")
    parser.add_argument("out", metavar="OUT", help="the folder of the corpus")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="tasks at the same time (all cores)")
    parser.add_argument("--overwrite", action="store_true", help="replace a corpus of another recipe in OUT")
    flags = parser.parse_args(argv)
    if flags.workers < 1:
        parser.error(f"--workers is {flags.workers}; it is a whole number of at least 1.")
    try:
        recipe = recipe_file.load(Path(flags.recipe))
        _check_packages()
        make(recipe, Path(flags.out), flags.workers, flags.overwrite)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _check_packages() -> None:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"there is no package {missing[0]}: pip install 'limba[corpus]'")


def make(recipe: Recipe, out: Path, workers: int, overwrite: bool = False) -> None:
    """Writes the corpus of a recipe, or what is left of it to write.

    Raises:
      FileNotFoundError, ValueError: for what cannot be read, or a folder that holds something else.
    """
    from limba.addons.corpus import stage_runs

    with _opened(out) as work, stage_runs.console() as people:
        _make(recipe, out, work, workers, overwrite, people)


class _opened:
    """The folder of unfinished work in OUT, which one process has at a time."""

    def __init__(self, out: Path) -> None:
        if out.exists() and not out.is_dir():
            raise ValueError(f"{out} is a file; OUT is a folder.")
        known = (out / _WORK).is_dir() or (out / _COUNTS).is_file()
        if out.is_dir() and any(out.iterdir()) and not known:
            raise ValueError(f"{out} is not empty, and no corpus of this command; choose another OUT.")
        written_files.refuse_link(out / _WORK)
        (out / _WORK).mkdir(parents=True, exist_ok=True)
        self.work = (out / _WORK).resolve()

    def __enter__(self) -> Path:
        self.lock = os.open(self.work, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"Another process is writing {self.work.parent} now.") from None
        return self.work

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # It has something to go on with, or is gone.
            self.work.rmdir()
        os.close(self.lock)


def _make(recipe: Recipe, out: Path, work: Path, workers: int, overwrite: bool, people: TextIO) -> None:
    from limba.addons.corpus import blocks, counts, evaluation_index, source_files, stage_runs

    found = source_files.find(recipe.sources, recipe.file)
    request = _request(recipe, found)
    done = out / _COUNTS
    if done.is_file() and untrusted_json.read_object(done).get("request") == request:
        print(f"{out} is complete.", file=people)
        return
    begun = work / _REQUEST
    is_other = done.is_file() or (begun.is_file() and begun.read_text("utf-8") != request)
    if is_other and not overwrite:
        raise ValueError(f"{out} is of another recipe or other files; choose another OUT, or give --overwrite.")
    _check(recipe, found, work)
    if is_other:
        _empty(out)
        _empty(work)
    written_files.write_text(begun, request)
    tasks = recipe.tasks or min(_MOST_TASKS, max(len(files.paths) for files in found))
    thresholds, notes = _thresholds(recipe, work)
    index = None
    if recipe.evaluation_files:
        index = work / "evaluation"
        index.mkdir(exist_ok=True)
        of_files = evaluation_index.write(recipe, index)
        notes.append(
            f"Looked for {of_files.rows:,} texts of evaluation files; {of_files.too_short:,} of them have less than "
            f"{min(evaluation_index.N_GRAMS)} words and were not looked for."
        )
    stages = [blocks.reading(recipe, found, thresholds, tasks, work)]
    stages += blocks.duplicates(recipe, tasks, work) if recipe.deduplicate else []
    stages.append(blocks.rules(recipe, thresholds, index, tasks, work))
    for stage in stages:
        stage_runs.run(stage, work, workers, recipe.slurm, people)
    if recipe.words:
        words = counts.words_by_task(work, stages[-1].name)
        total = sum(words.values())
        share = min(1.0, recipe.words / total) if total else 0.0
        quotas = {task: (share, int(share * number)) for task, number in words.items()}
        stages.append(blocks.budget(quotas, tasks, work))
        stage_runs.run(stages[-1], work, workers, recipe.slurm, people)
    figures = _figures(work, [stage.name for stage in stages])
    _finish(recipe, out, work, figures, thresholds, notes)
    print(f"{counts.short(figures)}: {out}. What was left out, and why: {out / 'report.html'}", file=people)
    for source in recipe.sources:
        if source.name not in figures.kept:
            print(f"warning: no document of {source.name} is left; report.html says why.", file=people)
    if figures.skipped:
        print(f"warning: {len(figures.skipped):,} rows or files could not be read: {figures.skipped[0]}", file=people)


def _check(recipe: Recipe, found: Sequence["Files"], work: Path) -> None:
    """What would fail later, before anything is read whole."""
    from datatrove.utils import word_tokenizers

    from limba.addons.corpus import source_files, stage_runs, thresholds

    where = str(recipe.file)
    if recipe.language not in word_tokenizers.load_tokenizer_assignments():
        raise ValueError(f"{where}: datatrove has no words of the language {recipe.language}; see docs/corpus.md.")
    try:
        word_tokenizers.load_word_tokenizer(recipe.language).word_tokenize("a b")
    except ImportError as error:
        raise ValueError(f"{where}: words of {recipe.language} take another package. {error}") from error
    source_files.check_first(found, recipe, work)
    if recipe.thresholds:
        thresholds.read(Path(recipe.thresholds))
    if recipe.trusted:
        source_files.find([recipe_file.Source("trusted", recipe.trusted, "text", "", "")], recipe.file)
    if recipe.identify is not None:
        _check_model(recipe)
    if recipe.slurm is not None:
        stage_runs.check_slurm(recipe.slurm, where)


def _check_model(recipe: Recipe) -> None:
    from limba.addons.corpus.blocks import OwnModel

    assert recipe.identify is not None
    file, label = recipe.identify.model, recipe.identify.label
    untrusted_files.check_is_file(Path(file))
    try:
        labels = [name.removeprefix("__label__") for name in OwnModel(file, label).model.get_labels()]
    except Exception as error:
        raise ValueError(f"{file} is no model of fastText: {untrusted_files.cut(str(error))}.") from error
    if label not in labels:
        raise ValueError(
            f"{recipe.file}: {file} has no label {label!r}; it has {untrusted_files.some(labels, 8)}. Name the "
            "language's as identify.label."
        )


def _request(recipe: Recipe, found: Sequence["Files"]) -> str:
    """All that a corpus depends on."""
    settings = dataclasses.asdict(recipe) | {"file": recipe.file.name}
    del settings["slurm"]
    others = [recipe.thresholds, *recipe.trusted, *recipe.evaluation_files]
    sizes = {name: Path(name).stat().st_size for name in others if name and Path(name).is_file()}
    files = [dataclasses.asdict(part) for part in found]
    version = importlib.metadata.version("datatrove")
    return json_text.dumps({"recipe": settings, "files": files, "others": sizes, "datatrove": version}, sort_keys=True)


def _empty(folder: Path) -> None:
    """Removes what is in a folder, but for the folder of unfinished work."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            if path.name != _WORK:
                shutil.rmtree(path)
        else:
            path.unlink()


def _thresholds(recipe: Recipe, work: Path) -> tuple["Thresholds | None", list[str]]:
    """The thresholds, and what a reader must know of them."""
    from limba.addons.corpus import source_files, thresholds
    from limba.addons.corpus.blocks import language_filter, passing

    if recipe.thresholds:
        return thresholds.read(Path(recipe.thresholds)), [f"Thresholds: {Path(recipe.thresholds).name}."]
    if not recipe.trusted:
        return None, ["No rules of quality: the recipe has neither thresholds nor trusted text."]
    kept = work / "thresholds.yml"
    if not kept.is_file():
        found = source_files.find([recipe_file.Source("trusted", recipe.trusted, "text", "", "")], recipe.file)
        documents = [
            document
            for number, files in enumerate(found)
            for document in source_files.reader(files, work / f"trusted{number}.txt", _MOST_TRUSTED).run()
        ][:_MOST_TRUSTED]
        scores: list[float] = []
        if recipe.identify is not None:
            scored = language_filter(recipe.identify, None).run(iter(documents))
            scores = [document.metadata["language_score"] for document in scored]
        texts = (document.text for document in documents)
        computed = thresholds.of_sample(texts, recipe.language, recipe.tail, scores)
        note = (
            f"Thresholds: computed of {len(documents):,} trusted documents, of which {recipe.tail:.1%} lie beyond "
            f"each; {passing(documents, recipe, computed):.1%} of them pass all rules."
        )
        written_files.write_text(work / _NOTE, note)
        written_files.write_text(kept, computed.as_file())
    return thresholds.read(kept), [(work / _NOTE).read_text("utf-8")]


def _figures(work: Path, stages: Sequence[str]) -> "Counts":
    """Of all stages; kept before anything is moved, for a process that is killed while it moves."""
    from limba.addons.corpus import counts, stage_runs

    kept = work / _COUNTS
    if not kept.is_file():
        found = counts.collect(work, stages, stage_runs.skipped(work, stages[0]))
        written_files.write_text(kept, json_text.dumps(dataclasses.asdict(found), ensure_ascii=False))
    return counts.Counts(**untrusted_json.read_object(kept))


def _finish(
    recipe: Recipe, out: Path, work: Path, figures: "Counts", thresholds: "Thresholds | None", notes: Sequence[str]
) -> None:
    """Gives everything its place; counts.json comes last, and says that the corpus is complete."""
    from limba.addons.corpus import report_page

    for name in ("removed", *figures.kept):
        part = work / name if name == "removed" else work / "shards" / name
        if part.is_dir():
            if (out / name).exists():  # of a process that was killed here
                shutil.rmtree(out / name)
            part.rename(out / name)
    if thresholds is not None:
        written_files.write_text(out / "thresholds.yml", thresholds.as_file())
    shards = sorted(path for name in figures.kept for path in (out / name).glob("*.jsonl.zst"))
    hashes = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in shards}
    written_files.write_text(out / "report.html", report_page.page(recipe, figures, notes))
    written_files.write_text(out / "README.md", report_page.card(recipe, figures, notes, hashes))
    content = dataclasses.asdict(figures) | {"notes": [*notes], "sha256": hashes}
    content["request"] = (work / _REQUEST).read_text("utf-8")
    written_files.write_text(out / _COUNTS, json_text.dumps(content, ensure_ascii=False, indent=2))
    shutil.rmtree(work)
