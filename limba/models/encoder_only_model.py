"""An encoder as a model: a masked language model, which says which tokens were masked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from limba.data.contract import Batch
from limba.models import losses
from limba.models.base_model import BaseTransformerModel, Vocabulary
from limba.models.lora import LoRA
from limba.optimizers.definitions import OptimizerDef

Array = jax.Array
PyTree = Any


class EncoderOnlyModel(BaseTransformerModel):
    """A masked language model (arXiv:1810.04805); logits, targets and weights are those of the masked places alone."""

    FEATURE_CONVERTER_CLS: Any = "MaskedLanguageModelFeatureConverter"

    def __init__(
        self,
        module: nn.Module | LoRA,
        vocabulary: Vocabulary,
        optimizer_def: OptimizerDef | optax.GradientTransformation,
        feature_converter_cls: Callable | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: losses.LossNormalizingFactor = None,
    ):
        """Args that `BaseTransformerModel` does not have:

        module: with the call of `limba.encoders.encoder.MaskedLanguageModel`.
        feature_converter_cls: instead of Limba's MaskedLanguageModelFeatureConverter.
        """
        super().__init__(
            module, vocabulary, vocabulary, optimizer_def, None, label_smoothing, z_loss, loss_normalizing_factor
        )
        if feature_converter_cls is not None:
            self.FEATURE_CONVERTER_CLS = feature_converter_cls

    def get_initial_variables(
        self, rng: Array, input_shapes: Mapping[str, Any], input_types: Mapping[str, Any] | None = None
    ) -> Mapping[str, PyTree]:
        dtype = (input_types or {}).get("encoder_input_tokens", jnp.int32)
        return self.module.init(rng, jnp.ones(input_shapes["encoder_input_tokens"], dtype), enable_dropout=False)

    def _network_inputs(self, batch: Batch) -> tuple[Sequence[Array | None], Mapping[str, Any]]:
        names = ("encoder_token_types", "encoder_segment_ids", "encoder_positions")
        places = {"masked_lm_positions": batch["masked_lm_positions"]}
        return [batch["encoder_input_tokens"], *map(batch.get, names)], places

    def predict_batch_with_aux(
        self, params: PyTree, batch: Batch, rng: Array | None = None, **options: Any
    ) -> tuple[Array, Mapping[str, Array]]:
        """The likeliest token of each masked place.

        Args:
          batch: `encoder_input_tokens` `[batch, length]` and `masked_lm_positions` `[batch, targets]`; 0 is no place,
            because a row begins with [CLS].

        Returns:
          Tokens int32 `[batch, targets]`, 0 where there is no place, and `{"scores": [batch]}`, the sum of their log
          probabilities.

        Raises:
          ValueError: for options of decoding, which there are none of.
        """
        del rng
        self._check_no_options(options)
        is_place = batch["masked_lm_positions"] > 0
        log_probabilities = jax.nn.log_softmax(self._compute_logits(self._merged(params), batch))
        tokens = jnp.argmax(log_probabilities, axis=-1).astype(jnp.int32)
        scores = jnp.sum(jnp.max(log_probabilities, axis=-1) * is_place, axis=-1)
        return tokens * is_place, {"scores": scores}

    def _check_no_options(self, options: Mapping[str, Any]) -> None:
        """Raises ValueError for options of decoding."""
        if given := sorted(name for name, value in options.items() if value):
            raise ValueError(f"An encoder answers at once and decodes nothing: leave out {', '.join(given)}.")
