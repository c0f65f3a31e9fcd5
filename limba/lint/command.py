"""`limba lint GIN…`: reads the configuration of a training and its first examples, and says what would hurt.

    limba lint my_run.gin --gin.MODEL_DIR="'runs/x'" --num_devices 16

Files, flags and bindings are those of `limba train`. Nothing is compiled and no accelerator is touched: it can be run
beside a training, and before a machine is rented. Each finding has a name (docs/lint.md), its cost and its remedy.

Exit code 0: nothing, or warnings (time or money is lost); 1: errors (training would stop, or spoil the model).
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

from limba import commands, data, gin_utils, lint_training, native_logs, storage
from limba.findings import Finding, refused
from limba.flops import forward_flops
from limba.network import T5Config
from limba.partitioning import PjitPartitioner
from limba.run_directory import RunDirectory
from limba.train import check_numbers, check_vocabulary, train
from limba.train_state import TrainStateInitializer

_FLOAT16 = re.compile(r"['\"]?(float16|fp16|half)['\"]?|@?[\w.]*\.float16")
_NEEDED = ("model", "train_dataset_cfg", "checkpoint_cfg", "partitioner", "model_dir")


def float16() -> Iterator[Finding]:
    """Bindings to fp16, which become bfloat16 so that the rest can be looked at."""
    # Gin has no public way to list what is bound.
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


def arguments(configured: Any) -> tuple[dict[str, Any], list[Finding]]:
    """The arguments of `train()` as gin makes them, one by one; those that gin cannot make are findings."""
    made = {name: p.default for name, p in inspect.signature(train).parameters.items() if p.default is not p.empty}
    found = []
    for name, value in gin.get_bindings(configured, resolve_references=False).items():
        try:
            made[name] = copy.deepcopy(value)  # which is how gin builds what is referred to
        except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
            made.pop(name, None)
            found.append(refused("configuration", f"train.{name}: {commands.without_gin_trailer(error)}"))
    return made, found


def lint(made: Mapping[str, Any], model_axis: int, num_devices: int | None) -> Iterator[Finding]:
    """What would hurt in a training.

    Args:
      made: the arguments of `train()`, as far as they could be made.
      model_axis: the size of the mesh's model axis that the configuration asks for.
      num_devices: that it will have; None if nobody says.
    """
    yield from _check_model_dir(made["model_dir"])
    names = ("total_steps", "relative_steps", "epochs", "eval_steps", "eval_period", "stats_period")
    try:
        check_numbers(*(made[name] for name in names))
    except ValueError as error:
        yield refused("configuration", str(error))
        made = {**made, "total_steps": 1, "relative_steps": None, "epochs": None, "eval_steps": None}
    if made["epochs"] is not None:  # How many steps they are is counted by the run; the first is looked at.
        made = {**made, "relative_steps": 1}
    model, train_cfg, partitioner = made.get("model"), made.get("train_dataset_cfg"), made.get("partitioner")
    config = getattr(getattr(model, "module", None), "config", None)
    usable = True
    if model is not None:
        for finding in _check_model_vocabularies(model, getattr(config, "vocab_size", None)):
            usable = False
            yield finding
    initializer = trainer = None
    if model is not None:
        # On one device: what does not divide by the mesh is a finding, and shapes are the same.
        alone = PjitPartitioner(num_partitions=1, devices=jax.devices()[:1])
        initializer = TrainStateInitializer(model.optimizer_def, model.initial_variables, alone)
        trainer = made["trainer_cls"](
            model=model,
            partitioner=alone,
            rng=jax.random.key(0),
            train_state=initializer.train_state_shapes,
            train_state_axes=initializer.train_state_axes,
            eval_names=(),
            summary_dir=None,
        )
    yield from _check_training(made, initializer, trainer)
    if partitioner is not None:
        yield from lint_training.check_mesh(partitioner, model_axis, initializer, getattr(config, "num_heads", None))
        microbatches = getattr(trainer, "num_microbatches", None) or 1
        if train_cfg is not None:
            yield from lint_training.check_batch(partitioner, train_cfg, "BATCH_SIZE", microbatches, num_devices)
    yield from _check_data(made, model if usable else None, config)


def _check_model_dir(model_dir: str) -> Iterator[Finding]:
    try:
        if not storage.is_remote(storage.as_path(model_dir)):
            RunDirectory(model_dir)
    except ValueError as error:
        yield refused("model_dir", str(error))


def _check_model_vocabularies(model: Any, rows: int | None) -> Iterator[Finding]:
    from tasks import vocabularies  # TensorFlow comes in here.

    for vocabulary in (model.input_vocabulary, model.output_vocabulary):
        try:
            vocabularies.check_file(vocabulary)
        except (ValueError, OSError) as error:
            yield refused("vocabulary", str(error))
            continue
        try:
            check_vocabulary(vocabulary, rows)
        except ValueError as error:
            yield refused("embedding_rows", str(error))


def _check_training(
    made: Mapping[str, Any], initializer: TrainStateInitializer | None, trainer: Any
) -> Iterator[Finding]:
    checkpoints = made.get("checkpoint_cfg")
    if checkpoints is None:
        return
    first_step, found = lint_training.initial_step(made["model_dir"], checkpoints.restore)
    yield from found
    relative_steps = made["relative_steps"]
    last_step = first_step + relative_steps if relative_steps is not None else made["total_steps"]
    yield from lint_training.check_steps(first_step, last_step, relative_steps)
    if rate := getattr(trainer, "learning_rate_fn", None):
        yield from lint_training.check_rate(rate, first_step, last_step)
    state = initializer.train_state_shapes if initializer is not None else None
    yield from lint_training.check_checkpoints(made["model_dir"], checkpoints.save, state, first_step, last_step)


def _check_data(made: Mapping[str, Any], model: Any, config: Any) -> Iterator[Finding]:
    from tasks import lint_tasks

    flops = functools.partial(forward_flops, dataclasses.asdict(config)) if isinstance(config, T5Config) else None
    uses = {
        "train_dataset_cfg": lint_tasks.Use("train", None, flops, getattr(config, "vocab_size", None)),
        "train_eval_dataset_cfg": lint_tasks.Use("train_eval", made["eval_steps"]),
        "infer_eval_dataset_cfg": lint_tasks.Use("infer_eval"),
    }
    for name, use in uses.items():
        dataset: data.DatasetConfig | None = made.get(name)
        if dataset is None:
            continue
        found = list(lint_tasks.check(dataset, getattr(model, "FEATURE_CONVERTER_CLS", "EncDecFeatureConverter"), use))
        yield from found
        verify = made["verify_matching_vocabs_fn"]
        known = model is not None and not any(x.name in ("task", "split", "vocabulary") for x in found)
        if use.role == "train" and known and verify is not None and hasattr(model, "input_vocabulary"):
            try:
                verify(dataset, model)
            except (ValueError, OSError, RuntimeError) as error:
                yield refused("other_vocabulary", str(error))


def _pretend(num_devices: int) -> None:
    """Gives JAX that many CPU devices, and nothing else; before it looks for devices.

    Raises:
      RuntimeError: if it has looked already: a module that the gin files import computes something.
    """
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
    errors = [finding for finding in findings if finding.severity == "error"]
    for finding in [*errors, *(finding for finding in findings if finding.severity == "warning")]:
        print(finding)
    if findings:
        print(f"{len(errors)} errors, {len(findings) - len(errors)} warnings")
    else:
        print("no findings")
    return 1 if errors else 0


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and looks at everything."""
    parser = commands.argument_parser("lint", __doc__ or "")
    parser.add_argument("files", nargs="*", metavar="GIN", help="gin files, read after those of --gin_file")
    parser.add_argument("--num_devices", type=int, metavar="N", help="devices of the mesh (the fewest possible)")
    flags = commands.parse_flags(parser, argv)
    files = [*flags.gin_file, *flags.files]
    if not files:
        parser.error("give at least one gin file, for example gin/recipes/quickstart.gin")
    if flags.num_devices is not None and flags.num_devices < 1:
        parser.error(f"--num_devices is {flags.num_devices}; it is a whole number of at least 1")
    configured = gin_utils.configurable(train, module="limba.train")
    gin_utils.parse_gin_flags(files, flags.gin_bindings, flags.gin_search_paths)
    missing = [name for name in _NEEDED if name not in gin.get_bindings(configured, resolve_references=False)]
    if missing:
        raise gin_utils.GinError(
            f"The gin files bind no train.{missing[0]}; lint looks at trainings: add gin/runs/pretrain.gin or "
            "gin/runs/finetune.gin."
        )
    gin_utils.require_training_bindings()
    model_axis, fewest = _model_axis()
    _pretend(flags.num_devices or fewest)
    for ours in ("limba", "tasks"):
        logging.getLogger(ours).setLevel(logging.ERROR)  # What they would say is a finding here.
    findings = list(float16())
    with native_logs.filtered():
        made, unmade = arguments(configured)
        findings += unmade
        findings += lint(made, model_axis, flags.num_devices)
    sys.stdout.flush()
    return report(list(dict.fromkeys(findings)))


if __name__ == "__main__":
    # `python -m` makes a second copy of this module; gin must see the functions of the first.
    from limba import lint as _this

    commands.run_command(_this.main)
