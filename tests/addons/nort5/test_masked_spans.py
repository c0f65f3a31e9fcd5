"""HPLT's masks: their numbers, their ends, and a task of them."""

import itertools
import json

import numpy as np
import pytest

from limba.addons.nort5.masked_spans import MaskedSpans
from tasks.objectives import VocabularyIds, example_seeds
from tasks.pretraining import register_pretraining_task
from tasks.vocabularies import T5TokenizerVocabulary
from tests.addons.nort5 import nort5_folder

IDS = VocabularyIds(300, 99, 6, sentinel_ids=range(7, 106), before=(2,), behind=(3,))


def corrupted(objective, length=128, rows=400, ids=IDS):
    raw = objective.raw_length(length)
    tokens = np.random.default_rng(0).integers(110, 300, (rows, raw), np.int32)
    lengths = np.full(rows, raw)
    tokens[3, 2:], lengths[3] = 0, 2
    return tokens, lengths, objective.corrupt(tokens, lengths, example_seeds(0, 0, rows), ids)


def test_spans_in_their_places_give_the_row_back():
    tokens, lengths, batch = corrupted(MaskedSpans())
    for i in range(len(tokens)):
        inputs = batch.inputs[i, : batch.inputs_lengths[i]].tolist()
        targets = [7, *batch.targets[i, : batch.targets_lengths[i]].tolist()]
        assert inputs[0] == 2 and inputs[-1] == 3 and not batch.inputs[i, batch.inputs_lengths[i] :].any()
        marks = [place for place, token in enumerate(targets) if token < 106]
        assert [targets[place] for place in marks] == [*range(7, 7 + len(marks))], "one ends them"
        spans = {targets[a]: targets[a + 1 : b] for a, b in itertools.pairwise(marks)}
        assert all(spans.values())
        restored = [x for token in inputs[1:-1] for x in spans.get(token, [token])]
        assert restored == tokens[i, : lengths[i]].tolist()


def test_there_are_as_many_spans_and_masked_tokens_as_in_hplts_rows():
    """1,500 rows of `SpanMaskingStrategy(0.15)` have a mean of 28.28 targets and 6.66 spans, of 128 tokens."""
    _, _, batch = corrupted(MaskedSpans(), rows=1500)
    assert batch.targets_lengths.mean() == pytest.approx(28.28, abs=0.4)
    assert np.sum((batch.inputs >= 7) & (batch.inputs < 106), axis=1).mean() == pytest.approx(6.66, abs=0.15)
    assert batch.targets_lengths.max() <= batch.targets.shape[1] == MaskedSpans().lengths(128)["targets"]


def test_few_sentinels_are_enough_and_targets_may_begin_with_the_first():
    few = VocabularyIds(300, 3, 6, sentinel_ids=(7, 8, 9), before=(2,), behind=(3,))
    _, _, batch = corrupted(MaskedSpans(begins_with_sentinel=True), ids=few)
    assert np.all(batch.targets[:, 0] == 7) and set(batch.targets[batch.targets < 106].tolist()) == {0, 7, 8, 9}
    with pytest.raises(ValueError, match="has 1 sentinels, and MaskedSpans takes at least 2"):
        MaskedSpans().check_sentinels(128, 1)
    with pytest.raises(ValueError, match="mean_noise_span_length is 1;"):
        MaskedSpans(mean_noise_span_length=1)
    with pytest.raises(ValueError, match="inputs_length is 3"):
        MaskedSpans().lengths(3)


def test_a_task_of_masks_has_hplts_ids(tmp_path):
    nort5_folder.write_tokenizer(tmp_path)
    texts = [json.dumps({"text": "the list of words is a file which has lines "}) for _ in range(40)]
    (tmp_path / "train.jsonl").write_text("\n".join(texts))
    task = register_pretraining_task(
        "nort5_masks",
        data_files={"train": str(tmp_path / "train.jsonl")},
        vocabulary=T5TokenizerVocabulary(str(tmp_path / "tokenizer.json")),
        objective=MaskedSpans(),
    )
    step = task.preprocessors[0].__class__(
        MaskedSpans(), output_features=task.output_features, sequence_length={"inputs": 32, "targets": 30}
    )
    features, _ = step.function()(np.array([b"the list of words is a file which has lines "] * 9), 0)
    inputs, lengths = features["inputs"]
    assert np.all(inputs[:, 0] == 2) and inputs[0, lengths[0] - 1] == 3 and inputs.shape[1] <= 32
    assert features["targets"][0][0].max() < 150 and 8 in features["targets"][0][0]
