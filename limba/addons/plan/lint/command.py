"""`limba lint GIN…`: reads the configuration of a training and its first examples, and lists the mistakes.

    limba lint my_run.gin --gin.MODEL_DIR="'runs/x'" --num_devices 16

Files, flags and bindings are those of `limba train`. It compiles nothing and uses no accelerator: run it beside a
training, or before you rent a machine. Each finding has a name (docs/lint.md), its cost and its remedy.

Exit code 0: no finding, or warnings (time or money is lost); 1: errors (training would stop, or spoil the model).
"""

import copy
import dataclasses
import functools
import inspect
import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gin
import jax
from gin import config as gin_config

from limba import command_line
from limba.addons.plan.lint import lint_training
from limba.checkpoint_files import run_folder
from limba.checkpoints import run_configuration
from limba.checkpoints.train_state import TrainStateInitializer
from limba.data import contract
from limba.data.lint_findings import Finding, refused
from limba.devices import native_logs
from limba.files import storage, untrusted_files
from limba.gin_config import gin_files, messages
from limba.models import ElectraModel
from limba.network.flops import forward_flops
from limba.network.t5 import T5Config
from limba.partitioning.meshes import PjitPartitioner
from limba.reports.run_directory import RunDirectory
from limba.train import train
from limba.training import start_checks
from limba.training.configured_trainer import check_vocabulary, make_trainer
from limba.training.training_length import check_step_counts

_FLOAT16 = re.compile(r"['\"]?(float16|fp16|half)['\"]?|@?[\w.]*\.float16")
# Pods have some thousands. XLA takes minutes and gigabytes for 65,536, and ends for more.
_MOST_DEVICES = 10_000
_NEEDED = ("model", "train_dataset_cfg", "checkpoint_cfg", "partitioner", "model_dir")


def float16() -> Iterator[Finding]:
    """Bindings to fp16. They become bfloat16 here, so that the rest can be checked."""
    # Gin has no public way to list its bindings.
    for (scope, selector), parameters in list(gin_config._CONFIG.items()):
        for parameter, value in list(parameters.items()):
            name = scope if selector == "gin.macro" else f"{selector.rpartition('.')[2]}.{parameter}"
            if name.lower().endswith("dtype") and _FLOAT16.fullmatch(str(value)):
                parameters[parameter] = "bfloat16"
                yield Finding(
                    "float16",
                    "error",
                    f"{name} is {value}.",
                    "T5's feed-forward output (`wo`) overflows at 65,504, and the loss becomes NaN",
                    f"Set {name} = 'bfloat16', which has float32's range.",
                )


def build_arguments(configured: Any) -> tuple[dict[str, Any], list[Finding]]:
    """The arguments of `train()`, which gin builds one by one; those that gin cannot build are findings."""
    arguments = {name: p.default for name, p in inspect.signature(train).parameters.items() if p.default is not p.empty}
    found = []
    for name, value in gin.get_bindings(configured, resolve_references=False).items():
        try:
            arguments[name] = copy.deepcopy(value)  # gin builds a reference when it is copied
        except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
            arguments.pop(name, None)
            found.append(refused("configuration", f"train.{name}: {messages.without_gin_trailer(error)}"))
    return arguments, found


def lint(arguments: Mapping[str, Any], model_axis: int, num_devices: int | None) -> Iterator[Finding]:
    """The findings of a training.

    Args:
      arguments: of `train()`, without those that gin could not build.
      model_axis: the size of the mesh's model axis that the configuration asks for.
      num_devices: of the mesh; None if it is not known.
    """
    try:
        if not storage.is_remote(storage.as_path(arguments["model_dir"])):
            RunDirectory(arguments["model_dir"])
    except ValueError as error:
        yield refused("model_dir", str(error))
    names = ("total_steps", "relative_steps", "epochs", "eval_steps", "eval_period", "stats_period")
    has_length = arguments["epochs"] is None  # Only a run counts the steps of an epoch.
    try:
        check_step_counts(*(arguments[name] for name in names))
    except ValueError as error:
        yield refused("configuration", str(error))
        has_length = False
        arguments = {**arguments, "eval_steps": None}
    model, train_cfg, partitioner = map(arguments.get, ("model", "train_dataset_cfg", "partitioner"))
    config = getattr(getattr(model, "module", None), "config", None)
    unusable: list[Finding] = []
    initializer = trainer = None
    if model is not None:
        unusable = list(_check_model_vocabularies(model, config))
        yield from unusable
        restore = getattr(arguments.get("checkpoint_cfg"), "restore", None)
        if not unusable and isinstance(config, T5Config) and not (restore and restore.path):
            largest = max(v.vocab_size for v in (model.input_vocabulary, model.output_vocabulary))
            yield from lint_training.check_unused_rows(config, largest)
        yield from lint_training.check_class(config, isinstance(model, ElectraModel))
        # On one device: what does not divide by the mesh is a finding, and shapes are the same.
        alone = PjitPartitioner(num_partitions=1, devices=jax.devices()[:1])
        try:
            initializer = TrainStateInitializer(model.optimizer_def, model.initial_variables, alone)
            trainer = make_trainer(arguments["trainer_cls"], model, alone, initializer)
        except ValueError as error:
            yield refused("configuration", messages.without_gin_trailer(error))
    steps = None
    if checkpoints := arguments.get("checkpoint_cfg"):
        relative = arguments["relative_steps"]
        given = (arguments["total_steps"], relative) if has_length else (None, None)
        course, found = lint_training.find_course(arguments["model_dir"], checkpoints.restore, *given)
        yield from found
        yield from _check_training(arguments, course, initializer, trainer)
        steps = None if course.last is None else course.last - course.begin
    if partitioner is not None:
        yield from lint_training.check_mesh(partitioner, model_axis, initializer, getattr(config, "num_heads", None))
        microbatches = trainer.num_microbatches if trainer is not None else 1
        if train_cfg is not None:
            yield from lint_training.check_batch(partitioner, train_cfg, microbatches, num_devices)
    # Too few rows are one finding, of the model's vocabulary.
    rows = None if any(x.name == "embedding_rows" for x in unusable) else getattr(config, "vocab_size", None)
    yield from _check_data(arguments, None if unusable else model, config, rows, steps)


