"""Cost of one train step of a T5 for longer inputs and larger vocabularies: full attention, LongT5's, and PyTorch's T5.

    python -m benchmarks.long_inputs --size small --inputs 4096 --targets 256 --rounds 3
    python -m benchmarks.long_inputs --size laptop --inputs 512 2048 8192 --vocab_size 32128 250112 --tokens 8192 \\
        --kinds full transient-global huggingface --rounds 2 --picture cost.svg

Each pair of inputs and vocabulary is a run of its own; its sides are processes that take turns (benchmarks/sides.py):
the step of benchmarks/train_step.py, with other values of LongT5Config.encoder_attention_type or without it, and
transformers' T5 in eager PyTorch. Prints a row for each; progress goes to stderr. Ratios are what a side needs over
what the first one needs. "temporary" is the memory of the compiled step beside state and batch, by XLA; "process" the
most that a side's process held. A step that needs more memory than `--memory_gib` by XLA's count is not run.
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import sides, train_step
from limba.addons.longt5.longt5 import LongT5Config

FULL = "full"
HUGGINGFACE = "huggingface"
KINDS = ("transient-global", "local", FULL, HUGGINGFACE)
# gin/recipes/pretrain_laptop.gin's.
SIZES = train_step.SIZES | {
    "laptop": {"emb_dim": 256, "num_heads": 4, "num_encoder_layers": 4, "num_decoder_layers": 4, "mlp_dim": 512}
}
# Span corruption makes 114 targets of 512 inputs.
TARGETS_FOR_INPUTS = 114 / 512
HEAD = (
    "| inputs | pieces | rows | side | temporary, MiB | process, MiB | cpu-seconds | ratio, range |\n"
    + "|---" * 8
    + "|"
)


def build(kind: str, workload: dict[str, Any], memory_gib: float) -> sides.Side:
    given = train_step.Workload(**workload)
    if kind == HUGGINGFACE:
        return train_step._huggingface(given)
    if kind == FULL:
        run, facts = train_step._limba(given)
    else:
        sizes = given.sizes | {"encoder_attention_type": kind}
        run, facts = train_step._limba(dataclasses.replace(given, sizes=sizes), LongT5Config)
    if facts["temporary_mib"] > memory_gib * 1024:
        raise RuntimeError(f"{facts['temporary_mib']:,} MiB beside the state, more than --memory_gib {memory_gib:g}")
    return run, facts


def rows_of(args: argparse.Namespace) -> list[tuple[train_step.Workload, dict[str, Any]]]:
    """Measures every pair, prints its rows as they come, and returns workloads with a report for each side."""
    found = []
    for vocab_size in args.vocab_size:
        for inputs in args.inputs:
            sizes = train_step.T5_1_1 | SIZES[args.size] | {"vocab_size": vocab_size}
            targets = args.targets or round(inputs * TARGETS_FOR_INPUTS)
            rows = max(1, args.tokens // inputs) if args.tokens else args.batch_size
            workload = train_step.Workload(sizes, args.dtype, rows, inputs, targets)
            given = {"workload": dataclasses.asdict(workload), "memory_gib": args.memory_gib}
            label = f"{inputs} inputs, {vocab_size} pieces"
            with tempfile.TemporaryDirectory() as logs:
                reports = sides.measure(Path(__file__), label, given, [*args.kinds], 1, args.rounds, Path(logs))
            found.append((workload, reports))
            for kind, report in reports.items():
                print(_row(workload, kind, report), flush=True)
    return found


def _row(workload: train_step.Workload, kind: str, report: Any) -> str:
    sizes = f"| {workload.inputs:,} | {workload.sizes['vocab_size']:,} | {workload.batch_size} | {kind}"
    if isinstance(report, str):
        return f"{sizes} | | | {report} | |"
    temporary = f"{report['temporary_mib']:,}" if "temporary_mib" in report else ""
    low, high = report.get("cpu_seconds_ratio_range", (1, 1))
    ratio = f"{report.get('cpu_seconds_ratio', 1):.2f}, {low:.2f} to {high:.2f}"
    return f"{sizes} | {temporary} | {report['peak_memory_mib']:,} | {report['cpu_seconds']:.1f} | {ratio} |"


def draw(path: Path, found: list[tuple[train_step.Workload, dict[str, Any]]]) -> None:
    """Cpu-seconds and memory over inputs, a line for each side and vocabulary."""
    from matplotlib import figure

    picture = figure.Figure(figsize=(9, 4), layout="constrained")
    for axes, name, title in zip(
        picture.subplots(1, 2),
        ("cpu_seconds", "peak_memory_mib"),
        ("cpu-seconds for 1,000 inputs", "memory of the process, GiB"),
        strict=True,
    ):
        for kind in found[0][1]:
            for vocab_size in {workload.sizes["vocab_size"]: None for workload, _ in found}:
                points = [
                    (w.inputs, report[kind][name] / (w.batch_size * w.inputs / 1000 if name == "cpu_seconds" else 1024))
                    for w, report in found
                    if w.sizes["vocab_size"] == vocab_size and not isinstance(report[kind], str)
                ]
                if points:
                    axes.plot(*zip(*points, strict=True), marker="o", label=f"{kind}, {vocab_size:,} pieces")
        inputs = sorted({workload.inputs for workload, _ in found})
        axes.set(title=title, xlabel="inputs", xscale="log", yscale="log")
        axes.set_xticks(inputs, [f"{x:,}" for x in inputs])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    picture.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small", help="a T5 1.1 (small)")
    parser.add_argument("--inputs", type=int, nargs="+", default=[4096], help="tokens of inputs (4,096)")
    parser.add_argument("--targets", type=int, help="tokens of targets (what span corruption makes of the inputs)")
    parser.add_argument("--vocab_size", type=int, nargs="+", default=[32128], help="pieces (32,128)")
    parser.add_argument("--batch_size", type=int, default=1, help="rows (1)")
    parser.add_argument("--tokens", type=int, help="inputs of a step, in place of --batch_size")
    parser.add_argument("--dtype", choices=train_step.DTYPES, default="float32", help="of activations (float32)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS[:3], help="what is measured (Limba's three)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, of which the median counts (3)")
    parser.add_argument("--memory_gib", type=float, default=16, help="a step that needs more is not run (16)")
    parser.add_argument("--picture", type=Path, help="an .svg or .png of the rows, by matplotlib")
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        sides.serve(args.serve, lambda given: build(args.serve, **given))
        return
    print(HEAD)
    found = rows_of(args)
    if args.picture:
        draw(args.picture, found)


if __name__ == "__main__":
    main()
