"""The gin lines of the optimizer and the learning rate of `limba run`: as transformers' Trainer has them."""

import math
from typing import Any

from limba.gin_config.hf_keys import script_names
from limba.gin_config.hf_keys.run_arguments import RunArguments

# transformers' name of a schedule: the function of `limba.optimizers.schedules`.
_FUNCTIONS = {
    "linear": "warmup_linear",
    "cosine": "warmup_cosine",
    "cosine_with_restarts": "warmup_cosine_restarts",
    "cosine_with_min_lr": "warmup_cosine",
    "cosine_warmup_with_min_lr": "early_cosine",
    "polynomial": "warmup_polynomial",
    "constant": "warmup_constant",
    "constant_with_warmup": "warmup_constant",
    "inverse_sqrt": "warmup_inverse_sqrt",
    "warmup_stable_decay": "stages",
}
# Schedules without an end.
_ENDLESS = ("warmup_constant", "warmup_inverse_sqrt")
# transformers' names of the numbers of schedules.
_NUMBERS = {"lr_end": "final_learning_rate", "min_lr": "final_learning_rate", "warmup_lr_rate": "warmup_rate"}


def bindings(**values: Any) -> list[str]:
    """Indented lines of a gin block; None is left out."""
    return [f"  {name} = {value!r}" for name, value in values.items() if value is not None]


def optimizer(arguments: RunArguments) -> list[str]:
    """OPTIMIZER, with the gradient clipped as the Trainer does it before any optimizer."""
    if arguments.uses_adafactor:
        return _adafactor(arguments)
    by_value = arguments.clip_grad_value or None
    clipped = arguments.max_grad_norm > 0 and by_value is None
    betas = {"b1": arguments.adam_beta1, "b2": arguments.adam_beta2}
    clip = ["@optax.clip()"] if by_value else ["@optax.clip_by_global_norm()"] if clipped else []
    chain = [*clip, "@optimizers.adamw()"]
    return [
        "OPTIMIZER = @optimizers.chain()",
        f"optimizers.chain.transformations = [{', '.join(chain)}]",
        *([f"optax.clip_by_global_norm.max_norm = {arguments.max_grad_norm}"] if clipped else []),
        *([f"optax.clip.max_delta = {by_value}"] if by_value else []),
        "optimizers.adamw:",
        *bindings(**betas, eps=arguments.adam_epsilon, weight_decay=arguments.weight_decay),
        *([] if arguments.decay_all_parameters else ["  mask = @weight_decay.matrices"]),
    ]


def _adafactor(arguments: RunArguments) -> list[str]:
    """As the Trainer makes it: steps are not relative to the parameters, and every matrix is factored.

    That of the Flax scripts, optax's, has the defaults of T5X.
    """
    is_optax = arguments.optim == script_names.OPTAX_ADAFACTOR
    decay = arguments.weight_decay
    exempt = "" if arguments.decay_all_parameters else "('scale|bias|rel_embedding', 0.0), "
    return [
        "OPTIMIZER = @adafactor.Adafactor()",
        "adafactor.Adafactor:",
        *bindings(
            multiply_by_parameter_scale=arguments.scale_parameter or is_optax,
            min_dim_size_to_factor=None if is_optax else 1,
            global_norm_clip_threshold=arguments.max_grad_norm or None,
            weight_decay_rate_lr_exponent=1.0 if decay else None,
        ),
        *(["  weight_decay_rate = @adafactor.HParamMap()"] if decay else []),
        *([f"adafactor.HParamMap.rules = [{exempt}('.*', {decay})]"] if decay else []),
    ]


def schedule(arguments: RunArguments, steps: int) -> list[str]:
    """The learning rate: warm-up to `learning_rate`, then the decay, step for step that of transformers."""
    begin = ["# learning rate"]
    if arguments.relative_step:
        name = "relative_step"
        values: dict[str, Any] = {"warmup_init": arguments.warmup_init}
    else:
        name = _FUNCTIONS[arguments.lr_scheduler_type]
        warmup = arguments.warmup_steps or math.ceil(arguments.warmup_ratio * steps)
        # A warm-up longer than the training ends with it, below its peak: its decay would begin later.
        total = max(arguments.num_training_steps or steps, warmup + 1)
        given = dict(arguments.lr_scheduler_kwargs or {})
        for share in ("min_lr_rate", "min_lr_ratio"):
            if share in given:
                given["min_lr"] = given.pop(share) * arguments.learning_rate
        values = {
            "base_learning_rate": arguments.learning_rate,
            "warmup_steps": 0 if arguments.lr_scheduler_type == "constant" else warmup,
            "total_steps": None if name in (*_ENDLESS, "stages") else total,
        }
        if name == "stages":
            decay, stable = int(given.pop("num_decay_steps")), given.pop("num_stable_steps", None)
            values |= {"stable_steps": max(total - warmup - decay, 0) if stable is None else int(stable)}
            values |= {"decay_steps": decay}
        values |= {_NUMBERS.get(key, key): value for key, value in given.items()}
    return [
        *begin,
        f"trainer.Trainer.learning_rate_fn = @schedules.{name}()",
        f"schedules.{name}:",
        *bindings(**values),
    ]
