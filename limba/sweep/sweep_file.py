"""A sweep's file, in YAML or JSON: the keys of W&B's, and a few of ours.

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

METHODS = ("grid", "random", "bayes")
# Distribution: what it needs.
_NEEDS = {
    "constant": ("value",),
    "categorical": ("values",),
    "int_uniform": ("min", "max"),
    "uniform": ("min", "max"),
    "q_uniform": ("min", "max"),
    "log_uniform": ("min", "max"),
    "log_uniform_values": ("min", "max"),
    "q_log_uniform_values": ("min", "max"),
}
# exp of more is no number.
_HIGHEST_LOGARITHM = 700.0
_PARAMETER_KEYS = ("distribution", "value", "values", "min", "max", "q")
# W&B's keys that have no meaning here.
_IGNORED = {
    "early_terminate": "every trial goes to its end; EarlyStoppingAction stops one that does not improve",
    "description": "nothing shows it",
}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """What one gin binding is tried with.

    Attributes:
      name: of the binding, or of the program's flag.
      distribution: one of W&B's.
      values: the choices of "constant" and "categorical".
      low, high: bounds of the others; of "log_uniform" their natural logarithms.
      q: multiples of it only.

    Raises:
      ValueError: for bounds that cannot be.
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
        if self.distribution == "log_uniform" and self.high > _HIGHEST_LOGARITHM:
            raise ValueError(
                f"parameters.{self.name}: max is {self.high}, and the bounds of log_uniform are natural logarithms; "
                "log_uniform_values takes the values themselves."
            )
        if self.distribution == "int_uniform" and not (float(self.low).is_integer() and float(self.high).is_integer()):
            raise ValueError(f"parameters.{self.name}: {self.low} and {self.high} must be whole for int_uniform.")
        if (self.distribution.startswith("q_") or self.q is not None) and not 0 < (self.q or 0) < math.inf:
            raise ValueError(f"parameters.{self.name}: {self.distribution} needs q above 0, and it is {self.q}.")

    @property
    def is_log(self) -> bool:
        return "log_uniform" in self.distribution

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the values themselves."""
        return (
            (math.exp(self.low), math.exp(self.high)) if self.distribution == "log_uniform" else (self.low, self.high)
        )

    def at(self, share: float) -> Any:
        """The value at a share of the distribution, in [0, 1)."""
        if self.values:
            return self.values[int(share * len(self.values))]
        low, high = self.bounds
        if self.distribution == "int_uniform":
            return int(low) + int(share * (int(high) - int(low) + 1))
        value = math.exp(math.log(low) + share * math.log(high / low)) if self.is_log else low + share * (high - low)
        return self.rounded(value)

    def rounded(self, value: float) -> float:
        """To a multiple of `q`."""
        return value if self.q is None else round(value / self.q) * self.q


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep's file.

    Attributes:
      name: of the sweep.
      method: "grid", "random" or "bayes".
      metric: `<dataset>/<metric>`, as metrics.jsonl has them and W&B shows them.
      maximize: whether more is better.
      parameters: what is tried.
      trials: how many trials.
      program: "train" or "run CONFIG.json"; of another program only `command` counts.
      command: of a trial, with W&B's macros; empty is the program's own.
      gin_files, gin_bindings: of every trial.
      project: on W&B.
      parallel: trials at once.
      devices: CUDA_VISIBLE_DEVICES of each of the `parallel` trials; empty gives all to each.
      slurm: options of sbatch; None runs trials on this machine.
      seed: of the values that are drawn.
      where: the file.
    """

    name: str
    method: str
    metric: str
    maximize: bool
    parameters: tuple[Parameter, ...]
    trials: int
    program: str
    command: tuple[str, ...]
    gin_files: tuple[str, ...]
    gin_bindings: tuple[str, ...]
    project: str | None
    parallel: int
    devices: tuple[str, ...]
    slurm: tuple[str, ...] | None
    seed: int
    where: Path

    @property
    def identity(self) -> dict[str, Any]:
        """What must stay the same while a sweep goes on, as JSON has it."""
        changeable = ("trials", "parallel", "devices", "slurm", "where")
        fields = {name: value for name, value in dataclasses.asdict(self).items() if name not in changeable}
        return json.loads(json.dumps(fields))


