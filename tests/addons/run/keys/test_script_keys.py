"""The keys of Hugging Face's scripts, as JSON and as flags."""

import dataclasses
import json
import os
import sys

import pytest

from limba.addons.run import gin_text
from limba.addons.run.keys import other_keys, request, script_keys
from limba.addons.run.keys.script_keys import Request, from_command_line, from_values
from tests.addons.run.keys import run_keys_page
from tests.addons.run.plans import plan_of
from tests.limba.gin_lines import lines_of

# The script's own example of a configuration.
EXAMPLE = {
    "model_name_or_path": "t5-small",
    "dataset_name": "wikitext",
    "dataset_config_name": "wikitext-2-raw-v1",
    "do_train": True,
    "do_eval": True,
    "output_dir": "./output",
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "learning_rate": 5e-5,
    "num_train_epochs": 3,
    "max_seq_length": 512,
    "mlm_probability": 0.15,
    "mean_noise_span_length": 3.0,
    "logging_steps": 100,
    "save_steps": 1000,
    "eval_steps": 1000,
}
# What its page lists beside these.
LISTED = [
    *("config_name", "tokenizer_name", "dtype", "train_file", "validation_file", "warmup_steps", "max_grad_norm"),
    *("gradient_accumulation_steps", "mixed_precision", "push_to_hub", "push_to_hub_final_step", "hub_model_id"),
    *("hub_token", "preprocessing_num_workers", "weight_decay", "max_steps", "save_total_limit", "seed"),
]


def test_a_file_and_flags_beside_it(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(EXAMPLE))
    arguments, notes = from_command_line(
        [str(file), "--learning_rate=1e-4", "--do_eval", "false", "--push_to_hub", "--num_train_epochs", "0.5"]
    )
    assert notes == []
    assert (arguments.learning_rate, arguments.do_eval, arguments.push_to_hub) == (1e-4, False, True)
    assert (arguments.num_train_epochs, arguments.max_seq_length, arguments.weight_decay) == (0.5, 512, 0.0)
    assert from_command_line([str(file), "--no_remove_unused_columns", "--no_do_eval"])[0].do_eval is False
    flags = [f"--{name}={value}" for name, value in EXAMPLE.items()]
    assert from_command_line(flags)[0] == from_values(EXAMPLE)[0]


def test_beginnings_of_keys_and_lists_are_taken_as_by_transformers_parser():
    flags = ["--output_dir", "o", "--model_name_or_path", "m", "--train_file", "t.txt"]
    flags += ["--per_device_train_batch", "3", "--include_for_metrics", "loss", "inputs", "--label_names", "a", "b"]
    arguments, notes = from_command_line(flags)
    assert arguments.per_device_train_batch_size == 3
    assert any("include_for_metrics" in note for note in notes) and any("label_names" in note for note in notes)
    with pytest.raises(ValueError, match="'per_device'"):  # of two keys
        from_command_line([*flags, "--per_device", "3"])


def test_metrics_are_a_list_by_words_or_commas():
    rows = EXAMPLE | {"label_column_name": "x"}
    for given in ("bleu,rouge", "bleu, rouge,", ["bleu", "rouge"], ["bleu,rouge"]):
        assert from_values(rows | {"metric_names": given})[0].metrics == ("bleu", "rouge"), given
    assert from_values(rows | {"metric_names": "bleu"})[0].metrics == ("bleu",)


def test_a_model_type_counts_where_nothing_else_names_the_network():
    scratch = {name: x for name, x in EXAMPLE.items() if name != "model_name_or_path"} | {"model_type": "roberta"}
    arguments, notes = from_values(scratch | {"tokenizer_name": "t"})
    assert (arguments.model_type, arguments.config_name, notes) == ("roberta", None, [])
    arguments, notes = from_values(scratch | {"config_name": "c", "tokenizer_name": "t"})
    assert arguments.model_type is None and notes == ["Without effect: model_type (config.json has it)."]


def test_every_listed_key_is_known():
    for name in (*EXAMPLE, *LISTED):
        assert name in script_keys.FIELDS or name in other_keys.WITHOUT_EFFECT, name
        assert name in script_keys.help_text()


