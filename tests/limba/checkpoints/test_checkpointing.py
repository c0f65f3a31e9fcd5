import contextlib
import functools
import json
import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.checkpoints import checkpointing
from limba.checkpoints.checkpointing import Checkpointer, RestoreCheckpointConfig, SaveCheckpointConfig
from limba.partitioning import meshes
from limba.workers import distributed
from tests.limba import small

RUN_FILES = {"run.json": json.dumps({"seeds": {"random": 1}}).encode(), "config.gin": b"# gin"}


@pytest.fixture(scope="module")
def trainer():
    return small.make_trainer()


@functools.cache
def _first_state(trainer):
    return trainer.new_state(jax.random.key(0))


def _save_steps(directory, trainer, steps, config=None):
    """Saves one state per step, each different; returns the last."""
    checkpointer = Checkpointer(directory, config or SaveCheckpointConfig())
    state = _first_state(trainer)
    for step in steps:
        params = jax.tree.map(lambda p, s=step: p + s, state.params)
        state = state.replace(step=jnp.int32(step), params=params)
        checkpointer.save(state, {"reader-0": f"at {step}".encode()}, RUN_FILES)
    checkpointer.close()
    return state


def _equal(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(jax.device_get(x), jax.device_get(y)), a, b))


def test_save_and_restore_bit_for_bit(tmp_path, trainer):
    state = _save_steps(tmp_path, trainer, [1, 2])
    restored, dataset = Checkpointer(tmp_path, SaveCheckpointConfig()).restore_latest(trainer.sharded_state_shapes())
    assert _equal(state, restored)
    assert dataset == {"reader-0": b"at 2"}
    assert checkpointing.load_run_info(tmp_path) == {"seeds": {"random": 1}}
    assert (tmp_path / "checkpoint_2" / "run" / "config.gin").read_bytes() == b"# gin"


def test_layout_is_that_of_t5x(tmp_path, trainer):
    _save_steps(tmp_path, trainer, [3])
    names = json.loads((tmp_path / "checkpoint_3" / "state" / "_METADATA").read_text())["tree_metadata"]
    assert "('target', 'token_embedder', 'embedding')" in names
    assert "('state', 'param_states', 'decoder', 'logits_dense', 'kernel', 'v_row')" in names
    assert "('state', 'step')" in names


@pytest.mark.parametrize("num_partitions", [1, 4])
def test_restore_onto_another_mesh(tmp_path, trainer, num_partitions):
    state = _save_steps(tmp_path, trainer, [1])
    mesh = small.partitioner(8, num_partitions, meshes.fsdp_logical_axis_rules())
    other = small.make_trainer(partitioner_=mesh)
    restored, _ = Checkpointer(tmp_path, SaveCheckpointConfig()).restore_latest(other.sharded_state_shapes())
    assert _equal(state, restored)
    kernel = restored.params["decoder"]["layers_0"]["mlp"]["wo"]["kernel"]
    assert kernel.sharding.mesh.shape["model"] == num_partitions


def test_keep_and_dtype(tmp_path, trainer):
    state = _save_steps(tmp_path, trainer, [1, 2, 3, 4], SaveCheckpointConfig(keep=2, dtype="bfloat16"))
    assert checkpointing.checkpoint_steps(tmp_path) == [3, 4]
    saved = checkpointing.load_params(tmp_path)
    embedding = saved["token_embedder"]["embedding"]
    assert embedding.dtype == jnp.bfloat16
    np.testing.assert_array_equal(embedding, state.params["token_embedder"]["embedding"].astype(jnp.bfloat16))
    restored, _ = Checkpointer(tmp_path, SaveCheckpointConfig()).restore_latest(trainer.sharded_state_shapes())
    assert restored.params["token_embedder"]["embedding"].dtype == jnp.float32


