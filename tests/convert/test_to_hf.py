"""The export loads in transformers without a missing key and computes what Limba computes."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from convert import __main__, hf_weights
from convert.to_hf import to_hf
from limba import checkpoints

# Two float32 implementations of these small models differ by about 2e-6.
TOLERANCE = 1e-5


FILES = {
    *["model.safetensors", "flax_model.msgpack", "config.json", "generation_config.json"],
    *["spiece.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "conversion_report.json"],
}

# ---------------------------------------------------- transformers ---------------------------------------------------


@pytest.mark.slow
def test_reports_the_differences_that_it_found(exported):
    differences = exported.report["largest_logits_difference"]
    for file in ("model.safetensors", "flax_model.msgpack"):
        assert differences[f"limba vs export (Limba, from {file})"] == 0.0
        assert differences[f"limba vs export (NumPy, from {file})"] < TOLERANCE
    assert differences["limba vs export (PyTorch)"] < TOLERANCE


@pytest.mark.slow
def test_pytorch_loads_it_and_gives_the_same_logits_and_tokens(exported):
    import torch
    from transformers import T5ForConditionalGeneration

    model, loading = T5ForConditionalGeneration.from_pretrained(exported.folder, output_loading_info=True)
    assert not any(loading.values()), loading
    inputs = torch.from_numpy(exported.inputs).long()
    mask = (inputs != 0).long()
    with torch.no_grad():
        decoder_inputs = torch.from_numpy(exported.decoder_inputs).long()
        logits = model(input_ids=inputs, attention_mask=mask, decoder_input_ids=decoder_inputs).logits.numpy()
        tokens = model.generate(inputs, attention_mask=mask, max_new_tokens=exported.targets.shape[1], num_beams=1)
    np.testing.assert_allclose(logits, exported.logits(), rtol=0, atol=TOLERANCE)
    _assert_same_tokens(tokens.numpy(), exported.greedy_tokens())


@pytest.mark.slow
def test_flax_loads_it_and_gives_the_same_logits_and_tokens(exported, flax_t5, caplog):
    model = flax_t5.from_pretrained(exported.folder)
    assert "newly initialized" not in caplog.text
    assert "were not used" not in caplog.text
    mask = (exported.inputs != 0).astype(np.int32)
    logits = model(exported.inputs, mask, decoder_input_ids=exported.decoder_inputs).logits
    np.testing.assert_allclose(logits, exported.logits(), rtol=0, atol=TOLERANCE)
    length = exported.targets.shape[1] + 1
    tokens = model.generate(exported.inputs, attention_mask=mask, max_length=length, num_beams=1).sequences
    _assert_same_tokens(np.asarray(tokens), exported.greedy_tokens())


def _assert_same_tokens(theirs: np.ndarray, ours: np.ndarray) -> None:
    """Hugging Face's tokens begin with the start token and end with the longest row."""
    theirs = theirs[:, 1:]
    np.testing.assert_array_equal(theirs, ours[:, : theirs.shape[1]])
    assert not ours[:, theirs.shape[1] :].any()


@pytest.mark.slow
def test_a_resave_in_pytorch_is_the_same_model(exported, tmp_path):
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(exported.folder)
    model.save_pretrained(tmp_path)
    resaved = hf_weights.Safetensors(tmp_path / "model.safetensors")
    written = hf_weights.Safetensors(exported.folder / "model.safetensors")
    assert set(resaved) == set(written)
    for name in written:
        np.testing.assert_array_equal(resaved[name], written[name])


# ------------------------------------------------------ the folder ---------------------------------------------------


@pytest.fixture(scope="module")
def run(new_run, tmp_path_factory):
    return new_run(tmp_path_factory.mktemp("plain") / "run", num_encoder_layers=1, num_decoder_layers=1)


def names_in(folder):
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_command_line_writes_every_file(run, tmp_path, capsys):
    assert __main__.main(["to-hf", str(run), str(tmp_path / "out")]) == 0
    assert names_in(tmp_path / "out") == FILES
    assert names_in(tmp_path) == {"out"}
    assert "largest logits difference: limba vs export (NumPy, from model.safetensors): " in capsys.readouterr().out


def test_bfloat16_is_rounded_once_and_checked(run, tmp_path):
    report = to_hf(run, tmp_path / "out", dtype="bfloat16")
    tensors = hf_weights.Safetensors(tmp_path / "out/model.safetensors")
    assert tensors["shared.weight"].dtype == jnp.bfloat16
    assert max(report["largest_logits_difference"].values()) < TOLERANCE
    assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_bfloat16_checkpoint_exports_to_float32(new_run, tmp_path):
    new_run(tmp_path / "run", dtype="bfloat16", num_encoder_layers=1, num_decoder_layers=1)
    to_hf(tmp_path / "run", tmp_path / "out", formats=["safetensors"])
    assert hf_weights.Safetensors(tmp_path / "out/model.safetensors")["shared.weight"].dtype == np.float32


