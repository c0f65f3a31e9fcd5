import json

import numpy as np

from tasks.pipeline import predictions
from tasks.vocabularies import ByteVocabulary


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
