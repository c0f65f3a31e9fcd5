"""A decoder on its own as a model: a language model or a prefix LM, which continues its inputs."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from limba.data.contract import Batch
from limba.models import decoding, losses
from limba.models.base_model import BaseTransformerModel, Vocabulary
from limba.models.lora import LoRA
from limba.optimizers.definitions import OptimizerDef

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
            module, vocabulary, vocabulary, optimizer_def, decode_fn, label_smoothing, z_loss, loss_normalizing_factor
        )
        self._inputs_bidirectional_attention = inputs_bidirectional_attention
        if feature_converter_cls is not None:
            self.FEATURE_CONVERTER_CLS = feature_converter_cls

    @property
    def inputs_bidirectional_attention(self) -> bool:
        """Whether it is a prefix LM whose inputs all see each other."""
        return self._inputs_bidirectional_attention

    def get_initial_variables(
        self, rng: Array, input_shapes: Mapping[str, Any], input_types: Mapping[str, Any] | None = None
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

    def _network_inputs(self, batch: Batch) -> tuple[Sequence[Array], Mapping[str, Any]]:
        others: dict[str, Any] = {name: batch.get(name) for name in ("decoder_segment_ids", "decoder_positions")}
        others["decode"] = False
        others["decoder_causal_attention"] = self._get_decoder_causal_attention(batch)
        return [batch["decoder_input_tokens"], batch["decoder_target_tokens"]], others

    def _compute_logits_from_slice(
        self, decoding_state: decoding.DecodingState, params: PyTree, max_decode_length: int
    ) -> tuple[Array, PyTree]:
        """One step of decoding: logits `[rows, vocab]` after the tokens of the state, and the new cache."""
        token = decoding_state.cur_token
        logits, cache = self._with_cache(
            params, decoding_state.cache, token, token, decode=True, max_decode_length=max_decode_length
        )
        return jnp.squeeze(logits, axis=1), cache

    def _compute_kv_cache(self, params: PyTree, inputs: Array, causal_attention_mask: Array) -> tuple[PyTree, Array]:
        """The cache with the prompts in it.

        Args:
          inputs: prompts `[batch, length]` behind a 0, padded with 0.
          causal_attention_mask: 1 on the prompt and on the 0 before it.

        Returns:
          The cache, and the index of each row's last prompt token `[batch]`. That token is fed again by the first step
          of decoding, for the logits that follow it; so it is not in the cache yet.
        """
        lengths = jnp.sum(inputs[:, 1:] != 0, axis=-1)
        ones = jnp.ones_like(inputs)
        _, cache = self._with_cache(params, None, ones, ones, decode=True)
        prefix = self._get_decoder_causal_attention({"decoder_causal_attention": causal_attention_mask})
        options = {"decoder_causal_attention": prefix, "prefill": True, "prefill_lengths": lengths}
        # As targets, the mask makes the prompt and the 0 before it visible, and nothing else.
        _, cache = self._with_cache(params, cache, inputs, causal_attention_mask, **options)
        return cache, lengths

    def predict_batch_with_aux(
        self,
        params: PyTree,
        batch: Batch,
        rng: Array | None = None,
        decoder_params: Mapping[str, Any] | None = None,
        return_all_decodes: bool = False,
        num_decodes: int = 1,
    ) -> tuple[Array, Mapping[str, Array]]:
        """Continues the inputs of a batch.

        Args:
          batch: `decoder_input_tokens` (inputs, then targets, shifted right) and `decoder_causal_attention` (1 on the
            inputs). Targets in them are ignored.
          decoder_params: more arguments for `decode_fn`, which must take `initial_index`.
          return_all_decodes, num_decodes: see `DecoderParams`.

        Returns:
          The new tokens int32 `[batch, length]` without the inputs, 0 after EOS, and `{"scores": [batch]}`. With
          `return_all_decodes` `[batch, num_decodes, length]` and `[batch, num_decodes]`, best last.

        Raises:
          ValueError: for a batch that does not tell inputs from targets; if `rng` and `decoder_params["decode_rng"]`
            are both given.
        """
        if "decoder_causal_attention" not in batch:
            raise ValueError(
                "There are no inputs to continue: the batch has no decoder_causal_attention. task_feature_lengths must "
                "name `inputs` and `targets`."
            )
        inputs = batch["decoder_input_tokens"] * batch["decoder_causal_attention"]
        params = self._merged(params)
        cache, initial_index = self._compute_kv_cache(params, inputs, batch["decoder_causal_attention"])
        step = functools.partial(self._compute_logits_from_slice, params=params, max_decode_length=inputs.shape[1])
        tokens, aux = self._decode(
            step, inputs, cache, initial_index, num_decodes, rng, decoder_params, return_all_decodes
        )
        return remove_prefix(tokens, initial_index), aux


@jax.vmap
def remove_prefix(sequence: Array, prefix_length: Array) -> Array:
    """`sequence` `[batch, ..., length]` without the first `prefix_length` `[batch]` tokens, filled up with 0."""
    kept = jnp.where(jnp.arange(sequence.shape[-1]) < prefix_length, 0, sequence)
    return jnp.roll(kept, -prefix_length, axis=-1)
