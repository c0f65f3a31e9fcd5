"""Limba's kernels on the accelerator of this machine: are they right, and are they faster than XLA's operations.

    python -m benchmarks.kernels

Prints two tables. The first has a row for each kind of input of each kernel: its error and that of XLA's operations,
both against XLA in float32, and whether a training would use the kernel (limba/network/kernels/device_check.py). The
second has milliseconds of attention and of norms, forward alone and with gradients, as Limba's kernels, cuDNN and XLA
compute them. `--tilings` times Limba's attention in other tiles, too, with other numbers of warps and stages, and says
which of them are right. Needs a GPU, or a TPU for the first table, and neither TensorFlow nor SeqIO; takes two minutes,
and three more with --tilings.
"""

import argparse
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba.addons.block_sparse import block_attention, block_layout
from limba.addons.kernels import fused_attention, layer_norm_gpu
from limba.network.kernels import device_check, drawn_attention

_FLAGS = ("has_bias", "is_packed", "has_prefix", "causal")
KINDS = {
    "encoder": {"has_bias"},
    "decoder": {"has_bias", "causal"},
    "cross": set(),
    "packed cross": {"is_packed"},
    "packed encoder": {"has_bias", "is_packed"},
    "packed decoder": {"has_bias", "is_packed", "causal"},
    "prefix": set(_FLAGS),
}
DTYPES = ("bfloat16", "float32")
HEADS, HEAD_DIM = 12, 64
# Name: rows, queries, keys, whether there is a bias, whether it is causal. Of T5 1.1 base; long rows.
TIMED = {
    "encoder": (64, 512, 512, True, False),
    "decoder": (64, 128, 128, True, True),
    "cross": (64, 128, 512, False, False),
    "long rows": (4, 4096, 4096, True, False),
}
NORM = (64, 512, 768)
REPEATS = 30


# ---------------------------------------------------- right or wrong -----------------------------------------------


def cases(platform: str) -> Iterator[device_check.Case]:
    """A case for each kind of input that a kernel of this platform serves."""

    def of(kernel: str, dtype: str, kind: str, heads: int = HEADS, head_dim: int = HEAD_DIM) -> Any:
        flags = {flag: flag in KINDS[kind] for flag in _FLAGS}
        return fused_attention.Case(kernel, dtype, heads, head_dim, 576, 576, **flags)

    for dtype in DTYPES:
        for kind in KINDS:
            yield of(f"attention_{platform}", dtype, kind)
    for head_dim in (16, 32, 128):
        yield of(f"attention_{platform}", "bfloat16", "encoder", 4, head_dim)
    if platform == "gpu":
        for kind in ("encoder", "decoder", "cross"):
            yield of("attention_cudnn", "bfloat16", kind)
        for dtype in DTYPES:
            for width in (512, 768, 1024):
                yield layer_norm_gpu._Case(dtype, width, True, 1e-6)
    layout = block_layout.BlockLayout(block_layout.BigBirdSparsityConfig(), HEADS, 1000)
    for dtype in DTYPES:
        yield block_attention._Case(f"block_attention_{platform}", dtype, HEADS, HEAD_DIM, 1000, layout)


def compare(platform: str) -> int:
    """Prints the first table; returns how many kernels are wrong."""
    print("| kernel | kind | off by | XLA off by | seconds | used |\n|---|---|---|---|---|---|")
    wrong = 0
    for case in cases(platform):
        began = time.monotonic()
        found = device_check.compare(case, platform)
        wrong += bool(found.problem)
        errors = " | ".join("" if x is None else f"{x:.1e}" for x in (found.error, found.xla_error))
        took = f"{time.monotonic() - began:.1f}"
        print(f"| {found.kernel} | {found.kind} | {errors} | {took} | {found.problem or 'yes'} |", flush=True)
    return wrong


# -------------------------------------------------------- time -----------------------------------------------------


def _milliseconds(function: Callable[..., Any], *arguments: Any) -> float:
    compiled = jax.jit(function)
    for _ in range(2):
        jax.block_until_ready(compiled(*arguments))
    began = time.perf_counter()
    for _ in range(REPEATS):
        result = compiled(*arguments)
    jax.block_until_ready(result)
    return 1000 * (time.perf_counter() - began) / REPEATS


def _both(function: Callable[..., Any], *arguments: Any) -> str:
    """Milliseconds forward, and with gradients of all arguments."""

    def loss(*arguments: Any) -> jax.Array:
        return sum(x.astype(jnp.float32).sum() for x in jax.tree.leaves(function(*arguments)))

    gradients = jax.grad(loss, argnums=tuple(range(len(arguments))))
    return f"{_milliseconds(function, *arguments):.3f} | {_milliseconds(gradients, *arguments):.3f}"


