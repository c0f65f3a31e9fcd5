"""From Hugging Face folders of every kind to checkpoints that Limba trains on."""

import json
import shutil

import gin
import jax
import numpy as np
import pytest

from convert import __main__
from convert.compare import forward
from convert.families.config_files import t5_config
from convert.from_hf import from_hf
from convert.model_files import any_format, t5_files
from convert.tensors import weight_files
from limba.checkpoint_files import saved_tensors
from limba.checkpoints import checkpointing
from limba.gin_config import gin_files
from tests.loopback_hub import TOKEN, LoopbackHub


@pytest.fixture(scope="module")
def saved(all_exported, tmp_path_factory):
    """One T5 1.1, saved by transformers in every format of its weights, with our tokenizer beside it."""
    import torch
    from transformers import T5ForConditionalGeneration

    exported = all_exported["t5_1_1-t5"]
    model = T5ForConditionalGeneration.from_pretrained(exported.folder)
    root = tmp_path_factory.mktemp("saved")
    folders = {name: root / name for name in ("safetensors", "shards", "bin", "old bin", "flax")}
    model.save_pretrained(folders["safetensors"])
    model.save_pretrained(folders["shards"], max_shard_size="60KB")
    for name, zipped in (("bin", True), ("old bin", False)):
        folders[name].mkdir()
        torch.save(model.state_dict(), folders[name] / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    folders["flax"].mkdir()
    shutil.copy(exported.folder / "flax_model.msgpack", folders["flax"])
    for folder in folders.values():
        for file in exported.folder.iterdir():
            if file.name in ("spiece.model", "config.json") or "token" in file.name:
                shutil.copy(file, folder)
    return folders


@pytest.mark.parametrize("kind", ["safetensors", "shards", "bin", "old bin", "flax"])
def test_every_format_of_weights_is_the_same_checkpoint(saved, all_exported, kind, tmp_path):
    if kind == "shards":
        assert len(list(saved[kind].glob("model-*.safetensors"))) > 1
    checkpoint = from_hf(saved[kind], tmp_path, verify=False)
    ours = any_format.open_model(all_exported["t5_1_1-t5"].run).tensors
    theirs = any_format.open_model(checkpoint).tensors
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        np.testing.assert_array_equal(np.asarray(tensor), np.asarray(theirs[name]))


def test_limba_starts_from_it(saved, all_exported, tmp_path):
    """INITIAL_CHECKPOINT_PATH = OUT: the whole train state but the optimizer's, which a Hugging Face model lacks."""
    from_hf(saved["safetensors"], tmp_path, verify=False)
    restore = checkpointing.RestoreCheckpointConfig(path=str(tmp_path))
    assert restore.checkpoint == str(tmp_path / "checkpoint_0")
    params = checkpointing.load_params(restore.checkpoint)
    expected = all_exported["t5_1_1-t5"].params
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    # A bit that flips later is noticed: each tensor was compared just now.
    sums = json.loads((tmp_path / "checkpoint_0/run/state_checksums.json").read_text())
    assert sums.keys() == saved_tensors.open_tensors(tmp_path / "checkpoint_0").keys()


def test_the_command_checks_it_and_says_how_to_go_on(saved, tmp_path, capsys):
    assert __main__.main(["from-hf", str(saved["bin"]), str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "ok    logits, A in PyTorch " in out
    assert f"limba train --gin_file={tmp_path}/run/model.gin" in out
    report = json.loads((tmp_path / "run/checkpoint_0/conversion_report.json").read_text())
    assert report["checked"] and all(row["holds"] for rows in report["comparisons"].values() for row in rows)
    written = {"checkpoint_0", "model.gin", "spiece.model", "tokenizer_settings.json"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == written


def test_a_config_alone_becomes_a_gin_file(saved, tmp_path, capsys):
    shutil.copy(saved["bin"] / "config.json", tmp_path)
    assert __main__.main(["from-hf", str(tmp_path / "config.json"), str(tmp_path / "new")]) == 0
    assert "gin/runs/pretrain.gin" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.gin"]
    gin_files.parse_gin_flags([str(tmp_path / "new/model.gin")], [])
    config = json.loads((tmp_path / "config.json").read_text())
    assert gin.query_parameter("network.T5Config.emb_dim") == config["d_model"]
    assert gin.query_parameter("network.T5Config.num_decoder_layers") == config["num_decoder_layers"]
    assert gin.query_parameter("%VOCAB_SIZE") == config["vocab_size"]
    gin.clear_config()


def test_a_name_on_the_hub(saved, all_exported, tmp_path, monkeypatch):
    hub = LoopbackHub()
    try:
        hub.add("limba/small", saved["safetensors"], private=True)
        hub.use(monkeypatch, tmp_path / "home", token=None)
        match = r"^There is no folder .*limba/small\. If you mean a model on the hub: There is no repository .*HF_TOKEN"
        with pytest.raises(FileNotFoundError, match=match):
            from_hf("limba/small", tmp_path / "run", verify=False)
        hub.use(monkeypatch, tmp_path / "home", token=TOKEN)
        checkpoint = from_hf("limba/small", tmp_path / "run", verify=False)
    finally:
        hub.close()
    params = checkpointing.load_params(checkpoint)
    jax.tree.map(np.testing.assert_array_equal, params, all_exported["t5_1_1-t5"].params)


# Keys that configurations of 2020 do not have.
OLD_DEFAULTS = ["relative_attention_max_distance", "feed_forward_proj"]


def _copy(folder, to, **config):
    """The folder with other values in config.json."""
    shutil.copytree(folder, to)
    content = json.loads((to / "config.json").read_text()) | config
    (to / "config.json").write_text(json.dumps(content))
    return to


@pytest.mark.parametrize(
    ("kind", "config", "without"),
    [
        # Google's own configurations leave to the defaults what was one when they were written.
        ("t5-t5", {}, ["tie_word_embeddings", "scale_decoder_outputs", "layer_norm_epsilon", *OLD_DEFAULTS]),
        # As version 5 of transformers saves it again.
        ("umt5-t5", {"tie_word_embeddings": True, "transformers_version": "5.23.0"}, ["scale_decoder_outputs"]),
    ],
)
def test_what_a_configuration_leaves_out(all_exported, tmp_path, kind, config, without, capsys):
    """The check runs the classes of transformers with what is meant."""
    folder = _copy(all_exported[kind].folder, tmp_path / "model", **config)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in content.items() if k not in without}))
    (folder / "conversion_report.json").unlink()
    checkpoint = from_hf(folder, tmp_path / "run")
    # What version 5 computes with a umT5 that has its own output is not what T5X and version 4 do.
    assert ("multiply lm_head.weight by d_model**-0.5" in capsys.readouterr().err) == kind.startswith("umt5")
    report = json.loads((checkpoint / "conversion_report.json").read_text())
    rows = {row["what"]: row for row in report["comparisons"]["orbax"]}
    assert rows["logits, A in PyTorch"]["value"] < 1e-4 and rows["logits, A in NumPy"]["value"] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["T5", "MT5"])
