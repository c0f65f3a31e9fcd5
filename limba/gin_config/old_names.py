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
    "limba.derived_runs": "limba.commands.derived_runs",
    "limba.encoders": "limba.network.encoders",
    "limba.finite_numbers": "limba.network.finite_numbers",
    "limba.hf_keys": "limba.gin_config.hf_keys",
    "limba.hf_script": "limba.commands.hf_script",
    "limba.kernels": "limba.network.kernels",
    "limba.lint": "limba.commands.plan.lint",
    "limba.machine": "limba.files",
    "limba.plan": "limba.commands.plan",
    "limba.profile": "limba.commands.plan.profile",
    "limba.run_pages": "limba.commands.run_pages",
    "limba.serve": "limba.commands.serve",
    "limba.sweep": "limba.commands.sweep",
    "limba.users_modules": "limba.gin_config",
    "tasks.cached": "tasks.pipeline.cached",
    "tasks.damaged_files": "tasks.sources.damaged_files",
    "tasks.read_columns": "tasks.sources.read_columns",
    "tasks.remote_files": "tasks.sources.remote_files",
    "tasks.seqio": "tasks.pipeline.seqio",
}
# Modules that did not go with their room: the old room, the new one, and their names.
_MOVED: Sequence[tuple[str, str, str]] = (
    (
        "convert.hf",
        "convert.exports.cards",
        "card_example card_metadata loss_picture markdown model_card run_example t5_card",
    ),
    ("limba", "limba.commands", "environment scoreboard"),
    ("limba", "limba.inference", "tasks_door"),
    ("limba.gin_config", "limba", "command_line"),
    ("limba.inference", "limba", "try_model"),
    ("limba.kernels", "limba.devices", "target"),
    ("limba.machine", "limba.commands", "environment"),
    (
        *("limba.machine", "limba.devices"),
        "accelerators compilation_cache compiling library_patches native_logs out_of_memory",
    ),
    ("limba.machine", "limba.workers", "code_versions interrupts preemption"),
    ("limba.plan", "limba.network", "flops"),
    ("limba.reports", "limba.training", "statistics"),
    (
        *("tasks", "tasks.examples"),
        "blank_sentences diacritics_table moods python_docs quickstart romanian romanian_sentences",
    ),
    ("tasks", "tasks.lint", "lint_letters lint_tasks"),
    ("tasks", "tasks.pipeline", "input_rows predictions task_batches"),
    ("tasks.supervised", "tasks.supervised.instructions", "few_shots instruction_files instruction_tasks"),
)
# Those whose own name is another now, and the others; they come before rooms.
MODULES: Mapping[str, str] = {
    "tasks.diacritics_demo": "tasks.examples.diacritics_small",
    "tasks.encoder_demo": "tasks.examples.encoder",
    **{f"{old}.{name}": f"{new}.{name}" for old, new, names in _MOVED for name in names.split()},
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
