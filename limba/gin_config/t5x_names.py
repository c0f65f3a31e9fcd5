"""T5X's and T5's module names, for gin files and task modules written for T5X.

`t5x.adafactor.Adafactor` is `limba.adafactor.Adafactor`: the same object, so bindings under both names are one.
Modules are aliased lazily and only while no real T5X is asked for: the environment variable `LIMBA_T5X` is "alias"
(the default) or "installed". `t5`, which T5X's task modules import, is aliased where it is not installed. The scripts
that T5X's gin files take from `__main__` (`train`, `evaluate`, `infer` …) are found there too, whatever was started.
"""

import difflib
import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

# The module of T5X or T5: where its names live here, in the order they are looked for.
MODULES: Mapping[str, tuple[str, ...]] = {
    "t5x": (),
    "t5x.adafactor": ("limba.adafactor",),
    "t5x.checkpoints": ("limba.checkpoints",),
    "t5x.decoding": ("limba.decoding",),
    "t5x.eval": ("limba.eval", "limba.evaluation"),
    "t5x.gin_utils": ("limba.gin_utils",),
    "t5x.infer": ("limba.infer", "tasks.inference", "tasks.tfexample"),
    "t5x.losses": ("limba.losses",),
    "t5x.metrics": ("limba.metrics",),
    "t5x.models": (
        "limba.models",
        "limba.base_model",
        "limba.encoder_decoder_model",
        "limba.decoder_only_model",
        "limba.metrics",
    ),
    "t5x.optimizers": ("limba.optimizers",),
    "t5x.partitioning": ("limba.partitioning",),
    "t5x.precompile": ("limba.precompile",),
    "t5x.state_utils": ("limba.state_utils",),
    "t5x.train": ("limba.train",),
    "t5x.train_state": ("limba.train_state",),
    "t5x.trainer": ("limba.trainer", "limba.actions", "limba.weight_metrics"),
    "t5x.utils": ("limba.data", "limba.checkpoints", "limba.schedules", "limba.train_state"),
    "t5x.examples": (),
    "t5x.examples.decoder_only": (),
    "t5x.examples.decoder_only.layers": ("limba.layers", "limba.attention"),
    "t5x.examples.decoder_only.network": ("limba.decoder_only", "limba.network"),
    "t5x.examples.scalable_t5": (),
    "t5x.examples.scalable_t5.layers": ("limba.scalable_t5", "limba.layers", "limba.attention"),
    "t5x.examples.scalable_t5.network": ("limba.scalable_t5", "limba.network"),
    "t5x.examples.t5": (),
    "t5x.examples.t5.layers": ("limba.layers", "limba.attention"),
    "t5x.examples.t5.network": ("limba.network",),
    "t5x.contrib": (),
    "t5x.contrib.gpu": (),
    "t5x.contrib.gpu.t5": (),
    "t5x.contrib.gpu.t5.layers": ("limba.layers", "limba.attention"),
    "t5x.contrib.gpu.t5.network": ("limba.network",),
    "t5": (),
    "t5.data": ("tasks.t5_data", "seqio"),
    "t5.data.mixtures": (),
    "t5.data.tasks": (),
    "t5.data.postprocessors": ("tasks.postprocessors",),
    "t5.data.preprocessors": ("tasks.t5_preprocessors", "seqio.preprocessors"),
    "t5.data.utils": ("tasks.t5_data", "seqio"),
    "t5.evaluation": (),
    "t5.evaluation.metrics": ("tasks.metrics",),
}

# What has another name here: module and name.
RENAMED: Mapping[str, tuple[str, str]] = {
    "t5x.gin_utils.rewrite_gin_args": ("limba.commands", "rewrite_gin_flags"),
    "t5x.losses.convert_special_loss_normalizing_factor_to_enum": ("limba.losses", "canonical_normalizing_factor"),
    "t5x.losses.get_loss_normalizing_factor_and_weights": ("limba.losses", "normalizing_factor_and_weights"),
    "t5x.models.BaseModel": ("limba.models", "BaseTransformerModel"),
    "t5x.partitioning.BasePartitioner": ("limba.partitioning", "PjitPartitioner"),
    "t5x.partitioning.BasePjitPartitioner": ("limba.partitioning", "PjitPartitioner"),
    "t5x.partitioning.with_sharding_constraint": ("flax.linen.partitioning", "with_sharding_constraint"),
}

# What has no counterpart, the module or its parent: what to use instead.
WITHOUT_COUNTERPART: Mapping[str, str] = {
    "t5x.export": "`limba convert` hands models on to Transformers, PyTorch and Flax.",
    "t5x.export_lib": (
        "Limba writes no TensorFlow SavedModels; `limba convert` hands models on to Transformers, PyTorch and Flax."
    ),
    "t5x.checkpoint_importer": "Restore Mesh TensorFlow checkpoints with T5X once, and go on from what it saves.",
    "t5x.config_utils": "Limba is configured by gin only, not by fiddle.",
    "t5x.interactive_model": "`limba infer --run_dir RUN --input TEXT` answers single lines.",
    "t5x.main": "`limba --run_mode=train` and its like take T5X's flags.",
    "t5x.test_utils": "It served T5X's own tests.",
    "t5x.contrib.calm": "Limba has no early-exit decoding.",
    "t5x.contrib.gpu.scripts_gpu": "Its tasks need datasets of their own; register them as docs/data.md shows.",
    "t5x.contrib.moe": "Limba has no mixture of experts.",
    "t5.models": "Mesh TensorFlow's models are not Limba's.",
    "t5.data.glue_utils": "`tasks.supervised.register_supervised_task` has GLUE and SuperGLUE (docs/finetune.md).",
}

