"""`limba plan`: its estimates, its choice, its words; and compiled for real for a small network, where libtpu is."""

import dataclasses
import functools
import importlib.util
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from limba import models
from limba.addons.block_sparse import block_layout
from limba.addons.longt5.longt5 import LongT5Config
from limba.addons.plan import (
    command,
    compiled_step,
    layout_choice,
    memory_estimate,
    mesh_layouts,
    plan_report,
    time_estimate,
    topologies,
)
from limba.addons.plan.compiled_step import Memory
from limba.addons.plan.layout_choice import CompiledCost
from limba.addons.plan.mesh_layouts import MeshLayout, Work
from limba.addons.plan.topologies import GIB
from limba.data import contract
from limba.gin_config import gin_names
from limba.network import flops
from limba.network.encoders import encoder, token_detector
from limba.network.gemma_layers import GemmaLayers
from limba.optimizers import definitions, schedules
from limba.training import trainer
from tests.limba import small

V4_8 = topologies.find("v4-8")
# T5 1.1 XL.
XL = {
    "vocab_size": 32128,
    "emb_dim": 2048,
    "num_heads": 32,
    "head_dim": 64,
    "num_encoder_layers": 24,
    "num_decoder_layers": 24,
    "mlp_dim": 5120,
    "mlp_activations": ("gelu", "linear"),
}
BASE = XL | {"emb_dim": 768, "num_heads": 12, "mlp_dim": 2048, "num_encoder_layers": 12, "num_decoder_layers": 12}
XL_WORK = Work(XL, 128, 512, 114, 2_849_757_184)
BASE_WORK = Work(BASE, 128, 512, 114, 247_577_856)


def _training(batch_size=8, **fields):
    make = functools.partial(trainer.Trainer, learning_rate_fn=schedules.create_learning_rate_scheduler("constant"))
    dataset = contract.DatasetConfig("nobody", {"inputs": 16, "targets": 8}, "train", batch_size)
    return compiled_step.Training(small.model(**fields), dataset, make)


def _planner(training, given=None, record=None):
    given = given or MeshLayout(0, 1, False, "none", 1)
    return plan_report.Planner(training, given, plan_report.Prices(0.4, 2.0, 1_000_000), record, "key")


# ------------------------------------------------------ arithmetic ---------------------------------------------------


def test_flops_of_recomputation_are_those_that_xla_counts():
    counted, expected = {}, {}
    for remat in ("none", "minimal", "full"):
        model = small.model(dtype="bfloat16", remat_policy=remat, mlp_dim=256)
        made = small.make_trainer(model)
        batch = {name: jax.ShapeDtypeStruct((8, 96 if "enc" in name else 64), jnp.int32) for name in small.batch(0)}
        sizes = dataclasses.asdict(model.module.config)
        counted[remat] = made.train_step.lower(made.train_state, batch).cost_analysis()["flops"]
        expected[remat] = 8 * (3 * flops.forward_flops(sizes, 96, 64) + flops.recomputed_flops(sizes, 96, 64, remat))
        # XLA counts elementwise work too, and leaves out the last product of a layer that is computed again.
        assert counted[remat] == pytest.approx(expected[remat], rel=0.04)
    assert counted["none"] < counted["minimal"] < 0.9 * counted["full"]


def test_encoders_are_planned_as_encoders():
    sizes = {"vocab_size": 256, "emb_dim": 128, "num_heads": 4, "head_dim": 32, "mlp_dim": 256, "num_layers": 2}
    module = encoder.MaskedLanguageModel(encoder.EncoderConfig(**sizes, dropout_rate=0.0, attention_dropout_rate=0.0))
    model = models.EncoderOnlyModel(module, small.FixedVocabulary(), definitions.adamw())
    dataset = contract.DatasetConfig("nobody", {"inputs": 96, "targets": 64}, "train", 8)
    training = compiled_step.Training(model, dataset, small.make_trainer)
    assert training.work.num_parameters == sum(x.size for x in jax.tree.leaves(model.param_shapes_and_axes()[0]))
    names = ("encoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights", "masked_lm_positions")
    batch = {name: jax.ShapeDtypeStruct((8, 96 if "enc" in name else 64), jnp.int32) for name in names}
    made = small.make_trainer(model)
    counted = made.train_step.lower(made.train_state, batch).cost_analysis()["flops"]
    # XLA also counts the head's product and elementwise work.
    assert counted == pytest.approx(training.work.model_flops, rel=0.15) and counted > training.work.model_flops
    assert training.with_layers("full").config.remat_policy == "full"
    planner = plan_report.Planner(
        training, MeshLayout(0, 1, False, "none", 1), plan_report.Prices(0.4, 2.0, 1_000_000), None, "key"
    )
    choice = planner.choose(V4_8, compiled=False)
    assert choice is not None and choice.memory.temporary > 0
    assert gin_names.gin_name(type(training.config)) == "encoder.EncoderConfig"


