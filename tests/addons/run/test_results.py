"""The files that `limba run` leaves."""

import json

import pytest

from limba.addons.run import results
from limba.addons.run.keys.script_keys import from_values
from tests.addons.run.plans import plan_of
from tests.convert import vocabularies

KEYS = {"config_name": "c.json", "train_file": "t.csv", "label_column_name": "summary", "metric_names": "accuracy"}


def test_predictions_are_written_and_measured_without_special_tokens(tmp_path):
    lines = [
        {
            "inputs": {"targets_pretokenized": right, "reference": "null"},
            "prediction": text,
            "prediction_tokens": [5, 6],
        }
        for right, text in (("a red car", "a<extra_id_34> red car"), ("two", "<extra_id_0> two\nwords"))
    ]
    (tmp_path / "t-predict.jsonl-00000-of-00001").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    arguments = from_values(KEYS | {"output_dir": str(tmp_path), "do_predict": True, "test_file": "t.csv"})[0]
    found = results.write_answers(plan_of(arguments), tmp_path, 2.0)
    assert (tmp_path / "generated_predictions.txt").read_text() == "a red car\ntwo words\n"
    assert (found["predict_accuracy"], found["predict_gen_len"]) == (pytest.approx(0.5), 2.0)


def test_a_line_of_predictions_keeps_the_blanks_of_its_text(tmp_path):
    """As the scripts write them: without those at the ends."""
    texts = (" -, --  s   s ", "<extra_id_0>a\n\nb", "", "так\u2028й\x85і")  # Unicode's line breaks are in the files
    lines = [json.dumps({"inputs": {}, "prediction": text}, ensure_ascii=False) for text in texts]
    (tmp_path / "t-predict.jsonl-00000-of-00001").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    arguments = from_values(KEYS | {"output_dir": str(tmp_path), "do_predict": True, "test_file": "t.csv"})[0]
    results.write_answers(plan_of(arguments), tmp_path, None)
    assert (tmp_path / "generated_predictions.txt").read_text("utf-8") == "-, --  s   s\na  b\n\nтак й і\n"


@pytest.mark.parametrize(
    ("keys", "name"), [({"task_name": "MRPC"}, "predict_results_mrpc.txt"), (KEYS, "predict_results.txt")]
)
def test_predicted_labels_of_a_task_of_glue_have_its_name(keys, name, tmp_path):
    (tmp_path / "t-predict.jsonl-00000-of-00001").write_text(json.dumps({"inputs": {}, "prediction": "yes"}) + "\n")
    more = {"output_dir": str(tmp_path / "out"), "do_predict": True, "test_file": "t.csv", "train_file": "t.csv"}
    arguments = from_values({"model_name_or_path": "m", **keys, **more, "answers": "label"})[0]
    (tmp_path / "out").mkdir()
    results.write_answers(plan_of(arguments), tmp_path, None)
    assert [file.name for file in (tmp_path / "out").iterdir()] == [name]
    assert (tmp_path / "out" / name).read_text() == "index\tprediction\n0\tyes\n"


def test_answers_are_compared_as_the_vocabulary_normalizes_them(tmp_path):
    """Full-width punctuation, which NFKC makes ASCII (tests/tasks/supervised/test_compared_answers.py)."""
    answers, decoded = ["体育，足球！", "（财经）股票：涨"], ["体育,足球!", "(财经)股票:涨"]
    initial = tmp_path / "out" / "evaluated" / "initial"
    initial.mkdir(parents=True)
    text = [f"{answer} {other}" for answer in answers for other in answers] * 20
    vocabularies.train(initial / "spiece.model", text, vocab_size=60, hard_vocab_limit=False)
    keys = {"model_name_or_path": "m", "output_dir": str(tmp_path / "out"), "text_column_name": "text"}
    keys |= {"label_column_name": "answer", "test_file": "test.csv", "do_predict": True}
    request = from_values(keys)[0]
    lines = [
        {"inputs": {"targets_pretokenized": truth, "reference": "null"}, "prediction": answer}
        for truth, answer in zip(answers, decoded, strict=True)
    ]
    assert results._measured(plan_of(request, work=request.work_folder), lines)["accuracy"] == 1.0
