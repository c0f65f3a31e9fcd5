"""One worker of the runs in test_many_processes: `limba train` on NumPy batches, without TensorFlow.

    python -m tests.limba.worker --gin_file=tests/limba/many.gin [flags of limba train]

What a test wants to go wrong is in environment variables: `BREAK_AT=kill:1:4` kills worker 1 when it is asked for its
batch 4; `term` sends it SIGTERM, `raise` fails there, `nan` makes the weights of its batch infinite.
"""

import os
import signal
import sys

import numpy as np

from limba import distributed, gin_utils, train
from tests.limba import small


class Rows(small.Stream):
    """The rows of `small.Stream` that one group of hosts reads; breaks where a test says so."""

    def __init__(self, shard_id: int, num_shards: int):
        super().__init__()
        self.own = slice(shard_id * self.rows // num_shards, (shard_id + 1) * self.rows // num_shards)
        what, _, place = os.environ.get("BREAK_AT", "none:0:-1").partition(":")
        index, _, batch = place.partition(":")
        self.what = what if int(index) == distributed.process_index() else "none"
        self.break_at = int(batch)

    def __next__(self):
        number = self.next
        rows = {name: x[self.own] for name, x in super().__next__().items()}
        if number == self.break_at:
            rows = self._break(rows)
        return rows

    def _break(self, rows):
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.what == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.what == "raise":
            raise ValueError("shard 7 of the corpus cannot be read")
        elif self.what == "nan":
            return {**rows, "decoder_loss_weights": np.full(rows["decoder_loss_weights"].shape, np.nan, np.float32)}
        return rows


def open_rows(config, shard_id, num_shards, feature_converter_cls):
    """A `GetDatasetFn`."""
    return Rows(shard_id, num_shards)


def open_eval_rows(config, shard_id, num_shards, eval_steps, feature_converter_cls):
    """A `GetEvalDatasetFn`: two batches of one task."""
    count = config.batch_size // num_shards
    own = slice(shard_id * count, (shard_id + 1) * count)
    return {"counter": [{name: x[own] for name, x in small.batch(100 + i).items()} for i in range(2)]}


def tiny_model():
    return small.model(
        dropout_rate=0.0, emb_dim=16, num_heads=4, head_dim=8, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=32
    )


if __name__ == "__main__":
    gin_utils.run_command(train.main, sys.argv[1:])
