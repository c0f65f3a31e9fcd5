"""Nothing that the threads of a process share is changed while a second one lives; see `tests/global_state.py`."""

import importlib
import subprocess
import sys
import threading
from collections import Counter

from tests import global_state

_START = "as a program starts, before it has threads"
_IMPORT = "when the module is imported, for good"
_LIBRARY = "when the library is imported, for good"
_MAIN = "of the main thread, which alone may and which keeps what was there"
_END = "as the process ends"

# Place: why it may stay.
_REASONS: dict[tuple[str, str], str] = {
    ("convert/__main__.py", "os.environ"): _START,
    ("limba/addons/surgery/check.py", "os.environ"): _START,
    ("convert/compare/transformers_library.py", "os.environ"): _IMPORT,
    ("convert/model_files/hf/hub_models.py", "file_download._normalize_etag"): _LIBRARY,
    (
        "limba/addons/engines/onnx/onnx_graphs.py",
        "warnings.catch_warnings",
    ): "in a conversion, which has no thread of its own",
    (
        "limba/addons/engines/onnx/onnx_graphs.py",
        "warnings.simplefilter",
    ): "in a conversion, which has no thread of its own",
    (
        "limba/addons/pairs/scoreboard/board_rows.py",
        "contextlib.redirect_stdout",
    ): "around a conversion, which has no thread of its own",
    ("limba/addons/surgery/extend.py", "os.environ"): _START,
    ("limba/addons/surgery/replace.py", "os.environ"): _START,
    ("limba/addons/surgery/trim.py", "os.environ"): _START,
    ("limba/checkpoints/orbax_saving.py", "threading.excepthook"): "the same hook each time, for good",
    ("limba/cli.py", "gc.disable"): _START,
    ("limba/cli.py", "gc.enable"): _START,
    ("limba/cli.py", "gc.freeze"): _START,
    ("limba/cli.py", "gc.set_threshold"): _START,
    ("limba/cli.py", "signal.signal"): _START,
    ("limba/closed_pipes.py", "os.dup2"): _END,
    ("limba/command_line.py", "os.dup2"): _END,
    ("limba/command_line.py", "sys.excepthook"): _START,
    ("limba/addons/corpus/stage_runs.py", "os.dup2"): "in a command that starts no thread",
    ("limba/addons/corpus/stage_runs.py", "signal.signal"): "in a process of its own, as it starts",
    ("limba/addons/run/command.py", "contextlib.redirect_stdout"): "of a dry run, which starts no thread",
    ("limba/addons/run/command.py", "os.environ"): _START,
    ("limba/addons/plan/command.py", "os.environ"): _START,
    ("limba/addons/plan/gpu_targets.py", "os.environ"): _START,
    ("limba/addons/plan/lint/command.py", "jax.config.update"): _START,
    ("limba/addons/plan/lint/command.py", "os.environ"): _START,
    ("limba/addons/plan/lint/gin_check.py", "contextlib.redirect_stdout"): "in a process of its own",
    ("limba/addons/plan/lint/gin_check.py", "warnings.catch_warnings"): "around a fork of the main thread",
    ("limba/addons/plan/lint/gin_check.py", "warnings.simplefilter"): "around a fork of the main thread",
    ("limba/addons/sweep/command.py", "signal.signal"): _MAIN,
    ("limba/addons/sweep/trial_check.py", "contextlib.redirect_stdout"): "of a dry run, which starts no thread",
    ("limba/devices/compilation_cache.py", "jax.config.update"): _LIBRARY,
    ("limba/devices/compilation_cache.py", "warnings.showwarning"): _LIBRARY,
    ("limba/devices/library_patches.py", "sys.meta_path"): "one more finder, for good; it looks at the thread",
    ("limba/devices/library_patches.py", "warnings.simplefilter"): _LIBRARY,
    ("limba/devices/native_logs.py", "os.dup2"): _MAIN,
    ("limba/addons/peft/bounded_time.py", "signal.setitimer"): _MAIN,
    ("limba/addons/peft/bounded_time.py", "signal.signal"): _MAIN,
    ("limba/files/python_path.py", "os.environ"): _START,
    ("limba/files/repository.py", "sys.meta_path"): "one more finder, for good",
    ("limba/files/python_path.py", "sys.meta_path"): _START,
    ("limba/files/python_path.py", "sys.path"): _START,
    ("limba/files/redaction.py", "sys.stderr"): "around a whole program",
    ("limba/files/terminal.py", "sys.stderr"): "around a whole program",
    ("limba/files/terminal.py", "sys.stdout"): "around a whole program",
    ("limba/files/repository.py", "sys.modules"): _START,
    ("limba/gin_config/closed_list.py", "gin_config.ParseContext.get_configurable"): _IMPORT,
    ("limba/gin_config/closed_list.py", "gin_config.ParseContext.process_import"): _IMPORT,
    ("limba/gin_config/closed_list.py", "gin_config.bind_parameter"): _IMPORT,
    ("limba/gin_config/references.py", "gin_config.ConfigurableReference.__deepcopy__"): _IMPORT,
    ("limba/gin_config/gin_files.py", "os.environ"): _IMPORT,
    ("limba/gin_config/methods.py", "gin_config.ParseContext._register"): _IMPORT,
    ("limba/gin_config/methods.py", "gin_config._find_registered_methods"): _IMPORT,
    ("limba/gin_config/t5x_names.py", "sys.meta_path"): "one more finder, for good",
    ("limba/optimizers/optax_rates.py", "optax.scale_by_learning_rate"): _IMPORT,
    ("limba/optimizers/optax_rates.py", "optax_transform.scale_by_learning_rate"): _IMPORT,
    ("limba/reports/mlflow_writer.py", "os.environ"): _IMPORT,
    ("limba/reports/trackio_writer.py", "self._run.config.update"): "no module: the settings of a tracked run",
    ("limba/reports/wandb_writer.py", "self._run.config.update"): "no module: the settings of a tracked run",
    ("limba/training/loop.py", "gc.disable"): "garbage is collected at one step of all hosts; no thread asks for it",
    ("limba/training/loop.py", "gc.enable"): "garbage is collected at one step of all hosts; no thread asks for it",
    ("limba/addons/serve/try_model.py", "os.environ"): _START,
    ("limba/addons/serve/web_server.py", "signal.signal"): _MAIN,
    ("limba/workers/distributed.py", "jax.config.update"): _START,
    ("limba/workers/heartbeats.py", "signal.signal"): _MAIN,
    ("limba/workers/preemption.py", "signal.signal"): _MAIN,
    ("limba/addons/examples/python_docs.py", "warnings.catch_warnings"): "in a program without threads",
    ("limba/training/from_counts/fit_processes.py", "signal.signal"): "in a process of its own, as it starts",
    ("limba/addons/reader_processes/served_batches.py", "signal.signal"): "in a process of its own, as it starts",
    ("limba/addons/seqio/tf_iterators.py", "tf.data.Dataset.random"): _IMPORT,
    ("tasks/vocabularies/tokenizer_files.py", "os.environ"): _IMPORT,
}
# Some do it more than once.
_TWICE = {
    ("limba/addons/corpus/stage_runs.py", "os.dup2"),
    ("limba/cli.py", "signal.signal"),
    ("limba/addons/plan/gpu_targets.py", "os.environ"),
    ("limba/addons/sweep/command.py", "signal.signal"),
    ("limba/devices/native_logs.py", "os.dup2"),
    ("limba/addons/peft/bounded_time.py", "signal.setitimer"),
    ("limba/addons/peft/bounded_time.py", "signal.signal"),
    ("limba/files/python_path.py", "sys.meta_path"),
    ("limba/files/redaction.py", "sys.stderr"),
    ("limba/files/terminal.py", "sys.stderr"),
    ("limba/files/terminal.py", "sys.stdout"),
    ("limba/addons/serve/web_server.py", "signal.signal"),
    ("limba/workers/heartbeats.py", "signal.signal"),
}
_OFTEN = {
    ("limba/addons/plan/command.py", "os.environ"): 7,
    ("limba/devices/compilation_cache.py", "jax.config.update"): 3,
    ("limba/workers/preemption.py", "signal.signal"): 3,
}


