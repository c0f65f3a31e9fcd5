"""Before anything is compiled, the workers of a run compare what they are about to do.

Workers with other code, another configuration or other data would train on without an error, or wait for each other for
ever in a collective that only some of them make. Here each says what it has; one that differs is named, with what
differs, on every worker.
"""

import collections
import hashlib
import inspect
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba import code_versions, data, distributed
from limba.data import DatasetConfig
from limba.storage import AnyPath

# Texts longer than this are compared by their hash, and sent only if they differ.
_LONGEST = 100
_LINES = 8


class DifferentWorkersError(ValueError):
    """The workers of a run do not have the same code, configuration or data."""


def compare(subject: str, facts: Mapping[str, str]) -> None:
    """Compares facts with the other workers. All call it.

    Args:
      subject: what the facts are about, in a few words.
      facts: by name; long ones are texts of several lines.

    Raises:
      DifferentWorkersError: naming the workers that differ, and in what.
      MissingWorkerError: naming the workers that have not come in time.
    """
    patience = distributed.patience()
    short = {name: value if len(value) <= _LONGEST else _digest(value) for name, value in facts.items()}
    said = [json.loads(text) for text in distributed.exchange(subject, json.dumps(short), patience)]
    names = {name: None for one in said for name in one}
    differing = [name for name in names if len({one.get(name) for one in said}) > 1]
    if not differing:
        return
    whole = distributed.exchange(f"{subject} in full", json.dumps({n: facts.get(n) for n in differing}), patience)
    lines = differences([json.loads(text) for text in whole])
    # All have come to the same conclusion; worker 0, which keeps the store, must not be gone before they have read it.
    distributed.exchange(f"{subject} compared", "", patience)
    raise DifferentWorkersError(
        f"The workers of this run differ in their {subject}:\n  " + "\n  ".join(lines) + "\n"
        "Bring the same to all of them, and start them again."
    )


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def differences(said: Sequence[Mapping[str, str | None]]) -> list[str]:
    """What each worker that differs from most has, one line a fact.

    Args:
      said: the same facts of each worker, in their order; None for one that a worker does not know.
    """
    lines = []
    for name in said[0]:
        values = [one[name] for one in said]
        most, count = collections.Counter(values).most_common(1)[0]
        if count == 1 or values.count(values[0]) == count:
            most = values[0]  # Where there is no majority, what worker 0 has.
        others = "the others" if values.count(most) > 1 else distributed.worker_name(values.index(most))
        for index, value in enumerate(values):
            if value != most:
                lines.append(f"{distributed.worker_name(index)}: {name}: {_compared(value, most, others)}")
    return lines


def _compared(value: str | None, most: str | None, others: str) -> str:
    if value is None or most is None or max(len(value), len(most)) <= _LONGEST:
        return f"{_shown(value)}, on {others} {_shown(most)}"
    here, there = value.splitlines(), most.splitlines()
    only_here = [line for line in here if line not in set(there)]
    only_there = [line for line in there if line not in set(here)]
    return f"{_some(only_here)}, on {others} {_some(only_there)}"


def _shown(value: str | None) -> str:
    return "unknown" if value is None else value


def _some(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - _LINES} more lines" if len(lines) > _LINES else ""
    return " | ".join(lines[:_LINES]) + more if lines else "nothing of the kind"


# ------------------------------------------------------- the facts ---------------------------------------------------


def compare_code(gin_config: str) -> None:
    """Compares what is known once the gin files are read: commits, sources, packages and the configuration.

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


def compare_data(model: Any, config: DatasetConfig, get_dataset_fn: Callable[..., Any] | None, home: AnyPath) -> None:
    """Compares what the run reads and where it writes: vocabulary, task, revision and order of the data, devices.

    Args:
      model: whose vocabularies they are.
      config: of the training stream, with the run's seed.
      get_dataset_fn: that opens it; of a user's own function nothing is known.
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
    if get_dataset_fn is None or inspect.unwrap(get_dataset_fn) is data.get_dataset:
        facts |= data.facts(config)
    compare("data", facts)
    if isinstance(home, Path):
        _check_shared(home)


def _vocabulary_hash(vocabulary: Any) -> str:
    file = getattr(vocabulary, "sentencepiece_model_file", None)
    content = Path(file).read_bytes() if file and "://" not in file else b""
    ids = f"{type(vocabulary).__name__}, {vocabulary.vocab_size} ids"
    return f"{ids}, SHA-256 {hashlib.sha256(content).hexdigest()[:16]}" if content else ids


def _check_shared(home: Path) -> None:
    """Raises DifferentWorkersError if a worker does not see what worker 0 writes into MODEL_DIR."""
    patience = distributed.patience()
    name = distributed.from_first("name of a mark", lambda: f".workers-{secrets.token_hex(8)}")
    if distributed.process_index() == 0:
        home.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    distributed.exchange("mark in MODEL_DIR", "", patience)
    seen = distributed.exchange("look into MODEL_DIR", str((home / name).exists()), patience)
    if distributed.process_index() == 0:
        (home / name).unlink()
    if blind := [distributed.worker_name(i) for i, sees in enumerate(seen) if sees != "True"]:
        raise DifferentWorkersError(
            f"{', '.join(blind)} cannot see in MODEL_DIR {home} what {distributed.worker_name(0)} writes there: all "
            "workers need one directory, on a shared file system or in a bucket (gs://…)."
        )
