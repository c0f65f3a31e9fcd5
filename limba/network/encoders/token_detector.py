"""An encoder that says of each token whether it was replaced: the discriminator of ELECTRA (arXiv:2003.10555), and the
shape of the generator that replaces tokens."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from limba.network import layers
from limba.network.encoders.config import EncoderConfig
from limba.network.encoders.encoder import Encoder, make_embedding

Array = jax.Array


def generator_config(config: EncoderConfig, layers_share: float, width_share: float) -> EncoderConfig:
    """The configuration of a generator with the tables of an encoder of `config`.

    Args:
      layers_share: its layers as a share of the encoder's, rounded, at least 1.
      width_share: its heads and MLP as a share of the encoder's, at least 1; heads are as wide as the encoder's.
    """
    num_heads = max(1, round(width_share * config.num_heads))
    return dataclasses.replace(
        config,
        emb_dim=num_heads * config.head_dim,
        num_heads=num_heads,
        mlp_dim=max(1, round(width_share * config.mlp_dim)),
        num_layers=max(1, round(layers_share * config.num_layers)),
        embedding_size=config.token_dim,
        head_activation=config.head_activation or "gelu_erf",
    )


class DetectionHead(nn.Module):
    """Dense, the activation of the encoder's MLP, and a logit."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[batch, length, embed] -> float32 [batch, length, 1]`."""
        cfg = self.config
        init = nn.initializers.normal(cfg.initializer_range)
        x = layers.DenseGeneral(cfg.emb_dim, -1, cfg.dtype, init, ("embed", "mlp"), True, name="dense")(x)
        x = layers.activation_function(cfg.mlp_activations[0])(x)
        return layers.DenseGeneral(1, -1, jnp.float32, init, ("embed", None), True, name="logits")(x)


class ReplacedTokenDetector(nn.Module):
    """An encoder with a logit of each token, above 0 where it was replaced."""

    config: EncoderConfig

    def setup(self) -> None:
        # Named as in MaskedLanguageModel.
        self.token_embedder = make_embedding(self.config, self.config.vocab_size, "vocab")
        self.encoder = Encoder(self.config, self.token_embedder)
        self.rtd_head = DetectionHead(self.config)

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
    ) -> Array:
        """Float32 logits `[batch, length, 1]`; for the arguments see `Encoder`."""
        return self.rtd_head(self.encoder(tokens, token_types, segment_ids, positions, enable_dropout))
