"""Every file of gin/models for encoders binds a network of the size that its family's has."""

import dataclasses
import math

import gin
import jax
import jax.numpy as jnp
import pytest

from limba.gin_config import gin_files
from limba.network.encoders import encoder

# By hand, for 30,592 rows of the embedding. BERT base has 109,514,298 as Hugging Face counts it, with 30,522 rows.
_OF_FAMILIES = {
    "bert": {"base": 109_568_128, "large": 335_246_208, "small": 28_831_104, "tiny": 4_425_728},
    "roberta": {"base": 109_567_360, "large": 335_245_184, "small": 28_830_592, "tiny": 4_425_600},
    "roberta_prelayernorm": {"base": 109_568_896, "large": 335_247_232, "small": 28_831_616, "tiny": 4_425_856},
    "mpnet": {"base": 109_566_976, "large": 335_244_672, "small": 28_830_336, "tiny": 4_425_536},
    "roformer": {"base": 109_174_912, "large": 334_721_920, "small": 28_568_960, "tiny": 4_360_192},
    "electra": {"base": 109_568_128, "large": 335_246_208, "small": 13_555_712, "tiny": 2_434_752},
    "deberta_v3": {"base": 109_568_128, "large": 335_246_208, "small": 67_040_896, "tiny": 4_368_384},
    "modernbert": {"base": 134_447_488, "large": 375_611_264, "small": 38_249_344, "tiny": 4_521_088},
    "distilbert": {"base": 67_039_360, "small": 25_677_696, "tiny": 4_425_472},
    # 210m has 212 million with 128,256 rows and one of the two tables.
    "eurobert": {"210m": 160_254_720, "610m": 530_607_744, "2b": 1_953_057_024, "tiny": 8_225_408},
    "nomic_bert": {"base": 137_403_520, "small": 32_744_832, "tiny": 4_488_960},
    # Of 256,000 rows.
    "mmbert": {"base": 307_786_240, "small": 140_897_536, "tiny": 33_598_720},
}
PARAMETERS = {f"{family}/{size}": count for family, sizes in _OF_FAMILIES.items() for size, count in sizes.items()}


def test_the_table_has_every_file():
    models = gin_files.REPOSITORY / "gin" / "models"
    files = {
        path.relative_to(models).with_suffix("").as_posix()
        for family in _OF_FAMILIES
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
