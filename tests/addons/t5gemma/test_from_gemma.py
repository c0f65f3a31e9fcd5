"""An encoder-decoder from Gemma's decoder: without what the encoder says, its decoder computes what Gemma does."""

import json

import numpy as np
import pytest
import torch
import transformers
from flax import traverse_util

from convert.families import networks
from convert.model_files import any_format
from limba.addons.t5gemma.from_gemma import from_gemma
from limba.network.t5 import Transformer
from tasks import objectives
from tasks.pretraining import denoising
from tasks.registry import Feature
from tasks.vocabularies import T5TokenizerVocabulary
from tests.addons.t5gemma import hub_gemmas
from tests.limba import small

SIZES = {
    "vocab_size": 280,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "sliding_window": 4,
    "query_pre_attn_scalar": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "attn_implementation": "eager",  # which has the soft caps
}


def _save(folder, name, **settings):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **settings)
    model = getattr(transformers, name.replace("Text", "") + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.save_pretrained(folder)
    hub_gemmas.write_tokenizer(folder)
    return model


@pytest.mark.parametrize(
    ("name", "settings", "family"),
    [
        ("Gemma2", {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 6.0, "rope_theta": 300.0}, "t5gemma"),
        ("Gemma3Text", {"rope_theta": 900.0, "rope_local_base_freq": 50.0}, "t5gemma2"),
    ],
)
def test_the_decoder_alone_is_gemma(name, settings, family, tmp_path):
    gemma = _save(tmp_path / "gemma", name, **settings)
    opened = any_format.open_model(from_gemma(tmp_path / "gemma", tmp_path / "run", verify=family == "t5gemma2"))
    assert opened.family.name == family
    tensors = {name: np.asarray(tensor) for name, tensor in opened.tensors.items()}
    attention = ("encoder/layers_2/attention", "decoder/layers_2/self_attention")
    if family == "t5gemma":
        attention = (*attention, "decoder/layers_2/encoder_decoder_attention")
        for layer in range(3):  # Attention to the encoder adds nothing: its norm multiplies by 1 - 1.
            tensors[f"decoder/layers_{layer}/post_cross_attention_layer_norm/scale"] -= (
                1 + tensors[f"decoder/layers_{layer}/post_cross_attention_layer_norm/scale"]
            )
    for module in attention:
        theirs = gemma.model.layers[2].self_attn.k_proj.weight.detach().numpy().T
        np.testing.assert_array_equal(tensors[f"{module}/key/kernel"], theirs)
    tokens = np.random.default_rng(0).integers(6, 280, (2, 9), np.int32)
    tokens[:, 0] = 2  # <bos>, which the decoder begins with
    inputs = np.zeros((2, 5), np.int32)  # padding, which nothing attends to
    params = traverse_util.unflatten_dict(tensors, sep="/")
    ours = small.call(Transformer(networks.plain(opened.config)), params, inputs, tokens, tokens)
    with torch.no_grad():
        theirs = gemma(input_ids=torch.tensor(tokens, dtype=torch.long)).logits.numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_its_tokenizer_serves_a_prefix_lm_and_no_span_corruption(tmp_path):
    hub_gemmas.write_tokenizer(tmp_path)
    vocabulary = T5TokenizerVocabulary(str(tmp_path / "tokenizer.json"))
    features, lengths = {"inputs": Feature(vocabulary), "targets": Feature(vocabulary)}, {"inputs": 8, "targets": 8}
    denoising.Denoise(objectives.PrefixLM()).check(features, lengths)
    with pytest.raises(ValueError, match="has no token <extra_id_0>, and masked spans need sentinels"):
        denoising.Denoise(objectives.SpanCorruption()).check(features, lengths)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"model_type": "gemma"}, "model_type is 'gemma': Gemma 1 has no norms behind blocks"),
        ({"model_type": "gemma2", "tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"model_type": "gemma2", "attention_bias": True}, "attention_bias is True"),
    ],
)
def test_another_decoder_is_refused_by_its_key(content, words, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=words):
        from_gemma(tmp_path, tmp_path / "run")
