"""The schedules of transformers' `lr_scheduler_type`, and what `lr_scheduler_kwargs` may give them."""

from collections.abc import Mapping, Sequence
from typing import Any

_MIN_LR = ("num_cycles", "min_lr", "min_lr_rate")
_DECAY = ("num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles")
# Those of whole trainings, with their numbers.
SCHEDULES: Mapping[str, Sequence[str]] = {
    "linear": (),
    "cosine": ("num_cycles",),
    "cosine_with_restarts": ("num_cycles",),
    "cosine_with_min_lr": _MIN_LR,
    "cosine_warmup_with_min_lr": (*_MIN_LR, "warmup_lr_rate"),
    "polynomial": ("power", "lr_end"),
    "constant": (),
    "constant_with_warmup": (),
    "inverse_sqrt": (),
    "warmup_stable_decay": _DECAY,
}
PLATEAU = "reduce_lr_on_plateau"
# PyTorch's names of a plateau's numbers: the keys of `limba run`.
_OF_PLATEAU = {
    "factor": "lr_drop_factor",
    "patience": "lr_drop_patience",
    "threshold": "lr_drop_threshold",
    "threshold_mode": "lr_drop_threshold_mode",
    "min_lr": "lr_drop_min_lr",
}
# Its numbers that have no key, with the values that ask for nothing.
_HARMLESS = {"cooldown": (0,), "eps": (1e-8,), "verbose": (False, True)}
# That of polynomial, where lr_scheduler_kwargs has none.
_LR_END = 1e-7
# Numbers that are names.
_SHAPES = {"warmup_type": ("linear", "cosine", "1-sqrt"), "decay_type": ("linear", "cosine", "1-sqrt")}


# Schedules that transformers' get_scheduler makes without looking at the numbers.
_WITHOUT_NUMBERS = ("constant", "constant_with_warmup", "inverse_sqrt")


def complete(used: dict[str, Any]) -> list[str]:
    """Turns `reduce_lr_on_plateau` into the keys of a drop of the rate, in the arguments `used`; returns notes.

    Raises:
      ValueError: for a number that a plateau does not have here.
    """
    kind = used.get("lr_scheduler_type")
    if kind in _WITHOUT_NUMBERS and (ignored := used.pop("lr_scheduler_kwargs", None)):
        return [f"Without effect: lr_scheduler_kwargs {ignored!r} ({kind} reads none, in transformers either)."]
    if kind != PLATEAU:
        return []
    given = used.pop("lr_scheduler_kwargs", None) or {}
    drops: dict[str, Any] = {"use_lr_drop": True}
    for name, value in given.items() if isinstance(given, Mapping) else [(given, None)]:
        if name == "mode" and value in ("min", "max"):
            used.setdefault("greater_is_better", value == "max")
            if used["greater_is_better"] != (value == "max"):
                raise ValueError(
                    f"lr_scheduler_kwargs has mode {value!r}, and greater_is_better is {used['greater_is_better']}: "
                    "both are of metric_for_best_model; leave one out."
                )
        elif name in _OF_PLATEAU:
            drops[_OF_PLATEAU[name]] = value
        elif value not in _HARMLESS.get(name, ()):
            raise ValueError(f"lr_scheduler_kwargs is {given!r}; {PLATEAU} has here {', '.join(_OF_PLATEAU)} and mode.")
    used |= {"lr_scheduler_type": "constant", **drops}
    return [f"{PLATEAU}: the rate is constant, and drops where metric_for_best_model does not improve (use_lr_drop)."]


def check(kind: str, given: Any, learning_rate: float) -> None:
    """Raises ValueError for a schedule that is not here, or numbers that it does not have."""
    if kind not in SCHEDULES:
        raise ValueError(f"lr_scheduler_type is {kind!r}; use one of {', '.join((*SCHEDULES, PLATEAU))}.")
    known = SCHEDULES[kind]
    given = given or {}
    for name, value in given.items() if isinstance(given, Mapping) else [(given, None)]:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in known or not (value in _SHAPES[name] if name in _SHAPES else is_number):
            numbers = f"has the numbers {', '.join(known)}, as {{NAME: NUMBER}}"
            numbers = numbers if known else "has no numbers: leave it out"
            raise ValueError(f"lr_scheduler_kwargs is {given!r}; {kind} {numbers}.")
    if "min_lr" in known and ("min_lr" in given) == ("min_lr_rate" in given):
        raise ValueError(
            f"lr_scheduler_kwargs is {given!r}; {kind} needs one of min_lr, the least rate, and min_lr_rate, its share "
            "of learning_rate."
        )
    if not 0 <= given.get("min_lr", 0) <= learning_rate or not 0 <= given.get("min_lr_rate", 0) <= 1:
        raise ValueError(
            f"lr_scheduler_kwargs is {given!r}; min_lr is a rate from 0 to learning_rate, {learning_rate}, and "
            "min_lr_rate a share from 0 to 1."
        )
    if kind == "polynomial" and not (end := given.get("lr_end", _LR_END)) < learning_rate:
        raise ValueError(
            f"lr_scheduler_type is {kind!r}, whose rate falls to lr_end, {end}, and learning_rate is {learning_rate}: "
            "it must be above lr_end, as in transformers."
        )
    if kind == "warmup_stable_decay" and "num_decay_steps" not in given:
        raise ValueError(f"lr_scheduler_kwargs is {given!r}; {kind} needs num_decay_steps, the steps of its decay.")
