"""Registered data sets from files, through the evaluator of metrics and the stream."""

import json
import logging

import pyarrow as pa
import pyarrow.parquet
import pytest

from limba.data import contract
from limba.inference import task_metrics
from tasks.metrics import text_metrics
from tasks.pipeline import predictions, task_batches
from tasks.registry import TaskRegistry
from tasks.sources import arrow_tables, corpora
from tasks.sources.remote_files import http_files
from tasks.supervised import row_formats, supervised_tasks
from tasks.supervised.supervised_tasks import SupervisedDataset, register_supervised_task
from tasks.vocabularies import ByteVocabulary, SentencePieceVocabulary
from tests.convert import vocabularies

BYTES = ByteVocabulary(extra_ids=100)
MOODS = SupervisedDataset("{text} mood:", "mood", labels=["glad", "sad", "None"])
ROWS = [("rain, and more", "sad"), ("sun", "glad"), ("007", "None"), ("NA", "glad")]
LENGTHS = {"inputs": 32, "targets": 8}


def _write_csv(path, rows, header="text,mood"):
    lines = "".join(f'"{text}",{mood}\n' for text, mood in rows)
    path.write_text(f"{header}\n{lines}", encoding="utf-8")
    return str(path)


@pytest.fixture
def files(tmp_path):
    return {split: _write_csv(tmp_path / f"{split}.csv", ROWS) for split in ("train", "validation")}


def _examples(task, split="validation", lengths=None):
    return list(predictions.examples(task, contract.DatasetConfig(task.name, lengths, split, 1, seed=0)))


def _texts(task, **options):
    return [
        tuple(BYTES.decode(example[name][:-1].tolist()) for name in ("inputs", "targets"))
        for example in _examples(task, **options)
    ]


