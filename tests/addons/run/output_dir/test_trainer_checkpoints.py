"""A training goes on from a checkpoint of Hugging Face's Trainer."""

import dataclasses
import json
import shutil

import pytest

from limba.addons.run import gin_text, planning
from limba.addons.run.keys.script_keys import from_values
from limba.addons.run.output_dir import earlier_run, refused_starts, trainer_checkpoints
from limba.addons.run.plan import Counted
from tests.addons.run.plans import plan_of

KEYS = {"model_name_or_path": "m", "train_file": "t.csv", "do_train": True, "label_column_name": "l"}


@pytest.fixture
def out(tmp_path):
    """What the Trainer leaves of a training that has ended, and two things of the user's."""
    out = tmp_path / "hf_out"
    for step in (5, 10, 20):
        folder = out / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "optimizer.pt", "tokenizer.json"):
            (folder / name).write_text(str(step))
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (out / "checkpoint-90").mkdir()  # no record in it
    for name in ("notes.txt", "all_results.json", "config.json", "training_args.bin"):
        (out / name).write_text("x")
    return out


def _arguments(out, **keys):
    return from_values(KEYS | {"output_dir": str(out)} | keys)[0]


def _taken(out, **keys):
    """The keys with those that go on from a checkpoint."""
    arguments = _arguments(out, **keys)
    return dataclasses.replace(arguments, **trainer_checkpoints.keys_of(arguments, out))


def _all(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_text() for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("keys", "step"),
    [
        ({}, 20),
        ({"resume_from_checkpoint": True}, 20),
        ({"resume_from_checkpoint": True, "overwrite_output_dir": True}, 20),
        ({"resume_from_checkpoint": "{}/checkpoint-10"}, 10),
        ({"initialize_from_scratch": True}, 20),
        ({"overwrite_output_dir": True}, None),
        ({"do_train": False, "do_eval": True, "validation_file": "v.csv"}, None),
    ],
)
def test_the_newest_or_the_named_one(out, keys, step):
    keys = {name: value.replace("{}", str(out)) if isinstance(value, str) else value for name, value in keys.items()}
    arguments = _taken(out, **keys)
    assert (arguments.of_trainer is not None) == (step is not None)
    assert arguments.model_name_or_path == ("m" if step is None else f"{out}/checkpoint-{step}")
    assert not arguments.initialize_from_scratch and arguments.tokenizer_name is None


def test_a_checkpoint_in_another_folder_and_a_tokenizer_that_is_not_beside_it(out, tmp_path):
    (out / "checkpoint-5" / "tokenizer.json").unlink()
    arguments = _taken(tmp_path / "new", resume_from_checkpoint=str(out / "checkpoint-5"))
    assert arguments.model_name_or_path == f"{out}/checkpoint-5" and arguments.tokenizer_name == "m"
    earlier_run.resumed_step(arguments.resume_from_checkpoint, tmp_path / "new")


def test_steps_count_on(out, caplog):
    arguments = _taken(out)
    assert trainer_checkpoints.first_step(arguments.of_trainer, 21, out) == 20
    assert "goes on with its weights at step 20 of 21" in caplog.text and "moments begin at 0" in caplog.text
    assert trainer_checkpoints.first_step(arguments.of_trainer, 20, out) is None
    assert "at step 20, and this training has 20 steps: nothing is trained, and " in caplog.text
    text = gin_text.compose(plan_of(arguments, has_weights=True, examples=Counted(9, True, 9)))
    assert "RestoreCheckpointConfig.reset = ['optimizer']  # steps count on" in text
    text = gin_text.compose(plan_of(_arguments(out), has_weights=True, examples=Counted(9, True, 9)))
    assert "reset = ['step', 'optimizer']" in text


def test_a_record_that_is_damaged(out):
    (out / "checkpoint-20" / "trainer_state.json").write_text("{}")
    with pytest.raises(ValueError, match=r"checkpoint-20/trainer_state.json is damaged: it needs `global_step`"):
        _taken(out)


def test_results_make_room_and_checkpoints_stay(out):
    before, arguments = _all(out), _taken(out)
    with refused_starts.put_back(out) as start:
        planning.check_folder(arguments, out)
        start.moved = earlier_run.make_room(arguments, out, "")
    assert start.moved == out / "before_1"
    assert {path.name for path in start.moved.iterdir()} == {"all_results.json", "config.json"}
    assert {"checkpoint-20", "notes.txt", "training_args.bin"} <= {path.name for path in out.iterdir()}
    start.put_back()
    assert _all(out) == before


