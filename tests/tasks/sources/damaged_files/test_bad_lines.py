import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.sources import corpora
from tasks.sources.remote_files import http_files


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        # A blank line counts, as in an editor.
        ("a.jsonl", b'{"text": "eins"}\n\n{"text": "drei"\n{"text": "vier"}\n', "line 3 is not JSON: Expecting ',' de"),
        ("a.jsonl", b'{"text": "eins"}\n["zwei"]\n', "line 2 is a list, and a row is an object"),
        ("a.jsonl", b'{"text": "eins"}\n{"text": "zw\xe9i"}\n', "line 2 is not UTF-8: byte 0xe9 at column 13. Save it"),
        ("a.jsonl", b'{"text": "eins"}\n{"text": "' + b"[" * 5, "line 2 is not JSON: Unterminated string .*column 10"),
        # Arrow ends the process on such a line.
        ("a.jsonl", b'{"text": "eins"}\n{"text": "zwei", "x": ' + b"[" * 100_000, "line 2 has more than 200 brackets"),
        ("a.jsonl", b'{"text": "eins"}\n{"text": "zwei", "x": {"y"' + b": [[" * 101, "line 2 has more than 200 bracke"),
        ("a.csv", b'text,mood\n"two\nlines",sad\ndrei,glad,sad\n', "line 4 has 3 fields, and the header 2. Put texts"),
        ("a.csv", b'text,mood\neins,sad\n"zwei,sad\ndrei,sad\n', "line 3 opens a quote that is not closed. Close it"),
        ("a.csv", b'text,mood\n"' + b"zwei," * 30_000, "line 2 opens a quote that is not closed, or only far behind"),
        ("a.tsv", b"text\tmood\nja, ja, ja\tsad\ndrei\tsad\tglad\n", "line 3 has 3 fields, and the header 2. Put"),
        ("a.csv", b"text;mood\nja, ja;sad\n", "its header 'text;mood' is separated by ';', and fields by ','. Save it"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b", "text": "c"}\n', "line 2 has the key 'text' twice. Leave one of th"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "\\ud83d b"}\n', r"line 3 has half of a character, \\ud83d, in 'text'"),
        ("a.json", b'[{"text": "a"},\n{"text": "\\ud83d b"}]', r"row 2 of its list has half of a character, .* whole,"),
        ("a.txt", "ä\n".encode() + b"\xe4\n", "line 2 is not UTF-8: byte 0xe4 at column 1"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_the_line_is_named_as_an_editor_counts(tmp_path, name, content, words, compressed):
    file = tmp_path / (f"{name}.gz" if compressed else name)
    file.write_bytes(gzip.compress(content) if compressed else content)
    columns = ["text", "mood"] if name.endswith("sv") else ["text"]
    with pytest.raises(http_files.BrokenFileError, match=words):
        list(corpora.HuggingFaceSource({"train": str(file)}, columns).documents("train"))


def test_a_file_whose_lines_mean_nothing_keeps_its_readers_message(tmp_path):
    (tmp_path / "a.json").write_text('[{"text": "eins"},\n{"text": 1\n]')
    with pytest.raises(http_files.BrokenFileError, match=r"from row 0 on \(\w+"):
        list(corpora.HuggingFaceSource({"train": str(tmp_path / "a.json")}, ["text"]).documents("train"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [("5", "a number as 'text', 5"), ('["x"]', "a list as 'text', [\"x\"]"), ("true", "true or false as 'text', true")],
)
@pytest.mark.parametrize("between", ["\n\n", '\n{"text": null}\n', '{"text": null}\n{"text": "zwei"}\n'])
def test_the_line_with_a_value_of_another_type_is_named(tmp_path, value, shown, between):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "eins"}}\n{between}{{"text": {value}}}\n{{"text": "x"}}\n')
    with pytest.raises((ValueError, http_files.BrokenFileError), match=r"a\.jsonl") as caught:
        corpora.HuggingFaceSource({"train": str(tmp_path / "a.jsonl")}).check("train")
    assert f": line 4 has {shown}, and line 1 a text" in str(caught.value)


def test_what_other_columns_have_twice_does_not_matter(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1, "n": 2, "text": "a", "x": "\\ud83d", "y": {"z": 1, "z": 2}}\n')
    source = corpora.HuggingFaceSource({"train": str(tmp_path / "a.jsonl")})
    assert list(source.documents("train")) == [[{"text": "a"}]]


def test_a_key_twice_inside_of_a_column_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "y": {"z": [{"u": 1}, {"u": 1, "u": 2}]}}\n')
    source = corpora.HuggingFaceSource({"train": str(tmp_path / "a.jsonl")}, nested_columns=["y"])
    with pytest.raises(http_files.BrokenFileError, match="line 1 has the key 'u' twice, in 'y'"):
        list(source.documents("train"))


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (("a.json", "a.txt"), ("json", "text")),
        (("a.txt", "b.jsonl.gz"), ("text", "json")),
        (("a.csv", "b.tsv"), ("csv", "tsv")),
    ],
)
def test_files_of_several_formats_are_named_and_not_read_as_one(tmp_path, names, kinds):
    """Lines of JSON were documents of text, and rows of csv without the column were left out silently."""
    for name in names:
        (tmp_path / name).write_text("text\n")
    source = corpora.HuggingFaceSource({"train": [str(tmp_path / name) for name in names]})
    with pytest.raises(ValueError) as error:
        source.check("train")
    first, second = (tmp_path / name for name in names)
    assert f"{first} is {kinds[0]} and {second} {kinds[1]}. Name files of one format" in str(error.value)


def test_files_without_a_known_ending_and_a_builder_are_read_as_before(tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.log").write_text("two\n")
    (tmp_path / "c.csv").write_text("three\n")
    first = corpora.HuggingFaceSource({"train": [str(tmp_path / "a.txt"), str(tmp_path / "b.log")]})
    assert [x["text"] for part in first.documents("train") for x in part] == ["one", "two"]
    files = [str(tmp_path / name) for name in ("a.txt", "c.csv")]
    assert sum(map(len, corpora.HuggingFaceSource({"train": files}, builder="text").documents("train"))) == 2


@pytest.mark.parametrize(
    ("name", "words"), [("a.jsonl", "line 9 is not UTF-8: byte 0xec"), ("a.parquet", "Invalid UTF8")]
)
def test_bytes_that_are_not_utf_8_do_not_become_other_characters(tmp_path, name, words):
    """A reader of arrays does not look at texts: a vocabulary would replace the bytes, and a training go on."""
    texts = [*(b"good" for _ in range(8)), "мама".encode("cp1251"), b"good"]
    if name.endswith(".jsonl"):
        (tmp_path / name).write_bytes(b"".join(b'{"text": "' + text + b'"}\n' for text in texts))
    else:
        pq.write_table(pa.table({"text": pa.array(texts, pa.binary()).view(pa.string())}), tmp_path / name)
    source = corpora.HuggingFaceSource({"train": str(tmp_path / name)})
    with pytest.raises(http_files.BrokenFileError, match=rf"{name} cannot be read .*{words}"):
        list(source.chunks_of("train", shuffle=False, seed=0).documents(num_epochs=1))
    with pytest.raises(http_files.BrokenFileError, match=rf"{name} cannot be read .*{words}"):
        list(source.numbered_documents("train"))
