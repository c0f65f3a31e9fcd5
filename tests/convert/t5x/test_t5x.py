import dataclasses
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import gin
import numpy as np
import pytest

from convert import __main__ as convert_command
from convert.compare import comparison, t5_outputs
from convert.from_hf import from_hf
from convert.from_t5x import from_t5x
from convert.model_files import any_format
from convert.model_files.model import ModelHints
from convert.t5x import model_gin
from convert.to_hf import to_hf
from convert.to_t5x import to_t5x
from limba.addons.transformers_check import transformers_process
from limba.checkpoint_files import classic_format, saved_tensors
from limba.checkpoints import checkpointing
from limba.gin_config import gin_files
from tests.convert import vocabularies

GOLDEN = Path(__file__).parents[2] / "limba" / "golden"


@pytest.fixture(scope="module")
def t5x_run(tmp_path_factory):
    run = tmp_path_factory.mktemp("t5x")
    with tarfile.open(GOLDEN / "t5x_classic.tar.xz") as archive:
        archive.extractall(run)
    return run


@pytest.fixture(scope="module")
def small_vocabulary(tmp_path_factory):
    """12 pieces, for a model with an embedding of 32 rows."""
    file = tmp_path_factory.mktemp("vocabulary") / "small.model"
    return vocabularies.train(file, ["ba be bi bo bu"] * 50, vocab_size=11)


def _tensors(path):
    return {name: np.asarray(t) for name, t in saved_tensors.open_tensors(checkpointing.find_checkpoint(path)).items()}


def _same(a, b):
    return a.keys() == b.keys() and all(
        np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a
    )


def test_there_and_back_through_both_formats_and_layouts(t5x_run, tmp_path):
    to_t5x(t5x_run, tmp_path / "orbax")
    assert (tmp_path / "orbax" / "checkpoint_2" / "state" / "manifest.ocdbt").is_file()
    to_t5x(tmp_path / "orbax", tmp_path / "scanned", format_="classic", network="scalable_t5")
    scanned = _tensors(tmp_path / "scanned")
    assert scanned["target/encoder/encoder/attention/out/kernel"].shape == (4, 2, 4, 8)
    to_t5x(tmp_path / "scanned", tmp_path / "classic", format_="classic", network="t5")
    assert classic_format.is_classic(tmp_path / "classic" / "checkpoint_2")
    assert _same(_tensors(t5x_run), _tensors(tmp_path / "classic"))


def test_bfloat16_without_optimizer(t5x_run, tmp_path):
    to_t5x(t5x_run, tmp_path, dtype="bfloat16", with_optimizer=False)
    written = _tensors(tmp_path)
    assert {name.split("/")[0] for name in written} == {"target", "state"}
    assert sum(name.startswith("state/") for name in written) == 1 and written["state/step"] == 2
    assert {str(x.dtype) for name, x in written.items() if name.startswith("target/")} == {"bfloat16"}


def test_from_t5x_says_which_network_it_is(t5x_run, tmp_path, small_vocabulary):
    assert (
        convert_command.main(
            ["from-t5x", str(t5x_run), str(tmp_path), "--vocab", str(small_vocabulary), "--extra_ids", "5"]
        )
        == 0
    )
    info = checkpointing.load_run_info(tmp_path)
    assert info["network"] == {
        "family": "t5_1_1",
        "vocab_size": 32,
        "emb_dim": 8,
        "num_heads": 4,
        "head_dim": 4,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "mlp_dim": 16,
        "mlp_activations": ["gelu", "linear"],
        "logits_via_embedding": False,
        "scan_layers": False,
        "relative_bias_per_layer": False,
        "joined_attention_kernels": True,
        "dropout_rate": 0.0,
        "scale_attn_logits": False,
        "decoder_start_token_id": 0,
    }
    files = checkpointing.load_files(checkpointing.find_checkpoint(tmp_path), "run")
    assert files.keys() == {"run.json", "config.gin", "spiece.model", "state_checksums.json"}
    gin_files.parse_gin_flags([str(checkpointing.find_checkpoint(tmp_path) / "run" / "config.gin")], [])
    bound = {name: gin.query_parameter(f"network.T5Config.{name}") for name in info["network"]}
    macros = {name: gin.query_parameter(f"%{name.upper()}") for name in ("vocab_size", "dropout_rate")}
    assert bound | macros == info["network"]
    gin.clear_config()
    assert _same(_tensors(t5x_run), _tensors(tmp_path))
    from_t5x(
        t5x_run,
        tmp_path / "scanned",
        hints=ModelHints(vocab=str(small_vocabulary), extra_ids=5),
        network="scalable_t5",
        verify=False,
    )
    scanned = checkpointing.load_run_info(tmp_path / "scanned")["network"]
    assert (scanned["head_dim"], scanned["num_decoder_layers"], scanned["scan_layers"]) == (4, 2, True)
    assert not scanned["joined_attention_kernels"]
    # The tables of relative positions are the same in all layers, so it is the same T5.
    same = any_format.open_model(tmp_path / "scanned")
    assert same.family.name == "t5_1_1" and not same.config.relative_bias_per_layer


