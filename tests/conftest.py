"""Settings that must be in place before JAX, TensorFlow or transformers are imported: offline, CPU, eight devices."""

import atexit
import os
import pathlib
import shutil
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["USE_TF"] = "0"  # transformers must not import TensorFlow
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

# Many tests, and the commands that they start, compile the same small networks: each is compiled once in a session, of
# which pytest-xdist's workers are parts.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _compiled = tempfile.mkdtemp(prefix="limba-compiled-")
    atexit.register(shutil.rmtree, _compiled, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"


def pytest_collection_modifyitems(items):
    # Files of whole runs take longest and go to one process each: begun first, they do not keep one busy at the end.
    items.sort(key=lambda item: item.path.parent != pathlib.Path(__file__).parent)
