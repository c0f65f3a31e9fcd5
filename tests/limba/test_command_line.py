"""What the commands have in common, and `limba` itself."""

import logging
import os
import subprocess
import sys
from unittest import mock

import gin
import pytest

from convert import __main__ as convert_command
from limba import cli, command_line
from limba.addons.cache import write_cache
from limba.addons.vocab_build import command as build_command
from limba.gin_config import gin_files
from limba.network.encoders.config import EncoderConfig
from limba.workers import distributed, heartbeats


def test_of_the_processes_of_a_launcher_the_first_prints():
    """Messages once, and an error that all have before they join too."""
    code = (
        "import logging, os\nfrom limba import command_line\n"
        "def main(argv):\n"
        "    logging.getLogger('limba.x').warning('a message')\n"
        "    os.write(1, b'of C++, ')\n"
        "    raise ValueError('wrong key')\n"
        "command_line.run_command(main, [])\n"
    )
    said = []
    for rank in ("0", "1"):
        torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | torchrun)
        assert done.returncode == 1
        said.append(done.stdout + done.stderr)
    assert said == ["of C++, WARNING a message\nerror: wrong key\n", ""]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--train_steps", "10"], "has no flag --train_steps. Did you mean --gin.TRAIN_STEPS=10"),
        (["--train_steps=10"], "has no flag --train_steps=10. Did you mean --gin.TRAIN_STEPS=10"),
        (["--MODEL_DIR=a/b"], "has no flag --MODEL_DIR=a/b. Did you mean --gin.MODEL_DIR=\"'a/b'\" or --gin.MODEL="),
        (["--gin_flie=x.gin"], "has no flag --gin_flie=x.gin. Did you mean --gin_file?"),
        (["--qqq"], "has no flag --qqq. Values of gin files are overridden as --gin.NAME=VALUE."),
    ],
)
def test_an_unknown_flag_is_answered_with_the_nearest_binding(flags, words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["limba", "train", *flags])
    parser = command_line.argument_parser("train", "")
    with pytest.raises(SystemExit) as ended:
        parser.parse_intermixed_args(flags)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith(f"error: limba train {words}") and said.count("\n") == 1


def test_a_pipe_without_a_reader_ends_silently():
    code = "from limba.command_line import run_command; run_command(lambda argv: print('x\\n' * 100_000))"
    shell = f'"{sys.executable}" -c "{code}" | head -n 1; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (141, "x\n", "")


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    "arguments", [["--help"], ["vocab", "--help"], ["--version"], ["runs", "--help"], ["runs", "."]]
)
def test_limba_ends_silently_in_a_pipe_without_a_reader(arguments, buffered, tmp_path):
    reads, writes = os.pipe()
    os.close(reads)
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= {} if buffered else {"PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "limba.cli", *arguments]
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path)
    os.close(writes)
    passed_over = arguments == ["runs", "--help"] and not buffered  # argparse's own, which it then counts as printed
    assert (done.returncode, done.stderr) == (0 if passed_over else 141, "")


@pytest.mark.parametrize(
    ("command", "arguments", "work"),
    [
        (convert_command, ["check", "a", "b"], "convert.check.run"),
        (build_command, ["--data_files=a.txt", "--out=x.model"], "limba.addons.vocab_build.command._train"),
        (write_cache, ["a", "--sequence_length=inputs=8", "--out=x"], "tasks.registry.providers.find_provider"),
    ],
)
def test_a_command_with_errors_of_its_own_leaves_a_broken_pipe_to_limba(monkeypatch, command, arguments, work):
    monkeypatch.setattr(work, mock.Mock(side_effect=BrokenPipeError))
    with pytest.raises(BrokenPipeError):
        command.main(arguments)


def test_binding_without_value():
    with pytest.raises(gin_files.GinError, match=r"--gin\.SIZE"):
        command_line.rewrite_gin_flags(["--gin.SIZE"])


@pytest.fixture
def _logging_as_before():
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    yield
    root.level, root.handlers[:] = before


