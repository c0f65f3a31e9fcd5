"""A network with its loss, metrics, scoring and decoding: what a run binds as `MODEL`. The engine above may import it.

These are the names of `t5x.models`, which gin files bind, `EncoderOnlyModel` and `EncoderClassifier`. A network with
the protocol of `network.Transformer`, `network.DecoderWrapper`, `encoder.MaskedLanguageModel` or
`classifier.SequenceClassifier` can be bound in a model, and a subclass can replace its parts; see
`limba.models.base_model`.
"""

from limba.models.base_model import BaseTransformerModel, DecoderParams, Vocabulary
from limba.models.contrastive_model import ContrastiveModel
from limba.models.decoder_only_model import DecoderOnlyModel, remove_prefix
from limba.models.electra import ElectraModel
from limba.models.encoder_classifier import EncoderClassifier
from limba.models.encoder_decoder_model import EncoderDecoderModel
from limba.models.encoder_multi_label import EncoderMultiLabelClassifier
from limba.models.encoder_only_model import EncoderOnlyModel
from limba.models.encoder_regressor import EncoderRegressor

__all__ = [
    "BaseTransformerModel",
    "ContrastiveModel",
    "DecoderOnlyModel",
    "DecoderParams",
    "ElectraModel",
    "EncoderClassifier",
    "EncoderDecoderModel",
    "EncoderMultiLabelClassifier",
    "EncoderOnlyModel",
    "EncoderRegressor",
    "Vocabulary",
    "get_input_vocabulary",
    "get_output_vocabulary",
    "remove_prefix",
]


def get_input_vocabulary(model: BaseTransformerModel) -> Vocabulary:
    """For gin files that need the vocabulary of a bound model."""
    return model.input_vocabulary


def get_output_vocabulary(model: BaseTransformerModel) -> Vocabulary:
    """For gin files that need the vocabulary of a bound model."""
    return model.output_vocabulary