def test_the_same_export_is_reused_and_another_refused(run, tmp_path, capsys):
    first = to_hf(run, tmp_path / "out", formats=["safetensors"], verify=False)
    written = (tmp_path / "out/model.safetensors").stat().st_mtime_ns
    assert to_hf(run, tmp_path / "out", formats=["safetensors"], verify=False) == first
    assert "holds this export of checkpoint_10 already" in capsys.readouterr().out
    assert (tmp_path / "out/model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(ValueError, match=r"holds another export \(other dtype\).*--overwrite"):
        to_hf(run, tmp_path / "out", formats=["safetensors"], dtype="bfloat16", verify=False)
    to_hf(run, tmp_path / "out", formats=["flax"], verify=False, overwrite=True)
    assert names_in(tmp_path / "out") == FILES - {"model.safetensors"}
    assert names_in(tmp_path) == {"out"}


def test_a_folder_of_somebody_else_is_not_touched(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.txt").write_text("three years")
    with pytest.raises(ValueError, match="is not an export of Limba's"):
        to_hf(run, tmp_path / "out")
    assert names_in(tmp_path / "out") == {"thesis.txt"}


def test_what_a_killed_export_left_does_not_hinder(run, tmp_path):
    (tmp_path / ".out.unfinished").mkdir()
    (tmp_path / ".out.unfinished/model.safetensors").write_bytes(b"half")
    to_hf(run, tmp_path / "out", formats=["flax"], verify=False)
    assert names_in(tmp_path) == {"out"}
    assert "model.safetensors" not in names_in(tmp_path / "out")


# ------------------------------------------------------ bad input ----------------------------------------------------


def assert_error(capsys, tmp_path, arguments, message):
    """One message, exit code 1, nothing left."""
    assert __main__.main(["to-hf", *map(str, arguments), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_no_checkpoint(tmp_path, capsys):
    assert_error(capsys, tmp_path, [tmp_path / "nowhere"], "No checkpoint at")


def test_vocabulary_larger_than_the_embedding(new_run, tmp_path, capsys):
    new_run(tmp_path / "run", vocab_size=384)
    assert_error(capsys, tmp_path, [tmp_path / "run"], "checkpoint_10 has only 384 rows; they do not belong together")


def test_missing_sentencepiece_file(new_run, tmp_path, capsys, spiece_model):
    shutil.copy(spiece_model, tmp_path / "moved.model")
    new_run(tmp_path / "run", vocab_file=tmp_path / "moved.model")
    (tmp_path / "moved.model").unlink()
    assert_error(capsys, tmp_path, [tmp_path / "run"], "moved.model")
    assert __main__.main(["to-hf", str(tmp_path / "run"), str(tmp_path / "out"), "--vocab", str(spiece_model)]) == 0


def test_nan_names_the_tensor(new_run, tmp_path, capsys):
    new_run(tmp_path / "run", poison="layers_1/mlp/wo")
    assert_error(capsys, tmp_path, [tmp_path / "run"], "encoder/layers_1/mlp/wo/kernel holds NaN or infinite values")


def test_tensors_of_another_network_are_named(new_run, tmp_path, capsys, monkeypatch):
    new_run(tmp_path / "run")
    info = checkpoints.load_run_info(tmp_path / "run")
    info["network"] |= {"logits_via_embedding": True, "num_decoder_layers": 3, "mlp_dim": 40}
    monkeypatch.setattr(checkpoints, "load_run_info", lambda _: info)
    assert __main__.main(["to-hf", str(tmp_path / "run"), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "decoder/layers_2/pre_self_attention_layer_norm/scale is missing" in error
    assert "more" in error
    assert not (tmp_path / "out").exists()


def test_a_run_description_edited_by_hand_is_refused(new_run, tmp_path, capsys):
    new_run(tmp_path / "run")
    run_json = tmp_path / "run/checkpoint_10/run/run.json"
    run_json.write_text(run_json.read_text().replace('"batch_size": 2', '"batch_size": 4'))
    assert_error(capsys, tmp_path, [tmp_path / "run"], "run.json is damaged or missing")


def test_a_wrong_export_is_not_kept(run, tmp_path, monkeypatch):
    """Two norms exchanged in the table of names: the round trip is right, the independent forward is not."""
    from convert import names

    table = names.table

    def wrong_table(config):
        tensors = {t.limba: t for t in table(config)}
        a, b = tensors["encoder/encoder_norm/scale"], tensors["decoder/decoder_norm/scale"]
        tensors[a.limba] = names.Tensor(a.limba, a.shape, b.torch, b.flax)
        tensors[b.limba] = names.Tensor(b.limba, b.shape, a.torch, a.flax)
        return list(tensors.values())

    monkeypatch.setattr(names, "table", wrong_table)
    with pytest.raises(ValueError, match=r"does not compute what the checkpoint does.*NumPy"):
        to_hf(run, tmp_path / "out")
    assert names_in(tmp_path) == set()


def test_an_unexportable_activation_is_named(new_run, tmp_path):
    new_run(tmp_path / "run", mlp_activations=("swish", "linear"))
    with pytest.raises(ValueError, match="swish"):
        to_hf(tmp_path / "run", tmp_path / "out")


def test_help_names_the_commands(capsys):
    with pytest.raises(SystemExit) as exit_:
        __main__.main(["--help"])
    assert exit_.value.code == 0
    assert "to-hf" in capsys.readouterr().out
