"""What a gin text may name: a closed list, because gin calls what a text names, with arguments that it gives.

A text may name what makes models, optimizers, tasks and their parts in Limba, T5X's and SeqIO's names for them, parts
of jax, flax and optax, types of numbers, and the user's own modules: those of the working directory, or of another
folder on Python's path that holds no installed packages, and those that the command line gives (`--module`). Everything
else is refused before it is imported or called.

An object counts by the module that defines it, not by the name under which a text reaches it: `jax.numpy.os.system` is
of `posix`. A run's configuration, which may come from a stranger, names no module that lies in the run's folder, and
includes only Limba's files. `--trust FILE` lets a recipe through, never a run's configuration.

`check_module` is asked before Limba imports any module that a file names, also without gin (`importing.load`).
"""

import dataclasses
import functools
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gin import config as gin_config

from limba.addons import table
from limba.files import python_path, repository
from limba.files.repository import REPOSITORY
from limba.gin_config import run_folders
from limba.gin_config.messages import GinError
from limba.gin_config.recipe import Binding, Recipe, Reference
from limba.gin_config.references import references

# ---------------------------------------------------- the list ------------------------------------------------------

# Modules whose public classes and functions, and those of the modules below, may be named.
_WHOLE = (
    *("limba.data", "limba.inference.metric_loggers", "limba.models", "limba.network", "limba.optimizers"),
    *("limba.checkpoint_files.assignment_maps", "limba.partitioning", "limba.training.actions"),
    *("limba.training.baselines", "limba.training.spike_guard", "limba.training.trainer"),
    *(f"limba.tasks.{x}" for x in ("metrics", "objectives", "pipeline.converters", "pretraining", "registry")),
    *(f"limba.tasks.{x}" for x in ("supervised", "t5", "vocabularies")),
    *("seqio", "t5.data", "t5.evaluation", "t5x"),
    *("optax", "flax.linen", "flax.core", "flax.traverse_util"),
    *("jax.nn", "jax.lax", "jax._src.ad_checkpoint", "jax._src.lax", "jax._src.nn", "jax._src.random"),
    *(module for addon in table.ADDONS.values() for module in addon.gin_modules),
)
# Below them: what writes files, imports by name, gives the text of a file of any name, or is a command.
_NOT_OF_WHOLE = (
    *(
        "limba.tasks.vocabularies.beside_tokenizer",
        "limba.tasks.vocabularies.known_text",
        "limba.tasks.vocabularies.tokenizer_texts",
    ),
    *("limba.tasks.metrics.metric_packages", "limba.tasks.vocabularies.sentencepiece_training"),
    *("limba.tasks.vocabularies.training_text", "seqio.beam_utils", "seqio.scripts", "seqio.test_utils", "t5x.scripts"),
    *(module for addon in table.ADDONS.values() for module in addon.gin_hidden),
)
_NOT_OF_ANY = ("main",)
# Of other modules, what may be named.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "limba.checkpoints.checkpointing": (
        *("CheckpointConfig", "Checkpointer", "OrbaxCheckpointManagerInterface", "SaveBestCheckpointer"),
        "SaveCheckpointConfig",
    ),
    "limba.checkpoints.restore": ("RestoreCheckpointConfig",),
    "limba.checkpoints.train_state": ("TrainState", "TrainStateInitializer"),
    "limba.eval": ("evaluate",),
    "limba.gin_config.gin_files": (
        *("bool_fn", "get_gin_config_str", "string_split_fn", "sum_fn", "summarize_gin_config"),
    ),
    "limba.infer": ("infer",),
    "limba.inference.answering": ("Answerer",),
    "limba.inference.embedding": ("Embedder",),
    "limba.inference.evaluation": ("InferenceEvaluator",),
    "limba.inference.infer_text": ("infer_text",),
    "limba.inference.likeliest": ("show_likeliest",),
    "limba.inference.shard_files": ("merge_chunks_to_file",),
    "limba.inference.task_metrics": ("Evaluator",),
    "limba.inference.tasks_door": (
        *("get_dataset", "get_training_eval_datasets", "get_vocabulary", "verify_matching_vocabs"),
    ),
    "limba.precompile": ("precompile",),
    "limba.reports.mlflow_writer": ("MlflowWriter",),
    "limba.reports.trackio_writer": ("TrackioWriter",),
    "limba.reports.wandb_writer": ("WandbWriter",),
    "limba.reports.writers": ("JsonLinesWriter", "MetricWriter", "SummaryWriter", "TensorBoardWriter"),
    "limba.train": ("train",),
    "limba.training.from_counts.start_from_counts": ("StartFromCounts",),
    "limba.training.statistics": ("TrainStatistics",),
    "limba.workers.watchdog": ("WatchdogConfig",),
    "limba.tasks.pretraining.blank_sentences": ("with_blank",),
    "limba.tasks.pipeline.predictions": ("write_inferences_to_file",),
    "limba.tasks.sources.corpora": ("HubSource", "HuggingFaceSource"),
    # `jnp.load` and its like read files.
    "jax.numpy": (
        *("abs", "clip", "dtype", "exp", "expm1", "log", "log1p", "max", "maximum", "mean", "min", "minimum", "ones"),
        *("sqrt", "square", "sum", "tanh", "where", "zeros"),
    ),
    "jax": ("PartitionSpec",),
    "jax._src.mesh": ("Mesh",),
    **{module: names for addon in table.ADDONS.values() for module, names in addon.gin_names.items()},
}
# Of these, what acts: a file binds its parameters, and has it as a value only of that parameter of a program.
_ACTING: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("limba.eval.evaluate", "limba.infer.infer", "limba.inference.infer_text.infer_text"),
            *("limba.inference.likeliest.show_likeliest", "limba.precompile.precompile", "limba.train.train"),
            *(program for addon in table.ADDONS.values() for program in addon.gin_programs),
        ),
        "",
    ),
    "limba.gin_config.gin_files.summarize_gin_config": "summarize_config_fn",
    "limba.inference.shard_files.merge_chunks_to_file": "merge_fn",
    "limba.tasks.pipeline.predictions.write_inferences_to_file": "write_fn",
}
# Classes whose objects begin to write where their arguments say: a command makes them, and no file does.
_WRITERS, _TAKES_WRITERS = ("limba.reports",), "metric_writers"
# Modules that may be imported and reached, with all that is below those that end with a point; what of them may be
# named is above.
_IMPORTED = (
    *("__main__", "gin", "limba.", "tasks.", "t5x.", "t5.data.", "t5.evaluation.", "seqio.", "optax."),
    *("flax", "flax.core.", "flax.linen.", "flax.traverse_util", "numpy"),
    *("jax", "jax.checkpoint_policies", "jax.lax", "jax.nn.", "jax.numpy", "jax.random", "jax.sharding"),
)
_PACKAGES = {name.partition(".")[0] for name in (*_IMPORTED, "convert")} - {"__main__"}
# Below them: programs, which Python starts.
_PROGRAMS = ("limba.__main__", "limba.convert", "seqio.beam_utils", "seqio.scripts", "seqio.test_utils", "t5x.scripts")
_OF_GIN = (gin_config.macro, gin_config._retrieve_constant, gin_config.singleton)
_DOCS = 'docs/gin.md, "What a gin file may name"'


