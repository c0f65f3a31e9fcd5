"""A package of a user's own reads files of a format that Limba does not know: XML."""

import gzip
import json
import sys

import numpy as np
import pytest

from limba.data import contract
from tasks.pipeline import task_batches
from tasks.pretraining import pretraining_tasks
from tasks.sources import HuggingFaceSource
from tasks.vocabularies import ByteVocabulary

READER = """
from xml.etree import ElementTree

def read_xml(file):
    for _, element in ElementTree.iterparse(file):
        if element.tag == "doc":
            yield {"text": element.text, "n": int(element.get("n"))}
"""


@pytest.fixture
def read_xml(tmp_path, monkeypatch):
    (tmp_path / "xml_package").mkdir()
    (tmp_path / "xml_package" / "__init__.py").touch()
    (tmp_path / "xml_package" / "documents.py").write_text(READER)
    monkeypatch.syspath_prepend(str(tmp_path))
    from xml_package import documents

    yield documents.read_xml
    for name in ("xml_package", "xml_package.documents"):
        del sys.modules[name]


@pytest.fixture
def xml_files(corpus, tmp_path):
    """The shards of the corpus as XML, every second one compressed."""
    folder = tmp_path / "xml"
    folder.mkdir()
    for number, file in enumerate(sorted(corpus.glob("train-*.jsonl"))):
        documents = map(json.loads, file.read_text().splitlines())
        lines = "".join(f'<doc n="{x["n"]}">{x["text"]}</doc>\n' for x in documents)
        content = f"<corpus>{lines}</corpus>".encode()
        (folder / f"{file.stem}.xml{'.gz' * (number % 2)}").write_bytes(
            gzip.compress(content) if number % 2 else content
        )
    return {"train": str(folder / "train-*.xml*")}


def test_documents(read_xml, xml_files, make_document, places):
    source = HuggingFaceSource(xml_files, ["text", "n"], builder=read_xml, chunk_documents=8)
    seen = set()
    for reader in range(3):
        for chunk in source.chunks_of("train", True, 1, reader, 3).documents(num_epochs=1):
            found = zip(chunk.columns["text"], chunk.columns["n"], chunk.document.tolist(), strict=True)
            for text, n, (_, shard, row) in found:
                assert (text.decode(), n) == (make_document(shard, row)["text"], row)
                assert (shard, row) not in seen
                seen.add((shard, row))
    assert seen == places
    part = HuggingFaceSource(xml_files, builder=read_xml, splits={"train": "train[40:45]"})
    assert [name for name, _, _ in part.numbered_documents("train")] == [part.list_shards("train")[0]] * 3 + [
        part.list_shards("train")[1]
    ] * 2


def test_batches_are_those_of_the_same_documents_in_json(read_xml, xml_files, data_files, lengths):
    vocabulary = ByteVocabulary(extra_ids=100)
    for name, source in (
        ("own_xml", HuggingFaceSource(xml_files, builder=read_xml)),
        ("own_json", HuggingFaceSource({"train": data_files["train"]})),
    ):
        pretraining_tasks.register_pretraining_task(name, data_files=source, vocabulary=vocabulary)
    of_xml, of_json = (
        task_batches.get_train_batches(contract.DatasetConfig(name, lengths, "train", 8, seed=3, num_readers=1))
        for name in ("own_xml", "own_json")
    )
    for _ in range(12):
        batch = next(of_xml)
        np.testing.assert_array_equal(batch["encoder_input_tokens"], next(of_json)["encoder_input_tokens"])
    assert batch["encoder_input_tokens"].shape == (8, 64) and batch["decoder_loss_weights"].mean() > 0.9
    state = of_xml.save_state()
    expected = next(of_xml)["decoder_target_tokens"]
    of_xml.restore_state(state)
    np.testing.assert_array_equal(next(of_xml)["decoder_target_tokens"], expected)


def test_a_file_that_it_cannot_read_is_named(read_xml, xml_files, tmp_path):
    (tmp_path / "xml" / "train-4.xml").write_text("<corpus><doc n='0'>text</doc>")
    source = HuggingFaceSource(xml_files, builder=read_xml)
    source.check("train")  # Its beginning is right.
    with pytest.raises(RuntimeError, match=r"train-4\.xml cannot be read .*read_xml raises ParseError: no el"):
        list(source.documents("train"))
    with pytest.raises(ValueError, match=r"no column 'body'.* The columns are 'text', 'n'"):
        HuggingFaceSource(xml_files, ["body"], builder=read_xml).check("train")
    with pytest.raises(ValueError, match="or a function that reads the rows of an open file"):
        HuggingFaceSource(xml_files).check("train")
    # A loader of `datasets` that would run the file, which is a pickle for it.
    with pytest.raises(
        ValueError, match="builder is 'pandas'; it is 'json', 'parquet', 'text', 'csv', 'arrow', or a fun"
    ):
        HuggingFaceSource(xml_files, builder="pandas").check("train")
