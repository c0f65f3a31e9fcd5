"""A sweep's file, in YAML or JSON: W&B's keys, and a few of Limba's.

method: bayes                        # grid, random, bayes
metric: {name: training_eval/my_task/nats_per_target_token, goal: minimize}
parameters:
  BATCH_SIZE: {values: [8, 16]}
  schedules.create_learning_rate_scheduler.base_learning_rate: {distribution: log_uniform_values, min: 1e-4, max: 1e-2}
program: train                       # or `run CONFIG.json`, with that command's keys as parameters
gin_files: [gin/recipes/quickstart.gin]
trials: 20
"""

import dataclasses
import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.commands.sweep import own_command
from limba.commands.sweep.own_command import is_place, key_of_run, without_places
from limba.files import json_text, redaction
from limba.files.untrusted_files import shown

METHODS = ("grid", "random", "bayes")
# Distribution: the keys that it needs.
_NEEDS = {
    "constant": ("value",),
    "categorical": ("values",),
    **dict.fromkeys(("int_uniform", "uniform", "q_uniform"), ("min", "max")),
    **dict.fromkeys(("log_uniform", "log_uniform_values", "q_log_uniform", "q_log_uniform_values"), ("min", "max")),
}
# Names in other searches' files.
_OTHER_NAMES = {
    **dict.fromkeys(("int", "randint", "integer"), "int_uniform"),
    **dict.fromkeys(("float", "double"), "uniform"),
    **dict.fromkeys(("loguniform", "reciprocal"), "log_uniform_values"),
    "choice": "categorical",
    "quniform": "q_uniform",
    "qloguniform": "q_log_uniform_values",
}
# Of a search without a number of its own.
_TRIALS = 20
# exp of a higher number overflows.
_HIGHEST_LOGARITHM = 700.0
_OF_LOGARITHMS = ("log_uniform", "q_log_uniform")
_PARAMETER_KEYS = ("distribution", "value", "values", "min", "max", "q")
# Keys and distributions of W&B's that are not here, and what to write.
_NOT_HERE = {
    "probabilities": "leave it out, or write a likelier value more than once: all values are drawn alike",
    **dict.fromkeys(("mu", "sigma"), "write min and max, such as mu - 2 sigma and mu + 2 sigma, in place of a normal"),
    **dict.fromkeys(("a", "b"), "write min: 0 and max: 1 in place of a beta distribution"),
    **dict.fromkeys(("normal", "q_normal"), "write uniform with min and max, such as mu - 2 sigma and mu + 2 sigma"),
    **dict.fromkeys(("log_normal", "q_log_normal"), "write log_uniform_values with min and max"),
    **dict.fromkeys(("inv_log_uniform", "inv_log_uniform_values"), "write log_uniform_values with min and max"),
    **dict.fromkeys(("beta", "q_beta"), "write uniform with min: 0 and max: 1"),
    "categorical_w_probabilities": "write values alone, which are drawn alike",
}
_KEYS = (
    *("name", "project", "entity", "method", "metric", "parameters", "program", "command", "run_cap", "trials"),
    *("gin_files", "gin_bindings", "parallel", "devices", "slurm", "seed"),
)
# W&B's keys that Limba ignores, and why.
_IGNORED = {
    "early_terminate": "every trial runs to its end; EarlyStoppingAction stops a trial that does not improve",
    "description": "nothing shows it",
}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """The values that a sweep tries for one gin binding or flag of the program.

    Attributes:
      distribution: one of W&B's.
      values: the choices of "constant" and "categorical".
      low, high: bounds of the other distributions; for "log_uniform" their natural logarithms.
      q: values are multiples of it; None for any value.

    Raises:
      ValueError: for bounds that contradict the distribution.
    """

    name: str
    distribution: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    q: float | None = None

    def __post_init__(self) -> None:
        if self.distribution in ("constant", "categorical"):
            if not self.values:
                raise ValueError(f"parameters.{self.name} has no values.")
            return
        if not -math.inf < self.low <= self.high < math.inf:
            raise ValueError(f"parameters.{self.name}: min {self.low} is not below max {self.high}.")
        if "log_uniform_values" in self.distribution and self.low <= 0:
            raise ValueError(f"parameters.{self.name}: min is {self.low}; a logarithm needs it above 0.")
        if self.distribution in _OF_LOGARITHMS and self.high > _HIGHEST_LOGARITHM:
            raise ValueError(
                f"parameters.{self.name}: max is {self.high}, and the bounds of log_uniform are natural logarithms; "
                "log_uniform_values takes the values themselves."
            )
        if self.distribution == "int_uniform" and not (float(self.low).is_integer() and float(self.high).is_integer()):
            raise ValueError(f"parameters.{self.name}: {self.low} and {self.high} must be whole for int_uniform.")
        if (self.distribution.startswith("q_") or self.q is not None) and not 0 < (self.q or 0) < math.inf:
            raise ValueError(f"parameters.{self.name}: q is {self.q}; {self.distribution} needs q above 0.")

    @property
    def is_log(self) -> bool:
        return "log_uniform" in self.distribution

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value."""
        if self.distribution in _OF_LOGARITHMS:
            return math.exp(self.low), math.exp(self.high)
        return self.low, self.high

    def at(self, quantile: float) -> Any:
        """The value at a quantile of the distribution, in [0, 1)."""
        if self.values:
            return self.values[int(quantile * len(self.values))]
        low, high = self.bounds
        if self.distribution == "int_uniform":
            return int(low) + int(quantile * (int(high) - int(low) + 1))
        if self.is_log:
            return self.rounded(math.exp(math.log(low) + quantile * math.log(high / low)))
        return self.rounded(low + quantile * (high - low))

    def rounded(self, value: float) -> float:
        """The nearest multiple of `q`, if there is one."""
        return value if self.q is None else round(value / self.q) * self.q


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep's file.

    Attributes:
      method: "grid", "random" or "bayes".
      metric: `<dataset>/<metric>`, as in metrics.jsonl and on W&B.
      trials: of a search that does not say how many, 20; W&B's agents then go on until they are stopped.
      program: "train", "run" or "run CONFIG.json"; another program needs `command`.
      command: of a trial, with W&B's macros; empty for the program's usual one.
      script_flags: of every trial of "run": what a command gave to a script that is not here, beside the parameters.
      gin_files, gin_bindings: of every trial.
      project: on W&B.
      parallel: trials that run at the same time.
      devices: CUDA_VISIBLE_DEVICES of each of the `parallel` trials; empty gives all devices to each.
      slurm: options of sbatch; None runs trials on this machine.

    Raises:
      ValueError: for settings that contradict each other.
    """

    name: str
    method: str
    metric: str
    maximize: bool
    parameters: tuple[Parameter, ...]
    trials: int
    program: str
    command: tuple[str, ...]
    script_flags: tuple[str, ...]
    gin_files: tuple[str, ...]
    gin_bindings: tuple[str, ...]
    project: str | None
    parallel: int
    devices: tuple[str, ...]
    slurm: tuple[str, ...] | None
    seed: int
    file: Path

    def __post_init__(self) -> None:
        if self.devices and len(self.devices) < self.parallel:
            raise ValueError(
                f"{self.file}: devices has {len(self.devices)} entries for {self.parallel} trials at once."
            )
        if self.slurm is not None and (self.program != "train" or self.command):
            raise ValueError(f"{self.file}: slurm is for trials of `program: train`, which launch/slurm.sbatch runs.")
        if self.program == "train" and not self.command and not self.gin_files:
            raise ValueError(f"{self.file}: gin_files is missing: name the recipe of all trials.")
        for name, value in self.identity.items():
            if (text := json_text.dumps(value)) != (shown := redaction.redact(text)):
                raise ValueError(
                    f"{self.file}: {name} has a credential, {shown}, and a sweep records it. Put it into the "
                    "environment, or into a gin file that gin_files names."
                )

    @property
    def identity(self) -> dict[str, Any]:
        """The settings, as JSON, that must stay the same when a sweep resumes."""
        changeable = ("trials", "parallel", "devices", "slurm", "file")
        fields = {name: value for name, value in dataclasses.asdict(self).items() if name not in changeable}
        if not self.script_flags:  # as sweeps were recorded before these were kept
            del fields["script_flags"]
        return json.loads(json_text.dumps(fields))


