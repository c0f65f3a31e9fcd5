"""T5X's own checkpoints, and ours in T5X's formats.

`golden/t5x_classic.tar.xz` (T5X's t5, classic format) and `golden/t5x_orbax_scanned.tar.xz` (its scalable_t5, Orbax)
were written by T5X after two steps of a tiny network with Adafactor and momentum; `golden/t5x_checkpoints.json` has the
CRC-32 of every tensor that T5X had in memory, and the loss of T5X's third step, made after restoring them.
"""

import json
import shutil
import tarfile
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba import models
from limba.checkpoint_files import classic_format, layer_layouts, saved_tensors
from limba.checkpoint_files.assignment_maps import flatten_state_dict, unflatten_state_dict
from limba.checkpoints import checkpointing
from limba.checkpoints.checkpointing import RestoreCheckpointConfig, SaveBestCheckpointer, SaveCheckpointConfig
from limba.network import t5 as network
from limba.optimizers import adafactor
from tests.limba import small

FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((FOLDER / "t5x_checkpoints.json").read_text())
BATCH_3 = {name: np.array(rows, np.int32) for name, rows in GOLDEN["batch_3"].items()}
RUN_FILES = {"run.json": b"{}"}


class _Vocabulary:
    vocab_size = 32
    eos_id = 1


def _trainer(**fields):
    optimizer = adafactor.Adafactor(
        beta1=0.9, min_dim_size_to_factor=8, logical_factor_rules=adafactor.standard_logical_factor_rules()
    )
    config = small.config(vocab_size=32, emb_dim=8, num_heads=4, head_dim=4, mlp_dim=16, **small.TWO_LAYERS, **fields)
    made = models.EncoderDecoderModel(network.Transformer(config), _Vocabulary(), _Vocabulary(), optimizer, z_loss=1e-4)
    return small.make_trainer(made)


@pytest.fixture(scope="module")
def t5():
    return _trainer()


@pytest.fixture(scope="module")
def scalable_t5():
    return _trainer(scan_layers=True, relative_bias_per_layer=True, joined_attention_kernels=False)


@pytest.fixture(scope="module")
def state(t5):
    return t5.new_state(jax.random.key(1)).replace(step=jnp.int32(5))


@pytest.fixture(scope="module")
def t5x_runs(tmp_path_factory):
    """MODEL_DIRs of T5X by name."""
    runs = {}
    for name in ("classic", "orbax_scanned"):
        runs[name] = tmp_path_factory.mktemp(name)
        with tarfile.open(FOLDER / f"t5x_{name}.tar.xz") as archive:
            archive.extractall(runs[name])
    return runs


def _equal(a, b) -> bool:
    a, b = flatten_state_dict(jax.device_get(a)), flatten_state_dict(jax.device_get(b))
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", ["classic", "orbax_scanned"])
def test_every_tensor_is_what_t5x_had(t5x_runs, name):
    tensors = saved_tensors.open_tensors(t5x_runs[name] / "checkpoint_2")
    read = {name: zlib.crc32(np.ascontiguousarray(tensor).tobytes()) for name, tensor in tensors.items()}
    assert read == GOLDEN[name]["crc32"]


def test_the_classic_format_in_the_folder_of_orbax(t5x_runs, tmp_path):
    """As T5X's manager of checkpoints writes it; a folder without either index is named."""
    path = tmp_path / "checkpoint_2"
    shutil.copytree(t5x_runs["classic"] / "checkpoint_2", path / "state")
    read = {name: zlib.crc32(np.ascontiguousarray(x).tobytes()) for name, x in saved_tensors.open_tensors(path).items()}
    assert read == GOLDEN["classic"]["crc32"]
    assert checkpointing.find_checkpoint(tmp_path) == path
    (path / "state" / "checkpoint").unlink()
    with pytest.raises(FileNotFoundError, match=r"checkpoint_2/state is no checkpoint's state: .*_METADATA, which Orb"):
        saved_tensors.open_tensors(path)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "network_"), [("classic", "t5"), ("orbax_scanned", "scalable_t5")])
