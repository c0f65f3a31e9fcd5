"""Training that stops because a number is not finite names the layer, parameter or gradient, and possible causes."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.checkpoints import checkpointing
from limba.optimizers import definitions
from limba.train import NanLossError
from limba.training import not_finite, trainer
from tests.limba import small


def _initial(monkeypatch, name, edit):
    """Changes initial parameters of `small.tiny_model`, whose steps are compiled: those whose names begin so."""
    model = small.tiny_model()
    initial = model.initial_variables

    def changed(rng):
        def leaf(path, x):
            return edit(x) if jax.tree_util.keystr(path, simple=True, separator="/").startswith(name) else x

        variables = dict(initial(rng))
        return variables | {"params": jax.tree_util.tree_map_with_path(leaf, variables["params"])}

    monkeypatch.setitem(vars(model), "initial_variables", changed)


def test_the_layer_is_named_where_weights_are_not_finite(tmp_path, monkeypatch):
    """A step later, for no statistics are written; at once in the next test."""
    kernel = "decoder/layers_0/mlp/wo/kernel"
    _initial(monkeypatch, kernel, lambda x: x.at[0, 0].set(jnp.nan))
    with pytest.raises(NanLossError) as error:
        small.train(tmp_path, 6, run_eval_before_training=False, stats_period=100, eval_period=100)
    message = str(error.value)
    assert message.startswith("The loss of step 1 is nan. No checkpoint was saved before. Nothing was saved after it. ")
    assert f"The parameter {kernel} has NaN or infinite values. " in message
    assert (
        "The first layer whose output is not finite is decoder/layers_0/mlp/wo, from row 0 of the batch on. " in message
    )
    assert "that checkpoint is damaged" in message and "vocabulary" not in message
    assert checkpointing.checkpoint_steps(tmp_path) == []


def test_the_layer_is_named_where_finite_numbers_overflow(tmp_path, monkeypatch):
    """The update of the step must not have spoiled the parameters."""
    _initial(monkeypatch, "encoder/layers_0/mlp/", lambda x: x * 1e18)
    with pytest.raises(NanLossError) as error:
        small.train(tmp_path, 6, run_eval_before_training=False, eval_period=100)
    message = str(error.value)
    assert "The first layer whose output is not finite is encoder/layers_0/mlp" in message
    assert "Its inputs and parameters are finite" in message and "lower learning rate" in message


def test_a_run_that_saves_nothing_fails_at_its_last_step_too(tmp_path, monkeypatch):
    _initial(monkeypatch, "decoder/layers_0/mlp/wo/kernel", lambda x: x.at[0, 0].set(jnp.inf))
    with pytest.raises(NanLossError, match="decoder/layers_0/mlp/wo"):
        small.train(
            tmp_path,
            1,
            run_eval_before_training=False,
            eval_period=100,
            checkpoint_cfg=checkpointing.CheckpointConfig(),
        )


def test_an_evaluation_that_is_not_finite_ends_training(tmp_path, monkeypatch):
    _initial(monkeypatch, "encoder/encoder_norm/scale", lambda x: x * jnp.inf)
    with pytest.raises(
        ValueError, match=r"The loss of batch 0 \(counted from 0\) of counter \(training_eval\) at step 0"
    ):
        small.train(tmp_path, 6)


def test_a_gradient_alone():
    class Rooted(type(small.tiny_model())):
        def loss_fn(self, params, batch, dropout_rng):
            loss, metrics = super().loss_fn(params, batch, dropout_rng)
            return loss + jnp.sqrt(0.0 * jnp.sum(params["encoder"]["encoder_norm"]["scale"])), metrics

    model = copy.copy(small.tiny_model())
    model.__class__ = Rooted
    made = trainer.Trainer(model, small.partitioner(), lambda step: 0.01)
    state = made.new_state(jax.random.key(0))
    said = not_finite.describe(made, state, 1, made.partitioner.shard_batch(small.batch(0)))
    assert said.startswith(
        "The outputs of all layers are finite. The gradient of encoder/encoder_norm/scale is not fin"
    )


def test_a_loss_that_is_not_finite_leaves_the_state_finite():
    """Also the statistics of the optimizer; and a finite step is the one that it was."""
    model = small.model(definitions.adamw(weight_decay=0.1), **small.TINY)
    made = small.make_trainer(model)
    batch = small.batch(0) | {"decoder_loss_weights": np.full((8, 8), np.nan, np.float32)}
    state, metrics = made.train_step(made.new_state(jax.random.key(0)), made.partitioner.shard_batch(batch))
    assert np.isnan(metrics["loss"].compute())
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.params, state.opt_state)))
