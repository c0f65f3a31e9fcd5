"""A run of somebody else may hold links: what it continues changes no file outside of it."""

import shutil

import pytest

from limba.checkpoints import checkpointing
from tests.limba import small


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    small.train(folder / "run", total_steps=4)
    return folder / "run"


def _with_links(trained, folder):
    """A copy of the run whose files and folders are links to another copy, but for the checkpoints."""
    run, theirs = folder / "run", folder / "theirs"
    shutil.copytree(trained, theirs)
    (theirs / "run.lock").touch()
    run.mkdir()
    for path in theirs.iterdir():
        if path.name.startswith("checkpoint_"):
            shutil.copytree(path, run / path.name)
        else:
            (run / path.name).symlink_to(path)
    return run, theirs


def _content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_goes_on_beside_the_files_of_others(trained, tmp_path):
    run, theirs = _with_links(trained, tmp_path)
    before, refused = _content(theirs), []
    for _ in range(10):
        try:
            step, _ = small.train(run)
            break
        except ValueError as error:
            assert "is a link to " in str(error) and "Remove the link." in str(error)
            (link,) = [path for path in run.iterdir() if str(error).startswith(f"{path} ")]
            refused.append(link.name)
            link.unlink()
            assert _content(theirs) == before
    assert sorted(refused) == ["goodput.jsonl", "run.lock", "train", "training_eval"]
    assert step == 6 and checkpointing.checkpoint_steps(run)[-1] == 6
    assert _content(theirs) == before
    assert not (run / "metrics.jsonl").is_symlink() and (run / "metrics.jsonl").read_bytes()
