"""DeBERTa's attention: buckets of distances as in transformers, and what excludes it."""

import numpy as np
import pytest

from limba.network.encoders import disentangled, encoder

_SIZES = {"vocab_size": 61, "emb_dim": 24, "num_heads": 3, "head_dim": 8, "mlp_dim": 20, "num_layers": 2}


@pytest.mark.parametrize("sizes", [(256, 512), (8, 20), (16, 512), (32, 128)])
def test_buckets_are_those_of_transformers(sizes):
    import torch
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = np.arange(-700, 701)
    theirs = make_log_bucket_position(torch.from_numpy(distances), *sizes).long().numpy()
    np.testing.assert_array_equal(disentangled.buckets(distances, *sizes), theirs)


def test_sizes_that_have_no_buckets_are_refused():
    disentangled_fields = _SIZES | {"position_embedding_type": "disentangled"}
    for fields, words in (
        ({"num_buckets": 7, "max_distance": 128}, "num_buckets is 7 and max_distance 128; with disentangled"),
        ({"num_buckets": 16, "max_distance": 9}, "num_buckets is 16 and max_distance 9"),
    ):
        with pytest.raises(ValueError, match=words):
            encoder.EncoderConfig(**(disentangled_fields | fields))
    assert encoder.EncoderConfig(**disentangled_fields).longest_row is None