def test_a_run_of_t5x_is_gone_on_with(tmp_path, t5x_runs, name, network_, request):
    trainer = request.getfixturevalue(network_)
    run = shutil.copytree(t5x_runs[name], tmp_path / "run")
    checkpointer = SaveCheckpointConfig(keep=2).make_checkpointer(run)
    state, dataset_state = checkpointer.restore_latest(trainer.sharded_state_shapes())
    assert int(state.step) == 2 and dataset_state == {}
    state, metrics = trainer.train_step(state, trainer.partitioner.shard_batch(BATCH_3))
    loss = metrics["loss_per_nonpadding_target_token"].compute()
    assert loss == pytest.approx(GOLDEN[name]["loss_3"], rel=2e-6)
    checkpointer.save(state, None, RUN_FILES)
    checkpointer.close()
    assert checkpointing.checkpoint_steps(run) == [2, 3]


def test_unrolled_to_scanned_and_back(tmp_path, t5x_runs, t5, scalable_t5):
    path = t5x_runs["classic"] / "checkpoint_2"
    original = checkpointing.load_state(path, t5.sharded_state_shapes())
    scanned = checkpointing.load_state(path, scalable_t5.sharded_state_shapes())
    classic_format.write(tmp_path / "checkpoint_2", scanned.state_dict())
    back = checkpointing.load_state(tmp_path / "checkpoint_2", t5.sharded_state_shapes())
    assert _equal(original.state_dict(), back.state_dict())
    # One network, two layouts. The statistics of `out` change places and `v_col` its shape: the second loss tells.
    losses = {}
    for name, trainer, state in (("t5", t5, original), ("scalable_t5", scalable_t5, scanned)):
        losses[name] = []
        for _ in range(2):
            state, metrics = trainer.train_step(state, trainer.partitioner.shard_batch(BATCH_3))
            losses[name].append(metrics["loss_per_nonpadding_target_token"].compute())
    assert losses["t5"][0] == pytest.approx(GOLDEN["classic"]["loss_3"], rel=2e-6)
    assert losses["scalable_t5"][0] == pytest.approx(losses["t5"][0], rel=2e-6)
    # The tables of positions, one a layer now, are updated each by itself.
    assert losses["scalable_t5"][1] == pytest.approx(losses["t5"][1], rel=2e-3)


def test_scalable_t5_becomes_t5_only_with_one_table_of_positions(t5x_runs, t5):
    path = t5x_runs["orbax_scanned"] / "checkpoint_2"
    with pytest.raises(checkpointing.CheckpointMismatchError, match="relpos_bias/rel_embedding: missing"):
        checkpointing.load_state(path, t5.sharded_state_shapes())


def test_layouts_of_t5x_without_a_model(t5x_runs):
    classic = saved_tensors.open_tensors(t5x_runs["classic"] / "checkpoint_2")
    scanned = saved_tensors.open_tensors(t5x_runs["orbax_scanned"] / "checkpoint_2")
    shapes = layer_layouts.shapes_for(classic, "scalable_t5")
    assert {name: want.shape for name, want in shapes.items()} == {name: t.shape for name, t in scanned.items()}
    layers = layer_layouts.shapes_for(scanned, "t5")
    assert {name: want.shape for name, want in layers.items()} == {name: t.shape for name, t in classic.items()}


@pytest.mark.parametrize("use_orbax", [True, False])
def test_both_formats_come_back_bit_for_bit(tmp_path, t5, state, use_orbax):
    checkpointer = SaveCheckpointConfig().make_checkpointer(tmp_path, use_orbax)
    checkpointer.save(state, {"reader-0": b"here"}, RUN_FILES)
    checkpointer.close()
    restored, dataset_state = checkpointer.restore_latest(t5.sharded_state_shapes())
    assert _equal(state.state_dict(), restored.state_dict())
    assert dataset_state == {"reader-0": b"here"}
    assert classic_format.is_classic(tmp_path / "checkpoint_5") is not use_orbax


def test_our_classic_checkpoint_has_t5xs_folders(tmp_path, t5x_runs, t5):
    theirs = t5x_runs["classic"] / "checkpoint_2"
    state = checkpointing.load_state(theirs, t5.sharded_state_shapes())
    SaveCheckpointConfig().make_checkpointer(tmp_path, use_orbax=False).save(state, None, RUN_FILES)
    ours = tmp_path / "checkpoint_2"
    assert {p.name for p in ours.iterdir()} - {"run", "dataset"} == {p.name for p in theirs.iterdir()}
    name = "target.token_embedder.embedding"
    assert json.loads((ours / name / ".zarray").read_text()) == json.loads((theirs / name / ".zarray").read_text())


