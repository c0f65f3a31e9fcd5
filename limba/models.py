"""A network with its loss, metrics, scoring and decoding: what a run binds as `MODEL`.

Names and hooks are T5X's: a network with the protocol of `network.Transformer` or `network.DecoderWrapper` can be
bound, and a subclass can replace the loss, the logits, the initial variables or a step of decoding.
"""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.linen import partitioning as nn_partitioning

from limba import decoding, losses
from limba import metrics as metrics_lib
from limba.data import Batch
from limba.lora import LoRA
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


@dataclasses.dataclass(frozen=True)
class DecoderParams:
    """What a prediction returns if the caller does not say.

    Attributes:
      return_all_decodes: every decode of an input, not only the best.
      num_decodes: the beams of a beam search, or the samples of an input.
    """

    return_all_decodes: bool = False
    num_decodes: int = 1


class BaseTransformerModel:
    """Loss, evaluation, scoring and prediction around a network; subclasses say how to call the network.

    Attributes:
      module: a Linen network.
      optimizer_def: see `limba.optimizers`.
    """

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
        module: a Linen network, or one with adapters.
        input_vocabulary, output_vocabulary: SeqIO vocabularies.
        optimizer_def: see `limba.optimizers`.
        decode_fn: `decoding.beam_search`, `decoding.temperature_sample` or one with their signature.
        label_smoothing, z_loss: see `losses.cross_entropy_with_logits`.
        loss_normalizing_factor: None sums over the batch's tokens; see `losses.SpecialLossNormalizingFactor`.
        """
        self.module = module
        self.optimizer_def = as_optimizer_def(optimizer_def)
        self._input_vocabulary = input_vocabulary
        self._output_vocabulary = output_vocabulary
        self._decode_fn = decode_fn
        self._label_smoothing = label_smoothing
        self._z_loss = z_loss
        self._loss_normalizing_factor = losses.canonical_normalizing_factor(loss_normalizing_factor)

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
        self,
        rng: Array,
        input_shapes: Mapping[str, Any],
        input_types: Mapping[str, Any] | None = None,
    ) -> Mapping[str, PyTree]:
        """`params` and `params_axes` of a new network.

        Args:
          rng: for the parameters.
          input_shapes: of the features of a batch.
          input_types: of the features; int32 where not given.
        """
        raise NotImplementedError(f"{type(self).__name__} must define get_initial_variables.")

    def initial_variables(self, rng: Array) -> Mapping[str, PyTree]:
        """`get_initial_variables` for a small batch: in networks with relative positions the lengths do not matter."""
        shapes = dict.fromkeys(("encoder_input_tokens", "decoder_input_tokens"), (1, 8))
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
    ) -> Any:
        """Teacher-forced logits `[batch, length, vocab]`.

        Args:
          params: of the network.
          batch: a batch.
          dropout_rng: dropout happens only with one.
          mutable: collections to return too, as `nn.Module.apply` does.
          other_variables: collections beside `params`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define _compute_logits.")

    def logits(self, params: PyTree, batch: Batch, dropout_rng: Array | None = None) -> Array:
        """Teacher-forced logits `[batch, length, vocab]`; dropout only with an rng."""
        return self._compute_logits(params, batch, dropout_rng)

    def loss_fn(self, params: PyTree, batch: Batch, dropout_rng: Array | None) -> tuple[Array, metrics_lib.Metrics]:
        """The scalar that training minimizes, and the metrics of the batch.

        Without an rng, which is an evaluation, there is one metric more: `nats_per_target_token`, plain cross entropy
        per target token of positive weight. Without smoothing, z-loss and normalization it compares between runs, and
        with other models.
        """
        logits = self._compute_logits(params, batch, dropout_rng)
        targets = batch["decoder_target_tokens"]
        factor, weights = losses.normalizing_factor_and_weights(self._loss_normalizing_factor, batch)
        by_position = losses.weighted_cross_entropy(logits, targets, weights, self._label_smoothing, self._z_loss)
        loss, z_loss = (losses.normalized_sum(x, factor) for x in by_position)
        metrics = metrics_lib.encoder_decoder_metrics(logits, batch, weights, loss, z_loss)
        if "example_tasks" in batch:
            metrics["by_task"] = metrics_lib.SumsByTask.of(batch["example_tasks"], by_position[0], weights)
        if dropout_rng is None:
            nats, _ = losses.cross_entropy_with_logits(logits, targets, 0.0, 0.0)
            counted = targets > 0 if weights is None else weights > 0
            metrics["nats_per_target_token"] = metrics_lib.Ratio(
                jnp.sum(nats * counted), jnp.sum(counted.astype(jnp.float32))
            )
        return loss, metrics

    def eval_fn(self, params: PyTree, batch: Batch) -> tuple[Array, metrics_lib.Metrics]:
        """Loss and metrics of a batch without dropout."""
        return self.loss_fn(params, batch, None)

    def microbatch_weight(self, microbatch: Batch) -> Array | float | None:
        """What the loss of one microbatch was divided by; None if that does not depend on the batch.

        The Trainer weighs microbatches with it, so that the loss of the whole is the one a single batch would have.
        """
        if not isinstance(self._loss_normalizing_factor, losses.SpecialLossNormalizingFactor):
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
        token_scores = -losses.cross_entropy_with_logits(logits, targets, 0.0, 0.0)[0] * weights
        scores = jnp.sum(token_scores, axis=-1)
        if not return_intermediates:
            return scores
        # Tuples, because a collection holds one entry for each time that a value was sown.
        own = {"target_tokens": (targets,), "loss_weights": (weights,), "token_scores": (token_scores,)}
        intermediates["decoder"] = intermediates.get("decoder", {}) | own
        return scores, intermediates

    def predict_batch(self, params: PyTree, batch: Batch, rng: Array | None = None, **options: Any) -> Array:
        """The tokens of `predict_batch_with_aux`, which says what the options are."""
        return self.predict_batch_with_aux(params=params, batch=batch, rng=rng, **options)[0]

    # Subclasses name their options.
    def predict_batch_with_aux(self, *args: Any, **options: Any) -> tuple[Array, Mapping[str, Array]]:
        """Decoded tokens of `(params, batch, rng)`, and `scores` among what else is known of them."""
        raise NotImplementedError(f"{type(self).__name__} must define predict_batch_with_aux.")

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
    ) -> tuple[Array, Array]:
        """Runs `decode_fn`: `(tokens [batch, num_decodes, length], scores [batch, num_decodes])`, best last."""
        options = dict(decoder_params or {})
        if rng is not None:
            if options.get("decode_rng") is not None:
                raise ValueError("An rng came as `rng` and as decoder_params['decode_rng']; give one of the two.")
            options["decode_rng"] = rng
        if initial_index is not None:
            options["initial_index"] = initial_index
        options.setdefault("eos_id", self.output_vocabulary.eos_id or 1)
        assert self.decode_fn is not None
        return self.decode_fn(
            inputs=inputs,
            cache=cache,
            tokens_to_logits=tokens_to_logits,
            num_decodes=num_decodes,
            # A scanned network has its layers before the batch in every array of the cache.
            cache_offset=1 if getattr(self.module, "scan_layers", False) else 0,
            **options,
        )