def test_layers_with_windows_are_planned_unrolled(capsys):
    layers = GemmaLayers(num_kv_heads=2, sliding_window=4, merged_attention=True, shared_embedding=True)
    training = _training(gemma_layers=layers, logits_via_embedding=True)
    assert not training.with_layers("full").config.scan_layers
    params, _ = training.model.param_shapes_and_axes()
    assert training.work.num_parameters == sum(x.size for x in jax.tree.leaves(params))
    assert _planner(training).report(V4_8, compiled=False)
    said = capsys.readouterr().out
    assert "T5Config.scan_layers = False" in said and "attention          XLA's" in said


def test_longt5_keeps_no_weights_of_its_encoder():
    layout = MeshLayout(1, 1, False, "none", 1)

    def temporary(config):
        dataset = contract.DatasetConfig("nobody", {"inputs": 4096, "targets": 64}, "train", 8)
        work = compiled_step.Training(small.model(module=config.network()), dataset, small.make_trainer).work
        return memory_estimate.temporary_bytes(work, layout, 0.0, fused=False)

    # Eight bytes a weight: T5 keeps those of all layers, and 0.6 of one layer's beside them. LongT5 has one layer's.
    full = small.config()
    fields = {field.name: getattr(full, field.name) for field in dataclasses.fields(full)}
    long = LongT5Config(**fields, encoder_attention_type="transient-global")
    rows_of_heads, layers = 8.0 * 8 * 4, full.num_encoder_layers
    whole, seen = 4096 * 4096, 4096 * (3 * 128 + 256)
    saved = rows_of_heads * ((layers + 0.6) * whole - seen)
    assert temporary(full) - temporary(long) == pytest.approx(saved)


def test_a_generator_and_products_of_distances_count():
    """ELECTRA's pre-training of a DeBERTa-v3: two networks, and attention to distances, which no kernel computes."""
    sizes = {"vocab_size": 256, "emb_dim": 128, "num_heads": 4, "head_dim": 32, "mlp_dim": 256, "num_layers": 2}
    fields = {"position_embedding_type": "disentangled", "num_buckets": 8, "max_distance": 96}
    module = token_detector.ReplacedTokenDetector(encoder.EncoderConfig(**sizes, **fields, dropout_rate=0.0))
    model = models.ElectraModel(module, small.FixedVocabulary(), definitions.adamw(), generator_width=0.5)
    work = compiled_step.Training(
        model, contract.DatasetConfig("nobody", {"inputs": 96, "targets": 32}, "train", 8), small.make_trainer
    ).work
    names = ("encoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights", "masked_lm_positions")
    batch = {name: jax.ShapeDtypeStruct((8, 96 if "enc" in name else 32), jnp.int32) for name in names}
    made = small.make_trainer(model)
    counted = made.train_step.lower(made.train_state, batch).cost_analysis()["flops"]
    # XLA also counts the heads' products and elementwise work.
    assert counted == pytest.approx(work.model_flops, rel=0.2) and counted > work.model_flops
    layout = MeshLayout(1, 1, False, "none", 1)
    alone = dataclasses.replace(work, generator=None)
    assert memory_estimate.temporary_bytes(work, layout, 0.0) > 1.3 * memory_estimate.temporary_bytes(
        alone, layout, 0.0
    )
    assert not memory_estimate.has_fused_kernels(work, V4_8)
    # The generator has two heads.
    assert {layout.model for layout in mesh_layouts.candidates(work, V4_8)} == {1, 2}