def test_a_new_t5_of_transformers_5(all_exported, kind, tmp_path, forks5):
    """Its output is the embedding, unscaled, though its configuration was that of a T5 1.1, or is an mT5's."""
    program = (
        "import json, sys, torch, transformers as t; config = t.T5Config.from_pretrained(sys.argv[1]).to_dict();"
        "config = config | {'tie_word_embeddings': False}; config.pop('scale_decoder_outputs');"
        f"model = t.{kind}ForConditionalGeneration(t.{kind}Config(**config)).eval();"
        "model.save_pretrained(sys.argv[2]);"
        "ids = torch.tensor([[5, 6, 7, 1]]);"
        "print(json.dumps(model(input_ids=ids, decoder_input_ids=ids).logits.tolist()))"
    )
    done = forks5.run("-c", program, all_exported["t5_1_1-t5"].folder, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    file = tmp_path / "config.json"
    folder = t5_files.read_files(tmp_path, file, t5_config.read(file))
    ids = np.array([[5, 6, 7, 1]], np.int32)
    batch = dict.fromkeys(("encoder_input_tokens", "decoder_input_tokens", "decoder_target_tokens"), ids)
    found = forward.logits(folder.config, folder.tensors, batch)
    assert not folder.config.logits_via_embedding
    assert "lm_head.weight" not in weight_files.open_tensors(tmp_path, "safetensors")
    np.testing.assert_allclose(found, json.loads(done.stdout), atol=1e-4)


# ------------------------------------------------------ bad input ----------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, "lm_head.weight is another matrix"),
        ({"d_ff": 40}, "has shape"),
        ({"num_layers": 4}, "encoder.block.3.layer.0.layer_norm.weight is missing"),
        ({"model_type": "umt5"}, "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight is missing"),
        ({"model_type": "pegasus"}, "model_type is 'pegasus'"),
        ({"d_model": "32"}, "d_model is '32'; it is a whole number"),
        ({"num_heads": None}, "num_heads is None"),
        ({"tie_word_embeddings": "false", "scale_decoder_outputs": "false"}, "is 'false'; it is true or false"),
        ({"vocab_size": 384}, "shared.weight has shape (512, 32) instead of (384, 32)"),
    ],
)
def test_contradictions_are_named_before_anything_is_written(saved, tmp_path, capsys, config, words):
    folder = _copy(saved["safetensors"], tmp_path / "model", **config)
    assert __main__.main(["from-hf", str(folder), str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_an_untied_model_that_lost_its_output_is_named(all_exported, tmp_path, capsys):
    tied = all_exported["t5-t5"].folder
    folder = _copy(tied, tmp_path / "model", tie_word_embeddings=False, scale_decoder_outputs=False)
    assert __main__.main(["from-hf", str(folder), str(tmp_path / "run")]) == 1
    assert "has its own matrix (tie_word_embeddings: false), but there is no lm_head.weight" in capsys.readouterr().err


def test_a_vocabulary_of_another_model(saved, tmp_path, capsys):
    arguments = ["from-hf", str(saved["safetensors"]), str(tmp_path / "run"), "--vocab"]
    vocab = str(saved["safetensors"] / "spiece.model")
    assert __main__.main([*arguments, vocab, "--extra_ids", "200"]) == 1
    assert "has 612 ids, sentinels included, and the embedding of" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("keep", [0.5, 0.999])
def test_a_file_cut_short_is_named(saved, tmp_path, capsys, keep):
    folder = _copy(saved["safetensors"], tmp_path / "model")
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep)])
    assert __main__.main(["from-hf", str(folder), str(tmp_path / "run")]) == 1
    assert "model.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_is_there_stays(saved, tmp_path, capsys):
    run = from_hf(saved["safetensors"], tmp_path, verify=False)
    written = (run / "run/run.json").stat().st_mtime_ns
    assert __main__.main(["from-hf", str(saved["bin"]), str(tmp_path), "--no-check"]) == 1
    assert "another model's; choose another OUT or give --overwrite" in capsys.readouterr().err
    assert (run / "run/run.json").stat().st_mtime_ns == written
    assert __main__.main(["from-hf", str(saved["bin"]), str(tmp_path), "--no-check", "--overwrite"]) == 0


