"""Which script a command is written for."""

import json
import re

import pytest

from limba.addons.run.keys.script_keys import from_command_line, from_values
from limba.files.repository import REPOSITORY

BASE = {"model_name_or_path": "m", "train_file": "t.csv", "output_dir": "o"}


@pytest.mark.parametrize(
    ("keys", "script"),
    [
        ({}, None),
        ({"source_prefix": "summarize: "}, "run_summarization"),
        ({"predict_with_generate": True}, "run_summarization"),
        ({"predict_with_generate": "False"}, None),
        ({"max_source_length": 64}, "run_summarization"),
        ({"mlm_probability": 0.15, "max_source_length": 64}, "run_mlm"),
        ({"iters": 10}, "run_mlm"),
        ({"source_prefix": "x: ", "source_lang": "en", "target_lang": "ro"}, None),
        ({"predict_with_generate": True, "label_column_name": "mood"}, None),
        ({"script": "run_qa.py", "predict_with_generate": True}, "run_seq2seq_qa"),
        ({"script": "examples/flax/run_summarization_flax.py"}, "run_summarization"),
        ({"script": "run_glue_no_trainer"}, "run_glue"),
    ],
)
def test_the_script_is_named_or_its_keys_name_it(keys, script):
    assert from_values(BASE | keys)[0].script == script


def test_lengths_of_answers_have_their_effect_on_summaries():
    notes = {
        prefix: from_values(BASE | {"source_prefix": prefix, "max_target_length": 20})[1] for prefix in ("", "sum: ")
    }
    assert notes["sum: "] == ["As in run_summarization.py, max_seq_length is 1024."]
    assert notes[""][0].startswith("Without effect: max_target_length")


def test_the_script_is_the_first_word(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(BASE))
    arguments, notes = from_command_line(["run_seq2seq_qa.py", str(tmp_path / "c.json"), "--max_steps", "5"])
    assert arguments.questions == ("question", "context", "answers") and arguments.max_steps == 5
    assert from_command_line(["run_ner", str(tmp_path / "c.json")])[0].has_word_task
    arguments, notes = from_command_line(["my_train.py", str(tmp_path / "c.json"), "--label_column_name", "mood"])
    assert arguments.script is None
    assert notes == ["Without effect: my_train.py (of a script that is not known here the keys say what is learned)."]
    with pytest.raises(ValueError, match="run_translation needs the languages: write source_lang"):
        from_command_line(["run_translation.py", str(tmp_path / "c.json")])


@pytest.mark.parametrize("script", ["run_clm.py", "examples/run_clm_flax.py", "run_plm", "run_clm_no_trainer"])
def test_a_script_of_another_task_is_refused(tmp_path, script):
    (tmp_path / "c.json").write_text(json.dumps(BASE))
    with pytest.raises(ValueError, match=f"{script} trains a network that only decodes, .* with task prefix_lm"):
        from_command_line([script, str(tmp_path / "c.json")])


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (["run_xnli.py", "--language", "de"], "run_xnli.py takes .* Write run_glue with the files of a language"),
        (["run_swag", "--tokenizer_name", "m"], "run_swag chooses among several endings .* text_column_name, a templ"),
        (["run_clm.py", "--no_such_key", "1"], "run_clm.py trains a network that only decodes"),
        (["foo.py"], "foo.py is no script that `limba run` knows, .* It knows run_summarization, .*run_ner, run_glue"),
    ],
)
def test_no_script_without_its_task_trains_something_else(tmp_path, script, words):
    (tmp_path / "c.json").write_text(json.dumps(BASE))
    with pytest.raises(ValueError, match=words):
        from_command_line([script[0], str(tmp_path / "c.json"), *script[1:]])


@pytest.mark.parametrize("key", ["--task=masked_lm", "--mlm_probability=0.2", "--answers=label", "--source_prefix=x: "])
def test_a_script_of_one_s_own_passes_where_a_key_says_what_is_learned(tmp_path, key):
    (tmp_path / "c.json").write_text(json.dumps(BASE))
    _, notes = from_command_line(["foo.py", str(tmp_path / "c.json"), key])
    assert notes[0].startswith("Without effect: foo.py (of a script that is not known here")


def test_run_mlm_wwm_masks_whole_words(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(BASE))
    for script, more, whole in (
        ("run_mlm_wwm.py", [], True),
        ("run_mlm_wwm", ["--whole_word_mask", "false"], False),
        ("run_mlm.py", [], False),
    ):
        arguments, notes = from_command_line([script, str(tmp_path / "c.json"), *more])
        assert (arguments.script, arguments.whole_word_mask) == ("run_mlm", whole)
        assert any("masks whole words" in note for note in notes) is whole


