"""`limba average`: the mean of a run's last checkpoints."""

import json

import jax
import numpy as np
import pytest

from limba.addons.derived_runs import configured_network, mean_checkpoint
from limba.addons.derived_runs.average_command import average, main
from limba.checkpoint_files import saved_tensors
from limba.checkpoint_files.state_checksums import DamagedStateError
from limba.checkpoints import checkpointing
from limba.files import json_text
from tests.limba import small

STEPS = (2, 4, 6)
# A configuration, in place of which tests without a network have one that is not asked.
OF_ANY = b"# gin\n"
BYT5 = """include 'gin/models/byt5/base.gin'
from __gin__ import dynamic_registration
from limba.network import t5 as network
DROPOUT_RATE = 0.0
network.T5Config.emb_dim = 16
network.T5Config.num_heads = 2
network.T5Config.head_dim = 8
network.T5Config.mlp_dim = 16
network.T5Config.num_encoder_layers = 1
network.T5Config.num_decoder_layers = 1
"""


@pytest.fixture(autouse=True)
def _any_network(monkeypatch):
    """The configurations of most runs here are empty."""
    check = configured_network.check_configured

    def check_real(checkpoint):
        if (checkpoint / "run/config.gin").read_bytes() != OF_ANY:
            check(checkpoint)

    monkeypatch.setattr(configured_network, "check_configured", check_real)


def _parameters(step, shape=(3, 2)):
    rng = np.random.default_rng(step)
    return {
        "decoder": {"kernel": rng.normal(size=shape).astype(np.float32)},
        "encoder": {"scale": rng.normal(size=4).astype(np.float32)},
    }


@pytest.fixture
def run(tmp_path):
    """Checkpoints of three steps, of any network, with optimizer state and a record."""
    _save(tmp_path / "run", {step: _parameters(step) for step in STEPS})
    (tmp_path / "run" / "model.gin").write_text("# the model\n")
    return tmp_path / "run"


def _save(folder, parameters, use_orbax=True, dtype="float32", gin=OF_ANY):
    config = checkpointing.SaveCheckpointConfig(dtype=dtype)
    checkpointer = checkpointing.Checkpointer(folder, config, use_orbax)
    for step, params in parameters.items():
        state = checkpointing.TrainState(np.int32(step), params, jax.tree.map(np.zeros_like, params))
        record = json_text.dumps({"network": {}, "vocabulary": {}, "seeds": {"random": 1}}).encode()
        checkpointer.save(jax.tree.map(jax.numpy.asarray, state), {}, {"run.json": record, "config.gin": gin})
    checkpointer.close()


def _tensors(path):
    return {name: np.asarray(x) for name, x in saved_tensors.open_tensors(path).items()}


def test_the_mean_is_that_of_numpy(run, capsys):
    path = average(str(run), 2)
    assert path == run.parent / "run_mean_of_2" / "checkpoint_6"
    assert "is the mean of the steps 4, 6 of" in capsys.readouterr().out
    tensors = _tensors(path)
    assert tensors.keys() == {"target/decoder/kernel", "target/encoder/scale", "state/step"}
    assert tensors["state/step"] == 6
    for name, (stack, leaf) in {
        "target/decoder/kernel": ("decoder", "kernel"),
        "target/encoder/scale": ("encoder", "scale"),
    }.items():
        a, b = (_parameters(step)[stack][leaf] for step in (4, 6))
        np.testing.assert_array_equal(tensors[name], (a + b) / np.float32(2))
        assert tensors[name].dtype == np.float32
    assert checkpointing.load_run_info(path)["mean_of"] == {"steps": [4, 6], "run": "run"}
    assert checkpointing.load_run_info(path)["seeds"] == {"random": 1}
    assert (path.parent / "model.gin").read_text() == "# the model\n"
    # As any run: with checksums of what was written.
    loaded = checkpointing.load_params(path.parent)
    np.testing.assert_array_equal(loaded["encoder"]["scale"], tensors["target/encoder/scale"])
    assert set(json.loads((path / "run/state_checksums.json").read_text())) == tensors.keys()
    # The same command again does nothing; another one is refused.
    average(str(run), 2)
    assert "checkpoint_6 is there already" in capsys.readouterr().out
    with pytest.raises(ValueError, match="run_mean_of_2 holds something else; give another --out"):
        average(str(run), 3, str(path.parent))