def test_sparse_attention_counts_the_blocks_that_are_there():
    sizes = {"vocab_size": 256, "emb_dim": 128, "num_heads": 4, "head_dim": 32, "mlp_dim": 256, "num_layers": 2}
    layout = block_layout.BigBirdSparsityConfig(num_random_blocks=0)
    works = []
    for sparse in (None, layout):
        module = encoder.MaskedLanguageModel(encoder.EncoderConfig(**sizes, sparse_attention=sparse))
        model = models.EncoderOnlyModel(module, small.FixedVocabulary(), definitions.adamw())
        dataset = contract.DatasetConfig("nobody", {"inputs": 96, "targets": 64}, "train", 8)
        works.append(compiled_step.Training(model, dataset, small.make_trainer).work)
    # Of 36 blocks of 16 x 16 there are 24: global row and column 11, diagonals 5 + 4 + 4.
    absent = 12 * 16 * 16
    assert works[0].model_flops - works[1].model_flops == pytest.approx(3 * 8 * 2 * 4 * absent * 128)


def test_model_flops_seconds_days_and_cost():
    prices = plan_report.Prices(mfu=0.4, price=3.0, steps=1_000_000)
    assert BASE_WORK.model_flops == pytest.approx(54.2e12, rel=0.01)
    rows = prices.rows_per_second(BASE_WORK, V4_8)
    assert rows == pytest.approx(0.4 * 275e12 * 4 / (BASE_WORK.model_flops / 128))
    days = prices.days(BASE_WORK, V4_8)
    assert days == pytest.approx(128e6 / rows / 86_400)
    assert prices.cost(BASE_WORK, V4_8) == pytest.approx(days * 24 * 4 * 3)


@pytest.mark.parametrize(
    ("text", "price"), [("3.22", (3.22, "")), ("3.22 EUR", (3.22, "EUR")), ("$3", (3.0, "$")), (".5USD", (0.5, "USD"))]
)
def test_a_price_may_have_a_currency(text, price):
    assert command._parser().parse_args(["--price", text]).price == price


def test_the_time_of_a_step_that_is_too_small_is_not_made_up():
    """BASE takes its time, at two rates; a batch of one row of it on 64 chips would take half a millisecond."""
    prices = plan_report.Prices(mfu=0.4, price=3.0, steps=1_000_000)
    first, days, of_t5x = plan_report._time(prices, BASE_WORK, V4_8)
    assert "at 40% MFU" in first and days.startswith("1,000,000 steps  1.43 days, 413 at 3 a chip-hour")
    assert of_t5x.startswith("1,000,000 steps  4.1 days") and "at 14% MFU" in of_t5x
    of_gpus = plan_report._time(prices, BASE_WORK, topologies.find("h100-8"))[-1]
    assert "at 31% MFU, as nanoT5's T5 1.1 base with PyTorch on an A100" in of_gpus
    few = dataclasses.replace(BASE_WORK, batch_size=1)
    (line,) = plan_report._time(prices, few, topologies.find("v4-128"))
    assert "0.061 ms a step: too small for 64 chips" in line and "at 5 ms 1,000,000 steps take 1.39 hours" in line
    assert line.endswith("take 1.39 hours, 267 at 3 a chip-hour, at most. Measure it.")
    in_euros = dataclasses.replace(prices, currency="EUR")
    assert plan_report._time(in_euros, BASE_WORK, V4_8)[1].endswith("1.43 days, 413 EUR at 3 EUR a chip-hour")
    without = dataclasses.replace(prices, price=None)
    assert plan_report._time(without, few, topologies.find("v4-128"))[0].endswith(
        "take 1.39 hours, at most. Measure it."
    )
    assert [plan_report._duration(s) for s in (1, 3.5, 90, 7200, 1e6)] == [
        "1 second",
        "3.5 seconds",
        "1.5 minutes",
        "2 hours",
        "11.6 days",
    ]


@pytest.mark.parametrize(
    ("work", "layout", "parameters", "gib"),
    [  # What XLA's compiler for v4 said at its lowest effort, everything included.
        (BASE_WORK, MeshLayout(4, 1, False, "full", 1), 0.922, (2.095, 2.447)),
        (BASE_WORK, MeshLayout(4, 1, False, "minimal", 1), 0.922, (6.006, 6.055)),
        (BASE_WORK, MeshLayout(4, 1, False, "none", 1), 0.922, (11.58, 21.58)),
        (XL_WORK, MeshLayout(16, 1, True, "full", 1), 0.664, (2.527, 2.794)),
    ],
)
@pytest.mark.parametrize("fused", [True, False])
def test_estimates_are_near_what_was_compiled(work, layout, parameters, gib, fused):
    gib = gib[0] if fused else gib[1]
    estimated = parameters + memory_estimate.temporary_bytes(work, layout, parameters * GIB, fused=fused) / GIB
    assert 0.95 * gib < estimated < 1.4 * gib


