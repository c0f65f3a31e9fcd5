"""What a run has opened is closed, whichever fails; `test_ended_trainings`, `test_train`, `test_loop` have the rest."""

import contextlib
import errno

import pytest

from limba.checkpoints import checkpointing
from limba.training import rescue

FULL = OSError(errno.ENOSPC, "No space left on device")


class _Opened:
    def __init__(self, name, closed, error=None):
        self.name, self.closed, self.error = name, closed, error

    def close(self):
        self.closed.append(self.name)
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def _opened(model_dir, closed, **errors):
    """As `train()` does it: a lock, the checkpointer, a writer, the evaluation."""
    checkpointer = checkpointing.Checkpointer(model_dir, checkpointing.SaveCheckpointConfig(), use_orbax=False)
    with contextlib.ExitStack() as opened:
        opened.callback(closed.append, "lock")
        opened.enter_context(rescue.explaining_full_disks(checkpointer))
        for name in ("checkpointer", "writer", "evaluation"):
            opened.enter_context(rescue.closing(_Opened(name, closed, errors.get(name))))
        yield


ALL = ["evaluation", "writer", "checkpointer", "lock"]


def test_all_is_closed_and_the_lock_last(tmp_path):
    closed = []
    with _opened(tmp_path, closed):
        assert closed == []
    assert closed == ALL


def test_a_disk_that_is_full_while_closing_does_not_hide_the_first_error(tmp_path):
    closed = []
    with pytest.raises(RuntimeError, match="Shard 7"), _opened(tmp_path, closed, writer=FULL, checkpointer=FULL):
        raise RuntimeError("Shard 7 cannot be read")
    assert closed == ALL


@pytest.mark.parametrize("at", ["evaluation", "writer", "checkpointer"])
def test_a_disk_that_is_full_says_where_the_run_resumes(tmp_path, at):
    (tmp_path / "checkpoint_2").mkdir()
    closed = []
    expected = rf"{tmp_path} cannot be written: the disk is full .* The last good one is {tmp_path}/checkpoint_2\."
    with pytest.raises(checkpointing.SaveError, match=expected), _opened(tmp_path, closed, **{at: FULL}):
        pass
    assert closed == ALL
    with pytest.raises(checkpointing.SaveError, match=expected), _opened(tmp_path, closed):
        raise FULL


@pytest.mark.parametrize(
    "error", [checkpointing.SaveError("checkpoint_4 cannot be written"), OSError("no route to host")]
)
def test_other_errors_stay_as_they_are(tmp_path, error):
    with pytest.raises(OSError) as raised, _opened(tmp_path, []):
        raise error
    assert raised.value is error