def test_from_limba_to_t5x_and_on_to_hugging_face(new_run, spiece_model, tmp_path):
    run = new_run(tmp_path / "run")
    to_t5x(run, tmp_path / "t5x", format_="classic")
    from_t5x(tmp_path / "t5x", tmp_path / "back", hints=ModelHints(vocab=str(spiece_model)))
    assert _same(_tensors(run), _tensors(tmp_path / "back"))
    to_hf(tmp_path / "back", tmp_path / "hf", formats=("safetensors",), verify=False)
    assert t5_outputs.compare_parameters(any_format.open_model(run), any_format.open_model(tmp_path / "hf")).value == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["to-t5x", "nowhere", "OUT"], ["No checkpoint at", "does not exist"]),
        (["from-t5x", "RUN", "OUT", "--vocab", "nowhere.model"], ["nowhere.model", "--vocab"]),
    ],
)
def test_errors(arguments, words, t5x_run, tmp_path, capsys):
    arguments = [{"RUN": str(t5x_run), "OUT": str(tmp_path / "out")}.get(argument, argument) for argument in arguments]
    assert convert_command.main(arguments) == 1
    error = capsys.readouterr().err
    assert all(word in error for word in words)
    assert not (tmp_path / "out").exists()


def test_what_stands_there_stays(t5x_run, tmp_path):
    to_t5x(t5x_run, tmp_path)
    with pytest.raises(ValueError, match=r"holds another conversion \(other format\).*--overwrite"):
        to_t5x(t5x_run, tmp_path, format_="classic")
    to_t5x(t5x_run, tmp_path, format_="classic", overwrite=True)
    assert classic_format.is_classic(tmp_path / "checkpoint_2")