def test_bfloat16_is_summed_up_in_float32(tmp_path):
    made = {
        step: {"decoder": {"kernel": np.full((2, 2), x, np.float32)}} for step, x in ((1, 256.0), (2, 1.0), (3, 1.0))
    }
    _save(tmp_path / "run", made, use_orbax=False, dtype="bfloat16")
    assert main([str(tmp_path / "run"), "--last", "3", "--out", str(tmp_path / "out")]) == 0
    # bfloat16 has no 257.
    np.testing.assert_allclose(_tensors(tmp_path / "out/checkpoint_3")["target/decoder/kernel"], 258 / 3, rtol=1e-7)


def test_tensors_are_read_one_after_the_other(run, monkeypatch):
    read, array = [], saved_tensors.SavedTensor.__array__
    monkeypatch.setattr(
        saved_tensors.SavedTensor,
        "__array__",
        lambda self, *args, **kwargs: read.append(self.shape) or array(self, *args, **kwargs),
    )
    means = mean_checkpoint.open_means(mean_checkpoint.last_checkpoints(str(run), 3))
    assert read == []
    for name in ("target/decoder/kernel", "target/encoder/scale"):
        means[name].read()
    assert read == [(3, 2)] * 3 + [(4,)] * 3


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (1, "--last is 1; a mean needs at least 2 checkpoints"),
        (5, r"has 3 checkpoints \(steps 2, 4, 6\), and --last is 5: give --last 3, or train with .*keep = 5"),
    ],
)
def test_numbers_of_checkpoints_that_cannot_be(run, last, words):
    with pytest.raises(ValueError, match=words):
        average(str(run), last)
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_what_is_no_run(run, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing is no run: it holds no checkpoint_<step> directory"):
        average(str(tmp_path / "nothing"), 2)
    with pytest.raises(FileNotFoundError, match=r"checkpoint_6 is one checkpoint; give its run's directory, .*run\."):
        average(str(run / "checkpoint_6"), 2)


def test_other_networks_have_no_mean_and_nothing_is_left(run):
    _save(run, {8: _parameters(8, (3, 5))})
    words = r"target/decoder/kernel is \[3, 2\] in .*checkpoint_6 and \[3, 5\] in .*checkpoint_8"
    with pytest.raises(ValueError, match=words):
        average(str(run), 2)
    _save(run, {10: {"decoder": _parameters(10, (3, 5))["decoder"]}})
    words = r"checkpoint_8 has target/encoder/scale and .*checkpoint_10 does not: checkpoints of one network"
    with pytest.raises(ValueError, match=words):
        average(str(run), 2)
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def _byt5(**fields):
    shapes, _ = small.model(
        vocab_size=384, logits_via_embedding=False, mlp_activations=("gelu", "linear"), **(small.TINY | fields)
    ).param_shapes_and_axes()
    return jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)


def _with_part(params):
    return params | {"more": {"kernel": np.zeros((3, 2), np.float32)}}


