"""The trainer of a configuration: what is checked before it, how it is made, and the batches that its step takes.

`train()`, `limba precompile`, `limba plan` and `limba lint` make their trainers here.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from limba.checkpoints.train_state import TrainStateInitializer
from limba.data import contract, token_rows
from limba.files import missing_vocabulary
from limba.inference import tasks_door
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner
from limba.training import inputs
from limba.training.trainer import BaseTrainer

# Converters of rows with labels.
_OF_LABELS = ("EncoderClassificationFeatureConverter", "EncoderRegressionFeatureConverter")
# Of the features that are not int32.
_DTYPES = {"decoder_target_values": jnp.float32}

logger = logging.getLogger(__name__)


def make_trainer(
    trainer_cls: Callable[..., BaseTrainer],
    model: BaseTransformerModel,
    partitioner: PjitPartitioner,
    initializer: TrainStateInitializer | None = None,
    rng: jax.Array | None = None,
    summary_dir: str | None = None,
    **options: Any,
) -> BaseTrainer:
    """Calls `trainer_cls` with the arguments that T5X gives to trainers, and `options`.

    Args:
      initializer: has the shapes and shardings of the state; None makes one.
      rng: of dropout; None is for a trainer whose step is compiled and never runs.
    """
    if initializer is None:
        initializer = TrainStateInitializer(model.optimizer_def, model.initial_variables, partitioner)
    return trainer_cls(
        model=model,
        partitioner=partitioner,
        rng=jax.random.key(0) if rng is None else rng,
        train_state=initializer.train_state_shapes,
        train_state_axes=initializer.train_state_axes,
        eval_names=(),
        summary_dir=summary_dir,
        **options,
    )


def check_model(model: BaseTransformerModel, partitioner: PjitPartitioner, reads: bool = True) -> None:
    """Checks the vocabularies, as `check_vocabulary`; raises ValueError if the mesh does not divide the heads.

    Args:
      reads: whether the vocabularies may be read.
    """
    network = getattr(model.module, "config", None)
    for vocabulary in (model.input_vocabulary, model.output_vocabulary) if reads else ():
        check_vocabulary(vocabulary, network)
    if network is not None:
        partitioner.check_heads(network.num_heads)


def check_vocabulary(vocabulary: Any, network: Any) -> None:
    """Checks that a model's vocabulary can be read and fits the embedding; its sentinels are checked with the task.

    Args:
      network: the configuration of the network, whose `vocab_size` is the rows of the embedding; None if it has none.

    Raises:
      FileNotFoundError: if its file is missing.
      ValueError: if that is not a SentencePiece model or a tokenizer, or has more ids than the embedding has rows.
    """
    file = contract.vocabulary_file(vocabulary)
    if file and Path(file).is_dir():
        raise IsADirectoryError(f"The vocabulary {file} is a folder; bind VOCABULARY_FILE to the file in it.")
    if file and "://" not in file and not Path(file).is_file():
        raise FileNotFoundError(
            f"The vocabulary {file} does not exist (working directory {Path.cwd()}). Build one with "
            f"`{missing_vocabulary.build_command(file)}`, or bind VOCABULARY_FILE."
        )
    from google.protobuf.message import DecodeError

    try:
        size = vocabulary.vocab_size
    except (DecodeError, RuntimeError) as error:
        raise ValueError(
            f"The vocabulary {file} is not a SentencePiece model ({error}); bind VOCABULARY_FILE."
        ) from error
    rows = getattr(network, "vocab_size", None)
    if rows is not None and size > rows:
        field = f"{type(network).__name__}.vocab_size"
        sentinels = ", the sentinels first of all," if getattr(vocabulary, "extra_ids", 0) else ""
        raise ValueError(
            f"The vocabulary has {size} tokens and the embedding {rows} rows ({field}): the last {size - rows}"
            f"{sentinels} would be lost. Set {field} to at least {-(-size // 128) * 128}."
        )


def batch_to_compile(trainer: BaseTrainer, config: contract.DatasetConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """A batch as the trainer's step takes it, with shapes in place of data.

    Raises:
      ValueError: as `batch_shapes`, or if the batch does not divide by data shards and microbatches.
    """
    partitioner = trainer.partitioner
    partitioner.check_batch_size(config.batch_size, "batch_size", trainer.num_microbatches)
    has_types = token_rows.has_pairs(trainer.model.input_vocabulary)
    shapes = batch_shapes(config, trainer.model.FEATURE_CONVERTER_CLS, has_types)
    found = {name: jax.ShapeDtypeStruct(shape, _DTYPES.get(name, jnp.int32)) for name, shape in shapes.items()}
    found |= trainer.model.added_features(shapes)
    sharding = partitioner.data_sharding
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for name, x in found.items()}


def next_shapes(
    trainer: BaseTrainer, batches: contract.BatchIterator, config: contract.DatasetConfig
) -> dict[str, jax.ShapeDtypeStruct] | None:
    """The next batch of a training, as `batch_to_compile` has it; None if only data can tell, as of a user's stream."""
    if not isinstance(batches, contract.TaskBatches):
        return None
    try:
        return batch_to_compile(trainer, inputs.stage(batches, config))
    except ValueError as error:
        logger.debug("The step is not compiled ahead: %s", error)
        return None


