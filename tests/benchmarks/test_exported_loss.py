"""The loss of exports on rows of a task: figures by hand, and folders that are none."""

import json
import math

import numpy as np
import pytest

from benchmarks import exported_loss
from tasks import pretraining
from tasks.vocabularies import ByteVocabulary


def test_losses_and_likeliest_tokens_of_parts(monkeypatch):
    monkeypatch.setattr(exported_loss, "_AT_ONCE", 2)
    targets = np.array([[1, 2], [2, 0], [1, 1]])
    # The likeliest token is 1, with a probability of 2/3; 2 has 1/6, and so has 0.
    row = np.log(np.array([1 / 6, 2 / 3, 1 / 6]))
    found = exported_loss._by_parts(lambda x, y: np.broadcast_to(row, (*y.shape, 3)), targets, targets)
    assert found.likeliest is not None and (found.likeliest == 1).all()
    expected = np.log([[2 / 3, 1 / 6], [1 / 6, 1], [2 / 3, 2 / 3]])
    np.testing.assert_allclose(found.log_probabilities, expected, atol=1e-6)
    loss = exported_loss._loss(found.log_probabilities, targets)
    assert loss == pytest.approx((3 * math.log(3 / 2) + 2 * math.log(6)) / 5)


def test_rows_are_of_the_validation_split_and_full(tmp_path):
    for split, word in (("train", "dog"), ("validation", "cat")):
        lines = [json.dumps({"text": f"the {word} sat on the mat. " * 4}) for _ in range(40)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    pretraining.register_pretraining_task(
        "exported_rows",
        data_files={split: str(tmp_path / f"{split}.jsonl") for split in ("train", "validation")},
        vocabulary=ByteVocabulary(100),
    )
    words = ["run", "folder", "--task=exported_rows", "--inputs=64", "--targets=20", "--rows=40"]
    inputs, targets = exported_loss.validation_rows(exported_loss.parse(words))
    assert inputs.shape == (40, 64) and targets.shape == (40, 20)
    assert (targets != 0).any(1).all()
    text = bytes(int(x) - 3 for x in inputs.ravel() if 3 <= x < 259)
    assert b"cat" in text and b"dog" not in text


def test_a_folder_of_another_kind_is_named(tmp_path):
    with pytest.raises(SystemExit, match="is no folder of `limba convert to-ct2`, to-onnx or to-gguf"):
        exported_loss._engine(tmp_path, None)
