"""What classes with a gated MLP and rotary positions want and refuse alike: ModernBERT, EuroBERT, NomicBERT."""

from collections.abc import Iterator

from limba.convert.families.encoders.encoder_family import common_limits
from limba.network.encoders.config import EncoderConfig

# Of other rotary positions than Limba's.
SCALED = "Train such a model where it comes from; for the one without remove the key."


def gated_limits(config: EncoderConfig, usual: str) -> Iterator[str]:
    """Those of classes whose MLP is a gated one; `usual` is the activation that most of their models have."""
    yield from common_limits(config)
    if len(config.mlp_activations) != 2 or config.mlp_activations[1] != "linear":
        yield f"mlp_activations is {tuple(config.mlp_activations)!r}, and must be a gated one, {(usual, 'linear')!r}"
