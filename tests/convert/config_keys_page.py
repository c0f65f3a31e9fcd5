"""docs/config_keys.md, written from the tables of the code: `python -m tests.convert.config_keys_page`."""

import json
from pathlib import Path

from convert.families.config_keys import encoder_keys, t5_keys, tokenizer_keys
from convert.families.config_keys.keys import Key, Table
from convert.families.table import encoder_families, t5_families
from limba.addons.longt5 import longt5_family
from limba.addons.t5gemma import t5gemma_keys

FILE = Path(__file__).parents[2] / "docs/config_keys.md"

_BEGIN = """# Keys of Hugging Face's files

What `limba convert from-hf` and `limba run` do with each key of a model's `config.json`, `generation_config.json` and
`tokenizer_config.json`. This page is written from the tables in `convert/families/config_keys/` (`keys.py`,
`t5_keys.py`, `encoder_keys.py`, `tokenizer_keys.py`) and `limba/addons/t5gemma/t5gemma_keys.py`, by
`python -m tests.convert.config_keys_page`.

- **Carried**: the key becomes the named field of Limba's network, or decides how the files are read.
- **Without effect**: nothing of the network depends on it.
- **Must be**: any other value is refused before anything is read or written.
- **Named**: a setting of something else. A note says what is not carried, where it is not the usual value.

A value of `null` counts as a missing key. **An unknown key is an error** that names it, because it may make another
network. If you are sure that nothing of the model depends on it:

    limba convert from-hf FOLDER OUT --ignore_config_keys my_key,other_key     # also of limba run, convert check

The ignored keys are recorded in the checkpoint's `run.json`. A carried key cannot be ignored. In
`generation_config.json` an unknown key is named and not an error: nothing there can change the network, but for the ids
of the table.

`config.json` and `generation_config.json` may disagree about `decoder_start_token_id`. That of `generation_config.json`
counts, as in `generate` of transformers, and a note says so. Training, decoding and exports begin with it; `to-t5x`
refuses another one than 0, which T5X's networks do not have.
"""


def _further(table: Table, known: Table) -> Table:
    return {name: key for name, key in table.items() if name not in known}


def page() -> str:
    encoders = {family.title: family.keys for family in encoder_families().values()}
    shared = {
        name: key for name, key in encoder_keys.BERT.items() if all(keys.get(name) == key for keys in encoders.values())
    }
    families = t5_families().values()
    t5s = ", ".join(dict.fromkeys(family.title for family in families if family.layer_kind in ("t5", "long")))
    parts = [
        _BEGIN,
        f"## config.json of {t5s}\n\n{_table(t5_keys.KEYS)}",
        f"## config.json of LongT5, further keys\n\n{_table(_further(longt5_family.FAMILY.keys, t5_keys.KEYS))}",
        f"## config.json of T5Gemma\n\n{_table(t5gemma_keys.KEYS)}",
        f"## `encoder` and `decoder` in it\n\n{_table(t5gemma_keys.STACK_KEYS)}",
        f"## config.json of T5Gemma 2, other keys than T5Gemma's\n\n{_table(_others(t5gemma_keys.KEYS_2))}",
        f"## `encoder` in it\n\n{_table(t5gemma_keys.ENCODER_KEYS_2)}",
        "## `text_config` and `decoder` in it, other keys than those of T5Gemma's stacks\n\n"
        + _table(_others(t5gemma_keys.STACK_KEYS_2)),
        f"## generation_config.json of all of these\n\n{_table(t5_keys.GENERATION_KEYS)}",
        f"## config.json of all encoders\n\n{_table(shared)}\n\nAn encoder does not generate: its "
        "generation_config.json is not read.",
    ]
    for title, keys in encoders.items():
        parts.append(f"## config.json of {title}, further keys\n\n{_table(_further(keys, shared))}")
    new = {name: key for name, key in encoder_keys.NEW_BERT.items() if encoder_keys.BERT[name] != key}
    parts.append(f"## A BERT of t5-experiments, to train from scratch, further keys\n\n{_table(new)}")
    parts.append(f"## tokenizer_config.json of {t5s}, T5Gemma, T5Gemma 2\n\n{_table(tokenizer_keys.T5)}")
    parts.append(f"## tokenizer_config.json of encoders\n\n{_table(tokenizer_keys.ENCODER)}")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _others(keys: Table) -> Table:
    of_first = {**t5gemma_keys.STACK_KEYS, **t5gemma_keys.KEYS}
    return {name: key for name, key in keys.items() if key not in of_first.values()}


def _table(keys: Table) -> str:
    rows: dict[str, list[str]] = {}
    for key in keys.values():
        rows.setdefault(_fate(key), []).append(f"`{key.name}`")
    order = sorted(rows, key=lambda fate: ("carried", "must", "named", "without").index(fate.split()[0].rstrip(":")))
    return "\n".join(["| key | what happens |", "|---|---|", *(f"| {', '.join(rows[f])} | {f} |" for f in order)])


def _fate(key: Key) -> str:
    if key.remedy:
        values = " or ".join(f"`{json.dumps(value)}`" for value in key.values or ())
        return f"must be {values or 'missing'}: {key.reason}. {key.remedy}"
    if key.is_carried:
        return f"carried: {key.reason}"
    if key.values is not None:
        return f"named: {key.reason}"
    return f"without effect: {key.reason}"


if __name__ == "__main__":
    FILE.write_text(page(), "utf-8")
