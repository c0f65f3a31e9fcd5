"""Heads on an encoder: one label for a row, or one for each token."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from limba.network import layers
from limba.network.encoders.backbones import backbone
from limba.network.encoders.config import EncoderConfig
from limba.network.encoders.encoder import dropout
from limba.network.t5 import T5Config

Array = jax.Array

POOLINGS = ("first", "mean", "late")
_HEAD_FIELDS = ("activation", "use_norm", "dense_bias", "drop_inputs")


class ClassifierHead(nn.Module):
    """A transform (dense, activation, norm), dropout, and a product with the labels.

    Attributes:
      num_labels: of the logits.
      activation: of the transform; None has no transform.
      use_norm: whether the transform ends with a norm, as in ModernBERT.
      dense_bias: whether its product has biases.
      drop_inputs: dropout before the transform too, as in RoBERTa.
    """

    config: EncoderConfig | T5Config
    num_labels: int
    activation: str | None = "tanh"
    use_norm: bool = False
    dense_bias: bool = True
    drop_inputs: bool = False

    @nn.compact
    def __call__(self, x: Array, deterministic: bool) -> Array:
        """`[..., embed] -> float32 logits [..., labels]`."""
        cfg, below = self.config, backbone(self.config)
        init = nn.initializers.normal(below.initializer_range)
        x = dropout(cfg, x, deterministic) if self.drop_inputs else x
        if self.activation is not None:
            dense = layers.DenseGeneral(
                cfg.emb_dim, -1, cfg.dtype, init, ("embed", "mlp"), self.dense_bias, name="dense"
            )
            x = layers.activation_function(self.activation)(dense(x))
            x = below.norm("layer_norm")(x) if self.use_norm else x
        x = dropout(cfg, x, deterministic)
        logits = layers.DenseGeneral(self.num_labels, -1, jnp.float32, init, ("embed", "labels"), True, name="logits")
        return logits(x)


class TokenClassifier(nn.Module):
    """An encoder that gives each token a label, such as the kind of name that it is part of.

    Attributes:
      config: of the encoder; a T5Config takes the encoder of a T5.
      labels: their texts.
      activation, use_norm, dense_bias, drop_inputs: see `ClassifierHead`. The defaults are BERT's: no transform.
    """

    config: EncoderConfig | T5Config
    labels: Sequence[str]
    activation: str | None = None
    use_norm: bool = False
    dense_bias: bool = True
    drop_inputs: bool = False

    def setup(self) -> None:
        # Named as in MaskedLanguageModel and T5, whose checkpoints this network begins with.
        below = backbone(self.config)
        self.token_embedder = below.embedding()
        self.encoder = below.encoder(self.token_embedder)
        head = {name: getattr(self, name) for name in _HEAD_FIELDS}
        self.classifier_head = ClassifierHead(self.config, len(self.labels), **head)

    @property
    def head_record(self) -> dict[str, Any]:
        """What `run.json` says of the head, beside its labels."""
        return {"class": type(self).__name__} | {name: getattr(self, name) for name in _HEAD_FIELDS}

    def __call__(
        self,
        tokens: Array,
        token_types: Array | None = None,
        segment_ids: Array | None = None,
        positions: Array | None = None,
        enable_dropout: bool = True,
    ) -> Array:
        """Float32 logits of what is classified, `[batch, length, labels]`; for the arguments see `Encoder`."""
        x = self.encoder(tokens, token_types, segment_ids, positions, enable_dropout)
        return self._answers(self.classifier_head(self._classified(x, tokens), not enable_dropout), tokens)

    def _classified(self, x: Array, tokens: Array) -> Array:
        """The hidden states that get labels."""
        return x

    def _answers(self, logits: Array, tokens: Array) -> Array:
        """The logits of what is classified, of those of the hidden states that get labels."""
        return logits


class SequenceClassifier(TokenClassifier):
    """An encoder that gives each row one label: logits `[batch, 1, labels]`. Rows are not packed.

    Attributes:
      activation: see `ClassifierHead`. The defaults are BERT's pooler and classifier.
      pooling: what of a row is classified: its "first" token, [CLS]; the "mean" of its tokens, for a T5; or "late" all
        tokens, whose logits have a mean (EuroBERT).
    """

    activation: str | None = "tanh"
    pooling: str = "first"

    @property
    def head_record(self) -> dict[str, Any]:
        return super().head_record | {"pooling": self.pooling}

    def _classified(self, x: Array, tokens: Array) -> Array:
        if self.pooling not in POOLINGS:
            choices = " or ".join(map(repr, POOLINGS))
            raise ValueError(f"SequenceClassifier.pooling is {self.pooling!r}; it can be {choices}.")
        if self.pooling == "late":
            return x
        return x[:, :1] if self.pooling == "first" else self._mean(x, tokens)

    def _answers(self, logits: Array, tokens: Array) -> Array:
        return self._mean(logits, tokens) if self.pooling == "late" else logits

    def _mean(self, x: Array, tokens: Array) -> Array:
        """Over the tokens of a row: `[batch, length, …] -> [batch, 1, …]`."""
        is_token = (tokens != backbone(self.config).pad_id)[..., None].astype(x.dtype)
        count = jnp.maximum(jnp.sum(is_token, axis=1, keepdims=True), 1)
        return jnp.sum(x * is_token, axis=1, keepdims=True) / count
