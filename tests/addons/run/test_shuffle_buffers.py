"""The shuffle buffers of `max_steps`: no larger than an epoch where its examples can be counted, as of epochs."""

import dataclasses

import pytest

from limba.addons.run import counted_documents, data, gin_text, script_task
from limba.addons.run.keys.script_keys import from_values
from limba.addons.run.plan import Counted
from limba.checkpoint_files import run_folder
from limba.data import contract
from tasks.pipeline import task_batches
from tasks.registry import TaskRegistry
from tasks.sources.sharded import ShardedSource
from tasks.vocabularies import ByteVocabulary
from tests.addons.run.plans import plan_of
from tests.limba.gin_lines import lines_of

ROWS = 32
OF_ROWS = {"label_column_name": "label", "text_column_name": "text"}
OF_DOCUMENTS = {"max_seq_length": 64}
BYTES = {"class": run_folder.BYTES, "extra_ids": 100}


def _arguments(file, **keys):
    given = {"model_name_or_path": "m", "output_dir": "o", "do_train": True, "train_file": str(file), "max_steps": 6}
    return from_values(given | keys)[0]


def _rows(folder, number):
    file = folder / f"rows_{number}.csv"
    file.write_text("text,label\n" + "".join(f"row {i},{i}\n" for i in range(number)))
    return file


def _counted(arguments, vocabulary=BYTES):
    return data.count_examples(arguments, data.find(arguments), vocabulary)


@pytest.mark.parametrize(
    ("rows", "keys", "buffer"),
    [(32, {}, 32), (32, {"max_train_samples": 20}, 20), (5000, {}, 4096), (5000, {"max_train_samples": 48}, 48)],
)
def test_of_rows(tmp_path, rows, keys, buffer):
    arguments = _arguments(_rows(tmp_path, rows), **OF_ROWS, **keys)
    counted = _counted(arguments)
    assert counted == Counted(None, True, buffer)
    of_epochs = _counted(dataclasses.replace(arguments, max_steps=-1))
    assert of_epochs.buffer == buffer and of_epochs.number == keys.get("max_train_samples", rows)
    plan = plan_of(arguments, corpus=data.find(arguments), examples=counted)
    assert f"  shuffle_buffer_size = {buffer}" in lines_of(gin_text._rows(plan))


def test_large_files_elsewhere_are_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(ShardedSource, "is_remote", lambda self, split: True)
    monkeypatch.setattr(ShardedSource, "num_bytes", lambda self, split: 2e9)
    file = _rows(tmp_path, 60)
    monkeypatch.setattr(ShardedSource, "count_documents", lambda *_: pytest.fail("it is read"))
    assert _counted(_arguments(file, **OF_ROWS)).buffer == 4096
    assert _counted(_arguments(file, **OF_ROWS, max_train_samples=48)).buffer == 48
    assert _counted(_arguments(file, **OF_DOCUMENTS)) == Counted()


def test_of_documents(tmp_path, monkeypatch):
    (tmp_path / "corpus.txt").write_text("a document of some words\n" * 200)
    (tmp_path / "short.txt").write_text("a word\n")
    arguments, vocabulary = (
        _arguments(tmp_path / "corpus.txt", **OF_DOCUMENTS),
        {"class": run_folder.BYTES, "extra_ids": 100},
    )
    of_epochs = _counted(dataclasses.replace(arguments, max_steps=-1), vocabulary)
    assert of_epochs.number == of_epochs.buffer and 20 < of_epochs.buffer < 200
    assert _counted(arguments, vocabulary) == Counted(None, True, of_epochs.buffer)
    assert _counted(_arguments(tmp_path / "short.txt", **OF_DOCUMENTS), vocabulary).buffer == 1
    monkeypatch.setattr(ShardedSource, "num_bytes", lambda self, split: 2e9)
    monkeypatch.setattr(counted_documents, "count_tokens", lambda *_: pytest.fail("it is tokenized"))
    assert _counted(arguments, vocabulary) == Counted(None, True, 4096)


def test_each_row_comes_once_an_epoch(tmp_path):
    """The batches of the run: 32 rows in batches of 32."""
    arguments = _arguments(_rows(tmp_path, ROWS), **OF_ROWS, per_device_train_batch_size=ROWS)
    corpus, counted = data.find(arguments), _counted(arguments)
    name = script_task.task(
        f"{corpus.name}_once",
        ByteVocabulary(extra_ids=100),
        *arguments.row_values,
        files=corpus.files,
        splits=corpus.splits,
        shuffle_buffer_size=counted.buffer,
    )
    config = contract.DatasetConfig(name, {"inputs": 16, "targets": 8}, "train", ROWS, seed=0, pack=False)
    batches = task_batches.get_train_batches(config)
    for epoch in range(3):
        batch = next(batches)
        assert len({tuple(row) for row in batch["decoder_target_tokens"]}) == ROWS
        assert batches.epochs()[name] <= epoch + 1
    TaskRegistry.remove(name)


@pytest.mark.parametrize(
    ("script", "is_encoder", "drops", "keys"),
    [
        ("run_mlm.py", True, False, {}),
        ("run_mlm_flax.py", True, True, {}),
        ("run_t5_mlm_flax.py", False, True, {}),
        ("run_summarization.py", True, True, {"dataloader_drop_last": "true"}),
        ("run_summarization_flax.py", True, True, {}),
        ("run_flax_glue.py", True, True, {}),
        ("run_flax_glue.py", True, False, {"dataloader_drop_last": "false"}),
    ],
)
def test_which_scripts_drop_the_last_batch_of_an_epoch(tmp_path, script, is_encoder, drops, keys):
    (tmp_path / "corpus.txt").write_text("a document of some words\n" * 200)
    given = {"script": script, "max_steps": -1, "per_device_train_batch_size": 8, **OF_DOCUMENTS, **keys}
    arguments = dataclasses.replace(_arguments(tmp_path / "corpus.txt", **given), label_column_name=None)
    vocabulary = {"class": run_folder.BYTES, "extra_ids": 100}
    counted = data.count_examples(arguments, data.find(arguments), vocabulary, is_encoder)
    counted = dataclasses.replace(counted, number=20)  # two batches and a half
    assert (
        plan_of(dataclasses.replace(arguments, num_train_epochs=2), examples=counted, devices=1).steps == (6, 4)[drops]
    )
    assert plan_of(arguments, examples=dataclasses.replace(counted, number=3), devices=1).steps == 3  # one at least


def test_rows_that_are_cut_are_counted_before_the_run(tmp_path, caplog):
    (tmp_path / "long.csv").write_text("text,label\n" + "".join(f"{'long ' * 8 * (i % 2)}row,{i}\n" for i in range(10)))
    _counted(_arguments(tmp_path / "long.csv", **OF_ROWS, max_seq_length=32))
    assert (
        "5 of the first 10 examples of split 'train' have inputs longer than 32 tokens (the longest: 44)" in caplog.text
    )
