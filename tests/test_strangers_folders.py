"""Folders of somebody else are data: no command runs code that lies in them, or that their files name."""

import importlib.metadata
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests import line
from tests.convert.conftest import new_run, sentences, spiece_model

__all__ = ["new_run", "sentences", "spiece_model"]  # fixtures
pytestmark = pytest.mark.slow

# A module that runs says so.
MODULE = "open({!r}, 'a').write(__name__ + '\\n')\n"
# What the configuration of a run may name, each as its only line that is wrong.
NAMED = {
    "a module of Python's": "import subprocess\nfrom limba import models as theirs\n"
    "theirs.EncoderDecoderModel.label_smoothing = @subprocess.getoutput()\nsubprocess.getoutput.cmd = 'touch {}'\n",
    "a module in the run": "import evil\n",
    "a module of tasks in the run": "MIXTURE_OR_TASK_MODULE = 'evil'\n",
    "a layer in the run": "from limba.network import t5 as theirs\n"
    "theirs.T5Config.encoder_self_attention_layer = 'evil:Layer'\ntheirs.T5Config.kernels = 'xla'\n",
}
# A layer is of the network: other commands stop where they stop for every other name.
OF_LAYERS = ("infer", "eval", "embed", "serve", "lint", "train", "plan", "to-hf", "to-t5x")
# Commands that read a run, RUN, in its own folder. Some refuse the run, and some do not read what is wrong in it.
RUN_COMMANDS = {
    "infer": "infer . --input text",
    "infer of a task": "infer --gin_file=config.gin --gin_file=gin/runs/infer.gin --gin.CHECKPOINT_PATH='.' "
    "--gin.INFER_OUTPUT_DIR='out' --gin.MIXTURE_OR_TASK_NAME='x'",
    "eval": "eval . --eval_steps 1 --task x --gin.TASK_FEATURE_LENGTHS={'inputs':8,'targets':8}",
    "eval of pairs": "eval . --pairs pairs.jsonl",
    "embed": "embed . --input_file text.txt --output_file ../vectors.npy",
    "try": "try .",
    "serve": "serve . --dry_run",
    "preview": "preview .",
    "lint": "lint . gin/runs/pretrain.gin --gin.MODEL_DIR='../new' --gin.TRAIN_STEPS=2",
    "lint of the model": "lint model.gin gin/runs/pretrain.gin --gin.MODEL_DIR='../new' --gin.TRAIN_STEPS=2",
    "gin-check": "gin-check .",
    "train": "train model.gin gin/runs/finetune.gin --gin.MODEL_DIR='../new' --gin.TRAIN_STEPS=11 --dry_run",
    "plan": "plan model.gin gin/runs/pretrain.gin --gin.MODEL_DIR='../new' --estimate_only --topology v4-8",
    "to-hf": "convert to-hf . ../hf --no-check",
    "to-t5x": "convert to-t5x . ../t5x",
    "all": "convert all . ../all --no-check",
    "check": "convert check . .",
    "runs": "runs .",
    "report": "report . --out ../report.html",
    "scoreboard": "scoreboard .",
    "average": "average . --last 1 --out ../average",
    "branch": "branch . --at 10 --no-train --out ../branch",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, new_run):
    """A run and a Hugging Face folder, whole ones."""
    from convert.from_hf import from_hf
    from convert.to_hf import to_hf

    root = tmp_path_factory.mktemp("whole")
    saved = new_run(root / "saved", num_encoder_layers=1, num_decoder_layers=1, logits_via_embedding=False)
    to_hf(saved, root / "hf", formats=["safetensors"], verify=False)
    from_hf(root / "hf", root / "run", verify=False)
    return root


def _copy(whole: Path, folder: Path) -> None:
    subprocess.run(["cp", "-r", whole, folder], check=True)


LAYER = {"encoder_self_attention_layer": "evil:Layer", "kernels": "xla"}


def _name(run: Path, lines: str) -> None:
    """Writes lines behind each configuration of a run, with the right checksums; a layer into its record, too."""
    for file in run.rglob("run.json") if "evil:Layer" in lines else ():
        record = json.loads(file.read_text())
        record["network"] |= LAYER
        file.write_text(json.dumps(record))
    for file in run.rglob("*.gin"):
        file.write_text(file.read_text() + "\n" + lines)
    (run / "config.gin").write_text((next(run.glob("checkpoint_*")) / "run" / "config.gin").read_text())
    for file in run.rglob("checksums-*"):
        sums = json.loads(file.read_text())
        for name in sums:
            sums[name] = zlib.crc32((file.parent / name).read_bytes())
        file.write_text(json.dumps(sums))


