"""Training an encoder on, from a run that a converter wrote, as `limba train` does with its model.gin."""

from pathlib import Path

import gin

from limba.checkpoints import checkpointing
from limba.data.contract import DatasetConfig
from limba.gin_config import gin_files
from limba.models import EncoderOnlyModel
from limba.network.encoders import encoder
from limba.optimizers import adafactor, schedules
from limba.train import train
from limba.training import trainer
from tasks import objectives, pretraining
from tasks.registry import TaskRegistry
from tasks.vocabularies import TokenizerVocabulary
from tests.limba import small


def train_on(begun: Path, corpus: dict[str, str], out: Path, total_steps: int) -> None:
    """Masked language modelling in float32 until a step, with the vocabulary of the run.

    Args:
      corpus: JSON lines by split.
    """
    vocabulary = TokenizerVocabulary(str(begun / "tokenizer.json"))
    task = pretraining.register_pretraining_task(
        "training_on", data_files=corpus, vocabulary=vocabulary, objective=objectives.MaskedLM()
    )
    gin.clear_config()
    gin_files.parse_gin_flags([str(begun / "model.gin")], ["encoder.EncoderConfig.dtype = 'float32'"])
    optimizer = adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules())
    model = EncoderOnlyModel(gin.get_configurable(encoder.MaskedLanguageModel)(), vocabulary, optimizer)
    lengths = objectives.lengths(objectives.MaskedLM(), 32)
    try:
        train(
            model=model,
            train_dataset_cfg=DatasetConfig(task.name, lengths, "train", 8, seed=0),
            checkpoint_cfg=checkpointing.CheckpointConfig(
                save=checkpointing.SaveCheckpointConfig(period=2),
                restore=checkpointing.RestoreCheckpointConfig(path=str(begun)),
            ),
            partitioner=small.partitioner(),
            trainer_cls=lambda **arguments: trainer.Trainer(
                learning_rate_fn=schedules.create_learning_rate_scheduler("constant", 0.02), **arguments
            ),
            model_dir=str(out),
            total_steps=total_steps,
            eval_period=2,
            stats_period=2,
            random_seed=0,
        )
    finally:
        TaskRegistry.remove(task.name)