@pytest.mark.usefixtures("_logging_as_before")
def test_command_errors_are_one_message_and_exit_code_1(capsys, monkeypatch):
    monkeypatch.delenv("LIMBA_TRACEBACK", raising=False)

    def broken(_):
        raise ValueError("batch_size is 3; use 4.\n  In call to configurable 'x' (<class 'X'>)")

    with pytest.raises(SystemExit) as stop:
        command_line.run_command(broken, [])
    assert stop.value.code == 1
    assert capsys.readouterr().err == "error: batch_size is 3; use 4.\n"

    def without_an_argument(_):
        gin.external_configurable(lambda optimizer: optimizer, "unbound_for_a_test")()

    with pytest.raises(SystemExit) as stop:
        command_line.run_command(without_an_argument, [])
    said = capsys.readouterr().err
    assert stop.value.code == 1
    assert said.endswith("No values supplied by Gin or caller for arguments: ['optimizer']\n") and "error: " in said

    def without_a_named_argument(_):
        gin.external_configurable(EncoderConfig, "EncoderConfig", module="unbound_for_a_test")()

    with pytest.raises(SystemExit) as stop:
        command_line.run_command(without_a_named_argument, [])
    said = capsys.readouterr().err
    assert stop.value.code == 1
    assert "error: The gin files bind no EncoderConfig.vocab_size; include a file of gin/models that does" in said
    assert "gin/models/t5_encoder.gin behind gin/runs/classify.gin" in said and "Traceback" not in said
    with pytest.raises(TypeError):  # An error of ours keeps its traceback.
        command_line.run_command(abs, [])
    with pytest.raises(TypeError):
        command_line.run_command(lambda _: EncoderConfig(), [])

    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stop:
        command_line.run_command(interrupted, [])
    assert stop.value.code == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


@pytest.mark.parametrize(("argument", "words"), [("trian", ["trian", "'train'"]), ("xyz", ["xyz", "convert"])])
def test_unknown_command(argument, words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["limba", argument])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    for word in words:
        assert word in capsys.readouterr().err or word == words[-1]


COMMANDS = ("train", "eval", "infer", "precompile", "gin-check", "convert", "vocab build", "preview")


