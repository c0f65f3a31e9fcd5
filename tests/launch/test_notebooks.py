"""The notebooks of launch/notebooks: their cells, run in order at sizes of seconds, through a kill and on two sites."""

import importlib.util
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import types

import pytest

from tests import line
from tests.launch.launching import ROOT
from tests.loopback_hub import TOKEN, LoopbackHub

_FOLDER = ROOT / "launch/notebooks"
_SIZES = """
BATCH_SIZE = 4
RANDOM_SEED = 0
DATASET_SEED = 0
EVAL_STEPS = 1
EVAL_PERIOD = 1000
objectives.span_corruption_lengths.inputs_length = 32
network.T5Config:
  emb_dim = 16
  num_heads = 2
  head_dim = 8
  mlp_dim = 32
  num_encoder_layers = 1
  num_decoder_layers = 1
  dtype = 'float32'
train_script.train.initial_values_fn = None
train_script.train.stats_period = 1
train_script.train.baselines = None
train/data.DatasetConfig.num_readers = 2
checkpoints.SaveCheckpointConfig.period = 2
"""


def _write():
    spec = importlib.util.spec_from_file_location("write", _FOLDER / "write.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("site", ["kaggle", "colab"])
def test_the_notebooks_are_those_of_cells_md(site):
    """`python launch/notebooks/write.py` writes them again."""
    assert (_FOLDER / f"{site}.ipynb").read_text("utf-8") == _write().text_of(site)


class Session:
    """A machine of a site: its cells run in order, with commands in forks in place of bash.

    `before` is what KILL_BEFORE of `tests.killing` is for the training, `commands` what was run.
    """

    def __init__(self, site, folder, forks, **settings):
        cells = json.loads((_FOLDER / f"{site}.ipynb").read_text("utf-8"))["cells"]
        self._cells = ["".join(x["source"]) for x in cells if x["cell_type"] == "code"]
        self._settings = {"HERE": str(folder / "here"), "INPUTS": str(folder / "inputs")} | settings
        self._folder, self._forks, self.names, self.commands, self.before = folder, forks, {}, [], ""

    def run(self, until=None):
        """To the cell that has this text, or to the end."""
        for code in self._cells:
            exec(compile(code, "cell", "exec"), self.names)
            if "HERE =" in code:
                self.names |= self._settings
            if "def sh(" in code:
                self.bash, self.names["sh"] = self.names["sh"], self._sh
            if until and until in code:
                return

    def _sh(self, text, ok=(0,)):
        self.commands.append(text)
        if text.startswith(("hf ", 'python -c "from hug')):
            return self.bash(text, ok)
        words = shlex.split(text.partition(" | ")[0])
        words = words[next(i for i, word in enumerate(words) if word in ("limba", "python")) :]
        words = words[1:] if words[0] == "python" else words
        words += ["--no-check"] * ("to-hf" in words)
        before = {"KILL_BEFORE": self.before} if "train" in words and self.before else {}
        done = self._forks.run(words, line.environment(self._folder, **before), cwd=self._settings["HERE"])
        if done.returncode not in ok:
            raise RuntimeError(f"{done.returncode} {done.stderr[-3000:]}")
        return done.stdout


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes a folder a machine on which Limba is installed."""

    def prepared(name):
        folder = tmp_path / name
        (folder / "limba-environment/bin").mkdir(parents=True)
        (folder / "limba-environment/bin/limba").touch()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.setenv("PATH", os.environ["PATH"])
        monkeypatch.setenv("MPLBACKEND", "agg")
        monkeypatch.chdir(folder)
        return folder

    return prepared


def _losses(run):
    rows = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows if row["dataset"] == "train"]


@pytest.mark.slow
def test_a_training_killed_on_one_site_ends_on_the_other(tmp_path, monkeypatch, forks, machine, capsys):
    """Colab's is killed in the middle and its Drive is Kaggle's input: losses are those of the first machine."""
    line.write_corpus(tmp_path / "corpus")
    mounted = []
    colab = types.SimpleNamespace(drive=types.SimpleNamespace(mount=mounted.append))
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    drive = tmp_path / "content/drive/MyDrive/limba"
    settings = {"CORPUS": f"{tmp_path}/corpus/*.jsonl", "VOCAB_SIZE": 256, "STEPS": 8}
    more = "from limba import train as train_script\nfrom limba.data import contract as data\n" + _SIZES
    settings |= {"MORE_GIN": more}

    first = Session("colab", machine("first"), forks, KEEP=str(drive), **settings)
    first.before = f"1 {tmp_path}/first/here/run/checkpoint_6"
    with pytest.raises(RuntimeError, match=f"^{-signal.SIGKILL} "):
        first.run()
    assert mounted == ["/content/drive"]
    assert "timeout --foreground --preserve-status --signal=TERM 10h limba train my_recipe.gin" in first.commands
    kept = sorted(path.name for path in (drive / "run").glob("checkpoint_*"))
    assert kept == ["checkpoint_4"] and (drive / "vocab/spiece.model").is_file()

    folder = machine("second")
    shutil.copytree(drive, folder / "inputs/notebooks/me/my-run/limba")
    second = Session("kaggle", folder, forks, **settings)
    second.run()
    assert "saved: checkpoint_4" in capsys.readouterr().out
    ends = _losses(folder / "here/run")
    assert [step for step, _ in ends] == [*range(1, 9)] and ends[:4] == _losses(drive / "run")[:4]
    # The first machine made two steps that it had no time to keep: the second one makes them again.
    assert ends[:6] == _losses(tmp_path / "first/here/run")
    assert (folder / "here/exports/checkpoint_8/config.json").is_file()
    assert "limba infer run --validation 6" in second.commands

    recipe = (folder / "here/my_recipe.gin").read_text()
    assert "bfloat16" not in recipe and "kernels" not in recipe


def test_a_repository_of_the_hub_keeps_one_checkpoint(tmp_path, monkeypatch, machine, capsys):
    hub = LoopbackHub()
    monkeypatch.setenv("HF_TOKEN", "of another")
    for name, value in hub.environment(tmp_path / "home", None).items():
        monkeypatch.setenv(name, value)
    secrets = types.SimpleNamespace(UserSecretsClient=lambda: types.SimpleNamespace(get_secret={"HF_TOKEN": TOKEN}.get))
    monkeypatch.setitem(sys.modules, "kaggle_secrets", secrets)

    class OfLimba:
        """Commands that this test does not need."""

        def run(self, words, env, cwd):
            return types.SimpleNamespace(returncode=0, stderr="", stdout="machine - 7.5")

    try:
        first = Session("kaggle", machine("first"), OfLimba(), KEEP="hf://me/run", CORPUS="text.txt")
        first.run(until="def keep(")
        # A T4 has no bfloat16.
        assert (
            "dtype = 'float32'\nnetwork.T5Config.kernels = 'xla'" in (tmp_path / "first/here/my_recipe.gin").read_text()
        )
        for step in (2, 4):
            folder = tmp_path / f"first/here/run/checkpoint_{step}"
            folder.mkdir(parents=True)
            (folder / "state").write_text(f"of step {step}")
            first.names["keep"]()
        repository = hub.repos["me/run"]
        assert repository.private
        assert {name for name in repository.files if "checkpoint" in name} == {"run/checkpoint_4/state"}
        second = Session("kaggle", machine("second"), OfLimba(), KEEP="hf://me/run", CORPUS="text.txt")
        second.run(until="exists True")
    finally:
        hub.close()
    assert (tmp_path / "second/here/run/checkpoint_4/state").read_text() == "of step 4"
    assert (tmp_path / "second/here/my_tasks.py").is_file()
    assert TOKEN not in capsys.readouterr().out
