"""mmBERT's folder on the hub, small: ModernBERT's class with the kind of tokenizer that Gemma 2 has."""

import json
import os
import sys

import numpy as np
import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from convert.compare import encoder_outputs
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from tasks.vocabularies import TokenizerVocabulary
from tests.convert.encoders import conftest

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
# Gemma's tags of HTML are added tokens that are not special.
TAGS = ("<s>", "</s>")
# As the hub's, but for the sizes.
CONFIG = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 1,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 1,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 24,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 36,
    "layer_norm_eps": 1e-05,
    "local_attention": 8,
    "local_rope_theta": 160000,
    "mask_token_id": 4,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 3,
    "num_hidden_layers": 4,
    "pad_token_id": 0,
    "position_embedding_type": "sans_pos",
    "repad_logits_with_grad": False,
    "sep_token_id": 1,
    "sparse_pred_ignore_index": -100,
    "sparse_prediction": False,
    "torch_dtype": "float32",
}
TEXT = "a ab  <s>b</s> é"


def write_tokenizer(folder):
    """BPE on text whose blanks are ▁, with bytes for what has no piece."""
    pieces = [*SPECIAL, *TAGS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁a", "▁ab", "▁▁"]
    merges = [("a", "b"), ("▁", "a"), ("▁", "ab"), ("▁", "▁")]
    bpe = models.BPE(
        {piece: id_ for id_, piece in enumerate(pieces)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in TAGS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> $B <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {role: f"<{role.removesuffix('_token')}>" for role in ("bos_token", "eos_token", "mask_token", "pad_token")}
    flags = ("lstrip", "normalized", "rstrip", "single_word")
    decoder = {
        str(id_): {"content": token, "special": id_ < len(SPECIAL), **dict.fromkeys(flags, False)}
        for id_, token in enumerate((*SPECIAL, *TAGS))
    }
    settings = {"unk_token": "<unk>", "cls_token": "<bos>", "sep_token": "<eos>", "add_prefix_space": None}
    settings |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 8192,
        "added_tokens_decoder": decoder,
    }
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(named | settings))
    return len(pieces)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, checks_in_forks):
    folder = tmp_path_factory.mktemp("mmbert") / "hub"
    folder.mkdir()
    content = CONFIG | {"vocab_size": write_tokenizer(folder) + 4}
    request = folder.parent / "request.json"
    request.write_text(json.dumps({"version": "4", "new": [["ModernBertForMaskedLM", content, str(folder)]]}))
    command = [sys.executable, "-m", "tests.convert.encoders.run_in_transformers", str(request)]
    done = checks_in_forks(command, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def test_the_folder_comes_in_and_goes_out(folder, tmp_path):
    checkpoint = from_hf(folder, tmp_path / "run")
    report = json.loads((checkpoint / "conversion_report.json").read_text())
    found = conftest.largest(report, "orbax")
    assert found.keys() == {"PyTorch", "NumPy"} and max(found.values()) < 1e-5
    model = any_format.open_model(checkpoint)
    config = model.config
    assert (config.rotary_base, config.local_rotary_base, config.global_attention_every) == (160_000, 160_000, 3)

    vocabulary = TokenizerVocabulary(str(tmp_path / "run/tokenizer.json"))
    ids = (vocabulary.pad_id, vocabulary.eos_id, vocabulary.cls_id, vocabulary.unk_id, vocabulary.mask_id)
    assert ids == (0, 1, 2, 3, 4)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)(TEXT).input_ids
    assert theirs[0] == 2 and theirs[-1] == 1 and {5, 6} < {*theirs}
    assert vocabulary.encode(TEXT) == theirs[1:-1]

    to_hf(checkpoint, tmp_path / "export")
    before, after = (json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "export"))
    kept = ("pad_token_id", "eos_token_id", "sep_token_id", "bos_token_id", "global_rope_theta", "local_rope_theta")
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "export")(TEXT).input_ids == theirs
    tokens = np.array([[2, 7, 8, 4, 1, 0]], np.int32)
    logits = [
        encoder_outputs.limba_logits(any_format.open_model(place), {"tokens": tokens, "token_types": tokens * 0})
        for place in (folder, tmp_path / "export")
    ]
    np.testing.assert_array_equal(*logits)
