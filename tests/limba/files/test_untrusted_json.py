import json
import os
import time

import pytest

from limba.files import untrusted_json

DEEP = 100_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * DEEP, "x.json: line 1 has more than 200 brackets inside of each other"),
        (b'{"a":\n' * 300, "x.json: line 201 has more than 200 brackets"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "x.json has the key 'c' twice in one object"),
        (b'{"a":\n ' + b"9" * 5000 + b"}", "x.json has a number of too many digits: line 2"),
        (b'{"a":\n "\\ud83d\\ude00 \\ud83d"}', r"x.json has half of a character, \\ud83d, at line 2 column 16"),
        (b'{"a":\n "caf\xe9"}', "x.json is not UTF-8: byte 0xe9 at line 2, byte 6"),
        (b'\xef\xbb\xbf{"a":\n "caf\xe9"}', "x.json is not UTF-8: byte 0xe9 at line 2, byte 6"),
        (b'{"a": "\x00"}', "x.json is not JSON: Invalid control character at, line 1 column 8"),
        (b"[" + b"0," * untrusted_json.MOST_VALUES + b"0]", "x.json has 5,000,001 values; at most 5,000,000 are read"),
        (b'{"a": ', "x.json is not JSON: Expecting value, line 1 column 7"),
        (b"", "x.json is not JSON: Expecting value, line 1 column 1"),
    ],
)
def test_what_is_no_json_for_limba_is_named_with_file_and_place(tmp_path, text, words):
    file = tmp_path / "x.json"
    file.write_bytes(text)
    with pytest.raises(ValueError, match=words):
        untrusted_json.read(file)


def test_what_is_unusual_and_right_is_read():
    # Brackets and quotes in texts, escapes at the end of them, a mark before the text, pairs of halves, NaN.
    value = {"a": "[" * 1000 + '{"' * 500 + "\\", "b": "😀 \ud7ff", "c": [[{"d": []}]], "e": "\\ud83d"}
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert untrusted_json.parse(text, "x") == value
        assert untrusted_json.parse(b"\xef\xbb\xbf" + text.encode(), "x") == value
    assert untrusted_json.parse(b"[" * 200 + b"]" * 200, "x")
    assert str(untrusted_json.parse('{"loss": NaN}', "x")) == "{'loss': nan}"
    # Commas in texts are not values.
    text = '"' + "," * (untrusted_json.MOST_VALUES + 1) + '"'
    assert len(untrusted_json.parse(text, "x")) == untrusted_json.MOST_VALUES + 1


def test_the_line_of_a_number_is_found_at_once_behind_many_long_ones():
    numbers = ",\n".join(["1" * 4300] * 240)
    begun = time.process_time()
    with pytest.raises(ValueError, match="x has a number of too many digits: line 241"):
        untrusted_json.parse(f"[{numbers},\n{'1' * 4301}]", "x")
    assert time.process_time() - begun < 2


def test_a_string_without_an_end_is_read_once():
    begun = time.process_time()
    with pytest.raises(ValueError, match="x is not JSON"):
        untrusted_json.parse('["' + "," * untrusted_json.MOST_VALUES + '\\"' * 20_000, "x")
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_pieces_count_as_the_whole(size):
    text = b"".join(json.dumps({"text": f'\\"[{{ {i} "\\', "list": [[i]]}).encode() + b"\n" for i in range(50))

    def feed(text):
        guard = untrusted_json.NestingGuard()
        for start in range(0, len(text), size):
            guard.feed(text[start : start + size])

    feed(text)
    with pytest.raises(untrusted_json.TooDeepError, match="line 51 has more than 200 brackets"):
        feed(text + b'{"text": ' + b"[" * 250)


def test_a_quote_too_many_hides_no_later_line():
    guard = untrusted_json.NestingGuard()
    with pytest.raises(untrusted_json.TooDeepError, match="line 2 "):
        guard.feed(b'{"text": "}}}}]]]\n' + b"[" * 250)


def test_an_object_is_asked_for(tmp_path):
    (tmp_path / "x.json").write_text("[[1], 2]")
    with pytest.raises(ValueError, match=r"x\.json holds a list of 2; it is one object of keys and values"):
        untrusted_json.read_object(tmp_path / "x.json")
    with pytest.raises(FileNotFoundError, match=r"There is no file .*y\.json"):
        untrusted_json.read_object(tmp_path / "y.json")
    os.mkfifo(tmp_path / "z.json")
    with pytest.raises(ValueError, match=r"z\.json is a FIFO, not a file"):
        untrusted_json.read_object(tmp_path / "z.json")
