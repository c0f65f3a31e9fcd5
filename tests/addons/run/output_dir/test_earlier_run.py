"""What becomes of a run that is in OUTPUT_DIR already."""

import json
import logging

import pytest

from limba.addons.run import planning
from limba.addons.run.keys.script_keys import from_values
from limba.addons.run.output_dir import earlier_run, given_files

KEYS = {"model_name_or_path": "m", "train_file": "t.csv", "do_train": True, "label_column_name": "l"}
GIN = "RANDOM_SEED = 42\nTRAIN_STEPS = 9\n"


@pytest.fixture
def out(tmp_path):
    """A run with checkpoints, its gin file and its results, and a file of the user's."""
    out = tmp_path / "out"
    for step in (3, 6, 9):
        (out / "run" / f"checkpoint_{step}").mkdir(parents=True)
    (out / "run.gin").write_text(GIN)
    (out / "run.json").write_text(json.dumps(_arguments(out).without_secrets()))
    for name in ("eval_results.json", "config.json", "mine.txt"):
        (out / name).write_text("{}")
    return out


def _arguments(out, **keys):
    return from_values(KEYS | {"output_dir": str(out)} | keys)[0]


def _steps(folder):
    return sorted(path.name for path in folder.glob("checkpoint_*"))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"seed": 7}, "holds a run with seed 42, and this one has 7: choose another output_dir, or write over"),
        ({"data_seed": 7}, "holds a run with data_seed 42, and this one has 7"),
        ({"model_name_or_path": "n"}, "holds a run with model_name_or_path 'm', and this one has 'n'"),
        ({"model_name_or_path": "{}/run/checkpoint_3", "overwrite_output_dir": True}, "away, and model_name_or_path '"),
    ],
)
def test_another_run_is_refused_by_the_names_of_keys(out, keys, words):
    keys = {name: value.replace("{}", str(out)) if isinstance(value, str) else value for name, value in keys.items()}
    with pytest.raises(ValueError, match=words):
        earlier_run.check(_arguments(out, **keys), out)


@pytest.mark.parametrize(
    ("keys", "left", "kept"),
    [
        ({"model_name_or_path": "{}"}, ["config.json", "mine.txt", "model.safetensors"], {"model.safetensors": "3"}),
        # The weights that are there are no part of what begins.
        ({"config_name": "{}", "model_name_or_path": None}, ["config.json", "mine.txt"], {"model.safetensors": "3"}),
    ],
)
def test_a_model_may_be_trained_in_its_own_folder(out, keys, left, kept):
    (out / "model.safetensors").write_text("3")
    given = {name: value and value.replace("{}", str(out)) for name, value in keys.items()}
    arguments = _arguments(out, overwrite_output_dir=True, **given)
    earlier_run.check(arguments, out)
    before = given_files.comment(arguments)
    assert "bytes, sha256" in before
    earlier_run.make_room(arguments, out, GIN.replace("42", "7"))
    assert sorted(path.name for path in out.iterdir() if path.is_file()) == left
    assert {name: (out / "before_1" / name).read_text() for name in kept} == kept
    (out / "run.json").write_text("{}")  # The comment does not speak of what a run writes there.
    assert given_files.comment(arguments) == before
    # A folder with a network and a tokenizer alone has nothing to be kept.
    (out / "run.json").unlink()
    (out / "model.safetensors").unlink(missing_ok=True)
    assert (earlier_run.make_room(arguments, out, GIN) is None) == ("model.safetensors" not in left)


def test_overwriting_keeps_the_old_run_in_a_folder(out, caplog):
    arguments = _arguments(out, overwrite_output_dir=True, seed=7, model_name_or_path="n")
    earlier_run.check(arguments, out)
    for number in (1, 2):
        earlier_run.make_room(arguments, out, GIN.replace("42", "7"))
        kept = out / f"before_{number}"
        assert sorted(path.name for path in out.iterdir() if path.name[:6] != "before") == ["mine.txt"]
        assert _steps(kept / "run") == ["checkpoint_3", "checkpoint_6", "checkpoint_9"]
        assert {"run.gin", "run.json", "eval_results.json", "config.json"} <= {path.name for path in kept.iterdir()}
        assert f"a new run begins in {out}; the old one is kept in {kept}" in caplog.text
        for path in kept.iterdir():  # as if the second run were there
            path.rename(out / path.name)
        (kept / "held").touch()


def test_overwriting_with_the_same_values_resumes(out, caplog):
    caplog.set_level(logging.INFO)
    earlier_run.make_room(_arguments(out, overwrite_output_dir=True), out, GIN)
    assert _steps(out / "run") == ["checkpoint_3", "checkpoint_6", "checkpoint_9"]
    assert "has the same values and files, and is resumed" in caplog.text
    # A checkpoint to resume from comes before the flag, as in the scripts.
    given = {"overwrite_output_dir": True, "resume_from_checkpoint": True}
    earlier_run.make_room(_arguments(out, **given), out, GIN + "A = 1\n")
    assert len(_steps(out / "run")) == 3 and not list(out.glob("before_*"))


