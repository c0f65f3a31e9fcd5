"""What each command costs from the start of its process to its end, and where that time goes.

    python -m benchmarks.startup --work runs/startup
    python -m benchmarks.startup --work runs/startup --against ../other-checkout --rounds 5
    python -m benchmarks.startup --work runs/startup --t5x_dir ../t5x --t5x_python ../t5x-venv/bin/python
    python -m benchmarks.startup --work runs/startup --parts
    python -m benchmarks.startup --work runs/startup --second_step --rounds 5

The commands are those of a user with a run on the quickstart's corpus. WORK holds the corpus, its vocabulary and runs
of two steps; what is missing is made first, which takes a minute. Prints a line for each command: seconds, cpu-seconds
(all threads) and peak memory, the median of the rounds; with --against also the other checkout's, and the median of the
rounds' ratios with their range. Both sides run the same command in each round, one after the other, and every other
round in reverse order. They share the data; each has a run that it made itself.

"cold" commands get an empty compilation cache each time, all others one that an unmeasured round has filled.
--t5x_dir compares with T5X's own `train.py`: both train startup_t5x.gin, the same training under T5X's names. T5X
compiles anew each time, as it does for its users.
--parts prints seconds by part in place of this (`benchmarks/startup_parts.py` says how), of this checkout.
--second_step prints how long a warm training of this checkout takes until the checkpoint of its second step stands, and
until its process ends: the median of the rounds, and their range.
"""

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
_PARTS = Path(__file__).with_name("startup_parts.py")
_RECIPE = HERE / "benchmarks/startup.gin"
_T5X_RECIPE = "benchmarks/startup_t5x.gin"
_PROMPT = "Return a <extra_id_0> of the arguments."


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one process, children that it waited for included: seconds, cpu-seconds, peak resident memory in MiB."""

    seconds: float
    cpu_seconds: float
    memory: float


@dataclasses.dataclass(frozen=True)
class Side:
    """What runs a command: a checkout of this repository, or T5X of a checkout of it.

    Attributes:
      checkout: of the sources.
      t5x_python: the interpreter of T5X; None for a checkout of this repository.
    """

    checkout: Path
    t5x_python: str | None = None

    def program(self, arguments: Sequence[str]) -> list[str]:
        """The command line for arguments of `limba`; T5X knows those of `train` alone."""
        if self.t5x_python is None:
            return [sys.executable, "-m", "limba", *arguments]
        return [self.t5x_python, "-m", "t5x.train", f"--gin_search_paths={HERE},{self.checkout}", *arguments[1:]]

    @property
    def folder(self) -> Path:
        """The working directory: gin files are those of the checkout, and for T5X of this one."""
        return self.checkout if self.t5x_python is None else HERE

    @property
    def python_path(self) -> str:
        if self.t5x_python is None:
            return str(self.checkout)
        return os.pathsep.join([str(HERE), str(self.checkout), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line of `limba`; `{out}` stands for a folder that does not exist yet.

    Attributes:
      cold: compiles with an empty cache.
      text: for its standard input.
    """

    arguments: Sequence[str]
    cold: bool = False
    text: str = ""


def training(work: Path, model_dir: str) -> list[str]:
    """A training of two steps on the quickstart's corpus, an evaluation of one batch and a checkpoint."""
    return [
        f"--gin_file={_RECIPE}",
        "--gin.MIXTURE_OR_TASK_NAME='quickstart_span_corruption'",
        "--gin.MIXTURE_OR_TASK_MODULE='limba.addons.examples.quickstart'",
        "--gin.VOCAB_SIZE=4096",
        *("--gin.RANDOM_SEED=0", "--gin.DATASET_SEED=0"),
        f"--gin.VOCABULARY_FILE='{work}/vocab/spiece.model'",
        f"--gin.MODEL_DIR='{model_dir}'",
        *("--gin.TRAIN_STEPS=2", "--gin.EVAL_STEPS=1", "--gin.train_script.train.run_eval_before_training=False"),
    ]


def t5x_training(work: Path) -> Command:
    """The same with the recipe that T5X can train, too."""
    vocabulary = f"--gin.VOCABULARY_FILE='{work}/vocab/spiece.model'"
    return Command(["train", f"--gin_file={_T5X_RECIPE}", vocabulary, "--gin.MODEL_DIR='{out}'"])


def run_of(checkout: Path, work: Path) -> Path:
    """The run of two steps that a checkout has made: the gin files in it name that checkout's modules."""
    return work / f"run-{checkout.name}"