@pytest.mark.parametrize(
    ("params", "gin", "words"),
    [
        (_byt5(), BYT5, None),
        (
            _byt5(mlp_dim=4096),
            BYT5,
            r"decoder/layers_0/mlp/wi_0/kernel: saved as \(16, 4096\), configured as \(16, 16\)",
        ),
        (_with_part(_byt5()), BYT5, "target/more/kernel: not in the configured model"),
        ({"decoder": _byt5()["decoder"]}, BYT5, "target/encoder/encoder_norm/scale: missing"),
        (_byt5(), BYT5 + "network.T5Config.emb_dims = 3\n", "emb_dims"),
        (
            _byt5(),
            BYT5 + "import subprocess\nnetwork.T5Config.emb_dim = @subprocess.getoutput()\n",
            "the module subprocess is not imported",
        ),
    ],
    ids=["its own", "other sizes", "a further tensor", "half", "a damaged configuration", "a module of others"],
)
def test_the_network_is_that_of_the_configuration(tmp_path, monkeypatch, params, gin, words):
    """A tensor takes the memory of its shape, however small its file is: shapes are compared before one is read."""
    run = tmp_path / "run"
    _save(run, dict.fromkeys(STEPS, params), gin=gin.encode())
    if words is None:
        assert average(str(run), 2) == tmp_path / "run_mean_of_2" / "checkpoint_6"
        return
    monkeypatch.setattr(mean_checkpoint.Mean, "read", lambda _: pytest.fail("a tensor was read"))
    with pytest.raises(Exception, match=words):
        average(str(run), 2)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_other_vocabularies_have_no_mean(run):
    """Their tensors have the same shapes, and a row of the embedding is another piece."""
    steps = sorted(int(path.name.rpartition("_")[2]) for path in run.glob("checkpoint_*"))[-3:]
    for step, content in zip(steps, (b"pieces", b"pieces", b"others"), strict=True):
        (run / f"checkpoint_{step}" / "run").mkdir(exist_ok=True)
        (run / f"checkpoint_{step}" / "run" / "spiece.model").write_bytes(content)
    words = (
        rf"several vocabularies \(.*checkpoint_{steps[1]}/run/spiece.model, .*checkpoint_{steps[2]}/run/spiece.model"
    )
    with pytest.raises(ValueError, match=words):
        average(str(run), 2)
    assert not run.with_name(f"{run.name}_mean_of_2").exists()


def test_a_gin_file_that_leads_out_of_the_run_is_not_copied(run):
    (run.parent / "secret").write_text("x")
    (run / "model.gin").unlink()
    (run / "model.gin").symlink_to(run.parent / "secret")
    with pytest.raises(ValueError, match=r"model\.gin is a link to .*secret, outside of its folder"):
        average(str(run), 2)
    assert not (run.parent / "run_mean_of_2").exists()


def test_a_damaged_tensor_is_named_and_nothing_is_left(run):
    file = run / "checkpoint_4" / "run" / "state_checksums.json"
    listed = json.loads(file.read_text())
    listed["target/encoder/scale"][2] += 1
    checkpointing.write_files(run / "checkpoint_4" / "run", {
        **checkpointing.load_files(run / "checkpoint_4", "run"), file.name: json.dumps(listed).encode(),
    })  # fmt: skip
    with pytest.raises(DamagedStateError, match="'target/encoder/scale' is not what was saved"):
        average(str(run), 2)
    assert [path.name for path in run.parent.iterdir()] == ["run"]


def test_a_mean_that_has_no_room_is_refused_before_a_tensor_is_read(run, monkeypatch):
    """A forged index may say any shape."""
    forged = {"target/w": saved_tensors.SavedTensor((2**40, 2**20), np.dtype("float32"), lambda _: 1 / 0)}
    monkeypatch.setattr(mean_checkpoint.saved_tensors, "open_tensors", lambda _: forged)
    monkeypatch.setattr(mean_checkpoint.state_checksums.SavedChecksums, "compare_shapes", lambda *_: None)
    with pytest.raises(ValueError, match=r"run_mean_of_2 needs 4611686018.44 GB, .* choose another --out"):
        average(str(run), 2)


def test_a_training_starts_from_a_mean(run):
    """`INITIAL_CHECKPOINT_PATH`: its parameters and step, and a new optimizer state."""
    path = average(str(run), 3)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _parameters(0))
    state = checkpointing.TrainState(jax.ShapeDtypeStruct((), np.int32), shapes, {})
    placed = small.partitioner().replicated
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed), state)
    loaded = checkpointing.load_state(path, state)
    assert int(loaded.step) == 6
    expected = sum(_parameters(step)["encoder"]["scale"] for step in STEPS) / np.float32(3)
    np.testing.assert_allclose(loaded.params["encoder"]["scale"], expected, rtol=1e-6)
