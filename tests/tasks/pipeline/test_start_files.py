"""What a start knows of a task before anything runs."""

import json

from limba.data import contract
from tasks import pretraining, supervised
from tasks.pipeline import start_files
from tasks.registry import Feature, Task
from tasks.sources import corpora
from tasks.vocabularies import ByteVocabulary


def _names(name, split="validation"):
    return start_files.metric_names(contract.DatasetConfig(name, {"inputs": 64, "targets": 64}, split, 1, seed=0))


def test_the_names_of_the_metrics_of_predictions(tmp_path, data_files):
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps({"text": "a b", "mood": mood}) + "\n" for mood in ("glad", "sad")))
    entry = supervised.SupervisedDataset("{text}", "mood", ["glad", "sad"])
    for name, place in (("named", str(file)), ("named_far", "http://127.0.0.1:9/t.jsonl")):
        files = {"train": place, "validation": place}
        supervised.register_supervised_task(name, entry, vocabulary=ByteVocabulary(100), data_files=files)
    names = _names("named")
    assert list(names) == ["named"] and {"accuracy", "majority_accuracy", "sad_f1"} <= {*names["named"]}
    assert _names("named_far") == {}
    pretraining.register_pretraining_task("named_spans", data_files=data_files, vocabulary=ByteVocabulary(100))
    assert _names("named_spans", "train") == {}


def test_a_metric_that_takes_no_right_answers_has_no_name_yet(tmp_path):
    (tmp_path / "t.txt").write_text("a\n")

    def broken(targets, predictions):
        raise ZeroDivisionError("no wrong predictions")

    task = Task(
        "named_broken",
        source=corpora.HuggingFaceSource({"validation": str(tmp_path / "t.txt")}),
        preprocessors=[],
        output_features={"targets": Feature(ByteVocabulary(0))},
        metric_fns=[broken],
    )
    assert start_files.metric_names(contract.DatasetConfig(task, None, "validation", 1, seed=0)) == {}
