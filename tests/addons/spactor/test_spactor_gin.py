"""gin/runs/spactor.gin around the model of a run, and what inherits a bound method."""

import gin
import pytest

from limba import models
from limba.addons.spactor import spactor
from limba.gin_config import gin_files, model_file
from limba.models import EncoderDecoderModel
from tests.limba.gin_config import test_methods, test_model_file
from tests.limba.gin_config.test_methods import models_are_unregistered  # noqa: F401


@pytest.fixture(autouse=True)
def _configuration():
    gin.clear_config()
    yield
    gin.clear_config()


def test_what_a_run_puts_around_its_model_is_no_part_of_it(tmp_path):
    """A fine-tuning of a run with gin/runs/spactor.gin has a plain T5; so have commands that read its config.gin."""
    files = [test_model_file.TINY, "gin/runs/pretrain.gin", "gin/runs/spactor.gin"]
    bindings = [*test_model_file.TASK, "VOCABULARY = @vocabularies.ByteVocabulary()", "VOCAB_SIZE = 384"]
    gin_files.parse_gin_flags(files, bindings)
    model = test_model_file._model()
    assert isinstance(model, spactor.SpacTorModel) and model.steps == 1
    text = model_file.text()
    assert "spactor" not in text and "TRAIN_STEPS" not in text
    (tmp_path / model_file.NAME).write_text(text)
    gin.clear_config()
    gin_files.parse_gin_flags(
        [str(tmp_path / model_file.NAME), "gin/runs/finetune.gin"],
        [*test_model_file.TASK, "INITIAL_CHECKPOINT_PATH = 'x'"],
    )
    plain = test_model_file._model()
    assert type(plain) is EncoderDecoderModel and plain.module.config.emb_dim == model.module.config.emb_dim == 8


@pytest.mark.parametrize(
    ("model", "name"), [("decoder_only/base", "DecoderOnlyModel"), ("bert/tiny", "EncoderOnlyModel")]
)
def test_spactor_refuses_other_models(model, name):
    files = [f"gin/models/{model}.gin", "gin/runs/pretrain.gin", "gin/runs/spactor.gin"]
    gin_files.parse_gin_flags(files, [*test_model_file.TASK, "VOCABULARY = @vocabularies.ByteVocabulary()"])
    with pytest.raises(ValueError, match=rf"MODEL is {name}, and it takes an EncoderDecoderModel"):
        test_model_file._model()


@pytest.mark.usefixtures("models_are_unregistered")
def test_a_class_may_inherit_a_bound_method(tmp_path):
    (tmp_path / "mine.gin").write_text(
        f"{test_methods.LIMBA_S}{test_methods.METHOD}\nfrom limba.addons.spactor import spactor\n"
    )
    gin_files.parse_gin_flags([str(tmp_path / "mine.gin")], ["spactor.SpacTorModel.model = None"])
    made = gin.get_configurable(spactor.SpacTorModel)
    assert made.predict_batch_with_aux is gin.get_configurable(models.EncoderDecoderModel).predict_batch_with_aux
