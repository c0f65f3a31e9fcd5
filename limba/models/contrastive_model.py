"""An encoder that learns to compare texts, from pairs that belong together."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from limba.data.contract import Batch
from limba.models import metrics as metrics_lib
from limba.models.base_model import Vocabulary
from limba.models.encoder_only_model import EncoderOnlyModel
from limba.models.lora import LoRA
from limba.network.encoders.text_encoder import unit_length
from limba.optimizers.definitions import OptimizerDef

Array = jax.Array
PyTree = Any
NO_ANSWERS = "This model gives vectors of texts and no answers: `limba embed RUN` writes them."


class ContrastiveModel(EncoderOnlyModel):
    """Vectors of texts such that the two texts of a pair are closer than texts of different pairs.

    The loss is InfoNCE (arXiv:1807.03748, equation 4) with in-batch negatives (arXiv:1705.00652, section 4.4), as
    sentence-transformers' MultipleNegativesRankingLoss has it: the mean over pairs i of
    `-log(exp(s c_ii) / sum_j exp(s c_ij))`, where c_ij is the cosine of the first text of pair i and the second text
    of pair j, and s the scale. j goes over the global batch, whatever the mesh, and leaves out pairs that have a text
    in common with pair i on the same side, because their texts are not wrong for it. With microbatches j goes over
    the microbatch.
    """

    FEATURE_CONVERTER_CLS: Any = "TextPairFeatureConverter"

    def __init__(
        self,
        module: nn.Module | LoRA,
        vocabulary: Vocabulary,
        optimizer_def: OptimizerDef | optax.GradientTransformation,
        feature_converter_cls: Callable | None = None,
        scale: float = 20.0,
        symmetric: bool = False,
    ):
        """Args that `EncoderOnlyModel` does not have:

        module: `limba.network.encoders.text_encoder.TextEncoder`.
        scale: of cosines, 1 divided by the temperature.
        symmetric: adds the loss of finding the first text by the second and takes the mean of both, as
          MultipleNegativesSymmetricRankingLoss.

        Raises:
          ValueError: for a scale that is not above 0.
        """
        super().__init__(
            module, vocabulary, optimizer_def, feature_converter_cls, loss_normalizing_factor="NUM_REAL_TARGET_TOKENS"
        )
        if not isinstance(scale, int | float) or not 0 < scale < math.inf:
            raise ValueError(f"ContrastiveModel.scale is {scale!r}; it is a number above 0, such as 20.0.")
        self._scale, self._symmetric = scale, symmetric

    def _vectors(self, params: PyTree, batch: Batch, dropout_rng: Array | None = None) -> tuple[Array, Array]:
        """Of the first and of the second texts, float32 `[batch, embed]` of length 1."""
        texts = (batch["encoder_input_tokens"], batch["decoder_target_tokens"])
        keys = (None, None) if dropout_rng is None else jax.random.split(dropout_rng)

        def of(tokens: Array, key: Array | None) -> Array:
            rngs = None if key is None else {"dropout": key}
            x: Any = self.module.apply({"params": params}, tokens, enable_dropout=key is not None, rngs=rngs)
            return unit_length(x)

        first, second = map(of, texts, keys)
        return first, second

    def logits(self, params: PyTree, batch: Batch, dropout_rng: Array | None = None) -> Array:
        """Scaled cosines of each first text with all second texts, float32 `[batch, batch]`."""
        first, second = self._vectors(params, batch, dropout_rng)
        return self._scale * jnp.einsum("ie,je->ij", first, second, precision=jax.lax.Precision.HIGHEST)

    def _logits_of_loss(self, params: PyTree, batch: Batch, dropout_rng: Array | None) -> Array:
        return self.logits(params, batch, dropout_rng)

    def _loss_and_metrics(
        self, logits: Array, batch: Batch, dropout_rng: Array | None
    ) -> tuple[Array, metrics_lib.Metrics]:
        self.check_rows(len(logits))
        weights = self._row_weights(batch)
        texts = (batch["encoder_input_tokens"], batch["decoder_target_tokens"])
        has_same = sum(jnp.all(x[:, None] == x[None], axis=-1) for x in texts) > 0
        is_own = jnp.eye(len(logits), dtype=bool)
        counts = is_own | (~has_same & (weights > 0))

        def losses(logits: Array) -> tuple[Array, Array]:
            """Of each row, and whether its own candidate is the nearest."""
            logits = jnp.where(counts, logits, -jnp.inf)
            own = jnp.diagonal(logits)
            is_right = own > jnp.max(jnp.where(is_own, -jnp.inf, logits), axis=-1)
            return jax.nn.logsumexp(logits, axis=-1) - own, is_right

        by_row, is_right = losses(logits)
        if self._symmetric:
            by_row = (by_row + losses(logits.T)[0]) / 2
        total, count = jnp.sum(by_row * weights), jnp.sum(weights)
        loss = total / jnp.maximum(count, 1)
        metrics = metrics_lib.encoder_decoder_metrics(is_right[:, None], batch, weights[:, None], loss, jnp.float32(0))
        # Of what is left out some are of tokens, which have no losses, and others of the z-loss.
        metrics = {x: metric for x, metric in metrics.items() if not any(y in x for y in ("_per_", "z_loss", "cross_"))}
        metrics[metrics_lib.MEAN] = metrics_lib.Ratio(total, count)
        if "example_tasks" in batch:
            metrics["by_task"] = metrics_lib.SumsByTask.of(
                batch["example_tasks"], (by_row * weights)[:, None], weights[:, None]
            )
        return loss, metrics

    def check_rows(self, rows: int) -> None:
        """Raises ValueError for a single pair."""
        if rows < 2:
            raise ValueError(
                "A batch of 1 pair has no negatives: set BATCH_SIZE, divided by Trainer.num_microbatches, to 2 or more."
            )

    @staticmethod
    def _row_weights(batch: Batch) -> Array:
        """Float32 `[batch]`: 1 for a pair, 0 for a row that fills a batch up."""
        return jnp.any(batch["decoder_loss_weights"] > 0, axis=-1).astype(jnp.float32)

    def microbatch_weight(self, microbatch: Batch) -> Array:
        return jnp.sum(self._row_weights(microbatch))

    def score_batch(self, params: PyTree, batch: Batch, return_intermediates: bool = False) -> Any:
        """The cosine of each pair, float32 `[batch]`, and `{"first", "second"}`, the vectors `[batch, embed]`.

        Raises:
          ValueError: for `return_intermediates`.
        """
        self._check_no_options({"return_intermediates": return_intermediates})
        first, second = self._vectors(self._merged(params), batch)
        return jnp.sum(first * second, axis=-1), {"first": first, "second": second}

    def predict_batch_with_aux(self, *args: Any, **options: Any) -> tuple[Array, Mapping[str, Array]]:
        """Raises ValueError: there are vectors and no answers."""
        raise ValueError(NO_ANSWERS)
