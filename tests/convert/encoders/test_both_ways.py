"""Eleven classes of encoders, both ways: logits are those of transformers 4 and 5, whose pipeline fills a mask."""

import dataclasses
import json
import os
import re
import shutil
import sys

import gin
import numpy as np
import pytest

from convert.__main__ import main as convert_main
from convert.compare import encoder_outputs
from convert.families import heads, networks
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.tensors import weight_files
from limba.addons.run import starting_model
from limba.gin_config import gin_files
from limba.network.encoders import encoder
from tasks.vocabularies import TokenizerVocabulary
from tests.convert import recorded
from tests.convert.encoders import conftest

EXPORTED = conftest.VARIANTS
SIZES = {"vocab_size": 64, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 20, "num_hidden_layers": 2}
# Models as transformers itself makes them, with the padding that each has in most of its checkpoints.
NEW = {
    "bert": (
        "BertForMaskedLM",
        {"max_position_embeddings": 48, "layer_norm_eps": 0.01}
        | {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3},
    ),
    "roberta_prelayernorm": ("RobertaPreLayerNormForMaskedLM", {"max_position_embeddings": 50, "layer_norm_eps": 0.01}),
    "roberta": ("RobertaForMaskedLM", {"max_position_embeddings": 50, "layer_norm_eps": 0.01, "type_vocab_size": 1}),
    "xlm_roberta": ("XLMRobertaForMaskedLM", {"max_position_embeddings": 50, "layer_norm_eps": 0.01}),
    "camembert": ("CamembertForMaskedLM", {"max_position_embeddings": 50, "layer_norm_eps": 0.01}),
    "mpnet": ("MPNetForMaskedLM", {"max_position_embeddings": 50, "layer_norm_eps": 0.01}),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"max_position_embeddings": 48, "dim": 32, "n_heads": 4, "hidden_dim": 28, "intermediate_size": None}
        | {"dropout": 0.2, "attention_dropout": 0.3},
    ),
    "roformer": ("RoFormerForMaskedLM", {"max_position_embeddings": 48, "layer_norm_eps": 0.01, "embedding_size": 16}),
    "deberta_v2": (
        "DebertaV2ForMaskedLM",
        {"max_position_embeddings": 20, "layer_norm_eps": 0.01, "position_buckets": 8, "max_relative_positions": -1}
        | {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
        | {"position_biased_input": False, "pos_att_type": "p2c|c2p"},
    ),
    "electra": ("ElectraForMaskedLM", {"max_position_embeddings": 48, "layer_norm_eps": 0.01, "embedding_size": 24}),
    "modernbert": (
        "ModernBertForMaskedLM",
        {"local_attention": 8, "norm_eps": 0.01, "pad_token_id": 5}
        | {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    ),
    "headless": ("BertModel", {"max_position_embeddings": 48, "layer_norm_eps": 0.01}),
}
PADDINGS = {"roberta_prelayernorm": 1, "roberta": 1, "xlm_roberta": 1, "camembert": 1, "mpnet": 1, "modernbert": 5}


@pytest.mark.parametrize("name", conftest.VARIANTS)
def test_exports_give_the_logits_of_transformers_4_and_of_numpy(name, exported):
    folder, report = exported[name]
    assert ("since version 5" in (folder / "README.md").read_text()) == (name in conftest.OF_5_ALONE)
    found = conftest.largest(report, "safetensors")
    print(name, found)
    assert {"NumPy"} | ({"PyTorch"} if name not in conftest.OF_5_ALONE else set()) <= found.keys()
    assert max(found.values()) < 1e-5


@pytest.mark.parametrize("name", [name for name in conftest.VARIANTS if name not in conftest.OF_4_ALONE])
def test_exports_give_the_logits_of_transformers_5_and_fill_a_mask(name, exported, in_5):
    folder, _ = exported[name]
    inputs, model = conftest.batch(name, folder)
    order = conftest.exchange(model.pad_id)
    tokens = order[inputs["input_ids"]]
    types = inputs.get("token_type_ids", np.zeros_like(tokens))
    ours = encoder_outputs.limba_logits(model, {"tokens": tokens, "token_types": types})
    theirs = in_5[name]["logits"][..., order]
    assert np.abs(ours).max() > 1
    assert np.abs(ours - theirs)[tokens != 0].max() < 1e-5

    found = json.loads(str(in_5[name]["found"]))
    assert not found["lost"] and not found["extra"]
    # [CLS] w7 w9 [MASK] w6 [SEP], with this network's own likeliest token in the place of the mask.
    assert found["tokens"] == [2, 7, 9, 4, 6, 3] and found["pair"] == [2, 7, 3, 8, 3]
    row = np.zeros_like(tokens)
    row[0, :6] = found["tokens"]
    mine = encoder_outputs.limba_logits(model, {"tokens": row, "token_types": np.zeros_like(row)})
    assert order[int(found["answers"][0]["token"])] == mine[0, 3].argmax()


@pytest.mark.parametrize("name", ["roformer", "mpnet", "modernbert"])
def test_what_transformers_5_saves_again_comes_back(name, exported, in_5, tmp_path):
    folder, _ = exported[name]
    checkpoint = from_hf(f"{folder}_again", tmp_path / "back", verify=False)
    original, back = any_format.open_model(folder), any_format.open_model(checkpoint)
    assert original.tensors.keys() == back.tensors.keys()
    for path, tensor in original.tensors.items():
        np.testing.assert_array_equal(np.asarray(tensor), np.asarray(back.tensors[path]), err_msg=path)
    # At their ends, rotary bases come as floats and types as a list.
    assert back.config.rotary_base == original.config.rotary_base
    assert back.config.global_attention_every == original.config.global_attention_every


@pytest.fixture(scope="module")
def new_folders(tmp_path_factory, checks_in_forks):
    """Folders that transformers 4 made, with a tokenizer that has its padding where the class wants it."""
    home = tmp_path_factory.mktemp("new")
    new = [(cls, SIZES | settings, str(home / name)) for name, (cls, settings) in NEW.items()]
    (home / "request.json").write_text(json.dumps({"version": "4", "new": new}))
    command = [sys.executable, "-m", "tests.convert.encoders.run_in_transformers", str(home / "request.json")]
    done = checks_in_forks(command, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    for name in NEW:
        first = [*conftest.SPECIAL_TOKENS, "[X]"]
        padding = PADDINGS.get(name, 0)
        first[0], first[padding] = first[padding], first[0]
        conftest.write_tokenizer(home / name / "tokenizer.json", first)
        named = {f"{token[1:-1].lower()}_token": token for token in conftest.SPECIAL_TOKENS}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
        (home / name / "tokenizer_config.json").write_text(json.dumps(config))
    return home


@pytest.mark.parametrize("name", [name for name in NEW if name != "headless"])
def test_models_of_transformers_become_checkpoints_with_their_logits(name, new_folders, tmp_path):
    out = tmp_path / "run"
    checkpoint = from_hf(new_folders / name, out)
    report = json.loads((checkpoint / "conversion_report.json").read_text())
    found = conftest.largest(report, "orbax")
    print(name, found)
    assert found.keys() == {"PyTorch", "NumPy"} and max(found.values()) < 1e-5

    gin.clear_config()
    gin_files.parse_gin_flags([str(out / "model.gin")], [])
    module = gin.get_configurable(encoder.MaskedLanguageModel)()
    opened = any_format.open_model(checkpoint)
    assert module.config.dropout_rate == 0 and module.config.num_layers == 2
    same = dataclasses.replace(module.config, dtype="float32", dropout_rate=0.1, attention_dropout_rate=0.1)
    assert networks.shapes(same, opened.head) == {path: t.shape for path, t in opened.tensors.items()}
    # An export has the rates of the folder again: 0.2 and 0.3 of this BERT, 0 of a ModernBERT.
    of_folder = any_format.open_model(new_folders / name).config
    for rate in ("dropout_rate", "attention_dropout_rate"):
        assert getattr(opened.config, rate) == getattr(of_folder, rate)
    # Padding has its place, and its row, at 0.
    padding = PADDINGS.get(name, 0)
    ids = TokenizerVocabulary(str(out / "tokenizer.json")).tokenizer.get_vocab(with_added_tokens=True)
    other = {0: "[PAD]", 1: "[UNK]", 5: "[X]"}[padding]
    assert [ids[token] for token in ("[PAD]", "[CLS]", "[MASK]", "w7", other)] == [0, 2, 4, 7, padding]
    theirs = next(
        t for n, t in any_format.open_model(new_folders / name).folder.stored.items() if "word_em" in n or "tok_em" in n
    )
    assert np.array_equal(opened.tensors["token_embedder/embedding"], np.asarray(theirs)[conftest.exchange(padding)])


def test_an_encoder_without_its_head_gets_a_new_one(new_folders, tmp_path, capsys):
    checkpoint = from_hf(new_folders / "headless", tmp_path / "run")
    said = capsys.readouterr()
    assert "has no masked language model's head" in said.err and "bert.pooler.dense.weight" in said.out
    opened = any_format.open_model(checkpoint)
    assert np.asarray(opened.tensors["mlm_head/layer_norm/scale"]).tolist() == [1.0] * 24
    assert np.asarray(opened.tensors["mlm_head/dense/kernel"]).std() == pytest.approx(0.02, rel=0.2)
    assert not np.asarray(opened.tensors["mlm_head/bias"]).any()
    report = json.loads((checkpoint / "conversion_report.json").read_text())
    found = conftest.largest(report, "orbax")
    assert found.keys() == {"NumPy"} and max(found.values()) < 1e-5


def test_a_new_head_is_of_the_sizes_that_the_tensors_have(new_folders, tmp_path):
    folder = shutil.copytree(new_folders / "headless", tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 2 * 10**9}))  # Of 350 GB.
    with pytest.raises(ValueError, match=r"does not fit .*layer.0.output.dense.weight has shape \(24, "):
        any_format.open_model(folder)


