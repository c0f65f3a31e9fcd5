"""An encoder-decoder network as a model: how it is called, trained and decoded from its inputs."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from limba import decoding, losses
from limba.base_model import BaseTransformerModel, DecoderParams, Vocabulary
from limba.data import Batch
from limba.lora import LoRA
from limba.optimizers import OptimizerDef

Array = jax.Array
PyTree = Any


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


def _accepts(function: Callable | None, name: str) -> bool:
    return function is not None and name in inspect.signature(function).parameters
