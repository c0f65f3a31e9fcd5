"""What a model has learned for its hours: rows of settings, trained on one corpus and measured on the same targets.

    python -m benchmarks.quality --work runs/quality
    python -m benchmarks.quality --work runs/quality --rows quickstart adafactor --seeds 0 1 2
    python -m benchmarks.quality --work runs/quality --corpus 'corpus/{split}-*.jsonl' --vocab_size 8192
    python -m benchmarks.quality --work runs/quality --print

Each row of `benchmarks/quality_rows.py` is the quickstart's recipe with bindings of its own. A row is trained for each
seed (of initialization and of the data's order) by `limba train`; the corruption of the validation split is always
the same. WORK keeps corpus, vocabulary, runs, and a line for each run in results.jsonl; what is there is not made
again. --print only prints the table, best rows first, as docs/leaderboard.md has it.

Figures are those of docs/evaluate.md, "Figures of text": nats of text targets, renormalized over text pieces. cpu-s are
those of the training's process, evaluations and start included. Rows differ in what a step costs: compare rows of about
the same cpu-s, on one machine.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.quality_rows import ROWS, Row

HERE = Path(__file__).resolve().parents[1]
RESULTS = "results.jsonl"
_RECIPE = "gin/recipes/quickstart.gin"
_TASK = "quickstart_span_corruption"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", required=True, type=Path, metavar="DIR", help="a folder for corpus, runs and results")
    parser.add_argument("--rows", nargs="+", metavar="NAME", choices=list(ROWS), default=list(ROWS), help="some rows")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", default=[0], help="one run of each row for each")
    parser.add_argument("--corpus", metavar="FILES", help="files of your own, with {split} for train and validation")
    parser.add_argument("--vocab_size", type=int, default=4096, help="pieces, 100 sentinels among them (4096)")
    parser.add_argument("--print", action="store_true", help="print the table of what was run, and train nothing")
    flags = parser.parse_args(argv)
    flags.work = flags.work.resolve()
    if not flags.print:
        _prepare(flags.work, flags.corpus, flags.vocab_size)
        for seed in flags.seeds:
            for name in flags.rows:
                _train(flags.work, name, ROWS[name], seed, flags.vocab_size)
    print(table(_results(flags.work)))


# ------------------------------------------------------ running ------------------------------------------------------


def _prepare(work: Path, corpus: str | None, vocab_size: int) -> None:
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "corpus").exists():
        if corpus is None:
            _run(work, ["-m", "limba.addons.examples.python_docs", "--out", str(work / "corpus")])
        else:
            _link(work / "corpus", corpus)
    vocabulary = work / "vocab" / "spiece.model"
    if not vocabulary.exists():
        files = ["--data_files", str(work / "corpus" / "train-*.jsonl"), "--out", str(vocabulary)]
        _run(work, ["-m", "limba", "vocab", "build", "--vocab_size", str(vocab_size), *files])


def _link(folder: Path, corpus: str) -> None:
    """Links to the files of a corpus, under the names that the quickstart's tasks read."""
    place = Path(corpus).parent
    found = {split: sorted(place.glob(Path(corpus).name.format(split=split))) for split in ("train", "validation")}
    for split, files in found.items():
        if not files or any(file.suffix != ".jsonl" for file in files):
            named = ", ".join(map(str, files)) or "no file"
            raise SystemExit(f"error: --corpus {corpus}: of the split {split} it names {named}; give .jsonl.")
    folder.mkdir()
    for split, files in found.items():
        for file in files:
            (folder / f"{split}-{file.name}").symlink_to(file.resolve())


def _train(work: Path, name: str, row: Row, seed: int, vocab_size: int) -> None:
    if any((result["row"], result["seed"]) == (name, seed) for result in _results(work)):
        return
    print(f"== {name}, seed {seed}: {row.why}", flush=True)
    model_dir = work / "runs" / f"{name}-{seed}"
    shutil.rmtree(model_dir, ignore_errors=True)  # of a row that was interrupted: its seconds would be missing
    bindings = [
        f"MODEL_DIR = '{model_dir}'",
        f"VOCABULARY_FILE = '{work}/vocab/spiece.model'",
        f"VOCAB_SIZE = {vocab_size}",
        *(f"{seed_name} = {seed}" for seed_name in ("RANDOM_SEED", "DATASET_SEED")),
        f"TRAIN_STEPS = {row.steps}",
        "EVAL_PERIOD = 1000000",
        "checkpoints.SaveCheckpointConfig.period = 1000000",
        *row.bindings,
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    files = [f"--gin_file={file}" for file in (_RECIPE, *row.gin_files)]
    _run(work, ["-m", "limba", "train", *files, *(f"--gin.{x.replace(' = ', '=', 1)}" for x in bindings)])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [json.loads(text) for text in (model_dir / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if line["dataset"] == f"training_eval/{_TASK}"]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True)
    result = {
        "row": name,
        "seed": seed,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "commit": commit.stdout.strip(),
        "machine": _processor(),
        **{key: x for key, x in evaluations[-1].items() if not key.startswith("timing/")},
    }
    with (work / RESULTS).open("a") as file:
        file.write(json.dumps(result) + "\n")


def _run(work: Path, arguments: Sequence[str]) -> None:
    environment = {"JAX_PLATFORMS": "cpu"} | os.environ | {"LIMBA_QUICKSTART_DIR": str(work)}
    subprocess.run([sys.executable, *arguments], cwd=HERE, env=environment, check=True)


def _processor() -> str:
    names = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.processor()}"


def _cpuinfo() -> list[str]:
    file = Path("/proc/cpuinfo")
    return file.read_text().splitlines() if file.exists() else []


# ------------------------------------------------------ the table ----------------------------------------------------


def _results(work: Path) -> list[dict]:
    file = work / RESULTS
    return [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []


def table(results: Sequence[dict]) -> str:
    """A table in Markdown, a line for each row that has results: means over seeds, and half their range."""
    head = ["row", "what is other than in the quickstart"]
    head += ["nats", "renormalized", "likeliest", "steps", "cpu-s", "seeds"]
    lines = []
    for name, row in ROWS.items():
        runs = [result for result in results if result["row"] == name]
        if not runs:
            continue
        nats, renormalized, accuracy = (
            [run[key] for run in runs]
            for key in ("nats_per_text_token", "nats_per_text_token_renormalized", "text_accuracy")
        )
        cells = [
            f"`{name}`",
            row.why,
            _mean(nats),
            _mean(renormalized),
            f"{statistics.mean(accuracy):.1%}",
            str(runs[0]["step"]),
            f"{statistics.mean(run['cpu_seconds'] for run in runs):.0f}",
            str(len(runs)),
        ]
        lines.append((statistics.mean(renormalized), cells))
    rows = [head, ["---"] * len(head), *(cells for _, cells in sorted(lines))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {(max(values) - min(values)) / 2:.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


if __name__ == "__main__":
    main()
