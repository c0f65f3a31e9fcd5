import math

import pytest

from limba import schedules


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"factors": "constant * rsqrt_decay", "base_learning_rate": 1.0, "warmup_steps": 10_000},
            {0: 0.01, 10_000: 0.01, 40_000: 0.005},
        ),
        (
            {"factors": "constant * linear_warmup", "base_learning_rate": 2.0, "warmup_steps": 10},
            {0: 1e-8, 5: 1.0, 10: 2.0, 99: 2.0},
        ),
        (
            {"factors": "linear_decay", "base_learning_rate": 1.0, "warmup_steps": 10, "decay_factor": 0.01},
            {5: 0.5, 10: 1.0, 60: 0.5, 1000: 1e-8},
        ),
        (
            {"factors": "constant * rsqrt_normalized_decay", "base_learning_rate": 3.0, "warmup_steps": 100},
            {0: 3.0, 100: 3.0, 400: 1.5},
        ),
        (
            {
                "factors": "constant * decay_every",
                "base_learning_rate": 1.0,
                "steps_per_decay": 10,
                "decay_factor": 0.5,
            },
            {9: 1.0, 10: 0.5, 25: 0.25},
        ),
        (
            {
                "factors": "constant * cosine_decay",
                "base_learning_rate": 1.0,
                "warmup_steps": 0,
                "steps_per_cycle": 100,
            },
            {0: 1.0, 25: 0.5 * (1 + math.cos(math.pi / 4)), 50: 0.5},
        ),
        (
            {"factors": "constant * rsqrt_decay", "base_learning_rate": 1.0, "warmup_steps": 4, "step_offset": 100},
            {50: 0.5, 116: 0.25},
        ),
    ],
)
def test_factors(settings, expected):
    rate = schedules.create_learning_rate_scheduler(**settings)
    for step, value in expected.items():
        assert float(rate(step)) == pytest.approx(value, rel=1e-5), step


def test_unknown_factor():
    with pytest.raises(ValueError, match="rsqrt_dekay"):
        schedules.create_learning_rate_scheduler("constant * rsqrt_dekay")
