"""Cost of one train step of a T5 with long inputs: LongT5's attention beside attention to the whole row, in one run.

    python -m benchmarks.long_inputs --size small --inputs 4096 --targets 256 --rounds 3

The sides are processes that take turns (benchmarks/sides.py): the step of benchmarks/train_step.py with other values of
LongT5Config.encoder_attention_type, or without it. Prints a row for each; progress goes to stderr. Ratios are what a
side needs over what the first one needs. "temporary" is the memory of the compiled step beside state and batch, by XLA.
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import sides, train_step
from limba.addons.longt5.longt5 import LongT5Config

FULL = "full"
KINDS = ("transient-global", "local", FULL)


def build(kind: str, workload: dict[str, Any]) -> sides.Side:
    if kind == FULL:
        return train_step._limba(train_step.Workload(**workload))
    sizes = workload["sizes"] | {"encoder_attention_type": kind}
    return train_step._limba(train_step.Workload(**workload | {"sizes": sizes}), LongT5Config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=train_step.SIZES, default="small", help="a T5 1.1 (small)")
    parser.add_argument("--inputs", type=int, default=4096, help="tokens of inputs (4,096)")
    parser.add_argument("--targets", type=int, default=256, help="tokens of targets (256)")
    parser.add_argument("--batch_size", type=int, default=1, help="rows (1)")
    parser.add_argument("--dtype", choices=train_step.DTYPES, default="float32", help="of activations (float32)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what is measured (all)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, of which the median counts (3)")
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        sides.serve(args.serve, lambda workload: build(args.serve, workload))
        return
    sizes = train_step.T5_1_1 | train_step.SIZES[args.size]
    workload = train_step.Workload(sizes, args.dtype, args.batch_size, args.inputs, args.targets)
    with tempfile.TemporaryDirectory() as logs:
        found = sides.measure(
            Path(__file__), str(args.inputs), dataclasses.asdict(workload), [*args.kinds], 1, args.rounds, Path(logs)
        )
    print("| attention | temporary, MiB | cpu-seconds | ratio, range |\n|---|---|---|---|")
    for kind, report in found.items():
        if isinstance(report, str):
            raise SystemExit(f"benchmarks.long_inputs: {kind}: {report}")
        low, high = report.get("cpu_seconds_ratio_range", (1, 1))
        ratio = f"{report.get('cpu_seconds_ratio', 1):.2f}, {low:.2f} to {high:.2f}"
        print(f"| {kind} | {report['temporary_mib']:,} | {report['cpu_seconds']:.1f} | {ratio} |")


if __name__ == "__main__":
    main()