def test_memory_of_the_state_is_that_of_the_real_shardings():
    training = _training(num_heads=4)
    sizes = compiled_step.StateSizes(training)
    for layout in (
        MeshLayout(8, 1, False, "none", 1),
        MeshLayout(4, 2, True, "none", 1),
        MeshLayout(2, 4, True, "none", 1),
    ):
        mesh = compiled_step.partitioner(layout, jax.devices()[:8])
        made = small.make_trainer(training.with_layers("none").model, mesh)
        shapes = made.sharded_state_shapes()
        memory = sizes.memory(layout)
        assert memory.parameters == compiled_step._local_bytes(shapes.params)
        assert memory.optimizer == compiled_step._local_bytes(shapes.opt_state)


def test_memory_adds_up():
    memory = Memory(parameters=2.0, optimizer=1.0, peak=10.0)
    assert (memory.needed, memory.temporary) == (10.0, 7.0)
    assert Memory(2.0, 1.0, refused=50.0).needed == 50.0
    assert compiled_step._needed(
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (35.51G) exceeds "
        "available HBM (30.75G)."
    ) == pytest.approx(35.51 * GIB)


# ------------------------------------------------------ choice -------------------------------------------------------


def test_candidates_divide():
    layouts = list(mesh_layouts.candidates(dataclasses.replace(BASE_WORK, sizes=BASE | {"num_heads": 6}), V4_8))
    assert {layout.model for layout in layouts} == {1, 2}
    assert all(128 % (layout.data * layout.microbatches) == 0 for layout in layouts)
    assert MeshLayout(2, 2, True, "minimal", 4) in layouts
    assert not any(layout.fsdp and layout.data == 1 for layout in layouts)


def _guesses(*gib):
    layouts = [MeshLayout(4, 1, False, "none", 2**i) for i in range(len(gib))]
    return [
        layout_choice.LayoutCost(x, Memory(GIB, 0.0, n * GIB), i)
        for i, (x, n) in enumerate(zip(layouts, gib, strict=True))
    ]


def test_the_fastest_that_the_compiler_lets_through_is_chosen():
    compiled = []

    def compile_layout(layout):
        compiled.append(layout.microbatches)
        refused = layout.microbatches == 2
        return CompiledCost(Memory(GIB, 0.0, refused=40 * GIB) if refused else Memory(GIB, 0.0, 15 * GIB))

    # 40 GiB is not tried. What was thought to need 20 needs twice as much, so 18 is not tried either.
    choice = layout_choice.choose(_guesses(40, 20, 18, 10), V4_8, compile_layout)
    assert compiled == [2, 8]
    assert choice.layout.microbatches == 8
    assert choice.compiled
    assert layout_choice.choose(_guesses(40, 20), V4_8, None).layout.microbatches == 2
    assert layout_choice.choose(_guesses(40, 35), V4_8, None) is None


def test_what_fits_is_compared_by_its_bound():
    bounds = {"none": 0.3, "minimal": 0.2, "full": 0.25}
    layouts = [MeshLayout(4, 1, False, remat, parts) for parts in (1, 2) for remat in bounds]
    ranked = [layout_choice.LayoutCost(x, Memory(GIB, 0.0, GIB), 1.0 + i / 10) for i, x in enumerate(layouts)]
    compiled = []

    def compile_layout(layout):
        compiled.append(layout)
        return CompiledCost(Memory(GIB, 0.0, 2 * GIB), bounds[layout.remat])

    choice = layout_choice.choose(ranked, V4_8, compile_layout)
    assert (choice.layout, choice.bound) == (layouts[1], 0.2)
    assert compiled == layouts[:3]  # More microbatches are not faster.
    # What is much slower by estimate is not compiled.
    slow = [dataclasses.replace(x, seconds=2.0**i) for i, x in enumerate(ranked)]
    assert layout_choice.choose(slow, V4_8, compile_layout).layout == layouts[0]