@pytest.mark.parametrize("file", ["checkpoint", "target.token_embedder.embedding/0.0"])
def test_a_damaged_classic_checkpoint_is_passed_over(tmp_path, t5, state, file, caplog):
    checkpointer = SaveCheckpointConfig().make_checkpointer(tmp_path, use_orbax=False)
    for step in (1, 2):
        checkpointer.save(state.replace(step=jnp.int32(step)), None, RUN_FILES)
    damaged = tmp_path / "checkpoint_2" / file
    damaged.unlink() if "/" in file else damaged.write_bytes(damaged.read_bytes()[:100])
    restored, _ = checkpointer.restore_latest(t5.sharded_state_shapes())
    assert int(restored.step) == 1 and "checkpoint_2 cannot be read" in caplog.text


# ------------------------------------------------- what does not fit ------------------------------------------------


def _save_without(tmp_path, state, prefix, **renamed):
    """A checkpoint of step 5 without the tensors whose names begin so, and with others renamed."""
    flat = {name: x for name, x in flatten_state_dict(state.state_dict()).items() if not name.startswith(prefix)}
    for new, old in renamed.items():
        flat = {name.replace(old, new): x for name, x in flat.items()}
    classic_format.write(tmp_path / "checkpoint_5", unflatten_state_dict(jax.device_get(flat)))
    return tmp_path / "checkpoint_5"


def _twos(trainer):
    """An `init_fn` that is told from what was saved."""
    return lambda: jax.tree.map(lambda shape: jnp.full(shape.shape, 2, shape.dtype), trainer.sharded_state_shapes())


def test_without_optimizer_state_it_starts_anew(tmp_path, t5, state, caplog):
    path = _save_without(tmp_path, state, "state/param_states/")
    restored = checkpointing.load_state(path, t5.sharded_state_shapes(), init_fn=_twos(t5))
    assert "has no optimizer state: the optimizer state is initialized" in caplog.text
    assert int(restored.step) == 5 and _equal(restored.params, state.params)
    assert all(np.all(np.asarray(x) == 2) for x in jax.tree.leaves(restored.opt_state))


def test_fallback_to_scratch_fills_what_is_missing_and_names_it(tmp_path, t5, state, caplog):
    path = _save_without(tmp_path, state, "target/decoder/logits_dense")
    shapes = t5.sharded_state_shapes()
    with pytest.raises(
        checkpointing.CheckpointMismatchError, match=r"logits_dense/kernel: missing.*fallback_to_scratch"
    ):
        checkpointing.load_state(path, shapes, init_fn=_twos(t5))
    config = RestoreCheckpointConfig(fallback_to_scratch=True)
    restored = checkpointing.load_state(path, shapes, config, init_fn=_twos(t5))
    assert "initialized from scratch" in caplog.text and "target/decoder/logits_dense/kernel" in caplog.text
    assert np.all(np.asarray(restored.params["decoder"]["logits_dense"]["kernel"]) == 2)
    assert _equal(restored.params["encoder"], state.params["encoder"])


def test_assignment_map_takes_other_names(tmp_path, t5, state):
    path = _save_without(tmp_path, state, "nothing", old_encoder="encoder/")
    config = RestoreCheckpointConfig(
        assignment_map=[(r"(.*?)encoder/(.*)", r"\1old_encoder\2"), (r"state/step", None)], fallback_to_scratch=True
    )
    restored = checkpointing.load_state(path, t5.sharded_state_shapes(), config, init_fn=_twos(t5))
    assert _equal(restored.params, state.params)
    assert int(restored.step) == 2
    with pytest.raises(ValueError, match="no tensor of the model has a name that matches"):
        wrong = RestoreCheckpointConfig(assignment_map=[(r"target/encodr/.*", None)])
        checkpointing.load_state(path, t5.sharded_state_shapes(), wrong)


