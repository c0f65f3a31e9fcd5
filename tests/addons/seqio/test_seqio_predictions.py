"""Inference by SeqIO: the same chunks, examples and metrics as those of our own pipeline."""

import numpy as np
import pytest
import seqio

from limba.addons.seqio import seqio_predictions
from limba.data import contract
from limba.inference import task_metrics
from tasks.pipeline import predictions
from tasks.supervised import SupervisedDataset, supervised_tasks
from tasks.vocabularies import ByteVocabulary

BYTES = ByteVocabulary(100)
ROWS = [{"text": "t" * (3 + i % 7), "mood": ("glad", "sad")[i % 2]} for i in range(30)]


@pytest.fixture
def moods(tmp_path, write_jsonl):
    files = {"validation": write_jsonl(tmp_path / "moods.jsonl", ROWS)}
    entry = SupervisedDataset("mood of: {text}", "mood", labels=["glad", "sad"])
    return supervised_tasks.register_supervised_task("test_moods", entry, vocabulary=BYTES, data_files=files)


def test_chunks_are_those_of_ours(moods):
    config = contract.DatasetConfig("test_moods", {"inputs": 12, "targets": 4}, "validation", 8, seed=1)
    for shard, num_shards, skip in ((0, 1, 0), (1, 3, 0), (0, 2, 1)):
        arguments = (moods, config, "EncDecFeatureConverter", shard, num_shards, 4, skip)
        ours, theirs = list(predictions.chunks(*arguments)), list(seqio_predictions.chunks(*arguments))
        assert len(ours) == len(theirs) > 1
        for (examples, features), (of_task, of_model) in zip(ours, theirs, strict=True):
            assert features.keys() == of_model.keys()
            for name in features:
                np.testing.assert_array_equal(features[name], of_model[name])
            for mine, example in zip(examples, of_task.as_numpy_iterator(), strict=True):
                assert mine.keys() == example.keys()
                for name in mine:
                    np.testing.assert_array_equal(mine[name], example[name])


def test_the_file_of_predictions_is_the_same(moods, tmp_path):
    config = contract.DatasetConfig("test_moods", {"inputs": 24, "targets": 8}, "validation", 8, seed=1)
    arguments = (moods, config, "EncDecFeatureConverter", 0, 1, 30, 0)
    answers = np.array([[*BYTES.encode(row["mood"].ljust(4)), 1, 0] for row in ROWS])
    for kind, vocabulary in ((predictions, BYTES), (seqio_predictions, seqio.ByteVocabulary(100))):
        ((examples, _),) = kind.chunks(*arguments)
        path = tmp_path / kind.__name__
        predictions.write_inferences_to_file(path, (answers, {}), examples, "predict", vocabulary, output_ids=True)
    ours, theirs = ((tmp_path / kind.__name__).read_text() for kind in (predictions, seqio_predictions))
    assert ours == theirs and ours.count("\n") == 30 and '"prediction": "sad "' in ours


@pytest.mark.parametrize("name", ["test_moods", "test_moods_rank"])
def test_metrics_are_those_of_our_evaluator(moods, name):
    config = contract.DatasetConfig(name, None, "validation", 8, seed=1)
    ours = task_metrics.Evaluator(config, "EncDecFeatureConverter")
    ours.open()
    rng = np.random.default_rng(0)
    answers = [[*BYTES.encode(str(rng.choice(["glad", "sad "]))), 1] for _ in ROWS]
    scores = rng.normal(size=2 * len(ROWS)).tolist()

    def run(results):
        return lambda batches: ([results[i] for numbers, _ in batches for i in numbers], {})

    found = ours.evaluate({"predict": run(answers), "score": run(scores)}, 0, computes=True)[name]
    theirs = seqio_predictions.make_evaluator(config, None, "EncDecFeatureConverter", None, lambda _: None, {})
    results, _ = theirs.evaluate(
        compute_metrics=True, predict_fn=lambda _: list(enumerate(answers)), score_fn=lambda _: list(enumerate(scores))
    )
    assert found == pytest.approx(results.result()[name]) and 0 < found["accuracy"] < 100


def test_wrong_rows_are_named_before_anything_runs(tmp_path, write_jsonl):
    files = {"validation": write_jsonl(tmp_path / "moods.jsonl", [*ROWS, {"text": "x", "mood": "grumpy"}])}
    entry = SupervisedDataset("{text}", "mood", labels=["glad", "sad"])
    supervised_tasks.register_supervised_task("bad_moods", entry, vocabulary=BYTES, data_files=files)
    config = contract.DatasetConfig("bad_moods", None, "validation", 8, seed=1)
    with pytest.raises(ValueError, match=r"Task 'bad_moods', row 30 .* of .*moods\.jsonl: .*'grumpy'"):
        seqio_predictions.make_evaluator(config, None, "EncDecFeatureConverter", None, lambda _: None, {})
    # Behind what is looked at before, the row is named when it comes.
    dataset = seqio.get_mixture_or_task("bad_moods").get_dataset(None, "validation", shuffle=False)
    with pytest.raises(Exception, match=r"Task 'bad_moods', row 30 .*'grumpy'"):
        list(dataset.as_numpy_iterator())
