"""JAX's persistent compilation cache: what one process has compiled, later processes read from files.

Every command uses it. `LIMBA_COMPILATION_CACHE` names the folder, or is "off". Without it `JAX_COMPILATION_CACHE_DIR`
and JAX's other settings count as they are. Without either the folder is `$XDG_CACHE_HOME/limba/compiled`, by default
`~/.cache/limba/compiled`. In it each kind of CPU has a folder of its own, because homes are shared: a program that was
compiled for another CPU may use instructions that this one lacks.

Several processes can use a folder at the same time. A process that has added programs removes, at its end, those that
were not used for longest until `MAX_BYTES` are left. JAX has a limit of its own; it takes a lock for each program, and
after a process was killed while it wrote, no program is kept any more.
"""

import atexit
import contextlib
import functools
import hashlib
import itertools
import logging
import os
import platform
import re
import time
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.files import local_paths

logger = logging.getLogger(__name__)

VARIABLE = "LIMBA_COMPILATION_CACHE"
MAX_BYTES = 4 << 30
# Programs that compile faster are not kept: reading them takes about as long, and there are hundreds of them.
MIN_COMPILE_SECONDS = 0.1

# What /proc/cpuinfo says of a kind of CPU, on x86 and on Arm; the other lines are of this CPU now, such as its clock.
_OF_THE_KIND = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features")
_JAX_WARNING = re.compile(r"Error (reading|writing) persistent compilation cache entry for '([^']*)': (.*)", re.DOTALL)
_DAMAGED = "A compiled program in %s is damaged (%s): it is removed, and compiled now."
_NOT_KEPT = (
    f"Compiled programs cannot be kept in %s (%s): each start compiles them. {VARIABLE}=DIR names another folder, "
    '"off" keeps none.'
)


def use(jax: types.ModuleType) -> None:
    """Sets the cache of a JAX that was just imported, as this process's environment says."""
    named = os.environ.get(VARIABLE)
    if named == "off":
        jax.config.update("jax_enable_compilation_cache", False)
        return
    if not named and ("JAX_COMPILATION_CACHE_DIR" in os.environ or jax.config.jax_compilation_cache_dir is not None):
        return
    folder = _folder(named, os.environ)
    if folder is None:
        return
    jax.config.update("jax_compilation_cache_dir", folder)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    if "://" not in folder:
        _translate_warnings(Path(folder))
        if "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ:
            atexit.register(_trim_if_changed, Path(folder), time.time())


def _folder(named: str | None, environ: Mapping[str, str]) -> str | None:
    """The folder for programs of this machine, not made yet; None if there is none to trust."""
    if not named:
        usual = local_paths.cache_folder("compiled", environ)
        if usual is None:
            return None
        named = str(usual)
    if "://" not in named:
        named = str(local_paths.local_path(named))
    return f"{named}/{kind_of_cpu()}"


@functools.cache
def kind_of_cpu() -> str:
    """Architecture and a checksum of model and features of the CPU, such as `x86_64-3f9a01c2`."""
    described = platform.processor()
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        # The first CPU, up to an empty line. All others are of the same kind, and there may be hundreds.
        first = itertools.takewhile(str.strip, file)
        described = "".join(line for line in first if line.startswith(_OF_THE_KIND)) or described
    return f"{platform.machine()}-{hashlib.sha256(described.encode()).hexdigest()[:8]}"


def _translate_warnings(folder: Path) -> None:
    """Replaces JAX's warnings of each program that it cannot read or write by one of Limba's for all.

    JAX never replaces a damaged file, so it is removed here.
    """
    show, said = warnings.showwarning, set()

    @functools.wraps(show)
    def showwarning(message: Any, *args: Any, **kwargs: Any) -> None:
        found = _JAX_WARNING.match(str(message))
        if found is None:
            show(message, *args, **kwargs)
            return
        what, program, reason = found.groups()
        # JAX also reads in vain where it cannot make the folder.
        text = _DAMAGED if what == "reading" and _remove(folder, program) else _NOT_KEPT
        if text not in said:
            said.add(text)
            logger.warning(text, folder, reason.strip())

    warnings.showwarning = showwarning


def _remove(folder: Path, program: str) -> bool:
    """Removes the files of a program, of all its versions; whether there were any."""
    files = list(folder.glob(f"{program}-*-cache"))
    try:
        for file in files:
            file.unlink()
    except OSError:
        return False
    return bool(files)


def _trim_if_changed(folder: Path, began: float) -> None:
    with contextlib.suppress(OSError):  # Nothing was compiled, or it could not be kept.
        if folder.stat().st_mtime >= began:
            trim(folder)


def trim(folder: Path, max_bytes: int = MAX_BYTES, ending: str = "-cache") -> None:
    """Removes the files of this ending that were not used for longest, until at most `max_bytes` are left."""
    files = []
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):  # Another process may remove it now.
            if entry.name.endswith(ending) and entry.is_file():
                found = entry.stat()
                # Many systems write the time of reading once a day, some never.
                files.append((max(found.st_atime, found.st_mtime), found.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= max_bytes:
            return
        with contextlib.suppress(OSError):
            Path(path).unlink()
        total -= size
