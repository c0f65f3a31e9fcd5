"""Loss, metrics, scoring and the frame of decoding around a network; `limba.models` names the models that use it.

Hooks are T5X's: a subclass can replace the loss, the logits, the initial variables or a step of decoding.
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.linen import partitioning as nn_partitioning

from limba.data.contract import Batch
from limba.devices import target
from limba.models import decoding, losses, text_metrics
from limba.models import metrics as metrics_lib
from limba.models.lora import LoRA
from limba.network.kernels.linear_cross_entropy import LinearLogits
from limba.optimizers import argument_checks
from limba.optimizers.definitions import OptimizerDef, as_optimizer_def

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


@dataclasses.dataclass(frozen=True)
class DecoderParams:
    """The defaults of a prediction."""

    return_all_decodes: bool = False  # not only the best
    num_decodes: int = 1  # beams, or samples of an input


class BaseTransformerModel:
    """Loss, evaluation, scoring and prediction around a network; subclasses say how to call the network."""

    # The SeqIO converter that makes this model's batches from a task's features; a class or, so that the engine does
    # without SeqIO, its name there.
    FEATURE_CONVERTER_CLS: Any

    def __init__(
        self,
        module: nn.Module | LoRA,
        input_vocabulary: Vocabulary,
        output_vocabulary: Vocabulary,
        optimizer_def: OptimizerDef | optax.GradientTransformation,
        decode_fn: Callable | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: losses.LossNormalizingFactor = None,
    ):
        """Args:
        decode_fn: `decoding.beam_search`, `decoding.temperature_sample` or one with their signature.
        label_smoothing, z_loss: see `losses.cross_entropy_with_logits`.
        loss_normalizing_factor: None sums over the batch's tokens; see `losses.SpecialLossNormalizingFactor`.
        """
        rates = {"label_smoothing (LABEL_SMOOTHING)": label_smoothing, "z_loss (Z_LOSS)": z_loss}
        argument_checks.check_numbers(type(self).__name__, argument_checks.LOSSES, rates)
        self.module = module
        self.optimizer_def = as_optimizer_def(optimizer_def)
        self._input_vocabulary = input_vocabulary
        self._output_vocabulary = output_vocabulary
        self._decode_fn = decode_fn
        self._label_smoothing = label_smoothing
        self._z_loss = z_loss
        self._loss_normalizing_factor = losses.canonical_normalizing_factor(loss_normalizing_factor)

    def check_rows(self, rows: int) -> None:
        """Raises ValueError if the loss needs more rows in a forward pass than these; here one is enough."""

    @property
    def input_vocabulary(self) -> Vocabulary:
        return self._input_vocabulary

    @property
    def output_vocabulary(self) -> Vocabulary:
        return self._output_vocabulary

    @property
    def decode_fn(self) -> Callable | None:
        return self._decode_fn

    def with_decode_fn(self, decode_fn: Callable) -> Self:
        """This model, decoding in another way."""
        other = copy.copy(self)
        other._decode_fn = decode_fn
        return other

    # ------------------------------------------------- parameters ---------------------------------------------------

    def get_initial_variables(
        self, rng: Array, input_shapes: Mapping[str, Any], input_types: Mapping[str, Any] | None = None
    ) -> Mapping[str, PyTree]:
        """`params` and `params_axes` of a new network, for features of these shapes; types not given are int32."""
        raise NotImplementedError(f"{type(self).__name__} must define get_initial_variables.")

    def initial_variables(self, rng: Array) -> Mapping[str, PyTree]:
        """`get_initial_variables` for a small batch: in networks with relative positions the lengths do not matter."""
        shapes = dict.fromkeys(("encoder_input_tokens", "decoder_input_tokens"), (1, 8))
        with target.without_kernels():
            variables: Any = self.get_initial_variables(rng, shapes)
        return flax.core.unfreeze(variables)

    def param_shapes_and_axes(self) -> tuple[PyTree, PyTree]:
        """Shapes of the parameters and their logical axes (`PartitionSpec` leaves), without computing any."""
        variables = jax.eval_shape(self.initial_variables, jax.random.key(0))
        axes = nn_partitioning.get_axis_names(variables["params_axes"])
        return variables["params"], flax.core.unfreeze(axes)

    # ---------------------------------------------------- loss ------------------------------------------------------

    def _compute_logits(
        self,
        params: PyTree,
        batch: Batch,
        dropout_rng: Array | None = None,
        mutable: Any = False,
        other_variables: PyTree | None = None,
        **options: Any,
    ) -> Any:
        """Teacher-forced logits `[batch, length, vocab]`; dropout only with an rng.

        Args:
          mutable: collections to return too, as `nn.Module.apply` does.
          other_variables: collections beside `params`.
          options: of the network's call.
        """
        tokens, others = self._network_inputs(batch)
        return self.module.apply(
            {"params": params} | (other_variables or {}),
            *tokens,
            **others,
            enable_dropout=dropout_rng is not None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
            mutable=mutable,
            **options,
        )

    def _network_inputs(self, batch: Batch) -> tuple[Sequence[Array | None], Mapping[str, Any]]:
        """What `_compute_logits` calls the network with: features by position, others by name."""
        raise NotImplementedError(f"{type(self).__name__} must define _compute_logits.")

    def _logits_of_loss(self, params: PyTree, batch: Batch, dropout_rng: Array | None) -> Array | LinearLogits:
        """Logits, or what they are made of where network and device can do without them."""
        is_own = type(self)._compute_logits is not BaseTransformerModel._compute_logits
        if is_own or "linear_logits" not in inspect.signature(type(self.module).__call__).parameters:
            return self._compute_logits(params, batch, dropout_rng)
        return self._compute_logits(params, batch, dropout_rng, linear_logits=True)

    def logits(self, params: PyTree, batch: Batch, dropout_rng: Array | None = None) -> Array:
        """Teacher-forced logits `[batch, length, vocab]`; dropout only with an rng."""
        return self._compute_logits(params, batch, dropout_rng)

    def logits_of_targets(self, params: PyTree, batch: Batch) -> Array:
        """Teacher-forced logits of several targets for each row of inputs: `[batch, targets, length, vocab]`.

        Args:
          batch: features of inputs, whose names begin with "encoder_", `[batch, …]`; others `[batch, targets, length]`.
        """
        size, count = batch["decoder_target_tokens"].shape[:2]
        flat = {
            name: jnp.repeat(x, count, axis=0) if name.startswith("encoder_") else x.reshape(size * count, -1)
            for name, x in batch.items()
        }
        logits = self.logits(params, flat)
        return logits.reshape(size, count, *logits.shape[1:])

    def loss_fn(self, params: PyTree, batch: Batch, dropout_rng: Array | None) -> tuple[Array, metrics_lib.Metrics]:
        """The scalar that training minimizes, and the metrics of the batch.

        Without an rng, which is an evaluation, there are more metrics: `nats_per_target_token`, plain cross entropy
        per target token of positive weight, which compares between runs, and with other models, whatever smoothing,
        z-loss and normalization are; and those of `text_metrics`.

        A network with losses of its own has `added_losses(sown)`: of what it has sown, the sum of these losses and
        their metrics. They are added to the mean over target tokens; the metric `loss` is without them. A method of
        that name of the model comes before the network's.
        """
        added_losses = getattr(self, "added_losses", getattr(self.module, "added_losses", None))
        if added_losses is None:
            logits = self._logits_of_loss(params, batch, dropout_rng)
        else:
            sowing = {"mutable": ["intermediates"], "linear_logits": True}
            logits, sown = self._compute_logits(params, batch, dropout_rng, **sowing)
        with jax.named_scope("loss"):  # for profiles
            loss, metrics = self._loss_and_metrics(logits, batch, dropout_rng)
            if added_losses is not None:
                added, of_added = added_losses(sown["intermediates"])
                loss, metrics = loss + added * self._loss_of_a_mean(batch), metrics | of_added
            return loss, metrics

    def _loss_of_a_mean(self, batch: Batch) -> Array | float:
        """What the loss is if its mean over target tokens is 1."""
        factor, weights = losses.normalizing_factor_and_weights(self._loss_normalizing_factor, batch)
        total = batch["decoder_target_tokens"].size if weights is None else jnp.sum(weights)
        return total if factor is None else total / factor

    def _loss_and_metrics(
        self, logits: Any, batch: Batch, dropout_rng: Array | None
    ) -> tuple[Array, metrics_lib.Metrics]:
        targets = batch["decoder_target_tokens"]
        factor, weights = losses.normalizing_factor_and_weights(self._loss_normalizing_factor, batch)
        by_position = losses.token_losses(logits, targets, self._label_smoothing, self._z_loss)
        weighted = by_position.weighted(weights)
        loss, z_loss = (losses.normalized_sum(x, factor) for x in weighted)
        metrics = metrics_lib.encoder_decoder_metrics(by_position.is_right, batch, weights, loss, z_loss)
        total, count = jnp.sum(weighted[0]), metrics["loss_per_nonpadding_target_token"].count
        metrics[metrics_lib.MEAN] = metrics_lib.Ratio(total, count)
        counted = (targets > 0 if weights is None else weights > 0).astype(jnp.float32)
        metrics["num_target_tokens"] = metrics_lib.Sum(jnp.sum(counted))
        if "example_tasks" in batch:
            metrics["by_task"] = metrics_lib.SumsByTask.of(batch["example_tasks"], weighted[0], weights)
        if dropout_rng is None:
            nats = losses.token_losses(logits, targets).loss
            metrics["nats_per_target_token"] = metrics_lib.Ratio(jnp.sum(nats * counted), jnp.sum(counted))
            metrics["text"] = text_metrics.text_metrics(logits, targets, counted, self.output_vocabulary)
        return loss, metrics

    def added_features(self, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Features of training batches that the loss reads beside those of the converter, whose shapes are given."""
        del shapes
        return {}

    def at_step(self, step: Array) -> Self:
        """The model as the step after `step` updates trains it; a subclass whose loss depends on the step says how."""
        del step
        return self

    def eval_fn(self, params: PyTree, batch: Batch) -> tuple[Array, metrics_lib.Metrics]:
        """Loss and metrics of a batch without dropout."""
        return self.loss_fn(params, batch, None)

    @property
    def loss_is_mean(self) -> bool:
        """Whether the loss is divided by what the batch holds, such as its target tokens, and not by a constant."""
        return isinstance(self._loss_normalizing_factor, losses.SpecialLossNormalizingFactor)

    def microbatch_weight(self, microbatch: Batch) -> Array | float | None:
        """What the loss of one microbatch was divided by; None if that does not depend on the batch.

        The Trainer weighs microbatches with it, so that the loss of the whole is the one a single batch would have.
        """
        if not self.loss_is_mean:
            return None
        return losses.normalizing_factor_and_weights(self._loss_normalizing_factor, microbatch)[0]

    # ----------------------------------------------- scores, prediction ---------------------------------------------

    def score_batch(self, params: PyTree, batch: Batch, return_intermediates: bool = False) -> Any:
        """Log probability of each row's targets, weighted by `decoder_loss_weights`: float32 `[batch]`.

        With `return_intermediates` also the collection of that name, what the network has sown, to which
        `decoder/{target_tokens, loss_weights, token_scores}` are added.
        """
        targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
        intermediates: dict[str, Any] = {}
        if return_intermediates:
            logits, variables = self._compute_logits(params, batch, mutable=["intermediates"])
            intermediates = flax.core.unfreeze(variables.get("intermediates", {}))
        else:
            logits = self._compute_logits(params, batch)
        token_scores = losses.weighted_log_probabilities(logits, targets, weights)
        scores = jnp.sum(token_scores, axis=-1)
        if not return_intermediates:
            return scores
        # Tuples, because a collection holds one entry for each time that a value was sown.
        own = {"target_tokens": (targets,), "loss_weights": (weights,), "token_scores": (token_scores,)}
        intermediates["decoder"] = intermediates.get("decoder", {}) | own
        return scores, intermediates

    def predict_batch(self, params: PyTree, batch: Batch, rng: Array | None = None, **options: Any) -> Array:
        """The tokens of `predict_batch_with_aux`, with its options."""
        return self.predict_batch_with_aux(params=params, batch=batch, rng=rng, **options)[0]

    # Subclasses name their options.
    def predict_batch_with_aux(self, *args: Any, **options: Any) -> tuple[Array, Mapping[str, Array]]:
        """Decoded tokens of `(params, batch, rng)`, and auxiliary values, `scores` among them."""
        raise NotImplementedError(f"{type(self).__name__} must define predict_batch_with_aux.")

    def _with_cache(self, params: PyTree, cache: PyTree, *tokens: Array, **options: Any) -> tuple[Array, PyTree]:
        """What the network, or its `method`, returns for tokens, and the cache after it; None makes one."""
        variables = {"params": params} if cache is None else {"params": params, "cache": cache}
        outputs, changed = self.module.apply(variables, *tokens, enable_dropout=False, mutable=["cache"], **options)
        return outputs, changed["cache"]

    def _merged(self, params: PyTree) -> PyTree:
        """The parameters with adapters merged, where the network has some: once, and not at every step of decoding."""
        return self.module.merge(params) if isinstance(self.module, LoRA) else params

    def _decode(
        self,
        tokens_to_logits: decoding.TokensToLogits,
        inputs: Array,
        cache: PyTree,
        initial_index: Array | None,
        num_decodes: int,
        rng: Array | None,
        decoder_params: Mapping[str, Any] | None,
        return_all_decodes: bool,
    ) -> tuple[Array, Mapping[str, Array]]:
        """Tokens `[batch, length]` of `decode_fn` and `{"scores": [batch]}`: the best decodes.

        With `return_all_decodes` `[batch, num_decodes, length]` and `[batch, num_decodes]`, best last.
        """
        options = dict(decoder_params or {})
        if rng is not None:
            if options.get("decode_rng") is not None:
                raise ValueError("An rng came as `rng` and as decoder_params['decode_rng']; give one of the two.")
            options["decode_rng"] = rng
        if initial_index is not None:
            options["initial_index"] = initial_index
        options.setdefault("eos_id", self.output_vocabulary.eos_id or 1)
        assert self.decode_fn is not None
        decodes, scores = self.decode_fn(
            inputs=inputs,
            cache=cache,
            tokens_to_logits=tokens_to_logits,
            num_decodes=num_decodes,
            # A scanned network has its layers before the batch in every array of the cache.
            cache_offset=1 if getattr(self.module, "scan_layers", False) else 0,
            **options,
        )
        if return_all_decodes:
            return decodes, {"scores": scores}
        return decodes[:, -1], {"scores": scores[:, -1]}
