"""A T5 whose activations are smaller, and whose function is the same.

T5's norms divide by the root mean square, so the sum of residuals may have any scale: what adds to it, the embedding
and the kernels `out` and `wo`, is divided by one factor. Only the norms' epsilon, 1e-6, sees that. Where the embedding
is the output too, the decoder's last norm multiplies by the factor. Inside an MLP the branch that is linear (or a
ReLU's) is divided and `wo` multiplied; inside attention `value` and `out`. Factors are powers of two, which do not
round.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.convert.model_files.model import T5Model
from limba.convert.model_files.trimmed_model import EMBEDDING
from limba.network import own_layers

LAST_NORM = "decoder/decoder_norm/scale"
# Other texts than those that were tried have larger numbers.
_SPARE = 4


def rescaled(model: T5Model, largest: Iterable[tuple[str, str, float]], limit: float) -> T5Model:
    """The model with activations of at most a fourth of a limit, as far as these layers say.

    Args:
      largest: a layer's path (`encoder/layers_0/mlp/wo`), "takes" or "gives", and the largest absolute value of that.
      limit: the largest number of the type.

    Raises:
      ValueError: for a network with layers of a user's own or Gemma's, or with an MLP that is not linear in any branch.
    """
    config = model.config
    if own := own_layers.of(config):
        raise ValueError(f"{model.path} has layers of its own, {', '.join(own)}, which are not rescaled.")
    if not config.is_in_t5x:
        raise ValueError(f"{model.path} has norms behind blocks ({config.layer_kind}), which undo what rescales them.")
    if config.mlp_activations[-1] not in ("linear", "relu"):
        raise ValueError(
            f"{model.path} has the mlp_activations {config.mlp_activations}; an MLP is rescaled whose last one is "
            "linear or relu."
        )
    branch = "wi" if len(config.mlp_activations) == 1 else f"wi_{len(config.mlp_activations) - 1}"
    powers: dict[str, int] = collections.defaultdict(int)
    stream = 0
    inside: dict[tuple[str, str], int] = collections.defaultdict(int)
    for path, side, value in largest:
        block, _, layer = path.rpartition("/")
        power = max(0, math.ceil(math.log2(value * _SPARE / limit))) if value > 0 else 0
        if (layer, side) in ((branch, "gives"), ("wo", "takes")):
            inside[f"{block}/{branch}", f"{block}/wo"] = max(inside[f"{block}/{branch}", f"{block}/wo"], power)
        elif (layer, side) in (("value", "gives"), ("out", "takes")):
            inside[f"{block}/value", f"{block}/out"] = max(inside[f"{block}/value", f"{block}/out"], power)
        elif (layer, side) in (("wo", "gives"), ("out", "gives")) or layer.endswith("_norm"):
            stream = max(stream, power)
    for (first, second), power in inside.items():
        powers[f"{first}/kernel"] -= power
        powers[f"{second}/kernel"] += power
    for name in model.tensors:
        if name == EMBEDDING or name.endswith(("/out/kernel", "/wo/kernel")):
            powers[name] -= stream
    if config.logits_via_embedding and not model.head.labels:
        powers[LAST_NORM] += stream
    tensors = {name: _times(tensor, 2.0 ** powers[name]) for name, tensor in model.tensors.items()}
    return dataclasses.replace(model, tensors=tensors, folder=None)


def _times(tensor: SavedTensor, factor: float) -> SavedTensor:
    def read(index: Index) -> np.ndarray:
        part = tensor.read(index)
        return part * np.asarray(factor, part.dtype)

    return tensor if factor == 1 else SavedTensor(tensor.shape, tensor.dtype, read)
