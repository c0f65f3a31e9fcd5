"""Corpora of one document, of blank ones, of fewer than readers: they train, or what is too little is said."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from limba.data import contract
from tasks import objectives
from tasks.pipeline import task_batches
from tasks.pretraining import register_pretraining_task
from tasks.sources import corpora, sharded, splits
from tasks.supervised import SupervisedDataset, register_supervised_task
from tasks.vocabularies import ByteVocabulary, TokenizerVocabulary

BYTES = ByteVocabulary(100)
ONE = {"text": "a document of some words, one of which is longer", "label": "b"}
# By name: files by their endings and rows, or their content.
CORPORA = {
    "one document": [("jsonl", [ONE])],
    "one line without its end": [("txt", "one line of text and no more")],
    "fewer documents than readers": [("jsonl", [ONE] * 5)],
    "one longer than everything": [("jsonl", [{**ONE, "text": "many words " * 1000}])],
    "documents of one word": [("jsonl", [{**ONE, "text": "word"}] * 2000)],
    "an empty file first": [("jsonl", []), ("jsonl", [ONE] * 9), ("jsonl", [])],
    "a blank file first": [("jsonl", "\n \n\n"), ("jsonl", [ONE] * 9), ("jsonl", "\n")],
    "an empty list first": [("json", "[]"), ("json", json.dumps([ONE] * 9))],
    "a blank csv first": [("csv", "\n\n"), ("csv", "text,label\nwords of a row,b\n"), ("csv", "text,label\n")],
    "an empty text first": [("txt", ""), ("txt", "one line of text\n")],
}
KINDS = {
    "T5": ({"inputs": 32, "targets": 32}, "EncDecFeatureConverter", False),
    "packed T5": ({"inputs": 32, "targets": 32}, "EncDecFeatureConverter", True),
    "decoder": ({"targets": 32}, "LMFeatureConverter", False),
    "packed decoder": ({"targets": 32}, "LMFeatureConverter", True),
    "pairs": (objectives.lengths(objectives.MaskedLM(pairs="sentence_order"), 32),
              "MaskedLanguageModelFeatureConverter", False),
    "supervised": ({"inputs": 32, "targets": 4}, "EncDecFeatureConverter", False),
}  # fmt: skip


def _source(folder, files, **options):
    for number, (suffix, content) in enumerate(files):
        rows = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
        (folder / f"{number}.{suffix}").write_text(rows)
    return corpora.HuggingFaceSource({"train": str(folder / "*")}, options.pop("columns", ["text"]), **options)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordLevel({x: i for i, x in enumerate([*special, "many", "words"])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))
    return TokenizerVocabulary(str(path))


def _register(kind, source, words):
    if kind == "supervised":
        return register_supervised_task("small", SupervisedDataset("{text}", "label"), vocabulary=BYTES,
                                        data_files=source, shuffle_buffer_size=16)  # fmt: skip
    pairs, decoder = objectives.MaskedLM(pairs="sentence_order"), objectives.FullLM()
    objective = {"pairs": pairs, "decoder": decoder, "packed decoder": decoder}.get(kind)
    vocabulary = words if kind == "pairs" else BYTES
    return register_pretraining_task(
        "small", data_files=source, vocabulary=vocabulary, objective=objective, shuffle_buffer_size=16
    )


def _config(kind, **options):
    lengths, converter, pack = KINDS[kind]
    return contract.DatasetConfig("small", lengths, "train", 16, seed=1, pack=pack, **options), converter


# All corpora with one kind, and all kinds with a small corpus.
CASES = [(name, kind) for name in CORPORA for kind in KINDS if kind == "T5" or name == "fewer documents than readers"]


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "kind"), [*CASES, ("an empty file first", "supervised")])
def test_a_small_corpus_trains_and_is_evaluated(tmp_path, words, monkeypatch, name, kind):
    if name == "one longer than everything":
        monkeypatch.setattr(sharded, "_SMALL_CORPUS", 1000)  # whose documents are dealt one by one
    columns = ["text", "label"] if kind == "supervised" else ["text"]
    _register(kind, _source(tmp_path, CORPORA[name], columns=columns), words)
    config, converter = _config(kind)
    batches = task_batches.get_train_batches(config, converter)
    for _ in range(2):
        batch = next(batches)
        assert np.any(batch["decoder_target_tokens"], axis=1).all() and len(batch["decoder_target_tokens"]) == 16
    (whole,) = task_batches.get_eval_batches(config, converter).values()
    count = sum(np.any(batch["decoder_loss_weights"], axis=1).sum() for batch in whole)
    assert count > 0
    if kind == "supervised":
        assert count == sum(len(rows) for _, rows in CORPORA[name])


@pytest.mark.parametrize(
    ("documents", "hosts", "readers"), [(1, 1, 1), (2, 1, 2), (5, 1, 4), (8, 1, 8), (9, 1, 8), (3, 2, 2), (5, 4, 4)]
)
def test_there_are_no_more_readers_than_documents(tmp_path, words, documents, hosts, readers):
    """And each document is read as often as the others."""
    _register("T5", _source(tmp_path, [("jsonl", [ONE] * documents)]), words)
    config, _ = _config("T5")
    states = [task_batches.get_train_batches(config, process_index=i, process_count=hosts) for i in range(hosts)]
    assert sum(len(batches.save_state()) for batches in states) == readers


@pytest.mark.parametrize(
    ("files", "options", "words_of_error"),
    [
        ([("jsonl", "")], {}, r"The corpus is empty: no document in split 'train', files '.*0\.jsonl'"),
        ([("jsonl", "\n\n"), ("jsonl", "")], {}, r"The corpus is empty: no document in split 'train', files '.*1 more"),
        ([("csv", "text\n")], {}, "The corpus is empty: no document in split 'train'"),
        ([("csv", "\n\n")], {}, "The corpus is empty: no document in split 'train'"),
        ([("txt", "\n\n \n")], {}, "its 3 documents have 1 tokens in the column 'text', and an example takes 2"),
        ([("jsonl", [{"text": "a"}])], {}, "its document has 1 tokens in the column 'text', and an example takes 2"),
        (
            [("jsonl", [ONE] * 2)],
            {"splits": {"train": "train[:5%]"}},
            r"Split 'train' has no document: it is train\[:5%\], and 'train' has 2, in files '.*0\.jsonl'\. Give it",
        ),
        (
            [("jsonl", [ONE] * 3)],
            {"splits": {"train": "train[10:]"}},
            r"Split 'train' has no document: it is train\[10:\], and 'train' has 3",
        ),
        (
            [("jsonl", [ONE] * 3)],
            {"splits": {"train": splits.held_out(1e-9)["validation"]}},
            r"no document in split 'train', .*hashes in \[0\.0, 1e-09\)\; 'train' has 3",
        ),
    ],
)
def test_what_is_too_little_is_said(tmp_path, words, files, options, words_of_error):
    _register("T5", _source(tmp_path, files, **options), words)
    for read in (task_batches.get_train_batches, lambda config: list(task_batches.get_eval_batches(config)["small"])):
        with pytest.raises((ValueError, RuntimeError), match=words_of_error):
            read(_config("T5")[0])


def test_more_readers_than_documents_share_their_examples(tmp_path, words):
    _register("T5", _source(tmp_path, [("jsonl", [ONE] * 3)]), words)
    batches = task_batches.get_train_batches(_config("T5", num_readers=8)[0])
    assert len(next(batches)["decoder_target_tokens"]) == 16
