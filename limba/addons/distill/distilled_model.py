"""The student of a distillation: a T5 whose loss is that of the targets and of the teacher's probabilities.

train_script.train.model = @distilled_model.DistilledModel()      (gin/runs/distill.gin)
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from limba.data.contract import Batch
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1
from limba.models import losses
from limba.models import metrics as metrics_lib
from limba.models.base_model import BaseTransformerModel
from limba.models.encoder_decoder_model import EncoderDecoderModel

Array = jax.Array
PyTree = Any

# Features of a training's batches, `[batch, length, top_k]`: the teacher's likeliest tokens, the likeliest first, and
# the logarithms of their probabilities. `[batch]`: what has divided the logits before. And `[batch, length]`: 1 where
# the teacher has an answer, 0 where it has none.
TOKENS, LOG_PROBS, TEMPERATURE = "teacher_tokens", "teacher_log_probs", "teacher_temperature"
WEIGHTS = "teacher_weights"
# The least probability of all other tokens together: rounded sums may leave 0, which has no logarithm.
_LEAST = 1e-7


class DistilledModel(EncoderDecoderModel):
    """An encoder-decoder model that learns from a teacher in its training; elsewhere it is the plain student.

    With `p` the teacher's and `q` the student's probabilities at a position, both of logits divided by the temperature
    (`add_teacher.temperature`, which the batches have), and `K` the teacher's `top_k` likeliest tokens, the part of the
    teacher is

        temperature^2 * -(sum of p_i log q_i over i in K  +  p_rest log q_rest),  p_rest = 1 - sum of p_i over K

    a cross entropy in which all other tokens are one (arXiv:1503.02531 has it with all tokens). The loss is
    `share` times this, plus `1 - share` times that of the targets; both are summed and normalized alike. Where the
    teacher has no answer, its part is 0. The metric `loss` is that of the targets alone, `teacher/nats` the mean of the
    teacher's part over the target tokens where it has one, `teacher/answered` their share.
    """

    def __init__(self, model: BaseTransformerModel, share: float = 0.5, top_k: int = 16):
        """Args:
          model: the student, of a run without a teacher.
          share: of the teacher's part, from 0 to 1.
          top_k: how many of the teacher's tokens the batches have, so that the step is compiled before they come.

        Raises:
          ValueError: for a model that is no plain encoder-decoder, and for numbers out of range.
        """
        # Where a gin file binds its methods, gin makes a class of the same name of it.
        if not isinstance(model, EncoderDecoderModel) or type(model).__name__ != "EncoderDecoderModel":
            raise ValueError(
                f"MODEL is {type(model).__name__}, and the student of a distillation (gin/runs/distill.gin) is an "
                "EncoderDecoderModel. Use a model file such as gin/models/t5_1_1/small.gin."
            )
        if hasattr(model.module, "added_losses"):
            raise ValueError(
                f"EncoderDecoderModel.module is {type(model.module).__name__} with losses of its own, of its experts, "
                "which a distillation (gin/runs/distill.gin) leaves out. Use a dense student."
            )
        vars(self).update(vars(model))
        if not number_ranges.is_number(share) or not 0 <= share <= 1:
            raise ValueError(f"DistilledModel.share is {share!r}; it is a share of the loss, from 0 to 1.")
        number_ranges.check("DistilledModel.top_k", top_k, AT_LEAST_1)
        self.share, self.top_k = share, top_k

    def added_features(self, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, jax.ShapeDtypeStruct]:
        rows, length = shapes["decoder_target_tokens"]
        return {
            TOKENS: jax.ShapeDtypeStruct((rows, length, self.top_k), jnp.int32),
            LOG_PROBS: jax.ShapeDtypeStruct((rows, length, self.top_k), jnp.float32),
            TEMPERATURE: jax.ShapeDtypeStruct((rows,), jnp.float32),
            WEIGHTS: jax.ShapeDtypeStruct((rows, length), jnp.float32),
        }

    def loss_fn(self, params: PyTree, batch: Batch, dropout_rng: Array | None) -> tuple[Array, metrics_lib.Metrics]:
        """See `BaseTransformerModel.loss_fn`; without an rng, in an evaluation, the loss is that of the targets."""
        if dropout_rng is None:
            return super().loss_fn(params, batch, None)
        if TOKENS not in batch:
            raise ValueError(
                "DistilledModel needs the teacher's tokens in its batches: bind train.prepare_train_iter_fn to "
                "@teacher.add_teacher, as gin/runs/distill.gin does."
            )
        if (given := batch[TOKENS].shape[-1]) != self.top_k:
            raise ValueError(
                f"DistilledModel.top_k is {self.top_k}, and the batches have {given} of the teacher's tokens "
                "(add_teacher.top_k). Set both by TEACHER_TOP_K."
            )
        logits = self._compute_logits(params, batch, dropout_rng)
        with jax.named_scope("loss"):
            loss, metrics = self._loss_and_metrics(logits, batch, dropout_rng)
        with jax.named_scope("teacher"):
            by_position = teacher_losses(logits, batch[TOKENS], batch[LOG_PROBS], batch[TEMPERATURE])
            factor, weights = losses.normalizing_factor_and_weights(self._loss_normalizing_factor, batch)
            weights = jnp.ones_like(by_position) if weights is None else weights
            answered = weights * batch[WEIGHTS]
            weighted = by_position * answered
            metrics["teacher/nats"] = metrics_lib.Ratio(jnp.sum(weighted), jnp.sum(answered))
            metrics["teacher/answered"] = metrics_lib.Ratio(jnp.sum(answered), jnp.sum(weights))
            of_teacher = losses.normalized_sum(weighted, factor)
        return (1 - self.share) * loss + self.share * of_teacher, metrics


def teacher_losses(logits: Array, tokens: Array, log_probs: Array, temperature: Array) -> Array:
    """The part of the teacher at each position, float32 `[batch, length]`; see `DistilledModel`.

    Args:
      logits: of the student, `[batch, length, vocab]`.
      tokens, log_probs: of the teacher, `[batch, length, top_k]`.
      temperature: of each row, `[batch]`.
    """
    logits = logits.astype(jnp.float32) / temperature[:, None, None]
    log_q = jnp.take_along_axis(logits, tokens, axis=-1) - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    p = jnp.exp(log_probs)
    rest_p, rest_q = (jnp.maximum(1 - jnp.sum(x, axis=-1), _LEAST) for x in (p, jnp.exp(log_q)))
    return -(jnp.sum(p * log_q, axis=-1) + rest_p * jnp.log(rest_q)) * temperature[:, None] ** 2
