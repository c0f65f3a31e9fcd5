"""What tests of vocabularies share."""

import pytest

from tests.addons.surgery import encoders


@pytest.fixture(scope="module", params=encoders.NAMES)
def encoder_folder(request, tmp_path_factory):
    """A random masked language model that transformers saved."""
    return encoders.save(request.param, tmp_path_factory.mktemp("encoders") / request.param)
