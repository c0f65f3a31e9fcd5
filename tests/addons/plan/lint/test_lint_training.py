import types

import jax
import numpy as np
import optax
import pytest

from limba.addons.plan.lint import command, lint_training
from limba.checkpoints import checkpointing, disk_space
from limba.checkpoints.checkpointing import RestoreCheckpointConfig, SaveCheckpointConfig
from limba.checkpoints.train_state import TrainState
from limba.data import contract
from limba.data.lint_findings import Finding, refused
from limba.files import disk
from limba.inference import tasks_door
from limba.network import t5
from limba.network.encoders import encoder
from limba.optimizers import adafactor, definitions, schedules
from limba.partitioning import meshes
from tasks.pretraining import pretraining_tasks
from tasks.vocabularies import ByteVocabulary

SCHEDULE = schedules.create_learning_rate_scheduler
MODEL_DIR = "gs://some-bucket/run"


def _names(findings):
    return [finding.name for finding in findings]


def _course(first, last):
    return lint_training.Course(first, last, first)


# ------------------------------------------------------ where it begins ----------------------------------------------


def test_the_step_of_an_initial_checkpoint(tmp_path):
    def step(model_dir, **restore):
        return lint_training.initial_step(str(model_dir), RestoreCheckpointConfig(**restore))

    assert step(tmp_path / "new") == (0, [])
    assert step(tmp_path / "new", path="gs://t5-data/mt5_base/checkpoint_1000000", mode="specific") == (1_000_000, [])
    number, (finding,) = step(tmp_path / "new", path=str(tmp_path / "checkpoint_500"))
    assert (number, finding.name, finding.severity) == (500, "initial_checkpoint", "error")
    state = TrainState(step=np.int32(70), params={"a": np.zeros(2, np.float32)}, opt_state={})
    checkpointer = checkpointing.Checkpointer(tmp_path / "old", SaveCheckpointConfig(), use_orbax=False)
    checkpointer.save(state, None, {})
    checkpointer.close()
    assert step(tmp_path / "new", path=str(tmp_path / "old")) == (70, [])
    # A run of its own goes on, whatever it began with.
    assert step(tmp_path / "old", path="gs://t5-data/mt5_base/checkpoint_1000000") == (70, [])


def test_training_that_ends_at_once():
    (finding,) = lint_training.check_steps(1_000_000, 1_000_000, None)
    assert finding.name == "ends_at_once" and "2,000,000 would make 1,000,000 steps" in finding.remedy
    assert not list(lint_training.check_steps(1_000_000, 1_000_001, None))
    assert not list(lint_training.check_steps(1_000_000, 1_000_010, relative_steps=10))


@pytest.mark.parametrize(
    ("schedule", "first", "last", "names"),
    [
        (SCHEDULE("constant * rsqrt_decay", 1.0, 10_000), 0, 2_000_000, []),
        (SCHEDULE("constant * rsqrt_decay", 0.4, 10_000), 1_000_000, 2_000_000, []),
        (SCHEDULE("constant", 0.001), 1_000_000, 1_010_000, []),
        # The schedule counts from step 0, so it is over before the run begins.
        (SCHEDULE("linear_decay", 0.01, 100, decay_factor=0.01), 500, 1000, ["learning_rate"]),
        (SCHEDULE("constant", 1.0), 0, 1000, ["learning_rate"]),
        (SCHEDULE("constant", 0.05), 1_000_000, 1_010_000, ["learning_rate"]),
        (SCHEDULE("constant * linear_warmup", 0.001, 1000), 500_000, 510_000, ["warmup_skipped"]),
        (SCHEDULE("constant * linear_warmup", 0.001, 1000, step_offset=500_000), 500_000, 510_000, []),
    ],
)
def test_learning_rates(schedule, first, last, names):
    assert _names(lint_training.check_rate(schedule, _course(first, last))) == names


@pytest.mark.parametrize(
    "schedule",
    [
        SCHEDULE("constant * linear_warmup", 0.001, 1000),
        SCHEDULE("constant * linear_warmup * rsqrt_normalized_decay", 0.01, 1000),
        SCHEDULE("linear_decay", 0.01, 100, decay_factor=0.001),  # near its end it is nothing
    ],
)
def test_a_run_of_one_s_own_that_is_resumed_has_not_skipped_its_warmup(schedule):
    """It is looked at from where it began: an offset at the step of its newest checkpoint would shift its schedule."""
    for first in (5, 900, 1099, 50_000):
        assert _names(lint_training.check_rate(schedule, lint_training.Course(0, 60_000, first, True))) == []
    # Begun with another's checkpoint, it had the finding before its first step, and cannot change it now.
    assert _names(lint_training.check_rate(schedule, lint_training.Course(500_000, 510_000, 505_000, True))) in (
        [],
        ["learning_rate"],
    )


