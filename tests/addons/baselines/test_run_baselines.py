"""N-grams of a run's training split, on the targets of its evaluation."""

import collections
import dataclasses
import json
import math
import os
import types

import numpy as np
import pytest

from limba.addons.baselines.run_baselines import NAME, RunBaselines
from limba.data.contract import DatasetConfig
from limba.inference import tasks_door
from limba.tasks.pipeline import corpus_ngrams
from limba.training.baselines import NgramBaselines
from tasks import pretraining
from tasks.registry import tasks
from tasks.vocabularies import ByteVocabulary

LENGTHS = {"inputs": 32, "targets": 8}
BYTES = ByteVocabulary(extra_ids=100)
MODEL = types.SimpleNamespace(
    input_vocabulary=BYTES, output_vocabulary=BYTES, FEATURE_CONVERTER_CLS="EncDecFeatureConverter"
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
    count = corpus_ngrams.count
    monkeypatch.setattr(corpus_ngrams, "count", lambda *_: pytest.fail("counted again"))
    assert _baselines(tmp_path, first_step=10).of_task("baselines_corpus", 11, said.append) == found
    counted = []
    monkeypatch.setattr(corpus_ngrams, "count", lambda *a: counted.append(1) or count(*a))
    other = _baselines(tmp_path, first_step=10, most_tokens=100)
    assert other.of_task("baselines_corpus", 11, said.append) != found and counted == [1]
    (tmp_path / NAME).write_text("{")
    assert _baselines(tmp_path, first_step=10).of_task("baselines_corpus", 11, said.append) == found
    kept = (tmp_path / NAME).read_text()
    of_others = [
        json.dumps(json.loads(kept) | {"baselines": x}) for x in (5, {"a": {"b": 5}}, {"a": {"b": {"c": "d"}}})
    ]
    for content in (*of_others, "[" * 100_000):
        (tmp_path / NAME).write_text(content)
        assert _baselines(tmp_path)._read() is None
    (tmp_path / NAME).unlink()
    os.mkfifo(tmp_path / NAME)
    assert _baselines(tmp_path)._read() is None


def test_an_error_is_a_warning_and_no_training_ends_for_it(tmp_path, texts, monkeypatch, caplog):
    def broken(*_):
        raise OSError("the corpus is gone")

    monkeypatch.setattr(corpus_ngrams, "count", broken)
    baselines = _baselines(tmp_path, first_step=0)
    assert baselines.of_task("baselines_corpus", 1, print) == baselines.of_task("baselines_corpus", 2, print) == {}
    (warning,) = (x for x in caplog.messages if "train.baselines = None" in x)
    assert "the corpus is gone" in warning and not (tmp_path / NAME).exists()


def test_a_request_to_stop_is_heard_on_the_way(tmp_path, texts):
    class Stop(Exception):
        pass

    def stop():
        raise Stop

    with pytest.raises(Stop):
        _baselines(tmp_path, first_step=0).of_task("baselines_corpus", 1, print, stop)


def test_two_vocabularies_have_none(tmp_path, texts):
    baselines = _baselines(tmp_path, first_step=0)
    model = types.SimpleNamespace(
        input_vocabulary=ByteVocabulary(extra_ids=50),
        output_vocabulary=MODEL.output_vocabulary,
        FEATURE_CONVERTER_CLS=MODEL.FEATURE_CONVERTER_CLS,
    )
    other = dataclasses.replace(baselines, model=model)
    assert other.of_task("baselines_corpus", 1, print) == {}


def test_the_tasks_of_a_mixture_are_counted_in_turn(texts, tmp_path):
    file = tmp_path / "short.jsonl"
    file.write_text(json.dumps({"text": "z" * 20}) + "\n")
    pretraining.register_pretraining_task(
        "baselines_short", data_files={"train": str(file)}, vocabulary=MODEL.output_vocabulary
    )
    tasks.MixtureRegistry.add("baselines_mixture", ["baselines_short", "baselines_corpus"], default_rate=1.0)
    config = DatasetConfig("baselines_mixture", LENGTHS, "train", 4, seed=1)
    counts = corpus_ngrams.count(config, MODEL.output_vocabulary, MODEL.FEATURE_CONVERTER_CLS, 10**6)
    # One has ended long before the other.
    assert counts.unigrams[ord("z") + 3] == 20 and counts.num_tokens == 200 * 25 + 20
    few = corpus_ngrams.count(config, MODEL.output_vocabulary, MODEL.FEATURE_CONVERTER_CLS, 10**6, trigrams=False)
    assert np.array_equal(few.bigrams.counts, counts.bigrams.counts) and not len(few.trigrams.keys)
    assert [len(x.keys) for x in few.before] == [len(x.keys) for x in counts.before]


def test_a_users_own_stream_has_none(tmp_path, texts):
    baselines = _baselines(tmp_path, opens=(lambda *_: None, OURS[1]), first_step=0)
    assert baselines.of_task("baselines_corpus", 5, print) == {} and not list(tmp_path.iterdir())


def test_settings_that_count_nothing():
    with pytest.raises(ValueError, match="most_tokens is 0 and first_step 100"):
        NgramBaselines(most_tokens=0)
