"""T5X's and T5's module names, for gin files and task modules written for T5X.

`t5x.adafactor.Adafactor` and `limba.optimizers.adafactor.Adafactor` are one object, so a binding counts for both names.
Modules are aliased when they are imported. With the environment variable `LIMBA_T5X=installed` (instead of "alias", the
default) an installed T5X is used. `t5`, which T5X's task modules import, is aliased if it is not installed. A fork's
own modules on Python's path, such as `t5x/contrib/mine/network.py`, come before the aliases. A whole copy of T5X adds
only what T5X itself lacks. The scripts that T5X's gin files import from `__main__` (`train`, `evaluate`, `infer` …) are
found there in every command.
"""

import difflib
import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons import table
from limba.files import python_path
from limba.files.repository import REPOSITORY
from limba.gin_config import run_folders

logger = logging.getLogger(__name__)

# The module of T5X or T5: Limba's modules with its names, in the order of the search.
MODULES: dict[str, tuple[str, ...]] = {
    "t5x": (),
    "t5x.adafactor": ("limba.optimizers.adafactor",),
    "t5x.checkpoints": ("limba.checkpoints.checkpointing",),
    "t5x.decoding": ("limba.models.decoding", "limba.models.beam_search", "limba.network.decoding_state"),
    "t5x.eval": ("limba.eval", "limba.inference.evaluation"),
    "t5x.gin_utils": ("limba.gin_config.gin_files",),
    "t5x.infer": (
        "limba.infer",
        "limba.inference.shard_files",
        "limba.tasks.pipeline.predictions",
        "limba.tasks.t5.tfexample",
    ),
    "t5x.losses": ("limba.models.losses",),
    "t5x.metrics": ("limba.models.metrics",),
    "t5x.models": (
        *("limba.models", "limba.models.base_model", "limba.models.encoder_decoder_model"),
        *("limba.models.decoder_only_model", "limba.models.metrics"),
    ),
    "t5x.optimizers": ("limba.optimizers.definitions",),
    "t5x.partitioning": ("limba.partitioning.meshes",),
    "t5x.precompile": ("limba.precompile",),
    "t5x.state_utils": ("limba.checkpoint_files.assignment_maps",),
    "t5x.train": ("limba.train",),
    "t5x.train_state": ("limba.checkpoints.train_state",),
    "t5x.trainer": ("limba.training.trainer", "limba.training.actions"),
    "t5x.utils": (
        *("limba.data.contract", "limba.inference.tasks_door", "limba.checkpoints.checkpointing"),
        *("limba.optimizers.schedules", "limba.checkpoints.train_state"),
    ),
    "t5x.examples": (),
    "t5x.examples.decoder_only": (),
    "t5x.examples.decoder_only.layers": ("limba.network.layers", "limba.network.attention"),
    "t5x.examples.decoder_only.network": ("limba.network.decoder_only", "limba.network.t5"),
    "t5x.examples.scalable_t5": (),
    "t5x.examples.scalable_t5.layers": ("limba.network.scalable_t5", "limba.network.layers", "limba.network.attention"),
    "t5x.examples.scalable_t5.network": ("limba.network.scalable_t5", "limba.network.t5"),
    "t5x.examples.t5": (),
    "t5x.examples.t5.layers": ("limba.network.layers", "limba.network.attention"),
    "t5x.examples.t5.network": ("limba.network.t5",),
    "t5x.contrib": (),
    "t5x.contrib.gpu": (),
    "t5x.contrib.gpu.t5": (),
    "t5x.contrib.gpu.t5.layers": ("limba.network.layers", "limba.network.attention"),
    "t5x.contrib.gpu.t5.network": ("limba.network.t5",),
    "t5": (),
    "t5.data": ("limba.tasks.t5.t5_data", "limba.tasks.t5.glue_utils", "seqio"),
    "t5.data.glue_utils": ("limba.tasks.t5.glue_utils",),
    "t5.data.mixtures": (),
    "t5.data.tasks": (),
    "t5.data.postprocessors": ("limba.tasks.supervised.postprocessors", "limba.tasks.t5.t5_postprocessors"),
    "t5.data.preprocessors": ("limba.tasks.t5.t5_preprocessors", "limba.tasks.t5.t5_data_sets", "seqio.preprocessors"),
    "t5.data.utils": ("limba.tasks.t5.t5_data", "seqio"),
    "t5.evaluation": (),
    "t5.evaluation.metrics": ("limba.tasks.metrics.text_metrics", "limba.tasks.metrics.ranking_metrics"),
    "t5.evaluation.qa_utils": ("limba.tasks.t5.qa_utils",),
}
for _addon in table.ADDONS.values():
    MODULES |= importlib.import_module(_addon.t5x_names).MODULES if _addon.t5x_names else {}

