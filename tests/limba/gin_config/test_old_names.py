"""Names that modules had before: files of old runs and of users are read, and mean the modules of today."""

import importlib
import re
import subprocess
import sys

import gin
import pytest

from limba.gin_config import gin_files, importing, old_names
from limba.network.encoders import encoder
from tests import house

# As a run wrote it, shortened, when encoders had a room of their own.
OF_A_RUN = """
from __gin__ import dynamic_registration
from limba.checkpoints import checkpointing as checkpoints
from limba.data import contract as data
from limba.encoders import classifier
from limba.encoders import encoder
from limba.inference import metric_loggers
from limba.inference import task_metrics
from limba import models
from limba.optimizers import definitions as optimizers
from limba.partitioning import meshes as partitioning
from limba import train as train_script
from limba.training import trainer
import tasks.encoder_demo
from tasks import vocabularies

LABELS = ['glad', 'calm', 'sad']
MODEL = @models.EncoderClassifier()
OPTIMIZER = @optimizers.adamw()
VOCAB_SIZE = 384
VOCABULARY = @vocabularies.TokenizerVocabulary()
VOCABULARY_FILE = 'runs/encoder/vocab/tokenizer.json'

models.EncoderClassifier.labels = @vocabularies.LabelVocabulary()
models.EncoderClassifier.module = @classifier.SequenceClassifier()
models.EncoderClassifier.optimizer_def = %OPTIMIZER
models.EncoderClassifier.vocabulary = %VOCABULARY
classifier.SequenceClassifier.config = @encoder.EncoderConfig()
classifier.SequenceClassifier.labels = %LABELS
encoder.EncoderConfig.emb_dim = 128
encoder.EncoderConfig.max_positions = 64
encoder.EncoderConfig.vocab_size = %VOCAB_SIZE
vocabularies.LabelVocabulary.labels = %LABELS
vocabularies.TokenizerVocabulary.tokenizer_file = %VOCABULARY_FILE
"""


@pytest.fixture
def old_run(tmp_path):
    gin.clear_config()
    file = tmp_path / "model.gin"
    file.write_text(OF_A_RUN)
    yield str(file)
    gin.clear_config()


@pytest.mark.parametrize("more", ["runs/finetune.gin", "models/encoder_classifier.gin", "runs/eval_run.gin"])
def test_the_gin_file_of_an_old_run_is_read(old_run, more):
    """Alone it names `limba.encoders`; the files of today that come after it bind the same class by its new module."""
    gin_files.parse_files([old_run, f"gin/{more}"])
    assert gin_files.value_of("encoder.EncoderConfig.emb_dim") == 128
    gin.bind_parameter("encoder.EncoderConfig.max_positions", 32)
    config = gin.get_configurable(encoder.EncoderConfig)(dtype="float32", num_heads=4, head_dim=32, mlp_dim=8)
    assert type(config).__module__ == "limba.network.encoders.config"
    assert (config.emb_dim, config.max_positions, config.vocab_size) == (128, 32, 384)
    assert "tasks.examples.encoder" in sys.modules


def test_a_binding_counts_for_both_names(tmp_path):
    gin.clear_config()
    file = tmp_path / "both.gin"
    file.write_text(
        "from __gin__ import dynamic_registration\n"
        "from limba.kernels import target\nfrom limba.devices import target as new\n"
        "from limba.encoders import encoder\n"
        "from limba.network.encoders import encoder as bert\n"
        "encoder.EncoderConfig.emb_dim = 8\nbert.EncoderConfig.emb_dim = 16\n"
    )
    gin_files.parse_gin_flags([str(file)], [])
    assert gin_files.value_of("encoder.EncoderConfig.emb_dim") == 16
    gin.clear_config()


@pytest.mark.parametrize("old", [*old_names.MODULES, *old_names.ROOMS])
def test_old_names_are_the_modules_of_new_ones(old):
    module, new = importing.load(old), old_names.new_name(old)
    assert new in house.modules() and old not in house.modules()
    assert module is importlib.import_module(new)
    assert (module.__name__, module.__spec__.name) == (new, new)


def test_whatever_is_in_an_old_room_is_found():
    from limba.encoders.encoder import EncoderConfig
    from limba.machine import redaction, storage
    from limba.users_modules import importing as before

    assert (EncoderConfig, before) == (encoder.EncoderConfig, importing)
    assert (redaction.__name__, storage.__name__) == ("limba.files.redaction", "limba.files.storage")
    with pytest.raises(ModuleNotFoundError, match=r"limba\.machine\.nothing"):
        importlib.import_module("limba.machine.nothing")


def test_python_runs_modules_by_their_old_names(tmp_path):
    command = [sys.executable, "-m", "tasks.moods", "--out", str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=house.ROOT)
    assert not out.stderr and (tmp_path / "train.csv").is_file()


_DOTTED = re.compile(r"(?<![\w./-])(?:limba|tasks|convert)(?:\.\w+)+")
_FROM = re.compile(r"\bfrom ((?:limba|tasks|convert)(?:\.\w+)*) import \(?([\w, \n]+)")


def test_our_own_files_use_new_names():
    tracked = subprocess.run(["git", "ls-files"], cwd=house.ROOT, capture_output=True, text=True, check=True).stdout
    own = ("limba/gin_config/old_names.py", "tests/limba/gin_config/test_old_names.py")
    for file in tracked.split():
        if file in own or not file.endswith((".py", ".gin", ".sh", ".md")) or not (house.ROOT / file).is_file():
            continue
        text = (house.ROOT / file).read_text(encoding="utf-8")
        named = set(_DOTTED.findall(text))
        for module, names in _FROM.findall(text):
            named |= {f"{module}.{name.split()[0]}" for name in names.split(",") if name.strip()}
        old = {name: new for name in named if (new := old_names.new_name(name))}
        assert not old, f"{file} has old names, which are for users only"
