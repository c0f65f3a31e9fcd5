"""`limba run` with an encoder: t5-experiments' keys and configurations, and a BERT of transformers."""

import json

import gin
import numpy as np
import pytest

from convert.families.config_files import new_network
from convert.model_files import encoder_vocabularies
from convert.model_files.hf import tokenizer_folder
from convert.model_files.model import ModelHints
from limba.addons.block_sparse.block_layout import BigBirdSparsityConfig
from limba.addons.run import command, gin_text
from limba.addons.run.keys import script_keys
from tests.addons.run.plans import plan_of
from tests.convert.encoders.conftest import SPECIAL_TOKENS, write_tokenizer
from tests.limba.gin_lines import lines_of

pytestmark = pytest.mark.usefixtures("without_checks")

BERT = {
    "model_type": "bert",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "vocab_size": 128,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
}
# Of bert_base_uncased-4L_preln_rel.json and …_preln_sparse_rope.json.
BUCKETS = {
    "pre_layer_norm": True,
    "position_embedding_type": "relative_attention_bias",
    "relative_attention_num_buckets": 16,
    "relative_last_bucket_distance": 64,
}
SPARSE = {
    "sparse_config_cls": "deepspeed.ops.sparse_attention:BigBirdSparsityConfig",
    "sparse_attention": {"num_heads": 2, "block": 8, "different_layout_per_head": True, "num_sliding_window_blocks": 1},
}
ROTARY = {"pre_layer_norm": True, "position_embedding_type": "rotary", "rotary_dim": 4, "rotary_base": 500}


def _network(tmp_path, **changes):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**BERT, **changes}))
    return new_network.read_network(file)