class EncoderDecoderModel(BaseTransformerModel):
    """An encoder-decoder network trained by teacher forcing."""

    FEATURE_CONVERTER_CLS: Any = "EncDecFeatureConverter"

    def __init__(
        self,
        module: nn.Module | LoRA,
        input_vocabulary: Vocabulary,
        output_vocabulary: Vocabulary,
        optimizer_def: OptimizerDef | optax.GradientTransformation,
        decode_fn: Callable = decoding.beam_search,
        feature_converter_cls: Callable | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: losses.LossNormalizingFactor = None,
        default_decoder_params: DecoderParams | None = None,
    ):
        """Args that `BaseTransformerModel` does not have:

        feature_converter_cls: instead of SeqIO's EncDecFeatureConverter.
        default_decoder_params: what a prediction returns if the caller does not say.
        """
        super().__init__(
            module=module,
            input_vocabulary=input_vocabulary,
            output_vocabulary=output_vocabulary,
            optimizer_def=optimizer_def,
            decode_fn=decode_fn,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            loss_normalizing_factor=loss_normalizing_factor,
        )
        self._default_decoder_params = default_decoder_params or DecoderParams()
        if feature_converter_cls is not None:
            self.FEATURE_CONVERTER_CLS = feature_converter_cls

    def get_initial_variables(
        self,
        rng: Array,
        input_shapes: Mapping[str, Any],
        input_types: Mapping[str, Any] | None = None,
    ) -> Mapping[str, PyTree]:
        types = input_types or {}
        ones = {name: jnp.ones(shape, types.get(name, jnp.int32)) for name, shape in input_shapes.items()}
        return self.module.init(
            rng,
            ones["encoder_input_tokens"],
            ones["decoder_input_tokens"],
            ones["decoder_input_tokens"],
            encoder_segment_ids=ones.get("encoder_segment_ids"),
            decoder_segment_ids=ones.get("decoder_segment_ids"),
            encoder_positions=ones.get("encoder_positions"),
            decoder_positions=ones.get("decoder_positions"),
            decode=False,
            enable_dropout=False,
        )

    def _compute_logits(
        self,
        params: PyTree,
        batch: Batch,
        dropout_rng: Array | None = None,
        mutable: Any = False,
        other_variables: PyTree | None = None,
    ) -> Any:
        return self.module.apply(
            {"params": params} | (other_variables or {}),
            batch["encoder_input_tokens"],
            batch["decoder_input_tokens"],
            batch["decoder_target_tokens"],
            encoder_segment_ids=batch.get("encoder_segment_ids"),
            decoder_segment_ids=batch.get("decoder_segment_ids"),
            encoder_positions=batch.get("encoder_positions"),
            decoder_positions=batch.get("decoder_positions"),
            decode=False,
            enable_dropout=dropout_rng is not None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
            mutable=mutable,
        )

    def _compute_logits_from_slice(
        self,
        decoding_state: decoding.DecodingState,
        params: PyTree,
        encoded_inputs: Array,
        raw_inputs: Array,
        max_decode_length: int,
    ) -> tuple[Array, PyTree]:
        """One step of decoding, for rows `batch * num_decodes`.

        Returns:
          Logits `[rows, vocab]` after the tokens of the state, and the new cache.
        """
        logits, variables = self.module.apply(
            {"params": params, "cache": decoding_state.cache},
            encoded_inputs,
            raw_inputs,
            decoding_state.cur_token,
            decoding_state.cur_token,
            enable_dropout=False,
            decode=True,
            max_decode_length=max_decode_length,
            mutable=["cache"],
            method=self.module.decode,
        )
        return jnp.squeeze(logits, axis=1), variables["cache"]

    def _compute_kv_cache(
        self,
        params: PyTree,
        encoded_inputs: Array,
        encoder_input_tokens: Array,
        decoder_input_tokens: Array,
        prefill_decoder_prompt: bool = False,
    ) -> tuple[PyTree, Array | None]:
        """The cache at the start of decoding, as long as `decoder_input_tokens`.

        Returns:
          The cache, and how long the prompt of each row in it is; None where it holds no prompts.
        """
        ones = jnp.ones_like(decoder_input_tokens)
        # What networks of Limba offer beyond T5X's protocol.
        keep: dict[str, Any] = {"keep_encoded_keys": True} if _accepts(self.module.decode, "keep_encoded_keys") else {}
        _, variables = self.module.apply(
            {"params": params},
            encoded_inputs,
            encoder_input_tokens,
            ones,
            ones,
            enable_dropout=False,
            decode=True,
            mutable=["cache"],
            method=self.module.decode,
            **keep,
        )
        if not prefill_decoder_prompt:
            return variables["cache"], None

        lengths = jnp.sum(decoder_input_tokens != 0, axis=1)
        _, variables = self.module.apply(
            {"params": params, "cache": variables["cache"]},
            encoded_inputs,
            encoder_input_tokens,
            decoder_input_tokens,
            ones,
            enable_dropout=False,
            prefill=True,
            prefill_lengths=lengths,
            mutable=["cache"],
            method=self.module.decode,
        )
        cache = flax.core.unfreeze(variables["cache"])
        embedder = cache.get("decoder", {}).get("position_embedder")
        if embedder is not None:  # Absolute positions go on after the prompt.
            embedder["position_embedder_index"] = lengths
        return cache, lengths

    def predict_batch_with_aux(
        self,
        params: PyTree,
        batch: Batch,
        rng: Array | None = None,
        decoder_params: Mapping[str, Any] | None = None,
        return_all_decodes: bool | None = None,
        num_decodes: int | None = None,
        prompt_with_targets: bool = False,
    ) -> tuple[Array, Mapping[str, Array]]:
        """Decodes the inputs of a batch.

        Args:
          params: the network's parameters.
          batch: `encoder_input_tokens`, and `decoder_input_tokens`, whose length is the longest answer.
          rng: for sampling.
          decoder_params: more arguments for `decode_fn`.
          return_all_decodes: every decode, not only the best; None asks `default_decoder_params`.
          num_decodes: beams or samples; None asks `default_decoder_params`.
          prompt_with_targets: begin each answer with the batch's `decoder_input_tokens`, EOS left out.

        Returns:
          Tokens int32 `[batch, length]`, 0 after EOS, and `{"scores": [batch]}`, their log probability. With
          `return_all_decodes` `[batch, num_decodes, length]` and `[batch, num_decodes]`, best last.

        Raises:
          ValueError: if `rng` and `decoder_params["decode_rng"]` are both given.
        """
        if return_all_decodes is None:
            return_all_decodes = self._default_decoder_params.return_all_decodes
        if num_decodes is None:
            num_decodes = self._default_decoder_params.num_decodes
        inputs, targets = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
        prompts = jnp.zeros_like(targets)
        if prompt_with_targets:
            prompts = jnp.where(targets == self.output_vocabulary.eos_id, 0, targets)

        params = self._merged(params)
        encoded: Any = self.module.apply({"params": params}, inputs, enable_dropout=False, method=self.module.encode)
        cache, initial_index = self._compute_kv_cache(
            params,
            encoded_inputs=encoded,
            encoder_input_tokens=inputs,
            decoder_input_tokens=prompts,
            prefill_decoder_prompt=_accepts(self.decode_fn, "initial_index")
            and _accepts(self.module.decode, "prefill"),
        )
        tokens_to_logits = functools.partial(
            self._compute_logits_from_slice,
            params=params,
            encoded_inputs=jnp.repeat(encoded, num_decodes, axis=0),
            raw_inputs=jnp.repeat(inputs, num_decodes, axis=0),
            max_decode_length=targets.shape[1],
        )
        decodes, scores = self._decode(
            tokens_to_logits,
            prompts,
            cache,
            initial_index,
            num_decodes,
            rng,
            decoder_params,
        )
        if return_all_decodes:
            return decodes, {"scores": scores}
        return decodes[:, -1], {"scores": scores[:, -1]}


