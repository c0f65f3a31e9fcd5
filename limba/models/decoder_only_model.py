"""A decoder on its own as a model: a language model or a prefix LM, which goes on from its inputs."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from limba import decoding, losses
from limba.base_model import BaseTransformerModel, Vocabulary
from limba.data import Batch
from limba.lora import LoRA
from limba.optimizers import OptimizerDef

Array = jax.Array
PyTree = Any


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
