"""A project as T5X's users have it, who pre-trained four models on a private corpus: gin files and task modules.

They know only T5X's names. Each recipe is three files: `NAME.gin`, `NAME_pretrain.gin` and `NAME_tasks.py`.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

TASK, BYTE_TASK = "my_span_corruption_stream", "byt5_my_span_corruption_stream"
# In a bucket; the multilingual one is what T5X's own files of mT5 name.
VOCABULARY = "my-bucket/sentencepiece/mine.model"
MULTILINGUAL = "t5-data/vocabs/mc4.250000.100extra/sentencepiece.model"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What the recipes differ in.

    Attributes:
      model: T5X's file.
      targets: of 512 inputs.
      steps: TRAIN_STEPS, which counts those of an initial checkpoint.
      partitions: of the model axis.
      checkpoint: what training goes on from.
      rate: base_learning_rate.
    """

    model: str
    targets: int
    steps: int
    partitions: int
    checkpoint: str = ""
    rate: float = 1.0


RECIPES = {
    "my_t5_base": Recipe("t5_1_1/base", 256, 2_000_000, 2),
    "my_t5_large": Recipe("t5_1_1/large", 512, 2_000_000, 4),
    "my_mt5_base": Recipe("mt5/base", 256, 2_000_000, 2, "mt5_base/checkpoint_1000000", 0.4),
    "my_mt5_large": Recipe("mt5/large", 512, 1_500_000, 2, "mt5_large/checkpoint_1000000", 0.5),
}

_RUN = """
include 't5x/examples/t5/{model}.gin'
include '{name}_pretrain.gin'
{vocabulary}
import t5.data.mixtures
import {name}_tasks

MIXTURE_OR_TASK_NAME = "{task}"
TASK_FEATURE_LENGTHS = {{"inputs": 512, "targets": {targets}}}
TRAIN_STEPS = {steps}
DROPOUT_RATE = 0.0
{initial}PjitPartitioner.num_partitions = {partitions}
"""

_VOCABULARY = """
network.T5Config:
  vocab_size = 64000

VOCABULARY = @seqio.SentencePieceVocabulary()
seqio.SentencePieceVocabulary.sentencepiece_model_file = "gs://{file}"
"""

_PRETRAIN = """
from __gin__ import dynamic_registration
import __main__ as train_script
from t5x import partitioning
from t5x import trainer
from t5x import utils

include 't5x/configs/runs/pretrain.gin'

{macro}USE_CACHED_TASKS = True
train_script.train.eval_steps = 20
utils.SaveCheckpointConfig:
  period = 10000
  keep = 5
  save_dataset = False
{restore}
utils.create_learning_rate_scheduler:
  factors = 'constant * rsqrt_decay'
  base_learning_rate = {rate}
  warmup_steps = 10000
"""

_RESTORE = """
utils.RestoreCheckpointConfig:
  path = %INITIAL_CHECKPOINT_PATH
  mode = 'specific'
  dtype = 'float32'
"""

# A generator without an end, read by `datasets` with a token; only `targets` is declared; the cache is never made.
_TASKS = """
import functools

import seqio
import t5.data
import tensorflow as tf
from datasets import load_dataset
from seqio import FunctionDataSource, utils
from t5.data import postprocessors
from t5.data import preprocessors
from t5.evaluation import metrics

vocabulary = seqio.SentencePieceVocabulary("gs://{vocabulary}", extra_ids=0)
byte_vocabulary = t5.data.ByteVocabulary()


def documents(split, column="text"):
    dataset = load_dataset("json", data_files={files}, use_auth_token=True, streaming=True)
    while True:
        for row in dataset[split]:
            yield row[column]


def make_dataset(split, shuffle_files, seed=None):
    return tf.data.Dataset.from_generator(
        functools.partial(documents, split), output_signature=tf.TensorSpec([], tf.string)
    )


@utils.map_over_dataset
def to_features(text, features, name):
    return {{**features, name: text}}


for name, feature in (
    ("{task}", seqio.Feature(vocabulary, add_eos=True)),
    ("{byte_task}", seqio.Feature(byte_vocabulary, add_eos=True)),
):
    seqio.TaskRegistry.add(
        name,
        source=FunctionDataSource(make_dataset, splits=("train", "validation"), caching_permitted=False),
        preprocessors=[
            functools.partial(to_features, features={{"inputs": None, "targets": None}}, name="targets"),
            seqio.preprocessors.tokenize,
            preprocessors.span_corruption,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={{"targets": feature}},
        metric_fns=[],
    )
"""


def write(folder: Path, corpus: Mapping[str, str]) -> None:
    """Writes the files of all recipes into a folder. `corpus` has the JSON-lines file of each split."""
    for name, recipe in RECIPES.items():
        goes_on = bool(recipe.checkpoint)
        initial = f'INITIAL_CHECKPOINT_PATH = "gs://t5-data/pretrained_models/t5x/{recipe.checkpoint}"\n'
        values = dataclasses.asdict(recipe) | {
            "name": name,
            "task": TASK,
            "byte_task": BYTE_TASK,
            "files": dict(corpus),
            "initial": initial if goes_on else "",
            "macro": "INITIAL_CHECKPOINT_PATH = %gin.REQUIRED\n" if goes_on else "",
            "restore": _RESTORE if goes_on else "",
        }
        own = "" if goes_on else _VOCABULARY.format(file=VOCABULARY)
        file = MULTILINGUAL if goes_on else VOCABULARY
        for suffix, template, vocabulary in (
            (".gin", _RUN, own),
            ("_pretrain.gin", _PRETRAIN, ""),
            ("_tasks.py", _TASKS, file),
        ):
            text = template.format(**values, vocabulary=vocabulary)
            (folder / f"{name}{suffix}").write_text(text, encoding="utf-8")