def test_a_small_model_is_not_split():
    """Each of its steps waits for its kernels, in any layout: an estimate split it over 4 devices."""
    training = _training(mlp_dim=1024, **small.TWO_LAYERS)  # 2 million parameters
    work, state = dataclasses.replace(training.work, batch_size=16), compiled_step.StateSizes(training)
    for name in ("v4-32", "v5e-16", "v6e-16", "h100-8"):
        topology = topologies.find(name)
        ranked = layout_choice.rank(training, work, state, topology)
        best = layout_choice.choose(ranked, topology, None)
        assert best.layout == MeshLayout(topology.num_devices, 1, False, "none", 1), name
        bounds = lambda layout: CompiledCost(Memory(0, 0, GIB), 1e-4 / layout.model)  # noqa: E731
        assert layout_choice.choose(ranked, topology, bounds).layout == best.layout, name


def test_one_tenth_is_kept_free():
    assert layout_choice.fits(Memory(0, 0, 27.6 * GIB), V4_8)
    assert not layout_choice.fits(Memory(0, 0, 27.8 * GIB), V4_8)


def test_small_batches_are_split_and_large_models_sharded():
    state = compiled_step.StateSizes(_training())  # whose sizes do not matter here
    times = {
        layout: time_estimate.relative_seconds(XL_WORK, layout, topologies.find("v4-32"), parameters * GIB)
        for layout, parameters in {
            MeshLayout(16, 1, True, "minimal", 1): 0.66,
            MeshLayout(16, 1, True, "full", 1): 0.66,
            MeshLayout(16, 1, True, "minimal", 8): 0.66,
            MeshLayout(4, 4, True, "minimal", 1): 0.66,
        }.items()
    }
    assert min(times, key=times.get) == MeshLayout(16, 1, True, "minimal", 1)
    assert (
        state.memory(MeshLayout(4, 1, True, "none", 1)).parameters
        < state.memory(MeshLayout(4, 1, False, "none", 1)).parameters
    )


# ------------------------------------------------------ words --------------------------------------------------------


def test_what_does_not_fit_says_what_would(capsys, monkeypatch):
    tiny = dataclasses.replace(topologies.CHIPS["v4"], memory=0.012 * GIB)
    monkeypatch.setitem(topologies.CHIPS, "v4", tiny)
    made = _planner(_training(mlp_dim=1024, **small.TWO_LAYERS))
    assert made.report(V4_8, compiled=False)
    out, log = capsys.readouterr()
    assert "best by estimate: " in log and "best by estimate" not in out
    assert "as configured: 4 x 1, remat none, 1 microbatch: does not fit" in out
    assert "recommended (estimated, not compiled): " in out
    # Steps of so small a model only wait for their kernels: spreading its state is simpler than a model axis.
    assert "recommended (estimated, not compiled): 4 x 1 FSDP, remat none, 1 microbatch\n" in out
    monkeypatch.setitem(topologies.CHIPS, "v4", dataclasses.replace(tiny, memory=0.004 * GIB))
    assert not made.report(V4_8, compiled=False)
    assert "No layout fits v4-8, by estimate." in capsys.readouterr().out


def test_kernels_are_said_to_be_compared_on_the_device(capsys):
    """The plan is for devices that are not here, on which nothing can run."""
    for head_dim, expected in (
        (16, "fused kernels; the run compares them with XLA's on the device first, and uses XLA's if they differ"),
        (24, "XLA's"),
    ):
        assert _planner(_training(head_dim=head_dim)).report(V4_8, compiled=False)
        (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("  attention  ")]
        assert line == f"  attention          {expected}"


def test_a_layout_that_cannot_be_is_said(capsys):
    made = _planner(_training(batch_size=12), MeshLayout(0, 8, False, "none", 1))
    made.report(V4_8, compiled=False)
    assert "as configured: cannot be: PjitPartitioner.num_partitions = 8 does not divide the 4 devices" in (
        capsys.readouterr().out
    )


def test_what_was_compiled_is_kept(tmp_path, monkeypatch):
    calls = []
    compiled = compiled_step.CompiledStep(Memory(1.0, 2.0, 3.0), None)
    monkeypatch.setattr(compiled_step, "devices_of", lambda topology: jax.devices()[:4])
    monkeypatch.setattr(compiled_step, "compile_step", lambda *args: calls.append(args) or compiled)
    for _ in range(2):
        made = _planner(_training(), record=tmp_path / "record.jsonl")
        assert made.compile(MeshLayout(4, 1, False, "full", 2), V4_8) == CompiledCost(Memory(1.0, 2.0, 3.0))
    assert len(calls) == 1


