"""The gin lines of the optimizer and the learning rate of `limba run`: as transformers' Trainer has them."""

import math
from typing import Any

from limba.addons.run.keys import script_names
from limba.addons.run.keys.request import Request
from limba.gin_config.recipe import Binding, Block, Reference, Statement, given

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


def optimizer(request: Request) -> list[Statement]:
    """OPTIMIZER, with the gradient clipped as the Trainer does it before any optimizer."""
    if request.uses_adafactor:
        return _adafactor(request)
    by_value = request.clip_grad_value or None
    clipped = request.max_grad_norm > 0 and by_value is None
    clip = [Binding("optax.clip.max_delta", by_value)] if by_value else []
    clip += [Binding("optax.clip_by_global_norm.max_norm", request.max_grad_norm)] if clipped else []
    chain = [*(f"@optax.{x.function}()" for x in clip), "@optimizers.adamw()"]
    of_adamw = given(
        b1=request.adam_beta1,
        b2=request.adam_beta2,
        eps=request.adam_epsilon,
        weight_decay=request.weight_decay,
        mask=None if request.decay_all_parameters else Reference("@weight_decay.matrices"),
    )
    return [
        Binding("OPTIMIZER", Reference("@optimizers.chain()")),
        Binding("optimizers.chain.transformations", list(map(Reference, chain))),
        *clip,
        Block("optimizers.adamw", of_adamw),
    ]


def _adafactor(request: Request) -> list[Statement]:
    """As the Trainer makes it: steps are not relative to the parameters, and every matrix is factored.

    That of the Flax scripts, optax's, has the defaults of T5X.
    """
    is_optax = request.optim == script_names.OPTAX_ADAFACTOR
    decay = request.weight_decay
    exempt = [] if request.decay_all_parameters else [("scale|bias|rel_embedding", 0.0)]
    of_adafactor = given(
        multiply_by_parameter_scale=request.scale_parameter or is_optax,
        min_dim_size_to_factor=None if is_optax else 1,
        global_norm_clip_threshold=request.max_grad_norm or None,
        weight_decay_rate_lr_exponent=1.0 if decay else None,
        weight_decay_rate=Reference("@adafactor.HParamMap()") if decay else None,
    )
    return [
        Binding("OPTIMIZER", Reference("@adafactor.Adafactor()")),
        Block("adafactor.Adafactor", of_adafactor),
        *([Binding("adafactor.HParamMap.rules", [*exempt, (".*", decay)])] if decay else []),
    ]


def schedule(request: Request, steps: int) -> list[Statement]:
    """The learning rate: warm-up to `learning_rate`, then the decay, step for step that of transformers."""
    if request.relative_step:
        name = "relative_step"
        values: dict[str, Any] = {"warmup_init": request.warmup_init}
    elif not request.learning_rate:  # The other schedules are shares of a rate above 0.
        name = "create_learning_rate_scheduler"
        values = {"factors": "constant", "base_learning_rate": 0.0, "min_learning_rate": 0.0}
    else:
        name = _FUNCTIONS[request.lr_scheduler_type]
        warmup = request.warmup_steps or math.ceil(request.warmup_ratio * steps)
        # A warm-up longer than the training ends with it, below its peak: its decay would begin later.
        total = max(request.num_training_steps or steps, warmup + 1)
        keys = dict(request.lr_scheduler_kwargs or {})
        for share in ("min_lr_rate", "min_lr_ratio"):
            if share in keys:
                keys["min_lr"] = keys.pop(share) * request.learning_rate
        values = {
            "base_learning_rate": request.learning_rate,
            "warmup_steps": 0 if request.lr_scheduler_type == "constant" else warmup,
            "total_steps": None if name in (*_ENDLESS, "stages") else total,
        }
        if name == "stages":
            decay, stable = int(keys.pop("num_decay_steps")), keys.pop("num_stable_steps", None)
            values |= {"stable_steps": max(total - warmup - decay, 0) if stable is None else int(stable)}
            values |= {"decay_steps": decay}
        values |= {_NUMBERS.get(key, key): value for key, value in keys.items()}
    return [
        "# learning rate",
        Binding("trainer.Trainer.learning_rate_fn", Reference(f"@schedules.{name}()")),
        Block(f"schedules.{name}", given(**values)),
    ]