@pytest.mark.parametrize(
    ("warmup", "last", "names"),
    [
        (1000, 1000, ["long_warmup"]),
        (10_000, 1000, ["long_warmup"]),
        (900, 1000, ["long_warmup"]),
        (500, 1000, []),
        (1000, 20_000, []),
        (1000, None, []),  # TRAIN_EPOCHS: only the run counts its steps
    ],
)
def test_a_warmup_as_long_as_the_training(warmup, last, names):
    for factors in ("constant * linear_warmup", "constant * linear_warmup * rsqrt_normalized_decay"):
        schedule = SCHEDULE(factors, 0.01, warmup)
        assert _names(lint_training.check_rate(schedule, _course(0, last))) == names
    constant = SCHEDULE("constant * rsqrt_decay", 1.0, warmup)  # T5's: the full rate from the first step
    assert _names(lint_training.check_rate(constant, _course(0, last))) == []


OPTIMIZERS = {
    "adafactor": lambda: adafactor.Adafactor(),
    "adafactor, as transformers' Trainer has it": lambda: adafactor.Adafactor(multiply_by_parameter_scale=False),
    "adamw": lambda: definitions.chain([optax.clip_by_global_norm(1.0), definitions.adamw()]),
    "adamw_scale": lambda: definitions.chain([optax.clip_by_global_norm(1.0), definitions.adamw_scale()]),
    "lion": lambda: definitions.lion(weight_decay=0.1),
    "muon": lambda: definitions.muon(),
    "sgd": lambda: definitions.sgd(),
}
RELATIVE = ("adafactor", "adamw_scale")
AXES = {"wi": {"kernel": ("embed", "mlp")}, "norm": {"scale": ("embed",)}}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_multiplies_the_rate_by(name):
    shapes = {"wi": {"kernel": jax.ShapeDtypeStruct((64, 128), np.float32)}}
    shapes["norm"] = {"scale": jax.ShapeDtypeStruct((64,), np.float32)}
    expected = "the parameter" if name in RELATIVE else None if name == "sgd" else "the rate"
    assert lint_training.size_of_steps(OPTIMIZERS[name](), shapes, AXES) == expected


@pytest.mark.parametrize(
    ("steps_of", "rate", "is_trained", "found"),
    [
        ("the rate", 0.01, False, True),  # Adafactor's with AdamW
        ("the rate", 0.005, True, True),
        ("the rate", 1e-3, False, False),
        ("the rate", 3e-5, True, False),
        ("the parameter", 1e-4, False, True),  # AdamW's with Adafactor, from scratch
        ("the parameter", 5e-5, True, True),
        ("the parameter", 1e-4, True, False),  # some fine-tune so
        ("the parameter", 0.01, False, False),
        ("the parameter", 0.02, False, False),
        (None, 0.1, False, False),
    ],
)
def test_a_rate_of_another_optimizer_s_scale(steps_of, rate, is_trained, found):
    course = lint_training.Course(0, 10_000, 0, is_trained=is_trained)
    names = _names(lint_training.check_scale(steps_of, SCHEDULE("constant * linear_warmup", rate, 100), course))
    assert names == (["rate_of_another_optimizer"] if found else [])


@pytest.mark.parametrize(
    ("save", "course", "found"),
    [
        ({"period": 1000}, (0, 500, 0), True),
        ({"period": None}, (0, 500, 0), True),
        ({"period": 1000}, (0, 100, 0), True),
        ({"period": 1000}, (0, 99, 0), False),  # a try, which is begun again
        ({"period": None}, (0, 5, 0), False),
        ({"period": 1000}, (1_000_000, 1_000_500, 1_000_000), True),
        ({"period": 500}, (0, 500, 0), False),
        ({"period": 1000, "checkpoint_steps": [250]}, (0, 500, 0), False),
        ({"period": 1000}, (0, 2000, 1900), False),  # a resumed run, near its end
        ({"period": 1000}, (0, None, 0), False),
    ],
)
def test_a_period_longer_than_the_run(save, course, found):
    names = _names(lint_training.check_period(SaveCheckpointConfig(**save), lint_training.Course(*course)))
    assert names == (["period"] if found else [])


def test_the_steps_of_a_resumed_run(tmp_path):
    """They count from where it began, also if the checkpoint that it began with is gone."""
    state = TrainState(step=np.int32(70), params={"a": np.zeros(2, np.float32)}, opt_state={})
    checkpointer = checkpointing.Checkpointer(tmp_path / "run", SaveCheckpointConfig(), use_orbax=False)
    checkpointer.save(state, None, {})
    checkpointer.close()
    gone = RestoreCheckpointConfig(path=str(tmp_path / "gone" / "checkpoint_50"), mode="specific")
    assert lint_training.find_course(str(tmp_path / "run"), gone, 100, None) == (
        lint_training.Course(0, 100, 70, is_resumed=True, is_trained=True),
        [],
    )
    new, (finding,) = lint_training.find_course(str(tmp_path / "new"), gone, None, 10)
    assert (new, finding.name) == (lint_training.Course(50, 60, 50, is_trained=True), "initial_checkpoint")
    assert lint_training.find_course(MODEL_DIR, None, None, None) == (lint_training.Course(0, None, 0), [])