def start(arguments: Mapping[str, Any], found: Sequence[Finding]) -> Iterator[Finding]:
    """What ends the run before its first step, in its own words, unless a finding has them already."""
    try:
        train(**{**arguments, "checks_only": True})
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        refusal = refused("start", messages.without_gin_trailer(error))
        if not any(refusal.what in finding.what for finding in found if finding.severity == "error"):
            yield refusal


def _check_model_vocabularies(model: Any, network: Any) -> Iterator[Finding]:
    from limba.tasks.vocabularies import sentencepiece_models  # TensorFlow comes in here.

    for vocabulary in (model.input_vocabulary, model.output_vocabulary):
        try:
            sentencepiece_models.check_file(vocabulary)
        except (ValueError, OSError) as error:
            yield refused("vocabulary", str(error))
            continue
        try:
            check_vocabulary(vocabulary, network)
        except ValueError as error:
            yield refused("embedding_rows", str(error))


def _check_training(
    arguments: Mapping[str, Any],
    course: lint_training.Course,
    initializer: TrainStateInitializer | None,
    trainer: Any,
) -> Iterator[Finding]:
    if course.last is not None and not course.is_resumed:
        yield from lint_training.check_steps(course.begin, course.last, arguments["relative_steps"])
    rate = trainer.learning_rate_fn if trainer is not None else None
    if rate is not None:
        found = list(lint_training.check_rate(rate, course))
        yield from found
        if initializer is not None and not any(finding.name == "learning_rate" for finding in found):
            shapes = (initializer.param_shapes, initializer.param_axes)
            steps_of = lint_training.size_of_steps(arguments["model"].optimizer_def, *shapes)
            yield from lint_training.check_scale(steps_of, rate, course)
    save = arguments["checkpoint_cfg"].save
    state = initializer.train_state_shapes if initializer is not None else None
    last_step = course.first + 1 if course.last is None else course.last
    yield from lint_training.check_checkpoints(arguments["model_dir"], save, state, course.first, last_step)
    if save is not None:
        yield from lint_training.check_period(save, course)


def _check_data(
    arguments: Mapping[str, Any], model: Any, config: Any, rows: int | None, steps: int | None
) -> Iterator[Finding]:
    from limba.addons.plan.data import lint_tasks

    flops = functools.partial(forward_flops, dataclasses.asdict(config)) if isinstance(config, T5Config) else None
    uses = {
        "train_dataset_cfg": lint_tasks.Purpose("train", steps, flops, rows),
        "train_eval_dataset_cfg": lint_tasks.Purpose("train_eval", arguments["eval_steps"]),
        "infer_eval_dataset_cfg": lint_tasks.Purpose("infer_eval"),
    }
    for name, use in uses.items():
        dataset: contract.DatasetConfig | None = arguments.get(name)
        yield from _check_dataset(arguments, model, dataset, use) if dataset is not None else ()


def _check_dataset(
    arguments: Mapping[str, Any], model: Any, config: contract.DatasetConfig, use: Any
) -> Iterator[Finding]:
    from limba.addons.plan.data import lint_tasks

    for dataset in config.by_stage():
        found = list(lint_tasks.check(dataset, getattr(model, "FEATURE_CONVERTER_CLS", "EncDecFeatureConverter"), use))
        yield from found
        verify = arguments["verify_matching_vocabs_fn"]
        known = model is not None and not any(x.name in ("task", "split", "vocabulary") for x in found)
        if use.role == "train" and known and verify is not None and hasattr(model, "input_vocabulary"):
            try:
                verify(dataset, model)
            except (ValueError, OSError, RuntimeError) as error:
                yield refused("other_vocabulary", str(error))


