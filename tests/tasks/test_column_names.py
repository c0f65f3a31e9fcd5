"""A user's columns have any name: whatever the code itself calls something, a column of that name is read as it is."""

import ast
import csv
import dataclasses
import json
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import tasks
from limba.addons.diacritics import register_diacritics_task
from limba.data.contract import DatasetConfig
from tasks import objectives
from tasks.pipeline import predictions, task_batches
from tasks.pretraining import register_pretraining_task
from tasks.supervised import SupervisedDataset, TokenDataset, register_supervised_task, register_token_task
from tasks.vocabularies import ByteVocabulary, TokenizerVocabulary

BYTES = ByteVocabulary(100)
TEXTS = [f"o casă frumoasă și mare, numărul {i}" for i in range(12)]
# What users call their columns, beside the names in the code.
OF_USERS = ("summary", "id", "title", "Unnamed: 0", "în română", "a.b", "x[0]", "__index_level_0__", "columns", "self")


def _names_in_code() -> list[str]:
    """Keys that the code of `tasks` gives to dictionaries, and attributes of its rows."""
    names = {"document", "number", "row", "file", "epoch", "inputs", "targets", "reference", "idx", "text", "label"}
    for path in pathlib.Path(tasks.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            keys: list[ast.expr | None] = []
            if isinstance(node, ast.Dict):
                keys = node.keys
            elif isinstance(node, ast.Subscript):
                keys = [node.slice]
            elif isinstance(node, ast.Compare):
                keys = [node.left]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                keys = node.args[:1] if node.func.attr in ("get", "pop", "setdefault") else []
            names |= {x.value for x in keys if isinstance(x, ast.Constant) and isinstance(x.value, str)}
    return sorted(name for name in names if name.isidentifier())


NAMES = list(dict.fromkeys([*_names_in_code(), *OF_USERS]))


def test_the_names_of_before_are_among_those_that_are_tried():
    assert {"document", "number", "position", "epoch", "reference", "inputs_pretokenized"} < set(NAMES)
    assert 100 < len(NAMES) < 1000


@pytest.fixture(scope="module", params=["csv", "jsonl", "parquet"])
def file(request, tmp_path_factory):
    """A table with all these columns, each with texts and answers of its own."""
    path = tmp_path_factory.mktemp("columns") / f"table.{request.param}"
    rows = [{name: _value(name, i) for name in NAMES} for i in range(len(TEXTS))]
    if request.param == "csv":
        with path.open("w", newline="", encoding="utf-8") as opened:
            writer = csv.DictWriter(opened, NAMES)
            writer.writeheader()
            writer.writerows(rows)
    elif request.param == "jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def _value(name: str, i: int) -> str:
    return f"{name} {TEXTS[i]}"


# Those that were lost or mixed up before, and what users write; with Parquet all are read, many by one task.
SOME = ("document", "number", "inputs", "targets", "reference", "idx", "epoch", "position", "text", "label", *OF_USERS)


def test_supervised_tasks(file):
    names = [name for name in SOME if ":" not in name]  # which belongs to a template's own words
    pairs = [([name], other) for name, other in zip(names, names[1:] + names[:1], strict=True)]
    if file.suffix == ".parquet":
        others = [name for name in NAMES if name not in SOME]
        pairs += [(others[i : i + 20], others[i]) for i in range(0, len(others), 20)]
    for number, (read, other) in enumerate(pairs):
        entry = SupervisedDataset("text: " + " ".join(f"{{{name}}}" for name in read), other)
        config = DatasetConfig(f"test_{number}", None, "train", 4)
        task = register_supervised_task(config.name, entry, vocabulary=BYTES, data_files={"train": str(file)})
        found = list(predictions.examples(task, dataclasses.replace(config, seed=1)))
        inputs = ["text: " + " ".join(_value(name, i) for name in read) for i in range(12)]
        assert [x["inputs_pretokenized"].decode() for x in found] == inputs
        assert [x["targets_pretokenized"].decode() for x in found] == [_value(other, i) for i in range(12)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The same texts and nothing else, of one column each, and the batches that are made of them."""
    folder = tmp_path_factory.mktemp("plain")

    def source(name):
        path = folder / f"{NAMES.index(name)}.parquet"
        pyarrow.parquet.write_table(pa.table({"text": [_value(name, i) for i in range(12)]}), path)
        return {"train": str(path)}

    return source


def _batches(task, lengths, converter="EncDecFeatureConverter"):
    config = DatasetConfig(task.name, lengths, "train", 4, seed=1, num_readers=2)
    batches = task_batches.get_train_batches(config, converter)
    return [next(batches) for _ in range(3)]


@pytest.mark.sample(1)
def test_texts_of_pre_training_and_of_diacritics(file, plain):
    """The batches are those of a corpus with one column, "text"."""
    lengths = {"inputs": 32, "targets": 32}
    for number, name in enumerate(SOME[::4] if file.suffix == ".parquet" else SOME[:2]):
        for register, options in ((register_pretraining_task, {}), (register_diacritics_task, {"language": "ro"})):
            pair = [
                register(f"test_{kind}_{number}_{len(options)}", data_files=files, text_column=column, vocabulary=BYTES,
                         shuffle_buffer_size=16, **options)
                for kind, files, column in (("named", {"train": str(file)}, name), ("plain", plain(name), "text"))
            ]  # fmt: skip
            for batch, expected in zip(*(_batches(task, lengths) for task in pair), strict=True):
                assert batch.keys() == expected.keys() and np.any(batch["encoder_input_tokens"])
                for key, value in batch.items():
                    np.testing.assert_array_equal(value, expected[key])


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = sorted({*" ".join(TEXTS).split(), *NAMES})
    tokenizer = Tokenizer(models.WordLevel({x: i for i, x in enumerate([*special, *words])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))
    return TokenizerVocabulary(str(path))


@pytest.mark.sample(1)
def test_texts_of_encoders(file, plain, pieces):
    """Masked words with pairs of segments; and pairs of columns with a label."""
    objective = objectives.MaskedLM(pairs="next_sentence")
    lengths = objectives.lengths(objective, 16)
    for number, name in enumerate(SOME[::4]):
        pair = [
            register_pretraining_task(f"test_{kind}_{number}", data_files=files, text_column=column, vocabulary=pieces,
                                      objective=objective, shuffle_buffer_size=16)
            for kind, files, column in (("named", {"train": str(file)}, name), ("plain", plain(name), "text"))
        ]  # fmt: skip
        converter = "MaskedLanguageModelFeatureConverter"
        for batch, expected in zip(*(_batches(task, lengths, converter) for task in pair), strict=True):
            for key, value in batch.items():
                np.testing.assert_array_equal(value, expected[key])
    names = SOME if file.suffix == ".parquet" else SOME[:6]
    for number, (first, second, label) in enumerate(zip(names, names[1:], names[2:], strict=False)):
        if ":" in first + second:
            continue
        labels = [_value(label, i) for i in range(12)]
        entry = SupervisedDataset(f"{{{first}}} [SEP] {{{second}}}", label, labels)
        task = register_supervised_task(f"test_{number}", entry, vocabulary=pieces, data_files={"train": str(file)})
        found = list(predictions.examples(task, DatasetConfig(task.name, None, "train", 4, seed=1)))
        assert found[3]["inputs_pretokenized"].decode() == f"{_value(first, 3)} [SEP] {_value(second, 3)}"
        assert [x["targets"].tolist() for x in found] == [[i + 1] for i in range(12)]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_labels_of_tokens(tmp_path, pieces, suffix):
    words = [["o", "casă", name] for name in NAMES[:2]]
    rows = [{name: words[i] if n % 2 == 0 else [i, 1, 0] for n, name in enumerate(NAMES)} for i in range(2)]
    path = tmp_path / f"table.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    for number in range(0, len(NAMES) - 1, 2):
        if not {*NAMES[number : number + 2]} & {*SOME}:
            continue
        entry = TokenDataset(["O", "B-A"], NAMES[number], NAMES[number + 1])
        task = register_token_task(f"test_{number}", entry, data_files={"train": str(path)}, vocabulary=pieces)
        found = list(predictions.examples(task, DatasetConfig(task.name, None, "train", 4, seed=1)))
        assert [x["inputs_pretokenized"].decode().split() for x in found] == words
        assert [x["targets"].tolist() for x in found] == [[0, 1, 2, 1, 0], [0, 2, 2, 1, 0]]