def load(file: Path, fixed: Mapping[str, Any] | None = None) -> tuple[Sweep, list[str]]:
    """Reads a sweep's file; also returns warnings about what is not as the file says.

    Args:
      fixed: parameters with one value each, in place of the file's.

    Raises:
      FileNotFoundError: if the file does not exist.
      ValueError: if it is damaged, a key is unknown or missing, or a value is not allowed.
    """
    from limba.commands.sweep import sweep_yaml

    # null is what a missing key is.
    content = {key: value for key, value in _read(file).items() if value is not None}
    for key in map(str, content):
        if key not in _KEYS and key not in _IGNORED:
            nearest = difflib.get_close_matches(key[:100], _KEYS, n=1, cutoff=0.0)[0]
            where = sweep_yaml.place(file, key)
            raise ValueError(f"{where}: there is no key {shown(key)}; the nearest is {nearest!r}.")
    if content.get("method") not in METHODS:
        where = sweep_yaml.place(file, "method")
        raise ValueError(f"{where}: method is {shown(content.get('method'))}; use {', '.join(METHODS)}.")
    metric = content.get("metric") or {}
    where = sweep_yaml.place(file, "metric")
    named = isinstance(metric, dict) and isinstance(metric.get("name"), str)
    if named and "goal" in metric and metric["goal"] not in ("minimize", "maximize"):
        raise ValueError(f"{where}: metric.goal is {shown(metric['goal'])}; it is minimize or maximize.")
    if not named or metric.get("goal") not in ("minimize", "maximize"):
        raise ValueError(
            f"{where}: metric is {shown(metric)}; write {{name: DATASET/NAME, goal: minimize or maximize}}."
        )
    given = flat_parameters(content.get("parameters"), file)
    given |= {name: ((), {"value": value}) for name, value in (fixed or {}).items()}
    parameters = []
    for name, (keys, description) in given.items():
        try:
            parameters.append(_parameter(name, description))
        except ValueError as error:
            raise ValueError(f"{sweep_yaml.place(file, *keys)}: {error}") from error
    program = str(content.get("program", "train")).removeprefix("limba ").strip()
    command = _words(content, "command", file)
    script_flags: tuple[str, ...] = ()
    warnings = [f"{key} is ignored because {_IGNORED[key]}." for key in content if key in _IGNORED]
    if _is_absent_script(program, command, file):
        warnings.append(f"program {program} is not here: each trial is `limba run` with the parameters as its keys.")
        program, command, script_flags = _run_of_script(program), (), _flags_of_script(command)
        _check_keys(given, file)
    if not command and program.split()[:1] == ["run"]:
        places = [name for name in given if is_place(name)]
        warnings += [f"{name} is ignored because each trial has a folder of its own." for name in places]
    elif command:
        warnings += own_command.warnings(program, command, [*given])
    if content["method"] != "grid" and content.get("trials", content.get("run_cap")) is None:
        warnings.append(f"trials is not given: {_TRIALS} are run; trials, W&B's run_cap or --trials say how many.")
    if not command and program not in ("train", "run") and not re.fullmatch(r"run \S+", program):
        raise ValueError(
            f"{file}: program is {content['program']!r}; use train or `run CONFIG.json`, or give the program's command."
        )
    devices = _words(content, "devices", file)
    sweep = Sweep(
        name=str(content.get("name") or file.stem),
        method=content["method"],
        metric=metric["name"],
        maximize=metric["goal"] == "maximize",
        parameters=tuple(parameters),
        trials=_trials(content, parameters, file),
        program=program,
        command=command,
        script_flags=script_flags,
        gin_files=_words(content, "gin_files", file),
        gin_bindings=_words(content, "gin_bindings", file),
        project=content.get("project"),
        parallel=_whole(content.get("parallel", len(devices) or 1), "parallel", file),
        devices=devices,
        slurm=_words(content, "slurm", file) if content.get("slurm") is not None else None,
        seed=_whole(content.get("seed", 0), "seed", file, least=0),
        file=file,
    )
    return sweep, warnings


