"""Cross entropy with z-loss and label smoothing, and T5X's ways to normalize it."""

import enum
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from limba.data.contract import Batch
from limba.network import products
from limba.network.kernels import linear_cross_entropy
from limba.network.kernels.linear_cross_entropy import LinearLogits, target_distribution

Array = jax.Array


class SpecialLossNormalizingFactor(enum.Enum):
    """Normalizations that depend on the batch.

    NUM_REAL_TARGET_TOKENS divides by the weights' sum, NUM_TOTAL_TARGET_TOKENS by the number of target positions,
    AVERAGE_PER_SEQUENCE makes the weights of each sequence (or packed segment) sum to 1, then divides by their sum.
    """

    NUM_REAL_TARGET_TOKENS = 1
    NUM_TOTAL_TARGET_TOKENS = 2
    AVERAGE_PER_SEQUENCE = 3


LossNormalizingFactor = float | int | str | SpecialLossNormalizingFactor | None


def canonical_normalizing_factor(factor: LossNormalizingFactor) -> float | SpecialLossNormalizingFactor | None:
    """Reads a factor as gin gives it: a number, None, or a special one by name.

    Raises:
      ValueError: for a name that is none of `SpecialLossNormalizingFactor`, or a number that is not positive.
    """
    if isinstance(factor, str):
        # T5X's files write either the bare name or "SpecialLossNormalizingFactor.NAME".
        name = factor.rpartition(".")[2].upper()
        if name not in SpecialLossNormalizingFactor.__members__:
            raise ValueError(
                f"loss_normalizing_factor is {factor!r}; give a number, None, or one of "
                f"{list(SpecialLossNormalizingFactor.__members__)}."
            )
        return SpecialLossNormalizingFactor[name]
    if isinstance(factor, int | float) and factor <= 0:
        raise ValueError(f"loss_normalizing_factor is {factor}; a number must be positive.")
    return factor


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def cross_entropy_with_logits(
    logits: Array, targets: Array, label_smoothing: float, z_loss: float
) -> tuple[Array, Array]:
    """Cross entropy per position, in nats, and its z-loss part.

    With smoothing `a` the target distribution is `1 - a` on the target and `a / (vocab - 1)` elsewhere; the entropy of
    that distribution is subtracted, so that the minimum is 0. `z_loss * log(Z)^2` keeps the logits from drifting
    (arXiv:1804.04235, appendix of mesh-tensorflow). The z-loss output carries no gradient of its own.

    For logits `[..., vocab]` and int32 targets `[...]` it returns `(loss + z, z)`, each float32 `[...]`. Logits in
    bfloat16, which a network of one's own may return, are widened first: `log(Z)` rounded to bfloat16 is 1 off at 500.
    """
    return _cross_entropy_fwd(logits, targets, label_smoothing, z_loss)[0]


def weighted_log_probabilities(logits: Array, targets: Array, weights: Array) -> Array:
    """Of logits `[..., vocab]` the log probability of each target, times its weight: float32 `[...]`."""
    found = -cross_entropy_with_logits(logits, targets, 0.0, 0.0)[0]
    # Padding may be impossible in a network of a user's own, and -inf * 0 is NaN.
    return jnp.where(weights == 0, 0.0, found * weights)


def _words(logits: Array) -> Array:
    return jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)


def _of_target(logits: Array, targets: Array) -> Array:
    """The logit of each target; 0 for a target that is no word."""
    if products.is_on_one_cpu():  # A CPU's XLA does not fuse the comparison into the sum.
        return jnp.take_along_axis(logits, targets[..., None], axis=-1, mode="fill", fill_value=0)[..., 0]
    # A comparison with an iota, not a gather: it fuses, and it stays local when the vocabulary is sharded.
    return jnp.sum(jnp.where(_words(logits) == targets[..., None], logits, 0.0), axis=-1)


def _cross_entropy_fwd(logits: Array, targets: Array, label_smoothing: float, z_loss: float) -> tuple[Any, Any]:
    on, off, entropy = target_distribution(logits.shape[-1], label_smoothing)
    narrow, logits = logits, logits.astype(jnp.float32)
    log_z = jax.nn.logsumexp(logits, axis=-1)
    target_logit = _of_target(logits, targets)
    expected_logit = (on - off) * target_logit
    if label_smoothing != 0.0:
        expected_logit += off * jnp.sum(logits, axis=-1)
    z = z_loss * jnp.square(log_z)
    return (log_z - expected_logit - entropy + z, z), (narrow, targets, log_z)


def _cross_entropy_bwd(label_smoothing: float, z_loss: float, residuals: Any, cotangents: Any) -> tuple[Array, None]:
    logits, targets, log_z = residuals
    g, _ = cotangents
    on, off, _ = target_distribution(logits.shape[-1], label_smoothing)
    probabilities = jnp.exp(logits - log_z[..., None])
    soft_targets = jnp.where(_words(logits) == targets[..., None], on, off)
    grad = probabilities * (1.0 + 2.0 * z_loss * log_z)[..., None] - soft_targets
    return (g[..., None] * grad).astype(logits.dtype), None


cross_entropy_with_logits.defvjp(_cross_entropy_fwd, _cross_entropy_bwd)


