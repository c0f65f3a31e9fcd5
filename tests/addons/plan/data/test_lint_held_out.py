"""Documents of an evaluation that the training has, too."""

import pytest

from limba.addons.plan.data import lint_held_out
from tasks.pretraining import pretraining_tasks
from tasks.registry import TaskRegistry
from tasks.vocabularies import ByteVocabulary

SENTENCES = [f"ana goes by the river and sees {number} stones in the water" for number in range(80)]


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        (SENTENCES[60:], ""),
        (SENTENCES[58:], ""),  # two by chance
        (SENTENCES[57:], "3 of the first 23 different documents of split 'validation' of task 'lint_held_out' are in"),
        (SENTENCES[:5] * 3, "5 of the first 5 different documents"),
        (["a title"] * 9 + SENTENCES[60:], ""),  # short ones are the same by chance
    ],
)
def test_documents_that_were_trained_on(held_out, said, tmp_path, write_jsonl):
    files = {
        "train": str(write_jsonl(tmp_path / "t.jsonl", [{"text": text} for text in ["a title", *SENTENCES[:60]]])),
        "validation": str(write_jsonl(tmp_path / "v.jsonl", [{"text": text} for text in held_out])),
    }
    task = pretraining_tasks.register_pretraining_task(
        "lint_held_out", data_files=files, vocabulary=ByteVocabulary(extra_ids=100)
    )
    try:
        found = list(lint_held_out.check(task, "validation"))
    finally:
        TaskRegistry.remove("lint_held_out")
    assert [finding.name for finding in found] == ["seen_in_training"] * bool(said)
    assert not said or (said in found[0].what and "row 0 (counted from 0) of " in found[0].what)
