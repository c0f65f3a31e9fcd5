"""Methods in gin files: T5X's documentation binds `models.EncoderDecoderModel.predict_batch_with_aux.num_decodes`."""

import gin
import pytest
from gin import config as gin_config
from gin import selector_map

from limba import models
from limba.gin_config import gin_files, model_file


@pytest.fixture
def models_are_unregistered(monkeypatch):
    """A registration cannot be taken back; those of models that other tests of the process have made are put aside."""
    registry, inverse = selector_map.SelectorMap(), dict(gin_config._INVERSE_REGISTRY)
    for name, known in gin_config._REGISTRY.items():
        if name.startswith(("limba.models.", "limba.addons.")):
            inverse.pop(known.wrapped, None)
        else:
            registry[name] = known
    monkeypatch.setattr(gin_config, "_REGISTRY", registry)
    monkeypatch.setattr(gin_config, "_INVERSE_REGISTRY", inverse)
    gin.clear_config()
    yield
    gin.clear_config()


pytestmark = pytest.mark.usefixtures("models_are_unregistered")

LIMBA_S = """
from __gin__ import dynamic_registration
from limba import models
MODEL = @models.EncoderDecoderModel()
models.EncoderDecoderModel:
  module = None
  input_vocabulary = None
  output_vocabulary = None
  optimizer_def = None
  z_loss = 0.5
"""
T5X_S = """
from __gin__ import dynamic_registration
from t5x import models
include 'limba.gin'
models.EncoderDecoderModel.predict_batch_with_aux:
  num_decodes = 4
  return_all_decodes = True
models.EncoderDecoderModel.score_batch.return_intermediates = True
"""
METHOD = "models.EncoderDecoderModel.predict_batch_with_aux.num_decodes = 4"


@pytest.mark.parametrize(("text", "bindings"), [(T5X_S, []), ("include 'limba.gin'", [METHOD])])
def test_a_class_keeps_its_bindings_when_a_method_of_it_is_bound(tmp_path, monkeypatch, text, bindings):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "limba.gin").write_text(LIMBA_S)
    (tmp_path / "mine.gin").write_text(text)
    gin_files.parse_gin_flags(["mine.gin"], [*bindings, "models.EncoderDecoderModel.label_smoothing = 0.25"])
    model = gin_files.value_of("%MODEL")
    assert type(model).__name__ == "EncoderDecoderModel" and isinstance(model, models.EncoderDecoderModel)
    assert (model._z_loss, model._label_smoothing) == (0.5, 0.25)
    with pytest.raises(KeyError) as raised:
        model.predict_batch_with_aux(params=None, batch={})
    assert raised.traceback[-1].locals["num_decodes"] == 4


def test_what_decodes_is_in_the_configuration_of_a_run_before_it_is_called(tmp_path):
    """`limba eval RUN` decodes as the run did, whose files are written before its first evaluation."""
    decoding = (
        "from limba.models import decoding\nMODEL_ALPHA = 0.25\ndecoding.temperature_sample.topk = %MODEL_ALPHA\n"
    )
    unused = "from limba.optimizers import schedules\nschedules.warmup_constant.warmup_steps = 7\n"
    use = "models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample\n"
    run = "from limba import train as train_script\ntrain_script.train.model = %MODEL\n"
    (tmp_path / "mine.gin").write_text(f"{LIMBA_S}{decoding}{use}{METHOD}\n{unused}{run}")
    gin_files.parse_gin_flags([str(tmp_path / "mine.gin")], [])
    assert "topk" not in gin_files.operative_config(), "nothing refers to it yet"
    gin_files.value_of("%MODEL")
    text = gin_files.operative_config()
    assert "topk = %MODEL_ALPHA" in text and "\nMODEL_ALPHA = 0.25\n" in text and "warmup_steps" not in text
    for written in (text, model_file.text()):
        assert "predict_batch_with_aux.num_decodes = 4" in written
