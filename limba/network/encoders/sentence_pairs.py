"""Whether the second segment of a row follows the first: BERT's next sentence (arXiv:1810.04805) and ALBERT's sentence
order (arXiv:1909.11942)."""

import inspect
import logging
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from limba.data.contract import Batch
from limba.network import layers
from limba.network.encoders.config import EncoderConfig
from limba.network.encoders.encoder import MaskedLanguageModel, at_places

Array = jax.Array
logger = logging.getLogger(__name__)


class Pooler(nn.Module):
    """BERT's pooler, a dense layer and tanh: the transform of a `SequenceClassifier`, whose name it has."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[..., embed] -> [..., embed]`."""
        cfg = self.config
        init = nn.initializers.normal(cfg.initializer_range)
        return jnp.tanh(layers.DenseGeneral(cfg.emb_dim, -1, cfg.dtype, init, ("embed", "mlp"), True, name="dense")(x))


class MaskedLanguageModelWithPairs(MaskedLanguageModel):
    """A masked language model that also says whether the second segment of a pair follows the first.

    A `SequenceClassifier` that starts from its checkpoint begins with its pooler.
    """

    def setup(self) -> None:
        super().setup()
        self.classifier_head = Pooler(self.config)
        init = nn.initializers.normal(self.config.initializer_range)
        self.pair_head = layers.DenseGeneral(2, -1, jnp.float32, init, ("embed", "labels"), True)

    @property
    def head_record(self) -> dict[str, Any]:
        """What `run.json` says of the head."""
        return {"class": type(self).__name__}

    def __call__(
        self,
        tokens: Array,
        token_types: Array | None = None,
        segment_ids: Array | None = None,
        positions: Array | None = None,
        enable_dropout: bool = True,
        *,
        masked_lm_positions: Array | None = None,
        pair_positions: Array | None = None,
    ) -> Any:
        """The logits of `MaskedLanguageModel`, for the same arguments.

        With `pair_positions`, int32 `[batch, pairs]`, where the [CLS] of each pair stands, a pair: these logits, and
        those of the pairs, float32 `[batch, pairs, 2]`: the second segment follows, or it does not.
        """
        x = self.encoder(tokens, token_types, segment_ids, positions, enable_dropout)
        logits = self.mlm_head(x if masked_lm_positions is None else at_places(x, masked_lm_positions))
        if pair_positions is None and not self.is_initializing():
            return logits
        first = x[:, :1] if pair_positions is None else at_places(x, pair_positions)
        of_pairs = self.pair_head(self.classifier_head(first))
        return logits if pair_positions is None else (logits, of_pairs)


def pair_inputs(network: Any, batch: Batch) -> dict[str, Array]:
    """What a network is called with for the loss of the pairs in a batch; empty where there are none.

    Raises:
      ValueError: if there are pairs, and the network has no head for them.
    """
    has_head = "pair_positions" in inspect.signature(type(network).__call__).parameters
    if "pair_positions" in batch and not has_head:
        raise ValueError(
            f"The rows are sentence pairs, and {type(network).__name__} has no head for them: include "
            "gin/models/encoder_pairs.gin, or set objectives.MaskedLM.pairs = ''."
        )
    if has_head and "pair_positions" not in batch:
        logger.warning(
            "The network has a head for sentence pairs, and the rows are none: this head does not learn. Set "
            "objectives.MaskedLM.pairs, or bind models.EncoderOnlyModel.module = @encoder.MaskedLanguageModel()."
        )
    return {"pair_positions": batch["pair_positions"]} if "pair_positions" in batch else {}


@flax.struct.dataclass
class PairLosses:
    """Of each pair, `[batch, pairs]`: the cross entropy in nats, whether the likelier label is right, whether there is
    a pair, and the sum of the weights of its masked tokens."""

    loss: Array
    is_right: Array
    is_pair: Array
    weights: Array


def pair_losses(logits: Array, batch: Batch, token_weights: Array | None) -> PairLosses:
    """The losses of the pairs of a batch.

    Args:
      logits: float32 `[batch, pairs, 2]`.
      token_weights: of the masked tokens, `[batch, targets]`; None weighs 1 everywhere.
    """
    labels = batch["pair_labels"]
    if token_weights is None:
        token_weights = jnp.ones(batch["decoder_target_tokens"].shape, jnp.float32)
    if (segments := batch.get("decoder_segment_ids")) is None:
        weights = jnp.sum(token_weights, axis=-1, keepdims=True)
    else:
        # Pairs are in the order of their segments, which count from 1.
        is_of_pair = segments[:, None, :] == jnp.arange(1, labels.shape[1] + 1)[:, None]
        weights = jnp.sum(is_of_pair * token_weights[:, None, :], axis=-1)
    numbers = jnp.maximum(labels - 1, 0)
    loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), numbers[..., None], axis=-1)[..., 0]
    is_pair = labels > 0
    return PairLosses(loss, jnp.argmax(logits, axis=-1) == numbers, is_pair, weights * is_pair)
