import jax
import numpy as np
import pytest

from limba.models import metrics
from tests import compilation
from tests.limba import small

# One task has no row, and two groups overlap.
TASKS = np.array([0, 1, 1, 0, 3, 1, 0, 3])
GROUPS = {"a": [0], "b": [1], "none": [2], "d": [3], "a_and_d": [0, 3]}


def _batch(seed=0):
    return small.batch(seed) | {"example_tasks": np.eye(4, dtype=np.int32)[TASKS]}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("num_microbatches", "num_devices", "factor"), [(None, 1, None), (2, 2, "NUM_REAL_TARGET_TOKENS")]
)
def test_losses_by_task_are_those_of_the_tasks_alone(num_microbatches, num_devices, factor):
    model = small.model(loss_normalizing_factor=factor, **small.TINY)
    trainer = small.make_trainer(model, small.partitioner(num_devices), num_microbatches)
    params = small.random_params(model)
    # The two programs are compared bit by bit below: one pair compiled as users' are.
    options = compilation.AS_USERS if num_microbatches else None
    step = trainer.partitioner.jit(trainer.gradients, compiler_options=options)
    evaluate = jax.jit(model.eval_fn)
    grads, made = step(params, trainer.partitioner.shard_batch(_batch()), jax.random.key(0))
    scalars = metrics.compute(made, GROUPS)
    assert "loss/none" not in scalars
    for name, tasks in GROUPS.items():
        if name == "none":
            continue
        alone = _batch()
        alone["decoder_loss_weights"] = alone["decoder_loss_weights"] * np.isin(TASKS, tasks)[:, None]
        del alone["example_tasks"]
        expected = metrics.compute(evaluate(params, alone)[1])
        weights = alone["decoder_loss_weights"].sum()
        assert scalars[f"target_tokens/{name}"] == weights
        assert scalars[f"loss/{name}"] == pytest.approx(expected["loss"], rel=1e-5)

    # Nothing else changes, to the bit.
    plain = small.batch(0)
    plain_grads, plain_made = step(params, trainer.partitioner.shard_batch(plain), jax.random.key(0))
    assert metrics.compute(plain_made) == {n: x for n, x in metrics.compute(made).items() if n in plain_made}
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b), *jax.device_get((grads, plain_grads))))


def test_sums_by_task_add_up_over_steps_and_other_rows_do_not_compile_again():
    trainer = small.make_trainer(small.model(**small.TINY))
    state = trainer.new_state(jax.random.key(0))
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    sums = []
    for step, tasks in enumerate((TASKS, TASKS[::-1], np.zeros(8, int))):
        batch = small.batch(0) | {"example_tasks": np.eye(4, dtype=np.int32)[tasks]}
        state, made = trainer.train_step(state, trainer.partitioner.shard_batch(batch))
        jax.block_until_ready(made)
        if step == 0:
            assert [event for event in compiled if "backend_compile" in event]
            del compiled[:]
        sums.append(made)
    assert not [event for event in compiled if "backend_compile" in event]
    together = metrics.compute(metrics.add(metrics.add(*sums[:2]), sums[2]), GROUPS)
    each = [metrics.compute(x, GROUPS) for x in sums]
    assert "loss/b" not in each[2]
    for name in ("a", "b"):
        tokens = [x.get(f"target_tokens/{name}", 0) for x in each]
        assert together[f"target_tokens/{name}"] == sum(tokens)
        mean = sum(x.get(f"loss/{name}", 0) * n for x, n in zip(each, tokens, strict=True)) / sum(tokens)
        assert together[f"loss/{name}"] == pytest.approx(mean, rel=1e-6)
