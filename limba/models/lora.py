"""LoRA (arXiv:2106.09685): a network whose kernels are `kernel + alpha / rank * A @ B`, of which A and B are trained.

The factors lie beside the kernel, `…/query/kernel`, `…/query/lora_a`, `…/query/lora_b`, as further parameters of an
unchanged network. With a kernel of `in` input and `out` output features, heads joined, A is `[in, rank]` and B
`[rank, out]`; of scanned layers `[in, layers, rank]` and `[rank, layers, out]`. B begins as zeros, so a new adapter
changes nothing.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util
from flax.linen import partitioning as nn_partitioning

from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0, AT_LEAST_1
from limba.optimizers.freezing import compiled_all, require_match

Array = jax.Array
PyTree = Any
Shape = tuple[int, ...]

A, B = "lora_a", "lora_b"
# Every kernel of attention and MLP.
KERNELS = ("/.*/(query|key|value|out|wi|wi_0|wi_1|wo)/kernel",)
# What a network with scanned layers, or with experts, calls the dims that hold them.
_LAYER_AXES = ("layers", "stack", "expert")


@dataclasses.dataclass(frozen=True)
class LoRA:
    """A network with adapters, bound in the place of the network: `EncoderDecoderModel.module = @lora.LoRA()`.

    What is not `init` or `apply` is the network's own. Who trains the factors alone is the optimizer, see
    `freezing.PartialOptimizer`; gin/runs/lora.gin binds both.

    Attributes:
      network: a Linen network, such as `network.Transformer`.
      rank: of the products.
      alpha: the products are multiplied by `alpha / rank`.
      kernels: expressions that match the whole paths of the kernels to adapt, which begin with a slash.

    Raises:
      ValueError: for a rank below 1 or an expression that is none; in `init`, if an expression matches no parameter,
        or one that is not a kernel.
    """

    network: nn.Module
    rank: int = 8
    alpha: float = 16.0
    kernels: Sequence[str] = KERNELS

    def __post_init__(self) -> None:
        number_ranges.check("LoRA.rank", self.rank, AT_LEAST_1)
        number_ranges.check("LoRA.alpha", self.alpha, ABOVE_0)
        compiled_all("LoRA.kernels", self.kernels)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "network":  # Copying asks before there is a network.
            raise AttributeError(name)
        return getattr(self.network, name)

    def clone(self, **fields: Any) -> "LoRA":
        """Adapters for the network with other fields."""
        return dataclasses.replace(self, network=self.network.clone(**fields))

    def init(self, rng: Array, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The network's variables, the same as without adapters, and the factors."""
        variables: dict[str, Any] = flax.core.unfreeze(self.network.init(rng, *args, **kwargs))
        names = traverse_util.flatten_dict(nn_partitioning.get_axis_names(variables["params_axes"]))
        params = traverse_util.flatten_dict(variables["params"])
        axes = traverse_util.flatten_dict(variables["params_axes"])
        for number, path in enumerate(sorted(self._chosen(params))):
            shapes, factor_axes = _factors(params[path].shape, tuple(names[path]), self.rank)
            key = jax.random.fold_in(rng, number)
            params[(*path[:-1], A)] = shapes[A][0] ** -0.5 * jax.random.normal(key, shapes[A], jnp.float32)
            params[(*path[:-1], B)] = jnp.zeros(shapes[B], jnp.float32)
            for factor, axis_names in factor_axes.items():
                axes[(*path[:-1], f"{factor}_axes")] = nn_partitioning.AxisMetadata(axis_names)
        return variables | {
            "params": traverse_util.unflatten_dict(params),
            "params_axes": traverse_util.unflatten_dict(axes),
        }

    def _chosen(self, params: Mapping[tuple[str, ...], Any]) -> list[tuple[str, ...]]:
        paths = {"/" + "/".join(path): path for path in params}
        chosen = set()
        for pattern in compiled_all("LoRA.kernels", self.kernels):
            require_match("LoRA.kernels", pattern, paths)
            chosen |= {name for name in paths if pattern.fullmatch(name)}
        if others := [name for name in sorted(chosen) if not name.endswith("/kernel") or params[paths[name]].ndim < 2]:
            raise ValueError(f"LoRA.kernels chooses {', '.join(others[:3])}; only kernels, which are matrices, can be.")
        return [paths[name] for name in chosen]

    def apply(self, variables: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The network's `apply` with the sums as its kernels; parameters without factors are used as they are."""
        return self.network.apply({**variables, "params": self.merge(variables["params"])}, *args, **kwargs)

    def merge(self, params: PyTree) -> PyTree:
        """The parameters of the network alone."""
        flat = traverse_util.flatten_dict(params)
        for path in [path for path in flat if path[-1] == A]:
            kernel = (*path[:-1], "kernel")
            a, b = flat.pop(path), flat.pop((*path[:-1], B))
            # As exact as the export, in any matrix precision of the device.
            multiply = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
            axis = None if a.ndim == 2 else layers_axis(a.shape, flat[kernel].shape)
            flat[kernel] = flat[kernel] + self.alpha / self.rank * product(a, b, flat[kernel].shape, multiply, axis)
        return traverse_util.unflatten_dict(flat)

    @property
    def description(self) -> dict[str, Any]:
        """The adapters' settings that a checkpoint must keep: `lora` in its `run/run.json`."""
        return {"rank": self.rank, "alpha": self.alpha, "kernels": list(self.kernels)}


def _factors(
    shape: Shape, axes: tuple[str | None, ...], rank: int
) -> tuple[dict[str, Shape], dict[str, tuple[str | None, ...]]]:
    """Shapes and logical axes of A and B. Kernels `[embed, …]` read the embedding, `[…, embed]` write it."""
    layers = [dim for dim, axis in enumerate(axes) if axis in _LAYER_AXES]
    dims = [dim for dim in range(len(shape)) if dim not in layers]
    split = 1 if axes[dims[0]] == "embed" else len(dims) - 1
    rows, columns = dims[:split], dims[split:]
    stack = tuple(shape[dim] for dim in layers)
    stack_axes = tuple(axes[dim] for dim in layers)
    size = lambda dims: math.prod(shape[dim] for dim in dims)  # noqa: E731
    # Joined dims are split over the mesh as the first of them is.
    factor_axes = {A: (axes[rows[0]], *stack_axes, None), B: (None, *stack_axes, axes[columns[0]])}
    return {A: (size(rows), *stack, rank), B: (rank, *stack, size(columns))}, factor_axes


def product(a: Any, b: Any, shape: Shape, einsum: Callable[..., Any], axis: int | None) -> Any:
    """`A @ B` in the shape of its kernel, with the `einsum` of JAX or NumPy.

    Args:
      a, b: `[in, rank]` and `[rank, out]`, or `[in, layers, rank]` and `[rank, layers, out]`.
      axis: where the kernel has its layers; None for one that is not scanned.
    """
    if axis is None:
        return einsum("ir,ro->io", a, b).reshape(shape)
    inner = (*shape[:axis], *shape[axis + 1 :])
    layers = einsum("ilr,rlo->lio", a, b).reshape((shape[axis], *inner))
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
    return layers.transpose(order)


def layers_axis(a: Shape, kernel: Shape) -> int:
    """Where the layers are in a scanned kernel, from the shape of its A."""
    return 1 if kernel[1] == a[1] else 0