@pytest.mark.sample(2)
@pytest.mark.parametrize("named", NAMED)
def test_a_run_runs_no_code(folders, tmp_path, forks, named):
    run, ran = tmp_path / "run", tmp_path / "ran"
    _copy(folders / "run", run)
    _name(run, NAMED[named].format(ran))
    (run / "evil.py").write_text(MODULE.format(str(ran)))
    (run / "text.txt").write_text("a text\n")
    (run / "pairs.jsonl").write_text('{"right": "a", "wrong": "b"}\n')
    for name in OF_LAYERS if "layer" in named else RUN_COMMANDS:
        words = RUN_COMMANDS[name]
        done = forks.run(["limba", *words.split()], line.environment(tmp_path), run)
        said = done.stdout + done.stderr
        assert not ran.exists(), (name, ran.read_text(), said[-2000:])
        assert "Traceback" not in said and "unrecognized" not in said and done.returncode != 2, (name, said[-2000:])
        reads_it = name in ("infer", "eval", "try", "serve", "embed", "lint", "gin-check")
        if reads_it and named == "a module of Python's":
            assert done.returncode == 1 and "the module subprocess is not imported" in said, (name, said[-2000:])


def _names() -> set[str]:
    """Of modules that a command may import: Python's, those of all packages, some that are not installed here."""
    optional = "libtpu jax_plugins torch_xla ctranslate2 onnxruntime gguf wandb mlflow trackio comet_ml apex deepspeed"
    installed = {name for name in importlib.metadata.packages_distributions() if name.isidentifier()}
    special = {"sitecustomize", "usercustomize", "tasks", "convert", "limba", "gin"}
    return {*sys.stdlib_module_names, *installed, *optional.split(), *special}


# In a downloaded folder, HF or RUN, whose files have these names, beside those that `test_a_process_of_its_own` starts.
# `to-hf` starts the processes that checks start.
CWD_COMMANDS = {
    "vocab build": ("hf", "vocab build --data_files text.txt --vocab_size 20 --out ../spiece.model"),
    "run": ("hf", "run script.sh"),
    "gin-check": ("hf", "gin-check t5x/configs/runs/infer.gin"),
    "to-hf": ("run", "convert to-hf . ../to_hf"),
    "report": ("run", "report . --out ../report.html"),
}


@pytest.fixture
def downloaded(folders, tmp_path):
    """Folders with a module of each name, as file; and where a module writes that it ran."""
    ran = tmp_path / "ran"
    for kind in ("hf", "run"):
        _copy(folders / kind, tmp_path / kind)
        for name in _names():
            (tmp_path / kind / f"{name}.py").write_text(MODULE.format(str(ran)))
        (tmp_path / kind / "t5x").mkdir()  # T5X's names, which Limba's own files have for Limba.
        (tmp_path / kind / "t5x/utils.py").write_text(MODULE.format(str(ran)))
        (tmp_path / kind / "text.txt").write_text("a text with some words of a kind\n" * 200)
        (tmp_path / kind / "script.sh").write_text("python run_t5_mlm_flax.py --output_dir out --no_such_key 1\n")
        info = tmp_path / kind / "evil-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[limba.commands]\nevil = evil\n[limba.families]\nevil = evil:X\n[jax_plugins]\nevil = evil\n"
        )
        (tmp_path / kind / "evil.py").write_text(MODULE.format(str(ran)))
        (tmp_path / kind / "evil.pth").write_text("import evil\n")
        (tmp_path / kind / "gin/runs").mkdir(parents=True)
        for file in (line.ROOT / "gin/runs").glob("*.gin"):  # Commands read these, by these names.
            (tmp_path / kind / "gin/runs" / file.name).write_text("import evil\n")
    return tmp_path, ran


def test_the_working_directory_runs_no_code(downloaded, forks):
    root, ran = downloaded
    for name, (kind, words) in CWD_COMMANDS.items():
        done = forks.run(["limba", *words.split()], line.environment(root), root / kind)
        said = done.stdout + done.stderr
        assert not ran.exists(), (name, ran.read_text(), said[-2000:])
        assert "Traceback" not in said, (name, said[-2000:])


