"""A config.gin of somebody else tells its network and vocabulary without their modules."""

import pytest

from convert.model_files import t5_files

# As T5X writes it: imports that do not exist here, macros, references, scopes.
CONFIG = """
from __gin__ import dynamic_registration
import __main__ as train_script
import seqio
from their_project import tasks_ro
from t5x.examples.t5 import network

ACTIVATIONS = ('gelu', 'linear')
VOCABULARY = @seqio.SentencePieceVocabulary()
seqio.SentencePieceVocabulary.sentencepiece_model_file = 'gs://vocab/ro.model'
seqio.SentencePieceVocabulary.extra_ids = 100
network.T5Config:
  emb_dim = 768
  mlp_activations = %ACTIVATIONS
  vocab_size = %NOWHERE
train/utils.DatasetConfig.batch_size = 128
trainer.Trainer.learning_rate_fn = @utils.create_learning_rate_scheduler()
"""


def test_network_and_vocabulary():
    network, vocabulary = t5_files.read_gin(CONFIG, "config.gin")
    assert network == {"emb_dim": 768, "mlp_activations": ("gelu", "linear")}
    assert vocabulary == {
        "class": "SentencePieceVocabulary",
        "sentencepiece_model_file": "gs://vocab/ro.model",
        "extra_ids": 100,
    }


def test_bytes():
    text = "VOCABULARY = @seqio.ByteVocabulary()\nseqio.ByteVocabulary.extra_ids = 125\n"
    assert t5_files.read_gin(text, "")[1] == {"class": "ByteVocabulary", "extra_ids": 125}


def test_nothing_known():
    assert t5_files.read_gin("x.y = 1\n", "") == ({}, {})


def test_what_is_not_gin_is_named():
    with pytest.raises(ValueError, match=r"run/config.gin cannot be read as gin"):
        t5_files.read_gin("x.y = = 3\n", "run/config.gin")


@pytest.mark.parametrize(
    "text", ["x.y = " + "[" * 100_000, "x.y = [1,", "x.y = " + "9" * 5000, "x.y = '\0'", "A = (" * 3000]
)
def test_a_strangers_gin_file_is_named(text):
    with pytest.raises(ValueError, match=r"run/config.gin cannot be read as gin") as error:
        t5_files.read_gin(text, "run/config.gin")
    assert len(str(error.value)) < 400
