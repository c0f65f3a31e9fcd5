"""Compiles for devices that are not here, in a process of its own.

    python -m tests.addons.kernels.compile_absent NAME …

Prints a JSON object for each topology: what fused attention's gradients need in memory by case; and of the first one
all cases, whether XLA's attention fits at 6,144 tokens, and bytes and peak of a small network's training step; of GPUs
also how often attention calls cuDNN.
"""

import functools
import json
import sys
from collections.abc import Iterable
from typing import Any

from limba.addons.plan import command, topologies

# Name: queries, keys, causal, bias, dtype, rows, heads.
CASES = {
    "encoder": (512, 512, False, True, "bfloat16", 4, 2),
    "decoder": (114, 114, True, True, "bfloat16", 4, 2),
    "cross": (114, 512, False, False, "bfloat16", 4, 2),
    "float32": (256, 256, False, True, "float32", 2, 2),
    "4,096": (4096, 4096, False, True, "bfloat16", 1, 12),
    "6,144": (6144, 6144, False, True, "bfloat16", 1, 12),
    "16,384": (16384, 16384, False, True, "bfloat16", 1, 12),
}
# What is compiled for topologies after the first: other chips have other limits, but the same programs.
FEWER = ("decoder", "16,384")
HEAD_DIM = 64


def _attention_program(case: str, device: Any, kernels: Any, *, gradients: bool = True) -> Any:
    """The compiled gradients."""
    import jax
    import jax.numpy as jnp

    queries, keys, causal, has_bias, dtype, rows, heads = CASES[case]
    placed = jax.sharding.SingleDeviceSharding(device)
    shape = functools.partial(jax.ShapeDtypeStruct, sharding=placed)
    q, k = (shape((rows, length, heads, HEAD_DIM), jnp.dtype(dtype)) for length in (queries, keys))
    table = shape((heads, queries + keys - 1), jnp.float32) if has_bias else None
    segments = (shape((rows, queries), jnp.int32), shape((rows, keys), jnp.int32))

    def loss(q, k, v, table, segments):
        return jnp.sum(kernels(q, k, v, table, segments, causal=causal).astype(jnp.float32))

    program = jax.grad(loss, (0, 1, 2, 3) if has_bias else (0, 1, 2)) if gradients else loss
    return jax.jit(program).lower(q, k, k, table, segments).compile()


def _attention_memory(case: str, device: Any, kernels: Any, *, gradients: bool = True) -> int | None:
    """Bytes of the program beside its arguments and results; None where it does not fit the device."""
    import jax

    try:
        compiled = _attention_program(case, device, kernels, gradients=gradients)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None
    memory = compiled.memory_analysis().temp_size_in_bytes
    return memory if memory < 16 * topologies.GIB else None


def _blocks(topology: topologies.Topology) -> dict[str, float]:
    """What attention with a layout of blocks, shared or by head, needs for gradients; bytes of memory by length."""
    import jax
    import jax.numpy as jnp

    from limba.addons.block_sparse.block_layout import BigBirdSparsityConfig, BlockLayout
    from limba.addons.plan import compiled_step

    if topology.chip.platform == "gpu":
        from limba.addons.block_sparse.block_attention_gpu import attention
    else:
        from limba.addons.block_sparse.block_attention_tpu import attention
    placed = jax.sharding.SingleDeviceSharding(compiled_step.devices_of(topology)[0])
    found = {}
    for length, by_head, dtype in ((1000, True, "float32"), (4096, False, "bfloat16"), (16384, False, "bfloat16")):
        layout = BlockLayout(BigBirdSparsityConfig(different_layout_per_head=by_head), 12, length)

        def loss(q, k, v, segments, layout=layout):
            return jnp.sum(attention(q, k, v, segments, layout).astype(jnp.float32))

        array = jax.ShapeDtypeStruct((1, length, 12, HEAD_DIM), jnp.dtype(dtype), sharding=placed)
        segments = jax.ShapeDtypeStruct((1, length), jnp.int32, sharding=placed)
        compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(array, array, array, segments).compile()
        found[f"{length:,}"] = compiled.memory_analysis().temp_size_in_bytes
    return found


def _step(topology: topologies.Topology) -> dict[str, float]:
    """T5 1.1 small with one layer a side and a small vocabulary, 8 rows of 512 + 114 tokens."""
    from limba.addons.plan import compiled_step, program_cost
    from limba.addons.plan.mesh_layouts import MeshLayout
    from limba.data import contract
    from limba.optimizers import schedules
    from limba.training import trainer
    from tests.limba import small

    rate = schedules.create_learning_rate_scheduler("constant")
    sizes = {"vocab_size": 8192, "emb_dim": 512, "num_heads": 6, "head_dim": HEAD_DIM, "mlp_dim": 1024}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "mlp_activations": ("gelu", "linear")}
    training = compiled_step.Training(
        small.model(dtype="bfloat16", dropout_rate=0.0, **sizes, **layers),
        contract.DatasetConfig("nobody", {"inputs": 512, "targets": 114}, "train", 8),
        functools.partial(trainer.Trainer, learning_rate_fn=rate),
    )
    mesh = compiled_step.partitioner(MeshLayout(1, 1, False, "none", 1), compiled_step.devices_of(topology))
    step = compiled_step.compile_step(training, mesh)
    if topology.chip.platform == "gpu":
        bytes_moved = program_cost.gpu_program_cost(step.compiled.as_text(), topology.chip).bytes_moved
    else:
        bytes_moved = step.compiled.cost_analysis()["bytes accessed"]
    return {"bytes": bytes_moved, "peak": step.memory.peak}


def _attention(topology: topologies.Topology, cases: Iterable[str]) -> dict[str, int | None]:
    from limba.addons.plan import compiled_step

    device = compiled_step.devices_of(topology)[0]
    if topology.chip.platform == "gpu":
        from limba.addons.kernels.attention_gpu import attention
    else:
        from limba.addons.kernels.attention_tpu import attention
    return {case: _attention_memory(case, device, attention) for case in cases}


def _cudnn_calls(topology: topologies.Topology) -> dict[str, int]:
    """How often the gradients of attention call cuDNN: forward and backward."""
    from limba.addons.kernels.attention_cudnn import attention
    from limba.addons.plan import compiled_step

    device = compiled_step.devices_of(topology)[0]
    programs = {case: _attention_program(case, device, attention) for case in ("encoder", "decoder", "cross")}
    return {case: program.as_text().count('custom_call_target="__cudnn$fmha') for case, program in programs.items()}


def _by_xla(topology: topologies.Topology) -> int | None:
    """At 6,144 tokens, where it is beyond the device already; longer ones take half a minute to fail. Without
    gradients, which need more."""
    from limba.addons.plan import compiled_step
    from tests.addons.kernels.networks import plain_attention

    device = compiled_step.devices_of(topology)[0]
    return _attention_memory("6,144", device, plain_attention, gradients=False)


def main(names: list[str]) -> None:
    command.prepare_environment()
    found = [topologies.find(name) for name in names]
    for topology in found:
        report: dict[str, Any] = {"attention": _attention(topology, CASES if topology is found[0] else FEWER)}
        report["blocks"] = _blocks(topology)
        if topology is found[0]:
            report |= {"by XLA": _by_xla(topology), "step": _step(topology)}
        if topology.chip.platform == "gpu":
            report["cudnn"] = _cudnn_calls(topology)
        print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])
