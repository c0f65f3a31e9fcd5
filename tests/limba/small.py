"""Small models and batches for the tests of the engine."""

import functools
from typing import Any, ClassVar

import jax
import numpy as np

from limba import models
from limba.checkpoints import checkpointing
from limba.data.contract import DatasetConfig
from limba.models import decoding
from limba.network import t5
from limba.optimizers import adafactor, schedules
from limba.partitioning import meshes
from limba.reports import writers
from limba.training import trainer

VOCAB_SIZE = 256

# Fields of a model for tests that ask nothing of the network: it compiles in half the time.
TINY = {
    "emb_dim": 16, "num_heads": 2, "head_dim": 8, "num_encoder_layers": 1, "num_decoder_layers": 1, "mlp_dim": 16
}  # fmt: skip

TWO_LAYERS = {"num_encoder_layers": 2, "num_decoder_layers": 2}


class FixedVocabulary:
    """A vocabulary of numbers: what the engine needs of one, without a file."""

    vocab_size = VOCAB_SIZE
    eos_id = 1
    extra_ids = 100

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(str(i) for i in ids)


def config(**fields) -> t5.T5Config:
    """One layer a stack, which compiles in half the time of two; a scan has two, so that its layers differ."""
    layers = 2 if fields.get("scan_layers") else 1
    defaults = {
        "vocab_size": VOCAB_SIZE,
        "emb_dim": 128,
        "num_heads": 4,
        "head_dim": 32,
        "num_encoder_layers": layers,
        "num_decoder_layers": layers,
        "mlp_dim": 128,
        "mlp_activations": ("gelu", "linear"),
        "dropout_rate": 0.0,
    }
    return t5.T5Config(**(defaults | fields))


def model(
    optimizer=None,
    loss_normalizing_factor=None,
    label_smoothing=0.0,
    module=None,
    decode_fn=decoding.beam_search,
    **fields,
) -> models.EncoderDecoderModel:
    vocabulary = FixedVocabulary()
    if optimizer is None:
        optimizer = adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules())
    return models.EncoderDecoderModel(
        module or t5.Transformer(config(**fields)),
        vocabulary,
        vocabulary,
        optimizer,
        decode_fn=decode_fn,
        z_loss=1e-4,
        label_smoothing=label_smoothing,
        loss_normalizing_factor=loss_normalizing_factor,
    )


def loss(model: models.BaseTransformerModel, params: Any, batch: Any) -> Any:
    """`model.loss_fn` without dropout, as one program: each of its operations alone would be compiled, too."""
    return jax.jit(lambda params, batch: model.loss_fn(params, batch, None))(params, batch)


def call(network: Any, params: Any, *arguments: Any, **others: Any) -> Any:
    """`network.apply` without dropout, as one program."""
    return jax.jit(lambda params, *x: network.apply({"params": params}, *x, enable_dropout=False, **others))(
        params, *arguments
    )


def predictions(model: models.BaseTransformerModel, params: Any, batch: Any, **options: Any) -> Any:
    """`model.predict_batch_with_aux`, as one program."""
    return jax.jit(lambda params, batch: model.predict_batch_with_aux(params, batch, **options))(params, batch)


def random_params(model_: models.EncoderDecoderModel, seed: int = 0) -> Any:
    """Parameters of the size of T5X's initial ones, for tests of what a network does with them.

    Each random tensor of `initial_variables` is a program of its own to compile: together they take several times as
    long as the network.
    """
    rng = np.random.default_rng(seed)

    def draw(path, like):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name.endswith("scale"):
            return np.ones(like.shape, like.dtype)
        deviation = 1.0 if name.endswith("embedding") and "rel_" not in name else like.shape[0] ** -0.5
        if "query" in name:  # attention scales its initial queries and not its logits
            deviation /= 32**0.5
        return rng.normal(0, deviation, like.shape).astype(like.dtype)

    return jax.tree_util.tree_map_with_path(draw, model_.param_shapes_and_axes()[0])


def partitioner(num_devices: int = 1, num_partitions: int = 1, rules=None) -> meshes.PjitPartitioner:
    return meshes.PjitPartitioner(num_partitions, logical_axis_rules=rules, devices=jax.devices()[:num_devices])


def make_trainer(model_=None, partitioner_=None, num_microbatches=None, learning_rate=0.01) -> trainer.Trainer:
    return trainer.Trainer(
        model_ or model(),
        partitioner_ or partitioner(),
        schedules.create_learning_rate_scheduler("constant", learning_rate),
        num_microbatches=num_microbatches,
    )


