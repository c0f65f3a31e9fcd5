"""A split that is not there, or has nothing to learn: the message names the key that gives it."""

import json

import pytest

from limba.addons.run import data
from limba.addons.run.keys.script_keys import from_values
from limba.checkpoint_files import run_folder


@pytest.mark.parametrize(
    ("given", "does", "says"),
    [
        (("train", "validation"), ["do_train", "do_predict"], "'train', 'validation': give --test_file"),
        (("test",), ["do_predict", "do_eval"], "has no split 'validation' to evaluate; it has 'test': give --validati"),
    ],
)
def test_the_key_is_named(tmp_path, given, does, says):
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    files = {f"{split}_file": str(tmp_path / "rows.csv") for split in given}
    keys = {"model_name_or_path": "m", "output_dir": "o", "label_column_name": "label"}
    arguments = from_values(keys | files | dict.fromkeys(does, True))[0]
    with pytest.raises(ValueError, match=says):
        data.find(arguments)


def test_an_evaluation_alone_of_documents_has_the_part_that_a_training_holds_out(tmp_path):
    """As run_mlm.py does; the scripts of rows with answers want a validation file."""
    (tmp_path / "corpus.txt").write_text("a\nb\n")
    keys = {"model_name_or_path": "m", "output_dir": "o", "train_file": str(tmp_path / "corpus.txt"), "do_eval": True}
    assert data.find(from_values(keys)[0]).splits == {"train": "train[5%:]", "validation": "train[:5%]"}
    with pytest.raises(ValueError, match="no split 'validation' to evaluate"):
        data.find(from_values(keys | {"label_column_name": "label"})[0])


_LABELS = {"text": "a b", "label": "x"}


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["train.jsonl", "test.jsonl"], {"train": "train.jsonl", "test": "test.jsonl"}),
        (["train-00000.jsonl", "test-00000.jsonl"], {"train": "train-00000.jsonl", "test": "test-00000.jsonl"}),
        (["data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"], None),
        (["train/a.jsonl", "test/a.jsonl"], None),
        (["my_train.jsonl", "evaluation.jsonl"], {"train": "my_train.jsonl", "test": "evaluation.jsonl"}),
        (["train.jsonl", "eval.jsonl"], {"train": "train.jsonl", "test": "eval.jsonl"}),
        (["train.jsonl", "dev.jsonl", "test.jsonl"], {"train": "train.jsonl", "validation": "dev.jsonl"}),
        (["train.jsonl", "val-1.jsonl"], {"train": "train.jsonl", "validation": "val-1.jsonl"}),
        (["train/a.jsonl", "valid/a.jsonl"], {"train": "train/a.jsonl", "validation": "valid/a.jsonl"}),
        (["corpus.jsonl"], {"train": "corpus.jsonl"}),
        (["train.jsonl", "testimony.jsonl"], {"train": "train.jsonl"}),
    ],
)
def test_the_files_of_a_folder_have_the_splits_of_datasets_and_test_is_never_validation(
    tmp_path, files, splits, caplog
):
    import datasets

    folder = tmp_path / "data_set"
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{json.dumps(_LABELS)}\n")
    loaded = datasets.load_dataset_builder(str(folder), cache_dir=str(tmp_path / "cache")).config.data_files
    of_datasets = {split: [str(file) for file in found] for split, found in loaded.items()}
    keys = {"model_name_or_path": "m", "output_dir": str(folder / "out"), "dataset_name": str(folder)}
    keys |= {"do_train": True, "do_eval": True}
    # Results of an earlier call are no data.
    (folder / "out").mkdir()
    (folder / "out" / "train_results.json").write_text("{}")
    with caplog.at_level("INFO"):
        found = data.find(from_values(keys)[0])
    assert found.files == of_datasets
    for split, name in (splits or {}).items():
        assert found.files[split] == [str(folder / name)]
    if "validation" in of_datasets:
        assert found.splits is None and "held out" not in caplog.text
        return
    assert (found.splits["train"], found.splits["validation"]) == ("train[5%:]", "train[:5%]")
    assert "the first 5 % of the training documents are held out" in caplog.text
    with pytest.raises(ValueError, match=r"no split 'validation' to evaluate.*give --validation_file"):
        data.find(from_values(keys | {"label_column_name": "label"})[0])
    if "test" in of_datasets:
        assert f"The split 'test', {found.files['test'][0].rpartition('/')[2]}, is for do_predict" in caplog.text
        classes = from_values(keys | {"label_column_name": "label", "script": "run_classification"})[0]
        assert data.find(classes).splits["validation"] == "test"
        assert "the split 'test' is evaluated, as run_classification.py does it" in caplog.text


def test_the_card_of_a_folder_names_its_splits(tmp_path):
    card = "---\nconfigs:\n- config_name: ro\n  data_files:\n  - {split: train, path: a.csv}\n"
    card += "  - {split: validation, path: test.csv}\n---\n"
    (tmp_path / "README.md").write_text(card)
    for name in ("a.csv", "test.csv"):
        (tmp_path / name).write_text("text\nx\n")
    keys = {"model_name_or_path": "m", "output_dir": "o", "dataset_name": str(tmp_path), "do_train": True}
    found = data.find(from_values(keys | {"do_eval": True})[0])
    assert found.files == {"train": [str(tmp_path / "a.csv")], "validation": [str(tmp_path / "test.csv")]}
    with pytest.raises(ValueError, match=r"'en' not found"):
        data.find(from_values(keys | {"dataset_config_name": "en"})[0])
    (tmp_path / "README.md").write_text(card.replace("config_name: ro", "config_name: ro\n  sep: ';'"))
    with pytest.raises(ValueError, match=r"says how its files are read, \{'sep': ';'\}"):
        data.find(from_values(keys)[0])


def test_a_folder_is_no_file(tmp_path):
    keys = {"model_name_or_path": "m", "output_dir": "o", "train_file": str(tmp_path), "do_train": True}
    with pytest.raises(ValueError, match=r"train_file is '.*', a folder: .*/\*\.jsonl, or write dataset_name"):
        data.find(from_values(keys)[0])


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
        assert data.count_examples(arguments, data.find(arguments), vocabulary).buffer == 1
        return
    with pytest.raises(ValueError, match=says):
        data.count_examples(arguments, data.find(arguments), vocabulary)


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
            data.count_examples(arguments, data.find(arguments), vocabulary)
    else:
        examples = data.count_examples(arguments, data.find(arguments), vocabulary).number
        assert examples == (1 if not split and script == "run_summarization" else 2)
