"""Each key of config.json is carried, without effect or refused by name, for T5s and encoders alike."""

import json
import os
import sys

import pytest

from convert.families.config_files import encoder_config, new_network, t5_config
from convert.families.config_keys import keys, t5_keys
from convert.families.table import encoder_families, of_model_type
from convert.from_hf import from_hf
from convert.model_files.model import ModelHints
from limba.addons.run import starting_model
from tests.convert import config_keys_page

T5 = {"model_type": "t5", "vocab_size": 384, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": 1}
BERT = {"model_type": "bert", "vocab_size": 64, "hidden_size": 24, "num_hidden_layers": 2} | {
    "num_attention_heads": 3,
    "intermediate_size": 20,
}


@pytest.fixture
def read(tmp_path):
    """Reads a config.json with these keys, as the command does."""

    def read_(content, ignored=(), generation=None):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(content))
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        if content["model_type"] in ("t5", "mt5", "umt5"):
            return t5_config.network_config(file, t5_config.read(file, ignored))
        return encoder_config.read(file, ignored).network

    return read_


def test_the_page_is_that_of_the_tables():
    assert config_keys_page.FILE.read_text("utf-8") == config_keys_page.page(), (
        "write it with `python -m tests.convert.config_keys_page`"
    )


# ------------------------------------------------------- what passes --------------------------------------------------

_DUMP = """
import json, os
os.environ["USE_TF"] = "0"
import transformers
names = ("T5", "MT5", "UMT5", "Bert", "RobertaPreLayerNorm", "MPNet", "RoFormer", "ModernBert", "DistilBert")
names += ("EuroBert", "NomicBert", "Generation")
classes = {name: getattr(transformers, f"{name}Config", None) for name in names}
print(json.dumps({name: found().to_dict() for name, found in classes.items() if found}, default=str))
"""


@pytest.mark.parametrize("version", [4, 5])
def test_what_transformers_writes_passes(version, forks5, checks_in_forks):
    if version == 4:
        done = checks_in_forks([sys.executable, "-c", _DUMP], env=dict(os.environ))
    else:
        done = forks5.run("-c", _DUMP)
    assert done.returncode == 0, done.stderr[-3000:]
    written = json.loads(done.stdout.splitlines()[-1])
    for name, content in written.items():
        if name == "Generation":
            assert [*keys.left_out("", content, t5_keys.GENERATION_KEYS, ())] == []
            continue
        known = of_model_type(content["model_type"]).keys
        keys.check(name, content, known)
        assert len(content) > 25 and [*keys.left_out(name, content, known, ())] == []


