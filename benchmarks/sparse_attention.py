"""What attention of one layer costs by the length of a row, sparse and dense, as compiled.

    python -m benchmarks.sparse_attention gin/models/bert/sparse_base.gin --topology v5e-1 --lengths 512 2048 8192

Compiles the attention of a layer with its four products, forward and backward, for one row, in the type of the model
file. Nothing runs. `--topology cpu` is this machine (the default); TPUs and GPUs need their compilers (docs/plan.md).
Prints

- present: the share of blocks that the layout has.
- GFLOP, GB: operations, and bytes read and written, as XLA counts them, which leaves out the operations of kernels.
- temporary: memory of the compiled program beside its inputs and outputs.
- attention: sparse and dense, each by XLA and by the kernels of the device.
"""

import argparse
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

HEAD = "| tokens | present | attention | GFLOP | GB | temporary, MiB |\n|---|---|---|---|---|---|"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gin_file", help="a model with sparse attention: gin/models/bert/sparse_base.gin")
    parser.add_argument("--topology", default="cpu", metavar="NAME", help="cpu, v5e-1, h100-1 …")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    flags = parser.parse_args(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    from limba.addons.block_sparse.sparse_attention import layout_of
    from limba.addons.plan import command as plan_command

    plan_command.prepare_environment()
    sparse = _config(flags.gin_file)
    device, chip = _device(flags.topology)
    print(HEAD)
    for length in flags.lengths:
        config = dataclasses.replace(sparse, max_positions=length)
        layout = layout_of(config)
        blocks = layout.num_blocks(length)
        dense = dataclasses.replace(config, sparse_attention=None)
        by_xla = {"sparse, XLA": config, "dense, XLA": dense}
        sides = {name: dataclasses.replace(x, kernels="xla") for name, x in by_xla.items()}
        sides |= {"sparse, kernels": config, "dense, kernels": dense} if chip is not None else {}
        for side, of_side in sides.items():
            cost = " | ".join(_cost(of_side, length, device, chip))
            print(f"| {length:,} | {layout.present(blocks).mean():.1%} | {side} | {cost} |", flush=True)


def _config(gin_file: str) -> Any:
    import gin

    from limba.gin_config import gin_files
    from limba.network.encoders import encoder

    gin_files.parse_gin_flags([gin_file], ["DROPOUT_RATE = 0.0", "VOCABULARY_FILE = 'none'"])
    return gin.get_configurable(encoder.MaskedLanguageModel)().config


def _device(name: str) -> tuple[Any, Any]:
    """A device to compile for, and its data sheet; None for this machine, which has no kernels."""
    import jax

    from limba.addons.plan import compiled_step, topologies

    if name == "cpu":
        return jax.devices("cpu")[0], None
    topology = topologies.find(name)
    compiled_step.check_compiler(topology)
    return compiled_step.devices_of(topology)[0], topology.chip


def _cost(config: Any, length: int, device: Any, chip: Any) -> list[str]:
    """Operations, bytes and temporary memory of attention's gradients."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from limba.addons.plan import program_cost
    from limba.devices import target
    from limba.network.encoders import attention

    module = attention.SelfAttention(config)

    def loss(params, x, tokens):
        # Times the inputs, so that no gradient is a constant.
        seen = attention.visible_blocks(config, tokens, None) or attention.visible(config, tokens, None)
        inputs = attention.AttentionInputs(attention.dense_mask(config, tokens, None) if seen is None else seen)
        return jnp.sum((module.apply({"params": params}, x, inputs, True) * x).astype(jnp.float32))

    def like(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=SingleDeviceSharding(device))

    x, tokens = like((1, length, config.emb_dim), config.dtype), like((1, length), jnp.int32)
    with target.tracing_for(device):
        mask = attention.AttentionInputs(jnp.ones((1, 1, length, length), bool))
        dense = attention.SelfAttention(dataclasses.replace(config, sparse_attention=None))
        shapes = jax.eval_shape(lambda key: dense.init(key, jnp.zeros(x.shape), mask, True), jax.random.key(0))
        params = jax.tree.map(lambda leaf: like(leaf.shape, leaf.dtype), shapes["params"])
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(params, x, tokens).compile()
    if chip is not None and chip.platform == "gpu":
        cost = program_cost.gpu_program_cost(compiled.as_text(), chip)
        operations, moved = cost.flops, cost.bytes_moved
    else:
        analysis = compiled.cost_analysis()
        operations, moved = analysis["flops"], analysis["bytes accessed"]
    temporary = compiled.memory_analysis().temp_size_in_bytes
    return [f"{operations / 1e9:,.1f}", f"{moved / 1e9:,.2f}", f"{temporary / 2**20:,.0f}"]


if __name__ == "__main__":
    main()
