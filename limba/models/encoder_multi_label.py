"""An encoder with labels of which any number can be right."""

from typing import Any

import jax
import jax.numpy as jnp

from limba.data.contract import Batch
from limba.models import metrics as metrics_lib
from limba.models.encoder_classifier import EncoderClassifier

Array = jax.Array


class EncoderMultiLabelClassifier(EncoderClassifier):
    """A yes or no to each label of a text or pair of texts, transformers' `multi_label_classification`.

    Each label is a choice of two classes with the logits 0 and the network's, whose cross entropy is that of a sigmoid.
    So the loss is that of `EncoderClassifier` over rows and labels, normalized as there, and `accuracy` is of labels. A
    prediction takes a label whose logit is above 0; its `probabilities` are `[batch, labels, 2]`, of no and yes.

    `labels` is a MultiLabelVocabulary; ids are 1 for no and 2 for yes, `[batch, labels]`.
    """

    @property
    def problem_type(self) -> str | None:
        return "multi_label_classification"

    def _compute_logits(self, *args: Any, **options: Any) -> Any:
        """Float32 `[batch, labels, 2]`."""
        found = super()._compute_logits(*args, **options)
        if isinstance(found, tuple):  # with collections that were asked for
            return (_of_two(found[0]), *found[1:])
        return _of_two(found)

    def _loss_and_metrics(
        self, logits: Any, batch: Batch, dropout_rng: Array | None
    ) -> tuple[Array, metrics_lib.Metrics]:
        self._check_targets(logits, batch)
        return super()._loss_and_metrics(logits, batch, dropout_rng)


def _of_two(logits: Array) -> Array:
    """`[batch, labels, 2]` of `[batch, 1, labels]`."""
    of_labels = logits[:, 0]
    return jnp.stack([jnp.zeros_like(of_labels), of_labels], axis=-1)
