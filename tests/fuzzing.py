"""Damages valid files of every format that Limba reads, and looks what its parsers say.

    python -m tests.fuzzing --cases 2000 --seed 1            # all formats
    python -m tests.fuzzing safetensors gin --cases 100000   # some

A case is a valid file, or a folder of files, with one to four damages drawn from the seed. The answer must be success
or one message, within 10 seconds and 1 GB, and a conversion that fails leaves no output. Prints a row a format; the
exit code is 1 if any case failed, and the failing files are kept in the folder of --keep.

The parsers run in a process of their own, in which memory is limited. The process that starts it notices when a case
takes too long, or when the parser ends the process, and continues with the case that follows.
"""

import argparse
import collections
import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

SECONDS, MEMORY = 10, 2**30
# What `command_line.run_command` prints as one line.
MESSAGES = (ValueError, OSError, RuntimeError)
MOST_MESSAGE = 2000


@dataclasses.dataclass(frozen=True)
class Format:
    """One format of files.

    Attributes:
      make: writes valid files into an empty folder.
      read: reads them, all values included; raises what the parser raises.
      files: which files are damaged, as a pattern.
      words: that are put into texts.
      names_file: whether each message names a file; values that no single file has go without.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], object]
    files: str
    words: tuple[bytes, ...] = ()
    names_file: bool = True


# ------------------------------------------------------- damages -----------------------------------------------------

_BRACKETS = (b"[" * 300, b"[" * 50_000, b'{"a":' * 2000, b"(" * 3000)
JSON_WORDS = (
    *(b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"9" * 5000, b"[]", b"{}", b'""', b"18446744073709551616"),
    *(
        b'"\\ud800"',
        b'"\\u0000"',
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"3.5",
        b'"a"',
        b'{"a": 1, "a": 2}',
        *_BRACKETS,
    ),
)
GIN_WORDS = (
    *(b"%A", b"@T5Config()", b"@gin.REQUIRED", b"%gin.REQUIRED", b"include 'main.gin'\n", b"\xef\xbb\xbf", b"\x00"),
    *(b"\xff", b"'\\ud800'", b"import json\n", b"= =", b"9" * 5000, b"-" * 3000, b'"""', *_BRACKETS),
)
YAML_WORDS = (b"&a [*a, *a]", b"*a", b"<<: *a\n", b"!!python/object:os.system", b"? ", b"| ", b"---\n", *JSON_WORDS)
_NUMBERS = (b"\xff" * 4, b"\xff" * 8, b"\x7f" + b"\xff" * 3, b"\x00" * 8, b"\xff\xff\xff\x7f", b"\x80")


def damaged(content: bytes, rng: np.random.Generator, words: tuple[bytes, ...]) -> bytes:
    """The content with one to four damages; half of the contents keep their length, and get further into a parser."""
    if rng.random() < 0.5:
        return _damaged_once(content, rng, int(rng.choice([0, 0, 1, 5])), words)
    for _ in range(int(rng.integers(1, 5))):
        content = _damaged_once(content, rng, int(rng.integers(0, 8 if words else 6)), words)
    return content[: 4 * 2**20]


def _damaged_once(content: bytes, rng: np.random.Generator, kind: int, words: tuple[bytes, ...]) -> bytes:
    start, stop = sorted(int(place) for place in rng.integers(0, len(content) + 1, 2))
    # Near damages find more than those that take half of the file away.
    stop = min(stop, start + int(rng.integers(1, 64)))
    if kind == 0:
        if not content:
            return b"\0"
        at = min(start, len(content) - 1)
        return content[:at] + bytes([content[at] ^ (1 << int(rng.integers(0, 8)))]) + content[at + 1 :]
    if kind == 1:
        return content[:start] + rng.bytes(stop - start) + content[stop:]
    if kind == 2:
        return content[:start] + content[stop:]
    if kind == 3:
        return content[:start] + content[start:stop] * int(rng.choice([2, 3, 1000])) + content[stop:]
    if kind == 4:
        return content[:start]
    if kind == 5:
        number = _NUMBERS[int(rng.integers(0, len(_NUMBERS)))]
        return content[:start] + number + content[start + len(number) :]
    word = words[int(rng.integers(0, len(words)))]
    if kind == 6:
        return content[:start] + word + content[stop:]
    # In the place of a whole value.
    ends = [end for end in (content.find(mark, start) for mark in (b",", b"\n", b"}", b"]")) if end >= 0]
    begin = max(content.rfind(mark, 0, start) for mark in (b":", b",", b"=", b"[", b"\n")) + 1
    return content[:begin] + word + content[min(ends, default=len(content)) :]


