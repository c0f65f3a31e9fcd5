"""Examples are predicted at the same lengths in training, by `limba eval RUN` and by `limba infer`."""

import json
import types

import gin
import numpy as np
import pytest

from limba import eval, infer
from limba.data import contract
from limba.gin_config import gin_files
from limba.inference import answering, task_metrics
from tasks.metrics import text_metrics
from tasks.registry import TaskRegistry
from tasks.supervised import SupervisedDataset, register_supervised_task
from tasks.vocabularies import ByteVocabulary
from tests.limba import small
from tests.limba.inference.test_answering import save_model

LENGTHS = {"inputs": 12, "targets": 4}
LIMBAS = ["gin/models/t5_1_1/small.gin", "gin/runs/finetune.gin"]
T5XS = ["t5x/examples/t5/t5_1_1/small.gin", "t5x/configs/runs/finetune.gin"]
PRETRAINING = ["gin/models/t5_1_1/small.gin", "gin/runs/pretrain.gin"]


@pytest.fixture
def parse():
    def run(files, *bindings):
        gin.clear_config()
        values = {"MODEL_DIR": "a", "INITIAL_CHECKPOINT_PATH": "b", "MIXTURE_OR_TASK_NAME": "t", "TRAIN_STEPS": 3}
        values |= {"TASK_FEATURE_LENGTHS": LENGTHS, "DROPOUT_RATE": 0.1}
        given = [f"{name} = {value!r}" for name, value in values.items()]
        gin_files.parse_gin_flags(files, [*given, *bindings], "")
        return eval.run_prediction_lengths(bindings)

    yield run
    gin.clear_config()


def test_limba_eval_predicts_at_the_lengths_of_training(parse):
    assert parse(LIMBAS) == LENGTHS
    assert parse(LIMBAS, "infer_eval/data.DatasetConfig.task_feature_lengths = {'inputs': 9}") == {"inputs": 9}
    assert parse(T5XS) is None  # T5X's own file predicts whole examples.
    assert parse(T5XS, "TASK_FEATURE_LENGTHS = {'inputs': 7, 'targets': 7}") == "dataset_cfg"
    assert parse(PRETRAINING) == "dataset_cfg"


@pytest.mark.parametrize(("given", "predicted"), [({}, LENGTHS), ({"prediction_lengths": None}, None)])
def test_predictions_have_their_own_lengths(tmp_path, monkeypatch, given, predicted):
    class OpenedError(Exception):
        pass

    def opened(config, *_):
        raise OpenedError(config.task_feature_lengths)

    monkeypatch.setattr(eval, "InferenceEvaluator", opened)
    with pytest.raises(OpenedError) as error:
        eval.evaluate(
            model=None,
            dataset_cfg=contract.DatasetConfig("t", LENGTHS, "validation", 4),
            restore_checkpoint_cfg=None,
            partitioner=small.partitioner(1),
            output_dir=str(tmp_path),
            inference_evaluator_cls=task_metrics.Evaluator,
            summarize_config_fn=None,
            **given,
        )
    assert error.value.args == (predicted,)


def test_inputs_are_cut_and_padded_no_further_than_the_longest(tmp_path):
    (tmp_path / "v.jsonl").write_text("\n".join(json.dumps({"text": "x" * n, "mood": "glad"}) for n in (3, 10)))
    entry = SupervisedDataset("{text}", "mood", metric_fns=[text_metrics.accuracy])
    files = {"validation": str(tmp_path / "v.jsonl")}
    register_supervised_task("short_moods", entry, vocabulary=ByteVocabulary(100), data_files=files)
    shapes = []

    def run(batches):
        ((_, features),) = batches
        shapes.append((features["encoder_input_tokens"].shape[1], features["decoder_input_tokens"].shape[1]))
        assert features["encoder_input_tokens"][1, -1] == 1  # EOS stays where a text is cut.
        return [[1]] * 2, {}

    try:
        for lengths in ({"inputs": 64, "targets": 8}, {"inputs": 6, "targets": 3}, None):
            config = contract.DatasetConfig("short_moods", lengths, "validation", 2)
            evaluator = task_metrics.Evaluator(config, "EncDecFeatureConverter")
            evaluator.open()
            evaluator.evaluate({"predict": run}, 0, computes=True)
    finally:
        TaskRegistry.remove("short_moods")
    assert shapes == [(11, 8), (6, 3), (11, 5)]


def test_rows_of_a_table_are_answered_at_the_lengths_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(infer.run_configuration, "newest_checkpoint", lambda run: run)
    monkeypatch.setattr(infer.run_folder, "has_run_info", lambda checkpoint: True)
    monkeypatch.setattr(infer.run_folder, "load_run_info", lambda checkpoint: {"feature_lengths": LENGTHS, "task": "t"})
    parsed = []
    monkeypatch.setattr(infer.run_configuration, "parse", lambda flags, file, bindings: parsed.append(bindings))
    monkeypatch.setattr(infer.input_files, "read_as_task", lambda *_: [])
    monkeypatch.setattr(infer, "_task_of", lambda checkpoint: ("t", None))
    infer._read_as_task(types.SimpleNamespace(run_dir="runs/mine", input_file="new.csv"), {"A": 1})
    limits = {"answers.Answerer.max_inputs_length": 12, "answers.Answerer.max_decode_length": 4}
    assert parsed == [{"A": 1, **limits}]


def test_a_cut_line_ends_as_a_cut_example_does(tmp_path):
    model, _, restore = save_model(tmp_path, None)
    answerer = answering.Answerer(
        model=model, restore_checkpoint_cfg=restore, partitioner=small.partitioner(1), max_inputs_length=3, batch_size=1
    )
    ((_, features),) = answerer._batches([answerer._texts.encode("5 6 7 8", 3)], 3)
    np.testing.assert_array_equal(features["encoder_input_tokens"], [[5, 6, 1]])
