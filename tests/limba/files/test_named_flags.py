"""A flag that does not exist is answered with the nearest, in all commands."""

import pytest

from limba.addons.surgery import check as check_vocabulary
from limba.addons.vocab_build import command as build_command
from limba.files import named_flags


def _error(main, argv, capsys):
    with pytest.raises(SystemExit) as error:
        main(argv)
    assert error.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "argv", "near"),
    [
        (build_command.main, ["--data-files", "a.jsonl", "--out", "x"], "--data_files"),
        (build_command.main, ["--data-files=a.jsonl"], "--data_files"),
        (build_command.main, ["--data_files", "a.jsonl", "--out", "x", "--vocab-size", "512"], "--vocab_size"),
        (check_vocabulary.main, ["x", "--data-files", "a.jsonl"], "--data_files"),
    ],
)
def test_a_dash_for_an_underscore(main, argv, near, capsys):
    """Else the message is of the flag that is required."""
    said = _error(main, argv, capsys)
    dashed = near.replace("_", "-")
    assert f"has no flag {dashed}. Did you mean {near}? " in said and "usage" not in said and said.count("\n") == 1


def test_other_errors_stay(capsys):
    parser = named_flags.Parser(prog="x")
    parser.add_argument("--out", required=True)
    parser.add_argument("--lines")
    for argv, says in (
        (["--lin", "3"], "the following arguments are required: --out"),  # completed, as argparse does
        (["--strange", "3", "--out", "y"], "unrecognized arguments: --strange 3"),
        ([], "required: --out"),
    ):
        assert says in _error(parser.parse_args, argv, capsys)
    assert parser.parse_args(["--lin", "3", "--out", "y"]).lines == "3"