def test_a_rate_that_asks_for_the_step_is_found():
    (found,) = lint_training.check_rate(lambda step: 1e-3 if step < 10 else 1e-4, _course(0, 100))
    assert (found.name, found.severity) == ("learning_rate", "error") and "jnp.where" in found.remedy


def test_the_remedy_of_a_rate_that_is_nothing():
    (never,) = lint_training.check_rate(SCHEDULE("constant", 0.0), _course(0, 1000))
    assert never.remedy.startswith("Set create_learning_rate_scheduler.base_learning_rate to a rate that trains")
    (over,) = lint_training.check_rate(SCHEDULE("linear_decay", 0.01, 100, decay_factor=0.01), _course(500, 1000))
    assert "The schedule has ended before the run begins: set" in over.remedy and "step_offset to 500" in over.remedy


def test_rows_that_no_id_reads():
    config = t5.T5Config(vocab_size=32128, emb_dim=64)
    (finding,) = lint_training.check_unused_rows(config, 1920)
    assert (finding.name, finding.severity) == ("unused_rows", "warning")
    assert "1,920 ids and the embedding 32,128 rows (T5Config.vocab_size): 30,208 of them" in finding.what
    assert finding.cost.startswith(f"{30_208 * 2 * 64:,} parameters") and finding.remedy == "Set VOCAB_SIZE to 1920."
    for vocab_size in (32_000, 32_100, 32_128):  # T5's own
        assert not list(lint_training.check_unused_rows(config, vocab_size))


def test_numbers_of_findings(capsys):
    finding = Finding("split", "error", "There is none.", "it stops", "")
    assert command.report([finding]) == 1
    assert capsys.readouterr().out.endswith("\n1 error, 0 warnings\n")


# ------------------------------------------------------- checkpoints -------------------------------------------------


@pytest.fixture
def state():
    """Of 1,000,000 parameters, and as many numbers of an optimizer."""
    shape = jax.ShapeDtypeStruct((1000, 1000), np.float32)
    step = jax.ShapeDtypeStruct((), np.int32)
    return TrainState(step=step, params={"a": shape}, opt_state={"a": shape})


def test_bytes_of_a_checkpoint(state):
    assert disk_space.checkpoint_bytes(state, SaveCheckpointConfig()) == 8_000_004
    assert disk_space.checkpoint_bytes(state, SaveCheckpointConfig(dtype="bfloat16")) == 6_000_004


