"""Names that Limba's modules had before: `limba.encoders.encoder` is `limba.network.encoders.encoder`.

Gin files of users and of old runs, modules of tasks, `--module` and `python -m` may use them. Whoever imports an old
name gets the module of the new one, the same object, so a binding counts for both names. `limba/__init__.py` switches
this on. Limba's own files use new names only.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence

# Rooms, with all that is in them: old name and new one.
ROOMS: Mapping[str, str] = {
    "convert.config_files": "convert.families.config_files",
    "convert.config_keys": "convert.families.config_keys",
    "convert.hf": "convert.model_files.hf",
    "limba.block_kernels": "limba.network.kernels",
    "limba.encoders": "limba.network.encoders",
    "limba.finite_numbers": "limba.network.finite_numbers",
    "limba.hf_keys": "limba.gin_config.hf_keys",
    "limba.kernels": "limba.network.kernels",
    "limba.lint": "limba.plan.lint",
    "limba.machine": "limba.files",
    "limba.profile": "limba.plan.profile",
    "limba.users_modules": "limba.gin_config",
    "tasks.cached": "tasks.pipeline.cached",
    "tasks.damaged_files": "tasks.sources.damaged_files",
    "tasks.read_columns": "tasks.sources.read_columns",
    "tasks.remote_files": "tasks.sources.remote_files",
    "tasks.seqio": "tasks.pipeline.seqio",
}
# Modules that did not go with their room, or had none. These come first.
MODULES: Mapping[str, str] = {
    "convert.hf.card_example": "convert.exports.cards.card_example",
    "convert.hf.card_metadata": "convert.exports.cards.card_metadata",
    "convert.hf.loss_picture": "convert.exports.cards.loss_picture",
    "convert.hf.markdown": "convert.exports.cards.markdown",
    "convert.hf.model_card": "convert.exports.cards.model_card",
    "convert.hf.run_example": "convert.exports.cards.run_example",
    "convert.hf.t5_card": "convert.exports.cards.t5_card",
    "limba.gin_config.command_line": "limba.command_line",
    "limba.inference.try_model": "limba.try_model",
    "limba.kernels.target": "limba.devices.target",
    "limba.machine.accelerators": "limba.devices.accelerators",
    "limba.machine.code_versions": "limba.workers.code_versions",
    "limba.machine.compilation_cache": "limba.devices.compilation_cache",
    "limba.machine.compiling": "limba.devices.compiling",
    "limba.machine.environment": "limba.environment",
    "limba.machine.interrupts": "limba.workers.interrupts",
    "limba.machine.library_patches": "limba.devices.library_patches",
    "limba.machine.native_logs": "limba.devices.native_logs",
    "limba.machine.out_of_memory": "limba.devices.out_of_memory",
    "limba.machine.preemption": "limba.workers.preemption",
    "limba.reports.statistics": "limba.training.statistics",
    "limba.tasks_door": "limba.inference.tasks_door",
    "tasks.blank_sentences": "tasks.examples.blank_sentences",
    "tasks.diacritics_demo": "tasks.examples.diacritics_small",
    "tasks.diacritics_table": "tasks.examples.diacritics_table",
    "tasks.encoder_demo": "tasks.examples.encoder",
    "tasks.input_rows": "tasks.pipeline.input_rows",
    "tasks.lint_letters": "tasks.lint.lint_letters",
    "tasks.lint_tasks": "tasks.lint.lint_tasks",
    "tasks.moods": "tasks.examples.moods",
    "tasks.predictions": "tasks.pipeline.predictions",
    "tasks.python_docs": "tasks.examples.python_docs",
    "tasks.quickstart": "tasks.examples.quickstart",
    "tasks.romanian": "tasks.examples.romanian",
    "tasks.romanian_sentences": "tasks.examples.romanian_sentences",
    "tasks.task_batches": "tasks.pipeline.task_batches",
}


def new_name(module: str) -> str | None:
    """The name that a module has now; None if `module` is no old name."""
    if module in MODULES:
        return MODULES[module]
    if module in ROOMS:
        return ROOMS[module]
    room, _, name = module.rpartition(".")
    above = new_name(room) if room else None
    return f"{above}.{name}" if above else None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds modules under their old names, before Python would load their files a second time."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        new = new_name(fullname)
        if new is None or importlib.util.find_spec(new) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(new_name(spec.name) or spec.name)
        # The import system gives what it is handed the spec of the old name; `exec_module` gives the own one back.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Runs nothing: the module has run under its own name."""
        if module.__spec__ is not None and module.__spec__.loader is self:
            module.__spec__ = module.__spec__.loader_state

    def get_code(self, fullname: str) -> types.CodeType | None:
        """For `python -m`, which runs a module's code as `__main__`."""
        spec = importlib.util.find_spec(new_name(fullname) or fullname)
        assert spec is not None and isinstance(spec.loader, importlib.abc.InspectLoader)
        return spec.loader.get_code(spec.name)

    def get_source(self, fullname: str) -> str | None:
        spec = importlib.util.find_spec(new_name(fullname) or fullname)
        assert spec is not None and isinstance(spec.loader, importlib.abc.InspectLoader)
        return spec.loader.get_source(spec.name)


def install() -> None:
    """Makes old names importable. Does nothing the second time."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
