"""A saved position that belongs to other data: the difference in words, shortest where it is plain."""

import random

import pytest

from limba.data import contract
from tasks import pretraining
from tasks.pipeline import task_batches
from tasks.registry import tasks as registered_tasks
from tasks.sources import corpora
from tasks.vocabularies import ByteVocabulary, sentencepiece_training

LENGTHS = {"inputs": 64, "targets": 32}


def _batches(name, data_files, vocabulary):
    for registry in registered_tasks.registries():
        if name in registry.names():
            registry.remove(name)
    pretraining.register_pretraining_task(name, data_files=data_files, vocabulary=vocabulary)
    return task_batches.get_train_batches(contract.DatasetConfig(name, LENGTHS, "train", 4, seed=0, num_readers=2))


def test_a_vocabulary_file_that_was_overwritten(data_files, tmp_path, write_jsonl):
    file = tmp_path / "spiece.model"
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8))) for _ in range(1000)]
    rows = [{"text": " ".join(rng.choices(words, k=30))} for _ in range(300)]
    corpus = corpora.HuggingFaceSource({"train": write_jsonl(tmp_path / "words.jsonl", rows)})
    # A process opens a file once, so the vocabulary of before has a path of its own here.
    before = sentencepiece_training.train_vocabulary(corpus, tmp_path / "before.model", vocab_size=256)
    state = _batches("overwritten", data_files, str(before)).save_state()
    sentencepiece_training.train_vocabulary(corpus, file, vocab_size=384)
    with pytest.raises(contract.ChangedVocabularyError) as raised:
        _batches("overwritten", data_files, str(file)).restore_state(state)
    assert raised.value.file == str(file)
    assert str(raised.value) == (
        "The saved data position (reader-0000-of-0002.json) belongs to other data: tasks.overwritten.vocabulary has "
        f"changed, it had 256 ids and has 384. The vocabulary file of 'overwritten' is {file}."
    )


def test_the_run_of_another_task_is_called_so_and_nothing_else(data_files):
    state = _batches("first", data_files, ByteVocabulary(100)).save_state()
    with pytest.raises(ValueError, match="This run is of task 'first', and MIXTURE_OR_TASK_NAME is 'second'") as raised:
        _batches("second", data_files, ByteVocabulary(100)).restore_state(state)
    assert len(str(raised.value)) < 250