@pytest.mark.parametrize(
    ("last", "save", "number"),
    [
        (2**63, {"period": 1000}, 2**63 // 1000 + 1),
        (10_000, {"period": 1000}, 10),
        (10_000, {"period": 1000, "checkpoint_steps": [5, 7000, 10_000, 20_000]}, 11),
        (10_000, {"period": None, "checkpoint_steps": [5, 10_000]}, 2),
        (500, {"period": 1000}, 1),
    ],
)
def test_checkpoints_are_counted_and_not_listed(state, tmp_path, last, save, number):
    assert disk_space.need(tmp_path, SaveCheckpointConfig(**save), state, 0, last).number == number


@pytest.mark.parametrize("devices", [-2, 0, 10_001, 2**62])
def test_devices_that_no_mesh_has(devices):
    with pytest.raises(ValueError, match=rf"The mesh has {devices} devices; lint pretends to have 1 to 10,000"):
        command._pretend(devices)


def test_disk(state, tmp_path, monkeypatch):
    def check(free, **save):
        monkeypatch.setattr(disk, "free_bytes", lambda _: free)
        config = SaveCheckpointConfig(**save)
        return list(lint_training.check_checkpoints(str(tmp_path / "run"), config, state, 0, 10_500))

    # At 1000, 2000 … 10000, and the last.
    (finding,) = check(87e6, period=1000)
    assert finding.name == "disk" and finding.what.startswith("11 checkpoints of 0.008 GB, of which 11 stay")
    assert not check(89e6, period=1000)
    assert _names(check(23e6, period=1000, keep=2)) == ["disk"]  # and the one that is being written
    assert not check(25e6, period=1000, keep=2)
    many = lint_training.check_checkpoints(MODEL_DIR, SaveCheckpointConfig(period=1), state, 0, 1000)
    assert [(x.name, x.severity) for x in many] == [("disk", "warning")]
    assert not list(lint_training.check_checkpoints(MODEL_DIR, SaveCheckpointConfig(period=1, keep=3), state, 0, 1000))


def test_what_is_saved(state):
    found = lint_training.check_checkpoints(MODEL_DIR, SaveCheckpointConfig(save_dataset=False), state, 0, 1000)
    assert _names(found) == ["position_not_saved"]
    assert _names(lint_training.check_checkpoints(MODEL_DIR, None, state, 0, 1000)) == ["no_checkpoints"]


# ----------------------------------------------------------- mesh ----------------------------------------------------


def _config(batch_size):
    return contract.DatasetConfig("x", {"inputs": 8, "targets": 8}, "train", batch_size)


def test_batches_against_the_mesh():
    mesh = meshes.PjitPartitioner(num_partitions=2)  # 8 devices: 4 data shards

    def check(batch_size, microbatches=1, num_devices=None):
        found = lint_training.check_batch(mesh, _config(batch_size), microbatches, num_devices)
        return [(finding.name, finding.severity) for finding in found]

    assert check(32) == check(64, 8) == check(12, num_devices=8) == []
    assert check(12) == [("batch_size", "warning")]
    assert check(30) == check(32, 16) == [("batch_size", "error")]


def test_heads_and_partitions_against_the_mesh():
    mesh = meshes.PjitPartitioner(num_partitions=4)
    assert not list(lint_training.check_mesh(mesh, 4, None, 12))
    (finding,) = lint_training.check_mesh(mesh, 4, None, 6)
    assert finding.name == "model_axis" and "num_heads is 6" in finding.what
    # CPU devices take the largest model axis that fits; accelerators would refuse.
    (finding,) = lint_training.check_mesh(meshes.PjitPartitioner(num_partitions=3), 3, None, 6)
    assert finding.name == "mesh" and "num_partitions = 3 does not divide the 8 devices" in finding.what


# ----------------------------------------------------------- data ----------------------------------------------------


@pytest.mark.parametrize(("extra_ids", "names"), [(100, []), (50, ["other_vocabulary"])])
def test_a_model_of_another_vocabulary_than_the_task_s(tmp_path, extra_ids, names):
    (tmp_path / "a.txt").write_text("a line of text\n" * 20)
    vocabulary, other = ByteVocabulary(100), ByteVocabulary(extra_ids)
    files = {"train": str(tmp_path / "a.txt")}
    options = {"data_files": files, "vocabulary": vocabulary, "mean_noise_span_length": 20.0}
    task = pretraining_tasks.register_pretraining_task(f"lint_vocabulary_{extra_ids}", **options)
    config = contract.DatasetConfig(task.name, {"inputs": 64, "targets": 13}, "train", 8)
    arguments = {"train_dataset_cfg": config, "eval_steps": None}
    arguments["verify_matching_vocabs_fn"] = tasks_door.verify_matching_vocabs
    model = types.SimpleNamespace(input_vocabulary=other, output_vocabulary=other)
    assert _names(command._check_data(arguments, model, None, None, None)) == names


def test_what_the_start_refuses_is_said_once(monkeypatch):
    def refuses(**arguments):
        assert arguments == {"model_dir": "here", "checks_only": True}
        raise ValueError("no such\ncheckpoint")

    monkeypatch.setattr(command, "train", refuses)
    (found,) = command.start({"model_dir": "here"}, [])
    assert (found.name, found.severity, found.what) == ("start", "error", "no such checkpoint")
    assert list(command.start({"model_dir": "here"}, [refused("source", "Task 'x': no such checkpoint")])) == []


def test_a_network_that_no_class_holds_is_said_before_it_is_trained():
    assert not list(lint_training.check_class(t5.T5Config(vocab_size=128)))
    assert not list(
        lint_training.check_class(encoder.EncoderConfig(vocab_size=128, emb_dim=64, num_heads=4, head_dim=16))
    )
    narrow = encoder.EncoderConfig(vocab_size=128, emb_dim=64, num_heads=4, head_dim=32)
    (finding,) = lint_training.check_class(narrow)
    assert (finding.name, finding.severity) == ("no_class", "warning")
    assert "num_heads * head_dim is 128, and must be emb_dim, 64" in finding.what
    # A masked language model that transformers has, and no class there detects replaced tokens with it.
    sizes = {"vocab_size": 128, "emb_dim": 64, "num_heads": 4, "head_dim": 16}
    deberta = encoder.EncoderConfig(**sizes, position_embedding_type="disentangled")
    assert not list(lint_training.check_class(deberta))
    assert not list(lint_training.check_class(encoder.EncoderConfig(**sizes), detects=True))
    (finding,) = lint_training.check_class(deberta, detects=True)
    assert "For the nearest, ElectraForPreTraining, " in finding.what and "'disentangled'" in finding.what
    assert "if a classifier that begins with it is exported" in finding.remedy
