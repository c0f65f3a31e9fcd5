"""T5X's own numbers, kit by kit.

Each `golden/<kit>.gin` was run by T5X (commit cc342d4, CPU, matmuls in highest precision) for ten steps. With it,
`golden/<kit>.npz` holds what it began with and what it got: `init`, `final` and `opt_final` are all tensors one after
the other in the order of `index`, `init` as the bits of bfloat16 (T5X's initial values, rounded); `batches/<feature>`
and `losses` have the steps first. docs/optimizers.md lists the kits.
"""

import json
from pathlib import Path

import gin
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from benchmarks import parity
from limba.training.trainer import Trainer

GOLDEN = Path(__file__).parents[1] / "golden"
KITS = sorted(path.stem for path in GOLDEN.glob("*.gin"))


def unpack(name: str, folder: Path) -> None:
    """Writes a golden as a kit that `benchmarks.parity` reads."""
    golden = np.load(GOLDEN / f"{name}.npz")
    index = json.loads(golden["index"].tobytes())
    for file, shapes in index.items():
        flat = golden[file].view(ml_dtypes.bfloat16).astype(np.float32) if file == "init" else golden[file]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
        parts = np.split(flat, ends[:-1])
        np.savez(folder / f"{file}.npz", **{n: p.reshape(s) for (n, s), p in zip(shapes.items(), parts, strict=True)})
    batches = {n.removeprefix("batches/"): golden[n].astype(np.int32) for n in golden.files if n.startswith("batches/")}
    np.savez(folder / "batches.npz", **batches)
    rows = [{"loss": float(loss)} for loss in golden["losses"]]
    (folder / "losses.json").write_text(json.dumps({"steps": rows}))
    (folder / "kit.gin").write_text((GOLDEN / f"{name}.gin").read_text())


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture
def without_norms(monkeypatch):
    """The norms of gradients, for which a kit computes them twice, are in no golden; tests/benchmarks has them."""
    monkeypatch.setattr(
        Trainer, "gradients", lambda self, params, batch, rng: (jax.tree.map(jnp.zeros_like, params), {})
    )


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", KITS)
def test_the_numbers_are_t5xs(tmp_path, without_norms, name):
    unpack(name, tmp_path)
    with jax.default_matmul_precision("highest"):
        parity.run_kit(tmp_path, tmp_path / "out")
    worst = parity.compare(tmp_path, tmp_path / "out")
    for result, tolerance in parity.tolerances().items():
        assert worst[result] <= tolerance, result
