"""`convert check --dtype`: layers that overflow are named, and a rescaled T5 computes the same."""

import dataclasses

import numpy as np
import pytest

from convert import __main__
from convert.model_files import any_format
from limba.addons.half_precision import half_precision, rescaled_model
from limba.checkpoint_files.saved_tensors import from_array
from tests.convert.conftest import FAMILIES
from tests.convert.encoders.conftest import new_encoder, tokenizer_file  # noqa: F401

SMALL = {"num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 1}
FACTOR = 1e5
LIMIT = 65504.0
# Kernels that are made larger, and by how much.
IN_MLP = {"encoder/layers_1/mlp/wi{}/kernel": 1e6, "encoder/layers_1/mlp/wo/kernel": 1e-6}
IN_ATTENTION = {"decoder/layers_0/self_attention/value/kernel": 1e6, "decoder/layers_0/self_attention/out/kernel": 1e-6}
IN_STREAM = {
    "token_embedder/embedding": 30,
    "encoder/layers_0/mlp/wo/kernel": FACTOR,
    "decoder/layers_0/mlp/wo/kernel": FACTOR,
}
TEXTS = ["The quick brown fox", "jumps over the lazy dog, and the lazy dog does nothing."]


def _changed(model, factors):
    branch = "" if len(model.config.mlp_activations) == 1 else "_1"
    found = {name.format(branch): factor for name, factor in factors.items()}
    assert found.keys() <= model.tensors.keys()
    changed = {name: from_array(np.asarray(model.tensors[name]) * np.float32(x)) for name, x in found.items()}
    return dataclasses.replace(model, tensors={**model.tensors, **changed})


@pytest.fixture(scope="module", params=["t5", "t5_1_1"])
def model(request, new_run, tmp_path_factory):
    return any_format.open_model(new_run(tmp_path_factory.mktemp("run"), **SMALL, **FAMILIES[request.param]))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("factors", "overflow"),
    [
        (IN_MLP, {"encoder/layers_1/mlp/wi{}", "encoder/layers_1/mlp/wo"}),
        (IN_ATTENTION, {"decoder/layers_0/self_attention/value", "decoder/layers_0/self_attention/out"}),
        (IN_STREAM, {"encoder/layers_0/mlp/wo", "encoder/encoder_norm", "decoder/decoder_norm"}),
    ],
)
def test_layers_that_overflow_are_named_and_rescaled(model, factors, overflow):
    large = _changed(model, factors)
    batch = half_precision.batch_of(large, TEXTS)
    found = half_precision.measure(large, batch, "float16")
    branch = "" if len(model.config.mlp_activations) == 1 else "_1"
    paths = {layer.path for layer in found.too_large}
    assert {path.format(branch) for path in overflow} <= paths and "token_embedder" not in paths
    assert found.difference == float("inf") and np.isnan(found.losses[1]) and np.isfinite(found.losses[0])
    assert half_precision.measure(large, batch, "bfloat16").difference < 0.05 * found.logits  # It has float32's range.

    new = rescaled_model.rescaled(large, [(x.path, x.side, x.largest) for x in found.layers], LIMIT)
    after = half_precision.measure(new, batch, "float16")
    assert not after.too_large and max(x.largest for x in after.layers) <= LIMIT / 4
    # The norms' epsilon sees a smaller sum; where that is as it was, nothing is rounded.
    allowed = 1e-4 * found.logits if factors is IN_STREAM else 0.0
    assert half_precision.difference(large, new, batch) <= allowed
    assert after.difference < 0.01 * found.logits and after.same_choice > 0.9
    assert after.losses[1] == pytest.approx(found.losses[0], abs=0.01)


def test_numbers_that_fit_differ_by_their_rounding_alone(model):
    found = half_precision.measure(model, half_precision.batch_of(model, TEXTS), "float16")
    assert not found.too_large and 0 < found.difference < 0.02
    assert "None overflows" in found.report()


def test_a_tied_t5_needs_its_last_norm(model, monkeypatch):
    """Without the factor there the logits are others: the command refuses to write such a model."""
    large = _changed(model, IN_STREAM)
    batch = half_precision.batch_of(large, TEXTS)
    found = half_precision.measure(large, batch, "float16")
    monkeypatch.setattr(rescaled_model, "LAST_NORM", "nothing")
    new = rescaled_model.rescaled(large, [(x.path, x.side, x.largest) for x in found.layers], LIMIT)
    # Of an untied one that norm stays as it is.
    is_wrong = half_precision.difference(large, new, batch) > 0.1 * found.logits
    assert is_wrong == model.config.logits_via_embedding


def test_an_encoder_is_measured_and_not_rescaled(new_encoder, tmp_path, capsys):  # noqa: F811
    folder = new_encoder(tmp_path / "run")
    opened = any_format.open_model(folder)
    batch = half_precision.batch_of(opened, ["w7 w8 w9"])
    assert 0 < half_precision.measure(opened, batch, "float16").difference < 0.01
    large = _changed(opened, {"encoder/layers_0/mlp/wi/kernel": 1e6})
    assert "encoder/layers_0/mlp/wi" in {x.path for x in half_precision.measure(large, batch, "float16").too_large}
    arguments = ["check", str(folder), "--dtype", "float16", "--text", "w7 w8 w9", "--rescale", str(tmp_path / "out")]
    assert __main__.main(arguments) == 1 and "there is nothing to rescale" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command(new_run, tmp_path, capsys):
    run = new_run(tmp_path / "run", **SMALL, **FAMILIES["t5_1_1"])
    assert __main__.main(["check", str(run)]) == 1
    assert "Give B, to compare A with it, or --dtype" in capsys.readouterr().err
    assert __main__.main(["check", str(run), str(run), "--lines", "x"]) == 1
    assert "--lines and --rescale belong to --dtype" in capsys.readouterr().err
    assert __main__.main(["check", str(run), "--dtype", "bfloat16"]) == 0
    assert "bfloat16 holds numbers up to 3.38953e+38. None overflows" in capsys.readouterr().out
    (tmp_path / "lines.txt").write_text("\n \n")
    assert __main__.main(["check", str(run), "--dtype", "float16", "--lines", str(tmp_path / "lines.txt")]) == 1
    assert "lines.txt has no line with text" in capsys.readouterr().err