class RefusedNameError(GinError):
    """A module or object that is not on the list."""


@dataclasses.dataclass
class _Given:
    """What the command line says."""

    modules: set[str] = dataclasses.field(default_factory=set)
    trusted: set[Path] = dataclasses.field(default_factory=set)
    flag: str | None = None  # the last of --module, whole


_given = _Given()


# ----------------------------------------------- what the command line says -----------------------------------------


def give_modules(names: Iterable[str]) -> None:
    """Modules that the user names (`--module`): they, and the packages that they are of, may be named."""
    for name in names:
        if remedy := python_path.remedy_of_hidden(name):
            raise ValueError(f"--module {name}: {remedy}")
        _given.modules.add(name.partition(".")[0])


def give_flags(names: Sequence[str]) -> None:
    """As `give_modules`, of the flag `--module`; the last may be the task's (`module_of_flag`)."""
    give_modules(names)
    _given.flag = names[-1] if names else None


def module_of_flag() -> str | None:
    """The last module that `--module` names."""
    return _given.flag


def trust(files: Iterable[str]) -> None:
    """Recipes that may name anything (`--trust`).

    Raises:
      ValueError: for the configuration of a run, or a file that is not there.
    """
    for name in files:
        file = Path(name).expanduser().resolve()
        if not file.is_file():
            raise ValueError(f"--trust {name}: there is no such file.")
        if run_folders.run_of(name) is not None:
            raise ValueError(
                f"--trust {name}: a run's configuration is not trusted as a whole, because it may come from somebody "
                "else; name its modules, each by --module NAME."
            )
        _given.trusted.add(file)
        give_modules(modules_in(Recipe.parse(file.read_text("utf-8"), name).bindings))


