"""docs/run_keys.md, written from the tables of the code: `python -m tests.addons.run.keys.run_keys_page`."""

from pathlib import Path

from limba.addons.run.keys import other_keys, script_keys

FILE = Path(__file__).parents[4] / "docs/run_keys.md"

_BEGIN = """# Keys of `limba run`

What `limba run` does with each key of Hugging Face's `Seq2SeqTrainingArguments` (transformers 4.57 and 5), of its
example scripts and of t5-experiments; [run.md](run.md) explains the usual ones. This page is written from
`limba/addons/run/keys/request.py` and `limba/addons/run/keys/other_keys.py`, by
`python -m tests.addons.run.keys.run_keys_page`.

A value of `null` counts as a missing key, and a default of transformers, written out, never stops a run. An unknown key
is an error.
"""


def page() -> str:
    other_names: dict[str, list[str]] = {}
    for name, key in script_keys.ALIASES.items():
        other_names.setdefault(key, []).append(f"`{name}`")
    carried = [
        (f"`{name}`", _shown(field.default), ", ".join(other_names.get(name, [])), field.metadata["help"])
        for name, field in script_keys.FIELDS.items()
    ]
    by_reason: dict[str, list[str]] = {}
    for name, reason in other_keys.WITHOUT_EFFECT.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    refused: dict[tuple[str, str], list[str]] = {}
    for name, (values, remedy) in other_keys.REFUSED.items():
        refused.setdefault((", ".join(map(_shown, values)), remedy), []).append(f"`{name}`")
    return "\n".join(
        [
            _BEGIN,
            "## Carried out\n",
            *_table(("key", "default", "other names", "what"), carried),
            "\n## Carried out as other keys\n",
            *_table(("key", "what"), [(f"`{name}`", what) for name, what in script_keys.OF_OWN_FORM.items()]),
            "\n## Without effect, at any value\n",
            *_table(("keys", "because"), [(", ".join(names), reason) for reason, names in by_reason.items()]),
            "\n## Refused, but for null, false, an empty value and the values that are named\n",
            *_table(
                ("keys", "values that pass", "what to do instead"),
                [(", ".join(names), values, remedy) for (values, remedy), names in refused.items()],
            ),
            "",
        ]
    )


def _shown(value: object) -> str:
    return "" if value in (None, "") else f"`{value}`"


def _table(head, rows) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    FILE.write_text(page(), "utf-8")