def test_two_names_of_a_key_agree_or_not():
    flags = {"max_seq_length": 64, "max_source_length": 64, "input_seq_len": "64"}
    assert from_values({**EXAMPLE, **flags})[0].max_seq_length == 64
    with pytest.raises(ValueError, match=r"max_seq_length is 64 and input_seq_len is 65: they"):
        from_values({**EXAMPLE, **flags, "input_seq_len": 65})
    _, notes = from_values(EXAMPLE | {"generation_max_length": 20})
    assert notes == ["Without effect: generation_max_length (targets are as long as the masked spans need)."]


_DEFAULTS = """
import dataclasses, json
from transformers import Seq2SeqTrainingArguments
values = {}
for field in dataclasses.fields(Seq2SeqTrainingArguments):
    made = field.default_factory() if field.default is dataclasses.MISSING else field.default
    values[field.name] = getattr(made, "value", made)
print(json.dumps(values))
"""
# Those of run_t5_mlm_flax, run_summarization, run_translation, run_seq2seq_qa, run_glue, run_classification, run_ner
# and run_mlm, with their defaults.
_SCRIPTS = {
    **dict.fromkeys(("config_name", "tokenizer_name", "cache_dir", "token", "model_type", "config_overrides")),
    "use_fast_tokenizer": True,
    "model_revision": "main",
    "use_auth_token": None,
    "trust_remote_code": False,
    "resize_position_embeddings": None,
    "torch_dtype": "auto",
    "dtype": "float32",
    "low_cpu_mem_usage": False,
    "ignore_mismatched_sizes": False,
    "attn_implementation": None,
    **dict.fromkeys(("dataset_config_name", "train_file", "validation_file", "test_file", "lang", "forced_bos_token")),
    "overwrite_cache": False,
    "preprocessing_num_workers": None,
    "max_source_length": 512,
    "max_seq_length": None,
    "max_target_length": 128,
    "val_max_target_length": None,
    "pad_to_max_length": False,
    "num_beams": None,
    **dict.fromkeys(("max_train_samples", "max_eval_samples", "max_predict_samples", "text_column", "summary_column")),
    "ignore_pad_token_for_loss": True,
    "source_prefix": "",
    "source_lang": None,
    "target_lang": None,
    "context_column": "context",
    "question_column": "question",
    "answer_column": "answers",
    "doc_stride": 128,
    "max_answer_length": None,
    "val_max_answer_length": None,
    "version_2_with_negative": False,
    "null_score_diff_threshold": 0.0,
    "n_best_size": 20,
    "do_regression": None,
    "remove_splits": None,
    "remove_columns": None,
    "label_column_name": None,
    "text_column_delimiter": " ",
    "shuffle_seed": 42,
    **dict.fromkeys(("train_split_name", "validation_split_name", "test_split_name")),
    "shuffle_train_dataset": False,
    "metric_name": None,
    "text_column_names": None,
    "label_all_tokens": False,
    "return_entity_level_metrics": False,
    "mlm_probability": 0.15,
    "mean_noise_span_length": 3.0,
    "line_by_line": False,
    "streaming": False,
    "train_ref_file": None,
    "validation_ref_file": None,
    "validation_split_percentage": 5,
    "early_stopping_patience": None,
    "early_stopping_threshold": 0.0,
}


