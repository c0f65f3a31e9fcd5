import logging

import gin
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util
from jax.sharding import PartitionSpec as P

from limba import models
from limba.checkpoints import train_state
from limba.gin_config import gin_files
from limba.optimizers import adafactor, definitions, schedules
from limba.partitioning import meshes
from tests.limba import small

T5X_NAMES = [
    "adabelief",
    "adagrad",
    "adam",
    "adamw",
    "lamb",
    "lars",
    "lion",
    "noisy_sgd",
    "radam",
    "rmsprop",
    "sgd",
    "yogi",
]
PARAMS = {"a": {"kernel": jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)}, "b": {"scale": jnp.ones((4,))}}
RATE = schedules.create_learning_rate_scheduler("constant * linear_warmup", 0.1, 5)


def _run(definition, steps=4, params=PARAMS, rate=RATE):
    """Parameters and state after some steps under a Trainer's schedule."""
    state, update = definition.init(params), jax.jit(definition.update)
    for step in range(steps):
        grads = jax.tree.map(lambda p, step=step: jnp.sin(3.0 * p + step), params)
        updates, state = update(grads, state, params, learning_rate=rate(jnp.int32(step)), step=jnp.int32(step))
        params = optax.apply_updates(params, updates)
    return params, state


def _run_optax(transformation, steps=4, params=PARAMS):
    state, update = transformation.init(params), jax.jit(transformation.update)
    for step in range(steps):
        grads = jax.tree.map(lambda p, step=step: jnp.sin(3.0 * p + step), params)
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def _assert_close(actual, expected, rtol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-7), actual, expected)


# ------------------------------------------------- the Trainer's rate -----------------------------------------------


@pytest.mark.parametrize("name", T5X_NAMES)
def test_the_trainers_schedule_is_the_one_applied(name):
    """Whatever rate the constructor got, the numbers are those of optax with the Trainer's schedule."""
    noise = {"key": jax.random.key(0)} if name == "noisy_sgd" else {}
    expected, _ = _run_optax(getattr(optax, name)(RATE, **noise))
    for arguments in ({}, {"learning_rate": 0.7}, {"learning_rate": optax.cosine_decay_schedule(3.0, 10)}):
        _assert_close(_run(getattr(definitions, name)(**arguments, **noise))[0], expected)


@pytest.mark.parametrize(
    "build",
    [
        lambda rate: optax.adamw(rate, mask=lambda params: jax.tree.map(lambda p: p.ndim > 1, params)),
        lambda rate: optax.apply_if_finite(optax.sgd(rate, momentum=0.9), 3),
        lambda rate: optax.MultiSteps(optax.sgd(rate), 2).gradient_transformation(),
        lambda rate: optax.chain(optax.scale_by_adam(), optax.scale_by_learning_rate(rate)),
        lambda rate: optax.contrib.muon(rate),
    ],
    ids=["masked", "apply_if_finite", "MultiSteps", "scale_by_learning_rate", "muon"],
)
def test_the_trainers_rate_reaches_into_combinations(build):
    constant = schedules.create_learning_rate_scheduler("constant", 0.05)
    _assert_close(_run(definitions.OptaxWrapper(build(7.0)), rate=constant)[0], _run_optax(build(0.05))[0])


def test_a_transformation_without_a_rate_is_multiplied():
    ours = definitions.OptaxWrapper(optax.chain(optax.scale_by_adam(), optax.scale(-1.0)))
    _assert_close(_run(ours)[0], _run_optax(optax.adam(RATE))[0])


def test_optax_by_itself_keeps_its_rate():
    params = {"w": jnp.ones(2)}
    transformation = optax.sgd(0.25)
    updates, _ = transformation.update({"w": jnp.ones(2)}, transformation.init(params), params)
    np.testing.assert_allclose(updates["w"], -0.25)


def test_a_rate_that_is_not_used_is_said(caplog):
    def other(definition):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            return definitions.warn_of_other_rates(definition, RATE, PARAMS)

    assert other(definitions.adamw()) == other(definitions.adamw(1.0)) == other(definitions.adamw(RATE)) == []
    assert not caplog.records
    both = definitions.MultiOptimizer([(lambda path, _: True, optax.chain(optax.clip(1.0), optax.lion(5e-5)))])
    assert other(both) == [5e-5]
    assert "learning_rate = 5e-05" in caplog.text and "0.1 at step 10,000" in caplog.text
    assert len(other(definitions.chain([optax.adam(optax.constant_schedule(0.3))]))) == 1
    assert "a schedule from 0.3 to 0.3" in caplog.text