def test_a_classifier_begins_with_the_pooler_of_an_encoder_without_its_head(new_folders):
    folder = new_folders / "headless"
    model = starting_model.open_model(str(folder), None, None).for_rows_with("SequenceClassifier")
    assert model.head == heads.OF_PAIRS and model.opened.folder.is_headless
    theirs = weight_files.open_tensors(folder, "safetensors")["pooler.dense.weight"]
    np.testing.assert_array_equal(
        np.asarray(model.opened.tensors["classifier_head/dense/kernel"]), np.asarray(theirs).T
    )
    assert model.opened.tensors["pair_head/kernel"].shape == (24, 2)
    assert model.head_fields("SequenceClassifier")["activation"] == "tanh"


def test_check_compares_a_checkpoint_with_its_export(exported, tmp_path, capsys):
    folder, _ = exported["roformer"]
    # The inputs and outputs of other tests lie there, too.
    export = shutil.copytree(folder, tmp_path / "export", ignore=shutil.ignore_patterns("*.npz"))
    assert convert_main(["check", str(folder.parent / "run_roformer"), str(export)]) == 0
    assert re.search(r"ok    parameters that differ +0 ", capsys.readouterr().out)
    assert convert_main(["check", str(folder.parent / "run_bert"), str(folder)]) == 1
    assert "is a BERT and B" in capsys.readouterr().err


@pytest.mark.parametrize("name", conftest.VARIANTS)
def test_as_recorded(name, exported, tmp_path):
    folder, report = exported[name]
    recorded.compare(name, folder, report, from_hf(folder, tmp_path / "run", verify=False))
