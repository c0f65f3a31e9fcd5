"""Every file of gin/models binds a network of the size that T5X's file of that name has."""

import dataclasses
import math

import gin
import jax
import jax.numpy as jnp
import pytest

from limba.gin_config import gin_files
from limba.network import decoder_only, scalable_t5, t5

ENCODERS = (
    *("bert", "roberta", "roberta_prelayernorm", "mpnet", "roformer", "modernbert"),
    *("mmbert", "distilbert", "eurobert", "nomic_bert", "electra", "deberta_v3"),
)
# Parameters of the networks that T5X's own files bind, counted there; those that T5X has not are counted by hand.
_COUNTS = [
    ("t5_1_0", "tiny small base", [260_704, 60_506_624, 222_903_552]),
    ("t5_1_0", "large 3b 11b", [737_668_096, 2_851_598_336, 11_307_321_344]),
    ("t5_1_1", "tiny small base", [518_240, 76_961_152, 247_577_856]),
    ("t5_1_1", "large xl xxl", [783_150_080, 2_849_757_184, 11_135_332_352]),
    ("t5_modern", "tiny small base", [518_064, 73_835_520, 219_311_616]),
    ("t5gemma", "tiny 2b 9b", [518_064, 4_565_251_584, 18_728_686_592]),
    ("t5gemma2", "tiny 270m 1b", [260_272, 221_213_952, 1_432_803_584]),
    ("mt5", "small base large xl xxl", [300_176_768, 582_401_280, 1_229_581_312, 3_742_619_648, 12_921_057_280]),
    ("byt5", "small base large xl xxl", [299_637_760, 581_653_248, 1_228_183_552, 3_737_801_728, 12_906_899_328]),
    ("scalable_t5", "small base large xl xxl", [76_963_840, 247_586_304, 783_173_632, 2_849_804_288, 11_135_426_560]),
    (
        "scalable_mt5",
        "small base large xl xxl",
        [300_179_456, 582_409_728, 1_229_604_864, 3_742_666_752, 12_921_151_488],
    ),
    ("umt5", "small base large xl xxl", [306_601_984, 592_043_520, 1_242_449_920, 3_768_356_864, 12_972_531_712]),
    ("madlad", "3b 7b", [2_940_374_016, 8_296_829_952]),
    ("decoder_only", "small base large xl xxl", [35_332_800, 109_628_544, 341_231_104, 1_223_527_424, 4_762_310_656]),
]
PARAMETERS = {
    f"gin/models/{family}/{size}.gin": count
    for family, sizes, counts in _COUNTS
    for size, count in zip(sizes.split(), counts, strict=True)
}


def _network(file: str):
    """The network that a file binds, with scanned layers: as many parameters, and fewer to trace."""
    gin.clear_config()
    gin_files.parse_gin_flags([file], ["DROPOUT_RATE = 0.0", "VOCABULARY = None"])
    if "decoder_only" in file:
        module = gin.get_configurable(decoder_only.DecoderWrapper)()
    else:
        module = gin.get_configurable(t5.Transformer)()
    gemma = module.config.gemma_layers
    # Scanned layers have no windows, which have no parameters.
    gemma = gemma and dataclasses.replace(gemma, sliding_window=None)
    return module, module.clone(config=dataclasses.replace(module.config, scan_layers=True, gemma_layers=gemma))


def test_the_table_has_every_file():
    models = gin_files.REPOSITORY / "gin" / "models"
    of_core = (path for path in models.glob("*/*.gin") if "limba.addons" not in path.read_text("utf-8"))
    files = {path.relative_to(gin_files.REPOSITORY).as_posix() for path in of_core}
    # tests/limba/network/encoders/test_model_files.py has the others, and tests/addons those of add-ons.
    assert {file for file in files if file.split("/")[2] not in ENCODERS} == set(PARAMETERS)


@pytest.mark.sample(14)
@pytest.mark.parametrize("file", PARAMETERS)
def test_parameters_of_each_file(file):
    module, scanned = _network(file)
    tokens = jnp.ones((1, 8), jnp.int32)
    inputs = (tokens,) * (2 if "decoder_only" in file else 3)
    shapes = jax.eval_shape(lambda: scanned.init(jax.random.key(0), *inputs, enable_dropout=False))["params"]
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == PARAMETERS[file]

    scalable = any(family in file for family in ("scalable", "umt5"))
    assert isinstance(module.config, scalable_t5.T5Config) == scalable
    assert module.scan_layers == scalable
    assert module.config.logits_via_embedding == any(
        family in file for family in ("t5_1_0", "decoder_only", "t5_modern", "t5gemma")
    )
    assert module.config.mlp_activations == (("relu",) if "t5_1_0" in file else ("gelu", "linear"))
