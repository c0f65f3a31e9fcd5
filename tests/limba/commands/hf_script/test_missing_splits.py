"""A split that is not there, or has nothing to learn: the message names the key that gives it."""

import json

import pytest

from limba.checkpoint_files import run_folder
from limba.commands.hf_script import script_data
from limba.gin_config.hf_keys.script_keys import from_values


@pytest.mark.parametrize(
    ("given", "does", "says"),
    [
        (("train", "validation"), ["do_train", "do_predict"], "'train', 'validation': give --test_file"),
        (
            ("test",),
            ["do_predict", "do_eval"],
            "has no split 'validation' to evaluate; it has 'test': give --validation_",
        ),
    ],
)
def test_the_key_is_named(tmp_path, given, does, says):
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    files = {f"{split}_file": str(tmp_path / "rows.csv") for split in given}
    keys = {"model_name_or_path": "m", "output_dir": "o", "label_column_name": "label"}
    arguments = from_values(keys | files | dict.fromkeys(does, True))[0]
    with pytest.raises(ValueError, match=says):
        script_data.find(arguments)


def test_an_evaluation_alone_of_documents_has_the_part_that_a_training_holds_out(tmp_path):
    """As run_mlm.py does; the scripts of rows with answers want a validation file."""
    (tmp_path / "corpus.txt").write_text("a\nb\n")
    keys = {"model_name_or_path": "m", "output_dir": "o", "train_file": str(tmp_path / "corpus.txt"), "do_eval": True}
    assert script_data.find(from_values(keys)[0]).splits == {"train": "train[5%:]", "validation": "train[:5%]"}
    with pytest.raises(ValueError, match="no split 'validation' to evaluate"):
        script_data.find(from_values(keys | {"label_column_name": "label"})[0])


def test_a_folder_is_no_file(tmp_path):
    keys = {"model_name_or_path": "m", "output_dir": "o", "train_file": str(tmp_path), "do_train": True}
    with pytest.raises(ValueError, match=r"train_file is '.*', a folder: .*/\*\.jsonl, or write dataset_name"):
        script_data.find(from_values(keys)[0])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([None, None], "No document of split 'train' has a text"),
        (["", " "], "No document of split 'train' has a text"),
        ([3, 4], "Column 'id' of split 'train' has 3, and documents are texts; the columns are 'id', 'body'"),
        ([None, "a b"], None),
    ],
)
def test_documents_without_a_text(tmp_path, values, says):
    file = tmp_path / "corpus.json"
    file.write_text("".join(json.dumps({"id": value, "body": "w"}) + "\n" for value in values))
    keys = {"model_name_or_path": "m", "output_dir": "o", "train_file": str(file), "text_column_name": "id"}
    arguments = from_values(keys | {"do_train": True, "max_seq_length": 3, "max_steps": 1})[0]
    vocabulary = {"class": run_folder.BYTES, "extra_ids": 100}
    if says is None:
        assert script_data.count_examples(arguments, script_data.find(arguments), vocabulary).buffer == 1
        return
    with pytest.raises(ValueError, match=says):
        script_data.count_examples(arguments, script_data.find(arguments), vocabulary)


@pytest.mark.parametrize(("answers", "split"), [(["", None], "train"), (["", None], "validation"), (["x", None], "")])
@pytest.mark.parametrize("script", ["run_summarization", "run_seq2seq_qa", None])
def test_no_row_has_an_answer(tmp_path, answers, split, script):
    """Of the validation split questions may have none, and rows whose script drops none are a warning's."""
    for name in ("train", "validation"):
        rows = answers if name == split or not split else ["x", "y"]
        lines = [json.dumps({"question": "a", "context": "b", "answers": answer}) + "\n" for answer in rows]
        (tmp_path / f"{name}.json").write_text("".join(lines))
    files = {f"{name}_file": str(tmp_path / f"{name}.json") for name in ("train", "validation")}
    columns = {"text_column_name": "context", "label_column_name": "answers"}
    keys = {} if script is None else {"script": script}
    keys |= {"answer_column": "answers"} if script == "run_seq2seq_qa" else columns
    given = {"model_name_or_path": "m", "output_dir": "o", "do_train": True, "do_eval": True, "metric_names": None}
    arguments = from_values(given | files | keys)[0]
    vocabulary = {"class": run_folder.BYTES, "extra_ids": 100}
    if split == "train" or (split and script == "run_summarization"):
        what = "both a text and an answer" if script == "run_summarization" else "an answer"
        with pytest.raises(ValueError, match=f"none of the 2 rows of split '{split}' has {what}"):
            script_data.count_examples(arguments, script_data.find(arguments), vocabulary)
    else:
        examples = script_data.count_examples(arguments, script_data.find(arguments), vocabulary).number
        assert examples == (1 if not split and script == "run_summarization" else 2)
