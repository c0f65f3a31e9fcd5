"""A plan of `limba run` for tests, of keys alone."""

from pathlib import Path
from typing import Any

from limba.addons.run.keys.request import Request
from limba.addons.run.plan import Corpus, Counted, Plan


def plan_of(keys: Request, **fields: Any) -> Plan:
    """On 4 devices, of a file t.txt, by a T5 from scratch whose dropout is 0.1."""
    folder = Path(keys.output_dir)
    places = {"work": folder, "named": folder, "gin_file": folder / "run.gin"}
    data = {"corpus": Corpus("t", files={"train": ["t.txt"]}), "examples": Counted(), "devices": 4}
    return Plan(keys, **{**places, **data, "dropout_rate": 0.1, **fields})
