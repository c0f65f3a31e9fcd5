"""When a run of `limba run` evaluates, saves and shows its metrics: strategies, steps, and shares of all steps."""

import math
import re
from typing import Any

# Of periods in steps or epochs.
STRATEGIES = ("eval_strategy", "save_strategy", "logging_strategy")
PERIODS = ("steps", "epoch", "no")
# Whole numbers, or shares of all steps.
STEPS = ("eval_steps", "save_steps", "logging_steps")
LOGGING_STEPS = 500
# Words in the names of metrics that are better if they are lower, or higher.
_LOWER = {"loss", "perplexity", "mse", "rmse", "mae", "error"}
_HIGHER = {"accuracy", "f1", "precision", "recall", "bleu", "rouge1", "rouge2", "rougeL", "rougeLsum", "match", "em"}


def complete(used: dict[str, Any]) -> list[str]:
    """What TrainingArguments.__post_init__ does with periods, in the arguments `used`; returns notes.

    Steps of 0 or less beside a strategy that counts none are not read. Those of `eval_strategy steps` are
    `logging_steps` where no key gives them.
    """
    for name, strategy in zip(STEPS, STRATEGIES, strict=True):
        if used.get(strategy) in ("no", "epoch", "best") and used.get(name) is not None and used[name] <= 0:
            del used[name]
    if used.get("eval_strategy") != "steps" or used.get("eval_steps") is not None:
        return []
    used["eval_steps"] = used.get("logging_steps") or LOGGING_STEPS
    return [f"As in transformers, eval_steps is that of logging_steps, {used['eval_steps']}."]


def check(request: Any) -> None:
    """Raises ValueError for periods that cannot be, and for what looks at evaluations where there are none."""
    for name in STEPS:
        value = getattr(request, name)
        if value is not None and not (0 < value < 1 or (value >= 1 and float(value).is_integer())):
            raise ValueError(
                f"{name} is {value}; it must be a whole number of at least 1, or a share of all steps below 1."
            )
    if not 0 <= request.eval_delay < math.inf:
        raise ValueError(f"eval_delay is {request.eval_delay}; it must be at least 0.")
    wanted = {
        "load_best_model_at_end": request.load_best_model_at_end,
        "early_stopping_patience": request.early_stopping_patience,
        "use_lr_drop": request.use_lr_drop,
        "save_strategy": request.save_strategy == "best" and "'best'",
    }
    for name, value in wanted.items():
        if value and request.do_train and not request.do_eval:
            raise ValueError(f"{name} is {value}, and looks at evaluations during a training: set do_eval.")
    _check_best(request)
    if not 0 < request.lr_drop_factor < 1:
        raise ValueError(f"lr_drop_factor is {request.lr_drop_factor}; it must be between 0 and 1.")
    if request.use_lr_drop and not request.lr_drop_min_lr < request.learning_rate:
        raise ValueError(
            f"lr_drop_min_lr is {request.lr_drop_min_lr}; it must be below learning_rate, {request.learning_rate}."
        )


def notes_of_best(request: Any) -> list[str]:
    """A note if the worst is taken for the best, as it is in transformers, too."""
    words = {*re.split("[/_]", request.metric_for_best_model)}
    if not words & {"max": _LOWER, "min": _HIGHER}[request.best_mode] or not request.looks_at_best:
        return []
    right = str(request.best_mode == "min").lower()
    name = request.metric_for_best_model
    return [f"The worst {name} is taken for the best, as in transformers: write greater_is_better {right}."]


def _check_best(request: Any) -> None:
    """Raises ValueError if the best checkpoint is wanted, and not each checkpoint is evaluated."""
    if not request.load_best_model_at_end or request.save_strategy == "best":
        return
    if request.save_strategy != (request.eval_strategy or "steps"):
        raise ValueError(
            "load_best_model_at_end needs an evaluation of each checkpoint; save_strategy is "
            f"{request.save_strategy!r} and eval_strategy {request.eval_strategy!r}."
        )
    save, evaluated = request.save_steps, request.eval_steps or request.save_steps
    times = save / evaluated
    is_multiple = (save < 1) == (evaluated < 1) and round(times) > 0 and math.isclose(times, round(times))
    if request.save_strategy == "steps" and not is_multiple:
        raise ValueError(
            f"load_best_model_at_end needs an evaluation of each checkpoint; save_steps is {save}, and must be a "
            f"multiple of eval_steps, {evaluated} (logging_steps if it is not given)."
        )
