"""A sweep's own command: trials of `limba run` and `limba train` never share a folder, others are warned."""

from pathlib import Path

import pytest
import yaml

from limba.addons.sweep import sweep_file, trial_command

IGNORED = "is ignored because each trial has a folder of its own."


def load(tmp_path, **content):
    usual = {
        "method": "grid",
        "metric": {"name": "training_eval/t/loss", "goal": "minimize"},
        "parameters": {"learning_rate": {"values": [1e-4, 1e-3]}},
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(usual | content))
    return sweep_file.load(tmp_path / "sweep.yaml")


@pytest.mark.parametrize(
    ("program", "command", "begins"),
    [
        (None, ["limba", "run", "c.json", "${args}"], ["limba", "run", "c.json"]),
        ("limba", ["${env}", "${program}", "run", "c.json", "${args}"], ["limba", "run", "c.json"]),
        ("limba run", ["nice", "${program}", "c.json", "${args}"], ["nice", "limba", "run", "c.json"]),
        (None, ["python", "-m", "limba", "run", "c.json", "${args}"], ["python", "-m", "limba", "run", "c.json"]),
        (None, ["/venv/bin/limba", "run", "c.json", "${args}"], ["/venv/bin/limba", "run", "c.json"]),
    ],
)
def test_limba_run_gets_the_trial_s_folder(tmp_path, program, command, begins):
    content = {"command": command} | ({} if program is None else {"program": program})
    loaded, warnings = load(tmp_path, **content)
    assert warnings == []
    for number in ("0000", "0001"):
        words = trial_command.trial_command(loaded, {"learning_rate": 1e-4}, Path("/s") / number)
        assert words == [*begins, "--learning_rate=0.0001", f"--output_dir=/s/{number}"]


def test_limba_train_gets_the_trial_s_model_dir(tmp_path):
    command = ["limba", "train", "a.gin", "${gin_args}", "--gin.MODEL_DIR='shared'"]
    loaded, warnings = load(tmp_path, command=command)
    assert warnings == [f"--gin.MODEL_DIR {IGNORED}"]
    words = trial_command.trial_command(loaded, {"learning_rate": 1e-4}, Path("/s/0003"))
    assert words == ["limba", "train", "a.gin", "--gin.learning_rate=0.0001", "--gin.MODEL_DIR='/s/0003/run'"]


@pytest.mark.parametrize("given", [["--output_dir", "out"], ["--output_dir=out"]])
def test_a_folder_for_all_trials_is_left_out_and_named(tmp_path, given):
    loaded, warnings = load(
        tmp_path,
        command=["limba", "run", *given, "--seed", "3", "${args}"],
        parameters={"learning_rate": {"value": 1e-4}, "model_path": {"value": "x"}},
    )
    assert warnings == [f"model_path {IGNORED}", f"--output_dir {IGNORED}"]
    words = trial_command.trial_command(loaded, {"learning_rate": 1e-4, "model_path": "x"}, Path("/s/0001"))
    assert words == ["limba", "run", "--seed", "3", "--learning_rate=0.0001", "--output_dir=/s/0001"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["python3", "-m", "limba", "run", "job.json", "${args}"], ["--learning_rate=0.1", "--output_dir=/s/1"]),
        (["limba", "run", "--output_dir=${trial_dir}", "${args}"], ["--output_dir=/s/1", "--learning_rate=0.1"]),
        (
            ["limba", "train", "a.gin", "${gin_args}"],
            ["--gin.optimizer.learning_rate=0.1", "--gin.MODEL_DIR='/s/1/run'"],
        ),
        (["python3", "own.py", "--to=${trial_dir}", "${args}"], ["--to=/s/1", "--optimizer.learning_rate=0.1"]),
    ],
)
def test_limba_run_gets_a_key_without_its_group(tmp_path, command, words):
    nested = {"optimizer": {"parameters": {"learning_rate": {"values": [0.1]}}}}
    loaded, _ = load(tmp_path, command=["${env}", *command], parameters=nested)
    assert trial_command.trial_command(loaded, {"optimizer.learning_rate": 0.1}, Path("/s/1"))[-2:] == words


def test_a_command_that_says_where_it_writes_stays_as_it_is(tmp_path):
    command = ["limba", "run", "--output_dir=${trial_dir}", "--logging_dir", "${trial_dir}/log", "${args}"]
    loaded, warnings = load(tmp_path, command=command)
    assert warnings == []
    words = trial_command.trial_command(loaded, {"learning_rate": 1e-4}, Path("/s/1"))
    assert words == ["limba", "run", "--output_dir=/s/1", "--logging_dir", "/s/1/log", "--learning_rate=0.0001"]


def test_another_program_without_the_folder_is_warned(tmp_path):
    loaded, (warning,) = load(tmp_path, command=["bash", "-c", "limba run c.json"])
    assert warning == (
        "command has no ${trial_dir}: what the trials write goes into one folder, and the metric is read from "
        "${trial_dir}/run/metrics.jsonl. Give the program its folder, such as --output_dir=${trial_dir}."
    )
    assert trial_command.trial_command(loaded, {}, Path("/s/1")) == ["bash", "-c", "limba run c.json"]