def commands(work: Path, checkout: Path = HERE) -> dict[str, Command]:
    """The measured commands by name."""
    run, task = str(run_of(checkout, work)), "quickstart_span_corruption"
    train = ["train", *training(work, "{out}")]
    checked = training(work, "runs/none")
    return {
        "gin-check": Command(["gin-check", "gin/recipes/quickstart.gin"]),
        "lint": Command(["lint", *checked]),
        "plan": Command(["plan", "--estimate_only", "--topology=v4-8", *checked]),
        "preview": Command(["preview", task, "--module=limba.addons.examples.quickstart"]),
        "infer": Command(["infer", f"--run_dir={run}", f"--input={_PROMPT}"]),
        "infer cold": Command(["infer", f"--run_dir={run}", f"--input={_PROMPT}"], cold=True),
        "try": Command(["try", run], text=_PROMPT + "\n"),
        "eval": Command(["eval", f"--run_dir={run}", "--gin.EVAL_STEPS=1"]),
        "convert": Command(["convert", "to-hf", run, "{out}"]),
        "train": Command(train),
        "train cold": Command(train, cold=True),
    }


def environment(side: Side, work: Path, cache: Path) -> dict[str, str]:
    """For a command of a side: offline, on the CPU, with this compilation cache."""
    # Without bytecode, modules that are imported from sources are compiled each time; users' are not.
    others = ("JAX_", "LIMBA_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return kept | {
        "PYTHONPATH": side.python_path,
        "LIMBA_QUICKSTART_DIR": str(work),
        "LIMBA_COMPILATION_CACHE": str(cache),
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
    }


def run(command: Command, side: Side, work: Path, cache: Path, script: Sequence[str] = ()) -> tuple[Cost, str]:
    """Runs a command to its end; its cost and what it wrote.

    Args:
      script: with its arguments, in place of `-m limba`.

    Raises:
      RuntimeError: if it fails, with the end of its messages.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        caches = Path(folder) / "cache" if command.cold else cache
        arguments = [argument.replace("{out}", str(out)) for argument in command.arguments]
        line = [sys.executable, *script, *arguments] if script else side.program(arguments)
        with tempfile.TemporaryFile() as written, tempfile.TemporaryFile() as typed:
            typed.write(command.text.encode())
            typed.seek(0)
            began = time.monotonic()
            process = subprocess.Popen(
                line, cwd=side.folder, env=environment(side, work, caches), stdin=typed, stdout=written, stderr=written
            )
            _, status, used = os.wait4(process.pid, 0)
            seconds = time.monotonic() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            written.seek(0)
            text = written.read().decode(errors="replace")
    # `limba lint` ends with 1 where it has found something.
    if process.returncode not in ((0, 1) if command.arguments[0] == "lint" else (0,)):
        raise RuntimeError(f"{' '.join(line)} in {side.folder} ended with {process.returncode}:\n{text[-3000:]}")
    return Cost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024), text


def prepare(work: Path, checkouts: Sequence[Path]) -> None:
    """Makes what WORK lacks: corpus, vocabulary, a run of each checkout."""
    vocabulary = work / "vocab" / "spiece.model"
    if not list((work / "corpus").glob("train-*.jsonl")):
        subprocess.run(
            [sys.executable, "-m", "limba.addons.examples.python_docs", "--out", work / "corpus"], cwd=HERE, check=True
        )
    if not vocabulary.is_file():
        files = [
            "--data_files",
            str(work / "corpus" / "train-*.jsonl"),
            "--vocab_size",
            "4096",
            "--out",
            str(vocabulary),
        ]
        subprocess.run([sys.executable, "-m", "limba", "vocab", "build", *files], cwd=HERE, check=True)
    for checkout in checkouts:
        model_dir = run_of(checkout, work)
        if not (model_dir / "checkpoint_2").is_dir():
            first = Command(["train", *training(work, str(model_dir))])
            run(first, Side(checkout), work, work / "cache-unmeasured")


def measure(
    command_of: Sequence[Command], sides: Sequence[Side], work: Path, caches: Sequence[Path], rounds: int
) -> list[list[Cost]]:
    """The costs of each side's command, round by round, after an unmeasured round."""
    costs: list[list[Cost]] = [[] for _ in sides]
    for number in range(-1, rounds):
        order = range(len(sides)) if number % 2 == 0 else reversed(range(len(sides)))
        for side in order:
            cost, _ = run(command_of[side], sides[side], work, caches[side])
            if number >= 0:
                costs[side].append(cost)
    return costs


def report(name: str, costs: Sequence[Sequence[Cost]]) -> dict:
    """Medians of each side, and the other side's cost over this one's: median, smallest and largest of the rounds."""
    line: dict = {"command": name, "rounds": len(costs[0])}
    for side, of_side in zip(("here", "other"), costs, strict=False):
        line[side] = {
            field.name: round(statistics.median(getattr(cost, field.name) for cost in of_side), 2)
            for field in dataclasses.fields(Cost)
        }
    if len(costs) > 1:
        for field in dataclasses.fields(Cost):
            ratios = [getattr(b, field.name) / getattr(a, field.name) for a, b in zip(*costs, strict=True)]
            spread = (statistics.median(ratios), min(ratios), max(ratios))
            line[f"{field.name}_ratio"] = [round(ratio, 2) for ratio in spread]
    return line