# ------------------------------------------------- the parsers' process ----------------------------------------------


def _cases(name: str, seed: int, first: int, last: int, valid: Path, place: Path) -> Iterator[int]:
    """Writes one case after the other to `place`."""
    form = _format(name)
    files = sorted(file for file in valid.glob(form.files) if file.is_file())
    for case in range(first, last):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(valid, place)
        rng = np.random.default_rng([seed, case, *name.encode()])
        file = files[int(rng.integers(0, len(files)))]
        (place / file.relative_to(valid)).write_bytes(damaged(file.read_bytes(), rng, form.words))
        yield case


def child(names: list[str], seed: int, first: int, last: int, folder: Path, keep: Path | None) -> None:
    """Reads the cases of formats, of the first one from `first` on. Prints a line of JSON before and after each."""
    real_out, sys.stdout = sys.stdout, sys.stderr

    def tell(**news: object) -> None:
        print(json.dumps(news), file=real_out, flush=True)

    for number, name in enumerate(names):
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        form, valid, place = _format(name), folder / name / "valid", folder / name / "case"
        if not valid.exists():
            valid.mkdir(parents=True)
            form.make(valid)
        form.read(valid)  # Libraries that are imported and compiled once do not count.
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
        for case in _cases(name, seed, 0 if number else first, last, valid, place):
            tell(name=name, case=case)
            began = time.monotonic()
            outcome, words = _outcome(form, place)
            tell(name=name, done=case, outcome=outcome, words=words, seconds=time.monotonic() - began)
            if keep is not None and outcome not in ("success", "message"):
                shutil.copytree(place, keep / f"{name}-{case}", dirs_exist_ok=True)
        # Not getrusage's: it counts the memory of the process that this one was forked from.
        status = Path("/proc/self/status").read_text()
        tell(name=name, peak=int(status.partition("VmHWM:")[2].split()[0]) * 1024)


def _format(name: str) -> Format:
    from tests import fuzzing_formats

    return fuzzing_formats.FORMATS[name]


def _outcome(form: Format, place: Path) -> tuple[str, str]:
    try:
        form.read(place)
    except SystemExit as error:
        return ("message", str(error)) if isinstance(error.code, str) else ("SystemExit", "")
    except MESSAGES as error:
        if type(error) in (RecursionError, NotImplementedError, UnicodeDecodeError, UnicodeEncodeError):
            return type(error).__name__, traceback.format_exc()
        message = str(error)
        if not message or len(message) > MOST_MESSAGE:
            return "unclear message", f"{type(error).__name__} of {len(message)} characters: {message[:300]}"
        if form.names_file and str(place) not in message and not any(file.name in message for file in place.rglob("*")):
            return "no file named", f"{type(error).__name__}: {message[:300]}"
        return "message", message
    except BaseException as error:
        return type(error).__name__, traceback.format_exc()
    return "success", ""


# --------------------------------------------------- the watching process --------------------------------------------


@dataclasses.dataclass
class Result:
    """What the cases of a format came to: outcomes by name, and the failures in words."""

    outcomes: collections.Counter[str]
    failures: list[tuple[int, str, str]]
    slowest: float = 0.0
    peak: int = 0


