"""T5X's `contrib.moe.models`: an encoder-decoder with T5X's factors of routers' losses, and its metrics."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from limba.addons.experts import sparse_mlp
from limba.data.contract import Batch
from limba.files import number_ranges
from limba.files.number_ranges import Range
from limba.models import EncoderDecoderModel
from limba.models import metrics as metrics_lib

Array = jax.Array

# T5X's metrics of what layers sow, beside those of the losses.
_METRICS = {
    "fraction_tokens_left_behind": sparse_mlp.DROPPED,
    "expert_usage": sparse_mlp.USAGE,
    "router_confidence": sparse_mlp.CONFIDENCE,
}


class MoeEncoderDecoderModel(EncoderDecoderModel):
    """`EncoderDecoderModel` of a network with experts, whose own coefficients of losses do not count.

    The loss is increased by `aux_loss_factor` times the mean load balance of all sparse layers of both stacks, and by
    `router_z_loss_factor` times their mean z-loss, whatever `loss_normalizing_factor` is. Metrics are T5X's:
    `experts/{auxiliary_loss, router_z_loss}`, what is added; `experts/{fraction_tokens_left_behind, expert_usage,
    router_confidence}`, means over layers.

    Raises:
      ValueError: as `EncoderDecoderModel`; for a factor below 0; if the network has no experts.
    """

    def __init__(self, *args: Any, aux_loss_factor: float = 0.0, router_z_loss_factor: float = 0.0, **more: Any):
        super().__init__(*args, **more)
        factors = {"aux_loss_factor": aux_loss_factor, "router_z_loss_factor": router_z_loss_factor}
        for name, factor in factors.items():
            number_ranges.check(f"{type(self).__name__}.{name}", factor, Range())
        if not hasattr(self.module, "added_losses"):
            raise ValueError(
                f"{type(self).__name__}.module is a {type(self.module).__name__}, which has no experts; bind "
                "@switch.Transformer(), or make the model a models.EncoderDecoderModel."
            )
        self._aux_loss_factor, self._router_z_loss_factor = aux_loss_factor, router_z_loss_factor

    def _loss_of_a_mean(self, batch: Batch) -> float:
        del batch
        return 1.0  # T5X adds the routers' losses as they are, also to a sum over tokens.

    def added_losses(self, sown: Mapping[str, Any]) -> tuple[Array, metrics_lib.Metrics]:
        """The losses of the routers, and T5X's metrics; see `BaseTransformerModel.loss_fn`."""
        flat = traverse_util.flatten_dict(dict(sown))

        def mean(name: str) -> Array:
            return jnp.mean(jnp.stack([value for (*_, last), (value,) in flat.items() if last == name]))

        auxiliary = self._aux_loss_factor * mean(sparse_mlp.LOAD_BALANCE)
        of_router = self._router_z_loss_factor * mean(sparse_mlp.ROUTER_Z)
        figures = {"auxiliary_loss": auxiliary, "router_z_loss": of_router}
        figures |= {name: mean(own) for name, own in _METRICS.items()}
        return auxiliary + of_router, {
            f"experts/{name}": metrics_lib.Ratio(value, jnp.float32(1)) for name, value in figures.items()
        }
