"""A network with its loss, metrics, scoring and decoding: what a run binds as `MODEL`."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.linen import partitioning as nn_partitioning

from limba import decoding, losses
from limba import metrics as metrics_lib
from limba.data import Batch
from limba.optimizers import OptimizerDef, as_optimizer_def

Array = jax.Array
PyTree = Any


class Vocabulary(Protocol):
    """What the engine needs of a SeqIO vocabulary."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_id(self) -> int | None: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


class EncoderDecoderModel:
    """An encoder-decoder network trained by teacher forcing.

    Attributes:
      module: a Linen network with the methods of `network.Transformer`.
      input_vocabulary, output_vocabulary: SeqIO vocabularies.
      optimizer_def: see `limba.optimizers`.
      decode_fn: `decoding.temperature_sample` or one with its signature, bound by gin.
      label_smoothing, z_loss: see `losses.cross_entropy_with_logits`.
      loss_normalizing_factor: None sums over the batch's tokens; see `losses.SpecialLossNormalizingFactor`.
    """

    # The SeqIO converter that makes this model's batches from a task's features.
    FEATURE_CONVERTER = "EncDecFeatureConverter"

    def __init__(
        self,
        module: nn.Module,
        input_vocabulary: Vocabulary,
        output_vocabulary: Vocabulary,
        optimizer_def: OptimizerDef | optax.GradientTransformation,
        decode_fn: Callable = decoding.temperature_sample,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: losses.LossNormalizingFactor = None,
    ):
        self.module = module
        self.input_vocabulary = input_vocabulary
        self.output_vocabulary = output_vocabulary
        self.optimizer_def = as_optimizer_def(optimizer_def)
        self.decode_fn = decode_fn
        self.label_smoothing = label_smoothing
        self.z_loss = z_loss
        self.loss_normalizing_factor = losses.canonical_normalizing_factor(loss_normalizing_factor)

    # ------------------------------------------------- parameters ---------------------------------------------------

    def initial_variables(self, rng: Array) -> Mapping[str, PyTree]:
        """`params` and `params_axes` of a new network; shapes of the batch do not matter."""
        tokens = jnp.ones((1, 8), jnp.int32)
        return self.module.init({"params": rng}, tokens, tokens, tokens, enable_dropout=False)

    def param_shapes_and_axes(self) -> tuple[PyTree, PyTree]:
        """Shapes of the parameters and their logical axes (`PartitionSpec` leaves), without computing any."""
        variables = jax.eval_shape(self.initial_variables, jax.random.key(0))
        axes = nn_partitioning.get_axis_names(variables["params_axes"])
        return variables["params"], flax.core.unfreeze(axes)

    # ---------------------------------------------------- loss ------------------------------------------------------

    def logits(self, params: PyTree, batch: Batch, dropout_rng: Array | None = None) -> Array:
        """Teacher-forced logits `[batch, length, vocab]`; dropout only with an rng."""
        logits = self.module.apply(
            {"params": params},
            batch["encoder_input_tokens"],
            batch["decoder_input_tokens"],
            batch["decoder_target_tokens"],
            encoder_segment_ids=batch.get("encoder_segment_ids"),
            decoder_segment_ids=batch.get("decoder_segment_ids"),
            encoder_positions=batch.get("encoder_positions"),
            decoder_positions=batch.get("decoder_positions"),
            enable_dropout=dropout_rng is not None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
        )
        return cast(Array, logits)

    def loss_fn(self, params: PyTree, batch: Batch, dropout_rng: Array | None) -> tuple[Array, metrics_lib.Metrics]:
        """The scalar that training minimizes, and the metrics of the batch."""
        return self._loss_and_metrics(self.logits(params, batch, dropout_rng), batch)

    def eval_fn(self, params: PyTree, batch: Batch) -> metrics_lib.Metrics:
        """The metrics of a batch without dropout, and `nats_per_target_token`.

        The latter is plain cross entropy per target token of positive weight: no smoothing, z-loss or normalization,
        so it compares between runs, and with other models.
        """
        logits = self.logits(params, batch)
        _, metrics = self._loss_and_metrics(logits, batch)
        nats, _ = losses.cross_entropy_with_logits(logits, batch["decoder_target_tokens"], 0.0, 0.0)
        real = (batch["decoder_loss_weights"] > 0).astype(jnp.float32)
        metrics["nats_per_target_token"] = metrics_lib.Ratio(jnp.sum(nats * real), jnp.sum(real))
        return metrics

    def _loss_and_metrics(self, logits: Array, batch: Batch) -> tuple[Array, metrics_lib.Metrics]:
        factor, weights = losses.normalizing_factor_and_weights(self.loss_normalizing_factor, batch)
        loss, z_loss, _ = losses.compute_weighted_cross_entropy(
            logits, batch["decoder_target_tokens"], weights, self.label_smoothing, self.z_loss, factor
        )
        return loss, metrics_lib.encoder_decoder_metrics(logits, batch, weights, loss, z_loss)

    def microbatch_weight(self, microbatch: Batch) -> Array | float | None:
        """What the loss of one microbatch was divided by; None if that does not depend on the batch.

        The Trainer weighs microbatches with it, so that the loss of the whole is the one a single batch would have.
        """
        if not isinstance(self.loss_normalizing_factor, losses.SpecialLossNormalizingFactor):
            return None
        return losses.normalizing_factor_and_weights(self.loss_normalizing_factor, microbatch)[0]

    # -------------------------------------------------- prediction --------------------------------------------------

    def predict_batch(
        self, params: PyTree, batch: Batch, rng: Array | None = None, max_decode_length: int | None = None
    ) -> tuple[Array, Array]:
        """Decodes the inputs of a batch.

        Args:
          params: the network's parameters.
          batch: `encoder_input_tokens`; the length of `decoder_input_tokens` is the default maximum.
          rng: for sampling.
          max_decode_length: tokens at most.

        Returns:
          Tokens int32 `[batch, max_decode_length]`, 0 after EOS, and the log probability of each row.
        """
        inputs = batch["encoder_input_tokens"]
        length = max_decode_length or batch["decoder_input_tokens"].shape[-1]
        module, variables = self.module, {"params": params}
        encoded = module.apply(variables, inputs, enable_dropout=False, method=module.encode)

        def tokens_to_logits(token, cache):
            logits, updated = module.apply(
                variables | cache, encoded, inputs, token, length, method=module.decode_step, mutable=["cache"]
            )
            return logits[:, 0], updated

        first = jnp.zeros((inputs.shape[0], 1), jnp.int32)
        _, cache = tokens_to_logits(first, {})
        return self.decode_fn(
            cache,
            tokens_to_logits,
            num_rows=inputs.shape[0],
            max_decode_length=length,
            eos_id=self.output_vocabulary.eos_id,
            decode_rng=rng,
        )

    def score_batch(self, params: PyTree, batch: Batch) -> Array:
        """Log probability of each row's targets, weighted by `decoder_loss_weights`: float32 `[batch]`."""
        logits = self.logits(params, batch)
        loss, _ = losses.cross_entropy_with_logits(logits, batch["decoder_target_tokens"], 0.0, 0.0)
        return -jnp.sum(loss * batch["decoder_loss_weights"], axis=-1)
