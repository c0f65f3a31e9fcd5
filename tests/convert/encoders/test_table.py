"""Which class holds a network, and what is refused by name."""

import json

import pytest

from convert.families.config_files import encoder_config
from convert.families.table import find_encoder
from convert.from_hf import from_hf
from convert.to_hf import to_hf
from limba.addons.block_sparse.block_layout import BigBirdSparsityConfig
from limba.network.encoders.config import EncoderConfig
from tests.convert.encoders.conftest import EURO, MODERN, NOMIC, ROTARY, SIZES, VARIANTS

CLASSES = {"relative_key_query": "bert", "t5_buckets": "mpnet"}


@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_has_its_class(name):
    config = EncoderConfig(**(SIZES | VARIANTS[name] | {"num_layers": 2}))
    assert find_encoder(config).name == CLASSES.get(name, name)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"norm_position": "pre", "position_embedding_type": "t5_buckets"},
            ["MPNetForMaskedLM", "norm_position is 'pre', and must be 'post'"],
        ),
        ({"norm": "rms_norm"}, ["BertForMaskedLM", "norm is 'rms_norm', and must be 'layer_norm'"]),
        (ROTARY | {"rotary_dim": 4}, ["RoFormerForMaskedLM", "rotary_dim is 4, and must be head_dim, 8"]),
        (ROTARY | {"rotary_base": 500.0}, ["RoFormerForMaskedLM", "rotary_base is 500.0, and must be 10000.0"]),
        (
            {"position_embedding_type": "t5_buckets", "num_token_types": 2},
            ["MPNetForMaskedLM", "num_token_types is 2, and must be 0"],
        ),
        ({"position_embedding_type": "t5_buckets", "max_distance": 64}, ["max_distance is 64, and must be 128"]),
        (MODERN | {"mlp_activations": ("gelu_erf",)}, ["ModernBertForMaskedLM", "must be a gated one"]),
        ({"num_kv_heads": 1}, ["BertForMaskedLM", "num_kv_heads is 1, and must be None"]),
        ({"logits_via_embedding": False}, ["BertForMaskedLM", "logits_via_embedding is False, and must be True"]),
        (EURO | {"rotary_dim": 4}, ["EuroBertForMaskedLM", "rotary_dim is 4, and must be head_dim, 6"]),
        (EURO | {"logits_bias": True}, ["EuroBertForMaskedLM", "logits_bias is True, and must be False"]),
        (NOMIC | {"mlp_activations": ("silu",)}, ["NomicBertForMaskedLM", "must be a gated one, ('silu', 'linear')"]),
        (NOMIC | {"attention_bias": True}, ["attention_bias is True, and must be False"]),
        (MODERN | {"first_attention_norm": True}, ["first_attention_norm is True, and must be False"]),
        ({"head_dim": 16}, ["num_heads * head_dim is 48, and must be emb_dim, 24"]),
        ({"head_activation": "relu"}, ["head_activation is 'relu', and must be 'gelu_erf'"]),
        (
            {"sparse_attention": BigBirdSparsityConfig()},
            ["BertForMaskedLM", "sparse_attention is set, and must be None", "BigBirdForMaskedLM", "both ends"],
        ),
        (ROTARY | {"sparse_attention": BigBirdSparsityConfig()}, ["RoFormerForMaskedLM", "sparse_attention is set"]),
        ({"mlp_activations": ("tanh",), "head_activation": "tanh"}, ["'tanh' has no name in Hugging Face"]),
    ],
)
def test_a_network_that_no_class_holds_is_refused_by_name(fields, words):
    with pytest.raises(ValueError, match="No class of Hugging Face holds this encoder") as error:
        find_encoder(EncoderConfig(**(SIZES | fields), num_layers=2))
    assert not [word for word in words if word not in str(error.value)], error.value


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"norm": "rms_norm"}, "norm is 'rms_norm'"),
        ({"sparse_attention": BigBirdSparsityConfig(block=8)}, "sparse_attention is set, and must be None"),
    ],
)
def test_a_refused_export_writes_nothing(new_encoder, tmp_path, fields, words):
    run = new_encoder(tmp_path / "run", num_layers=1, **fields)
    with pytest.raises(ValueError, match=words):
        to_hf(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_what_an_encoder_does_not_have_is_refused(new_encoder, tmp_path):
    run = new_encoder(tmp_path / "run", num_layers=1)
    with pytest.raises(ValueError, match=r"--format flax: .* BertForMaskedLM"):
        to_hf(run, tmp_path / "out", formats=("flax",))
    assert not (tmp_path / "out").exists()


BERT = {"model_type": "bert", "vocab_size": 64, "hidden_size": 24, "num_hidden_layers": 2} | {
    "num_attention_heads": 3,
    "intermediate_size": 20,
}

DEBERTA = {"model_type": "deberta-v2", "relative_attention": True, "share_att_key": True, "position_buckets": 8} | {
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "pos_att_type": ["p2c", "c2p"],
}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model_type": "roformer", "rotary_value": True}, "rotary_value is True"),
        ({"model_type": "roformer", "embedding_size": "12"}, "embedding_size is '12', which is not of the type"),
        ({"model_type": "deberta-v2"}, "relative_attention is not there; Limba has DeBERTa-v3, where it is True"),
        (DEBERTA | {"conv_kernel_size": 3}, "conv_kernel_size is 3; a convolution"),
        (DEBERTA | {"pos_att_type": ["c2p"]}, "pos_att_type is 'c2p'; Limba has DeBERTa-v3"),
        (DEBERTA | {"position_buckets": -1}, "position_buckets is -1; Limba has DeBERTa-v3"),
        ({"is_decoder": True}, "is_decoder is True"),
        (
            {"max_position_embeddings": 10**12},
            r"max_position_embeddings is 1000000000000, and no network has a number of 2\*\*31 or more",
        ),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'; Limba's encoders have gelu"),
        ({"num_attention_heads": 5}, "hidden_size is 24, which is not a multiple of num_attention_heads, 5"),
        ({"hidden_size": "24"}, "hidden_size is '24', which is not of the type"),
        ({"model_type": "roberta-prelayernorm", "pad_token_id": 600}, "max_position_embeddings is 512"),
        ({"model_type": "mpnet", "pad_token_id": 0}, "pad_token_id is 0, and MPNetForMaskedLM takes 1"),
        ({"model_type": "mpnet", "relative_attention_num_buckets": 16}, "relative_attention_num_buckets is 16"),
        (
            {"model_type": "distilbert", "intermediate_size": None, "dim": 32},
            "hidden_size is 24 and dim 32; they mean the same",
        ),
        ({"model_type": "eurobert", "head_dim": 6}, "head_dim is 6; Limba's encoders have 8"),
        ({"model_type": "eurobert", "rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"model_type": "eurobert", "num_key_value_heads": 2}, "EncoderConfig.num_kv_heads is 2, and each serves"),
        ({"model_type": "nomic_bert", "n_embd": 30}, "hidden_size is 24 and n_embd 30; they mean the same"),
        ({"model_type": "nomic_bert", "activation_function": "gelu"}, "activation_function is 'gelu'; Limba's"),
        ({"model_type": "nomic_bert", "prenorm": True}, "prenorm is True; another network, of Nomic's own program"),
        ({"model_type": "modernbert", "layer_types": ["sliding_attention"] * 2}, "layer_types is"),
        (
            {"model_type": "modernbert", "rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_type is 'yarn'",
        ),
        ({"model_type": "modernbert", "rope_parameters": {"full_attention": 5}}, "full_attention is 5, which is not"),
    ],
)
def test_a_config_that_limba_does_not_have_is_refused_by_name(content, words, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(BERT | content))
    with pytest.raises(ValueError, match=f"config.json: {words}"):
        encoder_config.read(file)


def test_a_config_alone_becomes_a_gin_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    written = from_hf(tmp_path / "config.json", tmp_path / "run").read_text()
    assert "  num_layers = 2\n" in written and "# Set VOCABULARY_FILE" in written
