"""Our evaluator beside SeqIO's: the same metrics, examples, targets and files."""

import functools
import json
import logging
import types

import numpy as np
import pytest

from limba.data import contract
from limba.inference import evaluation, metric_loggers, task_metrics
from tasks import supervised, vocabularies
from tasks.metrics import text_metrics
from tasks.registry import TaskRegistry

LABELS = ("glad", "sad", "calm")


class Text:
    """A metric that is text, as SeqIO's class of this name."""

    def __init__(self, textdata):
        self.textdata = textdata


def mean_of_aux(targets, predictions, aux_values):
    return {"mean_aux": float(np.mean(aux_values["sure"])), "num": len(predictions)}


@pytest.fixture
def task(tmp_path):
    rows = [{"text": f"story {i}", "mood": LABELS[i % 3]} for i in range(11)]
    file = tmp_path / "moods.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    before = set(TaskRegistry.names())
    for name, metrics in (("measured", [text_metrics.accuracy, mean_of_aux]), ("ranked", None)):
        dataset = supervised.SupervisedDataset("mood of: {text}", "mood", labels=LABELS, metric_fns=metrics)
        supervised.register_supervised_task(
            name, dataset, vocabulary=vocabularies.ByteVocabulary(100), data_files={"validation": str(file)}
        )
    yield "measured"
    for name in set(TaskRegistry.names()) - before:
        TaskRegistry.remove(name)


def _answers(batches, mode):
    """Two of three answers are right; scores are the number of the example."""
    index, targets = [], []
    for numbers, features in batches:
        index += numbers.tolist()
        targets += features["decoder_target_tokens"].tolist()
    if mode == "score":
        return [-float(i) for i in index], {}
    ids = [
        row if i % 3 else [*vocabularies.ByteVocabulary().encode("odd"), 1]
        for i, row in zip(index, targets, strict=True)
    ]
    width = max(map(len, ids))
    ids = [[*row, *[0] * (width - len(row))] for row in ids]
    return ids, ({"sure": [i / 10 for i in index]} if mode == "predict_with_aux" else {})


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["measured", "ranked_rank"])
@pytest.mark.parametrize("lengths", [None, {"inputs": 40, "targets": 5}])
def test_metrics_and_files_are_those_of_seqio(task, tmp_path, name, lengths):
    del task
    config = contract.DatasetConfig(name, lengths, "validation", 4, shuffle=False, seed=1)
    folders = {side: tmp_path / side for side in ("ours", "seqio")}
    loggers = [metric_loggers.PyLoggingLogger, metric_loggers.TensorBoardLogger, metric_loggers.JSONLogger]
    ours = task_metrics.Evaluator(config, "EncDecFeatureConverter", folders["ours"], loggers)
    ours.open()
    modes = ("predict", "score", "predict_with_aux")
    found = ours.evaluate({mode: functools.partial(_answers, mode=mode) for mode in modes}, step=7, computes=True)
    ours.close()

    import seqio

    folders["seqio"].mkdir()
    theirs = seqio.Evaluator(
        name,
        seqio.EncDecFeatureConverter(pack=False),
        "validation",
        sequence_length=lengths,
        seed=1,
        logger_cls=[functools.partial(seqio.JSONLogger)],
        log_dir=str(folders["seqio"]),
    )

    def of_seqio(mode):
        def run(dataset):
            outputs, aux = _answers(dataset.batch(4).as_numpy_iterator(), mode)
            return (list(enumerate(outputs)), aux) if aux else list(enumerate(outputs))

        return run

    expected, _ = theirs.evaluate(compute_metrics=True, step=7, **{f"{mode}_fn": of_seqio(mode) for mode in modes})
    assert found == expected.result()
    if name == "measured":
        assert found[name].keys() == {"accuracy", "mean_aux", "num"}
        assert found[name]["accuracy"] == pytest.approx(100 * 7 / 11)
    else:  # The first choice has the best score; 4 of 11 stories are glad.
        assert found[name]["accuracy"] == pytest.approx(100 * 4 / 11)
    for file in sorted(folders["seqio"].iterdir()):
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        assert lines == [json.loads(line) for line in (folders["ours"] / file.name).read_text("utf-8").splitlines()]
    assert len(list(folders["seqio"].iterdir())) == 2 and (folders["ours"] / name).is_dir()