def _pretend(num_devices: int) -> None:
    """Gives JAX only CPU devices, of this number. Called before JAX looks for devices.

    Raises:
      ValueError: for a number that no machine has, such as one of a mesh of somebody else.
      RuntimeError: if JAX has looked already: a module that the gin files import computes something.
    """
    if not 1 <= num_devices <= _MOST_DEVICES:
        raise ValueError(
            f"The mesh has {untrusted_files.shown(num_devices)} devices; lint pretends to have 1 to {_MOST_DEVICES:,}. "
            "Mend --num_devices, or PjitPartitioner.num_partitions, model_parallel_submesh or ici_mesh_shape."
        )
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={num_devices}"
    jax.config.update("jax_platforms", "cpu")
    if jax.device_count() != num_devices or jax.devices()[0].platform != "cpu":
        raise RuntimeError(
            f"A module that the gin files import computes something when it is imported, on {jax.devices()}. Move that "
            "into a function: lint needs JAX untouched."
        )


def _model_axis() -> tuple[int, int]:
    """The size of the model axis that gin asks for, and the fewest devices that the mesh needs."""
    bound = gin.get_bindings(PjitPartitioner, resolve_references=True)
    slices = [bound.get(name) for name in ("ici_mesh_shape", "dcn_mesh_shape")]
    if all(slices):
        return slices[0][-1] * slices[1][-1], math.prod((*slices[0], *slices[1]))
    submesh = bound.get("model_parallel_submesh")
    wanted = math.prod(submesh) if submesh else bound.get("num_partitions") or 1
    return wanted, wanted


def report(findings: Sequence[Finding]) -> int:
    """Prints the findings, errors first, and returns the exit code."""
    errors = sum(finding.severity == "error" for finding in findings)
    for finding in sorted(findings, key=lambda finding: finding.severity):
        print(finding)
    counts = {"error": errors, "warning": len(findings) - errors}
    counted = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())
    print(counted if findings else "no findings")
    return 1 if errors else 0


def _gin_file_of(run_dir: str) -> str:
    """The configuration of a run, or of one of its checkpoints.

    Raises:
      FileNotFoundError: if it has none.
    """
    checkpoint = storage.as_path(run_configuration.newest_checkpoint(run_dir))
    if (file := run_folder.find_gin(checkpoint)) is None:
        raise FileNotFoundError(f"{checkpoint} has no run/config.gin; give the run's gin files.")
    run_configuration.remember_modules(checkpoint)
    return str(file)


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and prints the findings."""
    parser = command_line.argument_parser("lint", __doc__ or "", takes_run=True)
    parser.add_argument("--num_devices", type=int, metavar="N", help="devices of the mesh (the fewest possible)")
    flags = command_line.parse_flags(parser, argv)
    if flags.run_dir:
        flags.gin_file.insert(0, _gin_file_of(flags.run_dir))
    if not flags.gin_file:
        parser.error("give RUN, or at least one gin file, for example gin/recipes/quickstart.gin")
    if flags.num_devices is not None and flags.num_devices < 1:
        parser.error(f"--num_devices is {flags.num_devices}; it is a whole number of at least 1")
    configured = gin_files.configurable(train, module="limba.train")
    gin_files.parse_gin_flags(flags.gin_file, flags.gin_bindings, flags.gin_search_paths)
    missing = [name for name in _NEEDED if name not in gin.get_bindings(configured, resolve_references=False)]
    if missing:
        raise gin_files.GinError(
            f"The gin files bind no train.{missing[0]}; lint looks at trainings: add gin/runs/pretrain.gin or "
            "gin/runs/finetune.gin."
        )
    gin_files.require_training_bindings()
    model_axis, fewest = _model_axis()
    _pretend(flags.num_devices or fewest)
    for ours in ("limba", "tasks"):
        logging.getLogger(ours).setLevel(logging.ERROR)  # Their warnings are findings here.
    start_checks.logger.setLevel(logging.WARNING)  # which says what was not looked at
    findings = list(float16())
    with native_logs.filtered():
        arguments, not_built = build_arguments(configured)
        findings += not_built
        findings += lint(arguments, model_axis, flags.num_devices)
        if not not_built:
            findings += start(arguments, findings)
    sys.stdout.flush()
    return report(list(dict.fromkeys(findings)))


if __name__ == "__main__":
    # `python -m` makes a second copy of this module; gin must see the functions of the first.
    from limba.addons.plan.lint import command as _this

    command_line.run_command(_this.main)
