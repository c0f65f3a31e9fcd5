import json

import numpy as np

from limba.data import contract
from tasks import pretraining, supervised
from tasks.pipeline import predictions
from tasks.vocabularies import ByteVocabulary


def test_texts_with_sentinels_have_blanks(tmp_path, data_files):
    cases = ("plain", "{text}", ["glad", "sad"], False), ("asks", "{text} <extra_id_0>", ["glad", "sad"], True)
    cases += (("answers", "{text}", {"glad": "<extra_id_0> glad", "sad": "<extra_id_0> sad"}, True),)
    cases += ("in_rows", "{other}", None, True), ("free", "{text}", None, False)  # fmt: skip
    row = {"text": "a ___ b", "other": "a <extra_id_0>", "mood": "glad"}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    for name, inputs, labels, expected in cases:
        entry = supervised.SupervisedDataset(inputs, "mood", labels)
        files = {"train": str(tmp_path / "t.jsonl")}
        supervised.register_supervised_task(f"b_{name}", entry, vocabulary=ByteVocabulary(100), data_files=files)
        config = contract.DatasetConfig(f"b_{name}", {"inputs": 64, "targets": 64}, "train", 1, seed=0)
        assert predictions.has_blanks(config) is expected, name
    pretraining.register_pretraining_task("b_spans", data_files=data_files, vocabulary=ByteVocabulary(100))
    assert predictions.has_blanks(contract.DatasetConfig("b_spans", {"inputs": 64, "targets": 64}, "train", 1))
    # Nobody waits for a network to learn it; nothing listens there.
    far = {"train": "http://127.0.0.1:9/t.jsonl"}
    entry = supervised.SupervisedDataset("{text}", "mood", ["glad", "sad"])
    supervised.register_supervised_task("b_far", entry, vocabulary=ByteVocabulary(100), data_files=far)
    assert predictions.has_blanks(contract.DatasetConfig("b_far", {"inputs": 64, "targets": 64}, "train", 1))


def test_files_of_predictions_can_be_read_by_people(tmp_path):
    """Text as it is, not as \\u escapes, and before the ids."""
    vocabulary = ByteVocabulary(0)
    example = {
        "inputs": np.array(vocabulary.encode("țară"), np.int32),
        "inputs_pretokenized": "țară".encode(),
        "targets": np.array(vocabulary.encode("東"), np.int32),
        "targets_pretokenized": "東".encode(),
    }
    answers = [np.array(vocabulary.encode("Тест €"), np.int32)]
    path = tmp_path / "answers.jsonl"
    examples = predictions.Examples([example])
    predictions.write_inferences_to_file(
        str(path), (answers, {}), examples, "predict", vocabulary, include_all_inputs=True
    )
    (line,) = path.read_bytes().decode("utf-8").split("\n")[:-1]
    assert "țară" in line and "東" in line and '"prediction": "Тест €"' in line
    read = json.loads(line)
    assert list(read["inputs"]) == ["inputs_pretokenized", "targets_pretokenized", "inputs", "targets"]
    assert read["inputs"]["inputs"] == example["inputs"].tolist()