def test_jax_begins_with_the_settings_of_a_plan():
    """It reads them when it is imported, which parsing the flags does."""
    code = """
from limba.addons.plan import command
given = ["--gin.TASK_FEATURE_LENGTHS={'inputs': 16, 'targets': 8}", "--gin.TRAIN_STEPS=1", "--gin.DROPOUT_RATE=0.0"]
command.main(["--topology", "v4-8", "--estimate_only", "gin/models/t5_1_1/tiny.gin", "gin/runs/pretrain.gin", *given])
import jax
print(jax.config.jax_platforms, jax.config.jax_enable_compilation_cache, jax.config.jax_optimization_level)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "cpu False O0"


def test_gin_lines_make_the_layout(forks):
    # In a process that has read no other file: gin forgets no name that one has registered.
    code = f"""
import gin
from limba.gin_config import gin_files as gin_utils
from limba.partitioning import meshes as partitioning
given = ["MIXTURE_OR_TASK_NAME='x'", "TASK_FEATURE_LENGTHS={{'inputs': 8}}", "MODEL_DIR='x'", "DROPOUT_RATE=0.0"]
lines = {MeshLayout(4, 2, True, "minimal", 2).gin_lines()}
files = ["t5x/examples/t5/t5_1_1/tiny.gin", "t5x/configs/runs/pretrain.gin"]
gin_utils.parse_gin_flags(files, [*given, "TRAIN_STEPS=1", *lines])
bound = gin.get_bindings(partitioning.PjitPartitioner)
assert bound["logical_axis_rules"] == partitioning.fsdp_logical_axis_rules()
print(bound["num_partitions"], *map(gin.query_parameter, ("trainer.Trainer.num_microbatches", "T5Config.remat_policy")))
"""
    done = forks.run(["-c", code], dict(os.environ))
    assert done.stdout.split() == ["2", "2", "minimal"], done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.gin"], "give --topology, such as v4-32; there are v2-8 to 512, v3-8 to 2048, v4-8 to 2048, "),
        (["--topology", "v4-8"], "give a model and a run"),
        (["--topology", "v4-8", "--mfu", "40", "x.gin"], "--mfu is 40"),
        (["--topology", "v4-8", "--price", "dear", "x.gin"], "'dear' is not a price of a chip-hour, such as 3.22 or"),
        (["--topology", "v4-9", "x.gin"], "is not known; the nearest are v4-8, v4-16"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_read(arguments, message, capsys):
    with pytest.raises((SystemExit, ValueError)) as error:
        command.main(arguments)
    assert message in f"{capsys.readouterr().err} {error.value}"


def test_without_the_compiler_the_message_has_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'limba\[plan\]'"):
        compiled_step.check_compiler(topologies.find("v4-8"))


# ------------------------------------------------- compiled for a TPU -------------------------------------------------

_COMPILE = """
from limba.addons.plan import command as plan
plan.prepare_environment()
from limba.partitioning import meshes as partitioning
from limba.addons.plan import compiled_step as plan_compile, topologies
from limba.addons.plan.mesh_layouts import MeshLayout
from tests.limba import small
from tests.addons.plan.test_command import _planner, _training

made = _planner(_training(batch_size=32, dtype="bfloat16", emb_dim=256, num_heads=4))
topology = topologies.find("v5e-16", 2)
layout = MeshLayout(8, 2, True, "minimal", 1, 2)
mesh = plan_compile.partitioner(layout, plan_compile.devices_of(topology))
memory = made.compile(layout, topology).memory
print(dict(mesh.mesh.shape), memory.parameters == made.state.memory(layout).parameters, memory.peak)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, of the test lock")
def test_a_small_network_compiles_for_slices_that_are_not_here(forks):
    out = forks.run(["-c", _COMPILE], os.environ | {"XLA_FLAGS": ""})
    assert out.returncode == 0, out.stderr[-3000:]
    # 8 x 2 on 4 x 4 chips, which splits an axis of the torus, in two slices, which are replicas by themselves.
    assert out.stdout.startswith("{'replica': 2, 'data': 8, 'model': 2} True ")
    assert float(out.stdout.split()[-1]) > 1e6
