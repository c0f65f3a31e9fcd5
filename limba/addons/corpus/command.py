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
import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from limba.addons.corpus import recipe_file
from limba.addons.corpus.recipe_file import Recipe
from limba.files import (
    json_text,
    local_paths,
    named_flags,
    output_folder,
    storage,
    untrusted_files,
    untrusted_json,
    written_files,
)

if TYPE_CHECKING:
    from limba.addons.corpus.counts import Counts
    from limba.addons.corpus.source_files import Files
    from limba.addons.corpus.thresholds import Thresholds

_WORK, _REQUEST, _COUNTS, _NOTE, _TOKEN = ".work", "request.json", "counts.json", "thresholds.txt", "token"
# Of limba[corpus], those that datatrove's blocks fail without at their first document.
_PACKAGES = ("datatrove", "spacy", "zstandard", "xxhash", "trafilatura", "lxml_html_clean", "ftfy", "fasttext")
_MOST_TASKS = 100
_MOST_OF_TOKEN = 100
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
        if out.is_dir() and any(out.iterdir()) and not ((out / _WORK).is_dir() or _is_corpus(out)):
            raise ValueError(f"{out} is not empty, and no corpus of this command; choose another OUT.")
        written_files.refuse_link(out / _WORK)
        (out / _WORK).mkdir(parents=True, exist_ok=True)
        self.work = (out / _WORK).resolve()

    def __enter__(self) -> Path:
        self.lock = os.open(self.work, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self.work.is_dir() or self.work.stat().st_ino != os.fstat(self.lock).st_ino:
                raise BlockingIOError  # That process has ended just now, and removed the folder.
        except BlockingIOError:
            os.close(self.lock)
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
    is_ours = _is_ours(work)
    if not is_ours and not overwrite:
        raise ValueError(f"{work} was not begun by this user on this machine; remove it, or give --overwrite.")
    begun = work / _REQUEST
    is_other = not is_ours or done.is_file() or (begun.is_file() and begun.read_text("utf-8") != request)
    if is_other and not overwrite:
        raise ValueError(f"{out} is of another recipe or other files; choose another OUT, or give --overwrite.")
    _check(recipe, found)
    if is_other:
        _remove_corpus(out, recipe)
        _empty(work)
    for folder in (out / name for name in ("removed", *(source.name for source in recipe.sources))):
        written_files.refuse_link(folder)
        if folder.exists() and not begun.is_file():
            raise ValueError(f"{folder} has files that this command did not write; move them, or choose another OUT.")
    if not begun.is_file():
        _empty(work)
        _begin(work, request)
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
    if _request(recipe, source_files.find(recipe.sources, recipe.file)) != request:
        raise ValueError(f"Files of {recipe.file} changed while they were read; give --overwrite to begin again.")
    figures = _figures(work, [stage.name for stage in stages])
    _finish(recipe, out, work, figures, thresholds, notes)
    print(f"{counts.short(figures)}: {out}. What was left out, and why: {out / 'report.html'}", file=people)
    for source in recipe.sources:
        if source.name not in figures.kept:
            print(f"warning: no document of {source.name} is left; report.html says why.", file=people)
    if figures.skipped:
        print(f"warning: {len(figures.skipped):,} rows or files could not be read: {figures.skipped[0]}", file=people)


def _check(recipe: Recipe, found: Sequence["Files"]) -> None:
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
    source_files.check_first(found, recipe)
    if recipe.thresholds:
        thresholds.read(Path(recipe.thresholds))
    if recipe.identify is not None:
        _check_model(recipe)
    if recipe.slurm is not None:
        stage_runs.check_slurm(recipe.slurm, where)


def _check_model(recipe: Recipe) -> None:
    from limba.addons.corpus import fasttext_check

    assert recipe.identify is not None
    file, label = recipe.identify.model, recipe.identify.label
    if label not in (labels := fasttext_check.labels(file)):
        known = untrusted_files.some([*map(untrusted_files.cut, labels)], 8)
        raise ValueError(
            f"{recipe.file}: {file} has no label {label!r}; it has {known}. Name the language's as identify.label."
        )


def _request(recipe: Recipe, found: Sequence["Files"]) -> str:
    """All that a corpus depends on."""
    from limba.addons.corpus import source_files

    settings = dataclasses.asdict(recipe) | {"file": recipe.file.name}
    del settings["slurm"]
    named = [recipe.thresholds, recipe.identify.model if recipe.identify is not None else None]
    others = {name: source_files.state(Path(name)) for name in named if name is not None}
    files = [dataclasses.asdict(part) for part in [*found, *source_files.beside(recipe)]]
    version = importlib.metadata.version("datatrove")
    return json_text.dumps({"recipe": settings, "files": files, "others": others, "datatrove": version}, sort_keys=True)


def _mark(work: Path, token: str) -> Path | None:
    """The file that says that this user began what is in `work`; None for a user without a home."""
    marks = local_paths.cache_folder("corpus", os.environ)
    return None if marks is None else marks / hashlib.sha256(f"{token} {work}".encode()).hexdigest()


def _is_ours(work: Path) -> bool:
    """Whether this user's command wrote what is in `work`: links in it would be followed, and its figures believed."""
    token = work / _TOKEN
    if not token.is_file() or token.is_symlink():
        return not any(work.iterdir())
    mark = _mark(work, untrusted_files.read_text(token, _MOST_OF_TOKEN))
    return mark is not None and mark.is_file()


def _begin(work: Path, request: str) -> None:
    """Marks an empty folder, so that the same command goes on with it."""
    token = secrets.token_hex(16)
    if (mark := _mark(work, token)) is not None:
        with contextlib.suppress(OSError):  # Then a killed command begins again.
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    (work / _TOKEN).write_text(token, encoding="ascii")
    storage.replace_text(work / _REQUEST, request)


def _is_corpus(out: Path) -> bool:
    """Whether a folder holds what this command wrote: others write a counts.json, too."""
    done = out / _COUNTS
    return done.is_file() and {"request", "kept"} <= untrusted_json.read_object(done).keys()


def _remove_corpus(out: Path, recipe: Recipe) -> None:
    """Removes what this command writes, for this recipe's sources and those of the corpus that is there.

    Whatever else lies in OUT is its user's, and stays.
    """
    done = out / _COUNTS
    kept = untrusted_json.read_object(done).get("kept") if done.is_file() else None
    before = [name for name in kept if recipe_file.is_name(name)] if isinstance(kept, dict) else []
    for name in ("removed", *before, *(source.name for source in recipe.sources)):
        for folder in (out / name, *(out / name).glob("*")):
            written_files.refuse_link(folder)
        shards = "*/*.jsonl.zst" if name == "removed" else "train-*.jsonl.zst"
        for shard in sorted((out / name).glob(shards)):
            shard.unlink()
        for folder in (*(out / name).glob("*/"), out / name):
            with contextlib.suppress(OSError):  # It has something else, or is not there.
                folder.rmdir()
    for name in ("thresholds.yml", "report.html", "README.md", _COUNTS):
        (out / name).unlink(missing_ok=True)


def _empty(work: Path) -> None:
    """Removes all of the unfinished work."""
    for path in work.iterdir():
        if path.is_dir() and not path.is_symlink():
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
        found = [files for files in source_files.beside(recipe) if files.source.name == "trusted"]
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
        storage.replace_text(work / _NOTE, note)
        storage.replace_text(kept, computed.as_file())
    return thresholds.read(kept), [(work / _NOTE).read_text("utf-8")]


def _figures(work: Path, stages: Sequence[str]) -> "Counts":
    """Of all stages; kept before anything is moved, for a process that is killed while it moves."""
    from limba.addons.corpus import counts, stage_runs

    kept = work / _COUNTS
    if not kept.is_file():
        found = counts.collect(work, stages, stage_runs.skipped(work, stages[0]))
        storage.replace_text(kept, json_text.dumps(dataclasses.asdict(found), ensure_ascii=False))
    return counts.Counts(**untrusted_json.read_object(kept))


def _finish(
    recipe: Recipe, out: Path, work: Path, figures: "Counts", thresholds: "Thresholds | None", notes: Sequence[str]
) -> None:
    """Gives everything its place; counts.json comes last, and says that the corpus is complete."""
    from limba.addons.corpus import report_page

    for name in ("removed", *figures.kept):
        part = work / name if name == "removed" else work / "shards" / name
        if part.is_dir():
            part.rename(out / name)
    if thresholds is not None:
        storage.replace_text(out / "thresholds.yml", thresholds.as_file())
    shards = sorted(path for name in figures.kept for path in (out / name).glob("*.jsonl.zst"))
    hashes = {str(path.relative_to(out)): output_folder.sha256(path) for path in shards}
    storage.replace_text(out / "report.html", report_page.page(recipe, figures, notes))
    storage.replace_text(out / "README.md", report_page.card(recipe, figures, notes, hashes))
    content = dataclasses.asdict(figures) | {"notes": [*notes], "sha256": hashes}
    content["request"] = (work / _REQUEST).read_text("utf-8")
    storage.replace_text(out / _COUNTS, json_text.dumps(content, ensure_ascii=False, indent=2))
    if (mark := _mark(work, (work / _TOKEN).read_text("ascii"))) is not None:
        mark.unlink(missing_ok=True)
    shutil.rmtree(work)