def run(
    names: Sequence[str], cases: int, seed: int, folder: Path, keep: Path | None = None, seconds: float = SECONDS
) -> dict[str, Result]:
    """Runs cases `[0, cases)` of some formats in a folder."""
    results = {name: Result(collections.Counter(), []) for name in names}
    left, first = list(names), 0
    while left:
        left, first = _run_child(left, first, cases, seed, folder, keep, seconds, results)
    return results


def _run_child(
    names: list[str],
    first: int,
    cases: int,
    seed: int,
    folder: Path,
    keep: Path | None,
    seconds: float,
    results: dict[str, Result],
) -> tuple[list[str], int]:
    """Runs cases until the process ends. Returns the formats that are left, and the case to continue with."""
    arguments = [*names, "--child", "--seed", str(seed), "--first", str(first), "--cases", str(cases)]
    arguments += ["--dir", str(folder), *(["--keep", str(keep)] if keep else [])]
    hung: list[int] = []
    name, at, ended = names[0], first - 1, []
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzzing", *arguments], stdout=subprocess.PIPE, stderr=log, text=True
        )
        timer = threading.Timer(0, lambda: None)
        try:
            for line in process.stdout or ():
                timer.cancel()
                news = json.loads(line)
                result = results[news["name"]]
                if "case" in news:
                    name, at = news["name"], news["case"]
                    # A parser that a machine of many tasks keeps waiting is not a hang.
                    timer = threading.Timer(2 * seconds, lambda at=at: (hung.append(at), process.kill()))
                    timer.start()
                elif "done" in news:
                    outcome = news["outcome"] if news["seconds"] < seconds else "too slow"
                    result.outcomes[outcome] += 1
                    result.slowest = max(result.slowest, news["seconds"])
                    if outcome not in ("success", "message"):
                        result.failures.append((news["done"], outcome, news["words"]))
                else:
                    ended.append(news["name"])
                    result.peak = max(result.peak, news["peak"])
        finally:
            timer.cancel()
            process.kill()
            code = process.wait()
    words = (folder / "log.txt").read_text()[-2000:]
    left = [other for other in names if other not in ended]
    if not left:
        return [], 0
    if left[0] != name or results[name].outcomes.total() > at or at < (first if name == names[0] else 0):
        raise RuntimeError(f"{left[0]}: the valid files cannot be read: {words}")
    outcome = "hang" if hung else signal.Signals(-code).name if code < 0 else f"exit code {code}"
    results[name].outcomes[outcome] += 1
    results[name].failures.append((at, outcome, words))
    if keep is not None:
        shutil.copytree(folder / name / "case", keep / f"{name}-{at}", dirs_exist_ok=True)
    return left, at + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", help="names of formats (all)")
    parser.add_argument("--cases", type=int, default=1000, help="of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="where failing cases are copied")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--dir", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.formats, args.seed, args.first, args.cases, args.dir, args.keep)
        return 0
    from tests.fuzzing_formats import FORMATS

    failed = 0
    print(
        f"{'format':16} {'cases':>7} {'success':>8} {'message':>8} {'slowest':>8} {'memory':>8}  failures", flush=True
    )
    for name in args.formats or FORMATS:
        with tempfile.TemporaryDirectory(prefix="limba-fuzzing-") as folder:
            result = run([name], args.cases, args.seed, Path(folder), args.keep)[name]
        bad = {key: count for key, count in result.outcomes.items() if key not in ("success", "message")}
        good = f"{result.outcomes['success']:8,} {result.outcomes['message']:8,}"
        print(
            f"{name:16} {args.cases:7,} {good} {result.slowest:7.2f}s {result.peak / 2**20:6.0f}MB  {bad or 'none'}",
            flush=True,
        )
        for case, outcome, words in result.failures[:8]:
            print(f"    case {case}, {outcome}: {words.strip()[-900:]}", flush=True)
        failed += len(result.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
