"""`max_train_samples` and its like where no key names the columns: they are found, and the first rows are read."""

import csv
import json
import types
from pathlib import Path

import pytest
import tokenizers

from limba.addons.run import columns, counted_documents, data, script_task
from limba.addons.run.keys.script_keys import from_values
from limba.checkpoint_files import run_folder
from limba.data import contract
from tasks import objectives
from tasks.pipeline import predictions
from tasks.pretraining import masked_text
from tasks.registry import TaskRegistry
from tasks.sources import corpora
from tasks.supervised import row_formats
from tasks.vocabularies import TokenizerVocabulary
from tests.convert.encoders.conftest import SPECIAL_TOKENS, write_tokenizer

ROWS = 60
MODEL = types.SimpleNamespace(
    path="bert",
    labels=(),
    head=types.SimpleNamespace(is_number=False),
    network=types.SimpleNamespace(max_positions=64),
    tokenizer_length=None,
)
NAMED = {"text_column_names": "sentence", "label_column_name": "label"}


def _write(folder, ending, split):
    """Rows whose sentences are numbered."""
    rows = [{"sentence": f"{split} {i}", "label": ("ask", "tell")[i % 2]} for i in range(ROWS)]
    with (folder / f"{split}.{ending}").open("w") as file:
        if ending == "csv":
            writer = csv.DictWriter(file, ["sentence", "label"])
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return file.name


