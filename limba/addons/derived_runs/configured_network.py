"""Whether a checkpoint's tensors are those of the network that its own configuration has, before they are read.

A tensor takes the memory of its shape, however small its file is.
"""

import argparse

import gin
import jax.numpy as jnp

from limba.checkpoint_files import run_folder
from limba.checkpoints import checkpointing, restore, run_configuration
from limba.files.storage import AnyPath
from limba.gin_config import gin_files, run_folders
from limba.models import BaseTransformerModel

# A mean has the parameters alone.
_PARAMETERS = checkpointing.RestoreCheckpointConfig(reset=("optimizer",))


def check(*, model: BaseTransformerModel, checkpoint: str) -> None:
    """Raises CheckpointMismatchError if parameters are missing, others, or of other shapes than those of the model."""
    shapes, _ = model.param_shapes_and_axes()
    state = checkpointing.TrainState(jnp.zeros((), jnp.int32), shapes, {})
    restore.check_state(checkpoint, state, _PARAMETERS)


def check_configured(checkpoint: AnyPath) -> None:
    """The same with the model of the checkpoint's config.gin; one of T5X has none.

    Raises:
      CheckpointMismatchError: as `check`.
      FileNotFoundError, GinError: if Limba wrote the checkpoint, and it has no configuration, or a damaged one.
    """
    if not run_folder.has_run_info(checkpoint):
        return
    run_folders.read_run(checkpoint)
    flags = argparse.Namespace(run_dir=str(checkpoint), gin_file=[], gin_bindings=[], gin_search_paths="")
    gin.clear_config()
    run_configuration.parse(flags, "gin/runs/average_checkpoints.gin", {}, needs_tasks=False)
    gin_files.configurable(check, module="limba.addons.derived_runs.configured_network")(checkpoint=str(checkpoint))
    gin.clear_config()
