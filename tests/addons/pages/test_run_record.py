"""What a page reads of a run's folder."""

import json

import numpy as np
import pytest

from limba.addons.pages import page_parts, report_command, run_curves, run_record
from limba.reports import json_lines
from tests.addons.pages.made_up_runs import SIZES, make_run, set_info, write_lines


def test_places_on_each_axis(tmp_path):
    """2,000 tokens a second at 4 steps a second are 500 a step; 100 steps take half an hour."""
    run = run_record.load(set_info(make_run(tmp_path / "run", **{"timing/steps_per_second": 4.0})), "run")
    steps = np.array([0, 50, 100])
    assert run.along("steps", steps).tolist() == [0.0, 50.0, 100.0]
    assert run.along("tokens", steps).tolist() == [0.0, 25_000.0, 50_000.0]
    assert run.along("hours", steps).tolist() == [0.0, 0.25, 0.5]
    # Of SIZES: one layer each of 2 I (4 e a + 2 e m) + 4 I I a and so on, three passes, 8 rows.
    emb, joined, mlp, vocab, inputs, targets = 4, 6, 5, 10, 3, 2
    encoder = 2 * inputs * (4 * emb * joined + 2 * emb * mlp) + 4 * inputs**2 * joined
    decoder = 2 * targets * (6 * emb * joined + 2 * emb * mlp) + 4 * inputs * emb * joined
    decoder += 4 * targets * (targets + inputs) * joined
    flops = 3 * 8 * (encoder + decoder + 2 * targets * emb * vocab)
    assert SIZES["emb_dim"] == emb and run.along("FLOPs", steps).tolist() == [0.0, 50 * flops, 100 * flops]


def test_what_a_run_does_not_know_is_none(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "goodput.jsonl").unlink()
    run = run_record.load(folder, "run")
    assert [run.along(axis, np.zeros(1)) is None for axis in run_record.AXES] == [False, True, True, True]
    assert page_parts.hours_left(run) is None and page_parts.costs([run], 2.0).count("<tr>") == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"environment": {"devices": 5, "packages": 5, "mesh": ["data"]}, "parameters": "many"},
        {"environment": {"devices": ["cpu"], "packages": ["jax"], "mesh": 5}, "parameters": None},
    ],
)
def test_a_record_of_other_types_leaves_the_rest_of_the_environment(fields, tmp_path):
    folder = set_info(make_run(tmp_path / "run"), **fields, commits={"limba": "abc"})
    shown = page_parts.environment([run_record.load(folder, "run")])
    assert shown.count("<tr>") == 4 and all(word in shown for word in ("random 7", "commit of limba", str(folder)))


def test_hours_of_restarts_count_and_the_time_left_is_of_the_second_half(tmp_path):
    """A start of an hour to step 40; then one from step 30, at a step a minute."""
    folder = make_run(tmp_path / "run", steps=range(10, 91, 10), total=120)
    lines = [{"step": step, "began": 0.0, "time": 90.0 * step, "seconds": {"step": 1.0}} for step in (0, 20, 40)]
    lines += [
        {"step": step, "began": 90_000.0, "time": 90_000.0 + 60.0 * (step - 30), "seconds": {"step": 1.0}}
        for step in (30, 60, 90)
    ]
    write_lines(folder / "goodput.jsonl", lines)
    run = run_record.load(folder, "run")
    assert run.hours_at(np.array([20, 60, 90])).tolist() == [0.5, 1.5, 2.0]
    assert page_parts.hours_made(run) == 2.0 and len(run.attempts) == 2
    # From step 45 (1.25 h) to 90 (2 h): a minute a step, and 30 steps are left.
    assert page_parts.hours_left(run) == pytest.approx(0.5)


def test_lines_of_a_stranger_take_no_more_memory_than_they_have_bytes(tmp_path, monkeypatch):
    """Each line may name a metric of its own; a line of lists is 30 times its bytes."""
    monkeypatch.setattr(run_curves, "_MOST_NUMBERS", 100)
    monkeypatch.setattr(json_lines, "_MOST_OF_LINE", 1000)
    folder = make_run(tmp_path / "run")
    write_lines(folder / "metrics.jsonl", [{"step": 1, "dataset": "x", "m" * 1000: 1.0}])
    with pytest.raises(FileNotFoundError, match=r"1 lines of metrics\.jsonl are damaged"):
        run_record.load(folder, "run")
    write_lines(folder / "metrics.jsonl", [{"step": i, "dataset": "x", f"metric_{i}": 1.0} for i in range(20)])
    with pytest.raises(ValueError, match=r"metrics\.jsonl: the lines of x have so many names of metrics"):
        run_record.load(folder, "run")