@pytest.mark.parametrize("version", [4, 5])
def test_every_key_of_transformers_is_known_and_none_stops_a_run_at_its_default(version, checks_in_forks, forks5):
    if version == 4:
        done = checks_in_forks([sys.executable, "-c", _DEFAULTS], env=dict(os.environ))
    else:
        done = forks5.run("-c", _DEFAULTS)
    defaults = json.loads(done.stdout)
    assert len(defaults) > 100 and {"deepspeed", "label_smoothing_factor", "generation_config"} < defaults.keys()
    needed = {"output_dir": "out", "do_train": True, "model_name_or_path": "t5-small", "dataset_name": "wikitext"}
    arguments, notes = from_values(defaults | _SCRIPTS | needed)
    assert (arguments.learning_rate, arguments.label_smoothing_factor, arguments.inputs_length) == (5e-5, 0.0, 512)
    # As flags of a shell, too.
    flags = [f"--{name}={value}" for name, value in (defaults | needed).items() if not isinstance(value, dict | list)]
    assert from_command_line(flags)[0].learning_rate == 5e-5
    assert all(len(note) < 400 for note in notes) and len(notes) < 8


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("deepspeed", "ds.json", "deepspeed is 'ds.json': .*fsdp_logical_axis_rules"),
        ("fsdp", "full_shard auto_wrap", "fsdp is 'full_shard auto_wrap': .*docs/partitioning.md"),
        ("auto_find_batch_size", True, "auto_find_batch_size is True: `limba plan` says which batch fits"),
        ("model_revision", "v2", "model_revision is 'v2': name a folder: hf download"),
        ("label_smoothing_factor", 1.5, "label_smoothing_factor is 1.5; it must be below 1"),
        ("generation_num_beams", 0, "generation_num_beams is 0; it must be at least 1"),
        ("deepspeeed", "x", "no key 'deepspeeed'; the nearest is 'deepspeed'"),
        ("my_own_key", "x", r"no key 'my_own_key'\. `limba run --help`"),
        ("warmup_steps", 2.5, "warmup_steps is 2.5; it must be a whole number"),
    ],
)
def test_keys_that_are_not_here_name_what_to_do(key, value, words):
    with pytest.raises(ValueError, match=words):
        from_values(EXAMPLE | {"label_column_name": "answer", key: value})


def test_keys_that_are_carried_out():
    keys = {"per_gpu_train_batch_size": 3, "token": True, "warmup_steps": 0.25, "num_beams": 4, "data_seed": 7}
    keys |= {"push_to_hub_token": "<PUSH_TO_HUB_TOKEN>", "label_smoothing_factor": "0.1", "eval_strategy": "no"}
    keys |= {"early_stopping_threshold": 0.5, "early_stopping_patience": 2, "label_column_name": "answer"}
    example = {name: value for name, value in EXAMPLE.items() if name != "per_device_train_batch_size"}
    arguments, notes = from_values(example | keys)
    assert notes == [] and arguments.hub_token is None
    assert (arguments.per_device_train_batch_size, arguments.warmup_steps, arguments.warmup_ratio) == (3, 0, 0.25)
    assert (arguments.generation_num_beams, arguments.data_seed, arguments.label_smoothing_factor) == (4, 7, 0.1)
    assert (arguments.eval_strategy, arguments.early_stopping_threshold) == ("no", 0.5)


def test_the_page_of_keys_is_that_of_the_tables():
    assert run_keys_page.FILE.read_text("utf-8") == run_keys_page.page()


def test_every_key_has_one_place():
    tables = [set(script_keys.FIELDS), {*script_keys.ALIASES}, {*other_keys.WITHOUT_EFFECT}, {*other_keys.REFUSED}]
    assert sum(map(len, tables)) == len(set.union(*tables))
    assert set(script_keys.ALIASES.values()) <= {field.name for field in dataclasses.fields(request.Request)}


def test_keys_without_meaning_are_reported():
    _, notes = from_values(EXAMPLE | {"preprocessing_num_workers": 8})
    assert notes == [f"Without effect: preprocessing_num_workers ({other_keys._STREAMED})."]


@pytest.mark.parametrize("word", ["true", "t", "yes", "y", "1", "T", "Yes", True])
def test_switches_are_on_or_off_in_the_words_of_transformers(word):
    from transformers.hf_argparser import string_to_bool

    assert string_to_bool(word) is True
    opposite = {"true": "false", "t": "f", "yes": "no", "y": "n", "1": "0", "T": "F", "Yes": "No", True: False}[word]
    assert string_to_bool(opposite) is False
    assert from_values(EXAMPLE | {"bf16": word})[0].bf16 is True
    assert from_values(EXAMPLE | {"bf16": opposite})[0].bf16 is False


