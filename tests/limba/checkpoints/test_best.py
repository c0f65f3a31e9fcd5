import json

import pytest

from limba.checkpoints.best import best_checkpoint, metric_values


@pytest.fixture
def run(tmp_path):
    """Checkpoints of steps 10, 20, 30 and 40, of which 40 was not measured; step 25 was, and has no checkpoint."""
    lines = []
    for step, accuracy, loss in ((10, 0.5, 2.0), (20, 0.75, 1.0), (25, 0.9, 0.1), (30, 0.75, None)):
        lines.append({"step": step, "dataset": "inference_eval/my_task", "eval/accuracy": accuracy})
        lines.append({"step": step, "dataset": "training_eval/my/task", "loss": loss})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step in (10, 20, 30, 40):
        (tmp_path / f"checkpoint_{step}").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("choice", "step"),
    [
        ("max:inference_eval/my_task/eval/accuracy", 20),
        ("min:inference_eval/my_task/eval/accuracy", 10),
        ("min:training_eval/my/task/loss", 20),
        # As the log and Hugging Face's Trainer call them.
        *((f"max:{name}", 20) for name in ("accuracy", "my_task/accuracy", "inference_eval/my_task/accuracy")),
        *((f"max:{name}", 20) for name in ("eval/accuracy", "eval_accuracy")),
        ("min:my/task/loss", 20),
        ("min:loss", 20),
    ],
)
def test_the_best_of_those_that_are_there(run, choice, step):
    assert best_checkpoint(str(run), choice) == run / f"checkpoint_{step}"


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("inference_eval/my_task/eval/accuracy", "write max:METRIC or min:METRIC"),
        ("max:inference_eval/my_task/acuracy", "the nearest are inference_eval/my_task/eval/accuracy"),
        ("max:eval/acuracy", "the nearest are eval/accuracy, eval/loss"),
        ("most:loss", "--best most:loss"),
    ],
)
def test_choices_that_cannot_be(run, choice, words):
    with pytest.raises(ValueError, match=words):
        best_checkpoint(run, choice)


def test_a_short_name_is_not_that_of_an_average_of_the_parameters(tmp_path):
    lines = [
        {"step": 10, "dataset": "training_eval/my_task", "nats_per_target_token": 2.0},
        {"step": 10, "dataset": "training_eval/my_task_average", "nats_per_target_token": 1.5},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert metric_values(tmp_path, "eval/loss") == {10: 2.0}
    assert metric_values(tmp_path, "my_task_average/nats_per_target_token") == {10: 1.5}


def test_a_short_name_is_that_of_one_task(run):
    lines = [
        {"step": 10, "dataset": "training_eval/my_task", "nats_per_target_token": 2.0, "accuracy": 0.1},
        {"step": 10, "dataset": "train", "loss": 3.0},
        {"step": 20, "dataset": "inference_eval/other", "eval/accuracy": 5.0},
    ]
    with (run / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    assert metric_values(run, "eval/loss") == metric_values(run, "eval_loss") == {10: 2.0}
    squad = run / "squad"
    squad.mkdir()
    (squad / "metrics.jsonl").write_text(
        '{"step": 5, "dataset": "inference_eval/t", "eval/em": 40.0, "eval/f1": 50.0}\n'
    )
    assert metric_values(squad, "eval/exact_match") == metric_values(squad, "eval_exact_match") == {5: 40.0}
    assert metric_values(run, "nats per target token") == {10: 2.0} and metric_values(run, "train/loss") == {10: 3.0}
    assert metric_values(run, "other/accuracy") == {20: 5.0}
    with pytest.raises(ValueError, match=r"no such metric; the nearest are .*inference_eval/other/eval/accuracy"):
        best_checkpoint(run, "max:accuracy")


def test_runs_without_what_is_needed(run, tmp_path_factory):
    (run / "checkpoint_10").rename(run / "elsewhere")
    for step in (20, 30):
        (run / f"checkpoint_{step}").rmdir()
    with pytest.raises(ValueError, match=r"measured at steps \[10, 20, 25, 30\].*has checkpoints of steps \[40\] only"):
        best_checkpoint(run, "max:inference_eval/my_task/eval/accuracy")
    (run / "metrics.jsonl").unlink()
    with pytest.raises(ValueError, match=r"has no metrics\.jsonl"):
        best_checkpoint(run, "max:inference_eval/my_task/eval/accuracy")
    with pytest.raises(FileNotFoundError):
        best_checkpoint(tmp_path_factory.mktemp("empty"), "max:loss")
