"""The workers of a run compare their code, configuration and data before anything is compiled.

Workers that differ would train on without an error, or wait forever in a collective that only some of them call. Here
every worker reports the workers that differ, and in what.
"""

import collections
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.data import contract
from limba.files import json_text
from limba.files.storage import AnyPath
from limba.workers import code_versions, distributed

# Longer texts are compared by their hash, and sent only if they differ.
_LONGEST = 100
_LINES = 8


class DifferentWorkersError(ValueError):
    """The workers of a run do not have the same code, configuration or data."""


def compare(subject: str, facts: Mapping[str, str]) -> None:
    """Compares facts with the other workers. Every worker must call it.

    Args:
      subject: what the facts are about, in a few words.
      facts: by name; long ones are texts of several lines.

    Raises:
      DifferentWorkersError: naming the workers that differ, and in what.
      MissingWorkerError: naming the workers that did not call it in time.
    """
    timeout = distributed.exchange_timeout()
    short = {
        name: value if len(value) <= _LONGEST else hashlib.sha256(value.encode()).hexdigest()
        for name, value in facts.items()
    }
    of_workers = [json.loads(text) for text in distributed.exchange(subject, json_text.dumps(short), timeout)]
    names = {name: None for worker in of_workers for name in worker}
    differing = [name for name in names if len({worker.get(name) for worker in of_workers}) > 1]
    if not differing:
        return
    in_full = distributed.exchange(f"{subject} in full", json_text.dumps({n: facts.get(n) for n in differing}), timeout)
    lines = differences([json.loads(text) for text in in_full])
    # Worker 0 has the store: it must not end before the others have read the values.
    distributed.exchange(f"{subject} compared", "", timeout)
    raise DifferentWorkersError(
        f"The workers of this run differ in their {subject}:\n  " + "\n  ".join(lines) + "\n"
        "Make them the same on all workers, and start the run again."
    )


def differences(of_workers: Sequence[Mapping[str, str | None]]) -> list[str]:
    """One line for each fact in which a worker differs from the majority; None: the worker does not know the fact."""
    lines = []
    for name in of_workers[0]:
        values = [facts[name] for facts in of_workers]
        usual, count = collections.Counter(values).most_common(1)[0]
        if count == 1 or values.count(values[0]) == count:
            usual = values[0]  # Without a majority, worker 0 counts.
        others = "the others" if values.count(usual) > 1 else distributed.worker_name(values.index(usual))
        for index, value in enumerate(values):
            if value != usual:
                lines.append(f"{distributed.worker_name(index)}: {name}: {_difference(value, usual, others)}")
    return lines


def _difference(value: str | None, usual: str | None, others: str) -> str:
    if value is None or usual is None or max(len(value), len(usual)) <= _LONGEST:
        return f"{_shown(value)}, on {others} {_shown(usual)}"
    here, there = value.splitlines(), usual.splitlines()
    only_here = [line for line in here if line not in set(there)]
    only_there = [line for line in there if line not in set(here)]
    return f"{_first_lines(only_here)}, on {others} {_first_lines(only_there)}"


def _shown(value: str | None) -> str:
    return "unknown" if value is None else value


def _first_lines(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - _LINES} more lines" if len(lines) > _LINES else ""
    return " | ".join(lines[:_LINES]) + more if lines else "no such line"


# ------------------------------------------------------- the facts ---------------------------------------------------


def compare_code(gin_config: str) -> None:
    """Compares commits, sources, packages and the gin configuration.

    Raises:
      DifferentWorkersError, MissingWorkerError: as `compare`.
    """
    if distributed.process_count() == 1:
        return
    facts = {f"commit of {name}": commit for name, commit in code_versions.commits().items()}
    facts["source files of limba and tasks (CRC-32)"] = code_versions.sources()
    facts |= {f"version of {name}": version for name, version in code_versions.packages().items()}
    facts["gin configuration"] = "\n".join(line for line in gin_config.splitlines() if line and line[0] != "#")
    compare("code and configuration", facts)


def compare_data(
    model: Any, config: contract.DatasetConfig, data_facts: Callable[[], Mapping[str, str]], home: AnyPath
) -> None:
    """Compares vocabularies, task, revision and order of the data, devices and MODEL_DIR.

    Args:
      model: has the vocabularies.
      config: of the training stream, with the run's seed.
      data_facts: returns the facts of the data that must be the same on all hosts.
      home: MODEL_DIR.

    Raises:
      DifferentWorkersError, MissingWorkerError: as `compare`.
    """
    if distributed.process_count() == 1:
        return
    import jax

    devices = jax.local_devices()
    facts = {
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "MODEL_DIR": str(home),
        "task": config.name,
        "split": config.split,
    }
    for name in ("input_vocabulary", "output_vocabulary"):
        if (vocabulary := getattr(model, name, None)) is not None:
            facts[name.replace("_", " ")] = _vocabulary_hash(vocabulary)
    facts |= data_facts()
    compare("data", facts)
    if isinstance(home, Path):
        _check_shared(home)


def _vocabulary_hash(vocabulary: Any) -> str:
    file = contract.vocabulary_file(vocabulary)
    content = Path(file).read_bytes() if file and "://" not in file else b""
    ids = f"{type(vocabulary).__name__}, {vocabulary.vocab_size} ids"
    return f"{ids}, SHA-256 {hashlib.sha256(content).hexdigest()[:16]}" if content else ids


def _check_shared(home: Path) -> None:
    """Raises DifferentWorkersError if a worker cannot see a file that worker 0 writes into MODEL_DIR."""
    timeout = distributed.exchange_timeout()
    name = distributed.from_first("name of a mark", lambda: f".workers-{secrets.token_hex(8)}")
    if distributed.process_index() == 0:
        home.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    distributed.exchange("mark in MODEL_DIR", "", timeout)
    seen = distributed.exchange("look into MODEL_DIR", str((home / name).exists()), timeout)
    if distributed.process_index() == 0:
        (home / name).unlink()
    if blind := [distributed.worker_name(i) for i, sees in enumerate(seen) if sees != "True"]:
        raise DifferentWorkersError(
            f"{', '.join(blind)} cannot see the files that {distributed.worker_name(0)} writes into MODEL_DIR {home}: "
            "all workers need the same directory, on a shared file system or in a bucket (gs://…)."
        )
