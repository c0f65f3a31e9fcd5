"""Every family in both layouts of T5X: through all doors and back bit for bit, and right in transformers."""

import functools
import json
from pathlib import Path

import gin
import jax
import numpy as np
import pytest

from convert.compare import t5_outputs
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.tensors import safetensors_files
from convert.to_t5x import to_t5x
from limba.checkpoint_files import saved_tensors
from limba.checkpoints import checkpointing
from limba.gin_config import gin_files
from limba.inference import embedding
from tests.convert import recorded
from tests.convert.conftest import CHECKED, KINDS

# Two float32 implementations of these small models differ by about 2e-6.
TOLERANCE = 1e-5


@pytest.mark.sample(3)
def test_t5x_to_hugging_face_to_limba_to_t5x_bit_for_bit(exported, tmp_path):
    limba = from_hf(exported.folder, tmp_path / "limba", network=exported.layout or "scalable_t5", verify=False)
    if exported.layout is None:
        # T5X has no unrolled umT5: the parameters are compared by Limba's names.
        ours, back = any_format.open_model(exported.t5x).tensors, any_format.open_model(limba).tensors
    else:
        format_ = "classic" if exported.network == "t5" else "orbax"
        again = to_t5x(limba, tmp_path / "t5x", format_=format_, verify=False)
        ours, back = saved_tensors.open_tensors(exported.t5x), saved_tensors.open_tensors(again)
    assert ours.keys() == back.keys()
    for name, tensor in ours.items():
        x, y = np.asarray(tensor), np.asarray(back[name])
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes()), name


@pytest.mark.parametrize("kind", CHECKED)
def test_the_report_says_what_was_compared(all_exported, kind):
    exported = all_exported[kind]
    rows = {format_: {row["what"]: row for row in rows} for format_, rows in exported.report["comparisons"].items()}
    assert rows["safetensors"]["parameters that differ"]["value"] == 0
    assert rows["safetensors"]["logits, B in Limba"]["note"].startswith("those of A")
    for name in ("NumPy", "PyTorch"):
        assert 0 < rows["safetensors"][f"logits, B in {name}"]["value"] < TOLERANCE
    assert rows["safetensors"]["greedy tokens, B in PyTorch"]["value"] == 0
    assert rows["flax"]["logits, B in NumPy"]["value"] < TOLERANCE
    assert exported.report["family"] == exported.family


@pytest.mark.sample(3)
@pytest.mark.slow
def test_pytorch_loads_it_and_gives_the_same_logits_and_tokens(exported):
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model, loading = AutoModelForSeq2SeqLM.from_pretrained(exported.folder, output_loading_info=True)
    assert type(model).__name__ == json.loads((exported.folder / "config.json").read_text())["architectures"][0]
    assert not any(loading.values()), loading
    inputs = torch.from_numpy(exported.inputs).long()
    mask = (inputs != 0).long()
    with torch.no_grad():
        decoder_inputs = torch.from_numpy(exported.decoder_inputs).long()
        logits = model(input_ids=inputs, attention_mask=mask, decoder_input_ids=decoder_inputs).logits.numpy()
        tokens = model.generate(inputs, attention_mask=mask, max_new_tokens=exported.targets.shape[1], num_beams=1)
        encoded = model.get_encoder()(input_ids=inputs, attention_mask=mask).last_hidden_state.numpy()
    np.testing.assert_allclose(logits, exported.logits(), rtol=0, atol=TOLERANCE)
    real = exported.inputs != 0
    ours = embedding.encode(exported.model, exported.params, exported.batch)
    np.testing.assert_allclose(ours[real], encoded[real], rtol=0, atol=TOLERANCE)  # what `limba embed` gives
    _assert_same_tokens(tokens.numpy(), exported.greedy_tokens())


@pytest.mark.sample(1)
@pytest.mark.slow
def test_flax_loads_it_and_gives_the_same_logits_and_tokens(exported, flax_t5, caplog):
    if exported.family == "umt5":
        return  # transformers has no Flax class for it.
    model = flax_t5.from_pretrained(exported.folder)
    assert "newly initialized" not in caplog.text
    assert "were not used" not in caplog.text
    mask = (exported.inputs != 0).astype(np.int32)
    # One program each: operation by operation is hundreds of them.
    forward = jax.jit(lambda inputs, mask, decoder: model(inputs, mask, decoder_input_ids=decoder).logits)
    logits = forward(exported.inputs, mask, exported.decoder_inputs)
    np.testing.assert_allclose(logits, exported.logits(), rtol=0, atol=TOLERANCE)
    length = exported.targets.shape[1]
    generate = functools.partial(model.generate, max_new_tokens=length, num_beams=1)
    tokens = jax.jit(lambda inputs, mask: generate(inputs, attention_mask=mask).sequences)(exported.inputs, mask)
    _assert_same_tokens(np.asarray(tokens), exported.greedy_tokens())


