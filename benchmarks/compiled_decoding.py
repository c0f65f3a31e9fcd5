"""What a token costs on a GPU that is not there, by the GPU's own compiler: greedy, sampled, and with four beams.

    python -m benchmarks.compiled_decoding --topology h100-1 --size base --batch_size 64 --inputs 512 --new_tokens 128

Compiles `predict_batch` of a T5 1.1 in bfloat16, parameters too, as benchmarks/decoding.py runs it on this machine.
Nothing runs; CUDA's libraries are needed, and no card (pip install 'limba[plan_gpu]'). The loop over tokens is one
turn, so its kernels are those of one token of each row. Prints

- MB, kernels: read and written for a token, and started for it.
- bound: microseconds that no run is below: bytes at the memory's rate, products at the peak, 2 us for each kernel.
- encoder: milliseconds of everything before and after the loop.
- temporary: memory beside parameters and rows, the cache included.

and for each way its costliest operations of a token.
"""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from benchmarks import decoding
from benchmarks.train_step import SIZES, T5_1_1

HEAD = "| way | MB a token | kernels | bound a token, us | encoder, ms | temporary, MiB |\n|---|---|---|---|---|---|"


def main(argv: Sequence[str] | None = None) -> None:
    flags = _parse(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    from limba.addons.plan import command as plan_command

    plan_command.prepare_environment()
    from limba.addons.plan import compiled_step, program_cost, topologies

    topology = topologies.find(flags.topology)
    compiled_step.check_compiler(topology)
    device = compiled_step.devices_of(topology)[0]
    details = []
    print(HEAD)
    for way in flags.way:
        sizes = T5_1_1 | SIZES[flags.size]
        workload = decoding.Workload(sizes, "bfloat16", way, flags.batch_size, flags.inputs, flags.new_tokens)
        compiled = compile_for(device, workload)
        cost = program_cost.gpu_program_cost(compiled.as_text(), topology.chip)
        of_token = [x for x in cost.operations if x.is_in_open_loop]
        kernels, moved, seconds = token_cost(of_token)
        temporary = compiled.memory_analysis().temp_size_in_bytes / 2**20
        print(
            f"| {way} | {moved / 1e6:,.0f} | {kernels:,} | {1e6 * seconds:,.0f} | "
            f"{1e3 * (cost.seconds - seconds):.2f} | {temporary:,.0f} |",
            flush=True,
        )
        details.append(f"\n{way}:")
        for x in sorted(of_token, key=lambda x: -x.times * x.seconds)[: flags.top]:
            size = f"{x.times} x {x.bytes_moved / 1e6:.2f} MB"
            details.append(f"  {1e6 * x.times * x.seconds:6.1f} us  {size}, {x.kind}, {x.shape[:60]}  {x.where[-80:]}")
    print("\n".join(details))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compiled_decoding",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--topology", default="h100-1", metavar="NAME", help="one GPU (h100-1)")
    parser.add_argument("--size", choices=SIZES, default="base", help="a T5 1.1 (base)")
    parser.add_argument("--batch_size", type=int, default=64, help="rows (64)")
    parser.add_argument("--inputs", type=int, default=512, help="tokens of inputs (512)")
    parser.add_argument("--new_tokens", type=int, default=128, help="tokens of answers (128)")
    parser.add_argument("--way", nargs="+", choices=decoding.WAYS, default=list(decoding.WAYS), help="(all)")
    parser.add_argument("--top", type=int, default=8, metavar="N", help="costliest operations to print (8)")
    flags = parser.parse_args(argv)
    if not flags.topology.strip().lower().startswith(("h100", "h200", "a100")):
        parser.error(f"--topology is {flags.topology}; only of GPUs the program says what a token reads, as h100-1")
    for name in ("batch_size", "inputs", "new_tokens"):
        if getattr(flags, name) < 1:
            parser.error(f"--{name} is {getattr(flags, name)}; it must be at least 1")
    return flags


def compile_for(device: Any, workload: decoding.Workload) -> Any:
    """The compiled `predict_batch` of the workload."""
    import functools

    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from limba.devices import target

    def like(x: Any) -> Any:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=SingleDeviceSharding(device))

    with target.tracing_for(device):
        model = decoding.limba_model(workload)
        params = jax.eval_shape(functools.partial(decoding.new_parameters, model, workload))
        rows = jax.ShapeDtypeStruct((workload.batch_size, workload.inputs), jnp.int32)
        given = jax.tree.map(like, (params, rows, jax.eval_shape(lambda: jax.random.key(0))))
        return jax.jit(functools.partial(decoding.predict, model, workload)).lower(*given).compile()


def token_cost(operations: Sequence[Any]) -> tuple[int, float, float]:
    """Kernels, bytes and seconds."""
    return (
        sum(x.times for x in operations),
        sum(x.times * x.bytes_moved for x in operations),
        sum(x.times * x.seconds for x in operations),
    )


if __name__ == "__main__":
    main()
