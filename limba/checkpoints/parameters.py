"""Loads the parameters of a checkpoint onto the mesh, for commands that use a model without training it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba.checkpoint_files import saved_tensors
from limba.checkpoints import checkpointing, restore
from limba.checkpoints.train_state import TrainState
from limba.files import storage
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner
from limba.workers import distributed

PyTree = Any


def refuse_train_state_initializer(initializer_cls: Any, where: str) -> None:
    """Raises ValueError for an initializer: parameters are restored without one."""
    if initializer_cls is not None:
        raise ValueError(
            f"{where}.train_state_initializer_cls is {initializer_cls!r}, but parameters are restored without one; "
            "remove it, and use RestoreCheckpointConfig.state_transformation_fns to change tensors."
        )


def no_checkpoint() -> ValueError:
    return ValueError("No checkpoint: RestoreCheckpointConfig.path (CHECKPOINT_PATH) is empty.")


def load_model_params(
    model: BaseTransformerModel,
    partitioner: PjitPartitioner,
    config: checkpointing.RestoreCheckpointConfig,
    checkpoint: str | None = None,
    fallback_init_rng: int | None = None,
) -> tuple[PyTree, PyTree]:
    """Parameters of a checkpoint on the mesh, and their shardings.

    Args:
      checkpoint: one of the checkpoints of `config`; None if it has only one.
      fallback_init_rng: seed of the parameters that the checkpoint lacks, with `config.fallback_to_scratch`.

    Raises:
      ValueError: if there is no checkpoint, or no seed with `config.fallback_to_scratch`.
    """
    checkpoint = checkpoint or distributed.from_first("checkpoint", lambda: config.checkpoint)
    if checkpoint is None:
        raise no_checkpoint()
    shapes, axes = model.param_shapes_and_axes()
    partitioner.check_shapes(shapes, axes)
    shardings = partitioner.shardings(axes)
    dtype = jnp.dtype(config.dtype or "float32")
    sharded = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, dtype, sharding=s), shapes, shardings)
    if not config.fallback_to_scratch:
        return checkpointing.load_sharded_params(checkpoint, sharded, config), shardings
    if fallback_init_rng is None:
        raise ValueError("RestoreCheckpointConfig.fallback_to_scratch needs a seed: set fallback_init_rng.")

    def scratch() -> TrainState:
        params = model.initial_variables(jax.random.key(fallback_init_rng))["params"]
        return TrainState(step=jnp.int32(0), params=params, opt_state={})

    step: Any = jax.ShapeDtypeStruct((), np.int32, sharding=partitioner.replicated)
    # The checkpoint's optimizer state is extra here, which is not an error.
    lenient = dataclasses.replace(config, strict=False)
    state = restore.load_state(checkpoint, TrainState(step=step, params=sharded, opt_state={}), lenient, scratch)
    return state.params, shardings


def checkpoint_step(checkpoint: str) -> int:
    """The step of a checkpoint: the number of updates before it was saved."""
    return int(saved_tensors.open_tensors(storage.as_path(checkpoint))["state/step"].read(()))
