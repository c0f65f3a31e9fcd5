"""A hundred steps of a small network, with an evaluation of both kinds at the end."""

from pathlib import Path

from limba.checkpoints import checkpointing
from limba.data.contract import DatasetConfig
from limba.inference import task_metrics
from limba.optimizers import schedules
from limba.reports import writers
from limba.train import train
from limba.training import trainer
from tests.limba import small


def metrics_of_training(
    model,
    task: str,
    lengths: dict[str, int],
    model_dir: Path,
    steps: int = 100,
    restore: checkpointing.RestoreCheckpointConfig | None = None,
) -> list[dict]:
    """Trains, and returns the lines of metrics.jsonl."""
    train_data, validation_data = (DatasetConfig(task, lengths, split, 32, seed=0) for split in ("train", "validation"))
    train(
        model=model,
        train_dataset_cfg=train_data,
        train_eval_dataset_cfg=validation_data,
        infer_eval_dataset_cfg=validation_data,
        inference_evaluator_cls=task_metrics.Evaluator,
        checkpoint_cfg=checkpointing.CheckpointConfig(
            save=checkpointing.SaveCheckpointConfig(period=1000), restore=restore
        ),
        partitioner=small.partitioner(),
        trainer_cls=lambda **arguments: trainer.Trainer(
            learning_rate_fn=schedules.create_learning_rate_scheduler("constant", 0.005), **arguments
        ),
        model_dir=str(model_dir),
        total_steps=steps,
        eval_period=steps,
        random_seed=0,
    )
    return writers.read_metrics(model_dir)
