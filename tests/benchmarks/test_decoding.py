"""The benchmark of decoding at a tiny size: what it decodes, and that nothing ends early."""

import pytest

from benchmarks import compiled_decoding, decoding


def test_bad_numbers_are_refused(capsys):
    with pytest.raises(SystemExit):
        decoding.parse_arguments(["--new_tokens", "0"])
    assert "--new_tokens is 0; it must be at least 1" in capsys.readouterr().err


def test_a_token_is_counted_on_gpus_alone(capsys):
    with pytest.raises(SystemExit):
        compiled_decoding.main(["--topology", "v4-8"])
    assert "--topology is v4-8; only of GPUs the program says what a token reads" in capsys.readouterr().err
