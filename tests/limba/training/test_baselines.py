"""N-grams of a run's training split, on the targets of its evaluation."""

import collections
import json
import math
import types

import numpy as np
import pytest

from limba.data.contract import DatasetConfig
from limba.inference import tasks_door
from limba.training.baselines import NAME, NgramBaselines, RunBaselines
from tasks import pretraining
from tasks.vocabularies import ByteVocabulary

LENGTHS = {"inputs": 32, "targets": 8}
MODEL = types.SimpleNamespace(
    output_vocabulary=ByteVocabulary(extra_ids=100), FEATURE_CONVERTER_CLS="EncDecFeatureConverter"
)
OURS = (tasks_door.get_dataset, tasks_door.get_training_eval_datasets)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts of each split, of a task `baselines_corpus` that has them in files."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    made = {}
    for split, rows in (("train", 200), ("validation", 7)):
        made[split] = ["".join(rng.choice(list("aaabbc de"), 25)) for _ in range(rows)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in made[split]))
    pretraining.register_pretraining_task(
        "baselines_corpus",
        data_files={split: str(folder / f"{split}.jsonl") for split in made},
        vocabulary=MODEL.output_vocabulary,
    )
    return made


def _baselines(folder, opens=OURS, **settings):
    train, evaluation = (
        DatasetConfig("baselines_corpus", LENGTHS, split, 4, shuffle=split == "train", seed=1)
        for split in ("train", "validation")
    )
    return RunBaselines(NgramBaselines(**settings), MODEL, folder, train, evaluation, None, opens)


def _unigram_by_hand(texts, words):
    counts = collections.Counter("".join(texts))
    once, twice = (sum(n == i for n in counts.values()) for i in (1, 2))
    discount = once / (once + 2 * twice) if once and twice else 0.5
    total, pieces = sum(counts.values()), 3 + 256 + 100 - 2 - 100  # without padding, EOS and sentinels

    def probability(word):
        return max(counts[word] - discount, 0) / total + discount * len(counts) / total / pieces

    return -np.mean([math.log(probability(word)) for word in words])


def test_they_are_counted_once_when_they_are_due(tmp_path, texts, monkeypatch):
    said = []
    baselines = _baselines(tmp_path, first_step=10)
    assert baselines.of_task("baselines_corpus", 9, said.append) == {} and not said
    found = baselines.of_task("baselines_corpus", 10, said.append)
    assert said == ["counting n-grams of the training split, for comparison"]
    names = ("nats_per_text_token", "text_accuracy", "text_top_5_accuracy", "nats_per_character")
    predictors = ("unigram", "left_bigram", "left_trigram", "both_sided_ngrams")
    assert found.keys() == {f"{predictor}/{name}" for predictor in predictors for name in names}
    # The targets of the evaluation, and what is counted: whole texts, of which a piece is a byte.
    evaluation = tasks_door.get_training_eval_datasets(baselines.eval_config, 0, 1, None, MODEL.FEATURE_CONVERTER_CLS)
    rows = np.concatenate([batch["decoder_target_tokens"] for batch in evaluation["baselines_corpus"]])
    words = [chr(id_ - 3) for id_ in rows.ravel() if 3 <= id_ < 259]
    assert len(words) > 20
    expected = _unigram_by_hand(texts["train"], words)
    assert found["unigram/nats_per_text_token"] == pytest.approx(expected, rel=1e-9)
    assert found["unigram/nats_per_character"] == pytest.approx(expected, rel=1e-9)
    assert found["unigram/text_accuracy"] == pytest.approx(np.mean(np.array(words) == "a"))

    # A resumed run reads them; another evaluation counts again, and so does a damaged file.
    count = tasks_door.ngrams().count
    monkeypatch.setattr(tasks_door.ngrams(), "count", lambda *_: pytest.fail("counted again"))
    assert _baselines(tmp_path, first_step=10).of_task("baselines_corpus", 11, said.append) == found
    counted = []
    monkeypatch.setattr(tasks_door.ngrams(), "count", lambda *a: counted.append(1) or count(*a))
    other = _baselines(tmp_path, first_step=10, most_tokens=100)
    assert other.of_task("baselines_corpus", 11, said.append) != found and counted == [1]
    (tmp_path / NAME).write_text("{")
    assert _baselines(tmp_path, first_step=10).of_task("baselines_corpus", 11, said.append) == found


def test_a_users_own_stream_has_none(tmp_path, texts):
    baselines = _baselines(tmp_path, opens=(lambda *_: None, OURS[1]), first_step=0)
    assert baselines.of_task("baselines_corpus", 5, print) == {} and not list(tmp_path.iterdir())


def test_settings_that_count_nothing():
    with pytest.raises(ValueError, match="most_tokens is 0 and first_step 100"):
        NgramBaselines(most_tokens=0)