# As people start them; what Python itself imports before Limba is of Python's start, so `-m` has fewer.
@pytest.mark.parametrize("command", ["convert from-hf . ../new --no-check", "infer . --input text", "env"])
def test_a_process_of_its_own(downloaded, command):
    root, ran = downloaded
    kind = "run" if command.startswith("infer") else "hf"
    environment = {name: value for name, value in line.environment(root).items() if name != "PYTHONPATH"}
    program = root / kind / ".venv/bin/limba"  # Many have their environment in the folder where they work.
    program.parent.mkdir(parents=True)
    program.write_text((Path(sys.executable).parent / "limba").read_text())
    done = subprocess.run(
        [sys.executable, str(program), *command.split()],
        cwd=root / kind,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert not ran.exists(), (ran.read_text(), done.stderr[-2000:])
    assert done.returncode == 0, done.stderr[-2000:]


def test_programs_beside_limba_are_no_modules(tmp_path):
    """Python puts the folder of a script first on its path."""
    program = tmp_path / "bin/limba"
    program.parent.mkdir()
    program.write_text((Path(sys.executable).parent / "limba").read_text())
    (program.parent / "cleanup.py").write_text(MODULE.format(str(tmp_path / "ran")))
    (tmp_path / "a.gin").write_text("import cleanup\n")
    environment = {name: value for name, value in line.environment(tmp_path).items() if name != "PYTHONPATH"}
    command = [sys.executable, str(program), "gin-check", "a.gin"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "No module named 'cleanup'" in done.stdout and not (tmp_path / "ran").exists(), done


def test_python_m(downloaded):
    """Python puts the folder first itself, and looks there for `limba` alone before Limba takes it out."""
    root, ran = downloaded
    for name in ("limba", "tasks", "convert"):
        (root / "hf" / f"{name}.py").unlink()
    environment = {name: value for name, value in line.environment(root).items() if name != "PYTHONPATH"}
    for module in ("limba --version", "limba.infer --help", "convert --help", "limba.addons.examples.moods --help"):
        command = [sys.executable, "-m", *module.split()]
        done = subprocess.run(command, cwd=root / "hf", env=environment, capture_output=True, text=True)
        assert not ran.exists(), (module, ran.read_text())
        assert done.returncode == 0, (module, done.stderr[-2000:])


HELPERS = {
    "my_tasks.py": "import my_helper\nfrom tasks import pretraining\nimport evaluate_it\n",
    "my_helper.py": "def later():\n    import my_later\n    return my_later.X\n",
    "my_later.py": "X = 3\n",
    "evaluate_it/__init__.py": "import my_helper\nassert my_helper.later() == 3\n",
}


def test_the_user_s_own_modules_are_found(tmp_path, forks):
    """By their names, and by each other, also inside of functions; those that installed ones hide are named."""
    for name, text in HELPERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tokenizers.py").write_text("raise AssertionError('never imported')\n")
    (tmp_path / "a.gin").write_text("import my_tasks\n")
    done = forks.run(["limba", "gin-check", "a.gin"], line.environment(tmp_path), tmp_path)
    assert done.stdout.startswith("ok a.gin"), done
    for words in (("preview", "x", "--module", "tokenizers"), ("gin-check", "b.gin"), ("gin-check", "c.gin")):
        (tmp_path / "b.gin").write_text("import tokenizers\n")
        (tmp_path / "c.gin").write_text("import my_other\n")
        (tmp_path / "my_other.py").write_text("from tokenizers import mine\n")
        done = forks.run(["limba", *words], line.environment(tmp_path), tmp_path)
        said = f"{tmp_path}/tokenizers.py is hidden by the installed module 'tokenizers' ("
        assert done.returncode == 1 and said in done.stdout + done.stderr, done


def test_a_command_of_the_user_s_own_finds_its_modules(tmp_path, monkeypatch):
    """A sweep's program is the user's: Python puts its folder first, as ever."""
    from limba.files import python_path

    monkeypatch.setattr(python_path, "_set_safe_path", False)
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # as if there were none, to Python
    python_path.install()
    assert "PYTHONSAFEPATH" not in python_path.environment_of_users()
    assert os.environ["PYTHONSAFEPATH"] == "1"