# -------------------------------------------------- state and layout ------------------------------------------------


def test_state_has_the_names_of_a_t5x_checkpoint():
    definition = definitions.chain([optax.clip_by_global_norm(1.0), optax.adamw(RATE)])
    params, opt_state = _run(definition)
    state = train_state.TrainState(jnp.int32(4), params, opt_state)
    saved = traverse_util.flatten_dict(state.state_dict()["state"], sep="/")
    # adamw is a chain of Adam, decay (which keeps nothing) and the schedule.
    assert set(saved) == {
        "step",
        "param_states/1/0/count",
        "param_states/1/0/mu/a/kernel",
        "param_states/1/0/mu/b/scale",
        "param_states/1/0/nu/a/kernel",
        "param_states/1/0/nu/b/scale",
        "param_states/1/2/count",
    }
    fresh = train_state.TrainState(jnp.int32(0), PARAMS, definition.init(PARAMS))
    restored = fresh.restore_state(state.state_dict())
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert jax.tree.all(jax.tree.map(np.array_equal, restored, state))
    nothing = definitions.sgd()
    empty = train_state.TrainState(jnp.int32(0), PARAMS, nothing.init(PARAMS))
    assert set(empty.state_dict()["state"]) == {"step"}
    assert empty.restore_state(empty.state_dict()).opt_state == empty.opt_state


def test_moments_are_sharded_as_their_parameters():
    axes = {"a": {"kernel": P("embed", "mlp")}, "b": {"scale": P("embed")}}
    definition = definitions.muon()
    definition.set_param_axes(axes)
    found = definition.state_axes(PARAMS, axes)
    by_name = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(found)}
    assert {leaf for name, leaf in by_name.items() if "kernel" in name} == {P("embed", "mlp")}
    assert {leaf for name, leaf in by_name.items() if "scale" in name} == {P("embed")}
    assert {leaf for name, leaf in by_name.items() if "'a'" not in name and "'b'" not in name} == {P()}


# -------------------------------------------------- MultiOptimizer --------------------------------------------------


def test_each_optimizer_trains_its_parameters_and_the_rest_is_frozen():
    params = PARAMS | {"c": {"scale": jnp.full((4,), 2.0)}}
    kernels = traverse_util.ModelParamTraversal(definitions.match_any([".*/kernel"]))
    definition = definitions.MultiOptimizer(
        [(kernels, adafactor.Adafactor()), (lambda p, _: p == "/b/scale", optax.adam(1.0))]
    )
    new_params, state = _run(definition, params=params)
    alone, factored = _run(adafactor.Adafactor(), params={"a": params["a"]})
    _assert_close(new_params["a"], alone["a"])
    _assert_close(new_params["b"], _run(definitions.adam(), params={"b": params["b"]})[0]["b"])
    np.testing.assert_array_equal(new_params["c"]["scale"], 2.0)

    made = train_state.TrainState(jnp.int32(4), new_params, state)
    saved = traverse_util.flatten_dict(made.state_dict()["state"]["param_states"], sep="/")
    assert set(saved) == {*(f"a/kernel/{slot}" for slot in ("m", "v", "v_row", "v_col"))} | {
        f"optimizer_1/0/{name}" for name in ("count", "mu/b/scale", "nu/b/scale")
    }
    _assert_close(saved["a/kernel/v"], factored["a"]["kernel"].v)
    fresh = train_state.TrainState(jnp.int32(0), params, definition.init(params))
    assert jax.tree.all(jax.tree.map(np.array_equal, fresh.restore_state(made.state_dict()), made))


