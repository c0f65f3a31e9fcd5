"""A command of t5-experiments trains as its trainer does: constant rate, no clipping, decay on all, every *.jsonl."""

import gin
import jax
import numpy as np
import pytest

from limba.addons.run import data, gin_text
from limba.addons.run.keys import script_keys
from limba.gin_config import gin_names
from tests.addons.run.plans import plan_of
from tests.limba.gin_lines import lines_of

GIVEN = {"iters": 40, "model_path": "out", "model_cfg": "t5-small.json", "lr": 1e-2, "weight_decay": 0.5}


@pytest.fixture
def shards(tmp_path):
    (tmp_path / "shards").mkdir()
    for name in ("shard_0.jsonl", "validation.jsonl", "notes.txt"):
        (tmp_path / "shards" / name).write_text('{"text": "a"}\n')
    return tmp_path / "shards"


def test_what_a_command_does_not_say(shards):
    arguments, (note,) = script_keys.from_values(GIVEN | {"data_path": str(shards)})
    assert (arguments.lr_scheduler_type, arguments.max_grad_norm, arguments.decay_all_parameters) == (
        "constant",
        0,
        True,
    )
    assert (arguments.per_device_train_batch_size, arguments.max_seq_length) == (1, 128)
    corpus = data.find(arguments)
    assert (corpus.name, corpus.files, corpus.splits) == ("shards", {"train": [f"{shards}/*.jsonl"]}, None)
    assert (arguments.do_train, arguments.do_eval) == (True, False)
    assert note == (
        "iters is a key of t5-experiments: what is not given is as in its trainer: lr_scheduler_type constant, "
        "max_grad_norm 0.0, per_device_train_batch_size 1, max_seq_length 128, decay_all_parameters true, train_file "
        f"{shards}/*.jsonl, no validation, for which valid_data_path is not given."
    )


def test_what_it_says_holds(shards):
    said = {"lr_scheduler": "linear", "clip_grad_norm": 2.0, "batch_size": 4, "input_seq_len": 512, "log_interval": 7}
    arguments, (note,) = script_keys.from_values(
        GIVEN | said | {"data_path": str(shards), "valid_data_path": str(shards), "tokenizer": "vocab"}
    )
    assert (arguments.lr_scheduler_type, arguments.max_grad_norm, arguments.eval_steps) == ("linear", 2.0, 7)
    assert (arguments.per_device_train_batch_size, arguments.max_seq_length, arguments.do_eval) == (4, 512, True)
    corpus = data.find(arguments)
    assert corpus.files == {split: [f"{shards}/*.jsonl"] for split in ("train", "validation")}
    assert "lr_scheduler_type" not in note and "no validation" not in note and "without use_nsp" in note
    # Evaluations are asked for: a part of the documents is held out.
    arguments, _ = script_keys.from_values(GIVEN | {"data_path": str(shards), "valid_interval": 5})
    assert arguments.do_eval and data.find(arguments).splits == {"train": "train[5%:]", "validation": "train[:5%]"}
    # The keys of transformers alone have its defaults.
    arguments, notes = script_keys.from_values(
        {"max_steps": 40, "output_dir": "out", "config_name": "t5.json", "train_file": "t.jsonl"}
    )
    assert (arguments.lr_scheduler_type, arguments.max_grad_norm, notes) == ("linear", 1.0, [])


@pytest.mark.parametrize("optimizer", ["AdamW", "Adafactor"])
def test_updates_are_those_of_its_trainer(optimizer):
    """torch.optim.AdamW, or transformers' Adafactor, of `model.parameters()`, and no scheduler."""
    torch = pytest.importorskip("torch")
    from transformers.optimization import Adafactor

    arguments, _ = script_keys.from_values(GIVEN | {"data_path": "corpus", "optimizer": optimizer})
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=(6, 4)).astype(np.float32) for name in ("kernel", "rel_embedding")}
    params["scale"] = rng.normal(size=5).astype(np.float32)
    # Norms above 1, and others below it: clipping would show.
    grads = [jax.tree.map(lambda x, size=size: (size * x).astype(np.float32), params) for size in (10, 0.01, 3, 0.1)]
    theirs = {name: torch.nn.Parameter(torch.tensor(x)) for name, x in params.items()}
    of_adafactor = {"scale_parameter": False, "relative_step": False}
    kind, more = (torch.optim.AdamW, {}) if optimizer == "AdamW" else (Adafactor, of_adafactor)
    made = kind(theirs.values(), lr=1e-2, weight_decay=0.5, **more)
    for grad in grads:
        for name, x in grad.items():
            theirs[name].grad = torch.tensor(x)
        made.step()

    plan = plan_of(arguments)
    gin.clear_config()
    names = ("optimizers", "adafactor", "schedules", "trainer")
    lines = ["from __gin__ import dynamic_registration", *map(gin_names.import_line, names), "import optax"]
    lines += [*lines_of(gin_text._optimizer(plan)), *lines_of(gin_text._schedule(plan))]
    gin.parse_config("\n".join(lines))
    ours = gin.query_parameter("%OPTIMIZER").scoped_configurable_fn()
    rate = gin.query_parameter("trainer.Trainer.learning_rate_fn").scoped_configurable_fn()
    gin.clear_config()
    values, state, update = dict(params), ours.init(params), jax.jit(ours.update)
    for step, grad in enumerate(grads):
        learning_rate = rate(jax.numpy.int32(step))
        updates, state = update(grad, state, values, learning_rate=learning_rate, step=step)
        values = jax.tree.map(lambda x, u: x + u, values, updates)
    assert [float(rate(jax.numpy.int32(step))) for step in (0, 20, 39)] == pytest.approx([1e-2] * 3)
    for name, x in values.items():
        moved = np.abs(theirs[name].detach().numpy() - params[name]).max()
        np.testing.assert_allclose(x, theirs[name].detach().numpy(), rtol=0, atol=2e-4 * moved)
