"""What needs no T5X: the arguments, and how losses are compared."""

import os
import sys

import pytest

from benchmarks import handover


@pytest.fixture
def reference(tmp_path):
    for name in handover.GIVEN:
        path = tmp_path / "reference" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "reference"


@pytest.fixture
def t5x_dir(tmp_path):
    (tmp_path / "checkout" / "t5x").mkdir(parents=True)
    (tmp_path / "checkout" / "t5x" / "trainer.py").touch()
    return tmp_path / "checkout"


def test_everything_given_passes(reference, t5x_dir):
    handover.check(reference, t5x_dir, sys.executable)


@pytest.mark.parametrize("missing", handover.GIVEN)
def test_a_reference_is_whole(reference, t5x_dir, missing):
    (reference / missing).unlink()
    with pytest.raises(FileNotFoundError, match=f"reference/{missing} is missing"):
        handover.check(reference, t5x_dir, sys.executable)


def test_t5x_is_a_checkout(reference, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"--t5x_dir={tmp_path} is not a checkout"):
        handover.check(reference, tmp_path, sys.executable)


def test_the_interpreter_is_one(reference, t5x_dir):
    with pytest.raises(FileNotFoundError, match="--t5x_python=no/such/python"):
        handover.check(reference, t5x_dir, "no/such/python")


@pytest.mark.exhaustive
def test_a_t5x_that_fails_says_why(reference, t5x_dir, tmp_path):
    (t5x_dir / "t5x" / "__init__.py").write_text("raise ImportError('this T5X lacks its dependencies')")
    with pytest.raises(RuntimeError, match="this T5X lacks its dependencies"):
        handover.t5x_goes_on(reference, [tmp_path], t5x_dir, sys.executable, tmp_path)


def test_the_largest_difference_of_a_loss():
    assert handover.difference([4.0, 2.0], [4.0, 2.0]) == 0
    assert handover.difference([4.0, 2.5], [4.0, 2.0]) == pytest.approx(0.25)
    assert not handover.difference([4.0, float("nan")], [4.0, 2.0]) <= handover.LOSS_TOLERANCE
    with pytest.raises(ValueError, match="3 steps were trained, not 2: the checkpoint is of another step"):
        handover.difference([8.0, 4.0, 2.0], [4.0, 2.0])


def test_the_command_ends_with_one_message(tmp_path, forks):
    result = forks.run(["benchmarks.handover", str(tmp_path), "--t5x_dir", str(tmp_path)], dict(os.environ))
    assert result.returncode == 1
    assert "kit/kit.gin is missing" in result.stderr and "Traceback" not in result.stderr