# Names of T5X that differ in Limba: module and name.
RENAMED: Mapping[str, tuple[str, str]] = {
    "t5x.gin_utils.rewrite_gin_args": ("limba.command_line", "rewrite_gin_flags"),
    "t5x.losses.convert_special_loss_normalizing_factor_to_enum": (
        "limba.models.losses",
        "canonical_normalizing_factor",
    ),
    "t5x.losses.get_loss_normalizing_factor_and_weights": ("limba.models.losses", "normalizing_factor_and_weights"),
    "t5x.models.BaseModel": ("limba.models", "BaseTransformerModel"),
    "t5x.partitioning.BasePartitioner": ("limba.partitioning.meshes", "PjitPartitioner"),
    "t5x.partitioning.BasePjitPartitioner": ("limba.partitioning.meshes", "PjitPartitioner"),
    "t5x.partitioning.with_sharding_constraint": ("flax.linen.partitioning", "with_sharding_constraint"),
}

# Modules, submodules included, that Limba does not have: what to use instead.
WITHOUT_COUNTERPART: Mapping[str, str] = {
    "t5x.export": "`limba convert` writes models for Transformers, PyTorch and Flax.",
    "t5x.export_lib": (
        "Limba writes no TensorFlow SavedModels; `limba convert` writes models for Transformers, PyTorch and Flax."
    ),
    "t5x.checkpoint_importer": "Restore a Mesh TensorFlow checkpoint with T5X once; Limba reads what T5X then saves.",
    "t5x.config_utils": "Limba is configured by gin only, not by fiddle.",
    "t5x.interactive_model": "`limba infer RUN --input TEXT` predicts for single lines.",
    "t5x.main": "`limba --run_mode=train` (or eval, infer, precompile) takes T5X's flags.",
    "t5x.test_utils": "Only T5X's own tests use it.",
    "t5x.contrib.calm": "Limba has no early-exit decoding.",
    "t5x.contrib.gpu.scripts_gpu": "Its tasks need datasets of their own; register them as docs/data.md shows.",
    "t5.models": "Mesh TensorFlow's models are not Limba's.",
    "flaxformer": "Limba's own networks stand in place of its models with experts: leave flaxformer's folder out of "
    "--gin_search_paths, and include 'flaxformer/t5x/configs/moe/models/switch_base.gin' or the like (docs/t5x.md).",
}

# Functions that T5X's gin files import from `__main__`.
SCRIPTS: Mapping[str, str] = {
    "train": "limba.train",
    "evaluate": "limba.eval",
    "infer": "limba.infer",
    "precompile": "limba.precompile",
    "write_inferences_to_file": "limba.tasks.pipeline.predictions",
    "merge_chunks_to_file": "limba.inference.shard_files",
    "create_task_from_tfexample_file": "limba.tasks.t5.tfexample",
}