def test_transformations_see_tensors_and_whether_the_run_is_resumed(tmp_path, t5, state):
    path = _save_without(tmp_path, state, "nothing")
    calls = []

    def double(state_dict, target_state_dict, is_resuming=False):
        calls.append(is_resuming)
        assert target_state_dict["state"]["step"].shape == ()
        if is_resuming:
            return state_dict
        embedding = state_dict["target"]["token_embedder"]["embedding"]
        return state_dict | {
            "target": state_dict["target"] | {"token_embedder": {"embedding": 2 * np.asarray(embedding)}}
        }

    config = RestoreCheckpointConfig(state_transformation_fns=[double])
    restored = checkpointing.load_state(path, t5.sharded_state_shapes(), config)
    embedding = state.params["token_embedder"]["embedding"]
    np.testing.assert_array_equal(restored.params["token_embedder"]["embedding"], 2 * embedding)
    resumed, _ = SaveCheckpointConfig().make_checkpointer(tmp_path).restore_latest(t5.sharded_state_shapes(), config)
    np.testing.assert_array_equal(resumed.params["token_embedder"]["embedding"], embedding)
    assert calls == [False, True]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda state: None, "returned None as the state; it is a dict of dicts"),
        (
            lambda state: state | {"target": {"token_embedder": {"embedding": np.zeros((3, 4))}}},
            r"returned target/token_embedder/embedding as \(3, 4\), read as \(32, 8\), of \(32, 8\) here: it returns",
        ),
        (lambda state: state | {"state": {"step": 7}}, "returned state/step as 7; it is an array"),
    ],
)
def test_what_a_transformation_may_not_return(returned, words, tmp_path, t5, state):
    path = _save_without(tmp_path, state, "nothing")

    def wrong(state_dict, target_state_dict):
        return returned(state_dict)

    config = RestoreCheckpointConfig(state_transformation_fns=[wrong])
    with pytest.raises(ValueError, match=f"wrong of RestoreCheckpointConfig.state_transformation_fns {words}"):
        checkpointing.load_state(path, t5.sharded_state_shapes(), config)


def test_what_the_model_does_not_have(tmp_path, t5, state):
    path = _save_without(tmp_path, state, "nothing")
    shapes = t5.sharded_state_shapes().params
    del shapes["decoder"]["logits_dense"]
    with pytest.raises(checkpointing.CheckpointMismatchError, match=r"logits_dense/kernel: not in.*strict = False"):
        checkpointing.load_sharded_params(path, shapes)
    params = checkpointing.load_sharded_params(path, shapes, RestoreCheckpointConfig(strict=False))
    assert "logits_dense" not in params["decoder"]


# ---------------------------------------------------- what is kept ---------------------------------------------------


def _save_steps(checkpointer, state, steps):
    for step in steps:
        checkpointer.save(state.replace(step=jnp.int32(step)), {"reader-0": b"x"}, RUN_FILES)
    checkpointer.close()


def _metrics(tmp_path, values):
    lines = [{"step": step, "dataset": "training_eval/my_task", "accuracy": value} for step, value in values.items()]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


METRIC = "training_eval/my_task/accuracy"


@pytest.mark.parametrize(("mode", "kept"), [("max", [2, 4, 5]), ("min", [1, 3, 5])])
def test_the_best_are_kept_and_the_last(tmp_path, mode, kept):
    _metrics(tmp_path, {1: 0.1, 2: 0.9, 3: 0.2, 4: 0.8, 5: 0.5})
    config = SaveCheckpointConfig(keep=2)
    checkpointer = SaveBestCheckpointer(tmp_path, config, metric_name_to_monitor=METRIC, metric_mode=mode)
    _save_steps(checkpointer, _tiny_state(), [1, 2, 3, 4, 5])
    assert checkpointing.checkpoint_steps(tmp_path) == kept


@pytest.mark.parametrize(("mode", "kept"), [("max", [2, 3, 5]), ("min", [1, 2, 5])])
def test_of_equal_ones_the_first_are_kept(tmp_path, mode, kept):
    _metrics(tmp_path, {1: 0.1, 2: 0.5, 3: 0.5, 4: 0.5, 5: 0.5})
    checkpointer = SaveBestCheckpointer(tmp_path, SaveCheckpointConfig(keep=2), True, METRIC, mode)
    _save_steps(checkpointer, _tiny_state(), [1, 2, 3, 4, 5])
    assert checkpointing.checkpoint_steps(tmp_path) == kept
    rest = checkpointer._superfluous([1, 2, 3, 4, 6, 7], 3)  # 6 has no metric, and is kept
    assert rest == ([1] if mode == "max" else [4])


