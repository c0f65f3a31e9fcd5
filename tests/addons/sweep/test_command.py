"""Sweeps: what is killed goes on, none is lost and none made twice."""

import datetime
import functools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from convert import to_hf
from limba.addons.run.keys import script_keys
from limba.addons.sweep import command as sweep
from limba.addons.sweep import sweep_file, sweep_parameters, sweep_report, trial_check, trial_command, trial_folders
from limba.files import shell_words
from tasks.supervised import dataset_table
from tests import compilation, quickstart_corpus

ROOT = Path(__file__).parents[3]
TRIAL = ["${interpreter}", str(Path(__file__).with_name("sweep_trial.py")), "${trial_dir}", "${args_no_hyphens}"]
LOSS = {"name": "training_eval/t/loss", "goal": "minimize"}


def _write(folder, **content):
    folder.mkdir(exist_ok=True)
    file = folder / "sweep.yaml"
    file.write_text(
        yaml.safe_dump(
            {"command": TRIAL, "program": "fake", "metric": LOSS, "method": "grid"} | content, sort_keys=False
        )
    )
    return file


def _calls(folder, number):
    return (folder / "trials" / f"{number:04d}" / "calls").read_text().split("\n")[:-1]


def _start(file, folder):
    return subprocess.Popen(
        [sys.executable, "-m", "limba", "sweep", str(file), "--dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_at(folder, number, step):
    calls = folder / "trials" / f"{number:04d}" / "calls"
    return calls.is_file() and f"step {step}\n" in calls.read_text()


@pytest.mark.slow
def test_four_trials_survive_two_kills(tmp_path):
    """The first kill takes the trial along, as a machine that goes down; the second takes the sweep alone."""
    file = _write(tmp_path, parameters={"x": {"values": [1, 2, 3, 4]}, "seconds": {"value": 0.15}})
    folder = tmp_path / "sweep"

    process = _start(file, folder)
    _wait_for(lambda: _is_at(folder, 1, 4))
    process.kill()
    process.wait()
    group = [line.split() for line in subprocess.check_output(["ps", "-ww", "-eo", "pid,args"], text=True).splitlines()]
    for pid in (int(words[0]) for words in group if str(folder / "trials") in " ".join(words)):
        os.kill(pid, signal.SIGKILL)

    process = _start(file, folder)
    _wait_for(lambda: _is_at(folder, 3, 2))
    process.kill()
    process.wait()

    process = _start(file, folder)
    said, messages = process.communicate(timeout=60)
    assert process.returncode == 0, messages

    trials = [json.loads(f.read_text()) for f in sorted(folder.glob("trials/*/trial.json"))]
    assert [(t["number"], t["parameters"]["x"], t["status"]) for t in trials] == [(n, n + 1, "done") for n in range(4)]
    assert [t["attempts"] for t in trials] == [1, 2, 1, 1]
    assert [t["value"] for t in trials] == [4, 1, 0, 1] and {t["step"] for t in trials} == {8}
    for number in range(4):
        calls = _calls(folder, number)
        steps = [line for line in calls if "step" in line]
        if number == 1:  # The kill may have come after a step was written down and before it was saved.
            steps = [*dict.fromkeys(steps)]
        assert steps == [f"step {step}" for step in range(1, 11)]
        begins = [line for line in calls if "begins" in line]
        # It went on where it was killed, and what the second kill left behind was waited for.
        assert len(begins) == (2 if number == 1 else 1)
    assert [line for line in _calls(folder, 1) if "begins" in line][1] >= "begins 4"
    assert "best: trial 2, training_eval/t/loss 0 at step 8; it has no checkpoint." in said
    assert said.splitlines()[1].split()[:3] == ["2", "3", "0"]  # without the seconds, which are fixed
    assert (folder / "results.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "results.csv").read_text().splitlines()[0].startswith("trial,training_eval/t/loss,x,seconds,")


def test_several_at_once_with_a_device_each_and_a_random_search(tmp_path):
    environment = ["sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $WANDB_RUN_GROUP" >"$1/env"; shift; exec "$@"', "sh"]
    file = _write(
        tmp_path,
        name="many",
        method="random",
        command=[*environment, "${trial_dir}", *TRIAL],
        parameters={"x": {"min": 0.0, "max": 6.0}},
        run_cap=4,
        devices=["0,1", "2,3"],
    )
    folder = tmp_path / "sweep"
    # One that could not begin, such as bayes without Optuna, leaves nothing that is in the way.
    trial_folders.SweepFolder(folder, {"method": "bayes"}).close()
    assert sweep.main([str(file), "--dir", str(folder)]) == 0
    loaded, _ = sweep_file.load(file)
    assert loaded.parallel == 2
    trials = [json.loads(f.read_text()) for f in sorted(folder.glob("trials/*/trial.json"))]
    values = [t["parameters"]["x"] for t in trials]
    assert len(set(values)) == 4 and all(0 <= x < 6 for x in values)
    used = {(folder / "trials" / f"{n:04d}" / "env").read_text().strip() for n in range(4)}
    assert used <= {"0,1 many", "2,3 many"} and "0,1 many" in used
    # More trials later; those that are done stay.
    _write(tmp_path, **yaml.safe_load(file.read_text()) | {"run_cap": 5})
    assert sweep.main([str(file), "--dir", str(folder)]) == 0
    trials = [json.loads(f.read_text()) for f in sorted(folder.glob("trials/*/trial.json"))]
    assert [t["parameters"]["x"] for t in trials][:4] == values and [t["attempts"] for t in trials] == [1] * 5
    with pytest.raises(ValueError, match=r"holds a sweep with another parameters"):
        _write(tmp_path, **yaml.safe_load(file.read_text()) | {"parameters": {"x": {"min": 0.0, "max": 7.0}}})
        sweep.main([str(file), "--dir", str(folder)])


@pytest.mark.parametrize("status", ["new", "done", "failed"])
@pytest.mark.parametrize(
    "parameters", [{"x": 1.0, "MIXTURE_OR_TASK_MODULE": "theirs"}, {"x": "1"}, {"x": 7.0}, {"y": 1.0}, {}]
)
def test_a_trial_that_somebody_else_recorded_does_not_run(tmp_path, parameters, status):
    """A sweep's folder has a usual name, so a downloaded one may lie in the working directory. Bayes reads results."""
    file = _write(tmp_path, method="random", command=TRIAL, parameters={"x": {"min": 0.0, "max": 6.0}}, run_cap=1)
    trial = tmp_path / "sweep/trials/0000"
    trial.mkdir(parents=True)
    (trial / "trial.json").write_text(json.dumps({"number": 0, "parameters": parameters, "status": status}))
    with pytest.raises(ValueError, match=r"trials/0000/trial\.json is no trial of .*that the sweep tries"):
        sweep.main([str(file), "--dir", str(tmp_path / "sweep")])
    assert not (trial / "log.txt").exists()


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("step", "4/../../../../theirs", "'4/../../../../theirs'; it is a whole number of at least 0"),
        ("step", -1, "-1; it is a whole"),
        ("number", True, "True; it is a whole"),
        ("parameters", [1], "a list of 1; it is a table"),
        ("status", "over", "'over'; it is new, running, done or failed"),
        ("value", "0.1", "'0.1'; it is a number, or null"),
        ("value", 10**40, "1" + "0" * 40 + "; it is a number"),
        ("value", math.nan, "nan; it is a number"),
        ("seconds", None, "None; it is a number"),
        ("error", {}, "an empty table; it is a text"),
    ],
)
def test_records_that_no_sweep_writes(tmp_path, key, value, shown):
    record = {"number": 0, "parameters": {"x": 1}, "status": "done", "value": 0.1, "step": 4}
    (tmp_path / "trials/0000").mkdir(parents=True)
    (tmp_path / "trials/0000/trial.json").write_text(json.dumps(record | {key: value}))
    with pytest.raises(ValueError, match=re.escape(f"no record of a trial: {key} is {shown}")):
        trial_folders.SweepFolder(tmp_path, {}).trials()


@pytest.mark.parametrize("recipes", [5, "ab", [1], [[1]], True, {"a\x1b[31m" * 1000: 1}])
def test_recipes_of_a_record_that_no_sweep_writes(tmp_path, recipes, caplog):
    (tmp_path / "trials/0000").mkdir(parents=True)
    (tmp_path / "trials/0000/trial.json").write_text('{"number": 0, "parameters": {}}')
    (tmp_path / "sweep.json").write_text(json.dumps({"recipes": recipes}))
    trial_folders.SweepFolder(tmp_path, {}).close()
    assert len(caplog.text) < 500 and "\x1b" not in caplog.text


def test_what_lies_where_a_trial_notes_its_exit_code(tmp_path):
    """A link there is not written through, and a FIFO or a file with holes is not waited for."""
    kept = tmp_path / "kept"
    kept.write_text("kept")
    for number, (name, prepare) in enumerate(
        [
            ("exit_code.tmp", lambda file: file.symlink_to(kept)),
            ("exit_code.tmp", os.mkfifo),
            ("exit_code", os.mkfifo),
            ("exit_code", lambda file: (file.touch(), os.truncate(file, 2**40))),
        ]
    ):
        trial = trial_folders.Trial(number, {}, tmp_path / f"trials/{number:04d}")
        trial.save()
        prepare(trial.folder / name)
        assert trial_folders.Process(trial, ["true"], os.environ, tmp_path).run() == 0, name
        assert (trial.folder / "exit_code").read_text() == "0\n" and kept.read_text() == "kept"


def test_a_value_that_no_axis_has_is_not_drawn(tmp_path):
    file = _write(tmp_path, parameters={"x": {"values": [1, 2, 3]}})
    trials = [trial_folders.Trial(n, {"x": n + 1}, tmp_path, "done", value=x) for n, x in enumerate([1e308, -1e308, 1])]
    written = sweep_report.write(sweep_file.load(file)[0], trials, tmp_path)
    assert [path.name for path in written] == ["results.txt", "results.csv"]


def test_without_optuna_a_bayesian_search_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    file = _write(tmp_path / "here", method="bayes", parameters={"x": {"min": 0.0, "max": 1.0}}, trials=2)
    with pytest.raises(ValueError, match=r"sweep\.yaml: method: bayes needs .*pip install optuna"):
        sweep.main([str(file), "--dir", str(tmp_path / "sweep")])
    assert not (tmp_path / "sweep").exists()


def test_the_bayesian_search_finds_the_valley(tmp_path):
    file = _write(
        tmp_path,
        method="bayes",
        trials=25,
        parameters={
            "x": {"min": -20.0, "max": 20.0},
            "n": {"min": 1, "max": 4},
            "rate": {"distribution": "log_uniform_values", "min": "1e-5", "max": "1e-3"},
            "kind": {"values": ["a", "b"]},
            "fixed": {"value": 7},
        },
    )
    loaded, _ = sweep_file.load(file)
    from limba.addons.sweep.proposals import propose

    trials = []
    for number in range(25):
        values = propose(loaded, trials)
        assert 1e-5 <= values["rate"] <= 1e-3 and values["n"] in (1, 2, 3, 4) and values["fixed"] == 7
        trials.append(trial_folders.Trial(number, values, tmp_path, "done", value=(values["x"] - 3) ** 2))
    losses = [t.value for t in trials]
    assert np.median(losses[15:]) < np.median(losses[:10]) / 3
    assert propose(loaded, trials[:5]) == trials[5].parameters
    running = [*trials[:5], trial_folders.Trial(5, trials[5].parameters, tmp_path, "running")]
    assert propose(loaded, running) != trials[5].parameters


def test_a_first_trial_that_fails_ends_it_and_can_be_tried_again(tmp_path):
    file = _write(tmp_path, parameters={"x": {"values": [1, 2]}, "broken": {"value": 1}})
    folder = tmp_path / "sweep"
    with pytest.raises(ValueError, match=r"The first trial failed: exit code 1: error: it is broken .*--retry"):
        sweep.main([str(file), "--dir", str(folder)])
    assert not (folder / "trials" / "0001").exists()
    with pytest.raises(ValueError, match=r"The first trial failed"):
        sweep.main([str(file), "--dir", str(folder), "--retry"])
    assert _calls(folder, 0) == ["begins 0", "begins 0"]


def test_the_last_lines_name_failed_trials_and_the_command_that_retries_them(tmp_path, capsys):
    file, folder = _write(tmp_path, parameters={"x": {"value": 3}, "broken": {"values": [0, 1]}}), tmp_path / "a sweep"
    assert sweep.main([str(file), "--dir", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith(f"failed: trial 1; {folder}/trials/")
    assert lines[-1] == f"  limba sweep {file} --dir '{folder}' --retry"
    assert sweep.main([str(file), "--dir", str(folder), "--retry"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == lines[-1]
    assert [len(_calls(folder, number)) for number in (0, 1)] == [11, 2]


def test_until_a_trial_has_a_result_the_file_may_change(tmp_path, caplog):
    folder = tmp_path / "sweep"

    def run(*flags, **content):
        return sweep.main([str(_write(tmp_path, **content)), "--dir", str(folder), *flags])

    with pytest.raises(ValueError, match=r"The first trial failed: .*it is broken"):
        run(parameters={"x": {"values": [1, 2]}, "broken": {"value": 1}})
    parameters = {"x": {"values": [1, 2]}}
    nearest = "it measured no training_eval/t/los; the nearest names are training_eval/t/loss"
    with pytest.raises(ValueError, match=nearest):
        run(parameters=parameters, metric={"name": "training_eval/t/los", "goal": "minimize"})
    assert (folder / "trials-1" / "0000" / "log.txt").read_text() == "error: it is broken\n"
    assert "another metric, parameters; no trial had a result, and they are now in trials-1" in caplog.text
    assert run(parameters=parameters) == 0
    # The first was judged by the right metric, and not run again.
    assert _calls(folder, 0).count("begins 0") == 1 and len(_calls(folder, 0)) == 11
    with pytest.raises(ValueError, match="holds a sweep with another seed, and trials of it have a result"):
        run(parameters=parameters, seed=1)


def test_a_binding_or_a_task_that_cannot_be_is_found_before_the_first_trial(tmp_path, monkeypatch):
    quickstart_corpus.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    task = "quickstart_span_corruption"
    given = {"method": "grid", "gin_files": ["gin/recipes/quickstart.gin"]}
    for name, values, metric, words in (
        ("BATCH_SIZ", [8], f"training_eval/{task}/loss", r"--gin\.BATCH_SIZ overrides .* Did you mean BATCH_SIZE\?"),
        ("BATCH_SIZE", [8], f"training_eval/{task}/acuracy", rf"Did you mean training_eval/{task}/accuracy\?"),
    ):
        content = given | {"parameters": {name: {"values": values}}, "metric": {"name": metric, "goal": "minimize"}}
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(content))
        with pytest.raises(ValueError, match=f"s.yaml: no trial can start: .*{words}"):
            sweep.main([str(tmp_path / "s.yaml"), "--dir", str(tmp_path / "sweep")])
        assert not (tmp_path / "sweep" / "trials").exists()


def test_the_task_of_a_metric():
    for metric in ("train/loss", "eval/accuracy", "training_eval/b/loss", "inference_eval/a/eval/accuracy", "own/x"):
        trial_check.check_metric(metric, ["a", "b"])
    for metric in ("training_eval/c/loss", "trainig_eval/a/loss"):
        with pytest.raises(ValueError, match=r"evaluations .* are of a, b\. Did you mean training_eval/[ab]/"):
            trial_check.check_metric(metric, ["a", "b"])


def test_the_metrics_of_predictions():
    known = {"a": ["accuracy", "f1"]}
    for metric in ("inference_eval/a/eval/accuracy", "inference_eval/a/f1", "inference_eval/a/tokens_per_prediction"):
        trial_check.check_prediction(metric, known)
    for metric in ("inference_eval/b/eval/acuracy", "training_eval/a/acuracy"):
        trial_check.check_prediction(metric, known)
    with pytest.raises(ValueError, match=r"measured by eval/accuracy, .* Did you mean inference_eval/a/eval/accuracy"):
        trial_check.check_prediction("inference_eval/a/eval/acuracy", known)


def test_a_metric_that_is_not_measured_is_named(tmp_path):
    trial = trial_folders.Trial(0, {}, tmp_path, attempts=1)
    trial.model_dir.mkdir()
    (trial.model_dir / "metrics.jsonl").write_text('{"step": 1, "dataset": "train", "loss": 2.0}\n')
    trial_folders.conclude(trial, 0, "train/los", False)
    assert trial.status == "failed" and trial.error == "it measured no train/los; the nearest names are train/loss"


def test_the_best_measurement_has_a_checkpoint(tmp_path):
    lines = [{"step": s, "dataset": "training_eval/t", "accuracy": a} for s, a in ((2, 0.5), (4, 0.9), (6, 0.7))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    metric = "training_eval/t/accuracy"
    assert trial_folders.best_measurement(tmp_path, metric, True) == (4, 0.9)
    for step in (2, 6):  # that of step 4 was not kept
        (tmp_path / f"checkpoint_{step}").mkdir()
    assert trial_folders.best_measurement(tmp_path, metric, True) == (6, 0.7)
    assert trial_folders.best_measurement(tmp_path, metric, False) == (2, 0.5)


TRAIN = {
    "method": "grid",
    "metric": {"name": "training_eval/t/loss", "goal": "minimize"},
    "parameters": {"BATCH_SIZE": {"values": [8, 16]}, "OPTIMIZER": {"value": "@optimizers.adamw()"}},
    "gin_files": ["gin/recipes/quickstart.gin", "mine.gin"],
    "gin_bindings": ["TRAIN_STEPS = 10"],
}


def test_commands_here_under_slurm_and_of_agents(tmp_path, capsys, monkeypatch):
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(TRAIN, sort_keys=False))
    loaded, _ = sweep_file.load(file)
    folder = Path("/sweeps/0001")
    values = {"BATCH_SIZE": 16, "OPTIMIZER": "@optimizers.adamw()", "KIND": "a b"}
    options = [
        *("--gin_file=mine.gin", "--gin_bindings=TRAIN_STEPS = 10", "--gin.BATCH_SIZE=16"),
        *("--gin.OPTIMIZER=@optimizers.adamw()", "--gin.KIND='a b'", "--gin.MODEL_DIR='/sweeps/0001/run'"),
    ]
    limba = [sys.executable, "-m", "limba"]
    command = trial_command.trial_command(loaded, values, folder)
    assert command == [*limba, "train", "--gin_file=gin/recipes/quickstart.gin", *options]

    assert shell_words.quoted(options[-1]) == "\"--gin.MODEL_DIR='/sweeps/0001/run'\""
    for word in (*command, "a\"b'c", "$x'y", "it's"):
        assert subprocess.check_output(["sh", "-c", f"printf %s {shell_words.quoted(word)}"], text=True) == word

    file.write_text(yaml.safe_dump(TRAIN | {"slurm": ["--gpus-per-node=1"], "program": "limba train"}, sort_keys=False))
    loaded, _ = sweep_file.load(file)
    submit = ["sbatch", "--wait", "--job-name=limba-s-0001", "--dependency=singleton", "--gpus-per-node=1"]
    command = trial_command.trial_command(loaded, values, folder)
    assert command == [*submit, "launch/slurm.sbatch", "gin/recipes/quickstart.gin", *options]

    hf = {k: v for k, v in TRAIN.items() if not k.startswith("gin")} | {"program": "run c.json"}
    hf["parameters"] = {"learning_rate": {"values": ["1e-4", 1e-3]}, "bf16": {"value": True}}
    file.write_text(yaml.safe_dump(hf, sort_keys=False))
    assert sweep.main([str(file), "--dir", "/sweeps", "--print"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("limba run c.json --output_dir=/sweeps/trials/0000 --learning_rate=0.0001 --bf16=true")
    assert len(printed) == 2

    assert sweep.main([str(file), "--dir", "/sweeps", "--wandb_config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["command"][-2:] == ["--wandb_trial", "${args_no_hyphens}"] and config["run_cap"] == 2
    assert config["parameters"] == hf["parameters"]
    called = []
    monkeypatch.setattr(os, "execvpe", lambda name, command, env: called.append(command))
    monkeypatch.setenv("WANDB_RUN_ID", "abc")
    with pytest.raises(TypeError):  # execvpe never returns
        len(sweep.main([str(file), "--dir", str(tmp_path), "--wandb_trial", "learning_rate=1e-4", "bf16=true"]))
    flags = [f"--output_dir={tmp_path}/agents/abc", "--learning_rate=0.0001", "--bf16=true", "--report_to=wandb"]
    assert called == [[*limba, "run", "c.json", *flags]]
    # Values of --set hold whatever the agent draws, and a flag may come again.
    words = ["--set", "bf16=false", "--set", "seed=3", "fp16=1e-1", "--wandb_trial", "learning_rate=1e-4"]
    with pytest.raises(TypeError):
        len(sweep.main([str(file), "--dir", str(tmp_path), *words, "--wandb_trial", "bf16=true"]))
    assert called[1][-5:-1] == ["--learning_rate=0.0001", "--bf16=false", "--seed=3", "--fp16=0.1"]


SEED = """
program: fine_tune_t5.py
project: "T5 Evaluation"
name: "T5 Evaluation -- GLUE: SST-2"
method: bayes
metric:
  name: eval/accuracy
  goal: maximize
run_cap: 3
parameters:
  learning_rate:
    distribution: uniform
    min: 1e-5
    max: 1e-3
  lr_scheduler_type:
    values: ["constant_with_warmup", "linear", "cosine"]
  dataset_name:
    value: "sst2"
command:
  - accelerate
  - launch
  - ${program}
  - ${args}
"""


def test_a_file_of_wandb_as_it_is(tmp_path):
    (tmp_path / "s.yaml").write_text(SEED)
    (tmp_path / "fine_tune_t5.py").write_text("")
    loaded, (warning,) = sweep_file.load(tmp_path / "s.yaml")
    assert warning.startswith("command has no ${trial_dir}: what the trials write goes into one folder, and the ")
    rate, kind, dataset = loaded.parameters
    assert (rate.low, rate.high, rate.distribution) == (1e-5, 1e-3, "uniform")
    assert kind.values == ("constant_with_warmup", "linear", "cosine") and dataset.values == ("sst2",)
    assert loaded.maximize and loaded.project == "T5 Evaluation"
    command = trial_command.trial_command(loaded, {"learning_rate": 1e-4, "dataset_name": "sst2"}, tmp_path)
    assert command == ["accelerate", "launch", "fine_tune_t5.py", "--learning_rate=0.0001", "--dataset_name=sst2"]


def test_a_file_of_a_script_that_is_not_here(tmp_path, capsys):
    """Unedited, without a number of trials: its parameters are keys of `limba run`."""
    (tmp_path / "s.yaml").write_text(
        SEED.replace("run_cap: 3\n", "").replace("  dataset_name:", "  benchmark: {value: 'glue'}\n  dataset_name:")
    )
    loaded, warnings = sweep_file.load(tmp_path / "s.yaml", {"model_name_or_path": "exports/mine"})
    assert loaded.trials == 20 and len(warnings) == 2
    assert "fine_tune_t5.py is not here" in warnings[0] and "20 are run" in warnings[1]
    values = {"learning_rate": 1e-4, "benchmark": "glue", "dataset_name": "sst2", "model_name_or_path": "exports/mine"}
    command = trial_command.trial_command(loaded, values, Path("/t"))
    flags = ["--learning_rate=0.0001", "--benchmark=glue", "--dataset_name=sst2", "--model_name_or_path=exports/mine"]
    run = [sys.executable, "-m", "limba", "run", "fine_tune_t5.py"]  # A name that `limba run` knows.
    assert command == [*run, "--output_dir=/t", *flags]

    # What the command gives beside the parameters stays, except the folder of a run.
    beside = (
        "  - ${program}\n  - --do_train\n  - --output_dir\n  - out/x\n  - --train_file=a.csv\n  - --seed\n  - '3'\n"
    )
    (tmp_path / "f.yaml").write_text(SEED.replace("  - ${program}\n", beside))
    loaded, _ = sweep_file.load(tmp_path / "f.yaml")
    command = trial_command.trial_command(loaded, {"learning_rate": 1e-4}, Path("/t"))
    fixed = ["--do_train", "--train_file=a.csv", "--seed", "3"]
    assert command == [*run, *fixed, "--output_dir=/t", "--learning_rate=0.0001"]

    # Scripts need an output_dir, and each trial has its own.
    loaded, warnings = sweep_file.load(tmp_path / "s.yaml", {"output_dir": "out"})
    assert warnings[1] == "output_dir is ignored because each trial has a folder of its own."
    command = trial_command.trial_command(loaded, {"output_dir": "out", "learning_rate": 1e-4}, Path("/t"))
    assert command[3:] == ["run", "fine_tune_t5.py", "--output_dir=/t", "--learning_rate=0.0001"]

    # Under W&B there is no cap either.
    arguments = [str(tmp_path / "s.yaml"), "--dir", "/sweeps", "--set", "model_name_or_path=exports/mine"]
    assert sweep.main([*arguments, "--wandb_config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert "run_cap" not in config and config["parameters"]["model_name_or_path"] == {"value": "exports/mine"}
    assert config["command"][5:] == [
        *("--set", "model_name_or_path=exports/mine", "--wandb_trial", "${args_no_hyphens}")
    ]
    with pytest.raises(ValueError, match="--set model: write NAME=VALUE"):
        sweep.main([str(tmp_path / "s.yaml"), "--set", "model"])


def test_the_sweeps_of_glue():
    files = sorted((ROOT / "gin" / "sweeps").glob("*.yaml"))
    assert len(files) == 9
    for file in files:
        loaded, warnings = sweep_file.load(file)
        assert warnings == [] and loaded.name == file.stem and loaded.trials == 20
        values = {parameter.name: parameter.at(0.5) for parameter in loaded.parameters}
        arguments, _ = script_keys.from_values(values | {"output_dir": "/nowhere", "model_name_or_path": "m"})
        assert arguments.entry == file.stem
        measured = {metric.__name__ for metric in dataset_table.DATASETS[file.stem].metrics}
        name = {"mcc": "matthews_corrcoef", "f1": "f1_score_with_invalid"}.get(loaded.metric[5:], loaded.metric[5:])
        assert loaded.metric.startswith("eval/") and name in measured


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methd": "grid"}, "nearest is 'method'"),
        ({"method": "hyperband"}, "method is 'hyperband'"),
        ({"metric": {"name": "x"}}, "goal: minimize or maximize"),
        ({"parameters": {}}, "at least one gin binding"),
        ({"parameters": {"x": {"min": 1, "max": 2}}}, "a grid needs values"),
        ({"method": "random", "trials": 0}, "trials is 0"),
        ({"parameters": {"x": {"values": []}}}, "has no values"),
        ({"parameters": {"x": {"vals": [1]}}}, "has the key 'vals'"),
        ({"parameters": {"x": {"distribution": "beta"}}}, "parameters.x has beta, which is not here: write uniform"),
        ({"method": "random", "trials": 1, "parameters": {"x": {"min": 2.0, "max": 1.0}}}, "not below max"),
        ({"method": "random", "trials": 1, "parameters": {"x": {"min": 2.0}}}, "needs max"),
        ({"method": "random", "trials": 1, "parameters": {"x": {"min": "a", "max": 1}}}, "min is 'a'"),
        ({"method": "random", "trials": 1, "parameters": {"x": {"min": 0.0, "max": 1.0, "q": 0}}}, "needs q above 0"),
        (
            {
                "method": "random",
                "trials": 1,
                "parameters": {"x": {"distribution": "log_uniform", "min": 1, "max": 1e3}},
            },
            "natural logarithms; log_uniform_values",
        ),
        (
            {
                "method": "random",
                "trials": 1,
                "parameters": {"x": {"distribution": "int_uniform", "min": 1.5, "max": 3}},
            },
            "must be whole",
        ),
        ({"parameters": {1: {"values": [1]}}}, "parameters has 1; a parameter is the name"),
        ({"parameters": {"x": {"values": [datetime.date(2024, 1, 1)]}}}, "has a date, which JSON cannot hold; quote i"),
        ({1: 2}, "there is no key '1'"),
        ({"metric": {"name": ["x"], "goal": "minimize"}}, "name: DATASET/NAME"),
        ({"gin_files": []}, "gin_files is missing"),
        (
            {"gin_bindings": ["F = 'https://h/a?sig=pl4nted'"]},
            r"gin_bindings has a credential, .*\?sig=\*\*\*'.*, and a sweep records it. Put it into the environment",
        ),
        ({"gin_files": "my.gin"}, r"gin_files is 'my.gin'; it is a list: gin_files: \[my.gin\]"),
        ({"gin_bindings": "BATCH_SIZE = 8"}, "gin_bindings is 'BATCH_SIZE = 8'; it is a list"),
        ({"devices": "0,1"}, "devices is '0,1'; it is a list"),
        ({"program": "fine_tune.py"}, r"parameters.BATCH_SIZE: `limba run` has no key 'BATCH_SIZE'; the nearest is 'b"),
        ({"program": "fine_tune"}, "program is 'fine_tune'"),
        ({"slurm": [], "program": "run c.json"}, "slurm is for trials"),
        ({"parallel": 2, "devices": ["0"]}, "devices has 1 entries"),
    ],
)
def test_bad_files_are_refused(tmp_path, changes, words):
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(TRAIN | changes, sort_keys=False))
    with pytest.raises(ValueError, match=words):
        sweep_file.load(file)


def test_distributions():
    p = sweep_parameters.Parameter
    assert [p("x", "int_uniform", (), 1, 3).at(share) for share in (0.0, 0.5, 0.99)] == [1, 2, 3]
    assert p("x", "log_uniform_values", (), 1e-4, 1e-2).at(0.5) == pytest.approx(1e-3)
    assert p("x", "log_uniform", (), 0.0, 2.0).at(0.5) == pytest.approx(2.718281828)
    assert p("x", "q_uniform", (), 0.0, 1.0, 0.25).at(0.6) == 0.5
    assert p("x", "categorical", ("a", "b")).at(0.5) == "b"


def test_ranks_in_the_table(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(TRAIN, sort_keys=False))
    loaded, _ = sweep_file.load(file)
    make = lambda n, status, value: trial_folders.Trial(n, {"BATCH_SIZE": n}, tmp_path, status, 1, value, 5)  # noqa: E731
    trials = [make(0, "done", 2.0), make(1, "failed", None), make(2, "done", 1.0), make(3, "done", 1.0)]
    lines = sweep_report.table(loaded, trials).splitlines()
    assert [line.split()[0] for line in lines] == ["trial", "2", "3", "0", "1"]
    assert sweep_report.best_trial(loaded, trials).number == 2


def test_the_table_has_what_varies_and_then_the_metric(tmp_path):
    file = tmp_path / "s.yaml"
    fixed = {name: {"value": 1} for name in "abc"} | {"d": {"values": [2]}}
    varying = {"rate": {"values": [0.1, 0.2]}, "x": {"distribution": "uniform", "min": 0, "max": 1}}
    content = TRAIN | {"method": "random", "trials": 2, "parameters": fixed | varying}
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    loaded, _ = sweep_file.load(file)
    values = dict.fromkeys("abc", 1) | {"d": 2, "x": 0.5}
    trials = [
        trial_folders.Trial(n, values | {"rate": rate}, tmp_path, "done", 1, value, 5)
        for n, rate, value in ((0, 0.1, 2.0), (1, 0.2, 1.0))
    ]
    lines = [line.split() for line in sweep_report.table(loaded, trials).splitlines()]
    metric = TRAIN["metric"]["name"]
    assert lines[0][:4] == ["trial", "rate", "x", metric] and lines[1][:4] == ["1", "0.2", "0.5", "1"]
    sweep_report.write(loaded, trials, tmp_path)
    first, *rows = [line.split(",") for line in (tmp_path / "results.csv").read_text().splitlines()]
    assert first[:8] == ["trial", metric, "rate", "x", "a", "b", "c", "d"]
    assert rows[0][:8] == ["0", "2.0", "0.1", "0.5", "1", "1", "1", "2"]
    # A value that the file had before, and an earlier trial used.
    trials[0].parameters["a"] = 3
    assert sweep_report.table(loaded, trials).split()[:3] == ["trial", "a", "rate"]


TINY = """
from __gin__ import dynamic_registration
from limba.checkpoints import checkpointing as checkpoints
from limba.network import t5 as network
from limba.optimizers import schedules
from limba import train as train_script
from tasks import vocabularies
from tasks.pretraining import masked_text

include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/pretrain.gin'

VOCABULARY = @vocabularies.ByteVocabulary()
vocabularies.ByteVocabulary.extra_ids = 125
VOCAB_SIZE = 384
BATCH_SIZE = 8
RANDOM_SEED = 0
DATASET_SEED = 0
network.T5Config:
  dtype = 'float32'
  num_encoder_layers = 1
  num_decoder_layers = 1
MIXTURE_OR_TASK_NAME = @masked_text.task()
masked_text.task:
  name = 'sweep_text'
  vocabulary = %VOCABULARY
  files = {{'train': ['{text}'], 'validation': ['{text}']}}
TASK_FEATURE_LENGTHS = {{'inputs': 32, 'targets': 10}}
TRAIN_STEPS = 2
EVAL_PERIOD = 2
EVAL_STEPS = 1
train_script.train.stats_period = 2
checkpoints.SaveCheckpointConfig.period = 2
schedules.create_learning_rate_scheduler.factors = 'constant'
"""


@pytest.mark.slow
def test_the_best_checkpoint_of_real_trainings_is_kept_and_exported(tmp_path, monkeypatch, capsys):

    (tmp_path / "text.txt").write_text("".join(f"line {n} of a text, {n * n}\n" for n in range(200)))
    (tmp_path / "tiny.gin").write_text(TINY.format(text=tmp_path / "text.txt"))
    task = "training_eval/sweep_text/nats_per_target_token"
    rate = "schedules.create_learning_rate_scheduler.base_learning_rate"
    file = tmp_path / "sweep.yaml"
    content = {
        "method": "grid",
        "metric": {"name": task, "goal": "minimize"},
        "parameters": {rate: {"values": ["1e-6", 0.03]}},
        "gin_files": [str(tmp_path / "tiny.gin")],
    }
    file.write_text(yaml.safe_dump(content))
    # The checks of a trial's flags and of an export, which have tests of their own, start processes.
    monkeypatch.setattr(trial_check, "check", lambda sweep, parameters: None)
    monkeypatch.setattr(to_hf, "to_hf", functools.partial(to_hf.to_hf, verify=False))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    folder = tmp_path / "sweep"
    jax.devices()  # This process has eight, also if it has asked for none before.
    monkeypatch.setenv("XLA_FLAGS", compilation.FAST)  # The trials have one.
    assert sweep.main([str(file), "--dir", str(folder)]) == 0
    losses = [json.loads(f.read_text())["value"] for f in sorted(folder.glob("trials/*/trial.json"))]
    assert losses[1] < losses[0]
    assert f"best: trial 1, {task}" in capsys.readouterr().out
    assert (folder / "trials/0001/run/checkpoint_2/PINNED").is_file()
    report = json.loads((folder / "best" / "conversion_report.json").read_text())
    assert report["checkpoint"] == "checkpoint_2" and (folder / "best" / "model.safetensors").is_file()
