"""Settings that must be in place before JAX, TensorFlow or transformers are imported: offline, CPU, eight devices."""

import atexit
import collections
import ctypes
import gc
import logging
import os
import pathlib
import shutil
import sys
import tempfile
import types
from typing import Any

import pytest

from tests import compilation

os.environ["JAX_PLATFORMS"] = "cpu"
_FLAGS = f"--xla_force_host_platform_device_count=8 {compilation.FAST}"
os.environ["XLA_FLAGS"] = f"{_FLAGS} {os.environ.get('XLA_FLAGS', '')}"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["LIMBA_COUNTS_CACHE"] = "off"  # what a test of before has counted would hide what this one counts
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["USE_TF"] = "0"  # transformers must not import TensorFlow
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

# Many tests, and the commands that they start, compile the same small networks: each is compiled once in a session, of
# which pytest-xdist's workers are parts. LIMBA_TESTS_COMPILED is a folder for several sessions.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _compiled = os.environ.get("LIMBA_TESTS_COMPILED")
    if not _compiled:
        _compiled = tempfile.mkdtemp(prefix="limba-compiled-")
        atexit.register(shutil.rmtree, _compiled, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"

# Processes that share the tests share the cores too: with a thread for each core in each of them, JAX (NPROC) and torch
# wait for one another. Tests that train gain up to a tenth. A run without pytest-xdist keeps all threads.
if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
    os.environ.setdefault("NPROC", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# As `limba` sets it (limba/cli.py), and what the imports have made is never searched again: a tenth of the time of
# tests that trace networks.
gc.set_threshold(100_000, 20, 20)


def pytest_collection_finish():
    if "jax" in sys.modules:
        compilation.share_contexts()
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="every place and 200 schedules, where the suite takes samples of them: hours (docs/reliability.md)",
    )


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--exhaustive"):
        left_out = {item for item in items if item.get_closest_marker("exhaustive")} | _beyond_samples(items)
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # Files of whole runs and other slow ones take longest, and go to one process each: begun first, they do not keep
    # one busy at the end.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.parent != pathlib.Path(__file__).parent, item.path not in slow))


def _beyond_samples(items):
    """The tests that `sample(n)` leaves out: all but n of one function's, evenly from the first to the last."""
    of_function = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample"):
            of_function[item.path, item.originalname].append(item)
    left_out = set()
    for found in of_function.values():
        (count,) = found[0].get_closest_marker("sample").args
        kept = {round(i * (len(found) - 1) / max(count - 1, 1)) for i in range(count)}
        left_out.update(item for number, item in enumerate(found) if number not in kept)
    return left_out


@pytest.fixture(scope="module", autouse=True)
def gin_without_names_of_libraries():
    """Gin keeps every name as long as the process lives. After a file of T5X `network.T5Config` would be two, and after
    one that imports optax, files that do not import it have its names, too."""
    yield
    if gin := sys.modules.get("gin.config"):
        for name in [name for name, _ in gin._REGISTRY.items() if name.startswith(("t5x.", "optax."))]:
            gin._INVERSE_REGISTRY.pop(gin._REGISTRY.pop(name).wrapped, None)


@pytest.fixture(autouse=True)
def no_safe_path():
    """A command that a test or a fixture calls sets a variable for the processes that it starts, not for a test's."""
    _unset_safe_path()
    yield
    _unset_safe_path()


def _unset_safe_path() -> None:
    python_path = sys.modules.get("limba.files.python_path")
    if python_path and python_path._set_safe_path:
        os.environ.pop("PYTHONSAFEPATH", None)
        python_path._set_safe_path = False


@pytest.fixture(scope="module", autouse=True)
def closed_readers():
    """What tests leave open reads ahead, and its thread and its batches stay as long as the process."""
    yield
    if open_iterators := sys.modules.get("limba.tasks.pipeline.open_iterators"):
        open_iterators.close_all()


# A compiled program has 1.5 MB and eight mappings of memory, and lives until the process ends. Beside a thousand of
# them compiling the next one takes twice as long, beside two thousand four times.
_MOST_PROGRAMS = 400
_programs: list[str] | None = None  # compiled since they were cleared; None until JAX is imported


def _count_program(event: str, seconds: float, **unused: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration" and _programs is not None:
        _programs.append(event)


@pytest.fixture(autouse=True)
def few_programs():
    global _programs
    jax = sys.modules.get("jax")
    if jax and _programs is None:
        _programs = []
        jax.monitoring.register_event_duration_secs_listener(_count_program)
    yield
    if _programs and len(_programs) > _MOST_PROGRAMS:
        sys.modules["jax"].clear_caches()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # gives the memory back
        _programs.clear()


@pytest.fixture
def as_users():
    """Numbers can depend on what XLA optimizes: programs of this test are compiled as users' are."""
    with compilation.as_users():
        yield


@pytest.fixture(scope="module")
def one_device():
    """`PjitPartitioner` takes one: eight compile and compute more, for trainings that ask nothing of them."""
    import jax

    devices = jax.devices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda backend=None: devices(backend)[:1])
        yield


@pytest.fixture(autouse=True)
def no_handler_of_a_command():
    """A command sends messages to the standard error that it finds, here a file that is closed after the test."""
    yield
    for handler in [handler for handler in logging.root.handlers if type(handler) is logging.StreamHandler]:
        logging.root.removeHandler(handler)


@pytest.fixture(scope="session")
def forks(request, tmp_path_factory):
    """Runs commands in forks of one process: `tests/forked.py`."""
    from tests import forked

    server = forked.Server(forked.session_folder(request, tmp_path_factory, "forks"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def checks_in_forks(request, tmp_path_factory):
    """Checks in transformers run in forks of a process that has imported it, which is most of what a check costs.

    Only those of this process: commands that tests start have a new process for each, as a user's. The value is what
    runs such a process: `[python, "-m", module, *arguments]`, or `[python, "-c", code, *arguments]`.
    """
    from convert.compare import auto_tokenizer
    from limba.addons.transformers_check import transformers_process
    from tests import forked

    families = ("t5", "umt5", "modernbert")  # which import what the others do
    warm = [f"transformers.models.{name}.modeling_{name}" for name in families]
    warm += ["tests.convert.transformers_fork", "limba.addons.transformers_check.transformers_process"]
    servers = []

    def run(command, *, env, **_):
        if not servers:
            servers.append(forked.Server(forked.session_folder(request, tmp_path_factory, "checks"), warm))
        if command[1] == "-c":
            return servers[0].run(command[1:], env)
        assert command[1] == "-m"
        return servers[0].run(["tests.convert.transformers_fork", *command[2:]], env)

    with pytest.MonkeyPatch.context() as patch:
        for module in (transformers_process, auto_tokenizer):
            patch.setattr(module, "subprocess", types.SimpleNamespace(run=run))
        yield run
    for server in servers:
        server.close()