# Keys of files on the hub, as older versions of transformers and other programs wrote them.
ON_THE_HUB = [
    T5
    | {"architectures": ["T5WithLMHeadModel"], "n_positions": 512, "output_past": True, "prefix": "summarize: "}
    | {"task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}}, "torch_dtype": "float16"},
    T5 | {"model_type": "umt5", "scalable_attention": True, "tokenizer_class": "T5Tokenizer", "is_gated_act": True},
    T5 | {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True, "is_decoder": False},
    T5 | {"adapters": {"adapters": {}, "config_map": {}, "fusion_config_map": {}, "fusions": {}}, "pruned_heads": {}},
    T5 | {"hidden_size": 16, "num_hidden_layers": 1, "bos_token_id": 2, "eos_token_id": [1], "auto_map": None},
    BERT | {"directionality": "bidi", "pooler_type": "first_token_transform", "pooler_fc_size": 768, "_num_labels": 5},
    BERT | {"transformers.js_config": {"dtype": "q8"}, "sentence_transformers": {"version": "4.1.0"}},
    BERT | {"model_type": "mpnet", "layer_norm_eps": 1e-5, "tokenizer_class": "MPNetTokenizer", "finetuning_task": "x"},
    BERT
    | {"model_type": "modernbert", "position_embedding_type": "absolute", "layer_norm_eps": 1e-5, "pad_token_id": 3}
    | {"reference_compile": False, "sparse_prediction": True, "deterministic_flash_attn": False, "mlp_dropout": 0.1},
]


@pytest.mark.parametrize("content", ON_THE_HUB, ids=range(len(ON_THE_HUB)))
def test_keys_of_the_hub_pass(read, content):
    assert read(content).vocab_size == content["vocab_size"]


def test_other_names_of_the_sizes_are_carried(read):
    renamed = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
    kept = {key: x for key, x in T5.items() if key not in ("d_model", "num_layers", "num_heads", "d_kv")}
    assert read(kept | renamed | {"num_decoder_layers": 1}) == read(T5)


# ------------------------------------------------------ what is refused -----------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (T5 | {"num_memory_tokens": 20}, "num_memory_tokens is 20; t5-experiments' learned vectors before the inputs"),
        (T5 | {"num_cdq_heads": 6}, "num_cdq_heads is 6; heads of t5-experiments' T5CDQAttention"),
        (T5 | {"is_decoder": True}, "is_decoder is True; a decoder on its own"),
        (T5 | {"tie_encoder_decoder": True}, "tie_encoder_decoder is True; encoder and decoder share their layers"),
        (T5 | {"pruned_heads": {"0": [1]}}, "pruned_heads is a table of 1; some layers have fewer heads"),
        (T5 | {"quantization_config": {"bits": 4}}, "quantization_config is .*; the weights are quantized"),
        (T5 | {"auto_map": {"AutoModel": "m.M"}}, "auto_map is .*; the class is code of its repository"),
        (T5 | {"adapters": {"adapters": {"x": 1}}}, "adapters is .*; layers of the library adapters"),
        (T5 | {"is_encoder_decoder": False}, "is_encoder_decoder is False; without it there is no decoder"),
        (T5 | {"pad_token_id": 10**6}, "pad_token_id is 1000000, and vocab_size"),
        (T5 | {"eos_token_id": 10**6}, "eos_token_id is 1000000, and vocab_size"),
        (T5 | {"eos_token_id": [1, 7]}, "eos_token_id is a list of 2; Limba has one"),
        (T5 | {"layer_norm_epsilon": 1e-5}, "layer_norm_epsilon is 1e-05; Limba's T5 has 1e-06"),
        (T5 | {"hidden_size": 32}, "hidden_size is 32 and d_model 16; they mean the same"),
        (T5 | {"feed_forward_proj": "gated-gelu", "dense_act_fn": "silu"}, "dense_act_fn is 'silu', and feed_forward"),
        (T5 | {"is_gated_act": True}, "is_gated_act is True, and feed_forward_proj 'relu' means False"),
        (BERT | {"add_cross_attention": True}, "add_cross_attention is True; attention to another model"),
        (BERT | {"pre_layer_norm": True}, "pre_layer_norm is True; another network, of t5-experiments"),
        (BERT | {"sparse_attention": {"block": 16}}, "sparse_attention is a table of 1; another network"),
        (BERT | {"model_type": "modernbert", "rope_theta": 5e5, "pad_token_id": 0}, "rope_theta is 500000.0; "),
        (BERT | {"model_type": "mpnet", "quantization_config": {"bits": 8}}, "quantization_config is a table of 1;"),
    ],
)
def test_a_key_that_makes_another_network_is_refused_by_name(read, tmp_path, content, words):
    with pytest.raises(ValueError, match=words) as error:
        read(content)
    assert str(error.value).startswith(f"{tmp_path / 'config.json'}: ")