def _write_words(folder, split):
    rows = [{"tokens": [split, str(i)], "ner_tags": ["O", "B-X"]} for i in range(ROWS)]
    (folder / f"{split}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / f"{split}.json")


def _complete(script, files, most, **keys):
    keys |= {"script": script, "model_name_or_path": "m", "output_dir": "o", "do_train": True, "do_eval": True}
    if most is not None:
        keys |= {"max_train_samples": most, "max_eval_samples": 7}
    return from_values(keys | {f"{split}_file": file for split, file in files.items()})[0]


def _with(arguments, found):
    assert found, "no columns were found"
    return arguments.__class__(**(vars(arguments) | found))


def _rows(arguments, split):
    corpus = data.find(arguments)
    source = script_task.open_source(data.row_form(arguments), corpus.files, splits=corpus.splits)
    return [row for rows in source.documents(split) for row in rows]


@pytest.mark.parametrize("most", [1, 48, 200])
@pytest.mark.parametrize("ending", ["csv", "json", "both"])
@pytest.mark.parametrize(
    ("script", "keys", "is_t5"),
    [
        ("run_glue", {}, False),
        ("run_classification", {}, False),
        ("run_classification", NAMED, False),
        ("run_glue", {}, True),
        ("run_summarization", {}, True),
    ],
    ids=["glue", "classes", "named columns", "glue of a T5", "summaries"],
)
def test_of_found_columns_the_first_rows(tmp_path, script, keys, is_t5, ending, most):
    endings = ("csv", "json") if ending == "both" else (ending, ending)
    files = {split: _write(tmp_path, name, split) for name, split in zip(endings, ("train", "validation"), strict=True)}
    arguments = _complete(script, files, most, **({} if is_t5 else {"labels": '["ask", "tell"]'}), **keys)
    arguments = _with(arguments, columns.of_t5(arguments) if is_t5 else columns.of_encoder(arguments, MODEL))
    read = _rows(arguments, "train")
    assert [row["sentence"] for row in read] == [f"train {i}" for i in range(min(most, ROWS))]
    assert [row["label"] for row in read[:2]] == ["ask", "tell"][:most]
    assert [row["sentence"] for row in _rows(arguments, "validation")] == [f"validation {i}" for i in range(7)]


@pytest.mark.parametrize("most", [1, 48, 200])
def test_of_labels_of_words_the_first_rows(tmp_path, most):
    files = {split: _write_words(tmp_path, split) for split in ("train", "validation")}
    arguments = _complete("run_ner", files, most)
    arguments = _with(arguments, columns.of_encoder(arguments, MODEL))
    assert list(arguments.labels) == ["B-X", "O"]
    read = [row_formats.record_of(row["tokens"]) for row in _rows(arguments, "train")]
    assert read == [["train", str(i)] for i in range(min(most, ROWS))]


def test_labels_are_those_of_the_first_rows(tmp_path):
    file = _write(tmp_path, "csv", "train")
    with Path(file).open("a") as opened:
        opened.write("train 60,shout\n")
    for most, labels in ((60, ["ask", "tell"]), (61, ["ask", "shout", "tell"])):
        arguments = _complete("run_glue", {"train": file, "validation": file}, most)
        assert columns.of_encoder(arguments, MODEL)["labels"] == labels


@pytest.mark.parametrize(("most", "documents", "made"), [(5, 14, 5), (50, 60, 22)])
def test_samples_of_documents_are_rows_behind_the_grouping_of_texts(tmp_path, most, documents, made, caplog):
    """run_mlm.py selects of rows of 64 tokens; a line has 24 bytes, the tokens of this vocabulary without [CLS]."""
    for split in ("train", "validation"):
        (tmp_path / f"{split}.txt").write_text("a document of some words\n" * ROWS)
    files = {split: str(tmp_path / f"{split}.txt") for split in ("train", "validation")}
    model = types.SimpleNamespace(
        **(vars(MODEL) | {"tokenizer_length": 1000}), vocabulary={"class": run_folder.BYTES, "extra_ids": 100}
    )
    caplog.set_level("INFO")
    arguments = _complete("run_mlm", files, most)
    arguments = _with(arguments, columns.of_encoder(arguments, model))
    assert (arguments.max_seq_length, arguments.max_train_samples) == (64, documents)
    assert arguments.max_eval_samples == 19  # 7 rows are 448 bytes
    assert f"the first {documents} documents are read, which make {made}" in caplog.text
    counted = data.count_examples(arguments, data.find(arguments), model.vocabulary, is_encoder=True)
    assert counted.number == made


@pytest.mark.parametrize(
    ("of_tokenizer", "positions", "length"), [(128, 130, 128), (None, 2048, 1024), (9000, 512, 512)]
)
def test_rows_of_documents_are_as_long_as_run_mlm_makes_them(tmp_path, of_tokenizer, positions, length):
    (tmp_path / "train.txt").write_text("a document\n" * ROWS)
    network = types.SimpleNamespace(max_positions=positions)
    model = types.SimpleNamespace(
        **{**vars(MODEL), "network": network, "tokenizer_length": of_tokenizer, "vocabulary": {}}
    )
    files = {"train": str(tmp_path / "train.txt")}
    assert columns.of_encoder(_complete("run_mlm", files, None), model) == {"max_seq_length": length}


@pytest.mark.parametrize(("keys", "rows"), [({}, 20), ({"max_train_samples": 8}, 8), ({"line_by_line": False}, 3)])
def test_line_by_line_a_line_is_a_row(tmp_path, keys, rows):
    """Of ten lines with 5 tokens of text and ten with 15, the longer are cut at 10: rows have 12 with CLS and SEP."""
    write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS)
    (tmp_path / "lines.txt").write_text(("w1 " * 5 + "\n\n" + "w2 " * 15 + "\n") * 10)
    vocabulary = {"class": run_folder.TOKENIZERS, "tokenizer_file": str(tmp_path / "tokenizer.json")}
    given = {"script": "run_mlm", "model_name_or_path": "m", "output_dir": "o", "do_train": True, "line_by_line": True}
    given |= {"train_file": str(tmp_path / "lines.txt"), "max_seq_length": 12 if rows > 3 else 66}
    model = types.SimpleNamespace(**vars(MODEL), vocabulary=vocabulary)
    arguments = from_values(given | keys)[0]
    arguments = arguments.__class__(**(vars(arguments) | columns.of_encoder(arguments, model)))
    corpus = data.find(arguments)
    assert data.count_examples(arguments, corpus, vocabulary, is_encoder=True).number == rows
    if rows != 20:
        return
    name = masked_text.task(
        *("lines_as_rows", masked_text.open_vocabulary(vocabulary), corpus.files),
        objective=objectives.MaskedLM(),
        line_by_line=arguments.line_by_line,
    )
    config = contract.DatasetConfig(name, {"inputs": 12}, "train", 1, seed=0)
    examples = list(predictions.examples(TaskRegistry.get(name), config))
    TaskRegistry.remove(name)
    assert [len(example["inputs"]) for example in examples] == [7, 12] * 10


def test_blank_lines_make_no_rows_though_blanks_have_tokens(tmp_path):
    """As run_mlm.py leaves them out; the last line has a no-break space alone."""
    letters = {token: i for i, token in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ab \n\u00a0"))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(letters, [], unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(letters)[:5])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = TokenizerVocabulary(str(tmp_path / "tokenizer.json"))
    lines = ["ab", "", " ", "b \n", "\n \n", "\u00a0"]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"text": x}) + "\n" for x in lines))
    source = corpora.HuggingFaceSource({"train": str(tmp_path / "lines.jsonl")}, ("text",))
    counted = counted_documents.documents_of_examples(source, "train", "text", vocabulary, 6, 9, line_by_line=True)
    assert counted == (6, 2)