def modules_in(bindings: Iterable[Binding]) -> list[str]:
    """The modules of tasks that values name, not imports."""
    of_tasks = [x for x in bindings if x.name == "MIXTURE_OR_TASK_MODULE" or (x.function and x.parameter == "module")]
    return [x.value for x in of_tasks if isinstance(x.value, str) and not isinstance(x.value, Reference)]


# -------------------------------------------------- while gin reads -------------------------------------------------


def check_include(file: str) -> None:
    """Raises RefusedNameError if a run's configuration is read now, and this file is not Limba's own."""
    is_ours = ".." not in Path(file).parts and (
        file.startswith("t5x/") or (file.startswith("gin/") and (REPOSITORY / file).is_file())
    )
    if not is_ours and run_folders.reads_run():
        raise RefusedNameError(
            f"include {file!r}: the configuration of a run includes Limba's own files only; give the other file "
            "yourself, by --gin_file."
        )


def _is_trusted() -> bool:
    return (
        bool(run_folders.open_files)
        and bool(_given.trusted)
        and Path(run_folders.open_files[-1]).resolve() in _given.trusted
    )


def install() -> None:
    """Makes gin ask before it imports or registers what a text names. Does nothing the second time."""
    gin_config.ParseContext.process_import = _process_import
    gin_config.ParseContext.get_configurable = _get_configurable
    gin_config.bind_parameter = _bind


_original_bind = gin_config.bind_parameter
_original_import = gin_config.ParseContext.process_import
_original_get = gin_config.ParseContext.get_configurable


def _process_import(context: Any, statement: Any) -> None:
    # With a manager, gin writes a configuration whose modules are imported.
    if context.import_manager is None and not statement.module.startswith("__gin__."):
        if statement.is_from:
            statement = statement._replace(module=repository.meant(statement.module))
        if _is_trusted():
            python_path.ask(statement.module)
        else:
            check_module(statement.module)
    _original_import(context, statement)


def _get_configurable(context: Any, selector: str) -> Any:
    is_text = context.import_manager is None and context is not gin_config._PARSE_CONTEXTS[0]
    if not is_text or _is_trusted():
        return _original_get(context, selector)
    if context._dynamic_registration:
        _check_path(context, selector)
        return _original_get(context, selector)
    found = _original_get(context, selector)
    if found is not None and (what := _refused(found.wrapped)):
        raise RefusedNameError(_sentence(selector, what))
    return found


def _check_path(context: Any, selector: str) -> None:
    """Checks what is reached from name to name; one that does not exist is left to gin, which says so."""
    first, *names = selector.split(".")
    if first not in context._symbol_table or context._symbol_source[first] is None:  # `gin.macro`
        return
    value = context._symbol_table[first]
    for name in names:
        is_of_users = isinstance(value, types.ModuleType) and _is_users(value.__name__)
        if name.startswith("__") or (name.startswith("_") and not is_of_users):
            raise RefusedNameError(_sentence(selector, f"{name} is no public name"))
        if isinstance(value, type) and _is_number_type(value):
            raise RefusedNameError(_sentence(selector, f"of {value.__name__} only the type itself may be named"))
        try:
            value = getattr(value, name)
        except AttributeError:
            return
        if what := _refused(value, name):
            raise RefusedNameError(_sentence(selector, what))


def _bind(key: Any, value: Any) -> None:
    if not _is_trusted():
        for reference in references(value):
            if what := _refused_value(reference, key[-1]):
                raise RefusedNameError(_sentence(str(reference), what))
    try:
        _original_bind(key, value)
    except ValueError:  # The network has no such field.
        if not run_folders.records_nothing(key[-1], value):
            raise


# ------------------------------------------------------ decisions ---------------------------------------------------


def check_module(name: str) -> None:
    """Returns if a module may be imported that a file or the command line names; it is not imported here.

    A module that is nowhere passes: importing it says so.

    Raises:
      RefusedNameError: if it is not on the list, or lies in the folder of a run that is read.
    """
    if what := _refused_module(name):
        top = name.partition(".")[0]
        remedy = f"If you know it, name it yourself: --module {top}"
        if run_folders.open_files and run_folders.run_of(run_folders.open_files[-1]) is None:
            remedy += f", or --trust {run_folders.open_files[-1]}"
        hidden = python_path.remedy_of_hidden(name)
        raise RefusedNameError(
            f"the module {name} is not imported: {what}. {hidden + ' ' if hidden else ''}{remedy} ({_DOCS})."
        )
    if _is_users(name):
        python_path.ask(name)