def show_parts(chosen: Mapping[str, Command], work: Path, cache: Path) -> None:
    """Prints where the seconds of each command go."""
    for name, command in chosen.items():
        run(command, Side(HERE), work, cache)
        with tempfile.NamedTemporaryFile("r") as answer:
            began = time.time()
            cost, _ = run(command, Side(HERE), work, cache, [str(_PARTS), answer.name])
            told = json.loads(answer.read())
        parts = {
            "interpreter": [told["began"] - began],
            **told["parts"],
            "exit": [began + cost.seconds - told["ended"]],
        }
        rounded = {part: [round(x, 2) for x in spent] for part, spent in parts.items() if spent[0] >= 0.005}
        line = {"command": name, "seconds": round(cost.seconds, 2), "cpu_seconds": round(cost.cpu_seconds, 2)}
        print(json.dumps({**line, "parts": rounded, **told["memory"]}), flush=True)


def seconds_to_second_step(work: Path, cache: Path) -> dict[str, float]:
    """Of a training: from its command to the checkpoint of its second step, and to the end of its process.

    Raises:
      RuntimeError: if it fails.
    """
    side, found = Side(HERE), {}
    with tempfile.TemporaryDirectory() as folder:
        line = side.program(["train", *training(work, f"{folder}/out")])
        began = time.monotonic()
        process = subprocess.Popen(
            line, cwd=HERE, env=environment(side, work, cache), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None:
            if "checkpoint" not in found and Path(folder, "out", "checkpoint_2").is_dir():
                found["checkpoint"] = time.monotonic() - began
            time.sleep(0.01)
        found["end"] = time.monotonic() - began
    if process.returncode or "checkpoint" not in found:
        raise RuntimeError(f"{' '.join(line)} ended with {process.returncode}, and left no checkpoint.")
    return found


def show_second_step(work: Path, cache: Path, rounds: int) -> None:
    """Prints the medians and ranges of `seconds_to_second_step`, after a training that fills the cache."""
    measured = [seconds_to_second_step(work, cache) for _ in range(rounds + 1)][1:]
    of_each = {name: sorted(x[name] for x in measured) for name in ("checkpoint", "end")}
    shown = {name: [round(y, 2) for y in (statistics.median(x), x[0], x[-1])] for name, x in of_each.items()}
    print(json.dumps({"command": "train", "seconds_to": shown}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of the quickstart's corpus, vocabulary and run"
    )
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout of this repository")
    parser.add_argument("--t5x_dir", type=Path, metavar="PATH", help="a checkout of T5X, to compare `train` with")
    parser.add_argument("--t5x_python", default=sys.executable, help="a Python with T5X's dependencies (this one)")
    parser.add_argument("--rounds", type=int, default=3, help="measured runs of each command and side (3)")
    parser.add_argument("--only", nargs="+", metavar="COMMAND", help="of the commands, by their names in the output")
    parser.add_argument("--parts", action="store_true", help="seconds by part in place of the comparison")
    parser.add_argument(
        "--second_step", action="store_true", help="seconds to the checkpoint of a training's second step"
    )
    flags = parser.parse_args()
    work = flags.work.absolute()
    chosen = {name: x for name, x in commands(work).items() if not flags.only or name in flags.only}
    if not chosen:
        parser.error(f"--only {' '.join(flags.only)}: the commands are {', '.join(commands(work))}")
    checkouts = [HERE, *([flags.against.resolve()] if flags.against else [])]
    prepare(work, checkouts)
    if flags.t5x_dir:
        sides = [Side(HERE), Side(flags.t5x_dir.resolve(), flags.t5x_python)]
        compared = {"train as T5X": [t5x_training(work)] * 2}
    else:
        sides = [Side(checkout) for checkout in checkouts]
        compared = {name: [commands(work, side.checkout)[name] for side in sides] for name in chosen}
    caches = [work / f"cache-{number}" for number in range(len(sides))]
    try:
        if flags.parts:
            show_parts(chosen, work, caches[0])
            return
        if flags.second_step:
            show_second_step(work, caches[0], flags.rounds)
            return
        for name, of_sides in compared.items():
            print(json.dumps(report(name, measure(of_sides, sides, work, caches, flags.rounds))), flush=True)
    finally:
        for cache in (*caches, work / "cache-unmeasured"):
            shutil.rmtree(cache, ignore_errors=True)


if __name__ == "__main__":
    main()
