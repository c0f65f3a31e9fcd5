"""`limba corpus` at a gigabyte: what it costs, and whether a command that was killed twice writes the same files.

    python -m benchmarks.package_docs *.deb --out runs/package_docs               # its page says which packages
    python -m benchmarks.manual_pages pages --language de --out runs/manuals
    python -m benchmarks.corpus_gigabyte --documents runs/package_docs/train-* --foreign runs/manuals/* \\
        --work runs/gigabyte

Makes a crawl of --bytes in WORK/crawl, of the documents' paragraphs: new pages, near and exact duplicates, spam, lists
of words, and text of another language. A fiftieth of the documents is not in it: of these are the trusted sample, the
evaluation texts, and WORK/clean.jsonl, on which models can be compared. Then runs the command twice: killed with
SIGKILL while it computes signatures and while it applies rules, and undisturbed. Prints seconds,
cpu-seconds and the largest process of each, and compares the checksums of all files. What is finished in WORK is not
done again.
"""

import argparse
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from limba.files import json_text, output_folder, storage

_TAKEN_OUT, _TRUSTED, _EVALUATION = 50, 400, 200
# Of a hundred documents: what they are, by `_Crawl`'s methods.
_KINDS = (("page", 45), ("near", 25), ("exact", 10), ("spam", 8), ("list_of_words", 5), ("foreign", 7))
# Documents that duplicates are made of.
_REMEMBERED = 20_000
# The stages, with the share of their tasks at which the command is killed.
_KILLS = (("2_signatures", 0.75), ("5_rules", 0.33))
_TICKS = os.sysconf("SC_CLK_TCK")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corpus_gigabyte",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--documents", required=True, nargs="+", type=Path, help="JSON lines of English text")
    parser.add_argument("--foreign", required=True, nargs="+", type=Path, help="JSON lines of another language")
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="of text in the crawl")
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--killed_only", action="store_true", help="leave the undisturbed run out")
    flags = parser.parse_args(argv)
    recipe = flags.work / "recipe.yaml"
    if not recipe.is_file():
        _write_crawl(flags.documents, flags.foreign, flags.work, flags.bytes, flags.files)
    for name, kills in [("killed", _KILLS)] + [("undisturbed", ())] * (not flags.killed_only):
        out = flags.work / name
        if not (out / "counts.json").is_file():
            _run(recipe, out, kills, flags.files, flags.workers)
    if not flags.killed_only:
        killed, undisturbed = (_sums(flags.work / name) for name in ("killed", "undisturbed"))
        names = killed.keys() | undisturbed.keys()
        differing = sorted(name for name in names if killed.get(name) != undisturbed.get(name))
        print(f"{len(names)} files, {len(differing)} differ: {differing[:5]}")
        sys.exit(bool(differing))


# ---------------------------------------------------- the crawl -----------------------------------------------------