def test_predictions_are_of_the_same_examples_over_time(tmp_path):
    folder = make_run(tmp_path / "run") / "inference_eval"
    folder.mkdir()
    for step in range(10, 101, 10):
        texts = [{"inputs_pretokenized": f"text {i}", "targets_pretokenized": "yes"} for i in range(7)]
        rows = [{"input": text, "target": 1, "output": f"{step}-{i}"} for i, text in enumerate(texts)]
        write_lines(folder / f"stories-{step:06}.jsonl", rows)
    (folder / "stories-metrics.jsonl").write_text("{}\n")
    write_lines(folder / "other-000100.jsonl", [{"input": {"inputs": [1, 2]}, "target": [3], "prediction": [4]}])
    found = run_record.load(tmp_path / "run", "run").predictions
    assert [example.text for example in found["stories"]] == [f"text {i}" for i in range(5)]
    assert found["stories"][1].outputs == {step: f"{step}-1" for step in (10, 30, 50, 60, 80, 100)}
    assert found["other"][0] == run_record.Prediction("[1, 2]", "[3]", {100: "[4]"})


def test_baselines_and_parameters_are_curves(tmp_path):
    weights = {f"weight_rms/{name}": value for name, value in (("a", 1.0), ("b", 3.0), ("c", 2.0))}
    folder = make_run(tmp_path / "run", steps=(10, 20), **weights)
    with (folder / "metrics.jsonl").open("a") as file:
        line = {"step": 30, "dataset": "training_eval/stories", "unigram/nats_per_text_token": 6.0}
        file.write(json.dumps(line) + "\nnot a line\n")
    run = run_record.load(folder, "run")
    assert run.damaged == 1 and run.step == 30
    train, stories = run.curves["train"], run.curves["training_eval/stories"]
    assert [train.last(f"weight_rms:{x}") for x in ("least", "median", "greatest")] == [1.0, 2.0, 3.0]
    assert stories.columns["unigram/nats_per_text_token"].tolist() == [6.0, 6.0, 6.0]


def test_folders_that_are_no_runs_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no metrics.jsonl: name the folder of a run"):
        run_record.load(tmp_path, "x")
    (tmp_path / "metrics.jsonl").write_text("damaged\n")
    with pytest.raises(FileNotFoundError, match=r"has no metrics yet \(1 lines of metrics.jsonl are damaged\): wait"):
        run_record.load(tmp_path, "x")


def test_runs_have_the_shortest_names_that_differ(tmp_path):
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    assert report_command.names(folders) == ["a/run", "b/run"] and report_command.names(folders[:1]) == ["run"]


def test_numbers_that_no_array_holds_are_damaged_lines(tmp_path):
    folder = make_run(tmp_path / "run")
    right = run_record.load(folder, "run")
    with (folder / "metrics.jsonl").open("a") as file:
        for line in ({"step": 10**30}, {"step": 1, "loss": 10**400}):
            file.write(json.dumps({"dataset": "train", **line}) + "\n")
    with (folder / "goodput.jsonl").open("a") as file:
        file.write(json.dumps({"step": 10**400, "began": 0.0, "time": 1.0, "seconds": {}}) + "\n")
    found = run_record.load(folder, "run")
    assert (found.damaged, found.step) == (right.damaged + 2, right.step)
    np.testing.assert_array_equal(found.pace, right.pace)


@pytest.mark.parametrize("size", [{"gemma_layers": 5}, {"gemma_layers": "x"}, {"num_encoder_layers": 10**400}])
def test_sizes_of_a_network_that_has_none_have_no_flops(tmp_path, size):
    folder = set_info(make_run(tmp_path / "run"), network=SIZES | size)
    assert run_record.load(folder, "run").flops_per_step is None


def test_a_configuration_that_leads_out_of_the_run_is_on_no_page(tmp_path):
    folder = make_run(tmp_path / "run")
    (tmp_path / "secret").write_text("x")
    (folder / "config.gin").unlink(missing_ok=True)
    (folder / "config.gin").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"config\.gin is a link to .*secret, outside of its folder"):
        run_record.load(folder, "run")
