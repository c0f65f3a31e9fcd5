"""Labels that are not as they should be: what `limba run` and its `--dry_run` say before anything is written."""

import csv
import json

import gin
import pytest

from limba.addons.run import command
from tasks.supervised import row_preprocessor
from tests.addons.run.test_encoder_rows import BERT
from tests.convert import vocabularies
from tests.convert.encoders.conftest import SPECIAL_TOKENS, write_tokenizer

pytestmark = pytest.mark.usefixtures("without_checks")
DRY = pytest.mark.parametrize("dry", [[], ["--dry_run"]], ids=["run", "dry run"])


@pytest.fixture
def here(tmp_path):
    """A BERT and a T5, each as a network with its tokenizer."""
    sizes = dict.fromkeys(("d_model", "d_kv", "d_ff", "num_heads", "num_layers"), 1)
    for name, network in (("bert", BERT), ("t5", {"model_type": "t5", "vocab_size": 512, **sizes})):
        (tmp_path / f"{name}.json").write_text(json.dumps(network))
    write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS)
    vocabularies.train(tmp_path / "spiece.model")
    return tmp_path


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A function: writes a csv with these labels."""
    monkeypatch.setattr(row_preprocessor, "_warned", set())

    def written(name, labels):
        with (tmp_path / f"{tmp_path.name}_{name}.csv").open("w") as file:
            rows = [(i, "w5 w6", label) for i, label in enumerate(labels)]
            csv.writer(file).writerows([("idx", "sentence", "label"), *rows])
        return file.name

    yield written
    gin.clear_config()


def _run(here, *flags, network="bert", script="run_glue.py", **files):
    gin.clear_config()
    tokenizer = {"bert": "tokenizer.json", "t5": "spiece.model"}[network]
    model = {"config_name": here / f"{network}.json", "tokenizer_name": here / tokenizer, "output_dir": here / "out"}
    words = [f"--{name}={value}" for name, value in (model | files).items()]
    command.main([script, *words, "--do_train", *flags])


@DRY
def test_empty_cells_are_counted(here, write, dry):
    file = write("empty", ["ask", "tell"] * 5 + ["", "ask", " ", "tell"])
    says = rf"column 'label' is empty in 2 rows of the training split; the first is row 10 .* of {file}\. Fill in"
    with pytest.raises(ValueError, match=says):
        _run(here, *dry, train_file=file)
    assert not (here / "out").exists()


@DRY
@pytest.mark.parametrize(("split", "does"), [("validation", "--do_eval"), ("test", "--do_predict")])
def test_a_label_that_no_training_row_has(here, write, dry, split, does):
    file = write(split, ["tell", "shout"])
    files = {"train_file": write("train", ["ask", "tell"]), f"{split}_file": file}
    says = rf"row 1 \(the first is 0\) of {file}: column 'label' has the label 'shout'; the known labels are 'ask', 'te"
    with pytest.raises(ValueError, match=says):
        _run(here, does, *dry, **files)
    assert not (here / "out").exists()


def test_run_classification_adds_the_labels_of_other_splits(here, write, caplog, capsys):
    files = {"train_file": write("train", ["ask", "tell"]), "test_file": write("test", ["tell", "shout", "ask "])}
    columns = {"text_column_names": "sentence", "label_column_name": "label"}
    _run(here, "--do_predict", "--dry_run", script="run_classification.py", **files, **columns)
    assert "LABELS = ['ask', 'shout', 'tell']\n" in capsys.readouterr().out
    assert "only the split 'test' has are added" in caplog.text and "no training row has them: 'shout'." in caplog.text


@DRY
def test_one_label_is_none(here, write, dry):
    with pytest.raises(ValueError, match=r"'label' of the training split has only one label, 'ask'; a classifier"):
        _run(here, *dry, train_file=write("train", ["ask", "ask "]))
    assert not (here / "out").exists()


def test_blanks_at_a_label_make_no_class(here, write, caplog, capsys):
    train, validation = write("train", ["ask", "tell ", "ask", "tell"]), write("validation", ["ask", " tell", "ask "])
    _run(here, "--do_eval", "--dry_run", train_file=train, validation_file=validation)
    assert "LABELS = ['ask', 'tell']\n" in capsys.readouterr().out
    of_blanks = [record.message for record in caplog.records if "a label with extra blanks" in record.message]
    assert len(of_blanks) == 2  # one a file
    assert "1 of the first 4 rows of split 'train' have" in of_blanks[0]
    assert f"such as 'tell '; the first is row 1 (the first is 0) of {train}. The label is read with" in of_blanks[0]
    assert "2 of the first 3 rows of split 'validation'" in of_blanks[1] and "row 1 (the first is 0)" in of_blanks[1]


@DRY
def test_labels_of_a_t5_too(here, write, dry, caplog):
    files = {"train_file": write("train", ["ask", "tell "]), "validation_file": write("validation", ["shout"])}
    with pytest.raises(ValueError, match=r"row 0 .* has the label 'shout'; the known labels are 'ask', 'tell'"):
        _run(here, "--do_eval", *dry, network="t5", labels='["ask", "tell"]', **files)
    assert "such as 'tell '" in caplog.text and not (here / "out").exists()


@pytest.mark.parametrize(("ending", "is_text", "kind"), [("json", True, "label"), ("json", False, "number")])
def test_numbers_that_json_has_as_texts_are_labels(here, capsys, ending, is_text, kind):
    """As run_glue.py takes them; a csv has no such texts."""
    file = here / f"{here.name}_{kind}.{ending}"
    labels = [str(x) if is_text else x for x in (0.5, 1.5)]
    file.write_text("".join(json.dumps({"sentence": "w5", "label": label}) + "\n" for label in labels))
    _run(here, "--dry_run", train_file=file)
    assert f"answers = '{kind}'\n" in capsys.readouterr().out
