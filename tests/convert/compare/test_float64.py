"""The bound of a check: right models of any size, dtype and scale are within it, and it is not much wider than they
need.

The suite takes a few models of few layers, which compile in a moment; `pytest --exhaustive` 50 of up to eight.
"""

import dataclasses
import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from convert.compare import encoder_outputs, float64, forward, numpy_t5, t5_outputs
from convert.families import heads, networks
from convert.families.config_files import encoder_config, t5_config
from convert.families.table import find_encoder, t5_families
from convert.model_files.model import EncoderModel, Folder
from limba.addons.transformers_check import torch_forward
from limba.checkpoint_files.saved_tensors import SavedTensor, from_array
from limba.network.encoders.config import EncoderConfig
from limba.network.t5 import T5Config
from tests.convert.conftest import FAMILIES
from tests.convert.encoders.conftest import SIZES, VARIANTS

DTYPES = (np.float32, jnp.bfloat16, np.float16)
WIDTHS = ({"emb_dim": 32, "num_heads": 4, "head_dim": 8, "mlp_dim": 96}, {"emb_dim": 64, "mlp_dim": 160})


def _array(name: str, shape: tuple[int, ...], scale: float, rng: np.random.Generator) -> np.ndarray:
    center, spread = (1.0, 0.3) if name.endswith("scale") else (0.0, 1.0 if "embedding" in name else shape[0] ** -0.5)
    return (rng.normal(center, spread, shape) * scale).astype(np.float32)


def _scale(seed: int, rng: np.random.Generator) -> float:
    """Up to 30 times the usual."""
    return 30.0 if seed % 4 == 0 else float(np.exp(rng.uniform(0, np.log(30))))


@pytest.fixture
def most_layers(request) -> int:
    return 8 if request.config.getoption("--exhaustive") else 3


def _random_t5(seed: int, most_layers: int):
    """What Limba and PyTorch compute in float32, and the measure."""
    rng = np.random.default_rng(seed)
    name = [*FAMILIES][seed % 5]
    width = {"num_heads": 8, "head_dim": 16} | WIDTHS[seed % 2]
    depths = {f"num_{stack}_layers": int(rng.integers(1, most_layers + 1)) for stack in ("encoder", "decoder")}
    activation = [("gelu", "linear"), ("silu", "linear"), ("relu", "linear")][seed % 3]
    fields = {**FAMILIES[name], "vocab_size": 384, **({} if name == "t5" else {"mlp_activations": activation})}
    config = T5Config(**(fields | width | depths))
    scale, only = _scale(seed, rng), ("", "scale", "kernel")[int(rng.integers(3))]
    drawn = {}
    family = t5_families()[name]
    for parameter, shape in family.shapes(config, heads.OF_T5).items():
        array = _array(parameter, shape, scale if parameter.endswith(only) else 1.0, rng)
        drawn[parameter] = from_array(array.astype(DTYPES[seed % 7 % 3]))
    stored = {t.name: t.stored(drawn) for t in family.table(config, heads.OF_T5)}
    content = t5_config.explicit(t5_config.model_config(config, family, "float32", None), config)
    return config, drawn, stored, content


def _outputs(seed: int, folder, stored, content, config, by_limba):
    batch = t5_outputs.check_batch(config, np.arange(5, 60, dtype=np.int32))
    run = functools.partial(numpy_t5.logits, numpy_t5.TorchWeights(stored), content)
    measure = float64.measure(run, batch["encoder_input_tokens"], batch["decoder_input_tokens"])
    (folder / "config.json").write_text(json.dumps(content))
    return measure, [forward.logits(config, by_limba, batch), torch_forward.logits(folder, stored, batch)]