def test_configurations_of_t5_experiments(tmp_path):
    config, _, name = _network(tmp_path)
    assert name == "bert" and config.position_embedding_type == "absolute" and config.norm_position == "post"
    config, _, name = _network(tmp_path, **BUCKETS)
    assert (name, config.position_embedding_type, config.norm_position) == ("t5-experiments", "t5_buckets", "pre")
    assert (config.num_buckets, config.max_distance, config.attention_dropout_rate) == (16, 64, 0.1)
    config, _, _ = _network(tmp_path, **ROTARY)
    assert (config.position_embedding_type, config.rotary_pairs) == ("rotary", "halves")
    assert (config.rotary_dim, config.rotary_base) == (4, 500.0)
    config, _, _ = _network(tmp_path, position_embedding_type="rotary")
    assert (config.norm_position, config.rotary_dim, config.rotary_base) == ("post", 8, 10_000.0)
    assert config.sparse_attention is None
    config, _, _ = _network(tmp_path, **ROTARY, **SPARSE)
    layout = BigBirdSparsityConfig(num_heads=2, block=8, different_layout_per_head=True, num_sliding_window_blocks=1)
    assert config.sparse_attention == layout and config.rotary_dim == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({**BUCKETS, "last_layer_norm": False}, "last_layer_norm is False with pre_layer_norm true"),
        ({**BUCKETS, "pad_token_id": 3}, "pad_token_id is 3"),
        ({**BUCKETS, "relative_attention_num_buckets": 7}, "num_buckets is 7"),
        ({**ROTARY, "rotary_dim": 9}, "rotary_dim is 9"),
        ({**SPARSE, "sparse_config_cls": "x:FixedSparsityConfig"}, "FixedSparsityConfig'; Limba has BigBird"),
        ({**SPARSE, "sparse_attention": {"horizontal_global": True}}, "sparse_attention has 'horizontal_global'"),
        ({**SPARSE, "sparse_attention": {"num_heads": 3}}, "num_heads is 3"),
        ({**ROTARY, "position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
    ],
)
def test_what_limba_does_not_have_is_refused_by_its_key(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        _network(tmp_path, **changes)


def test_the_padding_of_a_new_network_becomes_0(tmp_path):
    other = write_tokenizer(tmp_path / "tokenizer.json", [*SPECIAL_TOKENS[1:], SPECIAL_TOKENS[0]])
    found, was = encoder_vocabularies.of_new_network(tmp_path / "config.json", ModelHints())
    assert tokenizer_folder.special_ids(other) == {"unk": 0, "cls": 1, "sep": 2, "mask": 3, "pad": 4}
    assert was == 4
    assert tokenizer_folder.special_ids(found) == {"unk": 4, "cls": 1, "sep": 2, "mask": 3, "pad": 0}
    with pytest.raises(FileNotFoundError, match="limba vocab build --kind wordpiece"):
        encoder_vocabularies.of_new_network(tmp_path / "config.json", ModelHints(vocab=str(tmp_path / "none")))
    other.unlink()
    assert encoder_vocabularies.of_new_network(tmp_path / "config.json", ModelHints()) is None


SEED = {
    "data_path": "corpus",
    "model_path": "out",
    "model_cfg": "bert.json",
    "tokenizer": "vocab",
    "iters": 100,
    "batch_size": 16,
    "save_interval": 50,
    "valid_interval": 25,
    "log_interval": 25,
    "lr": 3e-4,
    "lr_scheduler": "constant_with_warmup",
    "num_warmup_steps": 50,
    "data_n_epochs": 1,
}


def test_flags_of_t5_experiments():
    arguments, notes = script_keys.from_values(
        SEED
        | {"use_nsp": 0, "mlm_prob": 0.2, "save_best": True, "optimize_metric": "accuracy", "optimize_mode": "max"}
        | {"model_cls": "modeling_bert:BertForPreTraining", "reset_optimizer": True, "early_stopping_patience": 3}
        | {"use_lr_drop": True, "lr_drop_patience": 1, "lr_drop_min_lr": 7.5e-5, "num_training_steps": 200}
        | {"optimizer_parameters": {"weight_decay": 0.5}, "optimizer": "AdamW", "clip_grad_value": 2}
    )
    assert sorted(note.split()[2] for note in notes) == ["a", "model_cls", "reset_optimizer"]
    assert (arguments.max_steps, arguments.mlm_probability, arguments.weight_decay) == (100, 0.2, 0.5)
    assert (arguments.tokenizer_name, arguments.config_name, arguments.best_mode) == ("vocab", "bert.json", "max")
    assert arguments.measured == ("training_eval", "accuracy")
    assert lines_of(gin_text._best_checkpoints(plan_of(arguments)))[1:] == [
        "checkpoints.SaveBestCheckpointer:",
        "  metric_name_to_monitor = 'training_eval/t/accuracy'",
        "  metric_mode = 'max'",
    ]
    assert lines_of(gin_text._actions(plan_of(arguments))) == [
        "train_script.train.actions = {'TRAIN_EVAL': [@actions.StopOnPlateauAction(), @actions.DropOnPlateauAction()]}",
        "actions.StopOnPlateauAction:",
        *("  metric = ('t', 'accuracy')", "  mode = 'max'", "  patience = 3"),
        "actions.DropOnPlateauAction:",
        *("  metric = ('t', 'accuracy')", "  mode = 'max'", "  factor = 0.1", "  rtol = 0.0001"),
        *("  patience = 2", "  min_scale = 0.25"),
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"apex_opt_lvl": "O2"}, "apex_opt_lvl is 'O2': .* write bf16"),
        ({"use_nsp": 2}, "use_nsp is 2; it must be true or false"),
        ({"skip_used_data": True}, "skip_used_data is True"),
        ({"optimize_mode": "most"}, "optimize_mode is 'most'; use min or max"),
        ({"optimizer_parameters": {"lr": 1}}, "lr is given twice"),
        ({"optimizer_parameters": {"beta": 1}}, "no key 'beta'"),
        ({"save_best": True, "save_interval": 40}, "save_steps is 40, .* multiple of eval_steps, 25"),
        ({"save_best": True, "do_train": True}, "load_best_model_at_end is True, .* set do_eval"),
        ({"use_lr_drop": True, "lr_drop_factor": 2}, "lr_drop_factor is 2.0"),
        ({"use_lr_drop": True, "lr_drop_min_lr": 1}, "lr_drop_min_lr is 1.0; it must be below learning_rate"),
        ({"task": "bert"}, "task is 'bert'; use span_corruption or prefix_lm"),
        ({"clip_grad_value": 1, "optimizer": "Adafactor"}, "clip_grad_value is 1.0, and Adafactor"),
    ],
)
def test_a_flag_that_cannot_be_honoured_says_why(changes, words):
    with pytest.raises(ValueError, match=words):
        script_keys.from_values(SEED | changes)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    write_tokenizer(root / "tokenizer.json", SPECIAL_TOKENS)
    (root / "corpus").mkdir()
    words = np.random.default_rng(0).integers(5, 60, (300, 30))
    (root / "corpus" / "train.jsonl").write_text(
        "".join(json.dumps({"text": " ".join(f"w{x}" for x in row)}) + "\n" for row in words)
    )
    (root / "config.json").write_text(json.dumps(BERT))
    (root / "buckets").mkdir()
    (root / "buckets" / "config.json").write_text(json.dumps({**BERT, **BUCKETS}))
    (root / "sparse").mkdir()
    (root / "sparse" / "config.json").write_text(json.dumps({**BERT, **ROTARY, **SPARSE}))
    yield root
    gin.clear_config()


