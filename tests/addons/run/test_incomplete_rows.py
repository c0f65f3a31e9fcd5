"""Rows without a text or an answer: run_summarization leaves them out, as the script does, and other scripts do not."""

import inspect
import json

import pytest

from limba.addons.run import data, gin_text, script_task
from limba.addons.run.keys.script_keys import from_values
from limba.checkpoint_files import run_folder
from limba.data import contract
from tasks.pipeline import predictions
from tasks.registry import TaskRegistry
from tasks.vocabularies import ByteVocabulary
from tests.addons.run.plans import plan_of
from tests.limba.gin_lines import lines_of

ROWS = [("a", "x"), ("b", ""), ("", "y"), ("c", None), (None, "z"), ("d", "w")]
# More than are preprocessed together, all of them incomplete.
MANY = [("e", "")] * 300


def _write(folder, ending, rows):
    file = folder / f"incomplete.{ending}"
    if ending == "json":
        file.write_text("".join(json.dumps({"text": text, "summary": answer}) + "\n" for text, answer in rows))
    else:
        file.write_text("text,summary\n" + "".join(f"{text or ''},{answer or ''}\n" for text, answer in rows))
    return str(file)


def _arguments(file, **keys):
    files = {"train_file": file, "validation_file": file, "test_file": file}
    given = {"model_name_or_path": "m", "output_dir": "o", "do_train": True, "do_eval": True, "do_predict": True}
    columns = {"text_column_name": "text", "label_column_name": "summary"}
    return from_values(given | files | columns | keys)[0]


def _targets(arguments, split):
    corpus = data.find(arguments)
    values = inspect.signature(script_task.row_dataset).bind(*arguments.row_values).arguments
    name = script_task.task("incomplete", ByteVocabulary(100), **values, files=corpus.files)
    config = contract.DatasetConfig(name, None, split, 4, shuffle=False, seed=1, pack=False)
    try:
        return [x["targets_pretokenized"] for x in predictions.examples(TaskRegistry.get(name), config)]
    finally:
        TaskRegistry.remove(name)


@pytest.mark.parametrize("ending", ["csv", "json"])
@pytest.mark.parametrize(("script", "kept"), [("run_summarization", [b"x", b"w"]), (None, None)])
def test_rows_that_are_left_out(tmp_path, caplog, ending, script, kept):
    arguments = _arguments(_write(tmp_path, ending, ROWS + MANY), script=script)
    for split in ("train", "validation", "test"):
        found = _targets(arguments, split)
        assert found == kept if kept else len(found) == len(ROWS + MANY)
    corpus = data.find(arguments)
    counted = data.count_examples(arguments, corpus, {"class": run_folder.BYTES, "extra_ids": 100})
    assert counted.number == (2 if script else len(ROWS + MANY))
    for split in ("train", "validation", "test"):
        said = f"304 of the first 306 rows of split '{split}' have no text or no answer and are left out"
        assert (said in caplog.text) == bool(script)
    plan = plan_of(arguments, corpus=corpus, examples=counted)
    assert ("  drops_empty = True" in "\n".join(lines_of(gin_text._rows(plan)))) == bool(script)


def test_a_translation_keeps_them():
    keys = {"script": "run_translation", "source_lang": "en", "target_lang": "uk", "text_column_name": None}
    assert _arguments("t.json", **keys, label_column_name=None).row_values[-1] is False
