"""T5X's own run, number by number.

`golden/t5x_reference.npz` holds, of a run that T5X itself made (T5 1.1, 2+2 layers, 1.87M parameters, float32): its 30
batches and losses, and of the parameters and the Adafactor state after step 10 each tensor's norm and about 512 entries
spread evenly. The initial parameters are those of T5X's seed 42, which ours reproduces. Steps are compiled as a user's.
"""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import traverse_util

from limba import models
from limba.network import t5
from limba.optimizers import adafactor, schedules
from limba.partitioning import meshes
from limba.training import trainer
from tests import compilation

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "t5x_reference.npz")
STEPS = 30


def _entries(array: np.ndarray) -> np.ndarray:
    flat = np.asarray(array).reshape(-1)
    return flat[:: max(1, flat.size // 512)]


class _Vocabulary:
    vocab_size = 4224
    eos_id = 1


@pytest.fixture(scope="module")
def run():
    config = t5.T5Config(
        vocab_size=4224,
        emb_dim=128,
        num_heads=4,
        head_dim=32,
        num_encoder_layers=2,
        num_decoder_layers=2,
        mlp_dim=256,
        mlp_activations=("gelu", "linear"),
        dropout_rate=0.0,
    )
    optimizer = adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules())
    model = models.EncoderDecoderModel(t5.Transformer(config), _Vocabulary(), _Vocabulary(), optimizer, z_loss=1e-4)
    made = trainer.Trainer(
        model,
        meshes.PjitPartitioner(devices=jax.devices()[:1]),
        schedules.create_learning_rate_scheduler("constant * rsqrt_decay", 1.0, 10_000),
    )
    state = made.new_state(jax.random.split(jax.random.key(42))[0])
    initial = jax.device_get(state.params)
    losses, after_10 = [], None
    for step in range(STEPS):
        batch = {
            name.removeprefix("batches/"): GOLDEN[name][step].astype(np.int32)
            for name in GOLDEN.files
            if name.startswith("batches/")
        }
        with compilation.as_users():
            state, metrics = made.train_step(state, made.partitioner.shard_batch(batch))
        losses.append(metrics["loss_per_nonpadding_target_token"].compute())
        if step == 9:
            after_10 = jax.device_get(state.state_dict())
    return initial, np.array(losses), after_10


def test_initial_parameters(run):
    initial = traverse_util.flatten_dict(run[0], sep="/")
    assert len(initial) == 52
    for name, array in initial.items():
        np.testing.assert_allclose(_entries(array)[:8], GOLDEN[f"init/{name}"], rtol=1e-6, err_msg=name)


def test_losses(run):
    np.testing.assert_allclose(run[1], GOLDEN["losses"], rtol=5e-6)


@pytest.mark.parametrize("kind", ["params_10", "opt_10"])
def test_tensors_after_ten_steps(run, kind):
    tree = run[2]["target"] if kind == "params_10" else {"state": run[2]["state"]}
    tensors = traverse_util.flatten_dict(tree, sep="/")
    expected = {
        name.removeprefix(f"{kind}/").removesuffix("/norm")
        for name in GOLDEN.files
        if name.startswith(kind) and name.endswith("/norm")
    }
    assert set(tensors) == expected
    for name, array in tensors.items():
        golden, norm = GOLDEN[f"{kind}/{name}/sample"], GOLDEN[f"{kind}/{name}/norm"]
        ours = _entries(array).astype(np.float64)
        assert np.linalg.norm(ours - golden) <= 3e-5 * max(np.linalg.norm(golden), 1e-30), name
        assert np.linalg.norm(np.asarray(array, np.float64)) == pytest.approx(norm, rel=3e-5), name
