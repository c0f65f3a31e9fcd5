"""A gin text names what is on the list; all else is refused, with its place, before it is imported or called."""

import pickle
import sys

import gin
import pytest

from limba.gin_config import closed_list, gin_files, importing, run_folders
from tests import line

HEAD = "from __gin__ import dynamic_registration\nfrom limba import models\n"
TARGET = "models.EncoderDecoderModel.label_smoothing"
# Lines after HEAD, and a part of what is said. The last line is the one that is refused.
ATTACKS = {
    "import": ("import subprocess", "the module subprocess is not imported: it is of Python's own library"),
    "import of a part": ("from os import path", "the module os.path is not imported"),
    "import as": ("import shutil as models2", "the module shutil is not imported"),
    "built in": ("import builtins", "the module builtins is not imported: it is of Python's own library"),
    "with an effect": ("import antigravity", "the module antigravity is not imported"),
    "an installed package": ("import torch.utils.cpp_extension", "the module torch.utils.cpp_extension"),
    "a program": ("import limba.__main__", "the module limba.__main__ is not imported: it is a program"),
    "another of our packages": ("import convert.to_hf", "of convert it is no part that gin files use"),
    "a module of a module": (
        f"import jax\n{TARGET} = @jax.profiler.start_server()",
        "profiler is a module that gin files do",
    ),
    "a module in ours": (f"from limba import train\n{TARGET} = @train.os.getcwd()", "os is a module"),
    "through our package": (f"import limba.infer\n{TARGET} = @limba.infer.zlib.crc32", "zlib is a module"),
    "through SeqIO's": (f"import seqio\n{TARGET} = @seqio.utils.os.getcwd", "os is a module"),
    "through the tasks": (
        f"from tasks.registry import providers\n{TARGET} = @providers.importing.load()",
        "limba.gin_config.importing.load",
    ),
    "through optax": (f"import optax\n{TARGET} = @optax._src.base.functools", "_src is no public name"),
    "a file of NumPy's": (f"import numpy\n{TARGET} = @numpy.fromfile()", "it is numpy.fromfile"),
    "a pickle of NumPy's": (f"import numpy as np\n{TARGET} = @np.load()", "it is numpy.load"),
    "of a type": (f"import numpy as np\n{TARGET} = @np.float32.tofile", "of float32 only the type itself may be named"),
    "a file of JAX's": (f"import jax\n{TARGET} = @jax.numpy.load()", "it is jax.numpy.load"),
    "a callback": (f"import jax\n{TARGET} = @jax.pure_callback()", "it is jax._src.callback.pure_callback"),
    "a value": (f"from limba import train\n{TARGET} = @train.os.kill", "os is a module"),
    "in a scope": (f"from limba import train\n{TARGET} = @a/b/train.os.getcwd()", "os is a module"),
    "in a list": (f"from limba import train\n{TARGET} = [1, {{'a': @train.os.getcwd}}]", "os is a module"),
    "in a macro": ("from limba import train\nX = @train.os.getcwd()", "os is a module"),
    "bound": ("from limba import train\ntrain.os.system.command = 'true'", "os is a module"),
    "in a block": ("from limba import train\ntrain.os.system:\n  command = 'true'", "os is a module"),
    "hidden attributes": (f"{TARGET} = @models.EncoderDecoderModel.__init__.__globals__", "__init__ is no public name"),
    "a private name": (f"from limba import train\n{TARGET} = @train._keep_seeds", "_keep_seeds is no public name"),
    "a command": (f"from limba import train\n{TARGET} = @train.main()", "it is limba.train.main"),
    "files of ours": (f"from limba.files import storage\n{TARGET} = @storage.replace_text()", "storage.replace_text"),
    "T5X's names": (f"from t5x import gin_utils\n{TARGET} = @gin_utils.os.getcwd", "gin_utils.os"),
    "the main module": (f"import __main__ as m\n{TARGET} = @m.sys.exit()", "sys is a module"),
    "of a class": (f"import my_own\n{TARGET} = @my_own.Holder.run", "it is subprocess.getoutput"),
    "of a user's module": (f"import my_own\n{TARGET} = @my_own.Path", "it is pathlib.Path"),
    "partly applied": (f"import my_own\n{TARGET} = @my_own.applied", "it is subprocess.getoutput"),
    "a program called": (
        f"from limba import train\n{TARGET} = @train.train()",
        "@train.train(): it acts, and is no value",
    ),
    "a program passed on": (f"from limba import train\n{TARGET} = [@train.train]", "it acts, and is no value"),
    "a program in a key": (
        f"from limba import train\n{TARGET} = {{(@train.train(), 1): 1}}",
        "it acts, and is no value",
    ),
    "a writer called": (
        f"import __main__ as m\n{TARGET} = @m.merge_chunks_to_file()",
        "@m.merge_chunks_to_file(): it acts",
    ),
    "a writer passed on": (
        f"from tasks.pipeline import predictions\n{TARGET} = @predictions.write_inferences_to_file",
        "it acts, and is no value",
    ),
    "a configuration written": (
        f"from t5x import gin_utils\n{TARGET} = @gin_utils.summarize_gin_config()",
        "it acts, and is no value",
    ),
    "what a text has": (
        f"from tasks.vocabularies import known_text\n{TARGET} = @known_text.measure()",
        "it is limba.tasks.vocabularies.known_text.measure",
    ),
    "a log": (f"from limba.reports import writers\n{TARGET} = @writers.JsonLinesWriter()", "it writes files"),
    "a log that another function makes": (
        "from limba.reports import writers\na/gin.singleton.constructor = @writers.TensorBoardWriter",
        "it writes files",
    ),
    "a method": (
        "from limba.training import actions\nX = [{1: @a/actions.StopOnPlateauAction.run()}]",
        "it is a method",
    ),
    "a benchmark of ours": ("from benchmarks import conversion", "the module benchmarks.conversion is not imported"),
    "a test of ours": ("import tests.forked", "of Limba's own programs"),
    "a file that is no gin": ("include '/etc/hostname'", "ends with .gin"),
}
OWN = """
import functools, subprocess
from pathlib import Path

class Holder:
    run = staticmethod(subprocess.getoutput)

applied = functools.partial(subprocess.getoutput, "true")

def rate(value=1):
    return value
"""


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    """The user's folder, and a command line that says nothing."""
    monkeypatch.setattr(closed_list, "_given", closed_list._Given())
    monkeypatch.setattr(run_folders, "_read", set())
    monkeypatch.setattr(run_folders, "_reads_a_run", False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own.py").write_text(OWN)
    yield tmp_path
    gin.clear_config()
    for name in ("my_own", "their_own"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_name_that_is_not_on_the_list(project, name, monkeypatch):
    lines, said = ATTACKS[name]
    monkeypatch.setattr(sys.modules["__main__"], "sys", sys, raising=False)  # As programs have it.
    (project / "a.gin").write_text(f"{HEAD}{lines}\n")
    imported = set(sys.modules)
    with pytest.raises(gin_files.GinError) as raised:
        gin_files.parse_files(["a.gin"])
    assert said in raised.value.what, raised.value.what
    first_of_block = 1 if name == "in a block" else 0
    expected = 2 + len(lines.splitlines()) - first_of_block
    assert raised.value.places[0] == ("a.gin", expected)
    assert not {"antigravity", "torch.utils.cpp_extension"} & (set(sys.modules) - imported)


def test_the_content_of_another_file_is_not_shown(project):
    (project / "secret.txt").write_text("hunter2 is the password\n")
    (project / "a.gin").write_text("include 'secret.txt'\n")
    with pytest.raises(gin_files.GinError) as raised:
        gin_files.parse_files(["a.gin"])
    assert "hunter2" not in str(raised.value)


def test_without_registration(project):
    """Names of gin's registry count by their definition, too."""
    gin.external_configurable(pickle.loads, name="loads", module="their")
    (project / "a.gin").write_text("their.loads.encoding = 'x'\n")
    with pytest.raises(gin_files.GinError, match=r"may not name their.loads: it is _pickle.loads"):
        gin_files.parse_files(["a.gin"])


def test_the_command_line(project):
    (project / "a.gin").write_text(HEAD)
    gin_files.parse_files(["a.gin"])
    with pytest.raises(gin_files.GinError, match="the module subprocess is not imported"):
        gin_files.parse_bindings([f"{TARGET} = @subprocess.getoutput()"])


def test_a_value_of_more_parts_than_lines(project):
    """Each of thirty macros is a list of two of the next, so the first has a billion parts."""
    macros = [f"A{number} = [%A{number + 1}, %A{number + 1}]" for number in range(30)]
    (project / "a.gin").write_text("\n".join([*macros, "A30 = 1"]))
    gin_files.parse_files(["a.gin"])
    with pytest.raises(gin_files.GinError, match="a value stands for more than 50,000 others"):
        gin_files.value_of("%A0")


LISTED = [
    "import my_own\nX = @my_own.rate()",
    "import jax\nX = [@jax.numpy.bfloat16, @jax.nn.gelu, @jax.numpy.sqrt]",
    "import numpy as np\nX = @np.float32",
    "import optax\nX = [@optax.adamw, @optax.contrib.muon, @optax.exponential_decay()]",
    "from flax import linen as nn\nX = [@nn.gelu, @nn.LayerNorm, @nn.initializers.normal()]",
    "from flax import traverse_util\nX = @traverse_util.ModelParamTraversal()",
    "from t5x import losses\nX = @losses.cross_entropy_with_logits",
    "from tasks.sources import corpora\nX = @corpora.HubSource",
    "import __main__ as train_script\ntrain_script.train.model_dir = 'runs/a'",
    "A/models.EncoderDecoderModel.label_smoothing = 0.1",
    "import __main__ as m\nfrom limba import infer\ninfer.infer.merge_fn = @m.merge_chunks_to_file",
    "from t5x import gin_utils\nfrom limba import train\n"
    "train.train.summarize_config_fn = @gin_utils.summarize_gin_config",
    "from limba import train\nfrom limba.reports import writers\ntrain.train.metric_writers = [@writers.SummaryWriter]",
]


@pytest.mark.parametrize("lines", LISTED)
def test_what_is_on_the_list(project, lines):
    (project / "a.gin").write_text(f"{HEAD}{lines}\n")
    gin_files.parse_files(["a.gin"])


def test_a_recipe_that_is_trusted(project):
    """It, and no other file."""
    (project / "a.gin").write_text(f"{HEAD}import shlex\nX = @shlex.split\n")
    (project / "b.gin").write_text(f"{HEAD}import shlex\ninclude 'a.gin'\n")
    closed_list.trust(["a.gin"])
    gin_files.parse_files(["a.gin"])
    with pytest.raises(gin_files.GinError, match=r"b.gin:3: the module shlex .*--trust b.gin"):
        gin_files.parse_files(["b.gin"])


def test_files_of_limba_s_names(project, run, caplog):
    """Limba's own come before those of the folder; a run's configuration includes no others."""
    for name in ("runs/infer_text.gin", "own.gin"):
        (project / "gin" / name).parent.mkdir(parents=True, exist_ok=True)
        (project / "gin" / name).write_text("import their_own\n")
    gin_files.parse_files(["gin/runs/infer_text.gin"])
    assert "write ./gin/runs/infer_text.gin" in caplog.text
    for text in ("include 'gin/own.gin'", "include './gin/runs/infer_text.gin'"):
        (project / "a.gin").write_text(text)
        with pytest.raises(gin_files.GinError, match="No module named 'their_own'"):
            gin_files.parse_files(["a.gin"])
        # The run's file is a link to a folder that is none.
        (project / "elsewhere").mkdir(exist_ok=True)
        (project / "elsewhere/b.gin").write_text(text)
        (run / "config.gin").unlink(missing_ok=True)
        (run / "config.gin").symlink_to(project / "elsewhere/b.gin")
        with pytest.raises(gin_files.GinError, match="includes Limba's own files only"):
            gin_files.parse_files([str(run / "config.gin")])


def test_modules_in_folders_without_init(project, run, monkeypatch):
    """Python finds `outer.inner` once `outer` is imported, and the list is asked before."""
    for folder in (project / "outer/inner", run / "theirs/inner"):
        folder.mkdir(parents=True)
        (folder / "mine.py").touch()
    for name in ("outer.inner", "outer.inner.mine", "outer.inner.nowhere"):
        closed_list.check_module(name)
    (run / "config.gin").write_text(f"{HEAD}import theirs.inner.mine\n")
    monkeypatch.syspath_prepend(str(run))
    with pytest.raises(gin_files.GinError, match="it lies in the folder of the run"):
        gin_files.parse_files([str(run / "config.gin")])


def test_a_module_of_the_command_line(project):
    (project / "a.gin").write_text(f"{HEAD}import colorsys\n")
    with pytest.raises(gin_files.GinError, match="colorsys"):
        gin_files.parse_files(["a.gin"])
    closed_list.give_modules(["colorsys"])
    gin_files.parse_files(["a.gin"])


def test_the_module_of_the_flag_registers_the_task_unless_the_recipe_names_another(project, monkeypatch):
    monkeypatch.setattr(closed_list, "_given", closed_list._Given())
    (project / "a.gin").write_text("MIXTURE_OR_TASK_MODULE = None\n")
    (project / "b.gin").write_text("MIXTURE_OR_TASK_MODULE = 'theirs'\n")
    closed_list.give_flags(["my_network", "my_tasks"])
    for file, module in (("a.gin", "my_tasks"), ("b.gin", "theirs")):
        gin_files.parse_gin_flags([file], [])
        assert gin_files.value_of("%MIXTURE_OR_TASK_MODULE") == module


@pytest.fixture
def run(project):
    """A run that somebody else made, with a module in it."""
    folder = project / "theirs"
    (folder / "checkpoint_1" / "state").mkdir(parents=True)
    (folder / "checkpoint_1" / "run").mkdir()
    for name in ("their_own.py", "t5x/models.py", "t5x/contrib/theirs/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise AssertionError('code of the run ran')")
    (project / "theirs_too.py").write_text("raise AssertionError('code of the run ran')")
    (folder / "their_link.py").symlink_to(project / "theirs_too.py")
    return folder


@pytest.mark.parametrize("place", ["config.gin", "model.gin", "branch.gin", "checkpoint_1/run/config.gin"])
def test_a_run_s_configuration(project, run, monkeypatch, place):
    """Modules of the project, not of the run's folder; Limba's files; no trust."""
    file = run / place
    file.write_text(f"{HEAD}import my_own\ninclude 'gin/models/t5_1_1/tiny.gin'\n")
    gin_files.parse_files([str(file)])
    (project / "mine.gin").write_text("X = 1\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "t5x"]:
        monkeypatch.delitem(sys.modules, name)
    for lines, said in (
        ("import their_own", "it lies in the folder of the run"),
        ("import their_link", "it lies in the folder of the run"),
        (
            "import t5x\nX = @t5x.models.EncoderDecoderModel",
            "t5x.models is not imported: it lies in the folder of the run",
        ),
        ("import t5x.contrib.theirs.network", "t5x.contrib.theirs is not imported: it lies in the folder of the run"),
        (f"include '{project}/mine.gin'", "includes Limba's own files only"),
        ("include '/etc/passwd'", "includes Limba's own files only"),
        ("import tokenizers", "--module tokenizers"),
    ):
        file.write_text(f"{HEAD}{lines}\n")
        monkeypatch.chdir(run)
        monkeypatch.syspath_prepend(str(run))
        with pytest.raises(gin_files.GinError) as raised:
            gin_files.parse_files([str(file)])
        assert said in raised.value.what and "--trust" not in raised.value.what
    # Gin has read the file; a task's module, for example, is imported later.
    with pytest.raises(closed_list.RefusedNameError, match="it lies in the folder of the run"):
        importing.load("their_own")
    with pytest.raises(ValueError, match="a run's configuration is not trusted"):
        closed_list.trust([str(file)])


def test_a_field_that_networks_had_for_a_while_is_read_at_its_value_without_effect(run):
    """A run records all fields. A recipe is not asked: whoever binds a field there means it."""
    text = f"{HEAD}from limba.network import t5\nt5.T5Config.encoder_attention_type = 'full'\nt5.T5Config.emb_dim = 7\n"
    (run / "config.gin").write_text(text)
    gin_files.parse_files([str(run / "config.gin")])
    assert "t5.T5Config.emb_dim = 7" in gin.config_str()
    (run / "recipe.gin").write_text(text)
    (run / "config.gin").write_text(text.replace("full", "local"))
    for name in ("recipe.gin", "config.gin"):
        with pytest.raises(gin_files.GinError, match="have a parameter named 'encoder_attention_type'"):
            gin_files.parse_files([str(run / name)])


@pytest.mark.parametrize("place", ["", "run"])
def test_what_a_command_makes_of_a_run(project, run, monkeypatch, place):
    """An average, for example, has the names of its run: none is found in a folder of a run, where somebody works."""
    made = project / "made"
    for folder in (made / "checkpoint_1/state", run / place / "checkpoint_1/state"):
        folder.mkdir(parents=True, exist_ok=True)
    if place == "run":  # an output folder of `limba run`
        (run / "checkpoint_1").rename(project / "elsewhere")
        (run / "config.json").write_text("{}")
    (made / "config.gin").write_text(f"{HEAD}import my_own\nimport their_own\n")
    monkeypatch.chdir(run)
    monkeypatch.syspath_prepend(str(run))
    with pytest.raises(gin_files.GinError, match="module their_own is not imported: it lies in the folder of the run"):
        gin_files.parse_files([str(made / "config.gin")])
    run_folders.read_run(made)
    with pytest.raises(closed_list.RefusedNameError, match="it lies in the folder of the run"):
        importing.load("their_own")


def test_other_files_that_name_modules(project, run, monkeypatch):
    """A task's module, an attention layer, an objective of a cache: all go through `importing.load`."""
    assert importing.load("my_own").rate() == 1
    monkeypatch.syspath_prepend(str(run))
    run_folders.read_run(run)
    for name in ("their_own", "antigravity", "xmlrpc.server"):
        with pytest.raises(closed_list.RefusedNameError):
            importing.load(name)
    assert importing.load("json").dumps(1) == "1"  # It is imported already, so importing it runs nothing.


# --------------------------------------------------- the commands ---------------------------------------------------

STRANGER = """from __gin__ import dynamic_registration
import subprocess
from limba import models
include 'gin/recipes/quickstart.gin'
models.EncoderDecoderModel.label_smoothing = @subprocess.getoutput()
subprocess.getoutput.cmd = 'touch {}'
"""
FILE_COMMANDS = (
    *("lint a.gin", "gin-check a.gin", "train a.gin", "train a.gin --dry_run", "preview a.gin", "precompile a.gin"),
    *("plan --topology v4-8 a.gin", "eval a.gin", "infer a.gin", "profile a.gin"),
)


@pytest.mark.parametrize("words", FILE_COMMANDS)
def test_no_command_calls_what_a_recipe_names(project, forks, words):
    (project / "a.gin").write_text(STRANGER.format(project / "ran"))
    done = forks.run(["limba", *words.split()], line.environment(project), project)
    assert done.returncode == 1 and "the module subprocess is not imported" in done.stdout + done.stderr, done
    assert not (project / "ran").exists()