def test_csv_becomes_a_task_to_the_letter(files):
    task = register_supervised_task("story_moods", MOODS, vocabulary=BYTES, data_files=files)
    assert register_supervised_task("story_moods", MOODS, vocabulary=BYTES, data_files=files) is task
    # Neither "None" nor "NA" is nothing, and 007 stays what it is.
    assert _texts(task) == [(f"{text} mood:", mood) for text, mood in ROWS]
    example = _examples(task)[0]
    assert example["inputs"][-1] == example["targets"][-1] == 1
    assert (example["inputs_pretokenized"], example["reference"]) == (b"rain, and more mood:", b"null")
    with pytest.raises(ValueError, match="'story_moods' is registered already"):
        register_supervised_task("story_moods", MOODS, vocabulary=BYTES)
    # Training reads them like other tasks: shuffled over several epochs, as there are so few.
    config = contract.DatasetConfig("story_moods", LENGTHS, "train", 4, seed=0, num_readers=1)
    batch = next(task_batches.get_train_batches(config))
    assert {BYTES.decode(x[x > 1].tolist()) for x in batch["decoder_target_tokens"]} <= {mood for _, mood in ROWS}


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_json_and_parquet_with_numbers_booleans_and_lists(tmp_path, kind):
    rows = [{"question": "Who?", "context": "Ana.", "answers": {"text": ["Ana", "she"]}, "n": 3, "b": True, "x": 0.5}]
    if kind == "json":
        (tmp_path / "a.json").write_text(json.dumps(rows[0]) + "\n")
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    data_files = {"validation": str(tmp_path / f"a.{kind}")}
    entry = SupervisedDataset(row_formats.Squad(), metric_fns=[text_metrics.squad])
    task = register_supervised_task("qa", entry, vocabulary=BYTES, data_files=data_files)
    (example,) = _examples(task)
    assert example["inputs_pretokenized"] == b"question: Who ? context: Ana . "
    assert task.postprocess_fn("Ana", example=example, is_target=True) == ["Ana", "she"]
    assert task.postprocess_fn("Ana", example=example, is_target=False) == "Ana"
    entry = SupervisedDataset("{n} {x}", "b", labels={True: "yes", False: "no"})
    task = register_supervised_task("facts", entry, vocabulary=BYTES, data_files=data_files)
    assert _texts(task) == [("3 0.5", "yes")]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_missing_and_large_numbers_are_read_as_a_file_of_text_has_them(tmp_path, kind):
    rows = [{"n": 3, "id": 123456789.0, "y": 0.123456789}, {"n": None, "id": None, "y": 16777217.0}]
    if kind == "json":
        (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    data_files = {"validation": str(tmp_path / f"a.{kind}")}
    task = register_supervised_task(
        "numbers", SupervisedDataset("{n}|{id}", "y"), vocabulary=BYTES, data_files=data_files
    )
    assert _texts(task) == [("3|123456789", "0.123456789"), ("|", "16777217")]


def _open_evaluator(config):
    evaluator = task_metrics.Evaluator(config, "EncDecFeatureConverter")
    evaluator.open()
    return evaluator


def _evaluate(name, mode, results):
    """The metrics of a model with these results, by example."""
    evaluator = _open_evaluator(contract.DatasetConfig(name, None, "validation", 4))

    def run(batches):
        return [results[i] for numbers, _ in batches for i in numbers], {}

    return evaluator.evaluate({mode: run}, 0, computes=True)[name]


def test_answers_are_generated_and_ranked(files):
    register_supervised_task("story_moods", MOODS, vocabulary=BYTES, data_files=files)
    answers = ["sad", "sad", "no mood", "glad"]

    answers = [[*BYTES.encode(text), 1, *[0] * (8 - len(text))] for text in answers]
    scores = {"glad": (100, 50, 200 / 3), "sad": (50, 100, 200 / 3), "None": (0, 0, 0), "macro": (50, 50, 400 / 9)}
    names = ("precision", "recall", "f1")
    of_labels = {
        f"{label}_{name}": x for label, values in scores.items() for name, x in zip(names, values, strict=True)
    }
    expected = pytest.approx({"accuracy": 50.0, "majority_accuracy": 50.0, **of_labels})
    assert _evaluate("story_moods", "predict", answers) == expected
    task = TaskRegistry.get("story_moods_rank")
    assert list(task.splits) == ["validation"]
    made = [(x["idx"].tolist(), bool(x["is_correct"]), x["targets_pretokenized"].decode()) for x in _examples(task)]
    assert made[:4] == [([0, 0], False, "glad"), ([0, 1], True, "sad"), ([0, 2], False, "None"), ([1, 0], True, "glad")]
    assert len(made) == 12

    # Rows 0, 1 and 3 are answered right, row 2 by "glad".
    likely = [1, 0, 0, 0]
    scores = [-0.5 if i % 3 == likely[i // 3] else -2.0 for i in range(12)]
    found = _evaluate("story_moods_rank", "score", scores)
    # F1: glad 2 of 2 with one wrong, sad all right, None never.
    expected = {"accuracy": 75.0, "majority_accuracy": 50.0, "mean_3class_f1": 100 * (0.8 + 1 + 0) / 3}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["macro_f1"] == found["mean_3class_f1"] and found["glad_recall"] == 100


# ------------------------------------------------------ bad input ----------------------------------------------------


def test_wrong_rows_are_named_before_anything_runs(tmp_path, files, monkeypatch):
    bad = {**files, "validation": _write_csv(tmp_path / "bad.csv", [*ROWS, ("storm", "grumpy")])}
    register_supervised_task("story_moods", MOODS, vocabulary=BYTES, data_files=bad)
    config = contract.DatasetConfig("story_moods", LENGTHS, "validation", 4)
    message = (
        r"Task 'story_moods', row 4 \(the first is 0\) of .*bad\.csv: column 'mood' has the label 'grumpy'; the known "
        "labels are 'glad', 'sad', 'None'"
    )
    for check in (task_batches.get_eval_batches, _open_evaluator):
        with pytest.raises(ValueError, match=message):
            check(config)
    # Behind what is looked at before, the row is named when it comes.
    monkeypatch.setattr("tasks.supervised.row_preprocessor.ROWS_TO_CHECK", {False: 2, True: 2})
    with pytest.raises(RuntimeError, match=r"Reading 'story_moods' failed after 0 batches: .*row 4 .*'grumpy'"):
        list(task_batches.get_eval_batches(config)["story_moods"])
    with pytest.raises(Exception, match=r"Task 'story_moods', row 4 .*'grumpy'"):
        _examples(TaskRegistry.get("story_moods"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        # Unquoted commas: pandas would take the first field for a row's name and shift the others.
        ("text,mood\nwind, rain,glad\nsun, moon,sad\n", "line 2 has 3 fields, and the header 2. .*double quotes"),
        ("text;mood\nwind;glad\n", r"header 'text;mood' is separated by ';'.*'delimiter': ';'"),
        ("text,mood\ncafé,glad\n".encode("latin-1"), r"line 2 is not UTF-8: byte 0xe9 at column 4\. Save it as UTF-8"),
        ('text,mood\n"wind,glad\n', "line 2 opens a quote that is not closed"),
    ],
)
def test_damaged_tables_are_refused_with_the_remedy(tmp_path, content, words):
    file = tmp_path / "x.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    entry = SupervisedDataset("{text}", "mood")
    task = register_supervised_task("damaged", entry, vocabulary=BYTES, data_files={"train": file})
    with pytest.raises((ValueError, http_files.BrokenFileError), match=words):
        task.source.check("train")


def test_labels_that_no_answer_can_tell_apart_are_refused(tmp_path, caplog):
    file = _write_csv(tmp_path / "x.csv", [("wind", "快乐"), ("rain", "悲伤")])
    few_letters = SentencePieceVocabulary(str(vocabularies.train(tmp_path / "spiece.model")), extra_ids=0)
    for number, (labels, vocabulary, targets, words) in enumerate(
        (
            (["快乐", "悲伤"], few_letters, 8, "the labels '快乐' and '悲伤' have the same tokens, and no answer"),
            (["快乐", "悲伤"], BYTES, 1, "have the same tokens in the 1 tokens of the targets.*TASK_FEATURE_LENGTHS"),
        )
    ):
        entry = SupervisedDataset("{text}", "mood", labels=labels)
        register_supervised_task(f"alike_{number}", entry, vocabulary=vocabulary, data_files={"validation": file})
        with pytest.raises(ValueError, match=words):
            config = contract.DatasetConfig(f"alike_{number}", {"inputs": 8, "targets": targets}, "validation", 2)
            task_batches.get_eval_batches(config)
    labels = {"快乐": "快乐", "悲伤": "sad"}
    entry = SupervisedDataset("{text}", "mood", labels=labels)
    register_supervised_task("unwritten", entry, vocabulary=few_letters, data_files={"validation": file})
    with caplog.at_level(logging.WARNING):
        task_batches.get_eval_batches(contract.DatasetConfig("unwritten", LENGTHS, "validation", 2))
    assert "the vocabulary does not give the labels '快乐' back" in caplog.text


def test_missing_columns_are_named_with_the_nearest(files):
    entry = SupervisedDataset("{text}", "moods", labels=["glad", "sad"])
    task = register_supervised_task("wrong_column", entry, vocabulary=BYTES, data_files=files)
    with pytest.raises(ValueError, match=r"no column 'moods' in .*columns are 'text', 'mood'; did you mean 'mood'\?"):
        task.source.check("train")


def test_what_is_too_long_or_empty_is_counted(tmp_path, caplog):
    rows = [("x" * n, "a" if n % 2 else "") for n in range(1, 31)]
    entry = SupervisedDataset("{text}", "mood")
    files = {"validation": _write_csv(tmp_path / "v.csv", rows)}
    task = register_supervised_task("long", entry, vocabulary=BYTES, data_files=files)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # as two readers do
            examples = _examples(task, lengths={"inputs": 11, "targets": 4})
        task_batches.get_eval_batches(contract.DatasetConfig("long", LENGTHS, "validation", 2))
    cut = "20 of the first 30 examples of split 'validation' have inputs longer than 11 tokens (the longest: 31)"
    assert f"{cut} and are cut" in caplog.text
    assert caplog.text.count(" are cut") == 1
    assert "15 of the first 30 rows of split 'validation' have no answer" in caplog.text
    assert max(len(x["inputs"]) for x in examples) == 11 and examples[-1]["inputs"][-1] == 1


def test_the_length_of_answers_cuts_no_reference(tmp_path, caplog):
    """Of generated answers and scores it is the end; teacher-forced evaluations cut the targets."""
    entry = SupervisedDataset("{text}", "mood")
    files = {"validation": _write_csv(tmp_path / "v.csv", [("x", "a" * n) for n in range(1, 31)])}
    register_supervised_task("answers", entry, vocabulary=BYTES, data_files=files)
    for length in (40, 25, 11):
        if length == 25:  # that of teacher-forced evaluation, said once
            task_batches.get_eval_batches(
                contract.DatasetConfig("answers", {"inputs": 9, "targets": 25}, "validation", 2)
            )
        found = _examples(TaskRegistry.get("answers"), lengths={"inputs": 9, "targets": length})
    of = "answers: {} of the first 30 examples of split 'validation' have targets longer than {} tokens (the longest: "
    assert [record.getMessage() for record in caplog.records] == [
        f"{of.format(6, 25)}31) and are cut. Raise TASK_FEATURE_LENGTHS, or shorten them.",
        f"{of.format(20, 11)}31): generated answers and scores end there; metrics compare with the whole texts. Raise "
        "the targets of the evaluation's task_feature_lengths.",
    ]
    assert max(len(x["targets_pretokenized"]) for x in found) == 30


def test_wrong_entries_are_refused():
    with pytest.raises(ValueError, match=r"'glue_mrcp'\. The nearest are 'glue_mrpc'"):
        register_supervised_task("glue_mrcp", vocabulary=BYTES)
    with pytest.raises(ValueError, match="Task 'x' has no data: give data_files"):
        register_supervised_task("x", MOODS, vocabulary=BYTES)
    with pytest.raises(ValueError, match="needs label_column"):
        SupervisedDataset("{text}")
    with pytest.raises(ValueError, match="leave label_column and labels out"):
        SupervisedDataset(row_formats.Squad(), "answer")
    for fields, words in (
        ({"label_column": 3}, "label_column is 3"),
        ({"metric_fns": text_metrics.accuracy}, "a list of functions"),
        ({"inputs": None}, "inputs is None; give a template"),
        ({"labels": [0, 1]}, "the answer 0 is not text"),
        ({"labels": {"glad", "sad"}}, "as a list or {value: text}"),
        ({"labels": ["glad", " sad"]}, "the text ' sad'"),
        ({"labels": {0: "x", 1: "x"}}, "all have the text 'x'"),
    ):
        with pytest.raises(ValueError, match=words):
            SupervisedDataset(**{"inputs": "{text}", "label_column": "mood"} | fields)
    for files in ("train.csv", {}, {"train": []}, {"train": None}):
        with pytest.raises(ValueError, match=r"data_files (is|has) .*; give "):
            register_supervised_task("x", MOODS, vocabulary=BYTES, data_files=files)
    with pytest.raises(ValueError, match="vocabulary is None; give the path"):
        register_supervised_task("x", MOODS, vocabulary=None, data_files={"train": "a.csv"})
    with pytest.raises(ValueError, match="is not clear from its name"):
        register_supervised_task("x", MOODS, vocabulary=BYTES, data_files={"train": "a.xlsx"})
    assert not {"x", "glue_mrcp"} & set(TaskRegistry.names())


# ------------------------------------------------------ the table ----------------------------------------------------


def test_benchmarks_are_mixtures_in_proportion(monkeypatch, tmp_path):
    for name in [name for name in TaskRegistry.names() if name.startswith("glue_")]:
        TaskRegistry.remove(name)  # of a sweep's recipe, with another vocabulary, where another file ran before
    mixture = supervised_tasks.register_benchmark("glue", vocabulary=BYTES)
    names = {task.name for task in mixture.tasks}
    assert len(names) == 12 and "glue_mrpc_rank" in TaskRegistry.names()
    assert "glue_stsb_rank" not in TaskRegistry.names()
    rate = {name: mixture.get_rate(TaskRegistry.get(name)) for name in ("glue_mnli", "glue_rte")}
    assert rate == {"glue_mnli": 392_702, "glue_rte": 2490}
    assert list(TaskRegistry.get("glue_mnli_rank").splits) == ["validation", "test"]
    with pytest.raises(ValueError, match="begins with 'blue'"):
        supervised_tasks.register_benchmark("blue", vocabulary=BYTES)


def test_the_hub_s_mrpc(monkeypatch, tmp_path):
    """The columns and splits that the hub has, from files in its place."""
    table = {"sentence1": ["A."], "sentence2": ["B."], "label": [1], "idx": [0]}
    pyarrow.parquet.write_table(pa.table(table), tmp_path / "validation.parquet")
    files = {"validation": str(tmp_path / "validation.parquet")}
    task = register_supervised_task("glue_mrpc", vocabulary=BYTES, data_files=files)
    assert _texts(task) == [("mrpc sentence1: A. sentence2: B.", "equivalent")]
    answers = [[*BYTES.encode("equivalent"), 1]]
    found = _evaluate("glue_mrpc", "predict", answers)
    assert found == {"f1": 100.0, "accuracy": 100.0}


def test_nested_columns_are_json_only_where_that_is_asked_for(tmp_path):
    pyarrow.parquet.write_table(pa.table({"text": ["a"], "list": [["b", "ș"]]}), tmp_path / "x.parquet")
    files = {"train": str(tmp_path / "x.parquet")}
    with pytest.raises(ValueError, match="'list' has the type list"):
        corpora.HuggingFaceSource(files, ["text", "list"]).check("train")
    source = corpora.HuggingFaceSource(files, nested_columns=["list"])
    (chunk,) = source.chunks_of("train", False, 0).documents(num_epochs=1)
    assert [json.loads(value) for value in chunk.columns["list"]] == [["b", "ș"]]
    ((file, number, document),) = source.numbered_documents("train")
    assert (file, number, document["list"]) == (str(tmp_path / "x.parquet"), 0, ["b", "ș"])
    assert not source.is_remote("train")
    assert arrow_tables.builder_of(tmp_path / "x.csv.gz") == "csv"
    assert chunk.document.tolist() == [[0, 0, 0]]