def test_scripts_without_a_trainer_do_not_clip_and_evaluate_after_each_epoch(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(BASE))
    for script, more, clip, evaluated in (
        ("run_mlm_no_trainer.py", [], 0.0, "epoch"),
        ("run_mlm_no_trainer", ["--max_grad_norm=0.5", "--eval_strategy=steps"], 0.5, "steps"),
        ("run_mlm.py", [], 1.0, None),
        ("run_t5_mlm_flax.py", [], 0.0, None),
        ("run_t5_mlm_flax.py", ["--max_grad_norm", "2"], 2.0, None),
    ):
        arguments, notes = from_command_line([script, str(tmp_path / "c.json"), *more])
        assert (arguments.max_grad_norm, arguments.eval_strategy) == (clip, evaluated)
        assert any("max_grad_norm is 0.0" in note for note in notes) is (clip == 0.0)


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("run_summarisation", "run_summarization"),
        ("run_sumarization.py", "run_summarization.py"),
        ("rung_glue", "run_g"),
    ],
)
def test_a_misspelled_script_is_named(word, nearest):
    with pytest.raises(FileNotFoundError, match=f"no script and no file {word}. Did you mean {nearest}"):
        from_command_line([word, "--output_dir", "o"])


OF_PYTHON = """
from transformers import Seq2SeqTrainingArguments
args = Seq2SeqTrainingArguments(
    output_dir="o", learning_rate=1e-4)
"""
SCRIPT = """
class MyTrainingArguments(TrainingArguments):
    more: int = 1
args = HfArgumentParser((ModelArguments, MyTrainingArguments)).parse_args_into_dataclasses()
"""


def test_arguments_in_python_are_not_read_and_their_json_is(tmp_path):
    for name, content in (("ta.py", OF_PYTHON), ("mine.py", SCRIPT)):
        (tmp_path / name).write_text(content)
    for rest in ([], ["--do_train"]):
        with pytest.raises(ValueError, match=r"ta\.py is a file of Python, .* not read.*args\.to_json_string\(\)"):
            from_command_line([str(tmp_path / "ta.py"), *rest])
    keys = [f"--{name}={value}" for name, value in (BASE | {"task": "prefix_lm"}).items()]
    assert from_command_line([str(tmp_path / "mine.py"), *keys])[0].output_dir == "o"
    (tmp_path / "training_args.bin").write_bytes(b"PK\x03\x04more")
    with pytest.raises(ValueError, match=r"training_args\.bin keeps objects of Python.*torch\.load\(.*to_json_string"):
        from_command_line([str(tmp_path / "training_args.bin")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output_dir"], "--output_dir has no value behind it: write --output_dir VALUE, a text."),
        (["--max_steps", "--output_dir", "o"], "--max_steps has no value behind it: write --max_steps VALUE, a whole"),
        (["--lr"], "--lr has no value behind it: write --lr VALUE, a number."),
    ],
)
def test_a_flag_without_its_value(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        from_command_line(words)
    assert from_command_line([*(f"--{name}={x}" for name, x in BASE.items()), "--do_train"])[0].do_train


@pytest.mark.parametrize(
    ("keys", "length"),
    [
        ({"script": "run_summarization.py", "text_column": "a", "summary_column": "b"}, 1024),
        ({"script": "run_translation.py", "source_lang": "en", "target_lang": "ro"}, 1024),
        ({"script": "run_translation.py", "source_lang": "en", "target_lang": "ro", "max_source_length": 64}, 64),
        ({"label_column_name": "b"}, 512),
    ],
)
def test_the_length_of_texts_is_that_of_the_script(keys, length):
    given = {"model_name_or_path": "m", "train_file": "t.csv", "output_dir": "o"}
    arguments, _ = from_values(given | keys)
    assert (arguments.inputs_length, arguments.target_length) == (length, 128)


@pytest.mark.parametrize(
    ("word", "script", "drops"),
    [
        ("run_flax_glue.py", "run_glue", True),
        ("run_flax_ner", "run_ner", True),
        ("run_token_classification.py", "run_ner", False),
        ("run_summarization_flax.py", "run_summarization", True),
        ("run_summarization.py", "run_summarization", False),
    ],
)
def test_other_names_of_scripts(word, script, drops):
    arguments, _ = from_command_line([word, *(f"--{name}={value}" for name, value in BASE.items())])
    assert (arguments.script, arguments.dataloader_drop_last) == (script, drops)
    assert arguments.max_grad_norm == (0.0 if drops else 1.0)


_PAGE = (REPOSITORY / "docs" / "run.md").read_text("utf-8")
_NAMED = sorted(
    {*re.findall(r"`(\w+(?:\*)?)\.py`", _PAGE), *re.findall(r"\b(run_\w+|\w+_t5)\b", _PAGE)} - {"run_keys", "run_flax_"}
)


@pytest.mark.parametrize("name", [*_NAMED, "run_t5_mlm_to_pretrain", "pre_train_t5"])
@pytest.mark.parametrize("ending", ["", ".py"])
def test_every_script_that_the_page_names_is_taken_or_refused_with_a_remedy(tmp_path, name, ending):
    word = (f"{name}to_pretrain_accelerate" if name.endswith("_") else name.replace("*", "to_pretrain")) + ending
    content = {**BASE, "source_lang": "en", "target_lang": "ro"} if "translation" in name else BASE
    (tmp_path / "config.json").write_text(json.dumps(content))
    words = [word, str(tmp_path / "config.json")]
    if name in ("run_clm", "run_plm", "run_xnli", "run_swag"):
        with pytest.raises(ValueError, match=r"(Leave|Write|leave) "):
            from_command_line(words)
        return
    script = from_command_line(words)[0].script
    assert script == {"fine_tune_t5": None, "pre_train_t5": "run_mlm"}.get(name, script)
    assert script == "run_mlm" or not name.startswith("run_t5")