def test_right_t5s_are_within_the_bound(request, most_layers, tmp_path):
    ratios = []
    for seed in range(50 if request.config.getoption("--exhaustive") else 4):
        config, by_limba, stored, content = _random_t5(seed, most_layers)
        measure, outputs = _outputs(seed, tmp_path, stored, content, config, by_limba)
        for logits in outputs:
            row = measure.compare("logits", logits)
            assert row.holds, (seed, config)
            ratios += [] if row.value is None else [row.value / row.allowed]
    # A bound that were much wider would let wrong ones pass.
    assert max(ratios) < 0.7 and np.median(ratios) > 0.01, ratios


def _random_encoder(seed: int, variant: str, most_layers: int) -> EncoderModel:
    rng = np.random.default_rng(seed)
    fields = SIZES | VARIANTS[variant] | {"num_layers": int(rng.integers(1, most_layers + 1)), "max_positions": 48}
    config = EncoderConfig(**(fields | {"scan_layers": False}))
    family, scale, dtype = find_encoder(config), _scale(seed, rng), DTYPES[seed % 3]
    shapes = networks.shapes(config, heads.OF_MASKED_LM)
    by_limba: dict[str, SavedTensor] = {
        name: from_array(_array(name, shape, scale, rng).astype(dtype)) for name, shape in shapes.items()
    }
    model = EncoderModel("random", "Limba", family, config, heads.OF_MASKED_LM, by_limba, None, 0)
    content = {"model_type": family.model_type, **encoder_config.settings(family, config, model.head, model.pad_id)}
    folder = Folder(content, model.stored(), "safetensors", model.pad_id)
    return dataclasses.replace(model, folder=folder)


def test_right_encoders_are_within_the_bound(request, most_layers):
    ratios = []
    for seed in range(50 if request.config.getoption("--exhaustive") else 4):
        model = _random_encoder(seed, [*VARIANTS][seed % len(VARIANTS)], most_layers)
        batch = encoder_outputs.check_batch(model.config, np.zeros(0, np.int32))
        measure = encoder_outputs.measures(model, batch)["logits"]
        logits = encoder_outputs.limba_logits(model, batch)
        row = measure.compare("logits", logits)
        assert row.holds, (seed, model.config)
        ratios += [] if row.value is None else [row.value / row.allowed]
    assert max(ratios) < 0.7 and np.median(ratios) > 0.01, ratios


def test_logits_that_rounding_makes_are_not_compared():
    """The identity is computed exactly; a difference of nearly equal numbers is not."""
    ids = np.arange(6).reshape(2, 3)

    def nearly_equal(ids, rounding):
        x = rounding(1e6 + ids[..., None] + np.arange(4.0))
        return x - 1e6

    vague = float64.measure(nearly_equal, ids)
    assert vague.allowed > 0.1
    row = vague.compare("logits", vague.logits + 0.1)
    assert row.value is None and row.holds and row.note.startswith("not compared: rounding in float32 changes")
    assert not vague.compare("logits", vague.logits * 1e3).holds
    assert not vague.compare("logits", vague.logits * np.nan).holds
    sharp = float64.measure(lambda ids, rounding: ids[..., None] + np.arange(4.0), ids)
    assert sharp.allowed == pytest.approx(8 * 32 * 2.0**-24)
    assert sharp.compare("logits", sharp.logits).value == 0
    assert not sharp.compare("logits", sharp.logits + 1e-4).holds


def test_products_and_rows_are_those_of_whole_tensors(monkeypatch):
    monkeypatch.setattr(float64, "_BLOCK_BYTES", 80)
    rng = np.random.default_rng(0)
    kernel, x = rng.normal(size=(7, 4)).astype(np.float16), rng.normal(size=(2, 3, 4))
    np.testing.assert_allclose(float64.product(x, from_array(kernel)), x @ kernel.T.astype(np.float64), rtol=1e-12)
    ids = np.array([[6, 0, 6], [3, 3, 1]])
    rows = float64.rows_of(from_array(kernel), ids)
    assert rows.dtype == np.float64
    np.testing.assert_array_equal(rows, kernel[ids])
