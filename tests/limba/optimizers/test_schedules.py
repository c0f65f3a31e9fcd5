import math

import jax
import jax.numpy as jnp
import pytest

from limba.optimizers import schedules

COSINE, WARM_COSINE = "constant * cosine_decay", "constant * linear_warmup * cosine_decay"
HALF_OF_A_CYCLE = (1 + math.cos(math.pi / 4)) / 2


@pytest.mark.parametrize(
    ("factors", "base", "settings", "expected"),
    [
        ("constant * rsqrt_decay", 1.0, {"warmup_steps": 10_000}, {0: 0.01, 10_000: 0.01, 40_000: 0.005}),
        ("constant * linear_warmup", 2.0, {"warmup_steps": 10}, {0: 1e-8, 5: 1.0, 10: 2.0, 99: 2.0}),
        ("linear_decay", 1.0, {"warmup_steps": 10, "decay_factor": 0.01}, {5: 0.5, 10: 1.0, 60: 0.5, 1000: 1e-8}),
        ("constant * rsqrt_normalized_decay", 3.0, {"warmup_steps": 100}, {0: 3.0, 100: 3.0, 400: 1.5}),
        ("constant * decay_every", 1.0, {"steps_per_decay": 10, "decay_factor": 0.5}, {9: 1.0, 10: 0.5, 25: 0.25}),
        (COSINE, 1.0, {"warmup_steps": 0, "steps_per_cycle": 100}, {0: 1.0, 25: HALF_OF_A_CYCLE, 50: 0.5}),
        # It ends where the run does; a cycle as long as the run ended at 25 % of the peak here.
        (WARM_COSINE, 2.0, {"warmup_steps": 100, "total_steps": 300}, {0: 1e-8, 50: 1.0, 100: 2.0, 200: 1.0}),
        (WARM_COSINE, 2.0, {"warmup_steps": 100, "total_steps": 300}, {299: 1.23382e-4, 300: 1e-8, 900: 1e-8}),
        (WARM_COSINE, 2.0, {"warmup_steps": 100, "total_steps": 20, "step_offset": 1000}, {1010: 0.2, 1020: 0.4}),
        ("constant * rsqrt_decay", 1.0, {"warmup_steps": 4, "step_offset": 100}, {50: 0.5, 116: 0.25}),
    ],
)
def test_factors(factors, base, settings, expected):
    rate = schedules.create_learning_rate_scheduler(factors, base, **settings)
    for step, value in expected.items():
        assert float(rate(step)) == pytest.approx(value, rel=1e-5), step


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        # Each of these was NaN at the first step, or a constant 1e-8.
        ({"warmup_steps": 0}, "warmup_steps is 0; it is a number of at least 1, with factors 'constant"),
        ({"factors": "constant * linear_warmup", "warmup_steps": -5}, "warmup_steps is -5"),
        ({"factors": COSINE, "steps_per_cycle": 0}, "steps_per_cycle is 0"),
        ({"factors": COSINE, "total_steps": 0}, "total_steps is 0"),
        ({"factors": COSINE, "total_steps": 50, "steps_per_cycle": 20}, "total_steps is 50 and steps_per_cycle 20; co"),
        ({"factors": "constant * decay_every", "steps_per_decay": 0}, "steps_per_decay is 0"),
        ({"factors": "constant", "base_learning_rate": -1.0}, "base_learning_rate is -1.0"),
        ({"factors": "constant", "base_learning_rate": float("nan")}, "base_learning_rate is nan"),
        ({"factors": "constant", "base_learning_rate": "1e-3"}, "base_learning_rate is '1e-3'"),
        ({"factors": ["constant"]}, r"factors is \['constant'\]; it is a text"),
    ],
)
def test_factors_that_cannot_be(settings, words):
    with pytest.raises(ValueError, match=words):
        schedules.create_learning_rate_scheduler(**settings)


def test_unknown_factor():
    with pytest.raises(ValueError, match="rsqrt_dekay"):
        schedules.create_learning_rate_scheduler("constant * rsqrt_dekay")


@pytest.mark.parametrize(
    ("make", "settings", "expected"),
    [
        ("warmup_constant", {"warmup_steps": 10}, {0: 0.0, 5: 1.0, 10: 2.0, 500: 2.0}),
        ("warmup_constant", {}, {0: 2.0, 500: 2.0}),
        ("warmup_rsqrt", {"warmup_steps": 100}, {50: 1.0, 100: 2.0, 400: 1.0}),
        ("warmup_linear", {"warmup_steps": 10, "total_steps": 110}, {5: 1.0, 10: 2.0, 60: 1.0, 110: 0.0, 200: 0.0}),
        ("warmup_linear", {"total_steps": 100, "final_learning_rate": 1.0}, {0: 2.0, 50: 1.5, 100: 1.0}),
        ("warmup_cosine", {"warmup_steps": 10, "total_steps": 110}, {5: 1.0, 10: 2.0, 60: 1.0, 110: 0.0, 200: 0.0}),
        (
            "warmup_cosine",
            {"total_steps": 100, "final_learning_rate": 0.2},
            {25: 0.2 + 1.8 * HALF_OF_A_CYCLE, 150: 0.2},
        ),
        # 1 - sqrt(progress) over the last 100 steps.
        ("warmup_stable_decay", {"warmup_steps": 10, "total_steps": 500}, {5: 1.0, 400: 2.0, 425: 1.0, 500: 0.0}),
        ("warmup_stable_decay", {"total_steps": 500, "decay_steps": 400, "final_learning_rate": 1.0}, {200: 1.5}),
        ("warmup_cosine", {"total_steps": 100, "step_offset": 1000}, {900: 2.0, 1050: 1.0, 1100: 0.0}),
    ],
)
def test_usual_shapes(make, settings, expected):
    rate = getattr(schedules, make)(2.0, **settings)
    for step, value in expected.items():
        assert float(rate(step)) == pytest.approx(value, rel=1e-5, abs=1e-6), step