# What T5X's gin files import from `__main__`.
SCRIPTS: Mapping[str, str] = {
    "train": "limba.train",
    "evaluate": "limba.eval",
    "infer": "limba.infer",
    "precompile": "limba.precompile",
    "write_inferences_to_file": "tasks.inference",
    "merge_chunks_to_file": "limba.infer",
    "create_task_from_tfexample_file": "tasks.tfexample",
}


def uses_installed_t5x() -> bool:
    """Whether `LIMBA_T5X` asks for a real T5X.

    Raises:
      ValueError: for another value, or if T5X is asked for and not installed.
    """
    choice = os.environ.get("LIMBA_T5X", "alias")
    if choice not in ("alias", "installed"):
        raise ValueError(f"LIMBA_T5X is {choice!r}; it is 'alias' (Limba under T5X's names) or 'installed'.")
    if choice == "installed" and installed("t5x") is None:
        raise ValueError("LIMBA_T5X is 'installed', but there is no module t5x; install T5X, or unset it.")
    return choice == "installed"


def installed(package: str) -> Path | None:
    """The folder of a package that is really there; a folder that merely has its name, without Python, is not."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(package, None)
        if spec is not None and spec.origin is not None:
            return Path(spec.origin).parent
    return None


def install() -> None:
    """Makes `import t5x.…` and `import t5.…` find Limba. Does nothing the second time.

    The installed T5X, if `LIMBA_T5X` asks for it, and an installed T5 are left alone.
    """
    aliased = []
    if uses_installed_t5x():
        logger.info("t5x is the installed T5X (LIMBA_T5X=installed).")
    else:
        aliased.append("t5x")
    if installed("t5") is None:
        aliased.append("t5")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(aliased))
    _provide_scripts()


def _provide_scripts() -> None:
    """Lets `import __main__ as train_script` find what T5X's gin files expect of it, when it is asked for."""
    main = sys.modules["__main__"]
    # `python -m limba.train` makes a second copy of train(); gin must see the first.
    file = getattr(main, "__file__", None)
    if file and Path(file).resolve().parent == Path(__file__).resolve().parent:
        for name in SCRIPTS.keys() & vars(main).keys():
            setattr(main, name, getattr(importlib.import_module(SCRIPTS[name]), name))
    if not hasattr(main, "__getattr__"):
        vars(main)["__getattr__"] = _script


def _script(name: str):
    if name in SCRIPTS:
        return getattr(importlib.import_module(SCRIPTS[name]), name)
    raise AttributeError(f"module '__main__' has no attribute {name!r}")


class _Alias(types.ModuleType):
    """A module of T5X whose names are looked up in Limba when they are used."""

    def __getattr__(self, name: str):
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


def missing_name(module: str, name: str) -> str:
    """What to say of a name that an aliased module does not have."""
    provided = public_names(module)
    message = f"Limba does not provide {module}.{name}."
    if nearest := difflib.get_close_matches(name, provided, n=3):
        return f"{message} Did you mean {', '.join(nearest)}?"
    if not provided:
        return f"{message} It provides that module's name only, so that importing it works."
    return f"{message} It provides {', '.join(provided)}."


def _missing_module(fullname: str) -> str:
    for name, instead in WITHOUT_COUNTERPART.items():
        if f"{fullname}.".startswith(f"{name}."):
            return f"Limba does not provide {fullname}. {instead}"
    package = [name for name in MODULES if name.partition(".")[0] == fullname.partition(".")[0]]
    known = ", ".join(difflib.get_close_matches(fullname, package, n=1) or package)
    return f"Limba does not provide {fullname}. It provides {known}."


def public_names(module: str) -> list[str]:
    """What an aliased module has: the classes and functions of Limba's, and its submodules."""
    names = {name.removeprefix(f"{module}.") for name in {**MODULES, **RENAMED} if name.rpartition(".")[0] == module}
    for target in MODULES[module]:
        if target.partition(".")[0] == "seqio":
            continue  # Hundreds, and documented there.
        for name, value in vars(importlib.import_module(target)).items():
            if not name.startswith("_") and getattr(value, "__module__", None) == target:
                names.add(name)
    return sorted(names)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Sequence[str]):
        self._packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] not in self._packages:
            return None
        if fullname not in MODULES:
            raise ModuleNotFoundError(_missing_module(fullname), name=fullname)
        # Gin's own reader of include paths wants to know where a package comes from.
        return importlib.machinery.ModuleSpec(fullname, self, origin=__file__, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        if spec.name in self._packages:
            also = installed(spec.name)
            hint = f" The T5X in {also} is not used; LIMBA_T5X=installed would." if also else ""
            logger.info("%s is Limba.%s", spec.name, hint)
        return _Alias(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing runs: names are found when they are asked for."""
