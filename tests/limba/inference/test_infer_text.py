import functools
import json

import pytest

from limba import infer
from limba.addons.vectors import embed
from limba.checkpoints import checkpointing
from limba.gin_config.gin_files import GinError
from limba.inference import answering, infer_text, input_files
from tasks.supervised import SupervisedDataset, register_supervised_task
from tasks.vocabularies import ByteVocabulary


class _Counter:
    """Answers a line with its length, and breaks down at a line "stop"."""

    lines_at_once, batch_size = 4, 2
    begun: list[int] = []

    def __init__(self, restore_checkpoint_cfg, stop=True):
        self._stop = stop

    def find_unknown(self, lines):
        return ""

    def answer(self, lines, done=0):
        self.begun.append(done)
        for line in lines[done:]:
            if line == "stop" and self._stop:
                raise KeyboardInterrupt
            yield answering.Answer(line, f"{len(line)} ă", f"{len(line)} ă", -1.0)


def _infer(path, inputs, output_file, stop=False, overwrite=False):
    return infer_text.infer_text(
        answerer_cls=functools.partial(_Counter, stop=stop),
        restore_checkpoint_cfg=checkpointing.RestoreCheckpointConfig(path=path),
        inputs=inputs,
        output_file=output_file and str(output_file),
        overwrite=overwrite,
    )


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "checkpoint_3"
    path.mkdir()
    (path / "checkpoint").write_bytes(b"x")  # T5X's classic format has this file
    return str(path)


def test_printed(checkpoint, capsys):
    _infer(checkpoint, ["ab", "c"], None)
    assert capsys.readouterr().out == "ab\n  -> 2 ă\nc\n  -> 1 ă\n"
    infer_text._print(answering.Answer("a", "", "", -1.0, (" ", "b")))
    assert capsys.readouterr().out == "a\n  -> (an empty answer)\n  or (an empty answer)\n  or b\n"


def test_what_the_vocabulary_does_not_know_is_one_warning(checkpoint, monkeypatch, caplog):
    monkeypatch.setattr(_Counter, "find_unknown", lambda self, lines: f"{len(lines)} inputs have ș.")
    _infer(checkpoint, ["ab", "c"], None)
    assert [record.getMessage() for record in caplog.records] == ["2 inputs have ș."]


def test_inputs_without_blanks_to_a_model_that_fills_them_are_one_warning(checkpoint, monkeypatch, caplog):
    answers = {"ab": "<extra_id_0> c", "a <extra_id_0>": "<extra_id_0> d", "c": "e"}
    found = [answering.Answer(line, answer, answer, -1.0) for line, answer in answers.items()]
    monkeypatch.setattr(_Counter, "answer", lambda self, lines, done=0: iter(found))
    _infer(checkpoint, list(answers), None)
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("1 of 3 inputs without a blank got words for blanks. This model fills blanks: write ___")


def test_an_interrupted_file_goes_on(checkpoint, tmp_path, capsys):
    lines = ["a" * i for i in range(1, 10)] + ["stop", "b"]
    out, unfinished = tmp_path / "new" / "out.jsonl", tmp_path / "new" / "out.jsonl.unfinished"
    with pytest.raises(KeyboardInterrupt):
        _infer(checkpoint, lines, out, stop=True)
    assert not out.exists() and len(unfinished.read_text().splitlines()) == 1 + 9
    with unfinished.open("a") as file:
        file.write('{"input": "cut in the mid')
    with pytest.raises(ValueError, match="holds answers of an interrupted call, and this one has another inputs"):
        _infer(checkpoint, lines[:5], out)
    _Counter.begun.clear()
    _infer(checkpoint, lines, out)
    assert _Counter.begun == [8]  # whole groups of lines_at_once
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["input"] for row in rows] == lines
    assert rows[1] == {"input": "aa", "prediction": "2 ă", "filled": "2 ă", "score": -1.0, "others": []}
    assert not unfinished.exists() and "11 answers in" in capsys.readouterr().out


def test_nothing_to_answer(checkpoint):
    with pytest.raises(ValueError, match="--input"):
        _infer(checkpoint, [], None)
    with pytest.raises(FileNotFoundError, match="one input a line"):
        input_files.read_lines("/nowhere.txt")


