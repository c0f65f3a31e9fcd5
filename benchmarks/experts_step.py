"""Cost of one train step of a T5 with experts beside the dense T5 of the same sizes, in one run.

    python -m benchmarks.experts_step --size small --inputs 256 --targets 64 --batch_size 4 --rounds 2

A token of "switch" and of "experts_choose" goes through as many parameters as one of "dense", and the router; one of
"top_2" through two experts in every second layer. Capacities are what an even share needs. The sides are processes that
take turns (benchmarks/sides.py): the step of benchmarks/train_step.py. Prints a row for each; progress goes to stderr.
Ratios are what a side needs over what the first one needs.
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import sides, train_step

KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "switch": {"train_capacity_factor": 1.0},
    "experts_choose": {"train_capacity_factor": 1.0, "encoder_routing": "experts_choose"},
    "top_2": {"train_capacity_factor": 2.0, "num_selected_experts": 2},
}


def build(kind: str, workload: dict[str, Any], num_experts: int) -> sides.Side:
    from limba.addons.experts import switch

    if kind == "dense":
        return train_step._limba(train_step.Workload(**workload))
    sizes = workload["sizes"] | KINDS[kind] | {"num_experts": num_experts}
    return train_step._limba(train_step.Workload(**workload | {"sizes": sizes}), switch.SwitchConfig)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=train_step.SIZES, default="small", help="a T5 1.1 (small)")
    parser.add_argument("--num_experts", type=int, default=8, help="of a sparse layer (8)")
    parser.add_argument("--inputs", type=int, default=512, help="tokens of inputs (512)")
    parser.add_argument("--targets", type=int, default=114, help="tokens of targets (114)")
    parser.add_argument("--batch_size", type=int, default=8, help="rows (8)")
    parser.add_argument("--dtype", choices=train_step.DTYPES, default="float32", help="of activations (float32)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS], help="what is measured (all)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds, of which the median counts (3)")
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        sides.serve(args.serve, lambda given: build(args.serve, given["workload"], given["num_experts"]))
        return
    sizes = train_step.T5_1_1 | train_step.SIZES[args.size]
    workload = train_step.Workload(sizes, args.dtype, args.batch_size, args.inputs, args.targets)
    given = {"workload": dataclasses.asdict(workload), "num_experts": args.num_experts}
    with tempfile.TemporaryDirectory() as logs:
        found = sides.measure(Path(__file__), args.size, given, [*args.kinds], 1, args.rounds, Path(logs))
    print("| network | parameters | temporary, MiB | cpu-seconds | ratio, range |\n|---|---|---|---|---|")
    for kind, report in found.items():
        if isinstance(report, str):
            raise SystemExit(f"benchmarks.experts_step: {kind}: {report}")
        low, high = report.get("cpu_seconds_ratio_range", (1, 1))
        ratio = f"{report.get('cpu_seconds_ratio', 1):.2f}, {low:.2f} to {high:.2f}"
        numbers = f"{report['parameters']:,} | {report['temporary_mib']:,} | {report['cpu_seconds']:.1f}"
        print(f"| {kind} | {numbers} | {ratio} |")


if __name__ == "__main__":
    main()
