"""An encoder as a model: a masked language model, which says which tokens were masked."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from limba.data.contract import Batch
from limba.models import losses
from limba.models import metrics as metrics_lib
from limba.models.base_model import BaseTransformerModel, Vocabulary
from limba.models.lora import LoRA
from limba.network.encoders import sentence_pairs
from limba.optimizers.definitions import OptimizerDef

Array = jax.Array
PyTree = Any


class EncoderOnlyModel(BaseTransformerModel):
    """A masked language model (arXiv:1810.04805); logits, targets and weights are those of the masked places alone.

    With sentence pairs each masked token adds the loss of its pair to its own, with the same weight. Where rows have
    equally many masked tokens, that is BERT's loss: the mean of the tokens plus the mean of the pairs.
    """

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

        module: with the call of `limba.network.encoders.encoder.MaskedLanguageModel`, or for pairs of
          `limba.network.encoders.sentence_pairs.MaskedLanguageModelWithPairs`.
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
        config = getattr(self.module, "config", None)
        types = batch.get("encoder_token_types") if getattr(config, "num_token_types", 2) > 1 else None
        places = {"masked_lm_positions": batch["masked_lm_positions"]}
        others = map(batch.get, ("encoder_segment_ids", "encoder_positions"))
        return [batch["encoder_input_tokens"], types, *others], places

    def logits_of_targets(self, params: PyTree, batch: Batch) -> Array:
        size, count, length = batch["masked_lm_positions"].shape
        joined = {name: x if name.startswith("encoder_") else x.reshape(size, -1) for name, x in batch.items()}
        return self.logits(params, joined).reshape(size, count, length, -1)

    def _logits_of_loss(self, params: PyTree, batch: Batch, dropout_rng: Array | None) -> Any:
        of_pairs = sentence_pairs.pair_inputs(getattr(self.module, "network", self.module), batch)  # inside adapters
        if not of_pairs:
            return super()._logits_of_loss(params, batch, dropout_rng)
        return self._compute_logits(params, batch, dropout_rng, **of_pairs)

    def _loss_and_metrics(
        self, logits: Any, batch: Batch, dropout_rng: Array | None
    ) -> tuple[Array, metrics_lib.Metrics]:
        if not isinstance(logits, tuple):
            return super()._loss_and_metrics(logits, batch, dropout_rng)
        loss, metrics = super()._loss_and_metrics(logits[0], batch, dropout_rng)
        factor, weights = losses.normalizing_factor_and_weights(self._loss_normalizing_factor, batch)
        pairs = sentence_pairs.pair_losses(logits[1], batch, weights)
        loss += losses.normalized_sum(pairs.loss * pairs.weights, factor)
        count = jnp.sum(pairs.is_pair.astype(jnp.float32))
        metrics["loss"] = metrics_lib.per_step(loss)
        of_pairs = metrics_lib.Ratio(jnp.sum(pairs.loss * pairs.weights), jnp.float32(0))
        metrics[metrics_lib.MEAN] = metrics[metrics_lib.MEAN].merge(of_pairs)
        metrics["pair_loss"] = metrics_lib.Ratio(jnp.sum(pairs.loss * pairs.is_pair), count)
        metrics["pair_accuracy"] = metrics_lib.Ratio(jnp.sum(pairs.is_right * pairs.is_pair.astype(jnp.float32)), count)
        return loss, metrics

    def predict_batch_with_aux(
        self,
        params: PyTree,
        batch: Batch,
        rng: Array | None = None,
        *,
        return_all_decodes: bool = False,
        num_decodes: int = 1,
        **options: Any,
    ) -> tuple[Array, Mapping[str, Array]]:
        """The likeliest token of each masked place.

        Args:
          batch: `encoder_input_tokens` `[batch, length]` and `masked_lm_positions` `[batch, targets]`; 0 is no place,
            because a row begins with [CLS].
          return_all_decodes: the `num_decodes` likeliest tokens of each place, whatever other places have.

        Returns:
          Tokens int32 `[batch, targets]`, 0 where there is no place, and `{"scores": [batch]}`, the sum of their log
          probabilities. With `return_all_decodes` `[batch, num_decodes, targets]` and `[batch, num_decodes]`, best
          last.

        Raises:
          ValueError: for other options of decoding, which there are none of.
        """
        del rng
        self._check_no_options(options if return_all_decodes else options | {"num_decodes": num_decodes > 1})
        is_place = (batch["masked_lm_positions"] > 0)[:, None]
        log_probabilities = jax.nn.log_softmax(self._compute_logits(self._merged(params), batch))
        found, tokens = (jnp.moveaxis(x[..., ::-1], -1, 1) for x in jax.lax.top_k(log_probabilities, num_decodes))
        tokens, scores = tokens * is_place, jnp.sum(jnp.where(is_place, found, 0.0), axis=-1)
        if return_all_decodes:
            return tokens, {"scores": scores}
        return tokens[:, 0], {"scores": scores[:, 0]}

    def _check_no_options(self, options: Mapping[str, Any]) -> None:
        """Raises ValueError for options of decoding."""
        if given := sorted(name for name, value in options.items() if value):
            raise ValueError(f"An encoder answers at once and decodes nothing: leave out {', '.join(given)}.")
