"""A metric whose package is not installed is found before the training."""

import dataclasses
import functools
import sys

import pytest

from limba.addons.plan.data import lint_tasks
from limba.addons.run import script_metrics
from limba.checkpoints import checkpointing
from limba.data import contract
from limba.inference import evaluation
from limba.train import train
from tasks.metrics import metric_packages, ranking_metrics, text_metrics
from tasks.supervised import SupervisedDataset, register_supervised_task
from tasks.vocabularies import ByteVocabulary
from tests.limba import small

SAID = (
    "Task 'summaries' has the metric rouge, which needs the package rouge_score: pip install 'limba[metrics]', or "
    "leave the metric out of the task's metric_fns."
)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """An evaluation with ROUGE, where its package is not installed."""
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    (tmp_path / "v.csv").write_text("text,summary\na long text,a text\n")
    register_supervised_task(
        "summaries",
        SupervisedDataset("{text}", "summary", metric_fns=[text_metrics.accuracy, text_metrics.rouge]),
        data_files={"validation": str(tmp_path / "v.csv")},
        vocabulary=ByteVocabulary(),
    )
    return contract.DatasetConfig("summaries", {"inputs": 20, "targets": 8}, "validation", 2)


def test_the_evaluator_is_not_opened_without_a_package(config, tmp_path):
    with pytest.raises(ValueError) as error:
        evaluation._open_evaluator(config, None, "EncDecFeatureConverter", tmp_path / "run")
    assert str(error.value) == SAID and not (tmp_path / "run").exists()


def test_training_stops_before_its_first_step_and_leaves_no_run(config, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match="Task 'summaries' has the metric rouge, which needs the package rouge_score"):
        train(
            model=small.tiny_model(),
            train_dataset_cfg=contract.DatasetConfig("counter", {"inputs": 16, "targets": 8}, "train", 8, seed=0),
            infer_eval_dataset_cfg=dataclasses.replace(config, batch_size=8),
            checkpoint_cfg=checkpointing.CheckpointConfig(),
            partitioner=small.partitioner(),
            trainer_cls=small.SharedTrainer,
            model_dir=str(tmp_path / "run"),
            total_steps=1,
            get_dataset_fn=lambda *_: small.Stream(),
            verify_matching_vocabs_fn=None,
        )
    assert list((tmp_path / "run").iterdir()) == []


def test_lint_finds_a_missing_package(config):
    found = lint_tasks.check(config, "EncDecFeatureConverter", lint_tasks.Purpose("infer_eval"))
    assert [(x.name, x.severity, x.what) for x in found] == [("metrics_package", "error", SAID)]
    teacher_forced = lint_tasks.check(config, "EncDecFeatureConverter", lint_tasks.Purpose("train_eval"))
    assert [x.name for x in teacher_forced] == []


@pytest.mark.parametrize(
    "metric",
    [
        functools.partial(text_metrics.bleu, tokenizer="char"),
        text_metrics.mean_group_metric(text_metrics.deduplicate_metric(text_metrics.bleu)),
        script_metrics.of_script(text_metrics.bleu, "text"),
        ranking_metrics.of_best_choice(text_metrics.accuracy, [text_metrics.bleu]),
    ],
)
def test_metrics_of_metrics_need_the_same_packages(metric, monkeypatch):
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed (the extra `metrics`)")
    metric_packages.check("t", [metric, text_metrics.accuracy])
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ValueError, match=r"Task 't' has the metric .*, which needs the package sacrebleu: pip install"):
        metric_packages.check("t", [metric])