def test_sharded_states_have_the_shapes_of_the_states():
    definition = definitions.MultiOptimizer(
        [
            (
                definitions.match_any(["/encoder/.*"]),
                adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules()),
            ),
            (definitions.match_any(["/decoder/.*"]), definitions.muon()),
        ]
    )
    mesh = small.partitioner(8, 2, meshes.fsdp_logical_axis_rules())
    shapes = small.make_trainer(
        small.model(definition, num_encoder_layers=1, num_decoder_layers=1), mesh
    ).sharded_state_shapes()
    mlp = shapes.opt_state["encoder"]["layers_0"]["mlp"]["wo"]["kernel"]
    assert mlp.v_row.shape == (128,) and mlp.v_row.sharding.spec == P()
    moments = shapes.opt_state["optimizer_1"].inner_states["muon"].inner_state[0].mu["decoder"]["layers_0"]["mlp"]
    assert moments["wo"]["kernel"].sharding.spec == P("model", "data")


def test_choices_that_overlap_or_choose_nothing_are_refused():
    everything = (lambda path, value: True, definitions.sgd())
    with pytest.raises(ValueError, match=r"choose the same parameters: .'a/kernel', 'b/scale'"):
        definitions.MultiOptimizer([everything, everything]).init(PARAMS)
    nothing = (definitions.match_any(["/decoder/.*"]), definitions.sgd())
    with pytest.raises(ValueError, match=r"Optimizer 1 of MultiOptimizer chooses no parameter.*'/a/kernel'"):
        definitions.MultiOptimizer([everything, nothing]).init(PARAMS)


# --------------------------------------------------- AdamWScale and Muon --------------------------------------------


def test_adamw_scale_is_nanot5s():
    """Against the definition, written out in float64."""
    rng = np.random.default_rng(0)
    p, mu, nu = rng.normal(size=(5, 3)) * 0.3, 0.0, 0.0
    tiny = np.full(4, 1e-5)  # below the smallest scale
    definition = definitions.adamw_scale(weight_decay=0.1)
    params = {"w": jnp.float32(p), "tiny": jnp.float32(tiny)}
    state = definition.init(params)
    for t in range(1, 6):
        g = rng.normal(size=p.shape)
        grads = {"w": jnp.float32(g), "tiny": jnp.ones(4)}
        updates, state = definition.update(grads, state, params, learning_rate=jnp.float32(0.02), step=jnp.int32(t - 1))
        params = optax.apply_updates(params, updates)
        mu, nu = 0.9 * mu + 0.1 * g, 0.999 * nu + 0.001 * g**2
        size = max(1e-3, np.sqrt(np.mean(p**2))) * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        p = p - 0.02 * (size * mu / (np.sqrt(nu) + 1e-6) + 0.1 * p)
        if t == 1:
            expected = tiny - 0.02 * (1e-3 * 0.1 * np.sqrt(0.001) / 0.1 / (np.sqrt(0.001) + 1e-6) + 0.1 * tiny)
            np.testing.assert_allclose(params["tiny"], expected, rtol=1e-4)
    np.testing.assert_allclose(params["w"], p, rtol=1e-5, atol=1e-6)


def test_adamw_scale_has_a_rate_of_its_own_for_parameters_with_the_axis_vocab():
    params = {"table": jnp.ones((4, 3)), "kernel": jnp.ones((3, 2))}
    steps = []
    for definition in (definitions.adamw_scale(), definitions.adamw_scale(vocab_rate=0.1)):
        definition.set_param_axes({"table": P("vocab", "embed"), "kernel": P("embed", "mlp")})
        rate, step = jnp.float32(0.02), jnp.int32(0)
        steps.append(definition.update(params, definition.init(params), params, learning_rate=rate, step=step)[0])
    np.testing.assert_allclose(steps[1]["table"], 0.1 * steps[0]["table"], rtol=1e-6)
    np.testing.assert_array_equal(steps[1]["kernel"], steps[0]["kernel"])


