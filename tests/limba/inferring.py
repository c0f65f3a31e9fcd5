"""A model and tasks for tests of inference: predictions by a formula, so that every row can be checked."""

import jax
import jax.numpy as jnp
import numpy as np
import seqio
import tensorflow as tf

from limba.checkpoints import checkpointing, train_state
from limba.models import metrics
from tasks.pipeline import predictions as task_inference

__all__ = ["FormulaModel", "register_task", "save_checkpoint", "task_inference"]

VOCABULARY = seqio.ByteVocabulary()
LENGTHS = {"inputs": 8, "targets": 4}


class FormulaModel:
    """Answers with the first bytes of the input moved on by `shift`, a parameter; scores are sums of targets."""

    FEATURE_CONVERTER_CLS = "EncDecFeatureConverter"
    input_vocabulary = output_vocabulary = VOCABULARY

    def param_shapes_and_axes(self):
        params = {"shift": jax.ShapeDtypeStruct((4,), jnp.float32), "unused": jax.ShapeDtypeStruct((8,), jnp.float32)}
        return params, {"shift": jax.sharding.PartitionSpec("length"), "unused": jax.sharding.PartitionSpec("length")}

    def predict_batch(self, params, batch, rng=None):
        return self.predict_batch_with_aux(params, batch, rng)[0]

    def predict_batch_with_aux(self, params, batch, rng=None):
        start = batch["encoder_input_tokens"][:, :4]
        noise = jax.random.randint(rng, start.shape, 0, 3)
        tokens = jnp.where(start > 2, start + params["shift"].astype(jnp.int32) + noise, start)
        return tokens, {"scores": jnp.sum(tokens, axis=1) / 2}

    def eval_fn(self, params, batch):
        count = jnp.sum(batch["decoder_loss_weights"]).astype(jnp.float32)
        nats = metrics.Ratio(count * (1 + params["shift"][0]), count)
        return nats.total, {"nats_per_target_token": nats, "accuracy": metrics.Ratio(count / 4, count)}

    def score_batch(self, params, batch):
        return -jnp.sum(batch["decoder_target_tokens"], axis=1).astype(jnp.float32) * params["shift"][0]


def save_checkpoint(model_dir, shift: int, step: int) -> str:
    params = {"shift": jnp.full((4,), float(shift)), "unused": jnp.arange(8.0)}
    state = train_state.TrainState(step=jnp.int32(step), params=params, opt_state={})
    checkpointer = checkpointing.Checkpointer(model_dir, checkpointing.SaveCheckpointConfig())
    checkpointer.save(state, None, {})
    checkpointer.close()
    return str(checkpointing.checkpoint_path(model_dir, step))


def _examples(split, shuffle_files=False, seed=None):
    del split, shuffle_files, seed
    texts = [f"{chr(97 + i % 26) * 3}{i:02}" for i in range(23)]
    return tf.data.Dataset.from_tensor_slices({"inputs": texts, "targets": [text[:3] for text in texts]})


def _first_letters_equal(targets, predictions):
    return {"first": float(np.mean([t[:1] == p[:1] for t, p in zip(targets, predictions, strict=True)]))}


def _mean_score(targets, scores):
    assert len(targets) == len(scores)
    return {"mean_score": float(np.mean(scores))}


def _mean_aux(targets, predictions, aux_values):
    assert len(predictions) == len(targets)
    return {"mean_aux": float(np.mean(aux_values["scores"]))}


def register_task(name: str = "inference_letters", examples=_examples) -> str:
    """23 examples `aaa00`, `bbb01` …, with targets `aaa`, `bbb` … and a metric of each kind."""
    if name not in seqio.TaskRegistry.names():
        feature = seqio.Feature(vocabulary=VOCABULARY, add_eos=True)
        seqio.TaskRegistry.add(
            name,
            source=seqio.FunctionDataSource(examples, splits=("validation",), num_input_examples={"validation": 23}),
            preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
            output_features={"inputs": feature, "targets": feature},
            metric_fns=[_first_letters_equal, _mean_score, _mean_aux],
        )
    return name
