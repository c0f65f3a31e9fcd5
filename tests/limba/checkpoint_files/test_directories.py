"""Folders that are given for a run, and are none."""

import json

import pytest

from limba.checkpoint_files import directories
from limba.checkpoints.restore import RestoreCheckpointConfig


def test_an_export_is_called_so(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        FileNotFoundError, match=r"is a Hugging Face folder, not a run: .*`limba convert from-hf .* runs/"
    ):
        directories.find_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="holds no checkpoint_<step> directory"):
        directories.find_checkpoint(tmp_path)


def test_an_output_folder_of_limba_run_means_its_run(tmp_path):
    (tmp_path / "config.json").write_text("{}")  # It is an export too.
    for step in (3, 12):
        (tmp_path / f"run/checkpoint_{step}/state").mkdir(parents=True)
    (tmp_path / "initial/checkpoint_0/state").mkdir(parents=True)
    assert directories.run_directory(tmp_path) == tmp_path / "run"
    assert directories.find_checkpoint(tmp_path) == tmp_path / "run/checkpoint_12"
    assert [path.name for path in directories.all_checkpoints(tmp_path)] == ["checkpoint_3", "checkpoint_12"]
    # A run's own directory and one checkpoint, which has a folder `run` too, are what they were.
    (tmp_path / "run/checkpoint_3/run").mkdir()
    for path in (tmp_path / "run", tmp_path / "run/checkpoint_3"):
        assert directories.run_directory(path) == path
    assert not directories.has_checkpoint(tmp_path / "run/checkpoint_3/run")


def test_the_index_file_of_a_classic_checkpoint_means_the_checkpoint(tmp_path):
    """T5X takes both as CHECKPOINT_PATH."""
    for step in (3, 12):
        (tmp_path / f"checkpoint_{step}").mkdir()
        (tmp_path / f"checkpoint_{step}/checkpoint").touch()
    given = tmp_path / "checkpoint_3/checkpoint"
    assert directories.find_checkpoint(given) == given.parent
    for mode in ("specific", "latest", "all"):
        assert RestoreCheckpointConfig(str(given), mode=mode).checkpoints == [given.parent]
    with pytest.raises(FileNotFoundError, match="a run's directory with 2 checkpoints"):
        _ = RestoreCheckpointConfig(str(tmp_path), mode="specific").checkpoints
    (tmp_path / "other").touch()
    with pytest.raises(FileNotFoundError, match="it is a file"):
        directories.find_checkpoint(tmp_path / "other")


def test_a_run_with_checkpoints_of_its_own_is_not_left_for_a_folder_in_it(tmp_path):
    for folder in ("checkpoint_5", "run/checkpoint_7"):
        (tmp_path / folder / "state").mkdir(parents=True)
    assert directories.find_checkpoint(tmp_path).name == "checkpoint_5"


def test_an_output_folder_of_limba_run_is_its_best_checkpoint_where_that_was_asked_for(tmp_path):
    for step in (10, 20):
        (tmp_path / f"run/checkpoint_{step}").mkdir(parents=True)
    state = tmp_path / "trainer_state.json"
    for content, name in (
        ({"best_global_step": 10}, "checkpoint_10"),
        ({"best_global_step": None}, "checkpoint_20"),
        ({"best_global_step": 5}, "checkpoint_20"),  # it was removed since
    ):
        state.write_text(json.dumps(content))
        assert directories.find_checkpoint(tmp_path).name == name
        assert directories.find_checkpoint(tmp_path / "run").name == "checkpoint_20"
    state.write_text("{")
    with pytest.raises(ValueError, match=r"trainer_state\.json"):
        directories.find_checkpoint(tmp_path)