def _normal(seed: int, *shape: int, dtype: Any = jnp.bfloat16) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Inputs of a row of `TIMED`."""

    arrays: list[jax.Array]
    segments: tuple[jax.Array, jax.Array]
    causal: bool
    label: str


def _rows_of(name: str) -> _Rows:
    rows, queries, keys, has_bias, causal = TIMED[name]
    heads = 0.3 * _normal(0, rows, queries, HEADS, HEAD_DIM), 0.3 * _normal(1, rows, keys, HEADS, HEAD_DIM)
    arrays = [*heads, _normal(2, rows, keys, HEADS, HEAD_DIM)]
    arrays += [_normal(3, HEADS, queries + keys - 1, dtype=jnp.float32)] * has_bias
    segments = jnp.ones((rows, queries), jnp.int32), jnp.ones((rows, keys), jnp.int32)
    return _Rows(arrays, segments, causal, f"{name}, {rows} x {queries} x {keys}")


def time_attention(name: str) -> None:
    """Prints a row for each way to compute it."""
    of = _rows_of(name)
    queries, keys = (x.shape[1] for x in of.arrays[:2])
    distances = np.arange(keys) - np.arange(queries)[:, None]
    mask = distances <= 0 if of.causal else np.ones_like(distances, bool)

    def by_kernel(kernel: str, query: Any, key: Any, value: Any, table: Any = None) -> jax.Array:
        return fused_attention.attend(query, key, value, table, *of.segments, None, causal=of.causal, kernel=kernel)

    def by_xla(query: Any, key: Any, value: Any, table: Any = None) -> jax.Array:
        bias = None if table is None else table[:, distances + queries - 1]
        return drawn_attention.plain_attention({"queries": query, "keys": key, "values": value}, mask, bias)

    ways = {
        # A CPU, as of the tests, interprets that of GPUs.
        "Limba": functools.partial(by_kernel, f"attention_{'tpu' if jax.default_backend() == 'tpu' else 'gpu'}"),
        "cuDNN": functools.partial(by_kernel, "attention_cudnn"),
        "XLA": by_xla,
    }
    for way, function in ways.items():
        print(f"| {of.label} | {way} | {_both(function, *of.arrays)} |", flush=True)


def time_tilings(name: str) -> None:
    """Prints a row for each tiling of Limba's attention; one that does not compile, or is wrong, is named as that."""
    from limba.addons.kernels import attention_gpu

    of = _rows_of(name)
    expected = None
    for block, num_warps, num_stages in itertools.product((32, 64, 128), (4, 8), (1, 2, 3)):
        tiling = attention_gpu.Tiling(block, num_warps, num_stages)

        def attend(query: Any, key: Any, value: Any, table: Any = None, tiling: Any = tiling) -> jax.Array:
            return attention_gpu.attention(query, key, value, table, of.segments, causal=of.causal, tiling=tiling)

        try:
            found = np.asarray(jax.jit(attend)(*of.arrays), np.float32)
            expected = found if expected is None else expected
            off = float(np.abs(found - expected).max() / np.abs(expected).max())
            times = _both(attend, *of.arrays) if off < 0.02 else f"wrong, off by {off:.1e} | "
        except Exception as error:  # Compilers raise errors of all types.
            times = f"does not run: {type(error).__name__} | "
        print(f"| {of.label} | tiles of {block}, {num_warps} warps, {num_stages} stages | {times} |", flush=True)


def time_norm() -> None:
    """Prints a row for the kernel and one for XLA."""
    case = layer_norm_gpu._Case("bfloat16", NORM[-1], True, 1e-6)
    arrays = _normal(0, *NORM), _normal(1, *NORM), jnp.ones(NORM[-1])

    def by_xla(activations: Any, update: Any, scale: Any) -> Any:
        return case.by_xla({"activations": activations, "update": update, "scale": scale})

    ways = {"Limba": lambda *x: layer_norm_gpu.add_and_norm(*x, case.epsilon), "XLA": by_xla}
    for way, function in ways.items():
        print(f"| residual and norm, {' x '.join(map(str, NORM))} | {way} | {_both(function, *arrays)} |", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables; 1 if a kernel is wrong, 2 without an accelerator."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-times", action="store_true", help="the first table alone")
    parser.add_argument("--tilings", action="store_true", help="other tilings of Limba's attention on GPUs, too")
    flags = parser.parse_args(argv)
    platform = jax.default_backend()
    if platform not in ("gpu", "tpu"):
        print(
            f"benchmarks.kernels needs a GPU or a TPU; JAX has {jax.devices()[0].device_kind} (`limba env` says more)."
        )
        return 2
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}\n")
    wrong = compare(platform)
    if platform == "gpu" and not flags.no_times:
        print("\n| what | by | forward, ms | with gradients, ms |\n|---|---|---|---|")
        for name in TIMED:
            time_attention(name)
        time_norm()
        for name in TIMED if flags.tilings else ():
            time_tilings(name)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