def test_a_run_that_went_on_is_resumed_and_no_other(out, caplog):
    arguments = _taken(out)
    (out / "run.json").write_text(json.dumps(arguments.without_secrets()))
    (out / "run.gin").write_text("")
    (out / "run" / "checkpoint_30").mkdir(parents=True)
    for keys in ({}, {"resume_from_checkpoint": True}, {"resume_from_checkpoint": str(out / "checkpoint-20")}):
        assert _taken(out, **keys) == arguments
    planning.check_folder(arguments, out)
    assert earlier_run.make_room(arguments, out, "") is None
    assert trainer_checkpoints.first_step(arguments.of_trainer, 20, out) == 20 and not caplog.records
    # Another one begins another run, and the old one is kept.
    other = _taken(out, resume_from_checkpoint=str(out / "checkpoint-10"))
    assert trainer_checkpoints.begins_again(other.of_trainer, out) and not trainer_checkpoints.begins_again(
        arguments.of_trainer, out
    )
    planning.check_folder(other, out)
    assert earlier_run.make_room(other, out, "") == out / "before_1"
    assert (out / "before_1" / "run" / "checkpoint_30").is_dir() and (out / "checkpoint-20").is_dir()
    # One that a user began with these weights, at step 0, stays one.
    keys = arguments.without_secrets() | {"resume_from_checkpoint": None}
    (out / "run" / "checkpoint_30").mkdir(parents=True)
    (out / "run.json").write_text(json.dumps(keys))
    assert not _taken(out, model_name_or_path=str(out / "checkpoint-20")).of_trainer


def test_overwriting_moves_the_whole_training_away(out, caplog):
    before, arguments = _all(out), _arguments(out, overwrite_output_dir=True)
    with refused_starts.put_back(out) as start:
        planning.check_folder(arguments, out)
        start.moved = earlier_run.make_room(arguments, out, "")
    assert start.moved == out / "before_1" and f"the old one is kept in {start.moved}" in caplog.text
    kept = ("notes.txt", "checkpoint-90")
    assert {path.name for path in out.iterdir()} <= {"before_1", "run", *kept}
    assert {x: y for x, y in _all(start.moved).items() if x not in kept} == {
        name: text for name, text in before.items() if name not in kept
    }
    part = _arguments(out, overwrite_output_dir=True, train_file=str(out / "checkpoint-20" / "t.csv"))
    start.put_back()
    assert {name: text for name, text in _all(out).items() if name[:3] != "run"} == before
    with pytest.raises(ValueError, match=r"moves the run in .* away, and train_file .* is a part of it"):
        planning.check_folder(part, out)


def test_a_model_without_checkpoints_makes_room_when_asked(out, caplog):
    for folder in out.glob("checkpoint-*"):
        shutil.rmtree(folder)
    with pytest.raises(ValueError, match=r"holds the file config.json, which no .* or write overwrite_output_dir"):
        planning.check_folder(_arguments(out), out)
    arguments = _arguments(out, overwrite_output_dir=True)
    planning.check_folder(arguments, out)
    assert earlier_run.make_room(arguments, out, "") == out / "before_1"
    assert {path.name for path in out.iterdir()} <= {"before_1", "notes.txt", "training_args.bin", "run"}
    assert {path.name for path in (out / "before_1").iterdir()} == {"all_results.json", "config.json"}
    assert earlier_run.make_room(arguments, out, "") is None  # nothing is left to move


def test_an_evaluation_has_a_folder_of_its_own(out):
    keys = {"do_train": False, "do_eval": True, "validation_file": "v.csv"}
    for model, folder in (("m", out / "evaluated"), (str(out), out.with_name("hf_out_evaluated"))):
        arguments = _taken(out, **keys, model_name_or_path=model)
        assert arguments.work_folder == folder
        planning.check_folder(arguments, out)  # Whatever is there stays.
    assert _arguments(out).work_folder == out
    # A run with another model is no hindrance either.
    (out / "run.json").write_text(json.dumps(_arguments(out, model_name_or_path="other").without_secrets()))
    planning.check_folder(_arguments(out, **keys), out)
    with pytest.raises(ValueError, match="holds a run with model_name_or_path 'other'"):
        earlier_run.check(_arguments(out), out)