def test_files_of_another_model_stay(saved, tmp_path, capsys):
    (tmp_path / "model.gin").write_text("mine")
    assert __main__.main(["from-hf", str(saved["bin"]), str(tmp_path), "--no-check"]) == 1
    assert "model.gin is another model's" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["model.gin"]


def test_an_import_that_was_interrupted_behind_its_checkpoint_is_completed(saved, tmp_path):
    from_hf(saved["safetensors"], tmp_path, verify=False)
    (tmp_path / "model.gin").unlink()
    from_hf(saved["safetensors"], tmp_path, verify=False)
    assert (tmp_path / "model.gin").is_file()


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer_config.json", "[]", "tokenizer_config.json holds an empty list"),
        ("tokenizer.json", '{"a": 1}', "a file of the tokenizer is damaged"),
    ],
)
def test_a_damaged_tokenizer_is_named(saved, tmp_path, capsys, file, content, words):
    folder = _copy(saved["safetensors"], tmp_path / "model")
    (folder / "spiece.model").unlink()
    (folder / file).write_text(content)
    assert __main__.main(["from-hf", str(folder), str(tmp_path / "run")]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hints", "words"),
    [
        (["--extra_ids", "5"], "--extra_ids 5: the tokenizer in"),
        (["--extra_ids", "-5", "--vocab", "x"], "--extra_ids -5: a number of sentinels is 0 or more"),
        (["--family", "byt5"], "has a spiece.model."),
        (["--family", "umt5"], "--family umt5: the network is t5_1_1"),
    ],
)
def test_what_is_told_and_not_so(saved, tmp_path, capsys, hints, words):
    assert __main__.main(["from-hf", str(saved["safetensors"]), str(tmp_path / "run"), *hints]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/at/all", "does not exist, and"),
        ("empty", "has no config.json: it is not a model"),
        ("mine", "mine is a run of Limba's; export it with `limba convert to-hf"),
        ("mine/checkpoint_60", "checkpoint_60 is a run of Limba's"),
        ("t5x", "t5x is a checkpoint of T5X; convert it with `limba convert from-t5x"),
    ],
)
def test_what_is_not_there(tmp_path, capsys, name, words):
    (tmp_path / "empty").mkdir()
    for run in ("mine", "t5x"):
        (tmp_path / run / "checkpoint_60" / "state").mkdir(parents=True)
    (tmp_path / "mine" / "checkpoint_60" / "run").mkdir()
    (tmp_path / "mine" / "checkpoint_60" / "run" / "run.json").write_text("{}")
    assert __main__.main(["from-hf", str(tmp_path / name), str(tmp_path / "run")]) == 1
    assert words in capsys.readouterr().err