def test_yaml_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"args\.yaml is YAML, and `limba run` reads JSON"):
        script_keys.from_command_line([str(tmp_path / "args.yaml")])


def test_a_token_is_written_nowhere():
    arguments, _ = from_values(EXAMPLE | {"hub_token": "hf_secret"})
    assert "hf_secret" not in str(arguments.without_secrets()) and arguments.hub_token == "hf_secret"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rat": 1}, ["'learning_rat'", "nearest is 'learning_rate'"]),
        ({"per_device_batch_size": 1}, ["nearest is 'per_device_train_batch_size'"]),
        ({"eval_step": 1}, ["nearest is 'eval_steps'"]),
        ({"fp16": True}, ["fp16: true", "needs a scaled loss", 'Write "bf16": true in its place']),
        ({"mixed_precision": "fp16"}, ["mixed_precision: fp16", "overflows", '"mixed_precision": "bf16"']),
        ({"dtype": "float16"}, ["dtype: float16", "overflows", '"dtype": "bfloat16"']),
        ({"mixed_precision": "fp8"}, ["'fp8'", "no or bf16"]),
        ({"save_steps": 0}, ["save_steps is 0", "at least 1"]),
        ({"save_steps": 2.5}, ["save_steps is 2.5", "whole number"]),
        ({"do_train": "maybe"}, ["do_train is 'maybe'", "true or false"]),
        ({"do_train": False, "do_eval": False}, ["nothing to do"]),
        ({"lr": 1e-4}, ["learning_rate is 5e-05 and lr is 0.0001", "names of one key, learning_rate"]),
        ({"labels": ["a", "b"]}, ["labels is ['a', 'b']", "label_column_name"]),
        ({"do_predict": True}, ["do_predict is True", "fine-tuning"]),
        ({"source_lang": "en"}, ["source_lang is 'en' and target_lang None", "needs both"]),
        ({"source_lang": "en", "target_lang": "uk", "label_column_name": "x"}, ["of target_lang; leave 'x' out"]),
        ({"benchmark": "glue", "label_column_name": "x"}, ["'glue'", "leave label_column_name 'x' out"]),
        ({"scale_parameter": True}, ["scale_parameter is true", "Adafactor"]),
        ({"optim": "adafactor", "warmup_init": True}, ["warmup_init is true", "relative_step"]),
        ({"lr_scheduler_kwargs": {"power": 2}}, ["'power': 2", "linear has no numbers"]),
        ({"labels": "a,b", "label_column_name": "x"}, ["labels is 'a,b'", "JSON"]),
        ({"learning_rate": "high"}, ["learning_rate is 'high'", "a number"]),
        ({"learning_rate": -1}, ["learning_rate is -1.0"]),
        ({"mlm_probability": 15}, ["mlm_probability is 15.0"]),
        ({"max_steps": 0}, ["max_steps is 0"]),
        ({"adam_beta2": 1.5}, ["adam_beta2 is 1.5", "below 1"]),
        ({"adam_epsilon": float("nan")}, ["adam_epsilon is nan"]),
        ({"mean_noise_span_length": 0}, ["mean_noise_span_length is 0", "at least 1"]),
        ({"warmup_ratio": 5}, ["warmup_ratio is 5.0", "a share"]),
        ({"seed": -1}, ["seed is -1"]),
        ({"tokenizer_name": ""}, ["tokenizer_name is empty"]),
        ({"model_name_or_path": None}, ["model_name_or_path and config_name are missing", "from scratch"]),
        ({"config_overrides": "hidden_size=8"}, ["config_overrides is 'hidden_size=8'", "the defaults of model_type"]),
        ({"lr_scheduler_type": "step"}, ["'step'", "cosine"]),
        ({"optim": "sgd"}, ["'sgd'"]),
        ({"report_to": ["comet"]}, ["'comet'"]),
        ({"output_dir": ""}, ["output_dir is missing"]),
    ],
)
def test_bad_values_are_named(changes, words):
    with pytest.raises(ValueError) as error:
        from_values(EXAMPLE | changes)[0].check_documents()
    for word in words:
        assert word in str(error.value)