@functools.cache
def tiny_model() -> models.EncoderDecoderModel:
    """One model for all trainings that ask nothing of it; `SharedTrainer` compiles its steps once."""
    made = model(dropout_rate=0.1, **TINY)
    vars(made)["initial_variables"] = jax.jit(made.initial_variables)  # which remembers its trace
    return made


_RATE = schedules.create_learning_rate_scheduler("constant", 0.01)


class SharedTrainer(trainer.Trainer):
    """A trainer that takes the steps of an earlier one of the same model, mesh and settings: they are compiled once.

    Tests of what happens between the steps call `train()` a hundred times; each would trace and load the same programs.
    """

    _steps: ClassVar[dict[tuple, Any]] = {}

    def __init__(self, learning_rate_fn=_RATE, **arguments):
        super().__init__(learning_rate_fn=learning_rate_fn, **arguments)

    def _shared(self, name, make):
        key = (
            *(name, self.model, self.num_microbatches, self.weight_metrics_computer, self._unscaled_rate_fn),
            *(self._rate_scale, str(jax.random.key_impl(self.rng)), jax.random.key_data(self.rng).tobytes()),
            *(self.partitioner.data_sharding, *jax.tree.leaves(self.state_shardings)),
        )
        if key not in self._steps:
            self._steps[key] = make()
        return self._steps[key]

    @functools.cached_property
    def _partitioned_train_step(self):
        return self._shared("train", trainer.Trainer._partitioned_train_step.func.__get__(self))

    @functools.cached_property
    def _partitioned_eval_step(self):
        return self._shared("eval", trainer.Trainer._partitioned_eval_step.func.__get__(self))


def batch(seed: int, rows: int = 8, inputs: int = 16, targets: int = 8) -> dict[str, np.ndarray]:
    """Random tokens; rows end at different lengths, so that padding and weights matter."""
    rng = np.random.default_rng(seed)
    encoder = rng.integers(3, VOCAB_SIZE, (rows, inputs), dtype=np.int32)
    decoder = rng.integers(3, VOCAB_SIZE, (rows, targets), dtype=np.int32)
    for row in range(rows):
        encoder[row, inputs - row % 5 :] = 0
        decoder[row, targets - row % 3 :] = 0
    return {
        "encoder_input_tokens": encoder,
        "decoder_target_tokens": decoder,
        "decoder_input_tokens": np.pad(decoder, ((0, 0), (1, 0)))[:, :-1],
        "decoder_loss_weights": (decoder > 0).astype(np.int32),
    }


class Stream:
    """An endless, resumable stream of `batch(0)`, `batch(1)` …: the contract of `limba.data.contract` in a counter."""

    def __init__(self, rows: int = 8, first: int = 0, broken_at: int | None = None):
        self.rows, self.next, self.broken_at = rows, first, broken_at

    def __iter__(self):
        return self

    def __next__(self):
        made = batch(self.next, self.rows)
        self.next += 1
        return made

    def save_state(self):
        return {"reader-0": str(self.next).encode()}

    def restore_state(self, state):
        self.next = int(state["reader-0"])


def training(model_dir: Any, total_steps: int) -> dict[str, Any]:
    """Arguments of `train()` for a tiny model on the counter stream, with a line of metrics for each step."""
    lengths = {"inputs": 16, "targets": 8}
    return {
        "model": tiny_model(),
        "train_dataset_cfg": DatasetConfig("counter", lengths, "train", 8, seed=0),
        "train_eval_dataset_cfg": DatasetConfig("counter", lengths, "validation", 8, seed=0),
        "partitioner": partitioner(),
        "trainer_cls": SharedTrainer,
        "model_dir": str(model_dir),
        "total_steps": total_steps,
        "eval_period": 2,
        "stats_period": 1,
        "random_seed": 7,
        "get_dataset_fn": lambda *_: Stream(),
        "verify_matching_vocabs_fn": None,
    }


def train(model_dir: Any, total_steps: int = 6, stream: Any = None, **options: Any) -> Any:
    """`train()` on the counter stream, or another, evaluating on two fixed batches; saves every second step."""
    from limba.train import train

    arguments = training(model_dir, total_steps) | {
        "checkpoint_cfg": checkpointing.CheckpointConfig(save=checkpointing.SaveCheckpointConfig(period=2)),
        "eval_period": 3,
        "get_dataset_fn": lambda *_: stream or Stream(),
        "train_eval_get_dataset_fn": lambda *_: {"counter": [batch(100), batch(101)]},
        "run_eval_before_training": True,
    }
    return train(**(arguments | options))


def train_losses(model_dir: Any) -> list[tuple[int, float]]:
    """The steps of a run and their losses, as metrics.jsonl has them."""
    return [(line["step"], line["loss"]) for line in writers.read_metrics(model_dir) if line["dataset"] == "train"]