@flax.struct.dataclass
class TokenLosses:
    """Of each position, `[batch, length]`: cross entropy with z-loss, the z-loss in it, and whether the likeliest word
    is the target."""

    loss: Array
    z_loss: Array
    is_right: Array

    def weighted(self, weights: Array | None) -> tuple[Array, Array]:
        """Loss and z-loss times the weights, if any."""
        return (self.loss, self.z_loss) if weights is None else (self.loss * weights, self.z_loss * weights)


def token_losses(
    logits: Array | LinearLogits, targets: Array, label_smoothing: float = 0.0, z_loss: float = 0.0
) -> TokenLosses:
    """`cross_entropy_with_logits`, from logits or from what they would be made of."""
    if isinstance(logits, LinearLogits):
        return TokenLosses(*linear_cross_entropy.cross_entropy(logits, targets, label_smoothing, z_loss))
    loss, z = cross_entropy_with_logits(logits, targets, label_smoothing, z_loss)
    # Not `argmax`, which a CPU's XLA computes word by word.
    logits = jax.lax.stop_gradient(logits)
    is_likelier = linear_cross_entropy.is_likelier(logits, _words(logits), _of_target(logits, targets), targets)
    return TokenLosses(loss, z, ~jnp.any(is_likelier, axis=-1))


@flax.struct.dataclass
class TextScores:
    """Of each position, `[batch, length]`: log(Z) over all words, and over those of text; the logit of the target; how
    many words are likelier, and how many of text, int32. Of two alike the first counts as likelier, as for argmax."""

    log_z: Array
    log_z_of_text: Array
    of_target: Array
    rank: Array
    rank_in_text: Array


def text_scores(logits: Array | LinearLogits, targets: Array, is_text: np.ndarray) -> TextScores:
    """Scores without a gradient.

    Args:
      logits: of `[batch, length, vocab]`.
      targets: int32 `[batch, length]`.
      is_text: bool `[vocab]`.
    """
    if isinstance(logits, LinearLogits):
        return TextScores(*linear_cross_entropy.text_scores(logits, targets, is_text))
    logits = logits.astype(jnp.float32)
    of_target = _of_target(logits, targets)
    log_z, log_z_of_text = (jax.nn.logsumexp(x, axis=-1) for x in (logits, jnp.where(is_text, logits, -jnp.inf)))
    is_likelier = linear_cross_entropy.is_likelier(logits, _words(logits), of_target, targets)
    ranks = (jnp.sum(x, axis=-1) for x in (is_likelier, is_likelier & is_text))
    return TextScores(log_z, log_z_of_text, of_target, *ranks)


def normalized_sum(loss: Array, normalizing_factor: Array | float | None) -> Array:
    """The sum of losses of a batch, divided by the factor, if any."""
    return jnp.sum(loss if normalizing_factor is None else loss / normalizing_factor)


def compute_weighted_cross_entropy(
    logits: Array,
    targets: Array,
    weights: Array | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    normalizing_factor: Array | float | None = None,
) -> tuple[Array, Array, Array]:
    """Summed loss of a batch.

    Args:
      logits, label_smoothing, z_loss: see `cross_entropy_with_logits`.
      targets, weights: `[batch, length]`; None weighs 1 everywhere.
      normalizing_factor: what the sums are divided by, if anything.

    Returns:
      Scalars: loss with z-loss, the z-loss in it, the sum of the weights.
    """
    loss, z = token_losses(logits, targets, label_smoothing, z_loss).weighted(weights)
    weight_sum = jnp.float32(targets.size) if weights is None else jnp.sum(weights)
    return normalized_sum(loss, normalizing_factor), normalized_sum(z, normalizing_factor), weight_sum


def normalizing_factor_and_weights(
    factor: float | SpecialLossNormalizingFactor | None, batch: Batch
) -> tuple[Array | float | None, Array | None]:
    """The divisor of the loss and the weights it applies to, `[batch, length]`, both possibly None.

    Args:
      factor: as `canonical_normalizing_factor` returns it.
      batch: with `decoder_target_tokens`, and `decoder_loss_weights` unless every position counts.
    """
    weights = batch.get("decoder_loss_weights")
    if weights is not None:
        weights = weights.astype(jnp.float32)
    if not isinstance(factor, SpecialLossNormalizingFactor):
        return factor, weights

    targets = batch["decoder_target_tokens"]
    if weights is None:
        weights = (targets > 0).astype(jnp.float32)
    if factor is SpecialLossNormalizingFactor.NUM_TOTAL_TARGET_TOKENS:
        return float(targets.size), weights
    if factor is SpecialLossNormalizingFactor.AVERAGE_PER_SEQUENCE:
        per_sequence = _weight_sum_of_own_sequence(weights, batch.get("decoder_segment_ids"))
        weights = jnp.where(per_sequence > 0, weights / jnp.where(per_sequence > 0, per_sequence, 1.0), 0.0)
    return jnp.sum(weights), weights


def _weight_sum_of_own_sequence(weights: Array, segment_ids: Array | None) -> Array:
    """For each position, the weights of its sequence (its segment, when packed) summed up: `[batch, length]`."""
    if segment_ids is None:
        return jnp.broadcast_to(jnp.sum(weights, axis=-1, keepdims=True), weights.shape)
    same_segment = (segment_ids[:, :, None] == segment_ids[:, None, :]).astype(jnp.float32)
    return jnp.einsum("bqk,bk->bq", same_segment, weights)
