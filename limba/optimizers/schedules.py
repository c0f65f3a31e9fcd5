"""Learning rate schedules: T5X's product of factors, and the usual shapes by name.

A schedule is a function from the step before the update (int32 scalar, the first is 0) to a float32 scalar. The named
ones warm up along a line from 0 and count their steps from `step_offset`, which is the step of the initial checkpoint
where it counts (`TRAIN_STEPS_RELATIVE`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0, Range

Array = jax.Array
LearningRateFn = Callable[[Array], Array]

_WARMED_UP = ("linear_warmup", "linear_decay", "rsqrt_decay", "rsqrt_normalized_decay")
_FACTORS = ("constant", *_WARMED_UP, "decay_every", "cosine_decay")
_STEPS_PER_CYCLE = 100_000  # T5X's default


def create_learning_rate_scheduler(
    factors: str = "constant * linear_warmup * rsqrt_decay",
    base_learning_rate: float = 0.5,
    warmup_steps: int = 1000,
    decay_factor: float = 0.5,
    steps_per_decay: int = 20_000,
    steps_per_cycle: int = _STEPS_PER_CYCLE,
    step_offset: int = 0,
    min_learning_rate: float = 1e-8,
    total_steps: int | None = None,
) -> LearningRateFn:
    """A product of named factors, as T5X's `utils.create_learning_rate_scheduler`, and a cosine that ends with a run.

    With `s = max(0, step - step_offset)` and `w = warmup_steps`:

    - `constant`: `base_learning_rate`
    - `linear_warmup`: `min(1, s / w)`
    - `linear_decay`: `base * min(s / w, 1 + decay_factor * (w - s))`, which includes `constant` and the warm-up
    - `rsqrt_decay`: `1 / sqrt(max(s, w))`
    - `rsqrt_normalized_decay`: `sqrt(w) / sqrt(max(s, w))`
    - `decay_every`: `decay_factor ^ (s // steps_per_decay)`
    - `cosine_decay`: `max(0, (1 + cos(pi * (p mod 1))) / 2)` with `p = max(0, (s - w) / steps_per_cycle)`.
      With `total_steps` it is `(1 + cos(pi * p)) / 2` with `p = (s - w) / (total_steps - w)` between 0 and 1.

    Args:
      factors: names joined by `*`.
      min_learning_rate: the result is never below it.
      total_steps: where `cosine_decay` ends; T5X has only `steps_per_cycle`, which begins after the warm-up.

    Raises:
      ValueError: for an unknown factor, two lengths, or a number that makes the rate NaN, infinite or negative.
    """
    names = _factor_names(factors)
    numbers = {"base_learning_rate": (base_learning_rate, 0), "min_learning_rate": (min_learning_rate, 0)}
    # What a factor divides by.
    if {*_WARMED_UP} & {*names}:
        numbers["warmup_steps"] = (warmup_steps, 1)
    if "decay_every" in names:
        numbers["steps_per_decay"] = (steps_per_decay, 1)
    if "cosine_decay" in names:
        numbers |= _length_of_cosine(steps_per_cycle, total_steps)
    for name, (value, least) in numbers.items():
        of = f", with factors {factors!r}"
        number_ranges.check(f"create_learning_rate_scheduler.{name}", value, Range(least), of)

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
            case "cosine_decay" if total_steps is not None:
                # A run that is shorter than its warm-up, as a trial is, ends in the warm-up.
                return _cosine(_progress(step, warmup_steps, max(total_steps, warmup_steps + 1)))
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


def _length_of_cosine(steps_per_cycle: int, total_steps: int | None) -> dict[str, tuple[int, int]]:
    """The length of `cosine_decay` and the least that it can be, by name; raises ValueError for two lengths."""
    if total_steps is None:
        return {"steps_per_cycle": (steps_per_cycle, 1)}
    if steps_per_cycle != _STEPS_PER_CYCLE:
        raise ValueError(
            f"create_learning_rate_scheduler.total_steps is {total_steps!r} and steps_per_cycle {steps_per_cycle!r}; "
            "cosine_decay has one length. Leave steps_per_cycle out to end at total_steps, or set total_steps = None "
            "for a cycle of steps_per_cycle after the warm-up."
        )
    return {"total_steps": (total_steps, 1)}


def _factor_names(factors: str) -> list[str]:
    if not isinstance(factors, str):
        raise ValueError(
            f"create_learning_rate_scheduler.factors is {factors!r}; it is a text, such as 'constant * linear_warmup'."
        )
    names = [name.strip() for name in factors.split("*")]
    for name in names:
        if name not in _FACTORS:
            raise ValueError(
                f"create_learning_rate_scheduler.factors = {factors!r} names {name!r}; the factors are {_FACTORS}."
            )
    return names


# --------------------------------------------------- the usual shapes ------------------------------------------------


def warmup_constant(base_learning_rate: float, warmup_steps: int = 0, step_offset: int = 0) -> LearningRateFn:
    """`base_learning_rate` after the warm-up."""
    _check_numbers("warmup_constant", base_learning_rate=base_learning_rate, warmup_steps=warmup_steps)
    return _warmed_up(base_learning_rate, warmup_steps, step_offset, lambda s: jnp.ones_like(s))


def warmup_rsqrt(base_learning_rate: float, warmup_steps: int, step_offset: int = 0) -> LearningRateFn:
    """`base_learning_rate * sqrt(warmup_steps / step)` after the warm-up."""
    _check_numbers("warmup_rsqrt", base_learning_rate=base_learning_rate, warmup_steps=warmup_steps)
    if warmup_steps < 1:
        raise ValueError(f"warmup_rsqrt.warmup_steps is {warmup_steps}; the decay is measured by it, so at least 1.")
    decay = lambda s: jnp.sqrt(warmup_steps / jnp.maximum(s, warmup_steps))  # noqa: E731
    return _warmed_up(base_learning_rate, warmup_steps, step_offset, decay)


def warmup_linear(
    base_learning_rate: float,
    total_steps: int,
    warmup_steps: int = 0,
    final_learning_rate: float = 0.0,
    step_offset: int = 0,
) -> LearningRateFn:
    """After the warm-up along a line to `final_learning_rate` at `total_steps`, and constant from there."""
    numbers = {"base_learning_rate": base_learning_rate, "total_steps": total_steps, "warmup_steps": warmup_steps}
    _check_numbers("warmup_linear", **numbers, final_learning_rate=final_learning_rate)
    _check_room("warmup_linear", total_steps, warmup_steps, total_steps - warmup_steps)
    final = final_learning_rate / base_learning_rate
    decay = lambda s: 1.0 - (1.0 - final) * _progress(s, warmup_steps, total_steps)  # noqa: E731
    return _warmed_up(base_learning_rate, warmup_steps, step_offset, decay)


def warmup_cosine(
    base_learning_rate: float,
    total_steps: int,
    warmup_steps: int = 0,
    final_learning_rate: float = 0.0,
    num_cycles: float = 0.5,
    step_offset: int = 0,
) -> LearningRateFn:
    """After the warm-up along half a cosine to `final_learning_rate` at `total_steps`, and constant from there.

    Args:
      num_cycles: whole waves of the cosine; 0.5 only falls.
    """
    numbers = {"base_learning_rate": base_learning_rate, "total_steps": total_steps, "warmup_steps": warmup_steps}
    _check_numbers("warmup_cosine", **numbers, final_learning_rate=final_learning_rate, num_cycles=num_cycles)
    _check_room("warmup_cosine", total_steps, warmup_steps, total_steps - warmup_steps)
    final = final_learning_rate / base_learning_rate

    def decay(step: Array) -> Array:
        return final + (1.0 - final) * _cosine(_progress(step, warmup_steps, total_steps), num_cycles)

    return _warmed_up(base_learning_rate, warmup_steps, step_offset, decay)


def early_cosine(
    base_learning_rate: float,
    total_steps: int,
    warmup_steps: int = 0,
    final_learning_rate: float = 0.0,
    warmup_rate: float | None = None,
    num_cycles: float = 0.5,
    step_offset: int = 0,
) -> LearningRateFn:
    """`warmup_cosine` a step earlier, as transformers' `cosine_warmup_with_min_lr`: the first step has a rate.

    Args:
      warmup_rate: of the first step, as a share of the base; None is `1 / warmup_steps`.
    """
    numbers = {"base_learning_rate": base_learning_rate, "total_steps": total_steps, "warmup_steps": warmup_steps}
    numbers |= {"final_learning_rate": final_learning_rate, "num_cycles": num_cycles}
    _check_numbers("early_cosine", **numbers, **({} if warmup_rate is None else {"warmup_rate": warmup_rate}))
    _check_room("early_cosine", total_steps, warmup_steps, total_steps - warmup_steps)
    final = final_learning_rate / base_learning_rate

    def decay(step: Array) -> Array:
        if warmup_rate is None:
            warmth = (step + 1.0) / max(warmup_steps, 1)
        else:
            warmth = warmup_rate + (1.0 - warmup_rate) * step / max(warmup_steps - 1, 1)
        after = final + (1.0 - final) * _cosine(_progress(step + 1.0, warmup_steps, total_steps), num_cycles)
        return jnp.where(step < warmup_steps, warmth, after)

    return _warmed_up(base_learning_rate, 0, step_offset, decay)


def warmup_cosine_restarts(
    base_learning_rate: float, total_steps: int, warmup_steps: int = 0, num_cycles: int = 1, step_offset: int = 0
) -> LearningRateFn:
    """After the warm-up half a cosine to 0, `num_cycles` times, each from the full rate; 0 from `total_steps`."""
    numbers = {"base_learning_rate": base_learning_rate, "total_steps": total_steps, "warmup_steps": warmup_steps}
    _check_numbers("warmup_cosine_restarts", **numbers, num_cycles=num_cycles)
    _check_room("warmup_cosine_restarts", total_steps, warmup_steps, total_steps - warmup_steps)
    if num_cycles < 1:
        raise ValueError(f"schedules.warmup_cosine_restarts: num_cycles is {num_cycles}; at least 1.")

    def decay(step: Array) -> Array:
        progress = _progress(step, warmup_steps, total_steps)
        return jnp.where(progress < 1.0, 0.5 * (1.0 + jnp.cos(jnp.pi * ((num_cycles * progress) % 1.0))), 0.0)

    return _warmed_up(base_learning_rate, warmup_steps, step_offset, decay)


def warmup_polynomial(
    base_learning_rate: float,
    total_steps: int,
    warmup_steps: int = 0,
    power: float = 1.0,
    final_learning_rate: float = 1e-7,
    step_offset: int = 0,
) -> LearningRateFn:
    """After the warm-up `(1 - progress) ^ power` to `final_learning_rate` at `total_steps`, and constant from there."""
    numbers = {"base_learning_rate": base_learning_rate, "total_steps": total_steps, "warmup_steps": warmup_steps}
    _check_numbers("warmup_polynomial", **numbers, power=power, final_learning_rate=final_learning_rate)
    _check_room("warmup_polynomial", total_steps, warmup_steps, total_steps - warmup_steps)
    final = final_learning_rate / base_learning_rate

    def decay(step: Array) -> Array:
        return final + (1.0 - final) * (1.0 - _progress(step, warmup_steps, total_steps)) ** power

    return _warmed_up(base_learning_rate, warmup_steps, step_offset, decay)


def warmup_inverse_sqrt(
    base_learning_rate: float, warmup_steps: int = 0, timescale: int | None = None, step_offset: int = 0
) -> LearningRateFn:
    """After the warm-up `sqrt(timescale / (step - warmup_steps + timescale))`, as transformers' `inverse_sqrt`.

    Args:
      timescale: None is `warmup_steps`, or 10,000 without a warm-up.
    """
    timescale = (warmup_steps or 10_000) if timescale is None else timescale
    numbers = {"base_learning_rate": base_learning_rate, "warmup_steps": warmup_steps}
    _check_numbers("warmup_inverse_sqrt", **numbers, timescale=timescale)
    if timescale < 1:
        raise ValueError(f"schedules.warmup_inverse_sqrt: timescale is {timescale}; at least 1.")
    decay = lambda s: jnp.sqrt(timescale / (jnp.maximum(s - warmup_steps, 0) + timescale))  # noqa: E731
    return _warmed_up(base_learning_rate, warmup_steps, step_offset, decay)


def relative_step(warmup_init: bool = False, step_offset: int = 0) -> LearningRateFn:
    """Adafactor's own rate, `min(0.01, 1 / sqrt(t))` of the update t = 1, 2 …: transformers' `relative_step`.

    Args:
      warmup_init: `1e-6 * t` in place of 0.01, a warm-up of 10,000 steps.
    """

    def learning_rate(step: Array) -> Array:
        update = jnp.maximum(0, jnp.asarray(step) - step_offset).astype(jnp.float32) + 1.0
        most = 1e-6 * update if warmup_init else 1e-2
        return jnp.asarray(jnp.minimum(most, 1.0 / jnp.sqrt(update)), jnp.float32)

    return learning_rate


def warmup_stable_decay(
    base_learning_rate: float,
    total_steps: int,
    warmup_steps: int = 0,
    decay_steps: int | None = None,
    final_learning_rate: float = 0.0,
    step_offset: int = 0,
) -> LearningRateFn:
    """WSD: warm-up, a constant rate, and over the last `decay_steps` `1 - sqrt(progress)` to `final_learning_rate`.

    A run can resume from any checkpoint before the decay with a later `total_steps`. Source: arXiv:2404.06395, with the
    shape of the decay that arXiv:2405.18392 found best.

    Args:
      decay_steps: None is a fifth of `total_steps`.
    """
    _check_numbers(
        "warmup_stable_decay",
        base_learning_rate=base_learning_rate,
        total_steps=total_steps,
        warmup_steps=warmup_steps,
        decay_steps=0 if decay_steps is None else decay_steps,
        final_learning_rate=final_learning_rate,
    )
    decay_steps = total_steps // 5 if decay_steps is None else decay_steps
    _check_room("warmup_stable_decay", total_steps, warmup_steps, decay_steps)
    final = final_learning_rate / base_learning_rate

    def decay(step: Array) -> Array:
        return 1.0 - (1.0 - final) * jnp.sqrt(_progress(step, total_steps - decay_steps, total_steps))

    return _warmed_up(base_learning_rate, warmup_steps, step_offset, decay)


def stages(
    base_learning_rate: float,
    warmup_steps: int,
    stable_steps: int,
    decay_steps: int,
    final_learning_rate: float = 0.0,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    num_cycles: float = 0.5,
    step_offset: int = 0,
) -> LearningRateFn:
    """From the final rate up, a constant rate, and down again: transformers' `warmup_stable_decay`.

    Args:
      warmup_type, decay_type: "linear", "cosine" or "1-sqrt".
      num_cycles: whole waves of a decay along a cosine.

    Raises:
      ValueError: for another type.
    """
    numbers = {"base_learning_rate": base_learning_rate, "warmup_steps": warmup_steps, "num_cycles": num_cycles}
    numbers |= {"stable_steps": stable_steps, "decay_steps": decay_steps}
    _check_numbers("stages", **numbers, final_learning_rate=final_learning_rate)
    rises = {"linear": lambda p: p, "cosine": lambda p: 1.0 - _cosine(p), "1-sqrt": lambda p: 1.0 - jnp.sqrt(1.0 - p)}
    for name, kind in (("warmup_type", warmup_type), ("decay_type", decay_type)):
        if kind not in _FALLS:
            raise ValueError(f"schedules.stages: {name} is {kind!r}; use {', '.join(_FALLS)}.")
    final, begin = final_learning_rate / base_learning_rate, warmup_steps + stable_steps
    waves = (num_cycles,) if decay_type == "cosine" else ()

    def decay(step: Array) -> Array:
        up = rises[warmup_type](_progress(step, 0, max(warmup_steps, 1)))
        down = _FALLS[decay_type](_progress(step, begin, begin + max(decay_steps, 1)), *waves)
        shape = jnp.where(step < warmup_steps, up, jnp.where(step < begin + decay_steps, down, 0.0))
        return final + (1.0 - final) * shape

    return _warmed_up(base_learning_rate, 0, step_offset, decay)


def with_decay(
    learning_rate_fn: LearningRateFn,
    begin: int,
    decay_steps: int,
    decay_type: str = "linear",
    final_learning_rate: float = 0.0,
) -> LearningRateFn:
    """Any schedule until the step `begin`; from its rate there down to the final one in `decay_steps`.

    `limba branch` binds it. Of a constant rate it makes `warmup_stable_decay`, to the last bit.

    Args:
      decay_type: "linear", "cosine" or "1-sqrt".
    """
    check_schedule("schedules.with_decay.learning_rate_fn", learning_rate_fn)
    if decay_type not in _FALLS:
        raise ValueError(f"schedules.with_decay: decay_type is {decay_type!r}; use {', '.join(_FALLS)}.")
    for name, value, least in (("begin", begin, 0), ("decay_steps", decay_steps, 1)):
        number_ranges.check(f"schedules.with_decay: {name}", value, Range(least))

    def learning_rate(step: Array) -> Array:
        rate = learning_rate_fn(jnp.minimum(step, begin))
        fall = _FALLS[decay_type](_progress(jnp.asarray(step, jnp.float32), begin, begin + decay_steps))
        return jnp.asarray(final_learning_rate + (rate - final_learning_rate) * fall, jnp.float32)

    return learning_rate


def _cosine(progress: Array, num_cycles: float = 0.5) -> Array:
    return 0.5 * (1.0 + jnp.cos(2.0 * jnp.pi * num_cycles * progress))


_FALLS = {"linear": lambda p: 1.0 - p, "cosine": _cosine, "1-sqrt": lambda p: 1.0 - jnp.sqrt(p)}


def _check_numbers(name: str, **numbers: Any) -> None:
    """Raises ValueError unless the arguments of a schedule are numbers that it can have."""
    for argument, value in numbers.items():
        allowed = ABOVE_0 if argument == "base_learning_rate" else Range()
        number_ranges.check(f"schedules.{name}: {argument}", value, allowed)


def _check_room(name: str, total_steps: int, warmup_steps: int, decay_steps: int) -> None:
    """Raises ValueError unless a warm-up and a decay fit into a training."""
    if decay_steps < 1 or warmup_steps + decay_steps > total_steps:
        raise ValueError(
            f"schedules.{name}: total_steps {total_steps} leaves no room for warmup_steps {warmup_steps} and a decay "
            f"of {decay_steps} steps. (A run by TRAIN_STEPS_RELATIVE or TRAIN_EPOCHS says its length here too.)"
        )


def _progress(step: Array, begin: int, end: int) -> Array:
    return jnp.clip((step - begin) / (end - begin), 0.0, 1.0)


def _warmed_up(base: float, warmup_steps: int, step_offset: int, decay: Callable[[Array], Array]) -> LearningRateFn:
    """`base * min(1, s / warmup_steps) * decay(s)` with `s = max(0, step - step_offset)`."""

    def learning_rate(step: Array) -> Array:
        since = jnp.maximum(0, jnp.asarray(step) - step_offset).astype(jnp.float32)
        warmth = jnp.minimum(1.0, since / warmup_steps) if warmup_steps else 1.0
        return jnp.asarray(base * warmth * decay(since), jnp.float32)

    return learning_rate


def check_schedule(where: str, learning_rate_fn: Any) -> None:
    """Raises ValueError unless a schedule returns a number for a step; gin files easily forget to call it."""
    wrong = f"{where} is {learning_rate_fn!r}, and makes no rate of a step"
    remedy = "bind a schedule with its brackets, such as @schedules.warmup_constant()"
    if not callable(learning_rate_fn):
        raise ValueError(f"{wrong}; {remedy}.")
    try:
        rate = jax.eval_shape(learning_rate_fn, jax.ShapeDtypeStruct((), jnp.int32))
    except (TypeError, ValueError) as error:  # It takes the step for its first argument, or cannot be traced.
        raise ValueError(f"{wrong} ({error}); {remedy}.") from error
    if not hasattr(rate, "shape") or rate.shape:
        raise ValueError(f"{wrong}; {remedy}.")


def scaled(learning_rate_fn: LearningRateFn, scale: float) -> LearningRateFn:
    """A schedule times a factor."""
    return lambda step: jnp.asarray(scale * learning_rate_fn(step), jnp.float32)