def test_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file .*absent.json"):
        from_command_line([str(tmp_path / "absent.json")])
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad.json is not JSON"):
        from_command_line([str(tmp_path / "bad.json")])
    with pytest.raises(ValueError, match=r"'here' belongs to no flag"):
        from_command_line(["--do_train", "true", "here"])


def test_a_key_without_its_dashes_is_written_as_it_should_be(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps(EXAMPLE))
    for words, right in (
        (["learning_rate=1e-4"], "write --learning_rate 1e-4."),
        (["learning_rate", "1e-4"], "write --learning_rate 1e-4."),
        (["-max-steps", "5"], "write --max_steps 5."),
        (["do_eval", "--max_steps", "5"], "write --do_eval."),
    ):
        for before in ([str(tmp_path / "c.json")], []):
            with pytest.raises(ValueError) as error:
                from_command_line([*before, *words])
            assert f"{words[0]!r} is a key without its dashes: {right}" in str(error.value)


@pytest.mark.parametrize("optim", ["paged_adamw", "paged_adamw_8bit", "paged_adamw_32bit", "adamw_bnb_8bit"])
def test_all_names_of_adamw_mean_the_same(optim):
    lines = lines_of(gin_text._optimizer(plan_of(from_values(EXAMPLE | {"optim": optim})[0])))
    assert "optimizers.chain.transformations = [@optax.clip_by_global_norm(), @optimizers.adamw()]" in lines


def test_bf16_by_any_of_its_names():
    for change in ({"bf16": True}, {"mixed_precision": "bf16"}, {"dtype": "bfloat16"}):
        assert from_values(EXAMPLE | change)[0].compute_dtype == "bfloat16"
    assert Request(**EXAMPLE).compute_dtype == "float32"


def test_the_names_of_other_scripts():
    """Of run_t5_pretraining.py: it always trains."""
    values = {
        "batch_size": 32,
        "gradient_accumulation_steps": 2,
        "save_interval": 100_000,
        "log_interval": 500,
        "iters": 1_100_000,
        "data_path": "~/data",
        "model_path": "runs/small",
        "input_seq_len": 512,
        "target_seq_len": 192,
        "lr": 5e-05,
        "weight_decay": 1e-05,
        "model_cfg": "t5-small.json",
        "model_cls": "modeling_t5:T5ForConditionalGeneration",
        "num_warmup_steps": 10_000,
        "optimizer": "Adafactor",
        "scale_parameter": True,
        "lr_scheduler": "constant_with_warmup",
    }
    arguments, notes = from_values(values)
    assert (arguments.per_device_train_batch_size, arguments.max_steps, arguments.learning_rate) == (
        32,
        1_100_000,
        5e-5,
    )
    assert (arguments.save_steps, arguments.logging_steps, arguments.max_seq_length) == (100_000, 500, 512)
    assert (arguments.output_dir, arguments.config_name, arguments.dataset_name) == (
        "runs/small",
        "t5-small.json",
        "~/data",
    )
    assert arguments.uses_adafactor and arguments.scale_parameter and not arguments.relative_step
    assert (arguments.lr_scheduler_type, arguments.warmup_steps) == ("constant_with_warmup", 10_000)
    assert arguments.do_train and not arguments.do_eval and not arguments.is_finetuning
    assert [note.split()[2] for note in notes] == ["model_cls", "a", "target_seq_len"]


def test_fine_tuning_keys():
    arguments, notes = from_values({"benchmark": "glue", "dataset_name": "sst2", "output_dir": "out"})
    assert arguments.is_finetuning and arguments.entry == "glue_sst2" and arguments.do_train and arguments.do_eval
    assert notes == ["model_name_or_path is not given; google/t5-v1_1-small is trained."]
    assert from_values({"task_name": "MRPC", "output_dir": "out"})[0].entry == "glue_mrpc"
    of_words = {"task_name": "NER", "output_dir": "out", "train_file": "a.json", "model_name_or_path": "m"}
    assert from_values(of_words)[0].task_name == "ner" and from_values(of_words)[0].entry is None
    flags = ["--train_file=a.csv", "--label_column=mood", "--text_column={story} mood:", "--output_dir=o"]
    flags += ['--labels=["glad", "sad"]', "--metric_names", "accuracy", "f1", "--model_name_or_path=m", "--do_predict"]
    arguments, _ = from_command_line([*flags, "--test_file=b.csv"])
    assert arguments.labels == ["glad", "sad"] and arguments.metrics == ("accuracy", "f1")
    assert arguments.do_predict and not arguments.do_train and arguments.label_column_name == "mood"


