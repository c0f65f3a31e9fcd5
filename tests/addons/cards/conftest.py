"""Fixtures of the core's tests of encoders."""

from tests.convert.encoders.conftest import new_encoder, tokenizer_file  # noqa: F401
