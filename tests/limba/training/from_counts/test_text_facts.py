"""When the texts of a split are known to be the same, and when nobody can know."""

import os

import pytest

from limba.data.contract import DatasetConfig
from limba.tasks import objectives
from limba.tasks.pretraining import denoising
from limba.tasks.registry import Feature, TaskRegistry
from limba.tasks.sources import corpora
from limba.tasks.vocabularies import ByteVocabulary
from limba.training.from_counts import text_facts

LENGTHS = {"inputs": 64, "targets": 14}


def _facts(name, lengths=LENGTHS, **fields):
    return text_facts.of_split(DatasetConfig(name, lengths, "train", 8, seed=0, **fields), "EncDecFeatureConverter")


@pytest.fixture
def register(tmp_path):
    """Registers tasks that read two files of a folder."""
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text('{"text": "a text of some words"}\n' * 9)
    names = []

    def register(name, step=None, vocabulary=None, **options):
        source = corpora.HuggingFaceSource({"train": str(tmp_path / "*.jsonl")}, **options)
        feature = Feature(vocabulary or ByteVocabulary(100), add_eos=True)
        steps = [step or denoising.Denoise(objectives.SpanCorruption())]
        TaskRegistry.add(
            name, source=source, preprocessors=steps, output_features={"inputs": feature, "targets": feature}
        )
        names.append(name)

    yield register
    for name in names:
        TaskRegistry.remove(name)


def test_facts_change_with_files_and_lengths_and_not_with_what_the_texts_do_not_depend_on(register, tmp_path):
    register("ours")
    before = _facts("ours")
    assert before == _facts("ours", num_readers=4) == _facts("ours", use_memory_cache=False)
    assert before != _facts("ours", {**LENGTHS, "inputs": 65})
    file = tmp_path / "1.jsonl"
    stat = file.stat()
    file.write_text(file.read_text().replace("words", "WORDS"))  # as many bytes
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert _facts("ours") != before
    register("semicolons", load_args={"delimiter": ";"})
    assert _facts("semicolons")["texts of semicolons"] != _facts("ours")["texts of ours"]
    config = DatasetConfig("ours", LENGTHS, "train", 8, seed=0, use_cached=True)
    assert text_facts.of_split(config, "EncDecFeatureConverter") is None


class _Own(denoising.Denoise):
    """A preprocessor of a user's."""


class _OwnObjective(objectives.SpanCorruption):
    """An objective of a user's."""


class _OwnVocabulary(ByteVocabulary):
    """A vocabulary of a user's."""


def _rows(file):
    yield {"text": file.read().decode()}


@pytest.mark.parametrize(
    "theirs",
    [
        {"step": _Own(objectives.SpanCorruption())},
        {"step": denoising.Denoise(_OwnObjective())},
        {"vocabulary": _OwnVocabulary(100)},
        {"builder": _rows},
    ],
)
def test_what_somebody_else_may_change_under_one_name_has_no_facts(register, theirs):
    register("theirs", **theirs)
    assert _facts("theirs") is None
