"""A flipped bit anywhere in a checkpoint never changes the state that a run resumes from."""

import dataclasses
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from limba.checkpoint_files import small_files, state_checksums
from limba.checkpoints import checkpointing, restore
from limba.checkpoints.train_state import TrainState


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("shape", [(), (5,), (8, 3), (4, 6, 2)])
def test_devices_and_numpy_agree_and_see_every_bit(dtype, shape):
    array = jnp.asarray(np.random.default_rng(0).normal(size=shape) * 100).astype(dtype)
    expected = state_checksums.checksum(np.asarray(array))
    assert int(state_checksums._on_devices(array)) == expected == state_checksums.checksum(array)
    raw = np.asarray(array).tobytes()
    for bit in range(0, 8 * len(raw), 3):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        assert state_checksums.checksum(np.frombuffer(flipped, array.dtype).reshape(shape)) != expected


def test_a_mesh_does_not_matter(monkeypatch):
    array = np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    spread = jax.device_put(array, NamedSharding(mesh, P("data", "model")))
    assert state_checksums.checksum(spread) == state_checksums.checksum(array)
    assert int(state_checksums._on_devices(spread)) == state_checksums.checksum(array)
    monkeypatch.setattr(state_checksums, "_AT_A_TIME", 7)
    assert state_checksums.checksum(spread) == int(state_checksums._on_devices(spread))


def _state(step):
    rng = np.random.default_rng(step)
    params = {"w": jnp.asarray(rng.normal(size=(16, 32)), jnp.float32), "b": jnp.ones((4,))}
    return TrainState(jnp.int32(step), params, {"w": {"m": jnp.asarray(rng.normal(size=(16,)), jnp.float32)}})


def _shapes(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


@pytest.fixture(scope="module", params=[True, False], ids=["orbax", "classic"])
def saved(request, tmp_path_factory):
    """Two checkpoints of a run, and a function that opens a run of the same format."""
    run = tmp_path_factory.mktemp("run") / "run"

    def open_run(folder, **config):
        return checkpointing.SaveCheckpointConfig(**config).make_checkpointer(folder, request.param)

    checkpointer = open_run(run)
    for step in (1, 2):
        checkpointer.save(_state(step), {"reader-0": b"position %d" % step}, {"run.json": b'{"a": 1}'})
    checkpointer.close()
    return run, open_run


def test_a_flipped_bit_in_any_file_changes_nothing(saved, tmp_path):
    run, open_run = saved
    states = {step: _state(step) for step in (1, 2)}
    rng, outcomes = random.Random(0), {}
    files = [path for path in sorted((run / "checkpoint_2").rglob("*")) if path.is_file() and path.stat().st_size]
    for file in files:
        for _ in range(6 if file.stat().st_size > 1000 else 2):
            shutil.copytree(run, tmp_path / "run")
            content = bytearray(file.read_bytes())
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            (tmp_path / "run" / file.relative_to(run)).write_bytes(bytes(content))
            state, position = open_run(tmp_path / "run").restore_latest(_shapes(states[2]))
            step = int(state.step)
            assert position == {"reader-0": b"position %d" % step}, file
            jax.tree.map(np.testing.assert_array_equal, state, states[step])
            outcomes.setdefault(step, set()).add(file.name)
            shutil.rmtree(tmp_path / "run")
    assert set(outcomes) == {1, 2}, "some files matter, some do not"


def test_a_damaged_tensor_is_named_wherever_it_is_read(saved, tmp_path, monkeypatch):
    run, _ = saved
    state = _state(2)
    read = restore.saved_tensors.read_tensors

    def damaged(tensors, wanted):
        arrays = read(tensors, wanted)
        return arrays | {"target/w": arrays["target/w"].at[3, 4].multiply(-1.0)}

    monkeypatch.setattr(restore.saved_tensors, "read_tensors", damaged)
    words = r"checkpoint_2 is damaged: 'target/w' is not what was saved"
    with pytest.raises(state_checksums.DamagedStateError, match=words):
        restore.load_state(run / "checkpoint_2", _shapes(state))
    with pytest.raises(state_checksums.DamagedStateError, match=words):
        restore.load_sharded_params(run, _shapes(state).params)


def test_parameters_saved_in_bfloat16_are_compared_too(saved, tmp_path):
    _, open_run = saved
    checkpointer = open_run(tmp_path, dtype="bfloat16")
    checkpointer.save(_state(3), {}, {})
    checkpointer.close()
    state = _state(3)
    restored = restore.load_state(tmp_path / "checkpoint_3", _shapes(state))
    np.testing.assert_array_equal(restored.params["w"], state.params["w"].astype(jnp.bfloat16).astype(jnp.float32))
    reset = restore.RestoreCheckpointConfig(reset=["step"])
    assert int(restore.load_state(tmp_path / "checkpoint_3", _shapes(state), reset).step) == 0


@pytest.mark.parametrize("entry", [5, ["float32", 5, 3], [["O"], [2], 3], ["O", [2], 3], ["float32", [2], None]])
def test_checksums_that_no_training_wrote_are_one_message(tmp_path, entry):
    small_files.write_files(tmp_path / "run", state_checksums.to_file({"target/w": entry}))
    with pytest.raises(state_checksums.DamagedStateError, match=r"checksums.json is damaged: .* checksum of target/w$"):
        state_checksums.SavedChecksums(tmp_path)


def test_a_conversion_reads_no_tensor_that_is_not_what_was_saved(saved, tmp_path):
    run, _ = saved
    tensors = state_checksums.open_tensors(run / "checkpoint_2")
    whole = np.asarray(tensors["target/w"])
    np.testing.assert_array_equal(whole, _state(2).params["w"])
    np.testing.assert_array_equal(tensors["target/w"].read((slice(1, 3), slice(None))), whole[1:3])
    shutil.copytree(run / "checkpoint_1", tmp_path / "checkpoint_2")
    shutil.copytree(run / "checkpoint_2/run", tmp_path / "checkpoint_2/run", dirs_exist_ok=True)
    # The tensors of another step: a part is not read of what is damaged elsewhere, either.
    damaged = state_checksums.open_tensors(tmp_path / "checkpoint_2")
    with pytest.raises(state_checksums.DamagedStateError, match="'target/w' is not what was saved"):
        damaged["target/w"].read((slice(0, 1), slice(None)))
    with pytest.raises(state_checksums.DamagedStateError, match="'target/w' is not what was saved"):
        np.asarray(damaged["target/w"])


def test_a_part_alone_is_read_of_a_tensor_without_a_checksum(saved, tmp_path, monkeypatch):
    run, _ = saved
    shutil.copytree(run / "checkpoint_2", tmp_path / "checkpoint_2")
    asked, opened = [], state_checksums.saved_tensors.open_tensors

    def watched(path):
        return {
            name: dataclasses.replace(x, read=lambda index, x=x: asked.append(index) or x.read(index))
            for name, x in opened(path).items()
        }

    monkeypatch.setattr(state_checksums.saved_tensors, "open_tensors", watched)
    part, whole = (slice(1, 3), slice(None)), (slice(None), slice(None))
    for _ in range(2):
        state_checksums.open_tensors(tmp_path / "checkpoint_2")["target/w"].read(part)
        shutil.rmtree(tmp_path / "checkpoint_2/run", ignore_errors=True)
    assert asked == [whole, part]
