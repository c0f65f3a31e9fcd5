"""Periods as whole steps, and as shares of all steps."""

import pytest

from limba.addons.run.keys.script_keys import from_command_line, from_values

BASE = {"model_name_or_path": "m", "train_file": "t.txt", "output_dir": "o", "do_train": True, "do_eval": True}
BEST = {"load_best_model_at_end": True}


@pytest.mark.parametrize(
    ("keys", "total", "expected"),
    [
        ({}, 1000, (500, 500, 500)),
        ({"save_steps": 40}, 1000, (40, 40, 500)),
        ({"eval_steps": 0.5, "logging_steps": "0.1", "save_steps": 0.2}, 101, (51, 21, 11)),
        ({"eval_steps": 0.001}, 10, (1, 500, 500)),
        # Rounded one by one they would be 3 and 5, and step 5 has no evaluation.
        ({"eval_steps": 0.25, "save_steps": 0.5, **BEST}, 10, (3, 6, 500)),
        ({"eval_steps": 0.1, "save_steps": 0.3, **BEST}, 100, (10, 30, 500)),
    ],
)
def test_shares_are_rounded_up_as_transformers_does(keys, total, expected):
    arguments, _ = from_values(BASE | keys)
    assert tuple(arguments.steps_between(what, total) for what in ("eval", "save", "logging")) == expected


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"eval_steps": 0}, "eval_steps is 0; it must be a whole number of at least 1, or a share"),
        ({"save_steps": 2.5}, "save_steps is 2.5; it must be a whole number"),
        ({"logging_steps": -0.5}, "logging_steps is -0.5; it must be"),
        ({"eval_steps": "inf"}, "eval_steps is inf; it must be"),
        ({"eval_delay": -1}, "eval_delay is -1.0; it must be at least 0"),
        ({"save_strategy": "often"}, "save_strategy is 'often'; use steps, epoch, no or best"),
        ({"eval_strategy": "best"}, "eval_strategy is 'best'; use steps, epoch or no"),
        ({"save_strategy": "best", "do_eval": False}, "save_strategy is 'best', and looks at evaluations"),
        ({"eval_steps": 0.2, "save_steps": 0.5, **BEST}, "0.5, and must be a multiple of eval_steps, 0.2"),
        ({"eval_steps": 0.5, "save_steps": 10, **BEST}, "save_steps is 10, and must be a multiple of eval_steps, 0.5"),
    ],
)
def test_periods_that_cannot_be(keys, words):
    with pytest.raises(ValueError, match=words):
        from_values(BASE | keys)


def test_whole_numbers_of_a_shell_are_whole():
    flags = [f"--{name}={value}" for name, value in (BASE | {"eval_steps": "20.0", "save_steps": "40"}).items()]
    arguments, _ = from_command_line(flags)
    assert repr((arguments.eval_steps, arguments.save_steps)) == "(20, 40)"


def test_steps_of_0_pass_beside_a_strategy_that_counts_none():
    keys = {"eval_strategy": "epoch", "eval_steps": 0, "save_strategy": "no", "save_steps": -1}
    arguments, _ = from_values(BASE | keys | {"logging_strategy": "epoch", "logging_steps": 0})
    assert (arguments.eval_steps, arguments.save_steps, arguments.logging_steps) == (None, 500, None)
    with pytest.raises(ValueError, match="eval_steps is 0"):
        from_values(BASE | {"eval_strategy": "steps", "eval_steps": 0})


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({"eval_strategy": "steps", "logging_steps": 50}, 50),
        ({"eval_strategy": "steps", "save_steps": 20}, 500),
        ({"eval_strategy": "steps", "logging_steps": 50, "eval_steps": 7}, 7),
        ({"eval_strategy": "epoch", "logging_steps": 50}, None),
        ({"logging_steps": 50}, None),
    ],
)
def test_evaluations_by_steps_have_logging_steps_as_in_transformers(keys, steps):
    arguments, notes = from_values(BASE | keys)
    assert arguments.eval_steps == steps
    said = [note for note in notes if "eval_steps is that of logging_steps" in note]
    assert len(said) == (steps in (50, 500))
    if keys.get("eval_strategy") == "steps":
        transformers = pytest.importorskip("transformers")
        theirs = transformers.TrainingArguments(output_dir="o", use_cpu=True, report_to=[], **keys)
        assert theirs.eval_steps == steps


@pytest.mark.parametrize(
    ("keys", "right"),
    [
        ({"metric_for_best_model": "mse", **BEST}, "false"),
        ({"metric_for_best_model": "eval_accuracy", "greater_is_better": False, **BEST}, "true"),
        ({"metric_for_best_model": "eval_loss", "greater_is_better": True, "early_stopping_patience": 2}, "false"),
        ({"metric_for_best_model": "mse", "greater_is_better": False, **BEST}, None),
        ({"metric_for_best_model": "mse"}, None),
        (BEST, None),
    ],
)
def test_the_worst_metric_as_the_best_is_named(keys, right):
    said = [note for note in from_values(BASE | keys)[1] if note.startswith("The worst ")]
    assert [note.endswith(f"write greater_is_better {right}.") for note in said] == ([True] if right else [])