def test_what_threads_share_is_changed_where_a_reason_is_given_and_nowhere_else():
    expected = Counter({place: _OFTEN.get(place, 1 + (place in _TWICE)) for place in _REASONS})
    assert global_state.found() == expected


def test_the_walk_sees_each_kind(tmp_path, monkeypatch):
    monkeypatch.setattr(global_state.house, "ROOT", tmp_path)
    (tmp_path / "limba").mkdir()
    (tmp_path / "limba" / "a.py").write_text(
        "import os, sys, warnings\nimport numpy as np\nfrom limba import b\nclass C: ...\n"
        "def f(self, c):\n"
        "    os.environ['A'] = sys.modules['torch'] = None\n    del sys.modules['torch']\n"
        "    os.environ.pop('A')\n    os.environ |= {}\n    os.chdir('/')\n    np.load = b.c.d = 1\n"
        "    self.x = c.y = 2\n"
        "    setattr(np, 'x', 1)\n    setattr(self, 'x', 1)\n    x = os.environ['A']\n"
        "    self.warnings.simplefilter()\n"
    )
    assert {what: n for (_, what), n in global_state.found().items()} == {
        "os.environ": 3, "sys.modules": 2, "os.chdir": 1, "np.load": 1, "b.c.d": 1, "setattr(np)": 1
    }  # fmt: skip


def test_while_a_thread_imports_without_pytorch_another_has_it(tmp_path):
    """As at the start of a training: the first metrics are written while a reader imports `datasets`."""
    (tmp_path / "slow_writer.py").write_text("try:\n    import torch\nexcept ImportError:\n    torch = None\n")
    code = f"""
import importlib, sys, threading
sys.path.insert(0, {str(tmp_path)!r})
from limba.devices import library_patches
inside, done = threading.Event(), threading.Event()
def write():
    with library_patches.without_torch():
        import slow_writer
        inside.set()
        done.wait(60)
        assert slow_writer.torch is None
thread = threading.Thread(target=write)
thread.start()
inside.wait(60)
import torch.utils
print("torch" in sys.modules, torch.__name__)
done.set()
thread.join()
"""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "utils.py").touch()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    # Once another thread has it, it is no longer to be spared.
    assert (ran.stdout, ran.stderr) == ("True torch\n", "")


def test_pipelines_of_seqio_are_built_by_one_thread_at_a_time():
    """SeqIO counts seeds of steps in a global variable: of two readers that began at once, one had other examples."""
    tf = importlib.import_module("tensorflow")
    tf_iterators = importlib.import_module("limba.addons.seqio.tf_iterators")
    plain, found = tf.data.Dataset.random(5).take(1).get_single_element().numpy(), []

    def build() -> None:
        found.append(tf_iterators.building.acquire(blocking=False))
        found.append(tf.data.Dataset.random(5).take(1).get_single_element().numpy())

    with tf_iterators.random_datasets_from(tf.constant(100, tf.int64)):
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
        found.append(tf.data.Dataset.random(5).take(1).get_single_element().numpy())
    assert found == [False, plain, tf.data.Dataset.random(105).take(1).get_single_element().numpy()]
    assert tf.data.Dataset.random(5).take(1).get_single_element().numpy() == plain
