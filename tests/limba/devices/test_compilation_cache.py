"""Programs are compiled once: by a second process's hits, and by its losses, bit for bit."""

import json
import os
import subprocess
import sys

import pytest

from limba.devices import compilation_cache
from tests import house

_COUNTED = """
import json, sys
from limba.devices import library_patches

library_patches.install()  # as commands do, before JAX is imported
import jax

counts = dict.fromkeys(("cache_hits", "cache_misses"), 0)


def count(event, **_):
    name = event.rpartition("/")[2]
    counts[name] = counts.get(name, 0) + 1


jax.monitoring.register_event_listener(count)
{program}
print(json.dumps([values, counts["cache_hits"], counts["cache_misses"]]))
"""
_SUM = "values = [float(jax.jit(lambda x: (x * 0.3).sum())(jax.numpy.arange(9.0))).hex()]"
_TRAINING = """
from tests.limba import small

trainer = small.make_trainer(small.model(dropout_rate=0.1, **small.TINY))
state, values = trainer.new_state(jax.random.key(3)), []
for step in range(3):
    state, metrics = trainer.train_step(state, trainer.partitioner.shard_batch(small.batch(step)))
    values.append(float(metrics["loss"].compute()).hex())
"""


def _run(cache, program=_SUM, **variables):
    """The values of a program in a process of its own, its hits, how many programs it kept, and its messages."""
    environment = {name: value for name, value in os.environ.items() if "_CACHE" not in name}
    environment |= {"PYTHONPATH": str(house.ROOT), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **variables}
    if cache is not None:
        environment["LIMBA_COMPILATION_CACHE"] = str(cache)
    code = _COUNTED.replace("{program}", program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return (*json.loads(done.stdout.splitlines()[-1]), done.stderr)


def _programs(folder):
    return sorted(path for path in folder.rglob("jit_*-cache"))


def test_a_second_process_compiles_nothing_and_has_the_same_losses(tmp_path):
    # Without a name the folder is below that of all caches of the user.
    cold, _, kept, _ = _run(None, _TRAINING, XDG_CACHE_HOME=str(tmp_path))
    folder = tmp_path / "limba" / "compiled" / compilation_cache.kind_of_cpu()
    assert kept == len(_programs(folder)) >= 2  # the step and the initial state at least
    warm, hits, more, messages = _run(tmp_path / "limba" / "compiled", _TRAINING)
    assert (len(warm), more) == (3, 0)
    assert hits >= 2
    assert warm == cold
    assert "ERROR" not in messages


def test_off_keeps_nothing(tmp_path):
    _, hits, kept, _ = _run("off", XDG_CACHE_HOME=str(tmp_path), JAX_COMPILATION_CACHE_DIR=str(tmp_path / "jax"))
    assert (hits, kept, list(tmp_path.iterdir())) == (0, 0, [])


def test_a_damaged_program_is_compiled_and_kept_again(tmp_path):
    values, *_ = _run(tmp_path)
    (program,) = tmp_path.rglob("jit__lambda-*-cache")
    program.write_bytes(whole := program.read_bytes()[:50])
    again, _, kept, messages = _run(tmp_path)
    assert (again, kept) == (values, 1)
    assert messages.count("is damaged") == 1
    assert len(program.read_bytes()) > len(whole)


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    values, hits, kept, messages = _run(tmp_path / "file")
    assert (len(values), hits, kept) == (1, 0, 0)
    assert messages.count("LIMBA_COMPILATION_CACHE=DIR names another folder") == 1
    assert "UserWarning" not in messages


def test_jax_own_variable_counts_where_limbas_is_not_set(tmp_path):
    _, _, kept, _ = _run(None, JAX_COMPILATION_CACHE_DIR=str(tmp_path))
    assert kept == len(list(tmp_path.glob("*-cache"))) > 0  # itself, without a folder for the CPU


class _FakeJax:
    def __init__(self, folder=None):
        self.set, self.config, self.jax_compilation_cache_dir = {}, self, folder

    def update(self, name, value):
        self.set[name] = value


@pytest.mark.parametrize(
    ("variables", "configured", "set_"),
    [
        ({"LIMBA_COMPILATION_CACHE": "off"}, None, {"jax_enable_compilation_cache": False}),
        ({"JAX_COMPILATION_CACHE_DIR": ""}, None, {}),
        ({}, "/set/by/a/program", {}),
        (
            {"LIMBA_COMPILATION_CACHE": "gs://mine/compiled", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "2"},
            None,
            {"jax_compilation_cache_dir": f"gs://mine/compiled/{compilation_cache.kind_of_cpu()}"},
        ),
    ],
    ids=["off", "JAX's off", "set by a program", "bucket"],
)  # fmt: skip
def test_which_variable_counts(monkeypatch, variables, configured, set_):
    for name in [name for name in os.environ if "_CACHE" in name]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    jax = _FakeJax(configured)
    compilation_cache.use(jax)
    assert jax.set == set_


def test_without_a_home_nothing_is_kept(monkeypatch, caplog):
    for name in [name for name in os.environ if "_CACHE" in name]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(compilation_cache.Path, "expanduser", _no_home)
    jax = _FakeJax()
    compilation_cache.use(jax)
    assert jax.set == {}
    assert "this user has no home" in caplog.text


def _no_home(path):
    raise RuntimeError("Could not determine home directory.")


def test_the_programs_that_were_not_used_for_longest_go(tmp_path):
    for age, name in enumerate(("new", "used", "old", "oldest")):
        path = tmp_path / f"jit_{name}-0-cache"
        path.write_bytes(b"x" * 100)
        os.utime(path, (1e9 - (0 if name == "used" else age), 1e9 - age))
    (tmp_path / "other").write_bytes(b"x" * 1000)
    compilation_cache.trim(tmp_path, max_bytes=250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jit_new-0-cache", "jit_used-0-cache", "other"]
    compilation_cache.trim(tmp_path, max_bytes=250)
    assert len(list(tmp_path.iterdir())) == 3


def test_the_kind_of_cpu_is_a_folders_name():
    kind = compilation_cache.kind_of_cpu()
    assert kind == compilation_cache.kind_of_cpu.__wrapped__()
    assert set(kind) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
