"""T5X's side of `benchmarks.handover`, which starts this file in T5X's own interpreter; it needs T5X and not Limba.

    python handover_t5x.py KIT_GIN BATCHES OUT SAVE_TO CHECKPOINT…

T5X restores each checkpoint as its `train()` does, classic ones with `use_orbax=False`, and trains on the batches from
the checkpoint's step on. OUT gets, for each, the steps' `loss_per_nonpadding_target_token`. The state restored from the
first checkpoint is also saved below SAVE_TO, in T5X's Orbax format.
"""

import json
import sys
from pathlib import Path

import gin
import jax
import numpy as np
import seqio  # noqa: F401  (kits bind its vocabularies)
from t5x import checkpoints, partitioning, trainer, utils


def main(kit_gin: str, batches_file: str, out: str, save_to: str, *paths: str) -> None:
    jax.config.update("jax_default_matmul_precision", "highest")
    gin.parse_config_file(kit_gin)
    model = gin.query_parameter("%MODEL").scoped_configurable_fn()
    with np.load(batches_file) as arrays:
        batches = {name: arrays[name] for name in arrays.files}
    partitioner = partitioning.PjitPartitioner(
        num_partitions=1, logical_axis_rules=partitioning.standard_logical_axis_rules()
    )
    initializer = utils.TrainStateInitializer(
        optimizer_def=model.optimizer_def,
        init_fn=model.get_initial_variables,
        input_shapes={name: rows.shape[1:] for name, rows in batches.items()},
        input_types={name: rows.dtype for name, rows in batches.items()},
        partitioner=partitioner,
    )

    shared_trainer = None  # for all checkpoints: compiling costs more than the steps
    losses: dict[str, list[float]] = {}
    for path in paths:
        state, _ = utils.create_checkpoint_manager_and_restore(
            initializer,
            partitioner,
            utils.RestoreCheckpointConfig(path=path, mode="specific", dtype="float32"),
            restore_path=path,
            fallback_init_rng=None,
            use_orbax=not (Path(path) / "checkpoint").is_file(),
        )
        step = int(state.step)
        if shared_trainer is None:
            Path(save_to).mkdir()
            manager = checkpoints.OrbaxCheckpointManagerInterface(
                save_to, initializer.global_train_state_shape, partitioner
            )
            manager.save(state)
            manager.close()
            shared_trainer = gin.get_configurable(trainer.Trainer)(
                model=model,
                train_state=state,
                partitioner=partitioner,
                eval_names=[],
                summary_dir=None,
                train_state_axes=initializer.train_state_axes,
                rng=jax.random.PRNGKey(0),
            )
        shared_trainer.train_state = state
        losses[path] = []
        for s in range(step, len(batches["decoder_target_tokens"])):
            rows_of_step = {name: rows[s] for name, rows in batches.items()}
            summary = shared_trainer.train(iter([rows_of_step]), 1, start_step=s).result()
            losses[path].append(float(summary["loss_per_nonpadding_target_token"].value))
        print(f"T5X resumed from {path} at step {step}", file=sys.stderr, flush=True)
    Path(out).write_text(json.dumps(losses), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
