"""An encoder-decoder network as a model: how it is called, trained and decoded from its inputs."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from limba.data.contract import Batch
from limba.models import decoding, losses
from limba.models.base_model import BaseTransformerModel, DecoderParams, Vocabulary
from limba.models.lora import LoRA
from limba.optimizers.definitions import OptimizerDef

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
        default_decoder_params: the defaults of a prediction.
        """
        vocabularies = (input_vocabulary, output_vocabulary)
        super().__init__(
            module, *vocabularies, optimizer_def, decode_fn, label_smoothing, z_loss, loss_normalizing_factor
        )
        self._default_decoder_params = default_decoder_params or DecoderParams()
        if feature_converter_cls is not None:
            self.FEATURE_CONVERTER_CLS = feature_converter_cls

    def get_initial_variables(
        self, rng: Array, input_shapes: Mapping[str, Any], input_types: Mapping[str, Any] | None = None
    ) -> Mapping[str, PyTree]:
        types = input_types or {}
        ones = {name: jnp.ones(shape, types.get(name, jnp.int32)) for name, shape in input_shapes.items()}
        tokens, others = self._network_inputs(ones | {"decoder_target_tokens": ones["decoder_input_tokens"]})
        return self.module.init(rng, *tokens, **others, enable_dropout=False)

    def _network_inputs(self, batch: Batch) -> tuple[Sequence[Array], Mapping[str, Any]]:
        tokens = [batch[f"{name}_tokens"] for name in ("encoder_input", "decoder_input", "decoder_target")]
        packing = ("encoder_segment_ids", "decoder_segment_ids", "encoder_positions", "decoder_positions")
        return tokens, {"decode": False} | {name: batch.get(name) for name in packing}

    def logits_of_targets(self, params: PyTree, batch: Batch) -> Array:
        if type(self)._compute_logits is not BaseTransformerModel._compute_logits:
            return super().logits_of_targets(params, batch)
        inputs = batch["encoder_input_tokens"]
        size, count, length = batch["decoder_target_tokens"].shape
        tokens = (batch[f"decoder_{name}_tokens"].reshape(-1, length) for name in ("input", "target"))
        apply = functools.partial(self.module.apply, {"params": self._merged(params)}, enable_dropout=False)
        encoded: Any = apply(inputs, method=self.module.encode)
        repeated = (jnp.repeat(x, count, axis=0) for x in (encoded, inputs))
        logits: Any = apply(*repeated, *tokens, method=self.module.decode)
        return logits.reshape(size, count, length, -1)

    def _compute_logits_from_slice(
        self,
        decoding_state: decoding.DecodingState,
        params: PyTree,
        encoded_inputs: Array,
        raw_inputs: Array,
        max_decode_length: int,
    ) -> tuple[Array, PyTree]:
        """One step: logits `[batch * num_decodes, vocab]` after the tokens of the state, and the new cache."""
        tokens = (encoded_inputs, raw_inputs, decoding_state.cur_token, decoding_state.cur_token)
        options = {"decode": True, "max_decode_length": max_decode_length, "method": self.module.decode}
        if _accepts(self.module.decode, "begins"):
            at_start = jnp.reshape(decoding_state.cur_index, (-1, 1)) == 0
            options["begins"] = jnp.broadcast_to(at_start, decoding_state.cur_token.shape)
        logits, cache = self._with_cache(params, decoding_state.cache, *tokens, **options)
        return jnp.squeeze(logits, axis=1), cache

    def _compute_kv_cache(
        self,
        params: PyTree,
        encoded_inputs: Array,
        encoder_input_tokens: Array,
        decoder_input_tokens: Array,
        prefill_decoder_prompt: bool = False,
    ) -> tuple[PyTree, Array | None]:
        """A cache as long as `decoder_input_tokens`, and how long each row's prompt in it is; None without prompts."""
        ones = jnp.ones_like(decoder_input_tokens)
        # What networks of Limba offer beyond T5X's protocol.
        keep = {"keep_encoded_keys": True} if _accepts(self.module.decode, "keep_encoded_keys") else {}
        inputs, method = (encoded_inputs, encoder_input_tokens), self.module.decode
        _, cache = self._with_cache(params, None, *inputs, ones, ones, decode=True, method=method, **keep)
        if not prefill_decoder_prompt:
            return cache, None

        lengths = jnp.sum(decoder_input_tokens != 0, axis=1)
        options = {"prefill": True, "prefill_lengths": lengths, "method": method}
        _, cache = self._with_cache(params, cache, *inputs, decoder_input_tokens, ones, **options)
        cache = flax.core.unfreeze(cache)
        embedder = cache.get("decoder", {}).get("position_embedder")
        if embedder is not None:  # Absolute positions continue after the prompt.
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
          batch: `encoder_input_tokens`, and `decoder_input_tokens`, whose length is the longest answer.
          decoder_params: more arguments for `decode_fn`.
          return_all_decodes, num_decodes: see `DecoderParams`; None asks `default_decoder_params`.
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
        can_prefill = _accepts(self.decode_fn, "initial_index") and _accepts(self.module.decode, "prefill")
        cache, initial_index = self._compute_kv_cache(
            params, encoded, inputs, decoder_input_tokens=prompts, prefill_decoder_prompt=can_prefill
        )
        tokens_to_logits = functools.partial(
            self._compute_logits_from_slice,
            params=params,
            encoded_inputs=jnp.repeat(encoded, num_decodes, axis=0),
            raw_inputs=jnp.repeat(inputs, num_decodes, axis=0),
            max_decode_length=targets.shape[1],
        )
        return self._decode(
            tokens_to_logits, prompts, cache, initial_index, num_decodes, rng, decoder_params, return_all_decodes
        )


def _accepts(function: Callable | None, name: str) -> bool:
    return function is not None and name in inspect.signature(function).parameters