def test_summaries_are_measured_by_rouge_as_their_script_does():
    keys = {"model_name_or_path": "m", "output_dir": "o", "train_file": "a.csv", "text_column": "text"}
    assert script_keys.from_values(keys | {"summary_column": "summary"})[0].metrics == ("rouge",)
    assert script_keys.from_values(keys | {"label_column": "summary"})[0].metrics is None
    own = {"summary_column": "summary", "metric_names": "bleu"}
    assert script_keys.from_values(keys | own)[0].metrics == ("bleu",)


def test_languages_may_have_a_country():
    keys = {"output_dir": "o", "model_name_or_path": "m", "train_file": "t.json", "source_lang": "ru_RU"}
    assert from_values(keys | {"target_lang": "uk"})[0].languages == ("ru", "uk")


@pytest.mark.parametrize(("period", "expected"), [("epoch", ("epoch", 500)), ("20", ("steps", 20))])
def test_keys_of_the_scripts_without_a_trainer(period, expected):
    keys = {"output_dir": "o", "model_name_or_path": "m", "train_file": "t.txt", "script": "run_mlm_no_trainer.py"}
    given = {"max_train_steps": "20", "num_warmup_steps": 10, "checkpointing_steps": period, "with_tracking": True}
    arguments, _ = from_values(keys | given)
    assert (arguments.max_steps, arguments.warmup_steps) == (20, 10)
    assert (arguments.save_strategy, arguments.save_steps) == expected


@pytest.mark.parametrize("strategy", ["steps", "epoch", "no"])
def test_a_strategy_of_evaluation_asks_for_evaluation(strategy):
    keys = {"output_dir": "o", "model_name_or_path": "m", "train_file": "t.txt", "do_train": True}
    assert from_values(keys | {"eval_strategy": strategy})[0].do_eval == (strategy != "no")
    assert from_values(keys | {"evaluation_strategy": strategy, "do_eval": False})[0].do_eval == (strategy != "no")


def test_a_dump_of_all_keys_gets_one_line_for_those_without_effect():
    few, many = (dict.fromkeys(list(other_keys.WITHOUT_EFFECT)[:count], "x") for count in (10, 12))
    assert "more keys" not in str(from_values(EXAMPLE | few)[1])
    first = ", ".join(few)
    assert from_values(EXAMPLE | many)[1] == [
        f"Without effect: {first} and 2 more keys; docs/run_keys.md has the reasons."
    ]


def test_a_data_set_is_read_before_files(tmp_path):
    """As in the scripts, whose first branch is that of dataset_name."""
    keys = {"output_dir": "o", "model_name_or_path": "m", "dataset_name": "wikitext", "train_file": "a.txt"}
    arguments, notes = from_values(keys | {"validation_file": "b.txt"})
    assert (arguments.dataset_name, arguments.train_file, arguments.validation_file) == ("wikitext", None, None)
    assert notes == [
        "Without effect: train_file, validation_file (dataset_name is given, and is read, as in the scripts)."
    ]
    arguments, notes = from_values(keys | {"benchmark": "glue", "dataset_name": "sst2"})
    assert (arguments.train_file, notes) == ("a.txt", [])


@pytest.mark.parametrize(("name", "value"), [("lang", "en_XX"), ("forced_bos_token", "en_XX")])
def test_keys_of_other_tokenizers_are_named(name, value):
    keys = {"output_dir": "o", "model_name_or_path": "m", "train_file": "a.txt", name: value}
    _, (note,) = from_values(keys)
    assert note.startswith(f"Without effect: {name} (")
