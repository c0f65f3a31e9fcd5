"""An encoder that gives each row a number, or several."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from limba.data.contract import Batch
from limba.models import losses
from limba.models import metrics as metrics_lib
from limba.models.base_model import Vocabulary
from limba.models.encoder_classifier import EncoderClassifier
from limba.models.lora import LoRA
from limba.optimizers.definitions import OptimizerDef

Array = jax.Array
PyTree = Any
# Of classes.
_NOT_OF_NUMBERS = (
    "accuracy",
    "z_loss",
    "z_loss_per_all_target_tokens",
    "cross_ent_loss",
    "cross_ent_loss_per_all_target_tokens",
)


class EncoderRegressor(EncoderClassifier):
    """Numbers for each text or pair of texts, such as how similar they are: the logits of a row.

    The loss is the squared error, summed over numbers and divided by the normalizing factor; `mean_squared_error` is
    their mean.
    """

    FEATURE_CONVERTER_CLS: Any = "EncoderRegressionFeatureConverter"

    def __init__(
        self,
        module: nn.Module | LoRA,
        vocabulary: Vocabulary,
        labels: Vocabulary,
        optimizer_def: OptimizerDef | optax.GradientTransformation,
        feature_converter_cls: Callable | None = None,
        loss_normalizing_factor: losses.LossNormalizingFactor = None,
    ):
        """Args that `EncoderClassifier` does not have:

        module: `limba.network.encoders.classifier.SequenceClassifier`, whose labels are the names of the numbers.
        labels: a NumberVocabulary of these names.

        Raises:
          ValueError: if the network has another number of labels.
        """
        super().__init__(
            module,
            vocabulary,
            labels,
            optimizer_def,
            feature_converter_cls,
            loss_normalizing_factor=loss_normalizing_factor,
        )

    @property
    def problem_type(self) -> str | None:
        return "regression" if self.output_vocabulary.vocab_size > 2 else None

    def _loss_and_metrics(
        self, logits: Any, batch: Batch, dropout_rng: Array | None
    ) -> tuple[Array, metrics_lib.Metrics]:
        factor, weights = losses.normalizing_factor_and_weights(self._loss_normalizing_factor, batch)
        numbers = logits[:, 0]
        self._check_targets(numbers, batch)
        squared = jnp.square(numbers - batch["decoder_target_values"])
        squared = squared if weights is None else squared * weights
        loss = losses.normalized_sum(squared, factor)
        metrics = metrics_lib.encoder_decoder_metrics(jnp.zeros_like(squared), batch, weights, loss, jnp.float32(0))
        metrics = {name: metric for name, metric in metrics.items() if name not in _NOT_OF_NUMBERS}
        count = jnp.float32(squared.size) if weights is None else jnp.sum(weights)
        mean = metrics_lib.Ratio(jnp.sum(squared), count)
        return loss, metrics | {"mean_squared_error": mean, metrics_lib.MEAN: mean}

    def predict_batch_with_aux(
        self, params: PyTree, batch: Batch, rng: Array | None = None, **options: Any
    ) -> tuple[Array, Mapping[str, Array]]:
        """The numbers of each row.

        Args:
          batch: `encoder_input_tokens` `[batch, length]`.

        Returns:
          Ids of `output_vocabulary`, int32 `[batch, numbers]`, and `{"scores": [batch]}`, the means of the numbers.

        Raises:
          ValueError: for options of decoding, which there are none of.
        """
        del rng
        self._check_no_options(options)
        numbers = self._compute_logits(self._merged(params), batch)[:, 0]
        # As NumberVocabulary has them: the bits, and of zero those of minus zero.
        ids = jax.lax.bitcast_convert_type(jnp.where(numbers == 0, -0.0, numbers), jnp.int32)
        return ids, {"scores": jnp.mean(numbers, axis=1)}
