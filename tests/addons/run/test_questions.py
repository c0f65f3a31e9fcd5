"""The keys of run_seq2seq_qa.py: questions about contexts, by files as SQuAD's and by plain columns."""

import ast
import csv
import dataclasses
import json
import types

import pytest

from limba.addons.run import columns, data, gin_text, script_metrics, script_task
from limba.addons.run.keys.script_keys import from_command_line, from_values
from tasks.metrics import text_metrics
from tasks.registry import TaskRegistry
from tasks.sources import corpora
from tasks.supervised import row_formats
from tasks.supervised.question_formats import Questions
from tasks.supervised.row_preprocessor import Supervise
from tasks.vocabularies import ByteVocabulary
from tests.addons.run.plans import plan_of
from tests.limba.gin_lines import lines_of

KEYS = {"model_name_or_path": "t5-small", "output_dir": "out", "do_train": True, "do_eval": True}
COLUMNS = ["--question_column", "question", "--context_column", "context", "--answer_column", "answers"]
TRANSLATION = row_formats.Translation("en", "ro")
README = [*COLUMNS, "--max_seq_length", "384", "--doc_stride", "128", "--num_beams", "4", "--max_answer_length", "30"]


def _examples(arguments):
    """Inputs, targets and references of the task that the gin file of the arguments binds."""
    plan = plan_of(arguments, corpus=data.find(arguments))
    text = "\n".join(lines_of(gin_text._rows(plan))).partition("script_task.task:\n")[2]
    lines = (line.partition(" = ") for line in text.splitlines() if line.startswith("  ") and "%" not in line)
    values = {name.strip(): ast.literal_eval(value) for name, _, value in lines}
    task = TaskRegistry.get(script_task.task(vocabulary=ByteVocabulary(extra_ids=100), **values))
    found = []
    for split in ("train", "validation"):
        for rows in task.source.documents(split):
            found += [example for row in rows for example in task.preprocessors[0].format(row)]
    return [(example.inputs, example.targets, example.reference) for example in found], [
        x.__wrapped__ for x in task.metric_fns
    ]


def test_files_of_the_form_of_squad(tmp_path):
    rows = [
        {"id": "1", "question": " Who?", "context": " A, B.", "answers": {"text": ["A", "a"], "answer_start": [0, 0]}},
        {"id": "2", "question": "Why?", "context": "C", "answers": {"text": [], "answer_start": []}},
    ]
    for split, part in (("train", rows), ("validation", rows[1:])):
        (tmp_path / f"{split}.json").write_text(json.dumps({"version": "1", "data": part}, indent=2))
    files = [f"--{split}_file={tmp_path / split}.json" for split in ("train", "validation")]
    flags = ["--model_name_or_path=t5-small", "--output_dir=out", *files, *README]
    arguments, notes = from_command_line(flags)
    assert len(notes) == 1 and "Without effect: doc_stride (a longer context is cut" in notes[0]
    assert arguments.is_finetuning and arguments.generation_num_beams == 4
    found, metrics = _examples(arguments)
    assert found == [
        ("question: Who? context: A, B.", "A", ["A", "a"]),
        ("question: Why? context: C", "", [""]),
        ("question: Why? context: C", "", [""]),
    ]
    assert metrics == [text_metrics.squad]


def test_questions_without_an_answer_are_kept_and_the_log_says_so(tmp_path):
    rows = [{"question": "Who?", "context": "A.", "answers": {"text": text}} for text in (["A"], [], [])]
    (tmp_path / "q.json").write_text(json.dumps({"data": rows}))
    keys = {"train_file": f"{tmp_path}/q.json", "question_column": "question", "version_2_with_negative": True}
    arguments, _ = from_values(KEYS | keys | {"do_eval": False})
    form, corpus = data.row_form(arguments), data.find(arguments)
    source = script_task.open_source(form, corpus.files)
    (found,) = Supervise("q", form.format).check_examples(source, "train")
    assert found.what == "q: 2 of the first 3 rows of split 'train' have no answer."
    assert "kept: their target is empty, and an empty prediction is right" in found.remedy
    assert "Leave" not in found.remedy


def test_columns_of_csv_and_names_of_ones_own(tmp_path):
    with (tmp_path / "own_names.csv").open("w") as file:
        csv.writer(file).writerows(
            [("q", "text", "a"), ("Q", "T", '[1] "x"'), ("Q", "T", '["u", "v"]'), ("Q", "T", "007")]
        )
    keys = {"train_file": str(tmp_path / "own_names.csv"), "validation_file": str(tmp_path / "own_names.csv")}
    keys |= {"question_column": "q", "context_column": "text", "answer_column": "a", "source_prefix": "answer: "}
    arguments, notes = from_values(KEYS | keys | {"version_2_with_negative": True, "n_best_size": 5})
    assert [note.partition(":")[0] for note in notes] == [
        "Without effect",
        "Columns of questions are keys of run_seq2seq_qa.py",
    ]
    assert (arguments.max_seq_length, arguments.max_target_length) == (384, 30)
    found, metrics = _examples(arguments)
    expected = [("answer: question: Q context: T", '[1] "x"', ['[1] "x"'])]
    expected += [("answer: question: Q context: T", "u", ["u", "v"])]
    expected += [("answer: question: Q context: T", "007", ["007"])]
    assert found == 2 * expected and metrics == [text_metrics.squad_v2]


