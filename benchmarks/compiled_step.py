"""What a training step costs on chips that are not there, by their own compilers: Limba's, and T5X's beside it.

    python -m benchmarks.compiled_step --topology h100-1 gin/models/t5_1_1/base.gin gin/runs/pretrain.gin \\
        --gin.TASK_FEATURE_LENGTHS="{'inputs': 512, 'targets': 114}" --gin.BATCH_SIZE=64 --gin.TRAIN_STEPS=1

Files and bindings are those of `limba train`, and the step is compiled as they say: unrolled or scanned, with the
recomputation that they name. Prints a table and, for each program, its costliest operations. Nothing runs: GPUs need
CUDA's libraries (pip install 'limba[plan_gpu]'), TPUs libtpu (pip install 'limba[plan]'), both on any CPU.

- bytes: GPUs: what each kernel reads and writes (limba/addons/plan/program_cost.py). TPUs: XLA's own figure, which
  counts the body of a loop once; compare unrolled programs.
- bound: the longer of bytes at the memory's rate and products at the peak, kernel by kernel, and 2 us for each kernel.
  TPUs: of the whole program. No run is faster.
- T5X: `--against t5x` compiles T5X's own step of the same sizes, on one device with the rows that each of several has;
  `T5X_DIR` is its checkout, and this environment needs what T5X imports.

Each program is compiled in a process of its own.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limba import command_line
from limba.addons.plan import command as plan_command
from limba.addons.plan import topologies

HEAD = (
    "| topology | program | GB moved | TFLOP | bound, ms | MFU at the bound | temporary GiB | peak GiB | kernels | "
    "collectives (asynchronous) | their GB | sent, ms | waited for, ms | compiled in, s |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def main(argv: Sequence[str]) -> int:
    """Compiles each program for each topology, and prints the table."""
    os.environ.setdefault("JAX_OPTIMIZATION_LEVEL", "O1")
    plan_command.prepare_environment()  # Parsing imports JAX.
    parser = _parser()
    flags = command_line.parse_flags(parser, argv)
    if not flags.gin_file or not flags.topology:
        parser.error("give --topology, such as h100-1, and gin files: a model and gin/runs/pretrain.gin")
    if flags.child:
        print(json.dumps(_measure(flags.child, flags)))
        return 0
    rows, details = [], []
    given = [word for word in argv if word not in ("--topology", *flags.topology)]
    for name in flags.topology:
        report: dict[str, Any] = {}
        for side in ("limba", *flags.against):
            # T5X's process reads no gin files: they would give it Limba's classes under T5X's names.
            workload = ["--workload", json.dumps(report["workload"])] if "workload" in report else []
            report = _in_a_child(side, name, [*given, *workload])
            rows.append(_row(name, side, report))
            details.extend(_details(name, side, report, flags.top) if flags.top else [])
            print(rows[-1], file=sys.stderr, flush=True)
    print("\n".join([HEAD, *rows, *details]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_line.argument_parser("benchmarks.compiled_step", __doc__ or "")
    parser.add_argument("--topology", action="append", default=[], metavar="NAME", help="h100-1, v5e-1, h100-8 …")
    parser.add_argument("--against", action="append", default=[], choices=["t5x"], help="compile T5X's step too")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="costliest operations to print (10)")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep the compiled programs' texts there")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--workload", help=argparse.SUPPRESS)
    return parser


def _in_a_child(side: str, topology: str, argv: Sequence[str]) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.compiled_step", "--child", side, "--topology", topology, *argv],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = result.stdout.strip().splitlines()
    return json.loads(lines[-1]) if not result.returncode and lines else {"failed": result.returncode}


# ------------------------------------------------------ one program ------------------------------------------------


def _measure(side: str, flags: argparse.Namespace) -> dict[str, Any]:
    import time

    topology = topologies.find(flags.topology[0])
    from limba.addons.plan import compiled_step

    compiled_step.check_compiler(topology)
    devices = compiled_step.devices_of(topology)
    if side == "t5x":
        workload = json.loads(flags.workload)
        began = time.monotonic()
        compiled = _t5x_step(workload, devices)
    else:
        training, given, _ = plan_command.configured_training(flags)
        workload = _workload(training)
        began = time.monotonic()
        layout = dataclasses.replace(given, data=len(devices) // given.model)
        compiled = compiled_step.compile_step(training, compiled_step.partitioner(layout, devices)).compiled
    seconds = time.monotonic() - began
    if flags.save:
        flags.save.mkdir(parents=True, exist_ok=True)
        (flags.save / f"{side}-{topology.name}.hlo").write_text(compiled.as_text())
    report = _report(compiled, topology, workload["model_flops"])
    return report | {"workload": workload, "compile_seconds": seconds}


def _workload(training: Any) -> dict[str, Any]:
    """What another program needs to train the same."""
    import jax.numpy as jnp

    from limba.training import configured_trainer

    shapes = configured_trainer.batch_shapes(training.dataset, "EncDecFeatureConverter")
    sizes = dataclasses.asdict(training.config)
    sizes["dtype"] = jnp.dtype(sizes["dtype"]).name
    return {"sizes": sizes, "shapes": dict(shapes), "model_flops": training.work.model_flops}


def _report(compiled: Any, topology: topologies.Topology, model_flops: float) -> dict[str, Any]:
    from limba.addons.plan import compiled_step, program_cost

    sizes = compiled.memory_analysis()
    report: dict[str, Any] = {"temporary": sizes.temp_size_in_bytes, "peak": compiled_step.peak_bytes(sizes)}
    chip = topology.chip
    if chip.platform == "gpu":
        cost = program_cost.gpu_program_cost(compiled.as_text(), chip)
        found = cost.collectives
        report |= {
            "bytes": cost.bytes_moved,
            "flops": cost.flops,
            "seconds": cost.seconds,
            "kernels": cost.kernels,
            "waited": cost.waited,
            "kinds": cost.by("kind"),
            "operations": [
                dataclasses.asdict(x) for x in sorted(cost.operations, key=lambda x: -x.times * x.seconds)[:100]
            ],
        }
    else:
        analysis = compiled.cost_analysis()
        found = program_cost.collectives(compiled.as_text())
        report |= {"bytes": analysis["bytes accessed"], "flops": analysis["flops"]}
        report["seconds"] = max(report["bytes"] / chip.bandwidth, report["flops"] / chip.peak) * chip.devices_per_chip
    report |= {"collectives": dataclasses.asdict(found), "sending": found.sent_bytes / chip.link}
    report["mfu"] = model_flops / topology.num_devices / chip.peak_per_device / report["seconds"]
    return report


def _t5x_step(workload: dict[str, Any], devices: Sequence[Any]) -> Any:
    """T5X's own step of one device's rows, with the sizes of the configuration and T5X's usual Adafactor."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from t5x import adafactor, models, train_state, trainer, utils
    from t5x.examples.t5 import network

    from benchmarks import train_step

    fields = {field.name for field in dataclasses.fields(network.T5Config)}
    sizes = {name: value for name, value in workload["sizes"].items() if name in fields}
    sizes |= {"mlp_activations": tuple(sizes["mlp_activations"]), "dtype": jnp.dtype(sizes["dtype"])}
    vocabulary = train_step._Vocabulary(sizes["vocab_size"])
    optimizer = adafactor.Adafactor(
        decay_rate=0.8, step_offset=0, logical_factor_rules=adafactor.standard_logical_factor_rules()
    )
    model = models.EncoderDecoderModel(
        network.Transformer(network.T5Config(**sizes)), vocabulary, vocabulary, optimizer, z_loss=train_step.Z_LOSS
    )
    shapes = {name: (rows // len(devices), *others) for name, (rows, *others) in workload["shapes"].items()}
    placed = NamedSharding(Mesh(np.array(devices[:1]), ("data",)), PartitionSpec())
    batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=placed) for name, shape in shapes.items()}
    rate = utils.create_learning_rate_scheduler("constant * rsqrt_decay", 1.0, 10_000)

    def initial(rng):
        return train_state.FlaxOptimTrainState.create(optimizer, model.get_initial_variables(rng, shapes))

    state = jax.eval_shape(initial, jax.random.PRNGKey(0))
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed), state)

    def step(state, batch):
        rng = jax.random.fold_in(jax.random.PRNGKey(0), state.step)
        return trainer.train_with_lr(state, batch, rate(state.step), rng, model, None, None, None)

    return jax.jit(step, donate_argnums=(0,)).lower(state, batch).compile()


