"""An encoder that gives each text one vector: the vectors of its tokens, pooled."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from limba.network.encoders.backbones import backbone
from limba.network.encoders.config import EncoderConfig
from limba.network.t5 import T5Config

Array = jax.Array

# Of `[batch, length, embed]` and what is no padding, `[batch, length, 1]`.
POOLINGS: Mapping[str, Callable[[Array, Array], Array]] = {
    "mean": lambda x, real: jnp.sum(x * real, axis=1) / jnp.sum(real, axis=1),
    "max": lambda x, real: jnp.max(jnp.where(real > 0, x, -jnp.inf), axis=1),
    "first": lambda x, real: x[:, 0],
}


def pooled(pooling: str, x: Array, tokens: Array, pad_id: int = 0) -> Array:
    """`[batch, length, embed] -> float32 [batch, embed]`; a row that is all padding is pooled as if it had tokens."""
    is_real = tokens != pad_id
    is_real |= ~jnp.any(is_real, axis=1, keepdims=True)
    return POOLINGS[pooling](x.astype(jnp.float32), is_real[..., None].astype(jnp.float32))


def unit_length(x: Array) -> Array:
    """Vectors `[…, embed]` divided by their lengths; these count as at least 1e-12, as in PyTorch's `normalize`."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(x), axis=-1, keepdims=True), 1e-24))


def configured(config_cls: Callable[[], EncoderConfig]) -> EncoderConfig:
    """The configuration that a model file binds; raises ValueError where none has bound the sizes of an encoder."""
    try:
        return config_cls()
    except TypeError as error:
        raise ValueError(
            "No gin file has the sizes of an encoder. Include its model file before gin/runs/contrastive.gin, and for "
            "the encoder of a T5 gin/models/t5_encoder.gin behind it; decoder-only models have no encoder."
        ) from error


class TextEncoder(nn.Module):
    """The encoder of a BERT or of a T5, without a head.

    Attributes:
      config: of the encoder; a T5Config takes the encoder of a T5.
      pooling: "mean", "max" or "first" of the vectors of a text's tokens; "first" is [CLS]'s.
      normalize: whether `limba embed` and exports divide a vector by its length. The call never does.
      max_length: tokens of a text that `limba embed` and exports read; longer ones are cut.

    Raises:
      ValueError: for another pooling.
    """

    config: EncoderConfig | T5Config
    pooling: str = "mean"
    normalize: bool = True
    max_length: int = 512

    def setup(self) -> None:
        if self.pooling not in POOLINGS:
            raise ValueError(f"TextEncoder.pooling is {self.pooling!r}; it can be {', '.join(POOLINGS)}.")
        # Named as in MaskedLanguageModel and T5, whose checkpoints this network begins with.
        below = backbone(self.config)
        self.token_embedder = below.embedding()
        self.encoder = below.encoder(self.token_embedder)

    @property
    def head_record(self) -> dict[str, Any]:
        """What `run.json` says of how texts become vectors."""
        return {"class": type(self).__name__} | {x: getattr(self, x) for x in ("pooling", "normalize", "max_length")}

    def __call__(self, tokens: Array, enable_dropout: bool = True) -> Array:
        """The vectors of texts: int32 `[batch, length] -> float32 [batch, embed]`."""
        x = self.encoder(tokens, enable_dropout=enable_dropout)
        return pooled(self.pooling, x, tokens, backbone(self.config).pad_id)
