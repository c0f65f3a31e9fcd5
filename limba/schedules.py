"""Learning rate schedules under T5X's names."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Array = jax.Array
LearningRateFn = Callable[[Array], Array]

_FACTORS = (
    "constant",
    "linear_warmup",
    "linear_decay",
    "rsqrt_decay",
    "rsqrt_normalized_decay",
    "decay_every",
    "cosine_decay",
)


def create_learning_rate_scheduler(
    factors: str = "constant * linear_warmup * rsqrt_decay",
    base_learning_rate: float = 0.5,
    warmup_steps: int = 1000,
    decay_factor: float = 0.5,
    steps_per_decay: int = 20_000,
    steps_per_cycle: int = 100_000,
    step_offset: int = 0,
    min_learning_rate: float = 1e-8,
) -> LearningRateFn:
    """A product of named factors, as T5X's `utils.create_learning_rate_scheduler`.

    With `s = max(0, step - step_offset)` and `w = warmup_steps`:

    - `constant`: `base_learning_rate`
    - `linear_warmup`: `min(1, s / w)`
    - `linear_decay`: `base * min(s / w, 1 + decay_factor * (w - s))`, which includes `constant` and the warm-up
    - `rsqrt_decay`: `1 / sqrt(max(s, w))`
    - `rsqrt_normalized_decay`: `sqrt(w) / sqrt(max(s, w))`
    - `decay_every`: `decay_factor ^ (s // steps_per_decay)`
    - `cosine_decay`: `max(0, (1 + cos(pi * (p mod 1))) / 2)` with `p = max(0, (s - w) / steps_per_cycle)`

    Args:
      factors: names joined by `*`.
      min_learning_rate: the result is never below it.

    Returns:
      A function from the step before the update (int32 scalar, the first is 0) to a float32 scalar.

    Raises:
      ValueError: for an unknown factor.
    """
    names = [name.strip() for name in factors.split("*")]
    for name in names:
        if name not in _FACTORS:
            raise ValueError(
                f"create_learning_rate_scheduler.factors = {factors!r} names {name!r}; the factors are {_FACTORS}."
            )

    def factor(name: str, step: Array) -> Array | float:
        match name:
            case "constant":
                return base_learning_rate
            case "linear_warmup":
                return jnp.minimum(1.0, step / warmup_steps)
            case "linear_decay":
                slope = 1.0 + decay_factor * (warmup_steps - step)
                return base_learning_rate * jnp.minimum(step / warmup_steps, slope)
            case "rsqrt_decay":
                return 1.0 / jnp.sqrt(jnp.maximum(step, warmup_steps))
            case "rsqrt_normalized_decay":
                return jnp.sqrt(warmup_steps) / jnp.sqrt(jnp.maximum(step, warmup_steps))
            case "decay_every":
                return decay_factor ** (step // steps_per_decay)
            case "cosine_decay":
                progress = jnp.maximum(0.0, (step - warmup_steps) / steps_per_cycle)
                return jnp.maximum(0.0, 0.5 * (1.0 + jnp.cos(jnp.pi * (progress % 1.0))))
        raise AssertionError(name)

    def learning_rate(step: Array) -> Array:
        step = jnp.maximum(0, jnp.asarray(step) - step_offset)
        rate: Array | float = 1.0
        for name in names:
            rate = rate * factor(name, step)
        return jnp.asarray(jnp.maximum(rate, min_learning_rate), jnp.float32)

    return learning_rate