def test_damage_leaves_nothing_behind(t5x_run, tmp_path):
    damaged = tmp_path / "damaged" / "checkpoint_2"
    damaged.parent.mkdir()
    subprocess.run(["cp", "-r", t5x_run / "checkpoint_2", damaged], check=True)
    (damaged / "target.decoder.logits_dense.kernel" / "0.0").unlink()
    with pytest.raises(ValueError, match="logits_dense"):
        to_t5x(tmp_path / "damaged", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_lists_itself():
    out = subprocess.run([sys.executable, "-m", "convert", "--help"], capture_output=True, text=True, check=True).stdout
    assert "to-t5x" in out and "from-t5x" in out


# ------------------------------------------- what the tensors do not tell -------------------------------------------

GATED = {"num_encoder_layers": 1, "num_decoder_layers": 1}
KINDS = {
    "gated silu": {"mlp_activations": ("silu", "linear")},
    "gated relu": {"mlp_activations": ("relu", "linear"), "dropout_rate": 0.25},
    "plain gelu, tied": {"mlp_activations": ("gelu",), "logits_via_embedding": True},
    "umt5": {"mlp_activations": ("silu", "linear"), "relative_bias_per_layer": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_comes_back_from_t5x(new_run, tmp_path, kind, capsys):
    run = new_run(tmp_path / "run", **GATED, **KINDS[kind])
    network = None if kind == "umt5" else "scalable_t5"
    to_t5x(run, tmp_path / "t5x", format_="classic", network=network, verify=kind == "umt5")
    written = from_t5x(tmp_path / "t5x", tmp_path / "back", network="t5" if network else None)
    out, error = capsys.readouterr()
    assert "warning" not in error and "assumed" not in out
    assert "ok    settings that differ" in out and "ok    texts with other ids" in out
    before, after = any_format.open_model(run), any_format.open_model(written)
    assert model_gin.network_fields(before.config) == model_gin.network_fields(after.config)
    assert before.config.dropout_rate == after.config.dropout_rate
    assert (before.family, after.assumed) == (after.family, {})
    # What `limba infer --run_dir` reads of T5X's directory.
    gin_files.parse_gin_flags([str(tmp_path / "t5x/checkpoint_10/run/config.gin")], [])
    assert gin.query_parameter("network.T5Config.mlp_activations") == list(KINDS[kind]["mlp_activations"])
    gin.clear_config()


def test_the_family_comes_back_from_t5x(new_run, spiece_model, tmp_path):
    run = new_run(tmp_path / "run", **GATED, mlp_activations=("gelu", "linear"))
    hints = ModelHints(family="mt5")
    to_hf(run, tmp_path / "hf", hints=hints, formats=("safetensors",), verify=False)
    from_hf(tmp_path / "hf", tmp_path / "mt5", verify=False)
    to_t5x(tmp_path / "mt5", tmp_path / "t5x", verify=False)
    assert any_format.open_model(from_t5x(tmp_path / "t5x", tmp_path / "back", verify=False)).family.name == "mt5"


@pytest.fixture
def bare(new_run, tmp_path):
    """A checkpoint of T5X that says nothing of itself, of a network with gated silu."""
    run = new_run(tmp_path / "run", **GATED, mlp_activations=("silu", "linear"))
    shutil.rmtree(to_t5x(run, tmp_path / "t5x", verify=False) / "run")
    return run, tmp_path / "t5x"


def test_a_guess_is_said_once_and_in_the_card(bare, spiece_model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(transformers_process, "possible", lambda family: "left out here")
    run, t5x = bare
    capsys.readouterr()
    to_hf(t5x, tmp_path / "hf", hints=ModelHints(vocab=str(spiece_model)), formats=("safetensors",))
    out, error = capsys.readouterr()
    assert error.count("warning: ") == 1
    assert "does not say all of its network" in error and "Assumed: mlp_activations gelu linear, dropout_rate" in error
    assert "  –   mlp_activations, A" in out and "assumed: gelu linear; the checkpoint does not say it" in out
    assert "gelu × linear (assumed: the checkpoint did not say it)" in (tmp_path / "hf/README.md").read_text()
    # It stays a guess in what is made of it, until somebody says what it is.
    from_t5x(t5x, tmp_path / "guessed", hints=ModelHints(vocab=str(spiece_model)), verify=False)
    guessed = any_format.open_model(tmp_path / "guessed")
    assert guessed.assumed == {"mlp_activations": "gelu linear", "dropout_rate": "0.0"} and guessed.warnings
    corrected = any_format.open_model(tmp_path / "guessed", ModelHints(mlp_activations=("silu", "linear")))
    assert corrected.config.mlp_activations == ("silu", "linear") and "mlp_activations" not in corrected.assumed
    with pytest.raises(ValueError, match=r"\['silu', 'linear'\] in A .* and \['gelu', 'linear'\] in B \(.*, assumed\)"):
        comparison.compare(any_format.open_model(run), guessed)


@pytest.mark.parametrize("by", ["flag", "gin"])
def test_what_is_said_is_no_guess(bare, spiece_model, tmp_path, by, capsys):
    _, t5x = bare
    hints = ModelHints(vocab=str(spiece_model), mlp_activations=("silu", "linear") if by == "flag" else None)
    if by == "gin":
        (t5x / "config.gin").write_text("network.T5Config.mlp_activations = ('silu', 'linear')\n")
    capsys.readouterr()
    from_t5x(t5x, tmp_path / "back", hints=hints)
    out, error = capsys.readouterr()
    assert "warning" not in error and "mlp_activations" not in out
    assert any_format.open_model(tmp_path / "back").config.mlp_activations == ["silu", "linear"]


def test_the_check_says_whose_vocabulary_it_takes(bare, new_run, tmp_path):
    run, t5x = bare
    model, other = (any_format.open_model(path, ModelHints(mlp_activations=("silu", "linear"))) for path in (run, t5x))
    rows = {row.what: row for row in comparison.compare(model, other)}
    assert rows["texts with other ids"].value is None
    assert rows["texts with other ids"].note == "assumed: B has no vocabulary, and that of A is taken for it"
    third = dataclasses.replace(model, vocabulary={"class": "ByteVocabulary", "extra_ids": 0, "vocab_size": 259})
    rows = {row.what: row for row in comparison.compare(model, third)}
    assert rows["texts with other ids"].value == 1 and not rows["texts with other ids"].holds
