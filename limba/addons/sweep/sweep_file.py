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
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons import table
from limba.addons.sweep import own_command, sweep_parameters
from limba.addons.sweep.own_command import is_place, key_of_run, without_places
from limba.addons.sweep.sweep_parameters import Parameter
from limba.files import json_text, number_ranges, redaction
from limba.files.number_ranges import Range
from limba.files.untrusted_files import shown

METHODS = ("grid", "random", "bayes")
# Of a search without a number of its own.
_TRIALS = 20
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
    def recipes(self) -> dict[str, int]:
        """The checksums of the gin files."""
        return {name: zlib.crc32(Path(name).read_bytes()) for name in self.gin_files if Path(name).is_file()}

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
    from limba.files import untrusted_yaml

    # null is what a missing key is.
    content = {key: value for key, value in _read(file).items() if value is not None}
    for key in map(str, content):
        if key not in _KEYS and key not in _IGNORED:
            nearest = difflib.get_close_matches(key[:100], _KEYS, n=1, cutoff=0.0)[0]
            where = untrusted_yaml.place(file, key)
            raise ValueError(f"{where}: there is no key {shown(key)}; the nearest is {nearest!r}.")
    if content.get("method") not in METHODS:
        where = untrusted_yaml.place(file, "method")
        raise ValueError(f"{where}: method is {shown(content.get('method'))}; use {', '.join(METHODS)}.")
    metric = content.get("metric") or {}
    where = untrusted_yaml.place(file, "metric")
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
            parameters.append(sweep_parameters.parse(name, description))
        except ValueError as error:
            raise ValueError(f"{untrusted_yaml.place(file, *keys)}: {error}") from error
    program = str(content.get("program", "train")).removeprefix("limba ").strip()
    command = _words(content, "command", file)
    script_flags: tuple[str, ...] = ()
    warnings = [f"{key} is ignored because {_IGNORED[key]}." for key in content if key in _IGNORED]
    warnings += _goal_warning(metric, where)
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
        project=str(content["project"]) if "project" in content else None,
        parallel=_whole(content.get("parallel", len(devices) or 1), "parallel", file),
        devices=devices,
        slurm=_words(content, "slurm", file) if content.get("slurm") is not None else None,
        seed=_whole(content.get("seed", 0), "seed", file, least=0),
        file=file,
    )
    return sweep, warnings


def _goal_warning(metric: Mapping[str, str], where: str) -> list[str]:
    """A warning if the goal is the opposite of what the metric's name says."""
    words = {*re.split(r"[/_ ]", metric["name"].rpartition("/")[2])}
    is_lower_better = bool(words & {"loss", "nats", "perplexity"})
    usual = "minimize" if is_lower_better else "maximize"
    if metric["goal"] == usual or not (is_lower_better or words & {"accuracy", "f1", "bleu", "em", "rouge1", "rougeL"}):
        return []
    text = f"metric.goal is {metric['goal']}, which keeps the worst trial by {metric['name']}; write goal: {usual}."
    return [f"{where}: {text}"]


def _is_absent_script(program: str, command: Sequence[str], file: Path) -> bool:
    """Whether the program is a Hugging Face script that is not on this machine."""
    is_called = not command or "${program}" in command
    is_here = any((folder / program).is_file() for folder in (Path(), file.parent))
    if not (is_called and program.endswith(".py")) or is_here:
        return False
    if not any(table.parts("script_keys")):
        raise ValueError(f"{file}: program {program} is not here; write its path from {file.parent.absolute()}.")
    return True


def _run_of_script(program: str) -> str:
    """`limba run` with the script's name, which says what is learned; one that is not known has no say."""
    name = Path(program).name
    return f"run {name}" if any(part.is_known_script(name) for part in table.parts("script_keys")) else "run"


def _flags_of_script(command: Sequence[str]) -> tuple[str, ...]:
    """The words of a command behind its script, without W&B's macros and without the folder of a run."""
    words = command[command.index("${program}") + 1 :] if "${program}" in command else ()
    return tuple(word for word in without_places(words) if not (word.startswith("${") and word.endswith("}")))


def _check_keys(given: Mapping[str, tuple[tuple, Any]], file: Path) -> None:
    """Raises ValueError for a parameter that is not a key of `limba run`."""
    from limba.files import untrusted_yaml

    for name, (keys, _) in given.items():
        try:
            for part in table.parts("script_keys"):
                part.check_key(key_of_run(str(name)))
        except ValueError as error:
            raise ValueError(f"{untrusted_yaml.place(file, *keys)}: parameters.{name}: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    from limba.files import untrusted_yaml

    content = untrusted_yaml.read(file)  # JSON is YAML too.
    if not isinstance(content, dict):
        what = "is empty" if content is None else f"holds {shown(content)}"
        raise ValueError(f"{file} {what}; a sweep's file has keys and values: method, metric, parameters, program.")
    return content


def _words(content: Mapping[str, Any], name: str, file: Path) -> tuple[str, ...]:
    """A list of strings or numbers, as strings."""
    given = content.get(name) or []
    if not isinstance(given, list) or not all(isinstance(word, str | int | float) for word in given):
        raise ValueError(f"{file}: {name} is {shown(given)}; it is a list: {name}: [{given if given else '…'}].")
    return tuple(map(str, given))


def _whole(value: Any, name: str, file: Path, least: int = 1) -> int:
    number_ranges.check(f"{file}: {name}", value, Range(least, is_whole=True))
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
    from limba.files import untrusted_yaml

    if not isinstance(given, dict) or not given:
        where = untrusted_yaml.place(file, *keys)
        raise ValueError(f"{where}: parameters is {shown(given)}; name at least one gin binding with its values.")
    flat: dict[Any, tuple[tuple, Any]] = {}
    for name, value in given.items():
        path = (*keys, name)
        is_table = isinstance(value, dict)
        if name in _KEYS and (isinstance(value, list) or (is_table and not {*sweep_parameters.KEYS} & {*value})):
            raise ValueError(
                f"{untrusted_yaml.place(file, *path)}: {name} stands under parameters, and is a key of the sweep: move "
                "it to the beginning of the line."
            )
        if is_table and value.keys() == {"parameters"}:
            inner = flat_parameters(value["parameters"], file, (*path, "parameters"))
            flat |= {f"{name}.{last}": found for last, found in inner.items()}
        else:
            flat[name] = path, value
    return flat