def test_a_warm_up_is_that_of_the_factors():
    ours = schedules.warmup_rsqrt(0.1, 50)
    factors = schedules.create_learning_rate_scheduler("constant * linear_warmup * rsqrt_normalized_decay", 0.1, 50)
    assert [float(ours(step)) for step in (1, 49, 50, 777)] == pytest.approx(
        [float(factors(step)) for step in (1, 49, 50, 777)]
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: schedules.warmup_linear(1.0, 100, warmup_steps=100), "total_steps 100 leaves no room"),
        (lambda: schedules.warmup_stable_decay(1.0, 100, 90, 20), "warmup_steps 90 and a decay of 20"),
        (lambda: schedules.warmup_cosine(0.0, 100), "base_learning_rate is 0.0; it is a number above 0"),
        (lambda: schedules.warmup_constant(1.0, -1), "warmup_steps is -1; it is a number of at least 0"),
        (lambda: schedules.warmup_rsqrt(1.0, 0), "warmup_rsqrt.warmup_steps is 0"),
        (lambda: schedules.warmup_linear(1.0, 0), "total_steps 0 leaves no room"),
        (lambda: schedules.warmup_linear(1.0, None), "total_steps is None; it is a number"),
        (lambda: schedules.warmup_stable_decay(1.0, "100"), "total_steps is '100'; it is a number"),
        (lambda: schedules.warmup_linear(1.0, 10, final_learning_rate=-1.0), "final_learning_rate is -1.0"),
        (lambda: schedules.warmup_cosine(1.0, 10, final_learning_rate=float("nan")), "final_learning_rate is nan"),
        (lambda: schedules.warmup_constant("1e-3"), "base_learning_rate is '1e-3'; it is a number"),
    ],
)
def test_shapes_that_cannot_be(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(
    ("decay_type", "expected"),
    [
        ("linear", {0: 0.2, 4: 1.0, 20: 1.0, 25: 0.5, 29: 0.1, 30: 0.0, 99: 0.0}),
        ("cosine", {20: 1.0, 25: 0.5, 22: 0.5 * (1 + math.cos(math.pi / 5)), 30: 0.0}),
        ("1-sqrt", {20: 1.0, 25: 1 - 0.5**0.5, 30: 0.0}),
    ],
)
def test_a_decay_behind_another_schedule(decay_type, expected):
    """The other one warms up in five steps and, without the decay, would fall from 1 at step 20 to 0.5 at step 40."""
    other = lambda step: jnp.minimum((step + 1) / 5, jnp.where(step > 20, 1 - (step - 20) / 40, 1.0))  # noqa: E731
    rate = schedules.with_decay(other, 20, 10, decay_type)
    for step, value in expected.items():
        assert float(rate(step)) == pytest.approx(value, abs=1e-7)
    to_a_tenth = schedules.with_decay(other, 20, 10, decay_type, final_learning_rate=0.1)
    assert float(to_a_tenth(30)) == pytest.approx(0.1)


def test_a_decay_behind_a_constant_rate_is_a_stable_run_to_the_last_bit():
    stable = schedules.warmup_constant(0.013, warmup_steps=7)
    decayed = schedules.with_decay(stable, 20, 10, "1-sqrt")
    alone = schedules.warmup_stable_decay(0.013, total_steps=30, warmup_steps=7, decay_steps=10)
    steps = jnp.arange(35)
    assert jax.vmap(decayed)(steps).tolist() == jax.vmap(alone)(steps).tolist()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"decay_type": "sqrt"}, "decay_type is 'sqrt'; use linear, cosine, 1-sqrt"),
        ({"decay_steps": 0}, "decay_steps is 0; it is a number of at least 1"),
        ({"begin": -1}, "begin is -1"),
        ({"learning_rate_fn": 0.01}, r"with_decay\.learning_rate_fn is 0\.01"),
    ],
)
def test_decays_that_cannot_be(values, words):
    arguments = {"learning_rate_fn": schedules.warmup_constant(0.1), "begin": 20, "decay_steps": 10}
    with pytest.raises(ValueError, match=words):
        schedules.with_decay(**(arguments | values))