def _is_absent_script(program: str, command: Sequence[str], file: Path) -> bool:
    """Whether the program is a Hugging Face script that is not on this machine."""
    is_called = not command or "${program}" in command
    is_here = any((folder / program).is_file() for folder in (Path(), file.parent))
    return is_called and program.endswith(".py") and not is_here


def _run_of_script(program: str) -> str:
    """`limba run` with the script's name, which says what is learned; one that is not known has no say."""
    from limba.gin_config.hf_keys import script_names

    name = Path(program).name
    return f"run {name}" if script_names.is_known(name) else "run"


def _flags_of_script(command: Sequence[str]) -> tuple[str, ...]:
    """The words of a command behind its script, without W&B's macros and without the folder of a run."""
    words = command[command.index("${program}") + 1 :] if "${program}" in command else ()
    return tuple(word for word in without_places(words) if not (word.startswith("${") and word.endswith("}")))


def _check_keys(given: Mapping[str, tuple[tuple, Any]], file: Path) -> None:
    """Raises ValueError for a parameter that is not a key of `limba run`."""
    from limba.commands.sweep import sweep_yaml
    from limba.gin_config.hf_keys import script_keys

    for name, (keys, _) in given.items():
        try:
            script_keys.check_key(key_of_run(str(name)))
        except ValueError as error:
            raise ValueError(f"{sweep_yaml.place(file, *keys)}: parameters.{name}: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    from limba.commands.sweep import sweep_yaml

    content = sweep_yaml.read(file)  # JSON is YAML too.
    if not isinstance(content, dict):
        what = "is empty" if content is None else f"holds {shown(content)}"
        raise ValueError(f"{file} {what}; a sweep's file has keys and values: method, metric, parameters, program.")
    return content


def plain_value(value: Any) -> Any:
    """A value of the file, with `1e-5` as a number: PyYAML reads it as a text because it has no point."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    return value


def _words(content: Mapping[str, Any], name: str, file: Path) -> tuple[str, ...]:
    """A list of strings or numbers, as strings."""
    given = content.get(name) or []
    if not isinstance(given, list) or not all(isinstance(word, str | int | float) for word in given):
        raise ValueError(f"{file}: {name} is {shown(given)}; it is a list: {name}: [{given if given else '…'}].")
    return tuple(map(str, given))


def _whole(value: Any, name: str, file: Path, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{file}: {name} is {shown(value)}; it must be a whole number of at least {least}.")
    return value


def _trials(content: Mapping[str, Any], parameters: Sequence[Parameter], file: Path) -> int:
    given = content.get("trials", content.get("run_cap"))
    if content["method"] != "grid":
        return _TRIALS if given is None else _whole(given, "trials", file)
    for parameter in parameters:
        if not parameter.values:
            raise ValueError(f"{file}: a grid needs values, but parameters.{parameter.name} has a range.")
    points = math.prod(len(parameter.values) for parameter in parameters)
    return points if given is None else min(points, _whole(given, "trials", file))


def flat_parameters(given: Any, file: Path, keys: tuple[Any, ...] = ("parameters",)) -> dict[Any, tuple[tuple, Any]]:
    """The parameters, by name, with the keys that lead to each: one of a group has its name too, `optimizer.lr`.

    Raises:
      ValueError: if there are none, or a key of the sweep stands among them.
    """
    from limba.commands.sweep import sweep_yaml

    if not isinstance(given, dict) or not given:
        where = sweep_yaml.place(file, *keys)
        raise ValueError(f"{where}: parameters is {shown(given)}; name at least one gin binding with its values.")
    flat: dict[Any, tuple[tuple, Any]] = {}
    for name, value in given.items():
        path = (*keys, name)
        is_table = isinstance(value, dict)
        if name in _KEYS and (isinstance(value, list) or (is_table and not {*_PARAMETER_KEYS} & {*value})):
            raise ValueError(
                f"{sweep_yaml.place(file, *path)}: {name} stands under parameters, and is a key of the sweep: move it "
                "to the beginning of the line."
            )
        if is_table and value.keys() == {"parameters"}:
            inner = flat_parameters(value["parameters"], file, (*path, "parameters"))
            flat |= {f"{name}.{last}": found for last, found in inner.items()}
        else:
            flat[name] = path, value
    return flat


def _parameter(name: Any, description: Any) -> Parameter:
    if not isinstance(name, str):
        raise ValueError(f"parameters has {name!r}; a parameter is the name of a gin binding or of a flag.")
    if not isinstance(description, dict):
        description = {"value": description}
    asked = description.get("distribution")
    for key in [asked, *description]:
        if isinstance(key, str) and key in _NOT_HERE:
            raise ValueError(f"parameters.{name} has {key}, which is not here: {_NOT_HERE[key]}.")
    for key in description:
        if key not in _PARAMETER_KEYS:
            raise ValueError(f"parameters.{name} has the key {shown(key)}; the keys are {', '.join(_PARAMETER_KEYS)}.")
    numbers = {key: plain_value(description.get(key)) for key in ("min", "max", "q")}
    if "value" in description:
        default = "constant"
    elif "values" in description:
        default = "categorical"
    else:
        default = "int_uniform" if all(isinstance(numbers[key], int) for key in ("min", "max")) else "uniform"
    distribution = default if asked is None else asked
    distribution = _OTHER_NAMES.get(distribution, distribution) if isinstance(distribution, str) else distribution
    if not isinstance(distribution, str) or distribution not in _NEEDS:
        raise ValueError(f"parameters.{name}.distribution is {shown(distribution)}; use one of {', '.join(_NEEDS)}.")
    for key in _NEEDS[distribution]:
        if key not in description:
            raise ValueError(f"parameters.{name} is {distribution}, which needs {key}.")
    if not isinstance(description.get("values", []), list):
        raise ValueError(f"parameters.{name}.values is {shown(description['values'])}; it is a list.")
    for value in [description.get("value"), *(description.get("values") or ())]:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:  # Python writes numbers of 4300 digits at most.
            raise ValueError(f"parameters.{name} has {shown(value)}, which JSON cannot hold; quote it.") from error
    if distribution == "constant":
        return Parameter(name, distribution, (plain_value(description["value"]),))
    if distribution == "categorical":
        return Parameter(name, distribution, tuple(map(plain_value, description["values"])))
    for key, number in numbers.items():
        is_needed = key in _NEEDS[distribution]
        if (number is not None or is_needed) and (isinstance(number, bool) or not isinstance(number, (int, float))):
            raise ValueError(f"parameters.{name}.{key} is {shown(number)}; it is a number.")
        if isinstance(number, int) and abs(number) > 2**1000:  # float() ends at 2**1024
            raise ValueError(f"parameters.{name}.{key} is {shown(number)}; numbers end at about 1e300.")
    return Parameter(name, distribution, (), float(numbers["min"]), float(numbers["max"]), numbers["q"])