def test_the_log_gets_what_no_table_has(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    log = metric_loggers.PyLoggingLogger(str(tmp_path))
    log("t", 0, {"f1": metric_loggers.Scalar(0.5), "sample": types.SimpleNamespace(textdata="words")})
    assert caplog.messages == ["t/sample at step 0: words"]


def test_no_tensorflow_and_a_second_evaluation(task, tmp_path):
    config = contract.DatasetConfig(task, None, "validation", 4, shuffle=False, seed=1)
    evaluator = task_metrics.Evaluator(config, "EncDecFeatureConverter", tmp_path, [metric_loggers.JSONLogger], 5)
    evaluator.open()
    fns = {mode: functools.partial(_answers, mode=mode) for mode in ("predict", "predict_with_aux")}
    first = evaluator.evaluate(fns, step=1, computes=True)
    assert first == evaluator.evaluate(fns, step=2, computes=True) and first[task]["num"] == 5
    assert evaluator.evaluate(fns, step=3, computes=False) == {}
    lines = (tmp_path / f"{task}-metrics.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert len((tmp_path / f"{task}-000002.jsonl").read_text("utf-8").splitlines()) == 5


def test_a_metric_that_fails_names_its_task(task):
    config = contract.DatasetConfig(task, None, "validation", 4, shuffle=False, seed=1)
    evaluator = task_metrics.Evaluator(config, "EncDecFeatureConverter")
    evaluator.open()
    fns = {mode: functools.partial(_answers, mode=mode) for mode in ("predict", "predict_with_aux")}
    fns["predict_with_aux"] = lambda batches: (_answers(batches, "predict")[0], {})
    with pytest.raises(ValueError, match="Failed to evaluate task measured: 'sure'"):
        evaluator.evaluate(fns, step=1, computes=True)


def test_a_logger_of_seqio_is_refused(task, tmp_path):
    import seqio

    config = contract.DatasetConfig(task, None, "validation", 4, shuffle=False, seed=1)
    evaluator = task_metrics.Evaluator(config, "EncDecFeatureConverter", tmp_path, [seqio.JSONLogger])
    with pytest.raises(
        ValueError, match=r"seqio\.JSONLogger goes with seqio.Evaluator; bind metric_loggers.JSONLogger"
    ):
        evaluator.open()


def test_text_arrays_and_bytes_in_json(tmp_path):
    log = metric_loggers.JSONLogger(str(tmp_path), write_n_results=1)
    example = {"inputs": np.arange(40), "text": "ță".encode(), "raw": b"\xff", "flag": np.bool_(True)}
    metrics = {"a": metric_loggers.Scalar(np.float32(0.5)), "b": Text("words")}
    from tasks.pipeline.predictions import Examples

    log("t", 3, metrics, Examples([example, example]), {"prediction": ["x", "y"]}, ["p", "q"])
    assert json.loads((tmp_path / "t-metrics.jsonl").read_text("utf-8")) == {"step": 3, "a": 0.5, "b": "words"}
    written = (tmp_path / "t-000003.jsonl").read_text("utf-8")
    assert "ță" in written
    line = json.loads(written)
    assert line["input"]["inputs"] == "ndarray(shape=(40,), dtype=int64); summary: 0, 1, 2, 3, 4 ... 35, 36, 37, 38, 39"
    assert line["input"]["raw"] == "/w==" and line["input"]["flag"] is True
    assert (line["target"], line["prediction"]) == ("p", "x")


def test_what_is_not_measured_is_said_as_it_is(task, tmp_path, caplog):
    caplog.set_level(logging.INFO, "limba")
    unmeasured = supervised.SupervisedDataset("mood of: {text}", "mood", metric_fns=[])
    files = {"validation": str(tmp_path / "moods.jsonl")}
    supervised.register_supervised_task(
        "unmeasured", unmeasured, vocabulary=vocabularies.ByteVocabulary(100), data_files=files
    )
    for name, split, words in (
        ("unmeasured", "validation", "Task unmeasured has no metric_fns: its predictions are not measured."),
        (task, "test", "Task measured has no split 'test', and is not evaluated."),
    ):
        caplog.clear()
        config = contract.DatasetConfig(name, {"inputs": 40, "targets": 5}, split, 4, shuffle=False, seed=1)
        task_metrics.Evaluator(config, "EncDecFeatureConverter").open()
        assert caplog.messages == [words]


def test_a_start_that_fails_leaves_no_folder_and_an_evaluation_makes_it(task, tmp_path):
    """Whether the examples cannot be made, or something after the evaluator fails before a first evaluation."""
    model = types.SimpleNamespace(FEATURE_CONVERTER_CLS="EncDecFeatureConverter", predict_batch=None)
    partitioner = types.SimpleNamespace(check_batch_size=None)
    home = tmp_path / "runs" / "mine"
    file = tmp_path / "moods.jsonl"

    class WithLogger(task_metrics.Evaluator):
        def __init__(self, **arguments):
            super().__init__(**arguments, logger_cls=[metric_loggers.JSONLogger])

    def open_evaluator():
        config = contract.DatasetConfig(task, {"inputs": 40, "targets": 8}, "validation", 4, seed=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluation.batch_inference, "make_mode_fn", lambda *_: None)
            return evaluation.InferenceEvaluator(
                config, WithLogger, model, partitioner, home, verify_matching_vocabs_fn=None
            )

    whole = file.read_text()
    file.write_text(whole + '{"text": "story", "mood": "gald"}\n')
    with pytest.raises(ValueError, match="the label 'gald'"):
        open_evaluator()
    assert not home.parent.exists()

    file.write_text(whole)
    opened = open_evaluator()
    assert not home.parent.exists()
    opened._evaluator.evaluate = lambda *_: {"seen": (home / "inference_eval").is_dir()}
    assert opened.evaluate(None, 1) == {"seen": True}
    (home / "own").mkdir()
    open_evaluator()  # What was there stays.
    assert (home / "inference_eval").is_dir()