def uses_installed_t5x() -> bool:
    """Whether `LIMBA_T5X` asks for the installed T5X.

    Raises:
      ValueError: for an unknown value, or if T5X is not installed.
    """
    choice = os.environ.get("LIMBA_T5X", "alias")
    if choice not in ("alias", "installed"):
        raise ValueError(f"LIMBA_T5X is {choice!r}; it is 'alias' (Limba under T5X's names) or 'installed'.")
    if choice == "installed" and installed("t5x") is None:
        raise ValueError("LIMBA_T5X is 'installed', but there is no module t5x; install T5X, or unset LIMBA_T5X.")
    return choice == "installed"


def installed(package: str) -> Path | None:
    """The folder of an installed package, aliases aside; a folder of that name without Python files does not count."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(package, None)
        if spec is not None and spec.origin is not None:
            return Path(spec.origin).parent
    return None


def install() -> None:
    """Makes `import t5x.…` and `import t5.…` find Limba. Does nothing the second time.

    An installed T5, and with `LIMBA_T5X=installed` an installed T5X, are used instead.
    """
    # In a process of T5X itself, which trains on Limba's tasks, its modules stay its own.
    is_t5x = not isinstance(sys.modules.get("t5x"), _Alias | None)
    aliased = [] if uses_installed_t5x() or is_t5x else ["t5x"]
    if installed("t5") is None:
        aliased.append("t5")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        if "t5x" not in aliased and not is_t5x:
            logger.info("t5x is the installed T5X (LIMBA_T5X=installed).")
        sys.meta_path.insert(0, _Finder(aliased))
    _provide_scripts()


def _provide_scripts() -> None:
    """Gives `__main__` the functions that T5X's gin files import from it."""
    main = sys.modules["__main__"]
    # `python -m limba.train` makes a second copy of train(); gin must see the one of limba.train.
    file = getattr(main, "__file__", None)
    if file and Path(file).resolve().parent == Path(__file__).resolve().parents[1]:
        for name in SCRIPTS.keys() & vars(main).keys():
            setattr(main, name, getattr(importlib.import_module(SCRIPTS[name]), name))
    if not hasattr(main, "__getattr__"):
        vars(main)["__getattr__"] = _script


def _script(name: str) -> Any:
    if name in SCRIPTS:
        return getattr(importlib.import_module(SCRIPTS[name]), name)
    raise AttributeError(f"module '__main__' has no attribute {name!r}")


class _Alias(types.ModuleType):
    """A module of T5X that looks its names up in Limba's modules."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if f"{self.__name__}.{name}" in MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        if renamed := RENAMED.get(f"{self.__name__}.{name}"):
            return getattr(importlib.import_module(renamed[0]), renamed[1])
        for target in MODULES[self.__name__]:
            module = importlib.import_module(target)
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(missing_name(self.__name__, name))


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a message: the known names that are nearest to a wrong one; "" if none is near."""
    nearest = difflib.get_close_matches(name, sorted(known), n=3, cutoff=cutoff)
    return f" Did you mean {', '.join(nearest)}?" if nearest else ""


def missing_name(module: str, name: str) -> str:
    """The message for a name that an aliased module does not have."""
    provided = public_names(module)
    known = " The module is empty in Limba: only importing it works."
    if provided:
        known = did_you_mean(name, provided) or f" It provides {', '.join(provided)}."
    return f"Limba does not provide {module}.{name}.{known}"


def instead_of(fullname: str) -> str | None:
    """What to use in place of a module without counterpart; None if T5X has no such module, or Limba has it."""
    return next((use for name, use in WITHOUT_COUNTERPART.items() if f"{fullname}.".startswith(f"{name}.")), None)


def _missing_module(fullname: str) -> str:
    if instead := instead_of(fullname):
        return f"Limba does not provide {fullname}. {instead}"
    package = [name for name in MODULES if name.partition(".")[0] == fullname.partition(".")[0]]
    known = ", ".join(difflib.get_close_matches(fullname, package, n=1) or package)
    return f"Limba does not provide {fullname}. It provides {known}."


