import jax.numpy as jnp
import pytest

from limba.training import actions
from limba.training.actions import (
    ActionMode,
    DropOnPlateauAction,
    EarlyStoppingAction,
    StopOnPlateauAction,
    TerminateOnNanAction,
)

# mode, patience, atol, rtol, values, and the measurement at which T5X's EarlyStoppingAction ended training.
T5X_DECISIONS = [
    ("min", 2, 0.0, 0.0, [0.98, 1.0, 0.9, 0.89, 0.97, 0.92, 0.72, 0.58, 0.68, 0.87, 0.97, 0.96], 1),
    ("max", 3, 0.0, 0.0, [0.65, 0.62, 0.43, 0.32, 0.24, 0.19, 0.25, 0.41, 0.39, 0.6, 0.5, 0.55], 2),
    ("min", 4, 0.0, 0.0, [0.86, 0.85, 0.96, 1.1, 1.17, 1.14, 1.29, 1.32, 1.34, 1.26, 1.23, 1.18], 4),
    ("max", 2, 0.0, 0.0, [0.9, 0.88, 1.0, 1.22, 1.04, 1.26, 1.46, 1.58, 1.62, 1.57, 1.79, 2.09], 1),
    ("min", 3, 0.0, 0.0, [0.73, 0.53, 0.48, 0.66, 0.66, 0.56, 0.76, 0.7, 0.63, 0.53, 0.71, 0.8], 4),
    ("max", 4, 0.0, 0.0, [0.93, 0.76, 1.02, 0.95, 0.99, 0.96, 1.19, 1.39, 1.49, 1.16, 1.16, 1.27], None),
    ("min", 2, 0.05, 0.0, [0.85, 0.94, 0.67, 0.87, 0.97, 0.83, 0.82, 0.52, 0.49, 0.58, 0.64, 0.81], 1),
    ("max", 3, 0.05, 0.0, [0.81, 0.9, 0.99, 1.18, 1.07, 1.32, 1.28, 1.52, 1.45, 1.34, 1.38, 1.53], 9),
    ("min", 4, 0.05, 0.0, [0.98, 1.06, 1.26, 1.48, 1.4, 1.25, 1.28, 1.44, 1.31, 1.5, 1.61, 1.51], 3),
    ("max", 2, 0.05, 0.0, [0.66, 0.72, 0.63, 0.65, 0.64, 0.67, 0.77, 0.66, 0.87, 0.98, 1.11, 1.28], 2),
    ("min", 3, 0.05, 0.0, [0.88, 0.76, 0.74, 0.96, 0.98, 1.09, 1.31, 1.27, 1.35, 1.51, 1.66, 1.62], 3),
    ("max", 4, 0.05, 0.0, [1.05, 1.25, 1.25, 1.41, 1.62, 1.79, 1.43, 1.62, 1.67, 1.73, 1.79, 1.85], None),
]


def _run(action, values):
    """The index of the value that ended training, or None."""
    stops = (action.run(None, {"task": {"metric": actions.Scalar(value)}}) for value in values)
    return next((index for index, stop in enumerate(stops) if stop), None)


@pytest.mark.parametrize(("mode", "patience", "atol", "rtol", "values", "stop"), T5X_DECISIONS)
def test_early_stopping_decides_as_t5x(mode, patience, atol, rtol, values, stop):
    assert _run(EarlyStoppingAction(("task", "metric"), mode, patience, atol, rtol), values) == stop


def test_early_stopping_remembers_what_a_resumed_run_saw():
    action = EarlyStoppingAction(("task", "metric"), "max", patience=3)
    action.resume([{"task": {"metric": 0.5}}, {"other": {}}, {"task": {"metric": 0.5}}, {"task": {"metric": None}}])
    assert _run(action, [0.5]) == 0


@pytest.mark.parametrize(
    ("options", "values", "scales"),
    [
        # Against the best so far, not the value before; counted anew after a drop.
        ({"mode": "min"}, [1.0, 0.8, 0.9, 0.85, 0.7, 0.7, 0.7, 0.7, 0.7], [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125]),
        ({"mode": "max", "patience": 1, "factor": 0.1}, [0.5, 0.6, 0.5, 0.5, 0.5], [1, 1, 0.1, 0.01, 0.01]),
        ({"mode": "max", "patience": 1, "atol": 0.2}, [0.5, 0.6, 0.9], [1, 0.5, 0.5]),
        ({"mode": "min", "patience": 1, "rtol": 0.1}, [1.0, 0.95, 0.8], [1, 0.5, 0.5]),
        ({"mode": "min", "patience": 1}, [float("nan"), 1.0, float("nan"), 1.0], [1, 1, 1, 0.5]),
    ],
)
def test_the_rate_drops_on_a_plateau_and_a_resumed_run_knows_it(options, values, scales):
    action = DropOnPlateauAction(("task", "metric"), **options)
    metrics = [{"task": {"metric": value}} for value in values]
    seen = []
    for measured in metrics:
        assert not action.run(None, measured)
        seen.append(action.rate_scale)
    assert seen == pytest.approx(scales)
    resumed = DropOnPlateauAction(("task", "metric"), **options)
    resumed.resume([{"task": {"metric": None}}, *metrics[:-1]])
    resumed.run(None, metrics[-1])
    assert resumed.rate_scale == pytest.approx(scales[-1])


