"""Documents that say nothing, and files that are one document."""

import re

import pytest

from limba.addons.plan.data import lint_documents, lint_tasks
from limba.data import contract
from tasks import objectives
from tasks.pretraining import pretraining_tasks
from tasks.registry import TaskRegistry
from tasks.vocabularies import ByteVocabulary

SENTENCES = [f"ana goes by the river and sees {number} stones in the water" for number in range(60)]
LENGTHS = objectives.span_corruption_lengths(64, mean_noise_span_length=20.0)


def _found(tmp_path, write_jsonl, texts):
    file = write_jsonl(tmp_path / "text.jsonl", [{"text": text} for text in texts])
    pretraining_tasks.register_pretraining_task(
        "lint_documents",
        data_files={"train": str(file)},
        vocabulary=ByteVocabulary(extra_ids=100),
        mean_noise_span_length=20.0,
    )
    try:
        config = contract.DatasetConfig("lint_documents", LENGTHS, "train", 8)
        return {x.name: x for x in lint_tasks.check(config, "EncDecFeatureConverter", lint_tasks.Purpose("train"))}
    finally:
        TaskRegistry.remove("lint_documents")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["।"] * 500, "500 of the first 560 .*row 60 .*no letter and no number, '।'"),
        (["।" * 500], "1 of the first 61 .*no letter and no number"),
        (["- * - …"], "1 of the first 61 .*no letter and no number"),
        (["na " * 8], "one word 8 times"),
        (["ааааааааа"], "one character 9 times"),
        (["menu"] * 8, "8 of the first 68 .*one word, 'menu'"),
        (["menu"] * 7 + ["na na na na", "1914", "aaa"], ""),  # of titles and answers
        (["नमस्ते दुनिया"], ""),
    ],
)
def test_documents_without_content(tmp_path, write_jsonl, texts, said):
    found = _found(tmp_path, write_jsonl, [*SENTENCES, *texts])
    assert found.keys() == ({"no_content"} if said else set())
    if said:
        finding = found["no_content"]
        assert re.search(said, finding.what), finding.what
        assert finding.severity == "warning"


def test_one_in_a_thousand_is_noise(tmp_path, write_jsonl):
    texts = [f"{sentence} {number}" for number in range(34) for sentence in SENTENCES][:1999]
    assert not _found(tmp_path, write_jsonl, [*texts, "* * *"])
    assert "2 of the first 2,000" in _found(tmp_path, write_jsonl, [*texts[1:], "* * *", "—"])["no_content"].what


def test_a_file_that_is_one_document(tmp_path, write_jsonl):
    text = "\n".join(f"{sentence}, {number}" for number in range(1250) for sentence in SENTENCES)
    assert 4e6 < len(text) < 5e6
    finding = _found(tmp_path, write_jsonl, [text, *SENTENCES])["long_documents"]
    assert "1 of the first 61 documents" in finding.what and f"has {len(text) / 1e6:.1f} MB, row 0" in finding.what
    # The bytes count: characters of Hindi have three.
    assert "long_documents" in _found(tmp_path, write_jsonl, ["नमस्ते दुनिया " * 30_000])
    assert "long_documents" not in _found(tmp_path, write_jsonl, [text[:1_000_000], *SENTENCES])


@pytest.mark.parametrize("text", ["a", "ab " * 8 + "c", "The", "१९१४", "ааааааа"])
def test_other_texts(text):
    assert lint_documents.describe(text) == ""
