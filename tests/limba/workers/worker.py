"""One worker of the runs in test_many_processes: `limba train` on NumPy batches, without TensorFlow.

    python -m tests.limba.workers.worker --gin_file=tests/limba/workers/many.gin [flags of limba train]

What a test wants to go wrong is in environment variables: `BREAK_AT=kill:1:4` kills worker 1 when it is asked for its
batch 4; `term` sends it SIGTERM there, with `stall` no batch comes after it, `error` raises one, and `nan` makes the
loss of its rows NaN. `REVISION` and `VOCABULARY` are the corpus and the vocabulary of this
worker, `DUMP` is a folder where worker 0 writes the whole state that it saves.
"""

import os
import signal
import sys
import time
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.experimental import multihost_utils

from limba import command_line, train
from limba.inference import tasks_door
from limba.network import layers
from limba.workers import distributed
from tests.limba import small


class Rows(small.Stream):
    """The rows of `small.Stream` that one group of hosts reads."""

    def __init__(self, shard_id: int, num_shards: int):
        super().__init__()
        self.own = slice(shard_id * self.rows // num_shards, (shard_id + 1) * self.rows // num_shards)
        self.what, index, batch = os.environ.get("BREAK_AT", "none:0:0").split(":")
        self.break_at = int(batch) if int(index) == distributed.process_index() else None

    def __next__(self):
        breaks = self.next == self.break_at and self.what != "none"
        if breaks and self.what == "kill":
            # The others have heard of its last step then: before its first, a worker may be silent for longer.
            time.sleep(3)
            os.kill(os.getpid(), signal.SIGKILL)
        if breaks and self.what in ("term", "stall"):
            os.kill(os.getpid(), signal.SIGTERM)
        if breaks and self.what == "stall":
            time.sleep(120)
        if breaks and self.what == "error":
            raise OSError("Shard 7 cannot be read")
        rows = {name: x[self.own] for name, x in super().__next__().items()}
        weight = np.float32(np.nan if breaks and self.what == "nan" else 1)
        rows["decoder_loss_weights"] = rows["decoder_loss_weights"] * weight
        return rows


def open_rows(config, shard_id, num_shards, feature_converter_cls):
    """A `GetDatasetFn`."""
    return Rows(shard_id, num_shards)


def open_eval_rows(config, shard_id, num_shards, eval_steps, feature_converter_cls):
    """A `GetEvalDatasetFn`: two batches of one task."""
    count = config.batch_size // num_shards
    own = slice(shard_id * count, (shard_id + 1) * count)
    return {"counter": [{name: x[own] for name, x in small.batch(100 + i).items()} for i in range(2)]}


def facts(config):
    """In place of `limba.inference.tasks_door.facts`, which knows tasks of SeqIO."""
    return {"revision of counter": os.environ.get("REVISION", "r1")}


class Network(nn.Module):
    """A bag of words that predicts the next one: compiled in a second, with parameters over both axes of a mesh."""

    @nn.compact
    def __call__(
        self, encoder_input_tokens, decoder_input_tokens, decoder_target_tokens, *, enable_dropout=True, **others
    ):
        embed = layers.Embed(small.VOCAB_SIZE, 16, dtype=jnp.float32, name="token_embedder")
        bag = embed(encoder_input_tokens).mean(axis=1, keepdims=True)
        hidden = layers.DenseGeneral(32, kernel_axes=("embed", "mlp"), dtype=jnp.float32, name="wi")(
            bag + embed(decoder_input_tokens)
        )
        return layers.DenseGeneral(small.VOCAB_SIZE, kernel_axes=("mlp", "vocab"), dtype=jnp.float32, name="wo")(
            nn.relu(hidden)
        )


def tiny_model():
    model = small.model(module=Network())
    if file := os.environ.get("VOCABULARY"):
        model.output_vocabulary.sentencepiece_model_file = file
    return model


def dump(state, infos):
    """A `SaveStateTransformationFn` that changes nothing: worker 0 writes the arrays that are about to be saved."""
    if folder := os.environ.get("DUMP"):
        flat = {name: _whole(x) for name, x in traverse_util.flatten_dict(state, sep="/").items()}
        if jax.process_index() == 0:
            np.savez(Path(folder) / f"state_{int(flat['state/step'])}.npz", **flat)
    return state, infos


def _whole(array):
    return np.asarray(multihost_utils.process_allgather(array, tiled=True)) if hasattr(array, "sharding") else array


def main(argv):
    # As if it were a task of SeqIO.
    tasks_door.get_dataset, tasks_door.facts = open_rows, facts
    return train.main(argv)


if __name__ == "__main__":
    from tests.limba.workers import worker as _this

    command_line.run_command(_this.main, sys.argv[1:])
