"""What glibc is told before a training on a CPU, and what it does then."""

import resource
import subprocess
import sys
import types

import pytest

from limba.devices import accelerators, freed_memory

_CPU = {"JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize(
    ("environ", "devices", "library", "keeps"),
    [
        (_CPU, [], "glibc", True),
        ({}, [], "glibc", True),
        (_CPU, ["/dev/nvidiactl"], "glibc", True),
        ({}, ["/dev/nvidiactl"], "glibc", False),
        ({"TPU_WORKER_ID": "0"}, [], "glibc", False),
        (_CPU, [], "", False),
        (_CPU | {"MALLOC_ARENA_MAX": "2"}, [], "glibc", False),
        (_CPU | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, [], "glibc", False),
        (_CPU | {"LD_PRELOAD": "libjemalloc.so"}, [], "glibc", False),
    ],
)
def test_glibc_is_told_to_keep_it_on_cpus_alone(environ, devices, library, keeps, monkeypatch):
    told = []
    c = types.SimpleNamespace(mallopt=lambda *given: told.append(given) or 1)
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: c)
    monkeypatch.setattr(freed_memory.platform, "libc_ver", lambda: (library, ""))
    monkeypatch.setattr(accelerators.glob, "glob", lambda pattern: [x for x in devices if x == pattern])
    assert freed_memory.keep(environ) is keeps
    assert told == ([(-8, 1), (-4, 0), (-1, -1)] if keeps else [])


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_the_kernel_gives_each_page_once():
    """Ten blocks of 40 MB one after the other, in a thread: 100,000 pages, or those of one block."""
    program = (
        "import resource, threading; from limba.devices import freed_memory;"
        "kept = freed_memory.keep({'JAX_PLATFORMS': 'cpu'});"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt;"
        "work = lambda: [len(b'x' * 40_000_000) for _ in range(10)];"
        "thread = threading.Thread(target=work); thread.start(); thread.join();"
        "print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kept, pages = map(int, done.stdout.split())
    of_a_block = 40_000_000 // resource.getpagesize()
    assert pages < 2 * of_a_block if kept else pages > 5 * of_a_block
