"""What tests of vocabularies share."""

import pytest

from tests.addons.surgery import encoders


# RoBERTa's tokenizer is of the kind of ModernBERT's.
@pytest.fixture(scope="module", params=["bert", "xlm-roberta", "modernbert"])
def encoder_folder(request, tmp_path_factory):
    """A random masked language model that transformers saved."""
    return encoders.save(request.param, tmp_path_factory.mktemp("encoders") / request.param)
