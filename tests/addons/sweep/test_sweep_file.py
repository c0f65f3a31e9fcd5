"""Files of W&B's users: what goes through, and what is named with its line."""

import pytest
import yaml

from limba.addons.sweep import command, sweep_file, trial_command

FILE = """program: fine_tune_t5.py
method: random
description: null
metric: {name: eval/accuracy, goal: maximize}
run_cap: 1
parameters:
  learning_rate:
    distribution: loguniform
    min: 1e-5
    max: 1e-3
  seed: null
  optimizer_parameters:
    parameters:
      weight_decay: {values: [null]}
      adam_beta2: {distribution: choice, values: [0.98]}
command:
  - accelerate
  - launch
  - ${program}
  - ${args}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(FILE)
    return path


def test_groups_null_and_names_of_other_searches(file, capsys):
    loaded, _ = sweep_file.load(file)
    rate, seed, *_ = loaded.parameters
    assert (rate.distribution, seed.values) == ("log_uniform_values", (None,)) and loaded.trials == 1
    assert command.main([str(file), "--print"]) == 0
    assert capsys.readouterr().out.endswith("--seed=null --weight_decay=null --adam_beta2=0.98\n")
    # W&B's agents give names and values, without groups.
    assert command.main([str(file), "--wandb_config"]) == 0
    described = yaml.safe_load(capsys.readouterr().out)["parameters"]
    assert list(described) == [parameter.name for parameter in loaded.parameters]
    assert described["optimizer_parameters.weight_decay"] == {"values": [None]}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("method:", "metod:", "line 2: there is no key 'metod'"),
        ("loguniform", "normal", "line 7: parameters.learning_rate has normal, which is not here: write uniform with"),
        ("min: 1e-5", "mu: 0", "line 7: parameters.learning_rate has mu, which is not here: write min and max"),
        ("min: 1e-5", "min: null", "line 7: parameters.learning_rate.min is None; it is a number"),
        ("min: 1e-5", "min: 1", "line 7: parameters.learning_rate: min 1.0 is not below max 0.001"),
        ("adam_beta2", "adam_bta2", "line 15: .*no key 'adam_bta2'; the nearest is 'adam_beta2'"),
        ("command:\n", "  command:\n", "line 16: command stands under parameters, .* move it to the beginning"),
        ("{name: eval/accuracy, goal: maximize}", "loss", "line 4: metric is 'loss'"),
    ],
)  # fmt: skip
def test_a_mistake_has_its_line(file, before, after, words):
    changed = FILE.replace(before, after)
    if "command" in after:
        changed = changed.replace("\n  - ", "\n    - ")
    file.write_text(changed)
    with pytest.raises(ValueError, match=rf"sweep\.yaml, ({words})"):
        sweep_file.load(file)


@pytest.mark.parametrize("command_", [[], ["limba", "run", "${program}", "${args}"], ["python", "${program}"]])
@pytest.mark.parametrize(
    ("program", "words"), [("x/run_summarization.py", ["run", "run_summarization.py"]), ("my_train.py", ["run"])]
)
def test_a_script_that_is_not_here_keeps_its_name(tmp_path, program, words, command_):
    file = tmp_path / "s.yaml"
    content = {"method": "grid", "metric": {"name": "eval/loss", "goal": "minimize"}, "program": program}
    content |= {"parameters": {"seed": {"values": [1]}}}
    file.write_text(yaml.safe_dump(content | ({"command": command_} if command_ else {})))
    loaded, _ = sweep_file.load(file)
    trial = trial_command.trial_command(loaded, {"seed": 1}, tmp_path / "t")
    assert trial[3:] == [*words, f"--output_dir={tmp_path / 't'}", "--seed=1"]
