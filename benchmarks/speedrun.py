"""nanoT5's speedrun (docs/speedrun.md): pre-training, held-out loss, fine-tuning and ROUGE-L, for three seeds.

    bash launch/speedrun.sh                             # installs, then runs this
    python -m benchmarks.speedrun --work runs/speedrun --print
    python -m benchmarks.speedrun --work runs/speedrun --plan h100-1=2.5 v5e-4=1.2

WORK has the data, the runs `seed-N/pretrained` and `seed-N/instructions`, and at the end `leaderboard.md`,
`pretraining.html` and `instructions.html`. A run that is at its last step is not begun again; another resumes from its
checkpoint. Every figure of the table is read from the runs' metrics.jsonl.
"""

import argparse
import dataclasses
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from limba.checkpoint_files import directories, run_folder
from limba.reports import goodput, results_table, writers

HERE = Path(__file__).resolve().parents[1]
PRETRAINED, INSTRUCTIONS = "pretrained", "instructions"
RECIPES = {PRETRAINED: "gin/recipes/speedrun.gin", INSTRUCTIONS: "gin/recipes/speedrun_instructions.gin"}
# Steps of three seeds: two epochs of 75,417 instances in batches of 8 (arXiv:2204.07705 counts them).
_STEPS = {PRETRAINED: 3 * 65_536, INSTRUCTIONS: 3 * 18_855}
# Of nanoT5 (arXiv:2309.02373): the loss after 65,536 x 128 rows, ROUGE-L after 53,332 x 256.
NANOT5_LOSS, NANOT5_ROUGE = 1.953, 40.7
_REMARK = "nanoT5's loss is that of 65,536 x 128 rows, its RougeL that of a longer pre-training, 53,332 x 256 rows."


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speedrun", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", required=True, type=Path, metavar="DIR", help="a folder for data, runs and results")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", default=[0, 1, 2], help="0 1 2")
    parser.add_argument("--pretrain_gin", nargs="+", metavar="FILE", default=[], help="gin files after the recipe")
    parser.add_argument("--finetune_gin", nargs="+", metavar="FILE", default=[], help="the same of the fine-tuning")
    parser.add_argument("--price", metavar="P", help="of an hour of this machine, for the reports")
    parser.add_argument(
        "--plan", nargs="+", type=_device, metavar="DEVICE=PRICE", help="hours and price; trains nothing"
    )
    parser.add_argument("--print", action="store_true", help="the table of what is there; trains nothing")
    flags = parser.parse_args(argv)
    flags.work = flags.work.resolve()
    gin_files = {PRETRAINED: flags.pretrain_gin, INSTRUCTIONS: flags.finetune_gin}
    if flags.plan:
        for device, price in flags.plan:
            _plan(device, price, gin_files)
        return
    if not flags.print:
        _run(flags.work, "limba.addons.instructions.speedrun")
        for seed in flags.seeds:
            for stage in RECIPES:
                _train(flags.work, seed, stage, gin_files[stage])
    found = results(flags.work, flags.seeds)
    print(table(found))
    if not found:
        return
    line = leaderboard_line(found, [*flags.pretrain_gin, *flags.finetune_gin])
    (flags.work / "leaderboard.md").write_text(line)
    print(f"\nFor docs/leaderboard.md ({flags.work / 'leaderboard.md'}):\n\n{line}", flush=True)
    for stage, page in ((PRETRAINED, "pretraining.html"), (INSTRUCTIONS, "instructions.html")):
        runs = [str(_folder(flags.work, result.seed, stage)) for result in found]
        price = ["--price", flags.price] if flags.price else []
        _run(flags.work, "limba", "report", *runs, "--out", str(flags.work / page), *price)


# ------------------------------------------------------ running ------------------------------------------------------


def _folder(work: Path, seed: int, stage: str) -> Path:
    return work / f"seed-{seed}" / stage


def _train(work: Path, seed: int, stage: str, gin_files: Sequence[str]) -> None:
    model_dir = _folder(work, seed, stage)
    if _is_done(model_dir):
        print(f"== seed {seed}, {stage}: done", flush=True)
        return
    print(f"== seed {seed}, {stage}", flush=True)
    bindings = {"MODEL_DIR": model_dir, "VOCABULARY_FILE": work / "vocab" / "spiece.model"}
    if stage == INSTRUCTIONS:
        bindings["INITIAL_CHECKPOINT_PATH"] = _folder(work, seed, PRETRAINED)
    files = [f"--gin_file={Path(file).resolve() if Path(file).exists() else file}" for file in gin_files]
    _run(
        work,
        "limba",
        "train",
        f"--gin_file={RECIPES[stage]}",
        *files,
        *(f"--gin.{name}='{value}'" for name, value in bindings.items()),
        *(f"--gin.{name}={seed}" for name in ("RANDOM_SEED", "DATASET_SEED")),
    )


def _is_done(model_dir: Path) -> bool:
    """Whether the last checkpoint is that of the last step; the evaluation of a step is before its checkpoint."""
    steps = directories.checkpoint_steps(model_dir) if model_dir.is_dir() else []
    return bool(steps) and steps[-1] == run_folder.load_run_info(model_dir)["total_steps"]