def test_files_that_were_replaced_make_another_run(out, tmp_path):
    """Under the same names and with the same size, of data and of the model."""
    (tmp_path / "m").mkdir()
    (tmp_path / "t.csv").write_text("text,label\na,b\n")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "m" / "optimizer.pt").write_bytes(b"no part of the model")
    keys = {"model_name_or_path": str(tmp_path / "m"), "train_file": str(tmp_path / "*.csv")}
    arguments = _arguments(out, overwrite_output_dir=True, **keys)
    texts = [GIN + given_files.comment(arguments)]
    assert "train_file, 15 bytes, sha256 " in texts[0] and "model_name_or_path, 7 bytes" in texts[0]
    assert not earlier_run.changes(out / "run.gin", texts[0])  # of a version that did not write them
    (out / "run.gin").write_text(texts[0])
    (tmp_path / "m" / "optimizer.pt").write_bytes(b"another")
    assert given_files.comment(arguments) == texts[0][len(GIN) :]
    for file, content in (("t.csv", "text,label\na,c\n"), ("m/model.safetensors", "WEIGHTS")):
        (tmp_path / file).write_text(content)
        texts.append(GIN + given_files.comment(arguments))
        assert len(earlier_run.changes(out / "run.gin", texts[-1])) == 2 * (len(texts) - 1)
    earlier_run.make_room(arguments, out, texts[0])
    assert len(_steps(out / "run")) == 3
    earlier_run.make_room(arguments, out, texts[1])
    assert len(_steps(out / "before_1" / "run")) == 3 and not (out / "run").exists()


def test_of_large_files_beginning_and_end_count(tmp_path, monkeypatch):
    monkeypatch.setattr(given_files, "_WHOLE", 8)
    monkeypatch.setattr(given_files, "_PART", 3)
    found = set()
    for content in ("abcdefghijkl", "Abcdefghijkl", "abcdefghijkL", "abcdefghijklm"):
        (tmp_path / "t.csv").write_text(content)
        found.add(given_files.comment(_arguments(tmp_path / "out", train_file=str(tmp_path / "t.csv"))))
    (tmp_path / "t.csv").write_text("abcdEFghijkl")
    found.add(given_files.comment(_arguments(tmp_path / "out", train_file=str(tmp_path / "t.csv"))))
    assert len(found) == 4
    assert not given_files.comment(_arguments(tmp_path / "out", train_file="https://a.b/c.csv"))


@pytest.mark.parametrize("name", ["run/checkpoint_6", "checkpoint-6"])
def test_a_run_goes_back_to_a_checkpoint_that_is_named(out, caplog, name):
    earlier_run.make_room(_arguments(out, resume_from_checkpoint=str(out / name)), out, GIN)
    assert _steps(out / "run") == ["checkpoint_3", "checkpoint_6"]
    assert _steps(out / "run" / "later_1") == ["checkpoint_9"]
    assert f"resumes from step 6. Its later checkpoints (1) are kept in {out}/run/later_1" in caplog.text


def test_the_newest_checkpoint_needs_no_name(out):
    for value in (True, False, "true", "False", "None", str(out), str(out / "run" / "checkpoint_9")):
        earlier_run.make_room(_arguments(out, resume_from_checkpoint=value), out, GIN)
    assert len(_steps(out / "run")) == 3


def test_a_checkpoint_that_is_not_there_or_of_another_run(out, tmp_path):
    for name in ("run/checkpoint_5", "checkpoint-5", "run.gin"):
        with pytest.raises(FileNotFoundError, match=r"no such checkpoint; the run in .* has checkpoint_3, "):
            earlier_run.resumed_step(str(out / name), out)
    with pytest.raises(FileNotFoundError, match="there is no such folder; the run in"):
        earlier_run.resumed_step(str(tmp_path / "absent"), out)
    with pytest.raises(ValueError, match=r"no checkpoint of this run.*model_name_or_path"):
        earlier_run.resumed_step(str(tmp_path), out)


def test_results_that_limba_did_not_write_are_not_replaced_and_notes_stay(tmp_path):
    (tmp_path / "notes.txt").touch()
    planning.check_folder(_arguments(tmp_path), tmp_path)
    (tmp_path / "all_results.json").touch()
    with pytest.raises(ValueError, match=r"holds the file all_results.json, which no `limba run` has written"):
        planning.check_folder(_arguments(tmp_path), tmp_path)
