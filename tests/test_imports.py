"""Imports point down only (docs/architecture.md draws the rooms)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Lower layers first; a module may import its own layer and those below.
LAYERS = [
    # data contract, and parts
    {
        "limba",
        "limba.cached_data",
        "limba.code_versions",
        "limba.data",
        "limba.data_layout",
        "limba.distributed",
        "limba.epochs",
        "limba.findings",
        "limba.flops",
        "limba.goodput",
        "limba.hashing",
        "limba.import_errors",
        "limba.native_logs",
        "limba.peers",
        "limba.preemption",
        "limba.rooms",
        "limba.topologies",
        "limba.watchdog",
    },
    {"limba.plan_layouts"},
    {
        "limba.losses",
        "limba.metrics",
        "limba.schedules",
        "limba.partitioning",
        "limba.adafactor",
        "limba.optax_rates",
        "limba.optimizers",
        "limba.decoding",
        "limba.train_state",
        "limba.weight_decay",
        "limba.writers",
        "limba.storage",
        "limba.handshake",
        "limba.state_utils",
        "limba.patches",
    },
    {"limba.clipping", "limba.freezing"},
    {"limba.lora"},
    {"limba.wandb_writer"},
    {"limba.layers"},
    {"limba.attention"},
    {"limba.network"},
    {"limba.decoder_only", "limba.scalable_t5"},
    {"limba.base_model"},
    {"limba.encoder_decoder_model", "limba.decoder_only_model"},
    {"limba.models"},
    {"limba.classic_checkpoints"},
    {"limba.saved_tensors", "limba.checkpoint_directories"},
    {"limba.scan_layout", "limba.checkpoint_files"},
    {"limba.restore", "limba.best_checkpoint"},
    {"limba.inference"},
    {"limba.checkpoints", "limba.evaluation"},
    {"limba.weight_metrics", "limba.actions", "limba.train_statistics"},
    {"limba.trainer"},
    {"limba.training_evaluation", "limba.training_data"},
    {"limba.lint_training"},
    {"limba.training_loop"},
    {"limba.t5x_gin_files"},
    {"limba.t5x_compat"},
    {"limba.gin_messages"},
    {"limba.gin_utils"},
    {"limba.commands"},
    {
        "limba.decoding_flags",
        "limba.results_table",
        "limba.run_configuration",
        "limba.run_description",
        "limba.run_directory",
    },
    {"limba.eval"},
    {"limba.train", "limba.answers"},
    {"limba.infer_text"},
    {"limba.infer", "limba.try_model"},
    {"limba.hf_arguments"},
    {"limba.hf_gin"},
    {"limba.run"},
    {"limba.sweep_file", "limba.sweep_trials"},
    {"limba.sweep_proposals", "limba.sweep_commands", "limba.sweep_report"},
    {"limba.sweep"},
    {"limba.precompile", "limba.gin_check", "limba.lint", "limba.vocab"},
    {"limba.plan_compile"},
    {"limba.plan_choice"},
    {"limba.planner"},
    {"limba.plan"},
    {"limba.cli", "limba.__main__"},
]
RANK = {module: rank for rank, modules in enumerate(LAYERS) for module in modules}


def _modules(room):
    return sorted((ROOT / room).glob("*.py"))


def _imports(path, top_level_only=False):
    """Names that a file imports: `limba.models` for both `import limba.models` and `from limba import models`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _name(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


@pytest.mark.parametrize("path", _modules("limba"), ids=lambda p: p.stem)
def test_engine_modules_import_only_what_lies_below(path):
    name = _name(path)
    assert name in RANK, f"{name} has no layer yet: add it to LAYERS"
    for imported in _imports(path):
        if imported == name:
            continue  # `python -m` importing its own module
        if imported in RANK:
            assert RANK[imported] <= RANK[name], f"{name} imports {imported}, which lies above it"
        top = imported.partition(".")[0]
        assert top not in ("tensorflow", "seqio", "tensorflow_text", "datasets", "torch", "transformers"), imported
    for imported in _imports(path, top_level_only=True):
        assert imported.partition(".")[0] not in ("tasks", "convert", "tests", "benchmarks"), imported


@pytest.mark.parametrize("path", _modules("tasks"), ids=lambda p: p.stem)
def test_tasks_need_only_the_data_contract(path):
    allowed = ("limba.cached_data", "limba.data", "limba.findings", "limba.hashing", "limba.import_errors")
    for imported in _imports(path):
        if imported.startswith("limba."):
            assert imported.startswith(allowed), f"{path.name} imports {imported}"
        assert imported.partition(".")[0] not in ("jax", "flax", "convert", "tests"), imported


@pytest.mark.parametrize("path", _modules("convert"), ids=lambda p: p.stem)
def test_converters_need_no_foreign_model_classes(path):
    for imported in _imports(path, top_level_only=True):
        assert imported.partition(".")[0] not in ("torch", "transformers", "tensorflow", "seqio", "tasks"), imported


@pytest.mark.parametrize("module", ["limba.train", "limba.infer", "convert.to_hf", "limba.cli", "tasks.objectives"])
def test_importing_leaves_tensorflow_out(module):
    code = (
        f"import sys, {module}; "
        "print([m for m in ('tensorflow', 'seqio', 'torch', 'transformers', 'datasets') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"