def _run(root, *flags, corpus="corpus"):
    gin.clear_config()
    given = ["--data_path", root / corpus, "--tokenizer", root, "--input_seq_len", 32]
    return command.main([str(x) for x in (*given, *flags)])


@pytest.mark.slow
def test_the_sparse_configuration_of_t5_experiments_is_trained_and_stays(here, capsys):
    (here / "other_corpus").mkdir()  # A corpus of the same name with another vocabulary would be another task.
    (here / "other_corpus" / "train.jsonl").write_bytes((here / "corpus" / "train.jsonl").read_bytes())
    flags = ["--model_path", here / "blocks", "--model_cfg", here / "sparse", "--batch_size", 1, "--iters", 1]
    flags += ["--optimizer", "Adafactor", "--lr", 1e-3, "--scale_parameter"]
    assert _run(here, *flags, corpus="other_corpus") == 0
    out = here / "blocks"
    assert "is the trained model. No class of Hugging Face holds this encoder" in capsys.readouterr().out
    recorded = json.loads((out / "run" / "checkpoint_1" / "run" / "run.json").read_text())["network"]
    assert recorded["sparse_attention"]["block"] == 8 and recorded["norm_position"] == "pre"
    assert json.loads((out / "all_results.json").read_text())["step"] == 1


def test_a_network_without_a_class_is_said_to_stay(here, caplog, capsys, monkeypatch):
    assert (
        _run(
            here,
            "--model_path",
            here / "other",
            "--model_cfg",
            here / "buckets",
            "--iters",
            1,
            "--dry_run",
            "--whole_word_mask",
        )
        == 0
    )
    text = capsys.readouterr().out
    assert "  whole_words = True\n" in text and "objective = @objectives.MaskedLM()" in text
    assert "encoder.EncoderConfig.attention_dropout_rate = 0.1\n" in text
    assert "pairs" not in text
    assert "MPNetForMaskedLM" in caplog.text and "norm_position is 'pre'" in caplog.text
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    with pytest.raises(ValueError, match=r"push_to_hub uploads an export. No class of Hugging Face"):
        _run(here, "--model_path", here / "other", "--model_cfg", here / "buckets", "--iters", 1, "--push_to_hub")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--label_column_name", "text", "--num_beams", "4"], "generation_num_beams is 4: an encoder generates nothin"),
        (["--task", "prefix_lm"], "task is 'prefix_lm', and .* is an encoder"),
    ],
)
def test_an_encoder_refuses_what_belongs_to_a_t5(here, flags, words):
    with pytest.raises(ValueError, match=words):
        _run(
            here, "--model_path", here / "other", "--model_cfg", here / "config.json", "--iters", 1, "--dry_run", *flags
        )


def test_indexed_tokens_are_refused(here):
    (here / "indexed.bin").touch()
    flags = ["--model_path", here / "other", "--model_cfg", here / "config.json", "--tokenizer", here, "--iters", 1]
    with pytest.raises(ValueError, match=r"indexed.bin holds tokens that Megatron"):
        command.main([str(x) for x in (*flags, "--data_path", here / "indexed", "--dry_run")])