@pytest.mark.parametrize(
    ("mode", "patience", "values", "stop"),
    [
        ("max", 2, [0.5, 0.6, 0.55, 0.59], 3),  # better than the one before, not than the best
        ("max", 3, [0.5, 0.6, 0.55, 0.59, 0.61, 0.6, 0.6], None),
        ("min", 1, [2.0, 1.0, float("nan"), 1.0], 3),
    ],
)
def test_training_ends_where_the_best_is_not_reached_again(mode, patience, values, stop):
    metrics = [{"task": {"metric": value}} for value in values]
    action = StopOnPlateauAction(("task", "metric"), mode, patience)
    stops = [i for i, measured in enumerate(metrics) if action.run(None, measured)]
    assert (stops[0] if stops else None) == stop
    resumed = StopOnPlateauAction(("task", "metric"), mode, patience)
    resumed.resume(metrics[:-1])
    assert resumed.run(None, metrics[-1]) is (stop == len(values) - 1)


@pytest.mark.parametrize(("value", "stops"), [(1.0, False), (float("nan"), True), (float("inf"), True)])
def test_terminate_on_nan(value, stops):
    assert TerminateOnNanAction("task", "loss").run(None, {"task": {"loss": jnp.float32(value)}}) is stops


def test_a_metric_that_is_not_there_is_named_with_its_nearest(caplog):
    assert not TerminateOnNanAction("task", "los").run(None, {"task": {"loss": float("nan"), "z": 0.0}})
    assert "watches 'los' of task, which has loss" in caplog.text


class _Reader(actions.BaseAction):
    """Reads values as T5X's actions do."""

    def run(self, train_state, metrics_by_task):
        self.seen = {task: {name: x.value for name, x in metrics.items()} for task, metrics in metrics_by_task.items()}
        return train_state == "stop"


def test_every_action_of_a_mode_runs():
    first, second = _Reader(), _Reader()
    run = actions.Actions({"TRAIN": [first, second]}, {ActionMode.TRAIN: ["train"]})
    assert run.run(ActionMode.TRAIN, "stop", {"train": {"loss": 1.5}})
    assert first.seen == second.seen == {"train": {"loss": 1.5}}
    assert not run.run(ActionMode.TRAIN, "go on", {"train": {"loss": 1.5}})
    assert not run.run(ActionMode.INFER_EVAL, "stop", {})


TASKS = {ActionMode.TRAIN: ["train"], ActionMode.TRAIN_EVAL: ["mnli"]}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: actions.Actions({"EVAL": []}, TASKS), ["'EVAL'", "TRAIN, TRAIN_EVAL, INFER_EVAL"]),
        (lambda: actions.Actions({"TRAIN": EarlyStoppingAction(("t", "m"), "max")}, TASKS), ["a list of actions"]),
        (lambda: actions.Actions({"TRAIN": [EarlyStoppingAction]}, TASKS), ["with its brackets"]),
        (lambda: actions.Actions({"INFER_EVAL": [_Reader()]}, TASKS), ["INFER_EVAL", "infer_eval_dataset_cfg"]),
        (
            lambda: actions.Actions({"TRAIN_EVAL": [TerminateOnNanAction("mlni")]}, TASKS),
            ["TerminateOnNanAction", "'mlni'", "['mnli']"],
        ),
        (lambda: EarlyStoppingAction(("t", "m"), "maximum"), ["'maximum'", "'max'"]),
        (lambda: EarlyStoppingAction(("t", "m"), "max", patience=1), ["patience is 1"]),
        (lambda: EarlyStoppingAction(("t", "m"), "max", patience=2.5), ["patience is 2.5", "whole number"]),
        (lambda: EarlyStoppingAction("accuracy", "max"), ["metric is 'accuracy'", "('my_task', 'accuracy')"]),
        (lambda: EarlyStoppingAction(("t", "m"), "max", rtol=-0.1), ["-0.1", "negative"]),
        (lambda: DropOnPlateauAction(("t", "m"), "least"), ["DropOnPlateauAction.mode is 'least'"]),
        (lambda: DropOnPlateauAction(("t", "m"), "min", factor=2.0), ["2.0", "between 0 and 1"]),
        (lambda: DropOnPlateauAction(("t", "m"), "min", patience=0), ["patience is 0"]),
    ],
)
def test_actions_that_cannot_work_are_refused(make, words):
    with pytest.raises(ValueError) as error:
        make()
    for word in words:
        assert word in str(error.value)
