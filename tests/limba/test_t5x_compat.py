import subprocess
import sys

import pytest

from limba import t5x_compat

# In a process of its own: what it puts into sys.modules should not reach other tests.
_CHECK = """
from limba import t5x_compat
t5x_compat.install()
t5x_compat.install()
import sys
assert "limba.adafactor" not in sys.modules, "aliases are lazy"
import t5x.adafactor, limba.adafactor
from t5x import models, partitioning, trainer, utils, losses
from t5x.examples.t5 import network
import limba.models, limba.network, limba.data, limba.schedules, limba.checkpoints
assert t5x.adafactor.Adafactor is limba.adafactor.Adafactor
assert models.EncoderDecoderModel is limba.models.EncoderDecoderModel
assert network.T5Config is limba.network.T5Config
assert utils.DatasetConfig is limba.data.DatasetConfig
assert utils.create_learning_rate_scheduler is limba.schedules.create_learning_rate_scheduler
assert utils.SaveCheckpointConfig is limba.checkpoints.SaveCheckpointConfig
for broken in ("t5x.adafactr", "t5x.contrib.moe"):
    try:
        __import__(broken)
    except ModuleNotFoundError as error:
        print(error)
try:
    utils.DatasetConfg
except AttributeError as error:
    print(error)
"""


def test_t5x_names_are_ours():
    out = subprocess.run([sys.executable, "-c", _CHECK], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[0] == "Limba does not provide t5x.adafactr. It provides t5x.adafactor."
    assert out[1].startswith("Limba does not provide t5x.contrib")
    assert out[2] == "Limba does not provide t5x.utils.DatasetConfg. Did you mean DatasetConfig?"


@pytest.mark.parametrize(("value", "words"), [("both", "'alias'"), ("installed", "no module t5x")])
def test_the_choice_of_engine_is_explicit(monkeypatch, value, words):
    monkeypatch.setenv("LIMBA_T5X", value)
    with pytest.raises(ValueError, match=words):
        t5x_compat.uses_installed_t5x()