def test_help_lists_every_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["limba", "--help"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert all(f"  {name} " in out for name in COMMANDS)
    assert all(cli.COMMANDS[name] for name in COMMANDS)


def test_a_command_of_two_words(monkeypatch, capsys):
    given = []
    monkeypatch.setattr(build_command, "main", given.append)
    monkeypatch.setattr(sys, "argv", ["limba", "vocab", "build", "--out", "x"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert given == [["--out", "x"]] and not stop.value.code
    for arguments, code, words in (
        (["vocab"], 2, "vocab check  prove"),
        (["vocab", "--help"], 0, "vocab build  train"),
        (["vocab", "bild"], 2, "Did you mean 'vocab build'?"),
    ):
        monkeypatch.setattr(sys, "argv", ["limba", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == code
        said = capsys.readouterr()
        assert words in said.out + said.err and "  preview " not in said.out


# --------------------------------------------------- T5X's command lines ---------------------------------------------


@pytest.fixture
def joined(monkeypatch):
    """The places that processes joined at."""
    places = []
    monkeypatch.setattr(distributed, "join", lambda place, timeout: places.append((place, timeout)))
    monkeypatch.setattr(heartbeats, "start", lambda: None)
    return places


def _flags(*argv):
    return command_line.parse_flags(command_line.argument_parser("train", ""), argv)


def test_t5x_flags(joined):
    flags = _flags(
        "--gin_file=a.gin", "--gin_file", "b.gin", "--gin.X=1", "--gin_search_paths=c,d", "--alsologtostderr", "-v=1"
    )
    assert (flags.gin_file, flags.gin_bindings, flags.gin_search_paths) == (["a.gin", "b.gin"], ["X = 1"], "c,d")
    assert logging.getLogger("limba").level == logging.DEBUG
    assert not _flags("--gin_file=a.gin", "--multiprocess_gpu=false", "--verbosity=0").dry_run
    assert joined == []
    _flags("--multiprocess_gpu", "--coordinator_address=h:1", "--process_count=2", "--process_index=1")
    assert joined == [(distributed.ClusterSettings("h:1", 2, 1), 60)]


@pytest.mark.parametrize(
    ("argument", "words"), [("--process_count=2", "add --multiprocess_gpu"), ("--fdl_config=x", "not by fiddle")]
)
def test_flags_that_lack_something(joined, argument, words):
    with pytest.raises(gin_files.GinError, match=words):
        _flags(argument)
    assert joined == []


def test_processes_that_nobody_names(joined):
    with pytest.raises(ValueError, match=r"coordinator_address and .*\. Set --coordinator_address"):
        _flags("--multiprocess_gpu")


def test_processes_that_the_environment_names(joined, monkeypatch):
    for name, value in (("COORDINATOR_ADDRESS", "h:1"), ("PROCESS_COUNT", "2"), ("PROCESS_INDEX", "0")):
        monkeypatch.setenv(f"LIMBA_{name}", value)
    _flags("--initialization_timeout=5")
    assert joined == [(distributed.ClusterSettings("h:1", 2, 0), 5)]
    _flags("--dry_run")  # needs nobody
    assert len(joined) == 1


def test_a_dry_run_prints_the_configuration_and_starts_nothing(tmp_path, capsys):
    (tmp_path / "run.gin").write_text("BATCH_SIZE = 8\n")
    gin_files.parse_gin_flags([str(tmp_path / "run.gin")], [])
    assert not command_line.goes_on(_flags("--dry_run"))
    gin.clear_config()
    assert "BATCH_SIZE = 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv", [["--run_mode=vocab", "x"], ["--gin_file=a", "--run_mode", "vocab", "x"], ["vocab", "--gin_file=a", "x"]]
)
def test_run_mode_is_a_command(monkeypatch, argv):
    monkeypatch.setattr(sys, "argv", ["limba", *argv])
    if argv[0].startswith("-"):
        assert cli._take_run_mode() == "vocab"
    assert sys.argv[1] == "vocab"
    assert sys.argv[-1] == "x"
    assert not [argument for argument in sys.argv if "run_mode" in argument]


def test_gin_files_are_arguments_too(capsys):
    parser = command_line.argument_parser("train", "Trains.")
    flags = command_line.parse_flags(parser, ["a.gin", "--gin_file=b.gin", "--gin.X=1", "--dry_run", "c.gin"])
    assert flags.gin_file == ["b.gin", "a.gin", "c.gin"] and flags.gin_bindings == ["X = 1"]
    with pytest.raises(SystemExit):
        command_line.parse_flags(parser, ["--help"])
    text = capsys.readouterr().out
    assert text.index("--help") < text.index("gin and files:") < text.index("T5X's flags:")


def test_a_run_stands_with_or_without_its_flag(capsys):
    parser = command_line.argument_parser("eval", "", takes_run=True)
    for words in (["a/run", "x.gin"], ["--run_dir", "a/run", "x.gin"], ["x.gin", "a/run"]):
        flags = command_line.parse_flags(parser, [*words, "--dry_run"])
        assert (flags.run_dir, flags.gin_file) == ("a/run", ["x.gin"])
    assert command_line.parse_flags(parser, ["x.gin", "--dry_run"]).run_dir is None
    with pytest.raises(SystemExit):
        command_line.parse_flags(parser, ["--run_dir", "a", "b", "--dry_run"])
    assert "give one run, not a and b" in capsys.readouterr().err
    parser = command_line.argument_parser("try", "", takes_files=False, takes_run=True)
    assert command_line.parse_flags(parser, ["a/run", "--dry_run"]).run_dir == "a/run"


def test_convert_takes_a_run_with_its_flag(tmp_path, capsys):
    assert convert_command._with_run_first(["out", "--run_dir", "r", "--overwrite"]) == ["r", "out", "--overwrite"]
    assert convert_command._with_run_first(["--run_dir=r", "out"]) == ["r", "out"]
    with pytest.raises(SystemExit):
        convert_command.main([str(tmp_path), "out"])
    assert f"Did you mean: limba convert to-hf {tmp_path} OUT" in capsys.readouterr().err


def test_a_command_that_fails_does_not_wait_for_what_it_compiles():
    code = """
import threading
from limba.command_line import run_command
from limba.devices import compiling

def main(argv):
    compiling.begin(threading.Event().wait)
    raise ValueError("step_8 is damaged")

run_command(main, [])
"""
    ended = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (1, "error: step_8 is damaged\n")
