"""Every file of gin/models for encoders binds a network of the size that its family's has."""

import dataclasses
import math

import gin
import jax
import jax.numpy as jnp
import pytest

from limba.gin_config import gin_files
from limba.network.encoders import encoder

FAMILIES = (
    *("bert", "roberta", "roberta_prelayernorm", "mpnet", "roformer", "electra", "deberta_v3", "modernbert"),
    *("mmbert", "distilbert", "eurobert", "nomic_bert"),
)
# By hand, for 30,592 rows of the embedding. BERT base has 109,514,298 as Hugging Face counts it, with 30,522 rows.
PARAMETERS = {
    "bert/base": 109_568_128,
    "bert/large": 335_246_208,
    "bert/small": 28_831_104,
    "bert/tiny": 4_425_728,
    "roberta/base": 109_567_360,
    "roberta/large": 335_245_184,
    "roberta/small": 28_830_592,
    "roberta/tiny": 4_425_600,
    "roberta_prelayernorm/base": 109_568_896,
    "roberta_prelayernorm/large": 335_247_232,
    "roberta_prelayernorm/small": 28_831_616,
    "roberta_prelayernorm/tiny": 4_425_856,
    "mpnet/base": 109_566_976,
    "mpnet/large": 335_244_672,
    "mpnet/small": 28_830_336,
    "mpnet/tiny": 4_425_536,
    "roformer/base": 109_174_912,
    "roformer/large": 334_721_920,
    "roformer/small": 28_568_960,
    "roformer/tiny": 4_360_192,
    "electra/base": 109_568_128,
    "electra/large": 335_246_208,
    "electra/small": 13_555_712,
    "electra/tiny": 2_434_752,
    "deberta_v3/base": 109_568_128,
    "deberta_v3/large": 335_246_208,
    "deberta_v3/small": 67_040_896,
    "deberta_v3/tiny": 4_368_384,
    "modernbert/base": 134_447_488,
    "modernbert/large": 375_611_264,
    "modernbert/small": 38_249_344,
    "modernbert/tiny": 4_521_088,
    "distilbert/base": 67_039_360,
    "distilbert/small": 25_677_696,
    "distilbert/tiny": 4_425_472,
    "eurobert/210m": 160_254_720,  # 212 million with 128,256 rows and one of the two tables
    "eurobert/610m": 530_607_744,
    "eurobert/2b": 1_953_057_024,
    "eurobert/tiny": 8_225_408,
    "nomic_bert/base": 137_403_520,
    "nomic_bert/small": 32_744_832,
    "nomic_bert/tiny": 4_488_960,
    "mmbert/base": 307_786_240,  # 256,000 rows
    "mmbert/small": 140_897_536,
    "mmbert/tiny": 33_598_720,
}


def test_the_table_has_every_file():
    models = gin_files.REPOSITORY / "gin" / "models"
    files = {
        path.relative_to(models).with_suffix("").as_posix()
        for family in FAMILIES
        for path in models.glob(f"{family}/*")
        if "limba.addons" not in path.read_text("utf-8")
    }
    assert files == set(PARAMETERS)


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_of_each_file(name):
    gin.clear_config()
    gin_files.parse_gin_flags([f"gin/models/{name}.gin"], ["DROPOUT_RATE = 0.1", "VOCABULARY_FILE = 'none'"])
    network = gin.get_configurable(encoder.MaskedLanguageModel)()
    assert network.config.dropout_rate == network.config.attention_dropout_rate == 0.1
    assert network.config.num_heads * network.config.head_dim == network.config.emb_dim
    scanned = network.clone(config=dataclasses.replace(network.config, scan_layers=True))
    tokens = jnp.ones((1, 8), jnp.int32)
    shapes = jax.eval_shape(lambda: scanned.init(jax.random.key(0), tokens, enable_dropout=False))["params"]
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == PARAMETERS[name]