class _Crawl:
    """Draws documents; the same seed draws the same ones."""

    def __init__(self, documents: Sequence[str], foreign: Sequence[str]) -> None:
        self.chance = random.Random(0)
        self.paragraphs = [paragraph for text in documents for paragraph in text.split("\n")]
        self.foreign_texts = foreign
        self.words = sorted({word for text in documents[:2000] for word in text.split()})
        self.before: list[str] = []

    def draw(self) -> str:
        """One document."""
        kinds, weights = zip(*_KINDS, strict=True)
        kind = self.chance.choices(kinds, weights)[0] if self.before else "page"
        text: str = getattr(self, kind)()
        if kind == "page":
            if len(self.before) < _REMEMBERED:
                self.before.append(text)
            else:
                self.before[self.chance.randrange(_REMEMBERED)] = text
        return text

    def page(self) -> str:
        """Paragraphs of any documents, as pages of a site have them."""
        return "\n".join(self.chance.choice(self.paragraphs) for _ in range(self.chance.randint(4, 24)))

    def near(self) -> str:
        """A page that was there, with one word in a hundred dropped and one changed."""
        words = self.exact().split(" ")
        for _ in range(max(1, len(words) // 100)):
            del words[self.chance.randrange(len(words))]
            words[self.chance.randrange(len(words))] = self.chance.choice(self.words)
        return " ".join(words)

    def exact(self) -> str:
        """A page that was there."""
        return self.chance.choice(self.before)

    def spam(self) -> str:
        """A few words, again and again."""
        return " ".join(self.chance.choices(self.words, k=6)) * self.chance.randint(20, 400)

    def list_of_words(self) -> str:
        """A word a line, as menus and indexes have them."""
        return "\n".join(self.chance.choices(self.words, k=self.chance.randint(50, 500)))

    def foreign(self) -> str:
        """A document of another language."""
        return self.chance.choice(self.foreign_texts)


def _write_crawl(documents: Sequence[Path], foreign: Sequence[Path], work: Path, most: int, files: int) -> None:
    import zstandard

    texts = list(_texts(documents))
    random.Random(0).shuffle(texts)
    apart, texts = texts[: len(texts) // _TAKEN_OUT], texts[len(texts) // _TAKEN_OUT :]
    trusted, questions, clean = (
        apart[:_TRUSTED],
        apart[_TRUSTED : _TRUSTED + _EVALUATION],
        apart[_TRUSTED + _EVALUATION :],
    )
    if not clean:
        sys.exit(f"error: --documents has {len(texts):,} documents; some 40,000 are needed.")
    crawl = _Crawl(texts, list(_texts(foreign)))
    (work / "crawl").mkdir(parents=True, exist_ok=True)
    packed = [(work / f"crawl/{number:03d}.jsonl.zst").open("wb") for number in range(files)]
    streams = [zstandard.ZstdCompressor().stream_writer(file) for file in packed]
    size = number = 0
    while size < most:
        text = crawl.draw()
        if number % 1000 == 999:  # One page in a thousand holds an evaluation text.
            text = f"{text}\n{crawl.chance.choice(questions).partition(chr(10))[0]}"
        streams[number % files].write((json_text.dumps({"text": text}, ensure_ascii=False) + "\n").encode())
        size, number = size + len(text.encode()), number + 1
    for stream in streams:
        stream.close()
    for name, rows in (("trusted", trusted), ("questions", questions), ("clean", clean)):
        storage.replace_text(work / f"{name}.jsonl", "".join(json_text.dumps({"text": x}) + "\n" for x in rows))
    print(f"{number:,} documents, {size:,} bytes of text in {files} files", flush=True)
    folder = work.resolve()
    storage.replace_text(
        work / "recipe.yaml",
        f'language: eng_Latn\nsources:\n  crawl: {{files: "{folder}/crawl/*.jsonl.zst"}}\n'
        f"trusted: {folder}/trusted.jsonl\nevaluation_files: {folder}/questions.jsonl\n",
    )


def _texts(files: Sequence[Path]) -> Iterator[str]:
    for file in sorted(files):
        with file.open(encoding="utf-8") as lines:
            yield from (json.loads(line)["text"] for line in lines)


# ---------------------------------------------------- the runs ------------------------------------------------------


def _run(recipe: Path, out: Path, kills: Sequence[tuple[str, float]], files: int, workers: int) -> None:
    """Runs the command until it is complete; it is killed once in each stage of `kills`."""
    start, cpu, memory = time.perf_counter(), 0.0, 0
    for stage, share in [*kills, ("", 0.0)]:
        _wait_for_lock(out / ".work")
        process = subprocess.Popen(
            [sys.executable, "-m", "limba", "corpus", str(recipe), str(out), "--workers", str(workers)],
            start_new_session=True,
        )
        used = 0.0
        while process.poll() is None:
            time.sleep(1)
            now, largest = _use(process.pid)
            used, memory = max(used, now), max(memory, largest)
            if stage and len(list((out / f".work/logs/{stage}/completions").glob("*"))) >= share * files:
                process.send_signal(signal.SIGKILL)
                process.wait()
                print(f"killed in {stage} after {time.perf_counter() - start:,.0f} s", flush=True)
        cpu += used
        if not stage and process.returncode:
            sys.exit(f"error: limba corpus ended with {process.returncode}.")
    seconds = time.perf_counter() - start
    print(
        f"{out.name}: {seconds:,.0f} s, {cpu:,.0f} cpu-seconds, largest process {memory / 1e6:,.0f} MB, "
        f"{workers} workers",
        flush=True,
    )


def _use(session: int) -> tuple[float, int]:
    """Of a session's processes the cpu-seconds, with ended children, and the largest one's peak memory in bytes."""
    cpu, largest = 0, 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                cpu += sum(map(int, fields[11:15]))
                lines = (folder / "status").read_text("ascii", "replace").splitlines()
                peak = next((line.split()[1] for line in lines if line.startswith("VmHWM")), 0)
                largest = max(largest, 1024 * int(peak))
        except OSError:  # It has ended.
            continue
    return cpu / _TICKS, largest


def _wait_for_lock(work: Path) -> None:
    """Until the tasks of a killed command have ended."""
    if work.is_dir():
        lock = os.open(work, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.close(lock)


def _sums(out: Path) -> dict[str, str]:
    return {str(path.relative_to(out)): output_folder.sha256(path) for path in out.rglob("*") if path.is_file()}


if __name__ == "__main__":
    main()
