import argparse
import functools
import json
import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from limba import eval
from limba.checkpoints import checkpointing
from limba.data import contract
from limba.gin_config import recipe
from limba.reports import results_table
from tests.limba import small

inferring = pytest.importorskip("tests.limba.inferring", reason="needs SeqIO", exc_type=ImportError)
TASK = "inference_letters"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    for shift, step in ((0, 3), (1, 10)):
        inferring.save_checkpoint(directory, shift, step)
    return directory


def _evaluate(run_dir, output_dir, evaluator_cls, mode="latest", split="validation", task=TASK, **options):
    inferring.register_task()
    return eval.evaluate(
        model=inferring.FormulaModel(),
        dataset_cfg=contract.DatasetConfig(task, inferring.LENGTHS, split, batch_size=8, shuffle=False, seed=0),
        restore_checkpoint_cfg=checkpointing.RestoreCheckpointConfig(path=str(run_dir), mode=mode),
        partitioner=small.partitioner(2),
        output_dir=str(output_dir),
        inference_evaluator_cls=evaluator_cls,
        summarize_config_fn=None,
        **options,
    )


def _mean_score(shift):
    """Of the formula model: minus shift times the ids of the targets, EOS included."""
    encode = inferring.VOCABULARY.encode
    return float(np.mean([-shift * (sum(encode(chr(97 + i) * 3)) + 1) for i in range(23)]))


def _tensorboard(folder):
    """`{(step, tag): value}` of the event files in a folder."""
    events = [
        event
        for path in folder.glob("events.out.tfevents.*")
        for event in inferring.tf.compat.v1.train.summary_iterator(str(path))
    ]
    return {(event.step, value.tag): value.simple_value for event in events for value in event.summary.value}


def test_metrics_of_predictions_scores_and_auxiliary_values(run_dir, tmp_path):
    metrics = _evaluate(run_dir, tmp_path, inferring.seqio.Evaluator)[TASK]
    assert metrics["mean_score"] == pytest.approx(_mean_score(1))
    assert metrics["first"] == 0.0  # moved on by 1 to 3
    assert metrics["mean_aux"] > 100


