"""A run's model.gin and config.gin, as the first files of another training."""

import gin
import pytest

from limba.gin_config import gin_files, model_file
from limba.gin_config.operative_text import without_macro_scopes
from limba.models import lora
from limba.models.encoder_classifier import EncoderClassifier

TINY = "gin/models/t5_1_1/tiny.gin"
TASK = ("MODEL_DIR = 'x'", "MIXTURE_OR_TASK_NAME = 'mine'", "TASK_FEATURE_LENGTHS = {'inputs': 8}", "TRAIN_STEPS = 2")


@pytest.fixture(autouse=True)
def _configuration():
    gin.clear_config()
    yield
    gin.clear_config()


def _model():
    """The model that `train` would get."""
    return gin_files.value_of("train.model")


def test_a_pretraining_is_the_model_of_a_finetuning(tmp_path):
    (tmp_path / "own_layers_of_mine.py").write_text("def size(): return 24\n")
    recipe = tmp_path / "mine.gin"
    recipe.write_text(
        "from __gin__ import dynamic_registration\nfrom limba.network import t5 as network\n"
        "import limba.addons.examples.moods\n"
        f"import own_layers_of_mine\ninclude '{TINY}'\ninclude 'gin/runs/pretrain.gin'\n"
        "network.T5Config.emb_dim = @own_layers_of_mine.size()\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        gin_files.parse_gin_flags([str(recipe)], TASK)
        before = _model().module.config
        text = model_file.text()
        assert "limba.addons.examples.moods" not in text and "MODEL_DIR" not in text, "the model alone, not its data"
        (tmp_path / model_file.NAME).write_text(text)
        gin.clear_config()
        gin_files.parse_gin_flags(
            [str(tmp_path / model_file.NAME), "gin/runs/finetune.gin", "gin/runs/lora.gin"],
            [*TASK, "INITIAL_CHECKPOINT_PATH = 'x'", "DROPOUT_RATE = 0.0"],
        )
        gin_files.require_training_bindings()
        model = _model()
    assert isinstance(model.module, lora.LoRA)
    assert before.emb_dim == 24 and model.module.network.config == before


def test_a_pretrained_encoder_becomes_a_classifier(tmp_path):
    gin_files.parse_gin_flags(["gin/models/bert/tiny.gin", "gin/runs/pretrain.gin", "gin/optimizers/adamw.gin"], TASK)
    (tmp_path / model_file.NAME).write_text(model_file.text())
    gin.clear_config()
    bindings = [*TASK, "INITIAL_CHECKPOINT_PATH = 'x'", "LABELS = ['no', 'yes']"]
    gin_files.parse_gin_flags([str(tmp_path / model_file.NAME), "gin/runs/classify.gin"], bindings)
    assert gin.query_parameter("%MODEL").configurable.wrapped is EncoderClassifier
    assert gin.query_parameter("encoder.EncoderConfig.emb_dim") == 128


def test_what_is_read_after_a_config_gin_takes_precedence(tmp_path):
    gin_files.parse_gin_flags([TINY, "gin/runs/pretrain.gin"], TASK)
    assert _model().module.config.dropout_rate == 0.0
    written = gin_files.operative_config()
    assert "MODEL/network.T5Config.emb_dim" in written, "gin's own text has scopes of macros"
    (tmp_path / "config.gin").write_text(written)
    gin.clear_config()
    bindings = [*TASK, "INITIAL_CHECKPOINT_PATH = 'x'", "network.T5Config.emb_dim = 48"]
    gin_files.parse_gin_flags([str(tmp_path / "config.gin"), "gin/runs/finetune.gin", "gin/runs/lora.gin"], bindings)
    module = _model().module
    assert isinstance(module, lora.LoRA) and module.network.config.emb_dim == 48


def test_scopes_that_say_different_things_stay():
    text = (
        "A = @f()\nB = @f()\n# Parameters for A/f:\nA/f.same = \\\n    [1,\n     2]\nA/f.x = 1\n"
        "# Parameters for B/f:\nB/f.same = [1, 2]\nB/f.x = 2\nscope/f.y = 3\n"
    )
    unscoped = without_macro_scopes(text)
    assert "\nf.same = \\\n" in unscoped and "\nf.same = [1, 2]" in unscoped
    assert all(line in unscoped for line in ("\nA/f.x = 1\n", "\nB/f.x = 2\n", "\nscope/f.y = 3\n"))
    assert without_macro_scopes("A = @f()\nA/f.x = 1\n") == "A = @f()\nA/f.x = 1\n", "not written by gin"


def test_the_modules_of_a_run_s_tasks_may_be_elsewhere(tmp_path):
    """For answers to lines of text; a module whose network the run has is still needed."""
    tasks = "from __gin__ import dynamic_registration\nimport tasks_of_another_machine\n"
    tasks += "import limba.addons.examples.moods as moods\n"
    file = tmp_path / "config.gin"
    file.write_text(f"{tasks}include '{TINY}'\nDROPOUT_RATE = 0.0\n")
    with pytest.raises(gin_files.GinError, match="tasks_of_another_machine"):
        gin_files.parse_gin_flags([str(file)], [])
    gin_files.parse_gin_flags([str(file)], [], without_tasks=str(file))
    assert "limba.addons.examples.moods" not in gin_files.imported_modules()
    file.write_text(f"{tasks}include '{TINY}'\nDROPOUT_RATE = @tasks_of_another_machine.rate()\n")
    with pytest.raises(gin_files.GinError, match="tasks_of_another_machine"):
        gin_files.parse_gin_flags([str(file)], [], without_tasks=str(file))