@pytest.mark.parametrize(
    "model_type", ["t5", "mt5", "umt5", *(family.model_type for family in encoder_families().values())]
)
def test_an_unknown_key_is_named_with_its_value_and_the_remedy(read, tmp_path, model_type):
    of_t5 = model_type in ("t5", "mt5", "umt5")
    content = (T5 if of_t5 else BERT) | {"model_type": model_type, "num_experts": 8, "layerdrop": 0.5, "nothing": None}
    if not of_t5:
        content["pad_token_id"] = 1 if model_type == "mpnet" else 0
        content["intermediate_size"] = None if model_type == "distilbert" else 20
    if model_type == "deberta-v2":  # by default it is version 2
        content |= {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
        content |= {"position_biased_input": False, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4}
    with pytest.raises(ValueError, match="num_experts") as error:
        read(content)
    assert str(error.value) == (
        f"{tmp_path / 'config.json'}: num_experts is 8, layerdrop is 0.5. Limba does not know these, which may make "
        "another network. If you are sure that nothing of the model depends on it, give --ignore_config_keys "
        "num_experts,layerdrop."
    )
    assert read(content, ("num_experts", "layerdrop")) == read(
        {key: x for key, x in content.items() if key not in ("num_experts", "layerdrop")}
    )


def test_a_misspelled_key_names_the_nearest(read):
    with pytest.raises(
        ValueError, match=r"num_decoder_layer is 2 \(the nearest that Limba knows is num_decoder_layers"
    ):
        read(T5 | {"num_decoder_layer": 2})


def test_what_is_carried_cannot_be_ignored(read):
    with pytest.raises(ValueError, match=r"--ignore_config_keys d_ff: this key counts \(mlp_dim\); change it in "):
        read(T5, ("d_ff",))


def test_keys_of_t5_experiments_are_carried_from_scratch_alone(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(BERT | {"pre_layer_norm": True, "num_experts": 2}))
    with pytest.raises(ValueError, match="num_experts is 2"):
        new_network.read_network(file)
    assert new_network.read_network(file, ("num_experts",)).config.norm_position == "pre"


# ------------------------------------------------------- the commands -------------------------------------------------


def test_from_hf_and_run_refuse_before_anything_is_written(tmp_path):
    file = tmp_path / "model/config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(T5 | {"num_memory_tokens": 20, "num_experts": 2}))
    with pytest.raises(ValueError, match="num_memory_tokens is 20"):
        from_hf(file, tmp_path / "out")
    with pytest.raises(ValueError, match="num_memory_tokens is 20"):
        starting_model.open_model(None, str(file), None)
    with pytest.raises(ValueError, match="num_experts is 2"):
        starting_model.open_model(None, str(file), None, ignored=("num_memory_tokens",))
    assert not (tmp_path / "out").exists()
    from_hf(file, tmp_path / "out", hints=ModelHints(ignore_config_keys=("num_memory_tokens", "num_experts")))
    assert "emb_dim = 16" in (tmp_path / "out/model.gin").read_text()


@pytest.mark.parametrize(
    "content",
    [
        T5 | {"task_specific_params": {"summarization": {"prefix": "summarize: "}}},
        T5 | {"n_positions": 2048},
        T5 | {"classifier_dropout": 0.2},
        BERT | {"classifier_dropout": 0.2},
        BERT | {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        BERT | {"model_type": "modernbert", "mlp_dropout": 0.2},
    ],
    ids=lambda content: [*content][-1],
)
def test_a_setting_that_an_export_will_not_have_is_named(content):
    *_, (key, value) = content.items()
    (note,) = keys.left_out("config.json", content, of_model_type(content["model_type"]).keys, ())
    shown = "a table of 1" if isinstance(value, dict) else repr(value)
    assert note.startswith(f"Not carried from config.json: {key} {shown} (")


def test_what_is_left_out_is_said(tmp_path, capsys):
    file = tmp_path / "model/config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(T5 | {"num_beams": 4, "initializer_factor": 0.5, "top_k": 50, "prefix": "en: "}))
    generation = {"length_penalty": 2.0, "num_beams": 1, "my_own": 3}
    (file.parent / "generation_config.json").write_text(json.dumps(generation))
    from_hf(file.parent, tmp_path / "out")
    assert capsys.readouterr().err.splitlines() == [
        f"note: Not carried from {file}: num_beams 4 (a setting of `generate`: Limba's decoding has its own "
        "(docs/decoding.md)).",
        f"note: Not carried from {file}: initializer_factor 0.5 (of new weights: Limba draws them as T5X does).",
        f"note: Not carried from {file}: prefix 'en: ' (a setting of a pipeline, or of another library).",
        f"note: Not carried from {file.parent}/generation_config.json: length_penalty 2.0 (a setting of `generate`: "
        "Limba's decoding has its own (docs/decoding.md)).",
        f"note: Not carried from {file.parent}/generation_config.json: my_own 3 (Limba does not know it).",
    ]