# -------------------------------------------------------- the table ------------------------------------------------


def _row(topology: str, side: str, report: dict[str, Any]) -> str:
    if "failed" in report:
        return f"| {topology} | {side} | failed with exit code {report['failed']} | | | | | | | | | | | |"
    kernels = f"{report['kernels']:,}" if "kernels" in report else ""
    found = report["collectives"]
    collectives = f"{found['count']:,} ({found['asynchronous']:,}) | {found['result_bytes'] / 1e9:.3g}"
    sending = f"{1e3 * report['sending']:.1f}"
    waited = f"{1e3 * report['waited']:.1f}" if "waited" in report else ""
    return (
        f"| {topology} | {side} | {report['bytes'] / 1e9:.1f} | {report['flops'] / 1e12:.2f} | "
        f"{1e3 * report['seconds']:.1f} | {report['mfu']:.0%} | {report['temporary'] / topologies.GIB:.2f} | "
        f"{report['peak'] / topologies.GIB:.2f} | {kernels} | {collectives} | {sending} | {waited} | "
        f"{report['compile_seconds']:.0f} |"
    )


def _details(topology: str, side: str, report: dict[str, Any], top: int) -> list[str]:
    if "operations" not in report:
        return []
    lines = [
        f"\n{side} on {topology}, ms by kind: "
        + ", ".join(f"{kind} {1e3 * seconds:.1f}" for kind, seconds in list(report["kinds"].items())[:8])
    ]
    for x in report["operations"][:top]:
        cost = f"{x['bytes_moved'] / 1e6:.0f} MB, {x['flops'] / 1e9:.0f} GFLOP"
        lines.append(
            f"  {1e3 * x['times'] * x['seconds']:7.2f} ms  {x['times']} x {x['kind']}, {cost}, {x['shape'][:60]}  "
            f"{x['where'][-100:]}"
        )
    return lines


if __name__ == "__main__":
    command_line.run_command(main)