def public_names(module: str) -> list[str]:
    """The names of an aliased module: the classes and functions of Limba's modules, and its submodules."""
    names = {name.removeprefix(f"{module}.") for name in {**MODULES, **RENAMED} if name.rpartition(".")[0] == module}
    for target in MODULES[module]:
        if target.partition(".")[0] == "seqio":
            continue  # It has hundreds of names, documented by SeqIO.
        for name, value in vars(importlib.import_module(target)).items():
            if not name.startswith("_") and getattr(value, "__module__", None) == target:
                names.add(name)
    return sorted(names)


# What only a whole T5X has beside one another.
_ENGINE_OF_T5X = ("checkpoints.py", "partitioning.py", "trainer.py")


def _own_module(fullname: str, target: types.ModuleType | None) -> importlib.machinery.ModuleSpec | None:
    """A module of `t5x` or `t5` that somebody else has on Python's path, such as a fork's own network.

    Raises:
      ModuleNotFoundError: for one in the folder of a run that is read.
    """
    if fullname in MODULES and not MODULES[fullname]:
        return None  # A package with nothing in it: what it holds is looked for one by one.
    spec = importlib.machinery.PathFinder.find_spec(fullname, _places(fullname), target)
    # A folder without Python files, of checkpoints perhaps, takes no name from T5X.
    if spec is None or (spec.origin is None and fullname in MODULES):
        return None
    if spec.origin is not None and (refused := run_folders.holding(spec.origin)):
        raise ModuleNotFoundError(f"{fullname} is not imported: {refused}.", name=fullname)
    if spec.origin is not None and _is_named_by_limba() and python_path.is_found_by_name(spec.origin):
        logger.warning(
            "Limba's own gin files do not use %s: they take Limba's %s. For yours name it in a gin file of your own, "
            "before their include, or put its folder on PYTHONPATH.",
            spec.origin,
            fullname,
        )
        return None
    return spec


def _is_named_by_limba() -> bool:
    """Whether gin reads one of Limba's own files, in which T5X's names are Limba's; a recipe names modules of users."""
    if not run_folders.open_files:
        return False
    file = Path(run_folders.open_files[-1])
    is_text = file.parts[0] == "t5x" and not file.is_file()  # Of `t5x_files.replacement`; users' files come before it.
    return is_text or file.resolve().is_relative_to(REPOSITORY / "gin")


def _places(fullname: str) -> list[str]:
    """The folders in which somebody else's module of `t5x` or `t5` is looked for."""
    package, *parents, _ = fullname.split(".")
    folders = dict.fromkeys(Path(folder) / package for folder in python_path.folders())
    folders.pop(REPOSITORY / "launch" / "t5x", None)  # It stands in for T5X's scripts.
    is_t5x = fullname in MODULES or instead_of(fullname) is not None
    return [
        str(folder.joinpath(*parents))
        for folder in folders
        if not (is_t5x and all((folder / file).is_file() for file in _ENGINE_OF_T5X))
    ]


def own_file(fullname: str) -> str | None:
    """The file of a module below `t5x` or `t5` that is no alias; None if there is none. It imports nothing."""
    if fullname in MODULES and not MODULES[fullname]:
        return None
    spec = importlib.machinery.PathFinder.find_spec(fullname.rpartition(".")[2], _places(fullname))
    return None if spec is None else spec.origin


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Sequence[str]):
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path
        package, _, inside = fullname.partition(".")
        if package not in self._packages:
            return None
        if inside and (own := _own_module(fullname, target)):
            return own
        if fullname not in MODULES:
            raise ModuleNotFoundError(_missing_module(fullname), name=fullname)
        # Gin's reader of include paths needs the origin of a package.
        return importlib.machinery.ModuleSpec(fullname, self, origin=__file__, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        if spec.name in self._packages:
            unused = installed(spec.name)
            hint = (
                f" The T5X in {unused} is not used, except for modules of its own; LIMBA_T5X=installed uses it."
                if unused
                else ""
            )
            logger.info("%s is Limba.%s", spec.name, hint)
        return _Alias(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Runs nothing: `_Alias` finds names when they are used."""