def test_an_encoder_is_told_that_it_marks_no_answers_here():
    flags = ["--model_name_or_path", "my-bert", "--train_file", "q.json", "--output_dir", "out"]
    for first, more in (["run_qa.py"], []), (["run_seq2seq_qa"], []), ([], ["--context_column", "c"]):
        arguments, _ = from_command_line([*first, *flags, *more])
        with pytest.raises(
            ValueError, match=r"extractive question .* of run_qa.py.* is not here.*run_seq2seq_qa.*a T5"
        ) as told:
            columns.of_encoder(arguments, None)
        assert "'question'" not in str(told.value)  # which was not given


def test_answers_that_are_no_answers_are_named():
    one = {"question": "Q", "context": "C"}
    assert Questions()({**one, "answers": None})[0].reference == [""]
    records = [{"text": "A", "answer_start": 0}, {"text": "B"}]
    for value in (records, ["A", None, "B"], json.dumps(records)):
        assert Questions()({**one, "answers": value})[0].reference == ["A", "B"]
    for value, words in (("{'text': ['A']}", "which is not JSON"), ('{"start": 1}', "which has no 'text'")):
        with pytest.raises(ValueError, match=f"column 'answers' has .*{words}"):
            Questions()({**one, "answers": value})


def test_keys_that_go_against_each_other():
    columns = {"question_column": "question", "train_file": "q.json"}
    for keys, words in (
        (
            {"label_column_name": "x"},
            "label_column_name is 'x', and the columns of questions are question, context, an",
        ),
        ({"benchmark": "squad"}, "benchmark is 'squad', which has its texts and columns; leave question_column"),
        ({"metric_names": "rouge"}, "metric_names is 'rouge', .* use squad, squad_v2, trivia_qa"),
        ({"question_column": None, "version_2_with_negative": True}, "belongs to questions: name their columns"),
    ):
        with pytest.raises(ValueError, match=words):
            from_values(KEYS | columns | keys)


def test_the_scores_of_squad_2():
    """Those of its script: a question without an answer is right where the prediction is empty, and else wrong."""
    targets = [["the cat", "a dog"], ["red car"], [""], [""]]
    scores = text_metrics.squad_v2(targets, ["Cat.", "red house", "", "something"])
    expected = {
        "exact": 50.0,
        "f1": 62.5,
        "HasAns_exact": 50.0,
        "HasAns_f1": 75.0,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
    }
    assert scores == expected
    of_script = script_metrics.of_script(text_metrics.squad_v2, "text")
    assert of_script(targets, ["Cat.", "red house", "", "something"]) == expected


def test_the_best_exact_match_has_the_name_of_the_script():
    columns = {"question_column": "question", "train_file": "q.json", "metric_for_best_model": "exact_match"}
    arguments, _ = from_values(KEYS | columns | {"early_stopping_patience": 1, "early_stopping_threshold": 0.5})
    assert arguments.measured == ("inference_eval", "eval/exact_match")
    assert "  metric = ('t', 'exact_match')" in lines_of(
        gin_text._actions(plan_of(arguments))
    ) and "  atol = 0.5" in lines_of(gin_text._actions(plan_of(arguments)))
    form = types.SimpleNamespace(metrics=[script_metrics.of_script(text_metrics.squad, "text")])
    data._check_metrics(arguments, form)
    with pytest.raises(ValueError, match="the evaluations have loss, exact_match, f1"):
        data._check_metrics(dataclasses.replace(arguments, metric_for_best_model="em2"), form)


@pytest.mark.parametrize(
    ("form", "full", "blank"),
    [
        (Questions(), {"question": "Q", "context": "C", "answers": "A"}, {"context": None}),
        (Questions(), {"question": "Q", "context": "C", "answers": "A"}, {"question": " "}),
        (TRANSLATION, {"translation": {"en": "a", "ro": "b"}}, {"translation": {"en": None, "ro": "b"}}),
    ],
)
def test_rows_without_a_question_a_context_or_a_source_are_counted(tmp_path, form, full, blank):
    rows = [full, full | blank, full | blank]
    (tmp_path / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = corpora.HuggingFaceSource(
        {"train": str(tmp_path / "rows.json")}, list(form.columns), nested_columns=list(form.nested_columns)
    )
    (found,) = Supervise("some", form).check_examples(source, "train")
    assert found.what.startswith("some: 2 of the first 3 rows of split 'train' have no text in the columns of the inp")
    assert "row 1 (the first is 0)" in found.what and "None" not in form(rows[1])[0].inputs


def test_a_translation_has_texts():
    with pytest.raises(ValueError, match=r"column 'translation' has no text for 'ro', only \{'en': 'a', 'ro': \['b'\]"):
        TRANSLATION({"translation": {"en": "a", "ro": ["b"]}})
