"""Schedules and their numbers."""

import ast
import dataclasses

import pytest

from limba.addons.run import gin_text
from limba.addons.run.keys.script_keys import from_values
from limba.optimizers import schedules
from tests.addons.run.plans import plan_of
from tests.limba.gin_lines import lines_of

BASE = {"model_name_or_path": "m", "train_file": "t.txt", "output_dir": "o", "do_train": True, "do_eval": True}


def test_a_plateau_is_a_constant_rate_that_drops():
    numbers = {"factor": 0.5, "patience": 3, "min_lr": 1e-6, "mode": "max", "cooldown": 0}
    keys = {"lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss"}
    arguments, notes = from_values(BASE | keys | {"lr_scheduler_kwargs": numbers})
    assert arguments.lr_scheduler_type == "constant" and arguments.lr_scheduler_kwargs is None and arguments.use_lr_drop
    assert (arguments.lr_drop_factor, arguments.lr_drop_patience, arguments.lr_drop_min_lr) == (0.5, 3, 1e-6)
    assert arguments.best_mode == "max" and "use_lr_drop" in notes[0] and notes[1].startswith("The worst loss")
    assert from_values(BASE | keys)[0].lr_drop_patience == 10  # PyTorch's


@pytest.mark.parametrize(
    ("kind", "numbers", "words"),
    [
        ("reduce_lr_on_plateau", {"cooldown": 2}, "'cooldown': 2.*has here factor, patience"),
        ("cosine_with_min_lr", {}, "needs one of min_lr, the least rate, and min_lr_rate"),
        ("cosine_with_min_lr", {"min_lr": 0.1, "min_lr_rate": 0.1}, "needs one of min_lr"),
        ("cosine_with_min_lr", {"min_lr": 1.0}, "min_lr is a rate from 0 to learning_rate, 5e-05"),
        ("warmup_stable_decay", {}, "needs num_decay_steps"),
        ("warmup_stable_decay", {"num_decay_steps": 3, "decay_type": "cubic"}, "'cubic'.*has the numbers num_decay_st"),
        ("cosine", {"num_cycles": "two"}, "'two'.*cosine has the numbers num_cycles"),
        ("greedy", {}, "lr_scheduler_type is 'greedy'; use one of linear.*reduce_lr_on_plateau"),
    ],
)
def test_numbers_that_a_schedule_does_not_have(kind, numbers, words):
    with pytest.raises(ValueError, match=words):
        from_values(BASE | {"lr_scheduler_type": kind, "lr_scheduler_kwargs": numbers})


def test_numbers_that_transformers_does_not_read():
    numbers = {"lr_scheduler_kwargs": {"timescale": 9}}
    arguments, notes = from_values(BASE | numbers | {"lr_scheduler_type": "inverse_sqrt"})
    assert arguments.lr_scheduler_kwargs is None
    assert [note for note in notes if "lr_scheduler_kwargs {'timescale': 9} (inverse_sqrt reads none" in note]
    with pytest.raises(ValueError, match="linear has no numbers: leave it out"):
        from_values(BASE | numbers | {"lr_scheduler_type": "linear"})


def test_a_plateau_that_contradicts_the_best_metric():
    keys = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"mode": "min"}}
    with pytest.raises(ValueError, match="has mode 'min', and greater_is_better is True"):
        from_values(BASE | keys | {"greater_is_better": True})


def test_a_rate_of_0_trains_and_changes_nothing_as_in_transformers():
    for kind in ("linear", "cosine", "constant_with_warmup"):
        arguments, notes = from_values(BASE | {"learning_rate": 0, "lr_scheduler_type": kind, "warmup_steps": 2})
        assert "learning_rate is 0: the training changes no parameter." in notes
        lines = lines_of(gin_text._schedule(plan_of(dataclasses.replace(arguments, max_steps=10))))
        bound = [line.strip().partition(" = ") for line in lines if line.startswith("  ")]
        rate = schedules.create_learning_rate_scheduler(**{name: ast.literal_eval(x) for name, _, x in bound})
        assert [float(rate(step)) for step in (0, 1, 9)] == [0.0, 0.0, 0.0]
    assert not from_values(BASE | {"learning_rate": 0, "relative_step": True, "optim": "adafactor"})[1]
    with pytest.raises(ValueError, match=r"falls to lr_end, 1e-07, and learning_rate is 0\.0: it must be above"):
        from_values(BASE | {"learning_rate": 0, "lr_scheduler_type": "polynomial"})
