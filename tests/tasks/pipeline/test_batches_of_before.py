"""Batches are those of the version that made them with `tf.data`, bit for bit: `batches_of_before.py`."""

import json

import pytest

from tasks import vocabularies
from tasks.registry import MixtureRegistry, TaskRegistry
from tests.tasks.pipeline import batches_of_before

BEFORE = json.loads(batches_of_before.FILE.read_text(encoding="utf-8"))["checksums"]


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    batches_of_before.write_corpus(folder)
    before = set(TaskRegistry.names()), set(MixtureRegistry.names())
    batches_of_before.register(folder, vocabularies.ByteVocabulary(100))
    yield
    for registry, names in zip((TaskRegistry, MixtureRegistry), before, strict=True):
        for name in set(registry.names()) - names:
            registry.remove(name)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", list(batches_of_before.STREAMS))
def test_batches_are_those_of_before(name):
    found = dict(batches_of_before.checksums(name))
    assert {key: len(of_set) for key, of_set in found.items()} == {key: len(x) for key, x in BEFORE[name].items()}
    assert found == BEFORE[name]
    assert len(set(found["train"])) > 20
