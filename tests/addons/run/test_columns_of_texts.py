"""Columns of a T5's rows that no key names."""

import json
import logging
import types

import pytest

from limba.addons.run import columns, planning
from limba.addons.run.keys.script_keys import from_values


def _found(tmp_path, names, **keys):
    file = tmp_path / f"rows_{len(list(tmp_path.iterdir()))}.json"
    file.write_text(json.dumps(dict.fromkeys(names, "a")) + "\n")
    given = {"model_name_or_path": "m", "output_dir": "o", "train_file": str(file), "do_train": True}
    return columns.of_t5(from_values(given | keys)[0])


@pytest.mark.parametrize(
    ("names", "keys", "text", "summary"),
    [
        (["body", "title", "id"], {"source_prefix": "summarize: "}, "body", "title"),
        (["body", "title", "id"], {"predict_with_generate": True, "text_column": "id"}, "id", "title"),
        (["id", "body", "title"], {"script": "run_summarization", "text_column": "body"}, "body", "id"),
        (["text", "summary"], {"script": "run_summarization.py"}, "text", "summary"),
    ],
)
def test_of_summaries_the_first_two_columns_are_read(tmp_path, caplog, names, keys, text, summary):
    caplog.set_level(logging.INFO)
    found = _found(tmp_path, names, **keys)
    assert found == {"text_column_name": text, "label_column_name": summary, "metric_names": "rouge"}
    assert f"As run_summarization has it, {text!r} is read and the answer is {summary!r}" in caplog.text


def test_the_columns_of_a_known_data_set(tmp_path):
    (tmp_path / "xsum").mkdir()
    (tmp_path / "xsum" / "train.json").write_text(json.dumps({"id": "1", "document": "a", "summary": "b"}) + "\n")
    given = {"model_name_or_path": "m", "output_dir": "o", "dataset_name": str(tmp_path / "xsum"), "do_train": True}
    found = columns.of_t5(from_values(given | {"source_prefix": "s: "})[0])
    assert (found["text_column_name"], found["label_column_name"]) == ("document", "summary")


def test_a_t5_takes_the_columns_of_run_glue(tmp_path):
    found = _found(tmp_path, ["idx", "sentence1", "sentence2", "label"], script="run_glue")
    assert found == {"text_column_name": "{sentence1} {sentence2}", "label_column_name": "label"}


def test_documents_stay_documents(tmp_path, caplog):
    assert _found(tmp_path, ["text"], max_source_length=64) == {}
    assert "has only the column ['text']: masked spans are learned, no summaries." in caplog.text
    assert _found(tmp_path, ["text", "title"]) == {}
    assert _found(tmp_path, ["text", "mood"], source_prefix="x: ", label_column_name="mood") == {}
    with pytest.raises(ValueError, match="only the column text: run_summarization learns from two"):
        _found(tmp_path, ["text"], source_prefix="x: ")


def _length(caplog, **keys):
    given = {"model_name_or_path": "m", "output_dir": "o", "train_file": "t.csv", "do_train": True}
    caplog.set_level(logging.INFO)
    model = types.SimpleNamespace(vocabulary={"class": "ByteVocabulary", "extra_ids": 0}, tokenizer_length=None)
    return planning._lengths_of_t5(from_values(given | keys)[0], model)


def test_targets_are_as_long_as_the_longest_label(caplog):
    rows = {"text_column_name": "text", "label_column_name": "mood"}
    assert _length(caplog, **rows, labels=["sad", "marvellous"]) == {"max_target_length": 16}
    assert "longest of the 2 labels has 11 tokens with EOS: targets have 16" in caplog.text
    assert _length(caplog, **rows, labels={"0": "no", "1": "gladden"}) == {"max_target_length": 8}
    assert _length(caplog, benchmark="glue", dataset_name="mnli") == {"max_target_length": 16}  # contradiction
    assert _length(caplog, **rows, labels=["sad", "glad"], max_target_length=99) == {}
    assert _length(caplog, **rows) == {}  # any text
    assert _length(caplog, train_file="t.txt") == {}


URL = {"text_column_name": "url"}


@pytest.mark.parametrize(("first", "keys", "found"), [("body", {}, "body"), ("body", URL, None), ("text", {}, None)])
def test_of_documents_without_a_column_text_the_first_is_read(tmp_path, first, keys, found, caplog):
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({first: "a text", "url": "x"}) + "\n")
    given = {"train_file": str(file), "model_name_or_path": "m", "output_dir": "o", "do_train": True}
    arguments, _ = from_values(given | keys)
    assert columns.first_column(arguments).get("text_column_name") == found
    assert ("'body', the first, is read, as in run_mlm.py" in caplog.text) == (found is not None)


@pytest.mark.parametrize(
    "keys",
    [
        {"load_best_model_at_end": True},
        {"early_stopping_patience": 2, "load_best_model_at_end": True},
        {"use_lr_drop": True},
    ],
)
def test_documents_are_found_where_evaluations_decide_during_the_training(tmp_path, keys):
    (tmp_path / "train.txt").write_text("a text\n")
    given = {"train_file": str(tmp_path / "train.txt"), "model_name_or_path": "m", "output_dir": "o", "do_train": True}
    given |= {"do_eval": True, "eval_steps": 20, "save_steps": 20, "script": "run_mlm"}
    arguments, _ = from_values(given | keys)
    assert columns.first_column(arguments) == {}
    # An evaluation alone has no training that they could decide in, and passes as in the scripts.
    alone, _ = from_values(given | keys | {"do_train": False})
    assert not alone.do_train and alone.do_eval
