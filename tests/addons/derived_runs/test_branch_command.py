"""`limba branch`: the decay of a run as a run of its own."""

import hashlib
import json

import jax
import numpy as np
import pytest

from limba.addons.derived_runs import branch as branches
from limba.addons.derived_runs import branch_command
from limba.addons.derived_runs.branch_command import prepare
from limba.checkpoint_files import saved_tensors
from limba.checkpoints import checkpointing
from limba.files import json_text
from limba.gin_config import gin_files
from tests import line

GIN = """from __gin__ import dynamic_registration
from limba.optimizers import schedules
from limba import train as train_script
from limba.training import trainer
MODEL_DIR = 'runs/trunk'
TRAIN_STEPS = 400
schedules.warmup_constant.base_learning_rate = 0.01
train_script.train.epochs = None
train_script.train.model_dir = %MODEL_DIR
train_script.train.relative_steps = None
train_script.train.total_steps = %TRAIN_STEPS
train_script.train.trainer_cls = @trainer.Trainer
trainer.Trainer.learning_rate_fn = @schedules.warmup_constant()
"""


@pytest.fixture
def trunk(tmp_path):
    """A run with checkpoints of the steps 100 and 200, of any network."""
    _save(tmp_path / "trunk", GIN)
    lines = [{"step": step, "dataset": "train", "loss": step / 100} for step in (100, 200)]
    (tmp_path / "trunk" / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (tmp_path / "trunk" / "baselines.json").write_text("{}")
    return tmp_path / "trunk"


def _save(folder, gin):
    checkpointer = checkpointing.Checkpointer(folder, checkpointing.SaveCheckpointConfig())
    for step in (100, 200):
        params = {"large": np.full((600, 600), step, np.float32)}
        state = jax.tree.map(jax.numpy.asarray, checkpointing.TrainState(np.int32(step), params, {}))
        record = json_text.dumps({"seeds": {"random": 1}}).encode()
        checkpointer.save(state, {"reader_0.json": b"{}"}, {"run.json": record, "config.gin": gin.encode()})
    checkpointer.close()


def _files(folder):
    return {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}


def test_the_folder_of_a_branch(trunk, capsys):
    before = _files(trunk)
    gin = prepare(str(trunk), 100, "10%", bindings=["TRAIN_STEPS = 7"])
    out = trunk.parent / "trunk_100_plus_10"
    assert gin == out / "branch.gin"
    assert f"To train or resume it: limba train {gin}" in capsys.readouterr().out
    assert (
        gin.read_text().splitlines()[-11:]
        == [
            f"train_script.train.model_dir = '{out}'",
            f"MODEL_DIR = '{out}'",
            "train_script.train.total_steps = 110",
            "train_script.train.relative_steps = None",
            "train_script.train.epochs = None",
            "trainer.Trainer.learning_rate_fn = @schedules.with_decay()",
            "schedules.with_decay.learning_rate_fn = @schedules.warmup_constant()",
            "schedules.with_decay.begin = 100",
            "schedules.with_decay.decay_steps = 10",
            "schedules.with_decay.decay_type = 'linear'",
            "schedules.with_decay.final_learning_rate = 0.0",
            "TRAIN_STEPS = 7",
        ][-11:]
    )
    assert gin.read_text().startswith(f"# A branch of {trunk} at step 100; its rate falls in 10 steps.\n")
    sums = (trunk / "checkpoint_100/run/state_checksums.json").read_bytes()
    assert json.loads((out / "branch.json").read_text()) == {
        "parent": str(trunk),
        "step": 100,
        "digest": hashlib.sha256(sums).hexdigest(),
        "decay_steps": 10,
        "decay_type": "linear",
        "total_steps": 110,
        "bindings": ["TRAIN_STEPS = 7"],
    }
    assert _files(out / "checkpoint_100") == _files(trunk / "checkpoint_100")
    large = [x for x in (out / "checkpoint_100").rglob("*") if x.is_file() and x.stat().st_size >= 1 << 20]
    assert all(x.samefile(trunk / x.relative_to(out)) for x in large)  # no room on the disk
    assert [json.loads(x)["step"] for x in (out / "metrics.jsonl").read_text().splitlines()] == [100]
    assert (out / "baselines.json").read_text() == "{}"
    assert _files(trunk) == before
    # Again: it is there. Another one is refused.
    assert prepare(str(trunk), 100, "10", bindings=["TRAIN_STEPS = 7"]) == gin
    with pytest.raises(ValueError, match="trunk_100_plus_10 holds something else; give another --out"):
        prepare(str(trunk), 100, "10%", "cosine")


@pytest.mark.parametrize("name", ["baselines.json", "checkpoint_100/run/notes.txt"])
def test_what_leads_out_of_the_run_is_not_copied(trunk, name):
    """A branch may be published, and the run be a stranger's. Links inside, and of the hub's cache, are copied."""
    (trunk.parent / "secret").write_text("x")
    (trunk / name).unlink(missing_ok=True)
    (trunk / name).symlink_to(trunk.parent / "secret")
    with pytest.raises(ValueError, match=r"is a link to .*secret, outside of its folder; put a copy"):
        prepare(str(trunk), 100, "10%")
    assert not (trunk.parent / "trunk_100_plus_10").exists()
    blob, snapshot = trunk.parent / "blobs/0a", trunk.parent / "snapshots/main"
    blob.parent.mkdir()
    snapshot.parent.mkdir()
    (trunk.parent / "secret").rename(blob)
    trunk.rename(snapshot)
    (snapshot / name).unlink()
    (snapshot / name).symlink_to(blob)
    branched = prepare(str(snapshot), 100, "10%").parent
    assert (branched / name).read_text() == "x" and not (branched / name).is_symlink()


def test_a_dry_run_writes_nothing(trunk, capsys):
    assert branch_command.main([str(trunk), "--at", "200", "--decay", "50", "--shape", "cosine", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "the rate falls (cosine) to 0 in 50 steps, until step 250" in said
    assert "schedules.with_decay.decay_type = 'cosine'\n" in said
    assert "warmup_constant.base_learning_rate" not in said
    assert [x.name for x in trunk.parent.iterdir()] == ["trunk"]


@pytest.mark.parametrize(
    ("decay", "steps"), [("10%", 2000), ("2.5%", 500), ("100%", 20000), ("500", 500), ("0.004%", 1)]
)
def test_lengths_of_a_decay(decay, steps):
    assert branches.steps_of(decay, 20_000) == steps


@pytest.mark.parametrize("decay", ["ten", "0", "-5", "0.001%", "1.5", "inf%", "nan%", ""])
def test_lengths_that_are_none(decay):
    with pytest.raises(ValueError, match="--decay"):
        branches.steps_of(decay, 1000)


def test_what_cannot_be_branched(trunk, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"--at 150: .*trunk has checkpoints of the steps 100, 200"):
        prepare(str(trunk), 150)
    with pytest.raises(FileNotFoundError, match=r"checkpoint_100 is one checkpoint; give its run's directory, .*trunk"):
        prepare(str(trunk / "checkpoint_100"), 100)
    with pytest.raises(FileNotFoundError, match="nothing is no run"):
        prepare(str(tmp_path / "nothing"), 100)
    with pytest.raises(ValueError, match="--set"):
        prepare(str(trunk), 100, bindings=["TRAIN_STEPS 7"])
    branch = prepare(str(trunk), 100)
    for gin, words in (
        (branch.read_text(), "decayed is a branch itself, whose rate decays; give the run that it comes from"),
        ("MODEL_DIR = 'x'\n", r"config\.gin does not bind train\.total_steps: it is not the configuration"),
        (GIN.replace("trainer.Trainer.learning_rate_fn", "trainer.Trainer.num_microbatches"), "learning_rate_fn"),
    ):
        other = tmp_path / "decayed"
        _save(other, gin)
        with pytest.raises(ValueError, match=words):
            prepare(str(other), 100)
        for path in (other / "checkpoint_100", other / "checkpoint_200"):
            path.rename(tmp_path / f"old_{len(words)}_{path.name}")
    assert not list(tmp_path.glob("decayed_*"))


# ------------------------------------------------------ training ----------------------------------------------------

_QUICK = (
    *("--gin.train_script.train.initial_values_fn=None", "--gin.train_script.train.train_eval_dataset_cfg=None"),
    *("--gin.train_script.train.baselines=None", "--gin.checkpoints.SaveCheckpointConfig.period=10"),
    "--gin.checkpoints.SaveCheckpointConfig.keep=None",
)


def _rate(name, **values):
    given = {"base_learning_rate": 0.01, "warmup_steps": 5} | values
    bound = [f"--gin.schedules.{name}.{key}={value}" for key, value in given.items()]
    return [f"--gin.trainer.Trainer.learning_rate_fn=@schedules.{name}()", *bound]


def _tensors(path):
    return {name: np.asarray(x) for name, x in saved_tensors.open_tensors(path).items()}


@pytest.mark.slow
def test_a_branch_is_the_run_that_decays_by_itself_to_the_last_bit(tmp_path, forks):
    line.write_corpus(tmp_path / "corpus")
    (tmp_path / "vocab").mkdir()
    line.write_vocabulary(tmp_path / "corpus", tmp_path / "vocab/spiece.model")

    def run(*arguments):
        result = line.forked(forks, tmp_path, *arguments)
        assert result.returncode == 0, result.stderr
        return result

    trunk, alone, out = tmp_path / "trunk", tmp_path / "alone", tmp_path / "out"
    run(*line.train_arguments(tmp_path, trunk, 30, *_QUICK, *_rate("warmup_constant")))
    decays = _rate("warmup_stable_decay", total_steps=30, decay_steps=10)
    run(*line.train_arguments(tmp_path, alone, 30, *_QUICK, *decays))
    before = _files(trunk)
    branch = ("limba.addons.derived_runs.branch_command", str(trunk), "--at=20", "--decay=10", "--shape=1-sqrt")
    result = run(*branch, f"--out={out}")
    assert f"Resuming from step 20 in {out}" in result.stderr
    branched, expected = (_tensors(x / "checkpoint_30") for x in (out, alone))
    assert branched.keys() == expected.keys()
    for name, x in branched.items():
        np.testing.assert_array_equal(x, expected[name], err_msg=name)
    constant = _tensors(trunk / "checkpoint_30")
    assert not np.array_equal(branched["target/token_embedder/embedding"], constant["target/token_embedder/embedding"])
    assert checkpointing.load_dataset_state(out / "checkpoint_30") == checkpointing.load_dataset_state(
        alone / "checkpoint_30"
    )
    assert _files(trunk) == before
    rates = {x["step"]: x["learning_rate/current"] for x in map(json.loads, (out / "metrics.jsonl").open())}
    np.testing.assert_allclose(rates[21], 0.01, rtol=1e-6)
    np.testing.assert_allclose(rates[30], 0.01 * (1 - 0.9**0.5), rtol=1e-5)


@pytest.mark.parametrize(
    ("binding", "says"),
    [
        ("TRIAN_STEPS = 7", "TRIAN_STEPS overrides a name that no gin file uses"),
        ("trainer.Trainer.learning_rate = 1", "doesn't have a parameter named 'learning_rate'"),
    ],
)
def test_what_nothing_reads_is_refused_before_the_folder_is_there(trunk, binding, says):
    with pytest.raises(gin_files.GinError, match=says):
        prepare(str(trunk), 100, bindings=["TRAIN_STEPS = 7", binding])
    assert [x.name for x in trunk.parent.iterdir()] == ["trunk"]
