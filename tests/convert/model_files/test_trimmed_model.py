"""Rows of a vocabulary: those of an output of its own are the embedding's."""

import numpy as np

from convert.compare import encoder_outputs
from convert.model_files import any_format, trimmed_model
from tests.convert.encoders.conftest import VARIANTS, new_encoder, tokenizer_file

__all__ = ["new_encoder", "tokenizer_file"]  # fixtures


def test_an_encoder_s_own_output_is_trimmed_with_its_embedding(new_encoder, tmp_path):
    model = any_format.open_model(new_encoder(tmp_path / "run", **(VARIANTS["eurobert"] | {"num_layers": 1})))
    rows, tokens = np.array([0, 2, 3, 4, 7, 9, 30]), np.array([[2, 7, 9, 4, 30, 3]], np.int32)
    small = trimmed_model.trimmed(model, rows, {})
    before, after = (
        encoder_outputs.limba_logits(each, {"tokens": ids.astype(np.int32), "token_types": ids * 0})
        for each, ids in ((model, tokens), (small, np.searchsorted(rows, tokens)))
    )
    assert small.config.vocab_size == 7 and np.ptp(after) > 1
    np.testing.assert_allclose(after, before[..., rows], atol=1e-6)
    assert np.array_equal(trimmed_model.output_rows(small), np.asarray(trimmed_model.output_rows(model))[rows])
    assert not np.array_equal(trimmed_model.output_rows(small), small.tensors[trimmed_model.EMBEDDING])
