"""A residual and the layer norm behind it on GPUs, in Pallas by Triton: each array is read once and written once.

XLA needs a kernel for the sum and up to three for the norm's gradients, each of which reads whole activations again.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as nn_partitioning
from jax.custom_derivatives import SymbolicZero
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.sharding import PartitionSpec

from limba.devices import target
from limba.network.kernels import device_check

Array = jax.Array

AXES = ("batch", "length", "embed")
# Numbers of a tile, and the programs that share the sum of a scale's gradient: in a run, and in `device_check`.
_TILE = 4096
_GRADIENT_PROGRAMS = 512
_FEW_PROGRAMS = 3


@dataclasses.dataclass(frozen=True)
class _Work:
    """What the kernels are compiled for.

    Attributes:
      rows, width: the activations as a matrix.
      most_programs: that share the sum of a scale's gradient.
    """

    rows: int
    width: int
    epsilon: float
    most_programs: int
    interpret: bool

    @property
    def columns(self) -> int:
        """Of a tile: a power of two."""
        return pl.next_power_of_2(self.width)

    @property
    def tile_rows(self) -> int:
        return max(1, _TILE // self.columns)

    @property
    def tiles(self) -> int:
        return pl.cdiv(self.rows, self.tile_rows)


# ----------------------------------------------------- kernels ----------------------------------------------------
# References: activations [rows * width], scale [width], its gradients [programs * width].


def _places(work: _Work, tile: Any) -> tuple[Array, Array]:
    """Of the numbers of a tile `[tile_rows, columns]`, and which of them are there."""
    rows = (tile * work.tile_rows + jnp.arange(work.tile_rows))[:, None]
    columns = jnp.arange(work.columns)[None, :]
    return rows * work.width + columns, (rows < work.rows) & (columns < work.width)


def _load(ref: Any, places: Array, inside: Array) -> Array:
    return plgpu.load(ref.at[places], mask=inside, other=0.0)


def _load_scale(ref: Any, work: _Work, dtype: Any) -> Array:
    """`[columns]`"""
    columns = jnp.arange(work.columns)
    return _load(ref, columns, columns < work.width).astype(dtype)


def _normalized(x: Array, work: _Work) -> tuple[Array, Array]:
    """Rows over their root mean square, and one over it, in float32."""
    x = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.sum(x * x, axis=1) / work.width + work.epsilon)[:, None]
    return x * inverse, inverse


def _forward(x_ref, update_ref, scale_ref, sum_ref, y_ref, *, work: _Work):
    places, inside = _places(work, pl.program_id(0))
    x = _load(x_ref, places, inside)
    if update_ref is not None:
        x += _load(update_ref, places, inside)
        plgpu.store(sum_ref.at[places], x, mask=inside)
    y = _normalized(x, work)[0].astype(x.dtype) * _load_scale(scale_ref, work, x.dtype)[None, :]
    plgpu.store(y_ref.at[places], y, mask=inside)


def _backward(x_ref, scale_ref, of_sum_ref, of_y_ref, of_x_ref, of_scale_ref, *, work: _Work, programs: int):
    scale = _load_scale(scale_ref, work, x_ref.dtype)[None, :]
    tiles = pl.cdiv(work.tiles, programs)
    program = pl.program_id(0)

    def add_tile(number, of_scale):
        places, inside = _places(work, program * tiles + number)
        x, inverse = _normalized(_load(x_ref, places, inside), work)
        of_y = _load(of_y_ref, places, inside)
        of_scale += jnp.sum((of_y * x.astype(of_y.dtype)).astype(jnp.float32), axis=0)
        of_normalized = (of_y * scale).astype(jnp.float32)
        share = jnp.sum(of_normalized * x, axis=1)[:, None] / work.width
        of_x = inverse * (of_normalized - x * share)
        if of_sum_ref is not None:
            of_x += _load(of_sum_ref, places, inside).astype(jnp.float32)
        plgpu.store(of_x_ref.at[places], of_x.astype(of_x_ref.dtype), mask=inside)
        return of_scale

    of_scale = jax.lax.fori_loop(0, tiles, add_tile, jnp.zeros((work.columns,), jnp.float32))
    columns = jnp.arange(work.columns)
    plgpu.store(of_scale_ref.at[program * work.width + columns], of_scale, mask=columns < work.width)


# ------------------------------------------------------ calls -----------------------------------------------------


def _call(kernel: Any, work: _Work, programs: int, out_shape: Any, name: str) -> Any:
    return pl.pallas_call(
        functools.partial(kernel, work=work),
        grid=(programs,),
        out_shape=out_shape,
        compiler_params=plgpu.CompilerParams(num_warps=8, num_stages=1),
        interpret=work.interpret,
        name=name,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add_and_norm(work: _Work, x: Array, update: Array | None, scale: Array) -> tuple[Array, Array]:
    flat = jax.ShapeDtypeStruct((work.rows * work.width,), x.dtype)
    of_update = None if update is None else update.reshape(-1)
    total, y = _call(_forward, work, work.tiles, [None if update is None else flat, flat], "add_and_norm")(
        x.reshape(-1), of_update, scale
    )
    return x if update is None else total.reshape(x.shape), y.reshape(x.shape)


def _add_and_norm_forward(work, x, update, scale):
    has_update = update is not None
    total, y = _add_and_norm(work, x.value, update.value if has_update else None, scale.value)
    return (total, y), (total, scale.value, has_update)


def _add_and_norm_backward(work, residuals, cotangents):
    x, scale, has_update = residuals
    of_sum, of_y = (None if isinstance(g, SymbolicZero) else g.reshape(-1) for g in cotangents)
    if of_y is None:
        of_y = jnp.zeros((work.rows * work.width,), x.dtype)
    programs = min(work.most_programs, work.tiles)
    of_x, of_scale = _call(
        functools.partial(_backward, programs=programs),
        work,
        programs,
        [
            jax.ShapeDtypeStruct(of_y.shape, x.dtype),
            jax.ShapeDtypeStruct((programs * work.width,), jnp.float32),
        ],
        "add_and_norm_gradients",
    )(x.reshape(-1), scale, of_sum, of_y)
    of_x = of_x.reshape(x.shape)
    of_scale = jnp.sum(of_scale.reshape(programs, work.width), axis=0).astype(scale.dtype)
    return of_x, of_x if has_update else None, of_scale


_add_and_norm.defvjp(_add_and_norm_forward, _add_and_norm_backward, symbolic_zeros=True)


def add_and_norm(
    x: Array,
    update: Array | None,
    scale: Array,
    epsilon: float,
    *,
    most_programs: int = _GRADIENT_PROGRAMS,
    interpret: bool = False,
) -> tuple[Array, Array]:
    """`x + update`, or `x` where there is no update, and T5's layer norm of it; both `[batch, length, embed]`.

    Args:
      x, update: `[batch, length, embed]`, of one type. The norm is computed in float32, its result has their type.
      scale: float32 `[embed]`.
      epsilon: added to the mean square.
      most_programs: that share the sum of the scale's gradient: enough of them to keep all cores of a card busy.
      interpret: compute on any device, slowly, what the kernels compute.
    """

    def call(x, update, scale):
        work = _Work(x.shape[0] * x.shape[1], x.shape[2], epsilon, most_programs, interpret)
        return _add_and_norm(work, x, update, scale)

    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return call(x, update, scale)
    spec = nn_partitioning.logical_to_mesh_axes(AXES) or PartitionSpec()
    in_specs = (spec, None if update is None else spec, PartitionSpec())
    return jax.shard_map(call, in_specs=in_specs, out_specs=(spec, spec), check_vma=False)(x, update, scale)


# ---------------------------------------------- on the device at hand ---------------------------------------------


def is_right(x: Array, has_update: bool, epsilon: float) -> bool:
    """Whether the kernel computes what XLA does for such activations on the device at hand; see `device_check`."""
    return device_check.is_right(_Case(x.dtype.name, x.shape[-1], has_update, epsilon))


@dataclasses.dataclass(frozen=True)
class _Case:
    """A kind of input for `device_check`."""

    dtype: str
    width: int
    has_update: bool
    epsilon: float
    kernel: str = "layer_norm_gpu"

    def __str__(self) -> str:
        return f"{self.width} wide, {self.dtype}{', with a residual' if self.has_update else ''}"

    def inputs(self, rng: np.random.Generator) -> tuple[device_check.Arrays, tuple[Any, ...]]:
        # Several tiles for a program that sums up a scale's gradient, and the last one in part.
        tile_rows = max(1, _TILE // pl.next_power_of_2(self.width))
        rows = (1, tile_rows * 2 * _FEW_PROGRAMS + tile_rows // 2 + 1)
        by_row = 10.0 ** rng.uniform(-1, 1, (*rows, 1))  # each has a norm of its own
        names = ("activations", "update") if self.has_update else ("activations",)
        arrays = {name: jnp.asarray(by_row * rng.normal(size=(*rows, self.width)), self.dtype) for name in names}
        return arrays | {"scale": jnp.asarray(1 + 0.5 * rng.normal(size=self.width), jnp.float32)}, ()

    def by_kernel(self, arrays: device_check.Arrays) -> device_check.Arrays:
        total, norm = add_and_norm(
            x=arrays["activations"],
            update=arrays.get("update"),
            scale=arrays["scale"],
            epsilon=self.epsilon,
            most_programs=_FEW_PROGRAMS,
            interpret=target.platform() == "cpu",
        )
        return self._used(total, norm)

    def by_xla(self, arrays: device_check.Arrays) -> device_check.Arrays:
        x = arrays["activations"] + arrays["update"] if self.has_update else arrays["activations"]
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.epsilon)
        return self._used(x, (wide * inverse).astype(x.dtype) * arrays["scale"].astype(x.dtype))

    def _used(self, total: Array, norm: Array) -> device_check.Arrays:
        """The sum is not one without an update; then its gradient is left out too, as at the end of a stack."""
        return {"sum": total, "norm": norm} if self.has_update else {"norm": norm}
