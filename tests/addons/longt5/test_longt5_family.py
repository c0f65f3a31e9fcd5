"""LongT5's config.json, the names of its tensors, T5X's gin files, and a folder there and back, beside transformers."""

import functools
import json
import math

import gin
import jax
import jax.numpy as jnp
import pytest

from convert.families import heads, networks, table
from convert.families.config_files import t5_config
from convert.model_files import t5_files
from limba.addons.longt5.longt5 import LongT5Config
from limba.addons.longt5.longt5_family import FAMILY
from limba.gin_config import gin_files
from limba.network import t5
from tests.convert import test_hub_t5s
from tests.limba.network import test_model_files

LONG = {"model_type": "longt5", "vocab_size": 384, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2}
LONG |= {"num_layers": 2, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
# The other LongT5 of `hub_t5s` has some of the layers of this one.
NAME = "long_t5_tglobal"


def read(tmp_path, **more):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LONG | more))
    return t5_config.network_config(file, t5_config.read(file))


def test_what_transformers_takes_for_missing_keys(tmp_path):
    config = read(tmp_path)
    assert (config.encoder_attention_type, config.local_radius, config.global_block_size) == ("local", 127, 16)
    assert table.find_t5(config, None).name == "longt5"
    names = {tensor.name for tensor in FAMILY.table(config, heads.OF_T5)}
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


def test_flaxformers_classes_in_a_gin_file():
    text = "LOCAL_RADIUS = 63\nlong_attention.EtcTransientGlobalSelfAttention:\n  local_radius = %LOCAL_RADIUS\n"
    network, _ = t5_files.read_gin(f"{text}  tokens_per_block = 8\n", "")
    sums = {"encoder_attention_type": "transient-global", "local_radius": 63, "global_block_size": 8}
    assert network == sums | {"family": "longt5"}
    network, _ = t5_files.read_gin("long_attention.EncoderLocalSelfAttention.local_radius = 31\n", "")
    assert network == {"encoder_attention_type": "local", "local_radius": 31, "family": "longt5"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder of the hub, `hf`, as a run, `run`: `home(NAME)`."""
    return functools.partial(test_hub_t5s._home, str(tmp_path_factory.mktemp("hub")))


def test_a_folder_there_and_back_is_transformers_class(home, tmp_path):
    test_hub_t5s.test_there_and_back(home, NAME, tmp_path)


def test_tokens_one_by_one_are_those_of_generate(home):
    test_hub_t5s.test_tokens_one_by_one_are_those_of_generate(home, NAME)


def test_a_run_binds_its_network_in_gin(home):
    gin.clear_config()
    gin_files.parse_gin_flags([str(home(NAME) / "run/model.gin")], [])
    config = gin.get_configurable(t5.Transformer)().config
    gin.clear_config()
    assert isinstance(config, LongT5Config)
    assert (config.encoder_attention_type, config.local_radius, config.global_block_size) == ("transient-global", 4, 2)


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("tiny", 518_240 + 2 * 8 + 32 * 4),
        ("base", 247_577_856 + 12 * 768 + 32 * 12),
        ("large", 783_150_080 + 24 * 1024 + 32 * 16),
        ("xl", 2_849_757_184 + 24 * 2048 + 32 * 32),
    ],
)
def test_gin_files_have_the_parameters_of_t5_1_1_and_of_sums(size, count):
    _, scanned = test_model_files._network(f"gin/models/longt5/{size}.gin")
    tokens = jnp.ones((1, 8), jnp.int32)
    shapes = jax.eval_shape(lambda: scanned.init(jax.random.key(0), *(tokens,) * 3, enable_dropout=False))["params"]
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == count