def _refused_module(name: str) -> str:
    """Why a module may not be imported or reached; "" if it may."""
    top = name.partition(".")[0]
    if _is_below(name, _PROGRAMS):
        return "it is a program"
    if _is_listed(name):
        return ""
    if top in _given.modules:
        return ""
    if top in _PACKAGES and (top not in ("tasks", "convert") or repository.is_of_limba(top)):
        return f"of {top} it is no part that gin files use"
    spec = python_path.spec_below(name)
    if spec is None:
        return ""
    places = [spec.origin] if spec.origin is not None else list(spec.submodule_search_locations or ())
    for place in places:
        if place in ("built-in", "frozen"):
            return "it is of Python's own library"
        if python_path.is_installed(place):
            return f"it is of Python's own library, or of an installed package ({place})"
        if python_path.is_of_limba(place):
            return f"it is of Limba's own programs ({place})"
        folders = python_path.folders()
        if top not in sys.modules and not any(python_path.is_code_of(place, x) or place == x for x in folders):
            return f"it lies in {place}, and not in your working directory"
        if inside := run_folders.holding(place):
            return inside
    return ""


def _is_users(name: str) -> bool:
    """Whether an allowed module is of the user's own, and not of the list."""
    return not _is_listed(name) and not _refused_module(name)


def _is_listed(name: str) -> bool:
    """Whether it is one of `_IMPORTED`, and no `tasks` of the user's own."""
    return _is_in(name, _IMPORTED) and (name.partition(".")[0] != "tasks" or repository.is_of_limba(name))


def _is_in(name: str, modules: Iterable[str]) -> bool:
    return any(name == listed.rstrip(".") or (listed[-1] == "." and name.startswith(listed)) for listed in modules)


def _refused(value: Any, name: str = "") -> str:
    """What a value is that may not be named; "" if it may be. `name` is that by which it is reached."""
    if isinstance(value, types.ModuleType):
        refused = _refused_module(value.__name__)
        return f"{value.__name__} is a module that gin files do not name: {refused}" if refused else ""
    while isinstance(value, functools.partial):
        value = value.func
    if any(value is own for own in _OF_GIN) or (isinstance(value, type) and _is_number_type(value)):
        return ""
    module = getattr(value, "__module__", None)
    module = module if isinstance(module, str) and module else type(value).__module__
    called = getattr(value, "__name__", None) or type(value).__name__
    if module == "__main__":
        main = getattr(sys.modules["__main__"], "__file__", None)
        is_own = main is not None and not (python_path.is_installed(main) or python_path.is_of_limba(main))
        return "" if is_own else f"it is {called} of the program itself"
    is_named = not {called, name} & {*_NOT_OF_ANY}
    if module in _NAMES:
        return "" if {called, name} & {*_NAMES[module]} else f"it is {module}.{called}"
    if _is_below(module, _WHOLE) and not _is_below(module, _NOT_OF_WHOLE):
        return "" if is_named else f"it is {module}.{called}"
    if module.partition(".")[0] in _PACKAGES and not _is_users(module):
        return f"it is {module}.{called}"
    if module not in sys.modules:
        return f"it is {called} of no module that is imported"
    refused = _refused_module(module)
    return f"it is {module}.{called}: {refused}" if refused else ""


def _refused_value(reference: Any, parameter: str) -> str:
    """Why a reference may not be a value, though its parameters may be bound; "" if it may be."""
    value = reference.configurable.wrapped
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(module, str) or _is_users(module):
        return ""
    if f"{module}.{name}" in _ACTING and (reference.evaluate or parameter != _ACTING[f"{module}.{name}"]):
        return "it acts, and is no value"
    if _is_below(module, _WRITERS) and (reference.evaluate or parameter != _TAKES_WRITERS):
        return f"it writes files, and a command makes it; write it without (), as {_TAKES_WRITERS} of train"
    is_method = "." in name and "<locals>" not in name and not isinstance(value, type)
    return "it is a method, and no value" if is_method else ""


def _is_below(module: str, rooms: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{room}.") for room in rooms)


def _is_number_type(value: type) -> bool:
    """Whether it is a type of numbers of NumPy or JAX, such as `jnp.bfloat16`, or `dtype`."""
    return issubclass(value, np.generic | np.dtype) or type(value).__name__ == "_ScalarMeta"


def _sentence(selector: str, what: str) -> str:
    is_recipe = run_folders.open_files and run_folders.run_of(run_folders.open_files[-1]) is None
    remedy = f" A recipe that you trust is let through by --trust {run_folders.open_files[-1]}." if is_recipe else ""
    return f"a gin file may not name {selector}: {what} ({_DOCS}).{remedy}"
