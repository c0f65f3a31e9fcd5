"""Readers in processes make the batches of threads, resume exactly, and say so when they are killed."""

import dataclasses
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from tasks import objectives, pretraining, sources, vocabularies
from tasks.pipeline import task_batches
from tasks.registry import MixtureRegistry, TaskRegistry
from tasks.sources import blank_texts
from tests.house import ROOT
from tests.tasks.pipeline import batches_of_before

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    batches_of_before.write_corpus(folder)
    before = set(TaskRegistry.names()), set(MixtureRegistry.names())
    batches_of_before.register(folder, vocabularies.ByteVocabulary(100))
    yield folder
    for registry, names in zip((TaskRegistry, MixtureRegistry), before, strict=True):
        for name in set(registry.names()) - names:
            registry.remove(name)


def _open(name, num_workers):
    config = dataclasses.replace(batches_of_before.config_of(name, "train"), num_workers=num_workers)
    return task_batches.get_train_batches(config, batches_of_before.STREAMS[name][1])


def _assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_batches_and_positions_are_those_of_threads():
    others = {child.pid for child in multiprocessing.active_children()}
    threads, processes = _open("mixed", 0), _open("mixed", 3)
    opened = {child.pid for child in multiprocessing.active_children()} - others
    for _ in range(25):
        _assert_equal(next(threads), next(processes))
    assert len(opened) == 3
    state = processes.save_state()
    assert state == threads.save_state()
    for _ in range(4):
        next(processes)
    processes.restore_state(state)
    for _ in range(10):
        _assert_equal(next(threads), next(processes))
    # The processes stay; they read on from another position.
    assert {child.pid for child in multiprocessing.active_children()} - others == opened


def test_a_killed_process_is_named():
    before = {child.pid for child in multiprocessing.active_children()}
    batches = _open("spans", 2)
    next(batches)
    victim = next(child for child in multiprocessing.active_children() if child.pid not in before)
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(
        RuntimeError, match=rf"The process {victim.pid} of reader \d was ended by SIGKILL.*resumes from"
    ):
        for _ in range(1000):  # Batches that were made before come first.
            next(batches)


def _read_lines(file):
    """A format of a user's own, which ends badly."""
    for i, line in enumerate(file):
        if i == 2500:
            raise ValueError("line 2500 is upside down")
        yield {"text": line.decode()}


def test_an_error_of_a_reader_arrives(folder, monkeypatch):
    monkeypatch.setattr(blank_texts, "_MOST_DOCUMENTS", 1)  # Else what is looked at before a training finds it.
    file = folder / "broken-0.txt"
    file.write_text("".join(f"document number {i} of a file with an end\n" for i in range(3000)), encoding="utf-8")
    pretraining.register_pretraining_task(
        "process_broken",
        data_files=sources.HuggingFaceSource({"train": str(file)}, builder=_read_lines),
        vocabulary=vocabularies.ByteVocabulary(100),
        shuffle_buffer_size=8,
    )
    config = dataclasses.replace(
        batches_of_before.config_of("spans", "train"),
        mixture_or_task_name="process_broken",
        num_workers=1,
        num_readers=1,
        shuffle=False,
    )
    batches = task_batches.get_train_batches(config)
    with pytest.raises(
        RuntimeError,
        match=r"Reading 'process_broken' failed after \d+ batches: BrokenFileError: .*broken-0.*upside down",
    ):
        for _ in range(3000):
            next(batches)


@dataclasses.dataclass(frozen=True)
class _Leaves(objectives.SpanCorruption):
    """Ends the program in a reader, as a function of a user's own may."""

    def corrupt(self, *args, **kwargs):
        if multiprocessing.parent_process() or threading.current_thread() is not threading.main_thread():
            raise SystemExit(0)
        return super().corrupt(*args, **kwargs)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_reader_that_calls_exit_does_not_end_the_training_as_if_it_were_well(folder, monkeypatch, num_workers):
    monkeypatch.setattr(blank_texts, "_MOST_DOCUMENTS", 1)
    file = folder / "leaves.txt"
    file.write_text("a document of some words\n" * 100, encoding="utf-8")
    pretraining.register_pretraining_task(
        "process_leaves",
        data_files={"train": str(file)},
        vocabulary=vocabularies.ByteVocabulary(100),
        objective=_Leaves(),
    )
    config = dataclasses.replace(
        batches_of_before.config_of("spans", "train"), mixture_or_task_name="process_leaves", num_workers=num_workers
    )
    with pytest.raises(RuntimeError, match=r"^Reading 'process_leaves' failed after 0 batches: SystemExit\(0\)"):
        next(task_batches.get_train_batches(config))


@dataclasses.dataclass(frozen=True)
class _Local(objectives.SpanCorruption):
    """Has a field that no process can be sent."""

    function: object = None


def test_what_cannot_be_sent_is_refused(folder):
    pretraining.register_pretraining_task(
        "process_local",
        data_files={"train": str(folder / "train-*.jsonl")},
        vocabulary=vocabularies.ByteVocabulary(100),
        objective=_Local(function=lambda: 1),
    )
    config = dataclasses.replace(
        batches_of_before.config_of("spans", "train"), mixture_or_task_name="process_local", num_workers=2
    )
    with pytest.raises(
        ValueError, match=r"num_workers is 2, and 'process_local' cannot be sent to a process.*or set num_workers"
    ):
        task_batches.get_train_batches(config)


def test_a_process_that_ends_takes_its_readers_along(folder):
    """Without a word about leaked memory, and soon, also those that nothing reads any more; requests to stop do not end
    the readers before it."""
    script = f"""
        import dataclasses, os, pathlib, signal, multiprocessing
        from tasks.pipeline import task_batches
        from tasks import vocabularies
        from tests.tasks.pipeline import batches_of_before

        def read_and_forget():
            batches = task_batches.get_train_batches(dataclasses.replace(config, num_workers=1))
            next(batches)
            return [child.pid for child in multiprocessing.active_children()]

        if __name__ == "__main__":
            batches_of_before.register(pathlib.Path({str(folder)!r}), vocabularies.ByteVocabulary(100))
            config = dataclasses.replace(batches_of_before.config_of("spans", "train"), num_workers=2)
            forgotten = read_and_forget()
            batches = task_batches.get_train_batches(config)
            next(batches)
            pids = [child.pid for child in multiprocessing.active_children()]
            for pid in pids:
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGINT)
            for _ in range(200):
                next(batches)
            print(*{{*pids, *forgotten}})
    """
    file = folder / "ends.py"
    file.write_text(textwrap.dedent(script), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "leaked" not in done.stderr and "Traceback" not in done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3 and not [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]
