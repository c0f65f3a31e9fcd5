"""The adapters of a LoRA run merged into its kernels, tensor by tensor, while a checkpoint is read; or left out."""

import functools
import math
from collections.abc import Mapping

import numpy as np

from limba.checkpoint_files import pretraining_parts
from limba.checkpoint_files.run_folder import load_run_info
from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.files.storage import AnyPath
from limba.models import lora


def chosen(tensors: Mapping[str, SavedTensor], path: AnyPath, without_lora: bool) -> Mapping[str, SavedTensor]:
    """A train state with its adapters merged, or without them: the model that the LoRA began with.

    Raises:
      ValueError: as `merged`; if there are no adapters to leave out.
    """
    if not without_lora:
        return merged(tensors, path)
    kept = _without(tensors)
    if len(kept) == len(tensors):
        raise ValueError(f"{path} is not of a LoRA: it has no adapters to leave out.")
    return pretraining_parts.without(kept, path)


def merged(tensors: Mapping[str, SavedTensor], path: AnyPath) -> Mapping[str, SavedTensor]:
    """A train state without adapters: `kernel + alpha / rank * A @ B` in their place. One that has none stays as it is.

    What only its pre-training needs is left out (`pretraining_parts`); of a LoRA the optimizer's state too, because it
    is that of the adapters. The checkpoint's `run/run.json` says alpha.

    Raises:
      ValueError: if a factor or its kernel is missing, or they do not fit.
      FileNotFoundError: if there is no `run.json`.
    """
    tensors = pretraining_parts.without(tensors, path)
    factors = [name for name in tensors if name.startswith("target/") and name.endswith(f"/{lora.A}")]
    if not factors:
        return tensors
    described = load_run_info(path).get("lora")
    if described is None:
        raise ValueError(f"{path}/run/run.json does not say the alpha of its LoRA adapters (`lora`).")
    return with_factors(tensors, described["alpha"], str(path))


def with_factors(tensors: Mapping[str, SavedTensor], alpha: float, where: str) -> dict[str, SavedTensor]:
    """A train state with its factors merged; `where` is for messages. Raises ValueError as `merged`."""
    result = _without(tensors)
    for name in tensors:
        if not (name.startswith("target/") and name.endswith(f"/{lora.A}")):
            continue
        module = name.removesuffix(f"/{lora.A}")
        kernel, b = f"{module}/kernel", f"{module}/{lora.B}"
        if kernel not in tensors or b not in tensors:
            raise ValueError(f"{where}: {name} is there, and {b if kernel in tensors else kernel} is missing.")
        result[kernel] = _sum(tensors[kernel], tensors[name], tensors[b], alpha, f"{where}: {module}")
    return result


def _without(tensors: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
    """A train state of a LoRA without its factors and their statistics; one of another run as it is."""
    factors = (f"/{lora.A}", f"/{lora.B}")
    if not any(name.startswith("target/") and name.endswith(factors) for name in tensors):
        return dict(tensors)
    return {n: t for n, t in tensors.items() if not n.endswith(factors) and not n.startswith("state/param_states/")}


def _sum(kernel: SavedTensor, a: SavedTensor, b: SavedTensor, alpha: float, where: str) -> SavedTensor:
    """`kernel + alpha / rank * A @ B` in float32; the shapes are those of `limba.models.lora`."""
    shape, rank = kernel.shape, a.shape[-1]
    axis = lora.layers_axis(a.shape, shape) if a.ndim == 3 else None
    inner = [dim for dim in range(kernel.ndim) if dim != axis]
    rows = next((inner[:n] for n in range(1, len(inner)) if math.prod(shape[d] for d in inner[:n]) == a.shape[0]), None)
    fits = rows is not None and b.shape[0] == rank and b.shape[1:-1] == a.shape[1:-1]
    if rows is None or not fits or math.prod(shape) != math.prod(a.shape[:-1]) * b.shape[-1]:
        raise ValueError(f"{where}: the adapters {a.shape} and {b.shape} do not fit the kernel {shape}.")
    columns = inner[len(rows) :]
    layers = a.shape[1:-1]

    def read(index: Index) -> np.ndarray:
        # Factors are small, so they are read whole and cut, with their joined dims apart.
        stack = tuple(index[axis] for _ in layers) if axis is not None else ()
        whole_a = np.asarray(a, np.float32).reshape(*(shape[d] for d in rows), *layers, rank)
        whole_b = np.asarray(b, np.float32).reshape(rank, *layers, *(shape[d] for d in columns))
        part_a = whole_a[(*(index[d] for d in rows), *stack, slice(None))]
        part_b = whole_b[(slice(None), *stack, *(index[d] for d in columns))]
        part = kernel.read(index).astype(np.float32)
        flat_a = part_a.reshape(-1, *part_a.shape[len(rows) :])
        flat_b = part_b.reshape(*part_b.shape[: 1 + len(layers)], -1)
        return part + np.float32(alpha / rank) * lora.product(flat_a, flat_b, part.shape, _EINSUM, axis)

    return SavedTensor(shape, np.dtype(np.float32), read)


_EINSUM = functools.partial(np.einsum, optimize=True)  # which lets BLAS multiply