def _run(work: Path, module: str, *arguments: str) -> None:
    """Runs a Python program. Asked to stop, it is left to end by itself: a training saves a checkpoint first."""
    environment = os.environ | {"LIMBA_SPEEDRUN_DIR": str(work)}
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=HERE, env=environment)
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        code = _wait(process)
    finally:
        signal.signal(signal.SIGTERM, before)
    if code:
        raise SystemExit(code if code > 0 else 128 - code)


def _wait(process: subprocess.Popen) -> int:
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # It has the terminal's Ctrl-C too.
            continue


def _device(text: str) -> tuple[str, float]:
    device, _, price = text.partition("=")
    try:
        return device, float(price)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not DEVICE=PRICE of a chip-hour, such as h100-1=2.5") from None


def _plan(device: str, price: float, gin_files: dict[str, list[str]]) -> None:
    for stage, recipe in RECIPES.items():
        print(f"== {device}, {stage}: three seeds", flush=True)
        flags = ["--estimate_only", "--topology", device, "--price", str(price), f"--gin.TRAIN_STEPS={_STEPS[stage]}"]
        _run(HERE, "limba", "plan", *flags, recipe, *gin_files[stage])


# ------------------------------------------------------ the table ----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Result:
    """What a seed has reached.

    Attributes:
      loss: nats per target token of the held-out rows.
      rouge_one, rouge: ROUGE-L with one reference, as nanoT5 measured it, and with the best of all.
      hours: of both trainings, evaluations included.
      rows: of the pre-training, "65,536 x 128".
      devices: such as "1 NVIDIA H100"; "" if it is not recorded.
      commit: of Limba.
    """

    seed: int
    loss: float
    rouge_one: float
    rouge: float
    hours: tuple[float, float]
    rows: str
    devices: str
    commit: str


def results(work: Path, seeds: Sequence[int]) -> list[Result]:
    """Of the seeds whose two trainings are done."""
    done = [seed for seed in seeds if all(_is_done(_folder(work, seed, stage)) for stage in RECIPES)]
    return [_result(work, seed) for seed in done]


def _result(work: Path, seed: int) -> Result:
    pretrained, instructions = (_folder(work, seed, stage) for stage in (PRETRAINED, INSTRUCTIONS))
    info = run_folder.load_run_info(pretrained)
    losses = writers.read_metrics(pretrained, f"training_eval/{info['task']}")
    answers = writers.read_metrics(instructions, f"inference_eval/{run_folder.load_run_info(instructions)['task']}")
    return Result(
        seed,
        losses[-1]["nats_per_target_token"],
        answers[-1]["eval/rougeL_one_reference"],
        answers[-1]["eval/rougeL"],
        (_hours(pretrained), _hours(instructions)),
        f"{info['total_steps']:,} x {info['batch_size']:,}",
        _devices(info),
        _commit(info),
    )


def _hours(run: Path) -> float:
    return sum(max(0.0, attempt.ended - attempt.began) for attempt in goodput.read_attempts(run)) / 3600


def _devices(info: dict[str, Any]) -> str:
    devices = info.get("environment", {}).get("devices", {})
    return ", ".join(f"{count} {kind}" for kind, count in devices.items())


def _commit(info: dict[str, Any]) -> str:
    commit = info.get("commits", {}).get("limba", "")
    return commit[:10] + ("+changes" if commit.endswith("-dirty") else "")


def table(found: Sequence[Result]) -> str:
    """A line for each seed, their mean with half of the range, and nanoT5's figures."""
    if not found:
        return "No seed has finished both trainings yet."
    head = [
        "",
        "held-out loss",
        "RougeL, one reference",
        "RougeL, best reference",
        "hours, pre-training",
        "fine-tuning",
    ]
    lines = [head]
    for x in found:
        figures = [f"{x.loss:.4f}", f"{x.rouge_one:.2f}", f"{x.rouge:.2f}", *(f"{hours:.2f}" for hours in x.hours)]
        lines.append([f"seed {x.seed}", *figures])
    lines.append(["mean", *_means(found), *(f"{statistics.mean(x.hours[i] for x in found):.2f}" for i in (0, 1))])
    lines.append(["nanoT5", f"{NANOT5_LOSS}", f"{NANOT5_ROUGE}", "", "", ""])
    return "\n".join([*results_table.aligned_behind_names(lines), _REMARK])


def _means(found: Sequence[Result]) -> list[str]:
    figures: list[tuple[Callable[[Result], float], int]] = [
        (lambda x: x.loss, 4),
        (lambda x: x.rouge_one, 2),
        (lambda x: x.rouge, 2),
    ]
    return [_mean([of(x) for x in found], digits) for of, digits in figures]


def _mean(values: Sequence[float], digits: int) -> str:
    spread = f" ± {(max(values) - min(values)) / 2:.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def leaderboard_line(found: Sequence[Result], gin_files: Sequence[str]) -> str:
    """The line of the table of docs/leaderboard.md, with its head."""
    head = ["commit", "devices", "rows", "other than the rules", "held-out loss", "RougeL, one reference"]
    head += ["RougeL, best reference", "hours a seed", "seeds"]
    hours = statistics.mean(sum(x.hours) for x in found)
    cells = [found[0].commit, found[0].devices, found[0].rows, ", ".join(map(os.path.basename, gin_files))]
    cells += [*_means(found), f"{hours:.2f}", str(len(found))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), cells)) + "\n"


if __name__ == "__main__":
    main()