class DecoderOnlyModel(BaseTransformerModel):
    """A language model, or a prefix LM.

    A task with only `targets` trains a language model. With `inputs` too, these come first and the loss is that of the
    targets; with `inputs_bidirectional_attention` the inputs all see each other (arXiv:1910.10683, section 3.2.1).
    """

    FEATURE_CONVERTER_CLS: Any = "DecoderFeatureConverter"

    def __init__(
        self,
        module: nn.Module | LoRA,
        vocabulary: Vocabulary,
        optimizer_def: OptimizerDef | optax.GradientTransformation,
        decode_fn: Callable = decoding.temperature_sample,
        inputs_bidirectional_attention: bool = False,
        feature_converter_cls: Callable | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: losses.LossNormalizingFactor = None,
    ):
        """Args that `BaseTransformerModel` does not have:

        inputs_bidirectional_attention: see the class.
        feature_converter_cls: instead of SeqIO's DecoderFeatureConverter.
        """
        super().__init__(
            module=module,
            input_vocabulary=vocabulary,
            output_vocabulary=vocabulary,
            optimizer_def=optimizer_def,
            decode_fn=decode_fn,
            label_smoothing=label_smoothing,
            z_loss=z_loss,
            loss_normalizing_factor=loss_normalizing_factor,
        )
        self._inputs_bidirectional_attention = inputs_bidirectional_attention
        if feature_converter_cls is not None:
            self.FEATURE_CONVERTER_CLS = feature_converter_cls

    def get_initial_variables(
        self,
        rng: Array,
        input_shapes: Mapping[str, Any],
        input_types: Mapping[str, Any] | None = None,
    ) -> Mapping[str, PyTree]:
        dtype = (input_types or {}).get("decoder_input_tokens", jnp.int32)
        tokens = jnp.ones(input_shapes["decoder_input_tokens"], dtype)
        return self.module.init(rng, tokens, tokens, enable_dropout=False)

    def _get_decoder_causal_attention(self, batch: Batch) -> Array | None:
        """Which positions are prefix, if they see each other."""
        if not self._inputs_bidirectional_attention:
            return None
        if "decoder_causal_attention" not in batch:
            raise ValueError(
                "inputs_bidirectional_attention needs the feature decoder_causal_attention, which SeqIO's "
                "DecoderFeatureConverter makes of a task with `inputs` and `targets` in task_feature_lengths."
            )
        return batch["decoder_causal_attention"]

    def _compute_logits(
        self,
        params: PyTree,
        batch: Batch,
        dropout_rng: Array | None = None,
        mutable: Any = False,
        other_variables: PyTree | None = None,
    ) -> Any:
        return self.module.apply(
            {"params": params} | (other_variables or {}),
            batch["decoder_input_tokens"],
            batch["decoder_target_tokens"],
            decoder_segment_ids=batch.get("decoder_segment_ids"),
            decoder_positions=batch.get("decoder_positions"),
            decoder_causal_attention=self._get_decoder_causal_attention(batch),
            decode=False,
            enable_dropout=dropout_rng is not None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
            mutable=mutable,
        )

    def _compute_logits_from_slice(
        self, decoding_state: decoding.DecodingState, params: PyTree, max_decode_length: int
    ) -> tuple[Array, PyTree]:
        """One step of decoding: logits `[rows, vocab]` after the tokens of the state, and the new cache."""
        logits, variables = self.module.apply(
            {"params": params, "cache": decoding_state.cache},
            decoding_state.cur_token,
            decoding_state.cur_token,
            enable_dropout=False,
            decode=True,
            max_decode_length=max_decode_length,
            mutable=["cache"],
        )
        return jnp.squeeze(logits, axis=1), variables["cache"]

    def _compute_kv_cache(self, params: PyTree, inputs: Array, causal_attention_mask: Array) -> tuple[PyTree, Array]:
        """The cache with the prompts in it.

        Args:
          params: the network's parameters.
          inputs: prompts `[batch, length]` behind a 0, padded with 0.
          causal_attention_mask: 1 on the prompt and on the 0 before it.

        Returns:
          The cache, and the index of each row's last prompt token `[batch]`. That token is fed again by the first step
          of decoding, for the logits that follow it; so it is not in the cache yet.
        """
        lengths = jnp.sum(inputs[:, 1:] != 0, axis=-1)
        ones = jnp.ones_like(inputs)
        _, variables = self.module.apply(
            {"params": params}, ones, ones, enable_dropout=False, decode=True, mutable=["cache"]
        )
        _, variables = self.module.apply(
            {"params": params, "cache": variables["cache"]},
            inputs,
            # As targets, the mask makes the prompt and the 0 before it visible, and nothing else.
            causal_attention_mask,
            decoder_causal_attention=self._get_decoder_causal_attention(
                {"decoder_causal_attention": causal_attention_mask}
            ),
            enable_dropout=False,
            prefill=True,
            prefill_lengths=lengths,
            mutable=["cache"],
        )
        return variables["cache"], lengths

    def predict_batch_with_aux(
        self,
        params: PyTree,
        batch: Batch,
        rng: Array | None = None,
        decoder_params: Mapping[str, Any] | None = None,
        return_all_decodes: bool = False,
        num_decodes: int = 1,
    ) -> tuple[Array, Mapping[str, Array]]:
        """Goes on from the inputs of a batch.

        Args:
          params: the network's parameters.
          batch: `decoder_input_tokens` (inputs, then targets, shifted right) and `decoder_causal_attention` (1 on the
            inputs). What they hold of the targets is not looked at.
          rng: for sampling.
          decoder_params: more arguments for `decode_fn`, which must take `initial_index`.
          return_all_decodes: every decode, not only the best.
          num_decodes: samples of each input.

        Returns:
          The new tokens int32 `[batch, length]` without the inputs, 0 after EOS, and `{"scores": [batch]}`. With
          `return_all_decodes` `[batch, num_decodes, length]` and `[batch, num_decodes]`, best last.

        Raises:
          ValueError: for a batch that does not tell inputs from targets; if `rng` and `decoder_params["decode_rng"]`
            are both given.
        """
        if "decoder_causal_attention" not in batch:
            raise ValueError(
                "Nothing to go on from: the batch has no decoder_causal_attention. task_feature_lengths must name "
                "`inputs` and `targets`."
            )
        inputs = batch["decoder_input_tokens"] * batch["decoder_causal_attention"]
        params = self._merged(params)
        cache, initial_index = self._compute_kv_cache(params, inputs, batch["decoder_causal_attention"])
        decodes, scores = self._decode(
            functools.partial(self._compute_logits_from_slice, params=params, max_decode_length=inputs.shape[1]),
            inputs,
            cache,
            initial_index,
            num_decodes,
            rng,
            decoder_params,
        )
        decodes = remove_prefix(decodes, initial_index)
        if return_all_decodes:
            return decodes, {"scores": scores}
        return decodes[:, -1], {"scores": scores[:, -1]}


@jax.vmap
def remove_prefix(sequence: Array, prefix_length: Array) -> Array:
    """`sequence` `[batch, ..., length]` without the first `prefix_length` `[batch]` tokens, filled up with 0."""
    kept = jnp.where(jnp.arange(sequence.shape[-1]) < prefix_length, 0, sequence)
    return jnp.roll(kept, -prefix_length, axis=-1)


def get_input_vocabulary(model: BaseTransformerModel) -> Vocabulary:
    """For gin files that need the vocabulary of a bound model."""
    return model.input_vocabulary


def get_output_vocabulary(model: BaseTransformerModel) -> Vocabulary:
    """For gin files that need the vocabulary of a bound model."""
    return model.output_vocabulary


def _accepts(function: Callable | None, name: str) -> bool:
    return function is not None and name in inspect.signature(function).parameters
