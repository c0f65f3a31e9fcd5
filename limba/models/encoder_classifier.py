"""An encoder with labels as a model: one for a row, or one for each token."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from limba.data.contract import Batch
from limba.models import losses
from limba.models import metrics as metrics_lib
from limba.models.base_model import Vocabulary
from limba.models.encoder_only_model import EncoderOnlyModel
from limba.models.lora import LoRA
from limba.network.encoders.classifier import SequenceClassifier, TokenClassifier
from limba.optimizers.definitions import OptimizerDef

Array = jax.Array
PyTree = Any
# They count targets other than 0, and here 0 is the first label.
_NOT_OF_LABELS = (
    *("effective_batch_size/decoder", "non_padding_fraction/decoder", "non_padding_fraction/overall"),
    "text",
)


class EncoderClassifier(EncoderOnlyModel):
    """A classifier of texts, of pairs of texts, or of tokens (arXiv:1810.04805, section 4).

    A network with token types takes `encoder_token_types`. Without them what follows the first [SEP] of a row is its
    second text, of type 1.
    """

    FEATURE_CONVERTER_CLS: Any = "EncoderClassificationFeatureConverter"

    def __init__(
        self,
        module: nn.Module | LoRA,
        vocabulary: Vocabulary,
        labels: Vocabulary,
        optimizer_def: OptimizerDef | optax.GradientTransformation,
        feature_converter_cls: Callable | None = None,
        label_smoothing: float = 0.0,
        loss_normalizing_factor: losses.LossNormalizingFactor = None,
    ):
        """Args that `EncoderOnlyModel` does not have:

        module: `limba.network.encoders.classifier.SequenceClassifier` or `TokenClassifier`.
        labels: a LabelVocabulary of the labels, in the order of the logits.

        Raises:
          ValueError: if the network has another number of labels.
        """
        super().__init__(
            module,
            vocabulary,
            optimizer_def,
            feature_converter_cls,
            label_smoothing,
            loss_normalizing_factor=loss_normalizing_factor,
        )
        of_network = getattr(module, "labels", None)
        if of_network is not None and len(of_network) != labels.vocab_size - 1:
            raise ValueError(
                f"The network has {len(of_network)} labels and LabelVocabulary {labels.vocab_size - 1}: bind both "
                "with LABELS."
            )
        self._output_vocabulary = labels

    @property
    def problem_type(self) -> str | None:
        """transformers' name of what the logits of a row are; None where the number of labels says it."""
        return None

    @property
    def labels_tokens(self) -> bool:
        """Whether each token has a label, not each row."""
        network = getattr(self.module, "network", self.module)  # inside adapters
        return isinstance(network, TokenClassifier) and not isinstance(network, SequenceClassifier)

    def _network_inputs(self, batch: Batch) -> tuple[Sequence[Array | None], Mapping[str, Any]]:
        tokens = batch["encoder_input_tokens"]
        return [tokens, self._token_types(tokens, batch.get("encoder_token_types"))], {}

    def _token_types(self, tokens: Array, given: Array | None = None) -> Array | None:
        network = getattr(self.module, "config", None)
        if getattr(network, "num_token_types", 0) < 2:
            return None
        if given is not None:
            return given
        ends = jnp.asarray(tokens == self.input_vocabulary.eos_id, jnp.int32)
        ended = jnp.cumsum(ends, axis=-1) - ends
        return jnp.where(tokens != 0, jnp.minimum(ended, 1), 0)

    def _check_targets(self, logits: Array, batch: Batch) -> None:
        """Raises ValueError if a row has another number of targets than logits `[batch, targets, …]`."""
        given, wanted = batch["decoder_target_tokens"].shape[1], logits.shape[1]
        if given != wanted:
            raise ValueError(
                f"The rows have {given} targets, and there are {wanted} labels: set 'targets': {wanted} in "
                "TASK_FEATURE_LENGTHS."
            )

    def _loss_and_metrics(
        self, logits: Any, batch: Batch, dropout_rng: Array | None
    ) -> tuple[Array, metrics_lib.Metrics]:
        loss, metrics = super()._loss_and_metrics(logits, batch, dropout_rng)
        return loss, {name: metric for name, metric in metrics.items() if name not in _NOT_OF_LABELS}

    def predict_batch_with_aux(
        self, params: PyTree, batch: Batch, rng: Array | None = None, **options: Any
    ) -> tuple[Array, Mapping[str, Array]]:
        """The likeliest label of each row, or of each token.

        Args:
          batch: `encoder_input_tokens` `[batch, length]`; of labels of tokens perhaps `decoder_loss_weights`, which are
            1 where a label is asked for. Without them all tokens get one.

        Returns:
          Ids of `output_vocabulary`, which begin with 1, int32 `[batch, 1]` or `[batch, length]`, there 0 elsewhere;
          and `{"scores": [batch], "probabilities": [batch, 1 or length, labels]}`. Scores are sums of log
          probabilities.

        Raises:
          ValueError: for options of decoding, which there are none of.
        """
        del rng
        self._check_no_options(options)
        tokens = batch["encoder_input_tokens"]
        log_probabilities = jax.nn.log_softmax(self._compute_logits(self._merged(params), batch))
        if self.labels_tokens:
            is_place = batch["decoder_loss_weights"] > 0 if "decoder_loss_weights" in batch else tokens != 0
        else:
            is_place = jnp.ones((len(tokens), 1), bool)
        labels = jnp.argmax(log_probabilities, axis=-1).astype(jnp.int32) + 1
        scores = jnp.sum(jnp.where(is_place, jnp.max(log_probabilities, axis=-1), 0.0), axis=-1)
        return labels * is_place, {"scores": scores, "probabilities": jnp.exp(log_probabilities)}
