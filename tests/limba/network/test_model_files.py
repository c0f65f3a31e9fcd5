"""Every file of gin/models binds a network of the size that T5X's file of that name has."""

import dataclasses
import math

import gin
import jax
import jax.numpy as jnp
import pytest

from limba.gin_config import gin_files
from limba.network import decoder_only, scalable_t5, t5
from tests.limba import small

ENCODERS = (
    *("bert", "roberta", "roberta_prelayernorm", "mpnet", "roformer", "modernbert"),
    *("mmbert", "distilbert", "eurobert", "nomic_bert", "electra", "deberta_v3"),
)
# Parameters of the networks that T5X's own files bind, counted there; those that T5X has not are counted by hand.
PARAMETERS: dict[str, int] = {
    "gin/models/t5_1_0/tiny.gin": 260_704,
    "gin/models/t5_1_0/small.gin": 60_506_624,
    "gin/models/t5_1_0/base.gin": 222_903_552,
    "gin/models/t5_1_0/large.gin": 737_668_096,
    "gin/models/t5_1_0/3b.gin": 2_851_598_336,
    "gin/models/t5_1_0/11b.gin": 11_307_321_344,
    "gin/models/t5_1_1/tiny.gin": 518_240,
    "gin/models/t5_1_1/small.gin": 76_961_152,
    "gin/models/t5_1_1/base.gin": 247_577_856,
    "gin/models/t5_1_1/large.gin": 783_150_080,
    "gin/models/t5_1_1/xl.gin": 2_849_757_184,
    "gin/models/t5_1_1/xxl.gin": 11_135_332_352,
    "gin/models/t5_modern/tiny.gin": 518_064,
    "gin/models/t5_modern/small.gin": 73_835_520,
    "gin/models/t5_modern/base.gin": 219_311_616,
    "gin/models/t5gemma/tiny.gin": 518_064,
    "gin/models/t5gemma/2b.gin": 4_565_251_584,
    "gin/models/t5gemma/9b.gin": 18_728_686_592,
    "gin/models/t5gemma2/tiny.gin": 260_272,
    "gin/models/t5gemma2/270m.gin": 221_213_952,
    "gin/models/t5gemma2/1b.gin": 1_432_803_584,
    "gin/models/mt5/small.gin": 300_176_768,
    "gin/models/mt5/base.gin": 582_401_280,
    "gin/models/mt5/large.gin": 1_229_581_312,
    "gin/models/mt5/xl.gin": 3_742_619_648,
    "gin/models/mt5/xxl.gin": 12_921_057_280,
    "gin/models/byt5/small.gin": 299_637_760,
    "gin/models/byt5/base.gin": 581_653_248,
    "gin/models/byt5/large.gin": 1_228_183_552,
    "gin/models/byt5/xl.gin": 3_737_801_728,
    "gin/models/byt5/xxl.gin": 12_906_899_328,
    "gin/models/scalable_t5/small.gin": 76_963_840,
    "gin/models/scalable_t5/base.gin": 247_586_304,
    "gin/models/scalable_t5/large.gin": 783_173_632,
    "gin/models/scalable_t5/xl.gin": 2_849_804_288,
    "gin/models/scalable_t5/xxl.gin": 11_135_426_560,
    "gin/models/scalable_mt5/small.gin": 300_179_456,
    "gin/models/scalable_mt5/base.gin": 582_409_728,
    "gin/models/scalable_mt5/large.gin": 1_229_604_864,
    "gin/models/scalable_mt5/xl.gin": 3_742_666_752,
    "gin/models/scalable_mt5/xxl.gin": 12_921_151_488,
    "gin/models/umt5/small.gin": 306_601_984,
    "gin/models/umt5/base.gin": 592_043_520,
    "gin/models/umt5/large.gin": 1_242_449_920,
    "gin/models/umt5/xl.gin": 3_768_356_864,
    "gin/models/umt5/xxl.gin": 12_972_531_712,
    "gin/models/madlad/3b.gin": 2_940_374_016,
    "gin/models/madlad/7b.gin": 8_296_829_952,
    "gin/models/decoder_only/small.gin": 35_332_800,
    "gin/models/decoder_only/base.gin": 109_628_544,
    "gin/models/decoder_only/large.gin": 341_231_104,
    "gin/models/decoder_only/xl.gin": 1_223_527_424,
    "gin/models/decoder_only/xxl.gin": 4_762_310_656,
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


def test_the_tiny_t5gemma2_trains():
    module, _ = _network("gin/models/t5gemma2/tiny.gin")
    config = dataclasses.replace(module.config, vocab_size=small.VOCAB_SIZE)
    trainer = small.make_trainer(small.model(module=module.clone(config=config)), learning_rate=0.03)
    state, batch, losses = trainer.new_state(jax.random.key(0)), small.batch(0), []
    for _ in range(8):
        state, metrics = trainer.train_step(state, trainer.partitioner.shard_batch(batch))
        losses.append(float(metrics["loss"].compute()) / (batch["decoder_target_tokens"] > 0).sum())
    assert losses[0] == pytest.approx(math.log(small.VOCAB_SIZE), abs=0.7) and losses[-1] < losses[0] - 0.5, losses