def _assert_same_tokens(theirs: np.ndarray, ours: np.ndarray) -> None:
    """Hugging Face's tokens begin with the start token and end with the longest row."""
    theirs = theirs[:, 1:]
    np.testing.assert_array_equal(theirs, ours[:, : theirs.shape[1]])
    assert not ours[:, theirs.shape[1] :].any()


@pytest.mark.sample(3)
@pytest.mark.slow
def test_a_resave_in_pytorch_is_the_same_model(exported, tmp_path):
    from transformers import AutoModelForSeq2SeqLM

    AutoModelForSeq2SeqLM.from_pretrained(exported.folder).save_pretrained(tmp_path)
    resaved = safetensors_files.open_tensors([tmp_path / "model.safetensors"])
    written = safetensors_files.open_tensors([exported.folder / "model.safetensors"])
    assert resaved.keys() == written.keys()
    for name in written:
        np.testing.assert_array_equal(np.asarray(resaved[name]), np.asarray(written[name]))
    again = any_format.open_model(tmp_path)
    assert t5_outputs.compare_parameters(any_format.open_model(exported.run), again).value == 0
    assert again.config.logits_via_embedding == exported.config.logits_via_embedding


@pytest.mark.slow
def test_transformers_5_gives_the_same_logits_and_tokens(all_exported, forks5, tmp_path):
    """And what it saves again is read as the same model."""
    requests = []
    for kind in KINDS:
        model = all_exported[kind]
        np.savez(tmp_path / f"{kind}.npz", inputs=model.inputs, decoder_inputs=model.decoder_inputs)
        requests.append([str(model.folder), str(tmp_path / f"{kind}.npz"), str(tmp_path / kind)])
    (tmp_path / "requests.json").write_text(json.dumps(requests))
    done = forks5.run(Path(__file__).with_name("load_in_transformers5.py"), tmp_path / "requests.json")
    assert done.returncode == 0, done.stderr[-3000:]
    for kind in KINDS:
        model = all_exported[kind]
        theirs = np.load(tmp_path / kind / "computed.npz")
        assert not any(json.loads(str(theirs["loading"])).values()), theirs["loading"]
        # Version 5 scales the logits of every umT5 as if it were tied; tokens and probabilities' order are the same.
        scale = model.config.emb_dim**-0.5 if model.family == "umt5" else 1.0
        np.testing.assert_allclose(theirs["logits"], model.logits() * scale, rtol=0, atol=TOLERANCE)
        _assert_same_tokens(theirs["tokens"], model.greedy_tokens())
        again = any_format.open_model(tmp_path / kind)
        assert t5_outputs.compare_parameters(any_format.open_model(model.run), again).value == 0
        assert again.config.logits_via_embedding == model.config.logits_via_embedding


def test_the_gin_file_of_an_import_is_the_network(all_exported, tmp_path):
    for family in ("t5", "umt5", "byt5"):
        model = all_exported[f"{family}-t5"]
        run = from_hf(model.folder, tmp_path / family, verify=False).parent
        gin_files.parse_gin_flags([str(run / "model.gin")], [])
        fields = checkpointing.load_run_info(run)["network"]
        assert fields["scan_layers"] == (family == "umt5")
        assert gin.query_parameter("network.T5Config.emb_dim") == fields["emb_dim"] == 32
        assert gin.query_parameter("%VOCAB_SIZE") == fields["vocab_size"]
        assert gin.query_parameter("network.T5Config.logits_via_embedding") == (family == "t5")
        assert (gin.query_parameter("network.T5Config.mlp_activations") == ["relu"]) == (family == "t5")
        gin.clear_config()


def test_as_recorded(exported, tmp_path):
    checkpoint = from_hf(exported.folder, tmp_path / "run", verify=False)
    recorded.compare(exported.kind, exported.folder, exported.report, checkpoint)