def load(file: Path) -> tuple[Sweep, list[str]]:
    """Reads a sweep's file; also returns what is to be said of keys that are ignored.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if it is damaged, a key is unknown or missing, or a value cannot be.
    """
    content = _read(file)
    known = [
        *("name", "project", "entity", "method", "metric", "parameters", "program", "command", "run_cap", "trials"),
        *("gin_files", "gin_bindings", "parallel", "devices", "slurm", "seed"),
    ]
    for key in map(str, content):
        if key not in known and key not in _IGNORED:
            nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise ValueError(f"{file}: there is no key {key!r}; the nearest is {nearest!r}.")
    said = [f"{key} is ignored because {_IGNORED[key]}." for key in content if key in _IGNORED]
    if content.get("method") not in METHODS:
        raise ValueError(f"{file}: method is {content.get('method')!r}; use {', '.join(METHODS)}.")
    metric = content.get("metric") or {}
    if (
        not isinstance(metric, dict)
        or not isinstance(metric.get("name"), str)
        or metric.get("goal") not in ("minimize", "maximize")
    ):
        raise ValueError(f"{file}: metric is {metric!r}; write {{name: DATASET/NAME, goal: minimize or maximize}}.")
    given = content.get("parameters")
    if not isinstance(given, dict) or not given:
        raise ValueError(f"{file}: parameters is {given!r}; name at least one gin binding with its values.")
    parameters = tuple(_parameter(name, described, file) for name, described in given.items())
    program, command = _program(content, file)
    devices = _words(content, "devices", file)
    slurm = _words(content, "slurm", file) if content.get("slurm") is not None else None
    sweep = Sweep(
        name=str(content.get("name") or file.stem),
        method=content["method"],
        metric=metric["name"],
        maximize=metric["goal"] == "maximize",
        parameters=parameters,
        trials=_trials(content, parameters, file),
        program=program,
        command=command,
        gin_files=_words(content, "gin_files", file),
        gin_bindings=_words(content, "gin_bindings", file),
        project=content.get("project"),
        parallel=_whole(content.get("parallel", len(devices) or 1), "parallel", file),
        devices=devices,
        slurm=slurm,
        seed=_whole(content.get("seed", 0), "seed", file, least=0),
        where=file,
    )
    if devices and len(devices) < sweep.parallel:
        raise ValueError(f"{file}: devices has {len(devices)} entries for {sweep.parallel} trials at once.")
    if slurm is not None and (program != "train" or command):
        raise ValueError(f"{file}: slurm is for trials of `program: train`, which launch/slurm.sbatch runs.")
    if program == "train" and not command and not sweep.gin_files:
        raise ValueError(f"{file}: gin_files is missing: the recipe that all trials have.")
    return sweep, said


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file} (working directory {Path.cwd()}).")
    import yaml

    try:
        content = yaml.safe_load(file.read_text("utf-8"))  # JSON is YAML too.
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{file} is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds {type(content).__name__}; write keys and values.")
    return content


def plain_value(value: Any) -> Any:
    """A value of the file; PyYAML takes `1e-5`, which has no point, for a text."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    return value


def _words(content: Mapping[str, Any], name: str, file: Path) -> tuple[str, ...]:
    """A list of texts or numbers, as texts."""
    given = content.get(name) or []
    if not isinstance(given, list) or not all(isinstance(word, str | int | float) for word in given):
        raise ValueError(f"{file}: {name} is {given!r}; it is a list: {name}: [{given if given else '…'}].")
    return tuple(map(str, given))


def _whole(value: Any, name: str, file: Path, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{file}: {name} is {value!r}; it must be a whole number of at least {least}.")
    return value


def _trials(content: Mapping[str, Any], parameters: Sequence[Parameter], file: Path) -> int:
    given = content.get("trials", content.get("run_cap"))
    if content["method"] != "grid":
        if given is None:
            raise ValueError(f"{file}: trials is missing: how many trials (W&B's run_cap) {content['method']} makes.")
        return _whole(given, "trials", file)
    for parameter in parameters:
        if not parameter.values:
            raise ValueError(f"{file}: a grid needs values, and parameters.{parameter.name} has a range.")
    points = math.prod(len(parameter.values) for parameter in parameters)
    return points if given is None else min(points, _whole(given, "trials", file))


def _parameter(name: Any, described: Any, file: Path) -> Parameter:
    if not isinstance(name, str):
        raise ValueError(f"{file}: parameters has {name!r}; a parameter is the name of a gin binding or of a flag.")
    if not isinstance(described, dict):
        described = {"value": described}
    for key in described:
        if key not in _PARAMETER_KEYS:
            raise ValueError(
                f"{file}: parameters.{name} has the key {key!r}; the keys are {', '.join(_PARAMETER_KEYS)}."
            )
    numbers = {key: plain_value(described.get(key)) for key in ("min", "max", "q")}
    if "value" in described:
        usual = "constant"
    elif "values" in described:
        usual = "categorical"
    else:
        usual = "int_uniform" if all(isinstance(numbers[key], int) for key in ("min", "max")) else "uniform"
    distribution = described.get("distribution", usual)
    if not isinstance(distribution, str) or distribution not in _NEEDS:
        raise ValueError(f"{file}: parameters.{name}.distribution is {distribution!r}; use one of {', '.join(_NEEDS)}.")
    for key in _NEEDS[distribution]:
        if key not in described:
            raise ValueError(f"{file}: parameters.{name} is {distribution}, which needs {key}.")
    if not isinstance(described.get("values", []), list):
        raise ValueError(f"{file}: parameters.{name}.values is {described['values']!r}; it is a list.")
    for value in [described.get("value"), *(described.get("values") or ())]:
        try:
            json.dumps(value)
        except TypeError as error:
            raise ValueError(f"{file}: parameters.{name} has {value!r}, which is no plain value; quote it.") from error
    if distribution == "constant":
        return Parameter(name, distribution, (plain_value(described["value"]),))
    if distribution == "categorical":
        return Parameter(name, distribution, tuple(map(plain_value, described["values"])))
    for key, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, (int, float))):
            raise ValueError(f"{file}: parameters.{name}.{key} is {number!r}; it is a number.")
    return Parameter(name, distribution, (), float(numbers["min"]), float(numbers["max"]), numbers["q"])


def _program(content: Mapping[str, Any], file: Path) -> tuple[str, tuple[str, ...]]:
    program = str(content.get("program", "train")).removeprefix("limba ").strip()
    command = _words(content, "command", file)
    if not command and program != "train" and not re.fullmatch(r"run \S+", program):
        raise ValueError(
            f"{file}: program is {content['program']!r}; use train, or `run CONFIG.json`, or say with command how "
            "it is called."
        )
    return program, command