def batch_shapes(
    config: contract.DatasetConfig, feature_converter: str | type, has_token_types: bool = False
) -> Mapping[str, tuple[int, int]]:
    """The features of a batch as SeqIO's converters make them, `[batch, length]`, and a mixture's `[batch, tasks]`.

    Rows with labels have `encoder_token_types` where a tokenizer.json makes them (`has_token_types`).

    Raises:
      ValueError: without lengths, or for a converter that is not known here.
    """
    lengths = config.task_feature_lengths
    if not lengths:
        raise ValueError("DatasetConfig.task_feature_lengths is empty, and without them nothing can be compiled.")
    converter = feature_converter if isinstance(feature_converter, str) else feature_converter.__name__
    if converter == "DecoderFeatureConverter":  # SeqIO chooses by the features of the task.
        converter = "PrefixLMFeatureConverter" if "inputs" in lengths else "LMFeatureConverter"
    names = ["decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"]
    match converter:
        case "EncDecFeatureConverter":
            sides = {"encoder": lengths["inputs"], "decoder": lengths["targets"]}
            names.append("encoder_input_tokens")
        case "MaskedLanguageModelFeatureConverter":
            sides = {"encoder": lengths["inputs"], "decoder": lengths["targets"], "masked": lengths["targets"]}
            names = ["encoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights", "masked_lm_positions"]
            if "pair_labels" in lengths:
                sides["pair"] = lengths["targets"] if config.pack else 1
                names += ["encoder_token_types", "pair_positions", "pair_labels"]
        case "EncoderClassificationFeatureConverter" | "TextPairFeatureConverter":
            sides = {"encoder": lengths["inputs"], "decoder": lengths["targets"]}
            names = ["encoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"]
        case "EncoderRegressionFeatureConverter":
            sides = {"encoder": lengths["inputs"], "decoder": lengths["targets"]}
            names = ["encoder_input_tokens", "decoder_target_tokens", "decoder_target_values", "decoder_loss_weights"]
        case "LMFeatureConverter":
            sides = {"decoder": lengths["targets"]}
        case "PrefixLMFeatureConverter":
            sides = {"decoder": lengths["inputs"] + lengths["targets"]}
            names.append("decoder_causal_attention")
        case _:
            raise ValueError(f"The shapes of {converter} are not known without data; `limba train` compiles with them.")
    if has_token_types and converter in _OF_LABELS:
        names.append("encoder_token_types")
    if config.pack:
        stacks = [side for side in ("encoder", "decoder") if side in sides]
        packed = [f"{side}_{name}" for side in stacks for name in ("segment_ids", "positions")]
        names += [name for name in packed if "masked" not in sides or name != "decoder_positions"]
    shapes = {name: (config.batch_size, sides[name.partition("_")[0]]) for name in names}
    # The step of a mixture reports losses by task, and is another program.
    if converter == "EncDecFeatureConverter" and not config.pack and (tasks := _num_tasks(config)) > 1:
        shapes["example_tasks"] = (config.batch_size, tasks)
    return shapes


def _num_tasks(config: contract.DatasetConfig) -> int:
    """How many tasks a mixture has; 1 for a task, and, with a warning, for a name that nobody has registered yet."""
    reason = f"No module of the configuration registers {config.name!r}."
    # Otherwise nothing can be registered, and libraries of data stay out.
    if config.module is not None or {"limba.tasks.registry", "seqio"} & sys.modules.keys():
        try:
            return tasks_door.num_tasks(config)
        except ValueError as error:
            reason = str(error)
    logger.warning("%s Its step is compiled as that of a single task; a mixture's is another one.", reason)
    return 1
