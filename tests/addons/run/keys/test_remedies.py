"""Keys that are not carried out: the remedy is in the words of who wrote the key."""

import pytest

from limba.addons.run.keys import script_keys
from limba.addons.run.keys.script_keys import from_command_line, from_values

KEYS = {"model_name_or_path": "m", "output_dir": "o", "train_file": "a.csv", "summary_column": "summary"}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("train_batch_size", 8, "no key 'train_batch_size'; the nearest is 'per_device_train_batch_size'"),
        ("eval_batch_size", 8, "no key 'eval_batch_size'; the nearest is 'per_device_eval_batch_size'"),
        ("deepspeed", "ds.json", "deepspeed is 'ds.json': on one device leave it out; on several Limba shards"),
        ("length_penalty", 2.0, r"length_penalty is 2\.0: .* --gin\.decoding\.beam_search\.alpha=.*\(docs/decoding\.m"),
        ("no_repeat_ngram_size", 3, r"no_repeat_ngram_size is 3: here is no such rule; docs/decoding\.md"),
        ("repetition_penalty", 1.2, r"repetition_penalty is 1\.2: here is no such rule; docs/decoding\.md"),
        ("use_peft", True, r"use_peft is True: LoRA is trained by `limba train` with gin/runs/lora\.gin, .* docs/lora"),
        ("lora_r", 8, r"lora_r is 8: LoRA is trained by .* docs/lora\.md"),
    ],
)
def test_a_key_that_is_refused_points_to_what_there_is(name, value, says):
    with pytest.raises(ValueError, match=says):
        from_values(KEYS | {name: value})


def test_values_that_ask_for_nothing_pass():
    defaults = {"length_penalty": 1.0, "no_repeat_ngram_size": 0, "use_peft": False, "lora_r": 16, "lora_alpha": 32}
    assert from_values(KEYS | defaults) == from_values(KEYS)


def test_what_happens_in_any_case_is_no_warning(monkeypatch):
    monkeypatch.setattr(script_keys, "has_rouge", lambda: True)
    assert from_values(KEYS | {"predict_with_generate": True})[1] == []
    assert from_values(KEYS | {"predict_with_generate": True, "use_cache": True})[1] == [
        "Without effect: use_cache (everything is compiled by XLA)."
    ]
    assert "\ndone in any case: --predict_with_generate" in script_keys.help_text()


def test_rouge_without_its_package_is_said_once(monkeypatch):
    monkeypatch.setattr(script_keys, "has_rouge", lambda: False)
    assert from_values(KEYS)[1] == [
        "ROUGE of the summaries is not measured without its package: pip install 'limba[metrics]'."
    ]
    says = r"metric_for_best_model is 'eval_rougeL', and ROUGE needs a package .*: pip install 'limba\[metrics\]', or"
    with pytest.raises(ValueError, match=says):
        from_values(KEYS | {"metric_for_best_model": "eval_rougeL"})


FLAGS = ["--model_name_or_path=m", "--output_dir=o"]


def test_a_number_that_is_none():
    with pytest.raises(ValueError, match="num_train_epochs is 'nan'; it must be a number"):
        from_command_line([*FLAGS, "--train_file=a.csv", "--num_train_epochs", "nan"])


def test_files_that_the_shell_has_listed():
    with pytest.raises(ValueError, match=r"'b.csv' belongs to no flag.* --train_file 'parts/\*\.csv'"):
        from_command_line([*FLAGS, "--train_file", "a.csv", "b.csv"])
    with pytest.raises(ValueError, match=r"':' belongs to no flag.* --source_prefix, put the whole value in quotes"):
        from_command_line([*FLAGS, "--train_file", "a.csv", "--source_prefix", "summarize", ":"])


def test_an_answer_in_the_input_is_named():
    for column, is_named in (("text,label", True), ("{text} {label}", True), ("label_text", False)):
        flags = ["--train_file=a.csv", f"--text_column={column}", "--label_column=label"]
        notes = from_command_line([*FLAGS, *flags])[1]
        assert any("the answer stands in the input" in note for note in notes) is is_named
    for target, is_named in (("en", True), ("ro", False)):
        notes = from_command_line([*FLAGS, "--train_file=a.json", "--source_lang=en", f"--target_lang={target}"])[1]
        assert any("are both en" in note for note in notes) is is_named


@pytest.mark.parametrize(("value", "is_named"), [("false", True), ("true", False)])
def test_padding_that_shall_count_is_named(value, is_named):
    notes = from_command_line([*FLAGS, "--train_file=a.csv", f"--ignore_pad_token_for_loss={value}"])[1]
    assert ("Without effect: ignore_pad_token_for_loss (padding never counts)." in notes) is is_named