def test_best_without_metrics_periods_and_pins(tmp_path):
    _metrics(tmp_path, {1: 0.1, 2: 0.2, 4: 0.4})
    (tmp_path / "checkpoint_1").mkdir()
    (tmp_path / "checkpoint_1" / "PINNED").write_text("1")
    checkpointer = SaveBestCheckpointer(tmp_path, SaveCheckpointConfig(keep=1), metric_name_to_monitor=METRIC)
    _save_steps(checkpointer, _tiny_state(), [2, 3, 4, 5])
    assert checkpointing.checkpoint_steps(tmp_path) == [1, 3, 4, 5]  # 3 has no metric
    config = SaveCheckpointConfig(keep=1, keep_dataset_checkpoints=1)
    checkpointer = SaveBestCheckpointer(
        tmp_path, config, metric_name_to_monitor=METRIC, keep_checkpoints_without_metrics=False, force_keep_period=3
    )
    checkpointer.close()
    assert checkpointing.checkpoint_steps(tmp_path) == [1, 3, 4, 5]
    assert checkpointing.load_files(tmp_path / "checkpoint_4", "dataset") == {}
    assert checkpointing.load_files(tmp_path / "checkpoint_5", "dataset") == {"reader-0": b"x"}


def test_a_metric_that_is_not_there_is_said_once(tmp_path, caplog):
    _metrics(tmp_path, {1: 0.1})
    config = SaveCheckpointConfig(keep=1)
    checkpointer = SaveBestCheckpointer(tmp_path, config, metric_name_to_monitor="training_eval/my_task/f1")
    assert [checkpointer._superfluous([1, 2], 1) for _ in range(3)] == [[], [], []]
    assert [line.getMessage().split(" is not yet")[0] for line in caplog.records] == [
        "SaveBestCheckpointer: training_eval/my_task/f1"
    ]


def _tiny_state():
    from limba.checkpoints.train_state import TrainState

    return TrainState(step=jnp.int32(0), params={"w": jnp.ones(2)}, opt_state={})


def test_when_a_checkpoint_is_due():
    config = SaveCheckpointConfig(period=10, checkpoint_steps=[3, 25])
    assert [step for step in range(31) if config.is_due(step)] == [0, 3, 10, 20, 25, 30]
    assert not any(map(SaveCheckpointConfig(period=None).is_due, range(5)))


def test_state_is_transformed_before_it_is_saved(tmp_path):
    def keep_half(state_dict, infos):
        assert infos["target"]["w"].name == "target/w" and infos["target"]["w"].shape == (2,)
        return state_dict | {"target": {"w": state_dict["target"]["w"] / 2}}, infos

    config = SaveCheckpointConfig(state_transformation_fns=[keep_half], dtype="bfloat16")
    checkpointer = config.make_checkpointer(tmp_path, use_orbax=False)
    _save_steps(checkpointer, _tiny_state(), [1])
    saved = checkpointing.load_params(tmp_path)["w"]
    assert saved.dtype == jnp.bfloat16 and saved.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda state, infos: state, "returned a table of 2; it returns two things, the state and the descriptions"),
        (lambda state, infos: None, "returned None; it returns two things"),
        (lambda state, infos: (None, infos), "returned None as the state; it is a dict"),
        (lambda state, infos: (state | {"target": {"w": [1, 2]}}, infos), "returned target/w as "),
    ],
)
def test_what_a_transformation_before_saving_may_not_return(returned, words, tmp_path):
    """And no full disk is blamed for it."""

    def wrong(state_dict, infos):
        return returned(state_dict, infos)

    checkpointer = SaveCheckpointConfig(state_transformation_fns=[wrong]).make_checkpointer(tmp_path)
    with pytest.raises(ValueError, match=f"wrong of SaveCheckpointConfig.state_transformation_fns {words}") as error:
        _save_steps(checkpointer, _tiny_state(), [1])
    assert not isinstance(error.value, checkpointing.SaveError) and checkpointing.checkpoint_steps(tmp_path) == []


def test_other_shapes_are_saved_with_a_warning(tmp_path, caplog):
    def padded(state_dict, infos):
        return state_dict | {"target": {"w": jnp.pad(state_dict["target"]["w"], (0, 3))}}, infos

    config = SaveCheckpointConfig(state_transformation_fns=[padded])
    _save_steps(config.make_checkpointer(tmp_path, use_orbax=False), _tiny_state(), [1])
    assert checkpointing.load_params(tmp_path)["w"].shape == (5,)
    (said,) = (record.getMessage() for record in caplog.records)
    assert "padded) write target/w as (5,), which is (2,) in training. A run resumes from such a checkpoint" in said