def test_answers_that_could_not_be_written_are_not_made(checkpoint, tmp_path):
    (tmp_path / "file").write_text("x")
    for out, words in ((tmp_path, "is a folder; name a file"), (tmp_path / "file" / "out.jsonl", "file is a file")):
        with pytest.raises(ValueError, match=words):
            _infer(checkpoint, ["a"], out)
    for content in ("{cut", "[1]"):
        (tmp_path / "out.jsonl.unfinished").write_text(f"{content}\n")
        with pytest.raises(ValueError, match=r"out.jsonl.unfinished is not the file of an interrupted call"):
            _infer(checkpoint, ["a"], tmp_path / "out.jsonl")


def test_a_line_of_a_file_is_one_input(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes("\ufeffa\u2028b\r\nc\x85d\x0c\n\ne".encode())
    assert input_files.read_lines(str(file)) == ["a\u2028b", "c\x85d\x0c", "", "e"]
    file.write_bytes("a\ncafé\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"lines.txt is not UTF-8 in line 2 .*; save it as UTF-8"):
        input_files.read_lines(str(file))
    with pytest.raises(ValueError, match=r"is the input file, which the answers would replace"):
        infer.main(["--run_dir", str(tmp_path), "--input_file", str(file), "--output_file", f"{file}"])


def test_a_hole_is_no_input(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "_MOST_OF_LINE", 2**20)
    with (tmp_path / "lines.txt").open("wb") as file:
        file.write(b"a\n")
        file.truncate(2**22)
    with pytest.raises(ValueError, match=r"lines\.txt has more than 1,048,576 bytes in line 2: cut it"):
        input_files.read_lines(str(tmp_path / "lines.txt"))


def test_a_text_that_is_the_name_of_a_file_is_named(tmp_path, caplog):
    (tmp_path / "متن.txt").touch()
    names = input_files.line_names(["a", f"{tmp_path}/متن.txt", "x" * 300], "-")
    assert [names(number) for number in (1, 3, 4)] == ["--input 1", "--input 3", "line 1 of -"]
    (record,) = caplog.records
    assert "متن.txt is taken for a text; --input_file" in record.getMessage()


def test_the_command_says_what_is_empty_or_no_number(tmp_path, capsys):
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match=r"--input_file .*empty\.txt is empty; write one input a line"):
        infer.main(["--run_dir=runs/mine", f"--input_file={tmp_path / 'empty.txt'}"])
    with pytest.raises(SystemExit, match="2"):
        infer.main(["--run_dir=runs/mine", "--validation=0"])
    assert capsys.readouterr().err == "error: --validation 0: it is a number of sentences, at least 1.\n"


def test_an_older_file_is_replaced_only_on_request(checkpoint, tmp_path, capsys):
    """Nothing is loaded before the refusal; a device is no older file."""
    out = tmp_path / "out.jsonl"
    out.write_text("old")
    message = f"--output_file {out} exists. Choose another name, or give --overwrite to replace it."
    for command in (infer, embed):
        file = out if command is infer else out.with_suffix(".npy")
        file.write_text("old")
        with pytest.raises(FileExistsError, match=rf"--output_file {file} exists\. .*--overwrite"):
            command.main([str(tmp_path / "no_run"), "--input", "a", "--output_file", str(file)])
    with pytest.raises(FileExistsError) as error:
        _infer(checkpoint, ["a"], out)
    assert str(error.value) == message and out.read_text() == "old"
    _infer(checkpoint, ["a"], out, overwrite=True)
    assert json.loads(out.read_text())["input"] == "a"
    _infer(checkpoint, ["a"], "/dev/stdout")
    assert capsys.readouterr().err == "1 answers in /dev/stdout\n"


@pytest.fixture
def table(tmp_path):
    (tmp_path / "new.csv").write_text("story,mood\nAna ___ lost,\nBen won,\n")
    data = {"train": "x.csv"}
    entry = SupervisedDataset("{story} mood:", "mood", ["glad", "sad"])
    register_supervised_task("table_moods", entry, data_files=data, vocabulary=ByteVocabulary(100))
    return str(tmp_path / "new.csv")


def _given(monkeypatch, *flags, parse=lambda *_, **__: None):
    """The arguments that `limba infer RUN` calls its function with."""
    given = {}
    monkeypatch.setattr(infer.run_configuration, "newest_checkpoint", lambda run: "run/checkpoint_1")
    monkeypatch.setattr(infer.run_configuration, "parse", parse)
    monkeypatch.setattr(infer.gin_files, "require_bindings", lambda **_: None)
    monkeypatch.setattr(infer, "_task_of", lambda checkpoint: ("table_moods", None))
    monkeypatch.setattr(infer.gin_files, "configurable", lambda function, module: given.update)
    assert infer.main(["run", *flags]) == 0
    return given


def test_rows_of_a_table_are_read_as_the_task_reads_them(table, monkeypatch, caplog):
    needs_tasks = []
    parse = lambda flags, file, bindings, needs_tasks=True, seen=needs_tasks: seen.append(needs_tasks)  # noqa: E731
    with caplog.at_level("INFO", "limba"):
        given = _given(monkeypatch, "--input", "a ___", "--input_file", table, parse=parse)
    assert given["inputs"] == ["a <extra_id_0>", "Ana ___ lost mood:", "Ben won mood:"]
    assert [given["name_line"](i) for i in (1, 2)] == ["--input 1", f"row 1 of {table}"]
    assert [record.getMessage() for record in caplog.records if record.name.startswith("limba")] == [
        f"1 of 2 rows of {table} have ___, which is text there, as in training; a blank is <extra_id_0>, <extra_id_1> "
        "…, or [MASK] for an encoder.",
        f"{table}: 2 rows, read as task 'table_moods' reads them: '{{story}} mood:'.",
    ]
    given = _given(monkeypatch, "--input_file", table, "--text_column", "story", parse=parse)
    assert given["inputs"] == ["Ana <extra_id_0> lost", "Ben won"] and needs_tasks == [True, False]


def test_a_blank_of_a_line_is_that_of_an_input(tmp_path, monkeypatch, caplog):
    (tmp_path / "lines.txt").write_text("a ___ b ___\nc <extra_id_0>\n")
    given = _given(monkeypatch, "--input", "a ___ b ___", "--input_file", str(tmp_path / "lines.txt"))
    assert given["inputs"] == [*["a <extra_id_0> b <extra_id_1>"] * 2, "c <extra_id_0>"] and not caplog.records
    monkeypatch.setattr(infer.run_folder, "has_blanks", lambda checkpoint: False)
    assert _given(monkeypatch, "--input_file", str(tmp_path / "lines.txt"))["inputs"][0] == "a ___ b ___"


def test_a_dash_is_standard_output(monkeypatch):
    assert _given(monkeypatch, "--input", "a", "--output_file", "-")["output_file"] == "/dev/stdout"


def test_underscores_are_text_where_a_task_has_no_blanks(monkeypatch):
    for recorded, expected in ({}, "a <extra_id_0> b"), ({"has_blanks": False}, "a ___ b"):
        monkeypatch.setattr(infer.run_folder, "has_run_info", lambda checkpoint: True)
        monkeypatch.setattr(infer.run_folder, "load_run_info", lambda checkpoint, info=recorded: info)
        assert _given(monkeypatch, "--input", "a ___ b")["inputs"] == [expected]


def test_what_to_give_where_the_column_of_a_table_is_not_known(table, tmp_path, monkeypatch):
    def fails(*_, **__):
        raise GinError("There is no module 'my_tasks'.")

    with pytest.raises(GinError, match=r"no module 'my_tasks'\. Or name the column with the texts: --text_column NAME"):
        _given(monkeypatch, "--input_file", table, parse=fails)
    with pytest.raises(ValueError) as error:
        input_files.read_as_task(table, "table_modes", None)
    assert str(error.value).startswith(
        f"--input_file {table} is a table with the columns 'story', 'mood', and the run's task does not read it: There "
        "is no task or mixture 'table_modes'."
    )
    assert str(error.value).endswith("Name the column with the texts: --text_column NAME.")
    (tmp_path / "a.txt").write_text("a\n")
    for file in (str(tmp_path / "a.txt"), "-", None):
        with pytest.raises(ValueError, match=rf"--text_column story is for a table, .*--input_file is {file}"):
            input_files.read_texts(file, "story")
    with pytest.raises(ValueError, match=r"There is no column 'text' in .*The columns are 'story', 'mood'"):
        embed.main(["run", "--input_file", table, "--output_file", str(tmp_path / "new.npy")])
