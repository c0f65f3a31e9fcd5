"""Logits that are not finite compare with nothing: the error names the model and its layer."""

from collections.abc import Callable
from typing import Any

import numpy as np

from limba.network.finite_numbers import layers as finite_layers


def require(path: str, logits: np.ndarray, run: Callable[[], Any]) -> None:
    """Raises NotFiniteError if logits `[rows, …]` of a model are not finite; its tensors are, or could not be read.

    Args:
      path: the model's.
      run: computes the logits once more; see `finite_layers.first_layer`.
    """
    if np.isfinite(logits).all():
        return
    row = int(np.argmax(~np.isfinite(logits).reshape(len(logits), -1).all(axis=1)))
    layer, _ = finite_layers.first_layer(run, len(logits)) or (None, -1)
    raise finite_layers.NotFiniteError(
        f"The logits of {path} for row {row} of the check ({('random tokens', 'the text')[row]}) are not finite. "
        f"{finite_layers.Cause(None, layer)} Take an earlier checkpoint, or download this one again."
    )
