"""LongT5's config.json, and the names of its tensors; tests/convert/test_hub_t5s.py runs transformers' class."""

import json

import pytest

from convert.families import heads, longt5, networks, table
from convert.families.config_files import t5_config

LONG = {"model_type": "longt5", "vocab_size": 384, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}
LONG |= {"num_layers": 2, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def read(tmp_path, **more):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LONG | more))
    return t5_config.network_config(file, t5_config.read(file))


def test_what_transformers_takes_for_missing_keys(tmp_path):
    config = read(tmp_path)
    assert (config.encoder_attention_type, config.local_radius, config.global_block_size) == ("local", 127, 16)
    assert table.find_t5(config, None).name == "longt5"
    names = {tensor.name for tensor in longt5.FAMILY.table(config, heads.OF_T5)}
    assert "encoder.block.1.layer.0.LocalSelfAttention.q.weight" in names
    assert "decoder.block.1.layer.0.SelfAttention.q.weight" in names
    assert not any("global" in name for name in names)
    # Of a window alone blocks have no size, and of whole rows nothing has.
    assert networks.plain(read(tmp_path, global_block_size=8)) == networks.plain(config)
    assert networks.plain(read(tmp_path, local_radius=8)) != networks.plain(config)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"encoder_attention_type": "full"}, "config.json: encoder_attention_type is 'full'; it is one of local, tran"),
        ({"encoder_attention_type": ["local"]}, "config.json: encoder_attention_type is a list of 1; it is one of"),
        ({"local_radius": 10**8}, "config.json: local_radius is 100000000"),
        ({"local_radius": 0}, "config.json: local_radius is 0"),
        ({"global_block_size": 12}, "config.json: global_block_size is 12; Limba's LongT5 has powers of 2"),
    ],
)
def test_another_value_is_refused_by_its_key(tmp_path, more, words):
    with pytest.raises(ValueError, match=words):
        read(tmp_path, **more)
