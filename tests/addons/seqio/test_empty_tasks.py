"""Tasks of SeqIO's whose preprocessors drop every example: a start that waits for the first one names them."""

import threading

import pytest
import tensorflow as tf

from limba.addons.seqio import empty_tasks
from tasks.pipeline import task_batches
from tasks.sources import corpora
from tests.addons.seqio.conftest import STEPS
from tests.addons.seqio.test_seqio_streams import config_for


def _drop_all(dataset):
    return dataset.filter(lambda example: tf.strings.length(example["text"]) < 0)


@pytest.fixture(params=["ours", "seqio"])
def source(request, data_files, text_files):
    return corpora.HuggingFaceSource(data_files, chunk_documents=8) if request.param == "ours" else text_files


def test_a_task_that_drops_all_is_named(source, register_with_seqio, monkeypatch):
    config = config_for("test_dropping")
    dropping = register_with_seqio("test_dropping", source, [_drop_all, *STEPS])
    kept = register_with_seqio("test_keeping", source)
    assert empty_tasks.describe(kept, config) == ""
    assert empty_tasks.describe(dropping, config).startswith("No example is made of its 200 documents: task 'test_drop")
    monkeypatch.setattr(empty_tasks, "_NUM_DOCUMENTS", 150)
    assert "its first 150 documents: task 'test_dropping', split 'train'" in empty_tasks.describe(dropping, config)


def test_the_first_example_is_waited_for_with_a_name(source, register_with_seqio, monkeypatch):
    """Whatever a start does then, the tasks are looked at; one whose example comes is not."""
    asked = []
    monkeypatch.setattr(empty_tasks, "_say", lambda tasks, config: asked.extend(task.name for task in tasks))

    class Timer(threading.Timer):
        def __init__(self, seconds, function, arguments):
            assert seconds == 30.0
            function(*arguments)
            super().__init__(seconds, function, arguments)

    monkeypatch.setattr(threading, "Timer", Timer)
    register_with_seqio("test_waiting", source)
    batches = task_batches.get_train_batches(config_for("test_waiting", num_readers=1))
    assert next(batches)["decoder_target_tokens"].shape == (8, 24)
    assert asked == ["test_waiting"]
    batches.close()
    assert not [thread for thread in threading.enumerate() if isinstance(thread, Timer) and thread.is_alive()]
