"""The learning rates of the gin files: before the first update, the highest, and before the last one."""

import gin
import jax.numpy as jnp
import numpy as np
import pytest

from limba.files.repository import REPOSITORY
from limba.gin_config import gin_files

# A file, its steps, and the rates: first, highest, the step of the highest, last.
RATES = [
    ("recipes/diacritics.gin", 20_000, 1e-3, 1e-3, 0, 1e-3),
    ("recipes/diacritics_small.gin", 1000, 0.02, 0.02, 0, 0.010959),
    ("recipes/diacritics_small_pretrain.gin", 300, 1e-8, 0.03, 20, 9.44e-7),
    ("recipes/encoder.gin", 1000, 1e-8, 1e-3, 100, 1e-8),
    ("recipes/encoder_moods.gin", 400, 1e-8, 2e-3, 100, 2e-3),
    ("recipes/encoder_names.gin", 100, 1e-8, 3e-4, 50, 3e-4),
    ("recipes/moods.gin", 500, 1e-8, 0.005, 50, 0.005),
    ("recipes/moods_pretrain.gin", 500, 1e-8, 0.03, 20, 3.21e-7),
    ("recipes/pretrain_base.gin", 65_536, 1e-8, 0.02, 10_000, 1e-8),
    ("recipes/pretrain_laptop.gin", 2000, 1e-8, 0.03, 500, 3.31e-8),
    ("recipes/pretrain_small_corpus.gin", 5500, 1e-8, 0.03, 1375, 1e-8),
    ("recipes/quickstart.gin", 4500, 1e-8, 0.06, 20, 1e-8),
    ("recipes/quickstart_modern.gin", 4500, 1e-8, 0.06, 20, 1e-8),
    ("recipes/quickstart_vectors.gin", 400, 1e-8, 0.003, 50, 0.003),
    ("recipes/ro_mt5_base.gin", 2_000_000, 0.004, 0.004, 0, 2.83e-4),
    ("recipes/ro_mt5_large.gin", 2_000_000, 0.004, 0.004, 0, 2.83e-4),
    ("recipes/ro_t5_base.gin", 2_000_000, 0.01, 0.01, 0, 7.07e-4),
    ("recipes/ro_t5_large.gin", 2_000_000, 0.01, 0.01, 0, 7.07e-4),
    ("recipes/speedrun.gin", 65_536, 0.01, 0.02, 9_999, 1e-5),
    ("recipes/speedrun_instructions.gin", 1000, 5e-5, 5e-5, 0, 5e-5),
    ("optimizers/adafactor.gin", 20_000, 0.01, 0.01, 0, 0.00707),
    ("optimizers/adamw.gin", 20_000, 1e-8, 1e-3, 1000, 2.24e-4),
    ("optimizers/adamw_scale.gin", 20_000, 1e-8, 0.02, 10_000, 1e-8),
    ("optimizers/lion.gin", 20_000, 1e-8, 1e-4, 1000, 2.24e-5),
    ("optimizers/muon.gin", 20_000, 1e-8, 1e-3, 1000, 2.24e-4),
]


def test_all_files_are_here():
    files = {
        f"{x.parent.name}/{x.name}" for folder in ("recipes", "optimizers") for x in REPOSITORY.glob(f"gin/{folder}/*")
    }
    assert {name for name, *_ in RATES} == files


@pytest.mark.parametrize(("name", "steps", "first", "highest", "at", "last"), RATES, ids=[x[0] for x in RATES])
def test_rates(name, steps, first, highest, at, last):
    run = ["gin/models/t5_1_1/base.gin", "gin/runs/pretrain.gin"] if name.startswith("optimizers") else []
    gin.clear_config()
    try:
        gin_files.parse_gin_flags([*run, f"gin/{name}"], [f"TRAIN_STEPS = {steps}"] if run else [])
        rate = gin.query_parameter("trainer.Trainer.learning_rate_fn").scoped_configurable_fn()
    finally:
        gin.clear_config()
    rates = np.broadcast_to(rate(jnp.arange(steps)), steps)
    found = [rates[0], rates.max(), rates.argmax(), rates[-1]]
    np.testing.assert_allclose(found, [first, highest, at, last], rtol=3e-3)
