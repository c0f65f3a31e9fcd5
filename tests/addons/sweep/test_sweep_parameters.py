"""Which values a parameter of a sweep has."""

import json
from pathlib import Path

import pytest

from limba.addons.sweep import proposals, sweep_file, sweep_parameters, sweep_report, trial_folders
from limba.addons.sweep.trial_folders import Trial

SHARES = [n / 40 for n in range(40)]
FILE = {
    "method": "random",
    "trials": 2,
    "program": "train",
    "gin_files": ["a.gin"],
    "metric": {"name": "training_eval/t/loss", "goal": "minimize"},
}


def load(tmp_path, **changes):
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps(FILE | changes))
    return sweep_file.load(file)


@pytest.mark.parametrize(
    ("description", "values"),
    [
        ({"min": 8, "max": 64, "q": 8}, [8, 16, 24, 32, 40, 48, 56, 64]),
        ({"min": 5, "max": 30, "q": 8}, [8, 16, 24]),
        ({"distribution": "q_uniform", "min": 1, "max": 16, "q": 8}, [8, 16]),
        ({"distribution": "q_uniform", "min": 0.3, "max": 0.5, "q": 0.1}, [0.3, 0.4, 0.5]),
        ({"distribution": "q_log_uniform_values", "min": 1e-5, "max": 2e-3, "q": 1e-3}, [1e-3, 2e-3]),
    ],
)
def test_multiples_of_q_lie_between_the_bounds(description, values):
    parameter = sweep_parameters.parse("x", description)
    drawn = sorted({parameter.at(share) for share in SHARES})
    assert drawn == pytest.approx(values) and [type(x) for x in drawn] == [type(x) for x in values]


def test_a_bayesian_search_has_the_same_multiples(tmp_path):
    pytest.importorskip("optuna")
    sweep, _ = load(tmp_path, method="bayes", parameters={"x": {"min": 5, "max": 30, "q": 8}})
    trials = []
    for number in range(8):
        trials.append(Trial(number, proposals.propose(sweep, trials), tmp_path, "done", value=float(number)))
    assert {trial.parameters["x"] for trial in trials} == {8, 16, 24}


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({"min": 1, "max": 7, "q": 8}, "x: no multiple of q 8 lies between 1.0 and 7.0; give a smaller q"),
        ({"distribution": "int_uniform", "min": 1, "max": 7, "q": 0.5}, "1.0, 7.0, 0.5 must be whole"),
        ({"min": 0.0, "max": 1e300, "q": 1e-300}, "needs q above 0"),
        ({"values": [1, 2], "min": 5, "max": 9}, "x is categorical and has min, which it would not read: give one of"),
        ({"value": 1, "values": [3, 4]}, "x is constant and has values, which it would not read"),
        ({"values": [1, 2], "q": 2}, "x is categorical and has q"),
    ],
)
def test_descriptions_that_contradict_themselves(description, words):
    with pytest.raises(ValueError, match=words):
        sweep_parameters.parse("x", description)


def test_numbers_in_lists():
    assert sweep_parameters.parse("x", {"values": [["1e-4", 2], "1e-3"]}).values == ([1e-4, 2], 1e-3)


@pytest.mark.parametrize(
    ("name", "goal", "usual"),
    [
        ("training_eval/t/loss", "maximize", "minimize"),
        ("training_eval/t/nats_per_target_token", "maximize", "minimize"),
        ("eval_accuracy", "minimize", "maximize"),
        ("training_eval/t/loss", "minimize", None),
        ("inference_eval/loss/rouge1", "maximize", None),
        ("training_eval/t/gloss", "maximize", None),
    ],
)
def test_a_goal_that_keeps_the_worst_trial_is_told(tmp_path, name, goal, usual):
    _, warnings = load(tmp_path, metric={"name": name, "goal": goal}, parameters={"x": 1})
    found = [x for x in warnings if "keeps the worst trial" in x]
    assert [x.endswith(f"by {name}; write goal: {usual}.") for x in found] == ([True] if usual else [])


def test_a_project_that_is_no_text(tmp_path):
    assert load(tmp_path, project=5, parameters={"x": 1})[0].project == "5"
    assert load(tmp_path, parameters={"x": 1})[0].project is None


def test_a_recipe_that_changed_between_trials_is_told(tmp_path, caplog):
    (tmp_path / "a.gin").write_text("BATCH_SIZE = 4\n")
    sweep, _ = load(tmp_path, gin_files=[str(tmp_path / "a.gin")], parameters={"x": 1})
    for content, said in (("BATCH_SIZE = 4\n", False), ("BATCH_SIZE = 8\n", True), ("BATCH_SIZE = 8\n", False)):
        folder = trial_folders.SweepFolder(tmp_path / "sweep", sweep.identity, sweep.recipes)
        folder.new_trial(0, {"x": 1})
        folder.close()
        (tmp_path / "a.gin").write_text(content)
        caplog.clear()
        trial_folders.SweepFolder(tmp_path / "sweep", sweep.identity, sweep.recipes).close()
        assert (f"{tmp_path / 'a.gin'} changed since earlier trials, which may not compare." in caplog.text) == said


def _trial(folder: Path, number: int, tokens: float) -> Trial:
    trial = Trial(number, {"x": number}, folder / str(number), "done", value=2.0, step=5)
    trial.model_dir.mkdir(parents=True)
    line = {"step": 5, "dataset": "training_eval/t", "loss": 2.0, "num_target_tokens": tokens}
    (trial.model_dir / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return trial


def test_evaluations_on_other_targets_are_told(tmp_path):
    sweep, _ = load(tmp_path, parameters={"x": {"values": [0, 1, 2]}})
    trials = [_trial(tmp_path, n, tokens) for n, tokens in enumerate((2598.0, 1400.0, 2598.0))]
    said = sweep_report.remark(sweep, trials)
    assert said.endswith("loss does not compare (trial 0, 2: 2,598 tokens; trial 1: 1,400 tokens).")
    sweep_report.write(sweep, trials, tmp_path)
    assert (tmp_path / "results.txt").read_text().endswith(said + "\n")
    assert sweep_report.remark(sweep, [trials[0], trials[2]]) == ""
