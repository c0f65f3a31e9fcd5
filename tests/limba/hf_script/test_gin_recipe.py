"""Schedules and batches of `limba run` against transformers' own."""

import dataclasses

import gin
import jax
import numpy as np
import pytest

from limba.hf_script import gin_recipe
from limba.hf_script.script_keys import RunArguments
from limba.optimizers import weight_decay

ARGUMENTS = RunArguments(
    config_name="config.json", train_file="t.txt", output_dir="/nowhere", do_train=True, learning_rate=3e-4
)
PLAN = gin_recipe.Plan(gin_recipe.Corpus("t", files={"train": ["t.txt"]}), None, 4, 50, "max_steps", 700, 0.1, False)


def _learning_rates(arguments):
    """Of the updates, as the gin lines of the schedule have them."""
    gin.clear_config()
    imports = "from __gin__ import dynamic_registration\n"
    imports += "from limba.optimizers import schedules\nfrom limba.training import trainer\n"
    gin.parse_config(imports + "\n".join(gin_recipe._schedule(arguments, PLAN)))
    function = gin.query_parameter("trainer.Trainer.learning_rate_fn").scoped_configurable_fn()
    gin.clear_config()
    return np.array([float(function(jax.numpy.int32(700 + step))) for step in range(50)])


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "constant_with_warmup"])
@pytest.mark.parametrize("warmup", [0, 10, 50, 60])
def test_schedules_are_those_of_transformers(kind, warmup):
    torch = pytest.importorskip("torch")
    from transformers import get_scheduler

    arguments = dataclasses.replace(ARGUMENTS, lr_scheduler_type=kind, warmup_steps=warmup)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=arguments.learning_rate)
    theirs = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=50)
    expected = []
    for _ in range(50):
        expected.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    np.testing.assert_allclose(_learning_rates(arguments), expected, rtol=1e-5, atol=1e-10)


def test_warmup_ratio_is_a_share_of_the_steps():
    ratio = dataclasses.replace(ARGUMENTS, warmup_ratio=0.2)
    steps = dataclasses.replace(ARGUMENTS, warmup_steps=10)
    np.testing.assert_array_equal(_learning_rates(ratio), _learning_rates(steps))


def test_epochs_become_steps_of_the_global_batch():
    arguments = dataclasses.replace(
        ARGUMENTS, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_train_epochs=3.0
    )
    assert gin_recipe.batch_size(arguments, 4) == 64
    assert gin_recipe.steps_of_epochs(arguments, 1000, 4) == 45  # 15 whole batches an epoch
    assert gin_recipe.steps_of_epochs(arguments, 10, 4) == 3
    assert gin_recipe.steps_of_epochs(dataclasses.replace(arguments, num_train_epochs=0.5), 1000, 4) == 8


def test_what_the_text_binds():
    arguments = dataclasses.replace(
        ARGUMENTS, weight_decay=0.01, max_grad_norm=0.5, save_total_limit=2, report_to=("wandb",), run_name="mine"
    )
    text = gin_recipe.compose(arguments, PLAN)
    for line in (
        "TRAIN_STEPS = 750  # max_steps",
        "BATCH_SIZE = 32  # 8 a device x 4 devices x 1 forward passes",
        "optax.clip_by_global_norm.max_norm = 0.5",
        "  weight_decay = 0.01",
        "  keep = 2",
        "train_script.train.train_eval_dataset_cfg = None",
        "train_script.train.metric_writers = [@wandb_writer.WandbWriter]",
        "wandb_writer.WandbWriter.name = 'mine'",
    ):
        assert line in text.splitlines()
    no_clipping = gin_recipe.compose(dataclasses.replace(arguments, max_grad_norm=0.0), PLAN)
    assert "clip_by_global_norm" not in no_clipping
    adafactor = gin_recipe.compose(dataclasses.replace(arguments, adafactor=True), PLAN)
    assert "OPTIMIZER = @adafactor.Adafactor()" in adafactor and "adamw" not in adafactor and "optax" not in adafactor


def test_weight_decay_spares_norms_and_position_biases():
    tree = {
        "encoder": {
            "relpos_bias": {"rel_embedding": 0.0},
            "layers_0": {"attention": {"query": {"kernel": 0.0}}, "pre_mlp_layer_norm": {"scale": 0.0}},
        },
        "token_embedder": {"embedding": 0.0},
    }
    decayed = weight_decay.matrices(tree)
    assert decayed["encoder"]["layers_0"]["attention"]["query"]["kernel"] and decayed["token_embedder"]["embedding"]
    assert not decayed["encoder"]["layers_0"]["pre_mlp_layer_norm"]["scale"]
    assert not decayed["encoder"]["relpos_bias"]["rel_embedding"]
