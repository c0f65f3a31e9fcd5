import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import traverse_util

from benchmarks import parity
from tests.limba import small

GOLDEN = np.load(Path(__file__).parent.parent / "limba" / "golden" / "t5x_reference.npz")

KIT = """
from __gin__ import dynamic_registration
import seqio
from t5x import adafactor
from t5x import models
from t5x import trainer
from t5x import utils
from t5x.examples.t5 import network

START_STEP = 0
MODEL = @models.EncoderDecoderModel()
models.EncoderDecoderModel:
  module = @network.Transformer()
  input_vocabulary = @seqio.PassThroughVocabulary()
  output_vocabulary = @seqio.PassThroughVocabulary()
  optimizer_def = @adafactor.Adafactor()
  z_loss = 0.0001
seqio.PassThroughVocabulary:
  size = 4224
  eos_id = 1
network.Transformer.config = @network.T5Config()
network.T5Config:
  vocab_size = 4224
  dtype = 'float32'
  emb_dim = 128
  num_heads = 4
  num_encoder_layers = 2
  num_decoder_layers = 2
  head_dim = 32
  mlp_dim = 256
  mlp_activations = ('gelu', 'linear')
  dropout_rate = 0.0
adafactor.Adafactor.logical_factor_rules = @adafactor.standard_logical_factor_rules()
trainer.Trainer.learning_rate_fn = @utils.create_learning_rate_scheduler()
utils.create_learning_rate_scheduler:
  factors = 'constant * rsqrt_decay'
  base_learning_rate = 1.0
  warmup_steps = 10000
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_kit_in_t5x_words_gives_t5x_numbers(tmp_path, forks):
    kit, out = tmp_path / "kit", tmp_path / "out"
    kit.mkdir()
    (kit / "kit.gin").write_text(KIT)
    model = small.model(vocab_size=4224, mlp_dim=256, **small.TWO_LAYERS)
    params = jax.jit(model.initial_variables)(jax.random.split(jax.random.key(42))[0])["params"]
    np.savez(kit / "init.npz", **traverse_util.flatten_dict(jax.device_get(params), sep="/"))
    batches = {n.removeprefix("batches/"): GOLDEN[n][:10].astype(np.int32) for n in GOLDEN.files if "batches/" in n}
    np.savez(kit / "batches.npz", **batches)

    command = ["benchmarks.parity", str(kit), str(out)]
    result = forks.run(command, dict(os.environ))
    assert result.returncode == 0, result.stderr
    rows = json.loads((out / "losses.json").read_text())["steps"]
    assert [row["step"] for row in rows] == list(range(10))
    per_token = [row["loss_per_nonpadding_target_token"] for row in rows]
    np.testing.assert_allclose(per_token, GOLDEN["losses"][:10], rtol=5e-6)
    assert rows[0]["gradient_global_norm"] == pytest.approx(1108.779863, rel=1e-5)  # T5X's own, first step
    for file, kind in (("final.npz", "params_10"), ("opt_final.npz", "opt_10")):
        arrays = np.load(out / file)
        for name in arrays.files:
            norm = np.linalg.norm(arrays[name].astype(np.float64))
            assert norm == pytest.approx(GOLDEN[f"{kind}/{name}/norm"], rel=3e-5, abs=1e-30), name

    (kit / "init.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"init\.npz is missing"):
        parity.run_kit(kit, out)
