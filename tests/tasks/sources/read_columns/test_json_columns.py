"""JSON with the columns that are read: their text stays as it was, the rest is gone, and other files stay whole."""

import io
import json

import numpy as np
import pytest

from tasks.sources.read_columns import json_columns


def _read(content, columns=("text",)):
    names = {}
    found = json_columns.only_columns(io.BytesIO(content), columns, names).read()
    return found, list(names)


def test_the_text_of_what_is_kept_does_not_change():
    # A number of 30 digits, an exponent, escapes, half of a character, a damaged byte, and a key of an escape.
    text = rb'"text" :  "\u015f \ud800 ' + b"\xff" + rb'\"}{"'
    row = b'{"meta": [1, {"text": "inner"}], ' + text + b', "n": 123456789012345678901234567890}'
    assert _read(row + b"\r\n") == (b"{" + text + b"}\r\n", ["meta", "text", "n"])
    numbers = b'{"n": 1.50E+3, "te\\u0078t": "a"}'
    assert _read(numbers[:-1] + b', "m": NaN}', ["n", "text"])[0] == numbers
    assert _read(b'\xef\xbb\xbf{"a": 1, "text": "b"}\n')[0] == b'\xef\xbb\xbf{"text": "b"}\n'
    digits = b"1" * 5000  # more than Python makes a number of
    assert _read(b'{"a": %s, "text": "b"}\n' % digits)[0] == b'{"text": "b"}\n'


def test_a_column_that_a_row_lacks_is_null_and_blank_lines_go():
    content = b'\n  \n{"a": 1}\n\n{"text": "x", "b": {}}\n{}\n'
    assert _read(content) == (b'{"text": null}\n{"text": "x"}\n{"text": null}\n', ["a", "text", "b"])


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_of_rows(indent):
    rows = [{"meta": i, "text": f"ș{i}", "list": [{}, []]} for i in range(3)]
    found, names = _read(json.dumps(rows, indent=indent, ensure_ascii=False).encode() + b"\n")
    assert json.loads(found) == [{"text": row["text"]} for row in rows] and found.startswith(b"[{")
    assert names == ["meta", "text", "list"]


@pytest.mark.parametrize("indent", [None, 1])
def test_the_rows_of_an_object_with_data(indent):
    """As SQuAD's files are, and what `load_dataset(…, field="data")` reads."""
    rows = [{"meta": i, "text": f"ș{i}", "list": [{}, []]} for i in range(3)]
    whole = {"version": "1.1", "more": {"data": [1]}, "data": rows, "license": None}
    content = json.dumps(whole, indent=indent, ensure_ascii=False).encode() + b"\n"
    found, names = _read(content)
    assert json.loads(found) == [{"text": row["text"]} for row in rows] and names == ["meta", "text", "list"]
    # Rows that have the wanted columns are rows, whatever else they have; so are those of several lines.
    several = b'{"data": [{"text": "a"}]}\n\n{"text": "b"}\n'
    assert _read(several) == (b'{"text": null}\n{"text": "b"}\n', ["data", "text"])
    assert _read(b'{"data": [{"text": "a"}], "text": "b"}\n')[0] == b'{"text": "b"}\n'
    assert _read(b'{"data": [{"text": "a"}], "m": 1}\n', ["data"])[0] == b'{"data": [{"text": "a"}]}\n'


@pytest.mark.parametrize(
    "content",
    [
        b'{\n"data": [{"text": "a"}\n}',
        b'["a", "b"]',
        b"[]",
        b'[{"text": "a", "b": 1}, 2]',
        b'[{"text": "a", "b": 1}',
        b'{\n "text": "a",\n "b": 1\n}\n{"text": "a", "b": 1}\n',
        b'"text"\n{"text": "a", "b": 1}\n',
        b'{"text": "a" "b": 1}\n{"text": "a", "b": 1}\n',
    ],
)
def test_other_files_stay_as_they_are(content):
    assert _read(content)[0] == content


def test_a_damaged_line_stays_as_it_is():
    content = b'{"text": "a", "b": 1}\n{"text": "a", "b": 1\n{"text": "a", "b": tru}\n{"text": "c"}\n'
    assert _read(content)[0] == b'{"text": "a"}\n{"text": "a", "b": 1\n{"text": "a", "b": tru}\n{"text": "c"}\n'


def test_any_rows_are_those_that_json_gives():
    random = np.random.default_rng(0)
    values = ["", 'ș"\\', None, True, 1, -0.5, 1e300, [], [1, "x"], {}, {"text": {"a": [None]}}, "]}{[,:"]
    keys = ["text", "te xt", "ș", "", 'q"', "n", "{"]
    rows = [
        {keys[k]: values[random.integers(len(values))] for k in random.permutation(len(keys))[: random.integers(1, 8)]}
        for _ in range(300)
    ]
    for ascii_only in (True, False):
        content = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows).encode()
        found = [json.loads(line) for line in _read(content, ["text", "n", "ș"])[0].splitlines()]
        assert found == [{name: row.get(name) for name in ("text", "n", "ș")} for row in rows]
