"""An encoder that training starts from: a file of weights of a PyTorch script, or a run of Limba's."""

import json
import shutil

import numpy as np
import pytest
import safetensors.torch
import tokenizers
import torch

from convert import __main__
from convert.families import heads
from convert.families.heads import Head
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba.addons.run import starting_model
from tests.convert.encoders.conftest import VARIANTS


@pytest.fixture(scope="module")
def saved(new_encoder, tmp_path_factory):
    """A run, and its weights as the Trainer of t5-experiments saves them, with the network's config.json."""
    root = tmp_path_factory.mktemp("saved")
    run = new_encoder(root / "run", **VARIANTS["bert"])
    to_hf(run, root / "export", verify=False)
    state = safetensors.torch.load_file(root / "export" / "model.safetensors")
    torch.save({"model_state_dict": state, "iteration": 25_000}, root / "model_25000.pth")
    content = json.loads((root / "export" / "config.json").read_text())
    (root / "bert.json").write_text(json.dumps({k: x for k, x in content.items() if k != "architectures"}))
    return root


def same_tensors(checkpoint, source):
    ours, theirs = (any_format.open_model(path).tensors for path in (checkpoint, source))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        np.testing.assert_array_equal(np.asarray(tensor), np.asarray(theirs[name]), err_msg=name)


def test_a_file_of_weights(saved, tmp_path, capsys):
    given = (str(saved / "model_25000.pth"), str(saved / "bert.json"), str(saved / "export"))
    opened = starting_model.open_model(*given)
    assert opened.has_weights and opened.encoder is not None
    opened.write(tmp_path / "initial")
    same_tensors(tmp_path / "initial" / "checkpoint_25000", saved / "run")
    out = capsys.readouterr().out
    assert "ok    logits" in out and "transformers opens folders, and this is a file of weights" in out
    file, config, vocab = given
    assert (
        __main__.main(["from-hf", file, str(tmp_path / "b"), "--config", config, "--vocab", vocab, "--no-check"]) == 0
    )
    same_tensors(tmp_path / "b" / "checkpoint_25000", saved / "run")
    with pytest.raises(FileNotFoundError, match=r"model_25000.pth has no tokenizer.json"):
        starting_model.open_model(file, config, None)


def test_a_run(saved, tmp_path):
    opened = starting_model.open_model(str(saved / "run"), str(saved / "bert.json"), None)
    opened.write(tmp_path / "initial")
    same_tensors(tmp_path / "initial" / "checkpoint_10", saved / "run")
    content = json.loads((saved / "bert.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(content | {"layer_norm_eps": 1e-5}))
    with pytest.raises(ValueError, match=r"has norm_epsilon 0.01; config_name, .*, has norm_epsilon 1e-05"):
        starting_model.open_model(str(saved / "run"), str(tmp_path / "other.json"), None)


def test_the_settings_of_another_config_count_in_the_run_and_its_export(saved, tmp_path, capsys):
    """As `from_pretrained(FOLDER, config=…)`; the check compares with transformers, which gets that config too."""
    content = json.loads((saved / "bert.json").read_text())
    changes = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2, "layer_norm_eps": 1e-3}
    (tmp_path / "other.json").write_text(json.dumps(content | changes))
    opened = starting_model.open_model(str(saved / "export"), str(tmp_path / "other.json"), None)
    rates = opened.network.dropout_rate, opened.network.attention_dropout_rate, opened.network.norm_epsilon
    assert rates == (0.3, 0.2, 1e-3)
    opened.write(tmp_path / "initial")
    assert "ok    logits, A in PyTorch" in capsys.readouterr().out
    to_hf(tmp_path / "initial", tmp_path / "export", verify=False)
    assert json.loads((tmp_path / "export" / "config.json").read_text())["layer_norm_eps"] == 1e-3

    sizes = {"num_hidden_layers": 3, "intermediate_size": 28, "layer_norm_eps": 1e-3}
    (tmp_path / "larger.json").write_text(json.dumps(content | sizes))
    given = str(saved / "export"), str(tmp_path / "larger.json"), None
    with pytest.raises(ValueError, match=r"mlp_dim 20, num_layers 2; config_name, .* has mlp_dim 28, num_layers 3"):
        starting_model.open_model(*given)


def test_a_classifier_keeps_its_head_with_another_config(new_encoder, tmp_path):
    head = Head(heads.SEQUENCE, ("good", "bad"), "tanh")
    run = new_encoder(tmp_path / "run", head, **VARIANTS["bert"])
    to_hf(run, tmp_path / "export", verify=False)
    content = json.loads((tmp_path / "export" / "config.json").read_text())
    bare = {key: x for key, x in content.items() if key not in ("architectures", "id2label", "label2id")}
    (tmp_path / "bare.json").write_text(json.dumps(bare | {"hidden_dropout_prob": 0.4}))
    opened = starting_model.open_model(str(tmp_path / "export"), str(tmp_path / "bare.json"), None)
    assert opened.labels == ("good", "bad") and opened.network.dropout_rate == 0.4


def test_tokens_without_a_row_get_one(saved, tmp_path, caplog):
    """As `resize_token_embeddings(len(tokenizer))`: the others keep theirs."""
    folder = tmp_path / "added"
    shutil.copytree(saved / "export", folder)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer.add_tokens([f"<new_{i}>" for i in range(rows - tokenizer.get_vocab_size() + 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    opened = starting_model.open_model(str(folder), None, None)
    assert opened.network.vocab_size == rows + 2 and f"{rows} rows: 2 are added" in caplog.text
    opened.write(tmp_path / "initial")
    to_hf(tmp_path / "initial", tmp_path / "export", verify=False)
    assert json.loads((tmp_path / "export" / "config.json").read_text())["vocab_size"] == rows + 2
    before, after = (
        safetensors.torch.load_file(place / "model.safetensors")["bert.embeddings.word_embeddings.weight"].numpy()
        for place in (folder, tmp_path / "export")
    )
    np.testing.assert_array_equal(after[:rows], before)
    np.testing.assert_allclose(after[rows:], [before.mean(0)] * 2, atol=1e-6)
