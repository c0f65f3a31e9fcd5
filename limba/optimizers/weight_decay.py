"""Which parameters AdamW's weight decay is for: `optimizers.adamw.mask = @weight_decay.matrices`."""

from typing import Any

import jax

# Names of what is not multiplied with activations: scales of norms, biases, tables of relative positions.
_NOT_MATRICES = ("scale", "bias", "rel_embedding")


def matrices(params: Any) -> Any:
    """A tree: True for kernels and embeddings, False for norms and position biases, as Hugging Face's scripts decay."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in _NOT_MATRICES, params)