@pytest.fixture(scope="module")
def two_steps(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    _save_steps(folder, trainer, [1, 2])
    return folder


def _flip_bytes(directory):
    for file in directory.rglob("*"):
        if file.is_file() and file.parent.name == "d":
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 0xFF
            file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: _flip_bytes(c / "state"),
        lambda c: shutil.rmtree(c / "state"),
        lambda c: (c / "state" / "manifest.ocdbt").write_bytes(b""),
        lambda c: (c / "state" / "_METADATA").unlink(),
        lambda c: shutil.rmtree(c / "dataset"),
        lambda c: (c / "dataset" / "reader-0").unlink(),
        lambda c: (c / "dataset" / "reader-0").write_bytes(b"at"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_and_that_is_said(tmp_path, trainer, two_steps, damage, caplog):
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    damage(tmp_path / "checkpoint_2")
    checkpointer = Checkpointer(tmp_path, SaveCheckpointConfig())
    with caplog.at_level(logging.WARNING):
        restored, dataset = checkpointer.restore_latest(trainer.sharded_state_shapes())
    assert int(restored.step) == 1 and dataset == {"reader-0": b"at 1"}
    assert "checkpoint_2 cannot be read" in caplog.text and "checkpoint_1" in caplog.text
    # Step 2 can be made again.
    checkpointer.save(restored.replace(step=jnp.int32(2)), None, RUN_FILES)
    checkpointer.close()
    assert checkpointing.checkpoint_steps(tmp_path) == [1, 2]


def test_a_checkpoint_that_another_worker_cannot_read_is_passed_over(tmp_path, trainer, two_steps, monkeypatch, caplog):
    shutil.copytree(two_steps, tmp_path, dirs_exist_ok=True)
    problems = iter([(3, "ValueError: damaged"), None])
    monkeypatch.setattr(distributed, "first_problem", lambda subject, problem: next(problems))
    monkeypatch.setattr(distributed, "process_count", lambda: 4)
    restored, _ = Checkpointer(tmp_path, SaveCheckpointConfig()).restore_latest(trainer.sharded_state_shapes())
    assert int(restored.step) == 1
    assert "checkpoint_2 cannot be read by worker 3 (ValueError: damaged)" in caplog.text


def test_all_checkpoints_damaged_is_an_error_not_a_fresh_start(tmp_path, trainer):
    _save_steps(tmp_path, trainer, [1])
    _flip_bytes(tmp_path / "checkpoint_1" / "state")
    with pytest.raises(RuntimeError, match=r"None of the checkpoints \[1\]"):
        Checkpointer(tmp_path, SaveCheckpointConfig()).restore_latest(trainer.sharded_state_shapes())


def test_a_half_written_checkpoint_does_not_count(tmp_path, trainer, caplog):
    _save_steps(tmp_path, trainer, [1])
    shutil.copytree(tmp_path / "checkpoint_1", tmp_path / "checkpoint_2.orbax-checkpoint-tmp")
    assert checkpointing.checkpoint_steps(tmp_path) == [1]
    checkpointer = Checkpointer(tmp_path, SaveCheckpointConfig())
    checkpointer.begin()
    assert "checkpoint_2 was not written to its end" in caplog.text and "one is checkpoint_1" in caplog.text
    restored, _ = checkpointer.restore_latest(trainer.sharded_state_shapes())
    assert int(restored.step) == 1


def test_a_kill_during_the_first_checkpoint_is_told(tmp_path, caplog):
    (tmp_path / "checkpoint_1.limba-tmp").mkdir()
    checkpointer = Checkpointer(tmp_path, SaveCheckpointConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_1.limba-tmp"], "one that only looks"
    checkpointer.begin()
    assert "checkpoint_1 was not written to its end" in caplog.text and "there is no other" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_another_network_is_an_error_that_names_the_tensors(tmp_path, trainer):
    _save_steps(tmp_path, trainer, [1])
    other = small.make_trainer(small.model(mlp_dim=256, num_encoder_layers=1))
    with pytest.raises(checkpointing.CheckpointMismatchError) as error:
        Checkpointer(tmp_path, SaveCheckpointConfig()).restore_latest(other.sharded_state_shapes())
    assert "mlp" in str(error.value) and "another MODEL_DIR" in str(error.value)
    assert "emb_dim" not in str(error.value)


def test_another_width_is_named_before_the_tensors(tmp_path, trainer):
    _save_steps(tmp_path, trainer, [1])
    width = small.config().emb_dim
    shapes = small.make_trainer(small.model(emb_dim=2 * width)).sharded_state_shapes()
    with pytest.raises(
        checkpointing.CheckpointMismatchError, match=rf"configure: emb_dim was {width} and is {2 * width}; "
    ):
        Checkpointer(tmp_path, SaveCheckpointConfig()).restore_latest(shapes)


@pytest.mark.parametrize(("mlp_dim", "converted"), [(128, True), (256, False)])
def test_only_what_fits_is_another_layout(tmp_path, trainer, caplog, mlp_dim, converted):
    _save_steps(tmp_path, trainer, [1])
    shapes = small.make_trainer(
        small.model(mlp_dim=mlp_dim, scan_layers=True, num_encoder_layers=1, num_decoder_layers=1)
    ).sharded_state_shapes()
    with (
        caplog.at_level("INFO"),
        contextlib.nullcontext() if converted else pytest.raises(checkpointing.CheckpointMismatchError, match="wi"),
    ):
        checkpointing.load_state(tmp_path / "checkpoint_1", shapes)
    assert ("converted from another layout" in caplog.text) == converted


def test_paths(tmp_path, trainer):
    _save_steps(tmp_path, trainer, [1, 20])
    assert checkpointing.find_checkpoint(tmp_path).name == "checkpoint_20"
    assert checkpointing.find_checkpoint(tmp_path / "checkpoint_1").name == "checkpoint_1"
    assert RestoreCheckpointConfig(path=[]).checkpoint is None
    with pytest.raises(FileNotFoundError, match="does not exist"):
        checkpointing.find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"checkpoint_20.*'latest'"):
        _ = RestoreCheckpointConfig(path=str(tmp_path), mode="specific").checkpoint
    specific = RestoreCheckpointConfig(path=str(tmp_path / "checkpoint_1"), mode="specific").checkpoint
    assert specific == str(tmp_path / "checkpoint_1")
    assert RestoreCheckpointConfig(path=str(tmp_path)).checkpoint == str(tmp_path / "checkpoint_20")
    every = RestoreCheckpointConfig(path=str(tmp_path), mode="all")
    assert [path.name for path in every.checkpoints] == ["checkpoint_1", "checkpoint_20"]
    with pytest.raises(ValueError, match="names 2 checkpoints"):
        _ = every.checkpoint


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SaveCheckpointConfig(dtype="float16"), ["float16", "bfloat16"]),
        (lambda: SaveCheckpointConfig(period=0), ["period", "0"]),
        (lambda: SaveCheckpointConfig(keep=0), ["keep", "0"]),
        (lambda: SaveCheckpointConfig(period="5"), ["period is '5'", "whole number"]),
        (lambda: RestoreCheckpointConfig(mode="newest"), ["newest", "latest"]),
        (lambda: SaveCheckpointConfig(keep_dataset_checkpoints=0), ["keep_dataset_checkpoints", "0"]),
        (lambda: RestoreCheckpointConfig(dtype="float16"), ["float16", "bfloat16"]),
    ],
)
def test_bad_settings(make, words):
    with pytest.raises(ValueError) as error:
        make()
    for word in words:
        assert word in str(error.value)
