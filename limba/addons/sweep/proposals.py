"""The values of the next trial of a sweep, by its method."""

import importlib.util
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from limba.addons.sweep.sweep_file import Sweep
from limba.addons.sweep.sweep_parameters import Parameter
from limba.addons.sweep.trial_folders import Trial

Values = dict[str, Any]


def check(sweep: Sweep) -> None:
    """Raises ValueError for the method "bayes", if Optuna is not installed: before a trial or its folder is there."""
    if sweep.method == "bayes" and importlib.util.find_spec("optuna") is None:
        raise ValueError(
            f"{sweep.file}: method: bayes needs one more package: pip install optuna. `method: random` needs none."
        )


def propose(sweep: Sweep, trials: Sequence[Trial]) -> Values:
    """The values of trial number `len(trials)`. `trials` are all earlier ones, also those that run or failed."""
    number = len(trials)
    if sweep.method == "grid":
        # The last parameter changes fastest.
        points = itertools.product(*(parameter.values for parameter in sweep.parameters))
        point = next(itertools.islice(points, number, None))
        return {parameter.name: value for parameter, value in zip(sweep.parameters, point, strict=True)}
    if sweep.method == "random":
        quantiles = np.random.default_rng([sweep.seed, number]).random(len(sweep.parameters))
        return {p.name: p.at(float(quantile)) for p, quantile in zip(sweep.parameters, quantiles, strict=True)}
    return _bayesian(sweep, trials)


def _bayesian(sweep: Sweep, trials: Sequence[Trial]) -> Values:
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011), from the results so far."""
    import optuna

    logging.getLogger("optuna").setLevel(logging.WARNING)
    free = {p.name: p for p in sweep.parameters if len(p.values) != 1}
    distributions = {name: _distribution(optuna, parameter) for name, parameter in free.items()}
    sampler = optuna.samplers.TPESampler(
        seed=sweep.seed + len(trials),
        # The first trials are random; Optuna's default, ten, would be all trials of a small sweep.
        n_startup_trials=max(3, min(10, sweep.trials // 4)),
        # Values of running trials are not proposed again.
        constant_liar=True,
    )
    study = optuna.create_study(direction="maximize" if sweep.maximize else "minimize", sampler=sampler)
    states = {"done": optuna.trial.TrialState.COMPLETE, "failed": optuna.trial.TrialState.FAIL}
    for trial in trials:
        study.add_trial(
            optuna.trial.create_trial(
                state=states.get(trial.status, optuna.trial.TrialState.RUNNING),
                params={name: _to_optuna(p, trial.parameters[name]) for name, p in free.items()},
                distributions=distributions,
                value=trial.value if trial.status == "done" else None,
            )
        )
    proposed = study.ask(distributions).params
    values = {name: _from_optuna(free[name], value) for name, value in proposed.items()}
    return {p.name: values.get(p.name, p.values[0] if p.values else None) for p in sweep.parameters}


def _distribution(optuna: Any, parameter: Parameter) -> Any:
    if parameter.values:
        # Choices are given by index: Optuna stores only plain values.
        return optuna.distributions.CategoricalDistribution(range(len(parameter.values)))
    low, high = parameter.bounds
    if parameter.distribution == "int_uniform":
        q = int(parameter.q or 1)
        first, last = parameter.multiples(q)
        return optuna.distributions.IntDistribution(first * q, last * q, step=q)
    return optuna.distributions.FloatDistribution(low, high, log=parameter.is_log)


def _to_optuna(parameter: Parameter, value: Any) -> Any:
    if parameter.values:
        return parameter.values.index(value)
    low, high = parameter.bounds
    return value if parameter.distribution == "int_uniform" else min(max(value, low), high)


def _from_optuna(parameter: Parameter, value: Any) -> Any:
    if parameter.values:
        return parameter.values[value]
    return value if parameter.distribution == "int_uniform" else parameter.rounded(value)