def test_all_checkpoints_and_then_only_the_new_ones(run_dir, tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO, "limba")
    seqio = inferring.seqio
    loggers = [seqio.PyLoggingLogger, seqio.TensorBoardLogger, seqio.JSONLogger]
    evaluate = functools.partial(_evaluate, run_dir, tmp_path, functools.partial(seqio.Evaluator, logger_cls=loggers))
    assert evaluate(mode="all")[TASK]["mean_score"] == pytest.approx(_mean_score(1))
    inferring.save_checkpoint(run_dir, shift=2, step=12)
    capsys.readouterr()
    assert evaluate(mode="all")[TASK]["mean_score"] == pytest.approx(_mean_score(2))
    printed = capsys.readouterr().out
    assert "step 12" in printed and "step 10" not in printed
    rows = results_table.read(tmp_path)
    assert [(row["step"], row["metrics"]["mean_score"]) for row in rows] == [
        (step, pytest.approx(_mean_score(shift))) for step, shift in ((3, 0), (10, 1), (12, 2))
    ]
    assert f"{TASK} (validation)\nstep" in printed and "(all of it in" in printed
    caplog.clear()
    assert evaluate(mode="all") == {}
    said = [record.getMessage() for record in caplog.records if "is evaluated already" in record.getMessage()]
    steps = [int(re.search(r"checkpoint_(\d+) is evaluated", line)[1]) for line in said]
    assert steps == sorted(checkpointing.checkpoint_steps(run_dir)) and len(steps) == 3

    logged = tmp_path / "inference_eval"
    lines = [json.loads(line) for line in (logged / f"{TASK}-metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["mean_score"]) for line in lines] == [
        (step, pytest.approx(_mean_score(shift))) for step, shift in ((3, 0), (10, 1), (12, 2))
    ]
    predictions = (logged / f"{TASK}-000012.jsonl").read_text().splitlines()
    assert len(predictions) == 23 and json.loads(predictions[1])["input"]["inputs_pretokenized"] == "bbb01"
    scalars = _tensorboard(logged / TASK)
    assert {step for step, _ in scalars} == {3, 10, 12}
    assert scalars[12, "eval/mean_score"] == pytest.approx(_mean_score(2))


@pytest.mark.parametrize("with_predictions", [False, True])
def test_teacher_forcing(run_dir, tmp_path, with_predictions):
    options = {"training_evaluator_cls": object} if with_predictions else {}
    evaluator_cls = inferring.seqio.Evaluator if with_predictions else None
    path = checkpointing.checkpoint_path(run_dir, 10)
    metrics = _evaluate(path, tmp_path, evaluator_cls, mode="specific", **options)[TASK]
    assert metrics["nats_per_target_token"] == pytest.approx(2.0)
    assert metrics["num_target_tokens"] == 23 * 4
    assert ("mean_score" in metrics) == with_predictions
    report = json.loads((tmp_path / f"{TASK}-metrics.json").read_text())
    assert (report["step"], report["accuracy"]) == (10, 0.25)
    scalars = _tensorboard(tmp_path / "training_eval" / TASK)
    assert scalars[10, "nats_per_target_token"] == pytest.approx(2.0)


def test_a_split_that_never_ends(run_dir, tmp_path, caplog):
    """As many batches as training took of it; the bar shows them."""
    name = "letters_for_ever"

    def for_ever(split, shuffle_files=False, seed=None):
        return inferring.tf.data.Dataset.from_tensor_slices({"inputs": ["aaa"], "targets": ["aaa"]}).repeat()

    inferring.register_task(name, for_ever)
    measured = _evaluate(run_dir, tmp_path, None, task=name, steps_if_endless=3)[name]
    assert measured["num_target_tokens"] == 3 * 8 * 4
    assert "'letters_for_ever' is not known to end" in caplog.text and "3 batches of it are evaluated" in caplog.text
    assert _evaluate(run_dir, tmp_path, None, task=name, eval_steps=1)[name]["num_target_tokens"] == 8 * 4
    # One that ends is evaluated whole.
    caplog.clear()
    assert _evaluate(run_dir, tmp_path, None)[TASK]["num_target_tokens"] == 23 * 4
    assert "goes on until it does; if it never does, interrupt it and give --eval_steps N" in caplog.text


def test_nothing_to_evaluate(run_dir, tmp_path):
    evaluator_cls = inferring.seqio.Evaluator
    with pytest.raises(ValueError, match="has metric_fns and a split 'test'"):
        _evaluate(run_dir, tmp_path, evaluator_cls, split="test")
    with pytest.raises(ValueError, match="No checkpoint"):
        _evaluate("", tmp_path, evaluator_cls)
    with pytest.raises(ValueError, match="train_state_initializer_cls"):
        _evaluate(run_dir, tmp_path, evaluator_cls, train_state_initializer_cls=object)


def test_flags_of_a_run(run_dir, tmp_path):
    parse = argparse.Namespace
    flags = {
        "run_dir": str(run_dir),
        "task": None,
        "module": None,
        "split": None,
        "output_dir": None,
        "eval_steps": None,
        "average": None,
    }
    assert recipe.lines(eval.run_bindings(parse(**flags, checkpoints="3"))) == [
        f"CHECKPOINT_PATH = ['{run_dir}/checkpoint_3']",
        "eval/checkpoints.RestoreCheckpointConfig.mode = 'latest'",
        f"EVAL_OUTPUT_DIR = '{run_dir}/eval'",
    ]
    flags |= {"run_dir": f"{run_dir}/checkpoint_10", "task": "t", "module": "m", "split": "test", "eval_steps": 5}
    assert recipe.lines(eval.run_bindings(parse(**flags, checkpoints="all")))[1:] == [
        "eval/checkpoints.RestoreCheckpointConfig.mode = 'all'",
        f"EVAL_OUTPUT_DIR = '{run_dir}/eval'",
        "MIXTURE_OR_TASK_NAME = 't'",
        "MIXTURE_OR_TASK_MODULE = 'm'",
        "eval/data.DatasetConfig.split = 'test'",
        "eval_script.evaluate.eval_steps = 5",
    ]
    of_average = recipe.lines(eval.run_bindings(parse(**flags | {"average": True}, checkpoints="all")))
    assert f"EVAL_OUTPUT_DIR = '{run_dir}/eval_average'" in of_average  # apart from those of the parameters
    assert "eval/checkpoints.RestoreCheckpointConfig.average = True" in of_average
    output_dir = Path(shutil.copytree(run_dir, tmp_path / "sum/run")).parent  # of `limba run`
    flags |= {"run_dir": str(output_dir)}
    chosen = eval.run_bindings(parse(**flags, checkpoints="3"))
    assert chosen["CHECKPOINT_PATH"] == [f"{output_dir}/run/checkpoint_3"]
    assert eval.run_bindings(parse(**flags, checkpoints=None))["EVAL_OUTPUT_DIR"] == f"{output_dir}/run/eval"
    (output_dir / "trainer_state.json").write_text('{"best_global_step": 3}')  # of load_best_model_at_end
    assert eval.run_bindings(parse(**flags, checkpoints=None))["CHECKPOINT_PATH"] == f"{output_dir}/run/checkpoint_3"
    assert eval.run_bindings(parse(**flags, checkpoints="latest"))["CHECKPOINT_PATH"] == f"{output_dir}/run"
    flags |= {"run_dir": f"{run_dir}/checkpoint_10"}
    with pytest.raises(ValueError, match="--checkpoints is 'best'; give latest, all, or steps"):
        eval.run_bindings(parse(**flags, checkpoints="best"))
    with pytest.raises(ValueError, match="checkpoint_10 is one checkpoint, so --checkpoints 10 has nothing"):
        eval.run_bindings(parse(**flags, checkpoints="10"))
    with pytest.raises(FileNotFoundError, match=r"--checkpoints 7: .* has checkpoints of the steps \[3, 10"):
        eval.run_bindings(parse(**flags | {"run_dir": str(run_dir)}, checkpoints="3,7"))
