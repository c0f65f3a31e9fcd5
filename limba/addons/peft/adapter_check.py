"""Is an adapter on its base the model with the factors merged? Tensor by tensor, as PEFT adds them."""

from collections.abc import Iterator

import numpy as np

from limba.addons.peft.peft_folder import Adapter, ModuleFactors
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files.model import Model
from limba.convert.tensors import tensor_parts

_BLOCK_BYTES = 16 * 2**20
_EPSILON = float(np.finfo(np.float32).eps)


def compare(adapter: Adapter, base: Model, merged: Model) -> Comparison:
    """The largest difference of a weight, `W + scale * B @ A` of the files in float64, from that of the merged model.

    Allowed is what rounding to float32 makes of the sum, where it is nearest to the limit.
    """
    of_base, of_merged = ({base.family.tensor_name(n): t for n, t in m.stored().items()} for m in (base, merged))
    unknown = [name for name in adapter.modules if f"{name}.weight" not in of_base]
    assert not unknown, f"a table of names without {unknown[0]}"
    worst = (0.0, 0.0, 1.0, "")  # share of the limit, difference, limit, name
    for name, tensor in of_base.items():
        module = adapter.modules.get(name.removesuffix(".weight"))
        for difference, limit in _differences(tensor, of_merged[name], module):
            shares = difference / limit
            place = np.unravel_index(np.argmax(shares), shares.shape)
            worst = max(worst, (float(shares[place]), float(difference[place]), float(limit[place]), name))
    _, largest, allowed, name = worst
    note = f"of {len(of_base)} tensors, {len(adapter.modules)} of them with factors{', ' if name else ''}{name}"
    return Comparison("base + adapter, merged model", largest, allowed, note)


def _differences(
    base: SavedTensor, merged: SavedTensor, module: ModuleFactors | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The difference of each number of some rows at a time, and what it may be."""
    smallest = float(np.finfo(np.float32).tiny)
    if not base.shape:
        return
    for rows in tensor_parts.spans(base, _BLOCK_BYTES):
        index = (rows, *(slice(None),) * (base.ndim - 1))
        weight, wanted = (t.read(index).astype(np.float64) for t in (base, merged))
        limit = np.full(weight.shape, smallest)
        if module is not None:
            a, b = module.a.astype(np.float64), module.b[rows].astype(np.float64)
            weight = weight + module.scale * (b @ a)
            # Each product is a sum of `rank` terms; then the scale, and the sum with the kernel.
            limit += _EPSILON * ((module.rank + 3) * module.scale * (np.abs(b) @ np.abs(a)) + np.abs(wanted))
        yield np.abs(weight - wanted), limit