def test_the_rate_of_the_axis_vocab_grows_over_its_own_steps():
    """A fourth of `vocab_rate` at the first of four steps, all of it from the fourth on; kernels have theirs."""
    params = {"table": jnp.ones((4, 3)), "kernel": jnp.ones((3, 2))}
    made = {}
    for warmup in (0, 4):
        definition = definitions.adamw_scale(vocab_rate=0.5, vocab_warmup_steps=warmup)
        definition.set_param_axes({"table": P("vocab", "embed"), "kernel": P("embed", "mlp")})
        state, made[warmup] = definition.init(params), []
        for step in range(5):
            arguments = {"learning_rate": jnp.float32(0.02), "step": jnp.int32(step)}
            new, state = definition.update(params, state, params, **arguments)
            made[warmup].append(new)
    for without, grown, share in zip(made[0], made[4], (0.25, 0.5, 0.75, 1.0, 1.0), strict=True):
        np.testing.assert_allclose(grown["table"], share * without["table"], rtol=1e-5)
        np.testing.assert_array_equal(grown["kernel"], without["kernel"])


@pytest.mark.parametrize(
    ("shape", "axes", "inputs"),
    [
        ((16, 2, 5), P("embed", "heads", "kv"), 16),
        ((2, 5, 16), P("heads", "kv", "embed"), 10),
        ((6, 16), P("mlp", "embed"), 6),
        ((16, 9), P("embed", "vocab"), 16),
        ((16, 3, 6), P("embed", "layers", "mlp"), 16),
        ((3, 16), P("layers", "embed"), None),
    ],
)
def test_adamw_scale_takes_steps_by_the_width_of_a_kernel(shape, axes, inputs):
    """`sqrt(base_width / inputs)` of those without; biases and norms, also scanned ones, keep theirs."""
    params = {"kernel": jax.random.normal(jax.random.key(0), shape)}
    steps = []
    for definition in (definitions.adamw_scale(), definitions.adamw_scale(base_width=8)):
        definition.set_param_axes({"kernel": axes})
        rate, step = jnp.float32(0.02), jnp.int32(0)
        steps.append(definition.update(params, definition.init(params), params, learning_rate=rate, step=step)[0])
    factor = 1.0 if inputs is None else (8 / inputs) ** 0.5
    np.testing.assert_allclose(steps[1]["kernel"], factor * steps[0]["kernel"], rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: definitions.adamw(b1=1.0), r"^adamw\.b1 is 1.0; it is a number of at least 0 and below 1\.$"),
        (lambda: definitions.adamw_scale(min_scale="x"), r"^adamw_scale\.min_scale is 'x'; it is a number of at least"),
        (lambda: definitions.muon(adam_weight_decay=-0.1), r"^muon\.adam_weight_decay is -0.1; it is a number"),
    ],
)
def test_numbers_of_optax_that_cannot_be_meant(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_base_width_that_is_no_width_is_refused():
    with pytest.raises(ValueError, match=r"base_width is 0; it is the emb_dim"):
        definitions.adamw_scale(base_width=0)


@pytest.mark.parametrize("build", [definitions.adamw_scale, definitions.muon])
def test_scanned_layers_are_treated_one_by_one(build):
    """`[embed, layers, mlp]` in one tensor gives the numbers of its layers in tensors of their own."""
    kernels = jax.random.normal(jax.random.key(0), (6, 2, 4)) * jnp.array([0.1, 3.0])[:, None]
    scanned, single = build(), build()
    scanned.set_param_axes({"mlp": {"kernel": P("embed", "layers", "mlp")}})
    single.set_param_axes({str(i): {"kernel": P("embed", "mlp")} for i in range(2)})
    together, _ = _run(scanned, params={"mlp": {"kernel": kernels}})
    apart, _ = _run(single, params={str(i): {"kernel": kernels[:, i]} for i in range(2)})
    for i in range(2):
        np.testing.assert_allclose(together["mlp"]["kernel"][:, i], apart[str(i)]["kernel"], rtol=1e-4, atol=1e-6)


def test_muon_orthogonalizes_kernels_only():
    params = {
        "logits_dense": {"kernel": jnp.ones((8, 6))},
        "token_embedder": {"embedding": jnp.ones((6, 8))},
        "mlp": {"kernel": jax.random.normal(jax.random.key(1), (8, 6))},
        "attention": {"kernel": jax.random.normal(jax.random.key(2), (8, 2, 3))},
    }
    definition = definitions.muon(consistent_rms=None)
    definition.set_param_axes(
        {
            "logits_dense": {"kernel": P("embed", "vocab")},
            "token_embedder": {"embedding": P("vocab", "embed")},
            "mlp": {"kernel": P("embed", "mlp")},
            "attention": {"kernel": P("embed", "heads", "kv")},
        }
    )
    grads = jax.tree.map(lambda p: p + 0.1 * jnp.arange(p.size).reshape(p.shape), params)
    updates, _ = definition.update(
        grads, definition.init(params), params, learning_rate=jnp.float32(1.0), step=jnp.int32(0)
    )
    # The first step of Adam has one size everywhere; that of Muon is a matrix whose singular values are near one.
    for update in (updates["logits_dense"]["kernel"], updates["token_embedder"]["embedding"]):
        np.testing.assert_allclose(update, np.full(update.shape, update[0, 0]), rtol=1e-4)
    for name in ("mlp", "attention"):
        values = np.linalg.svd(np.asarray(updates[name]["kernel"]).reshape(8, 6), compute_uv=False)
        assert values.min() > 0.6 and values.max() < 1.3, name


# ------------------------------------------------------ gin files ---------------------------------------------------

MODEL = """
from __gin__ import dynamic_registration
from limba import models
from limba.network import t5 as network
from limba.optimizers import schedules
from limba.training import trainer
include 'gin/models/t5_1_1/tiny.gin'
network.T5Config:
  num_encoder_layers = 1
  num_decoder_layers = 1
TRAIN_STEPS = 100
trainer.Trainer.learning_rate_fn = @schedules.create_learning_rate_scheduler()
"""


@pytest.fixture
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.mark.slow
@pytest.mark.usefixtures("clean_gin")
def test_an_optimizer_by_gin_lowers_the_loss(tmp_path):
    file = tmp_path / "run.gin"
    file.write_text(MODEL + "include 'gin/optimizers/muon.gin'\n")
    overrides = ["DROPOUT_RATE = 0.0", "VOCABULARY = None", "VOCAB_SIZE = 256"]
    overrides += ["schedules.create_learning_rate_scheduler.warmup_steps = 1"]
    gin_files.parse_gin_flags([str(file)], overrides)
    made = gin.get_configurable("trainer.Trainer")(
        model=gin.get_configurable(models.EncoderDecoderModel)(), partitioner=small.partitioner()
    )
    state = made.new_state(jax.random.key(0))
    batch = made.partitioner.shard_batch(small.batch(0))
    losses = []
    for _ in range(20):
        state, metrics = made.train_step(state, batch)
        losses.append(metrics["loss"].compute())
    assert losses[-1] < losses[0] - 0.01 and np.all(np.isfinite(losses))


@pytest.mark.usefixtures("clean_gin")
def test_optax_bound_as_the_optimizer_itself(tmp_path):
    file = tmp_path / "run.gin"
    file.write_text(MODEL + "import optax\nOPTIMIZER = @optax.sgd()\noptax.sgd.learning_rate = 0.5\n")
    gin_files.parse_gin_flags([str(file)], ["DROPOUT_RATE = 0.0", "VOCABULARY = None"])
    model = gin.get_configurable(models.EncoderDecoderModel)()
    assert isinstance(model.optimizer_def, definitions.OptaxWrapper)


@pytest.mark.usefixtures("clean_gin")
def test_freezing_by_gin(tmp_path):
    """The example of docs/optimizers.md."""
    file = tmp_path / "run.gin"
    page = (gin_files.REPOSITORY / "docs" / "optimizers.md").read_text()
    example = page[page.index("    from flax import traverse_util") :].partition("\n\n")[0]
    file.write_text(MODEL + "\n".join(line.strip() for line in example.splitlines()))
    gin_files.parse_gin_flags([str(file)], ["DROPOUT_RATE = 0.0", "VOCABULARY = None"])
    model = gin.get_configurable(models.EncoderDecoderModel)()
    shapes, axes = model.param_shapes_and_axes()
    model.optimizer_def.set_param_axes(axes)
    state = jax.eval_shape(model.optimizer_def.init, shapes)
    assert set(state) == {"decoder"} and set(state["decoder"]) == set(shapes["decoder"])


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(
        ValueError, match=r"optimizer_def \(OPTIMIZER\) is 'adamw'; it is an optimizer, such as @adafactor"
    ):
        definitions.as_optimizer_def("adamw")
