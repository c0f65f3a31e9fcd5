"""The train step benchmark at tiny sizes: its report, its FLOPs, its sizes."""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmarks import sides, train_step
from limba.network import t5

REPOSITORY = Path(train_step.__file__).resolve().parent.parent
SIZES = {
    "vocab_size": 1024,
    "emb_dim": 256,
    "num_heads": 4,
    "head_dim": 32,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
    "mlp_dim": 512,
    "mlp_activations": ("gelu", "linear"),
    "logits_via_embedding": False,
}


@pytest.mark.parametrize(
    "changes",
    [{}, {"mlp_activations": ("relu",), "logits_via_embedding": True}, {"num_heads": 16}],
    ids=["t5_1_1", "t5_1_0", "wide attention"],
)
def test_flops_are_those_that_xla_counts(changes):
    sizes = SIZES | changes
    workload = train_step.Workload(sizes, "float32", batch_size=4, inputs=96, targets=32)
    module = t5.Transformer(t5.T5Config(**sizes, dropout_rate=0.0))
    encoder = jax.ShapeDtypeStruct((4, 96), jnp.int32)
    decoder = jax.ShapeDtypeStruct((4, 32), jnp.int32)
    variables = jax.eval_shape(
        lambda: module.init(jax.random.key(0), jnp.ones((1, 8), int), *[jnp.ones((1, 8), int)] * 2)
    )

    def forward(params, encoder_tokens, decoder_tokens):
        return module.apply({"params": params}, encoder_tokens, decoder_tokens, decoder_tokens, enable_dropout=False)

    counted = jax.jit(forward).lower(variables["params"], encoder, decoder).cost_analysis()["flops"]
    # XLA counts the elementwise work too, which is a few percent at such widths.
    assert train_step.forward_flops(workload) < counted < 1.06 * train_step.forward_flops(workload)


def test_flops_of_small():
    workload = train_step.Workload(train_step.T5_1_1 | train_step.SIZES["small"], "bfloat16", 8, 512, 114)
    assert train_step.model_flops(workload) == pytest.approx(850e9, rel=0.001)


@pytest.mark.parametrize(
    ("device_kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("TPU v3", 61.5),
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("cpu", None),
    ],
)
def test_peak(device_kind, peak):
    assert train_step.peak_tflops(device_kind) == peak


@pytest.mark.parametrize("size", train_step.SIZES)
def test_table_agrees_with_the_gin_files(size):
    from_gin = train_step.sizes_from_gin(f"gin/models/t5_1_1/{size}.gin")
    assert (train_step.T5_1_1 | train_step.SIZES[size]).items() <= from_gin.items()


def test_report(tmp_path, monkeypatch, forks):
    (tmp_path / "tiny.gin").write_text(
        "from limba.network import t5 as network\n"
        "VOCAB = 64\nnetwork.T5Config:\n  vocab_size = %VOCAB\n  emb_dim = 16\n"
        "  num_heads = 2\n  head_dim = 8\n  mlp_dim = 32\n  num_encoder_layers = 1\n  num_decoder_layers = 1\n"
    )
    monkeypatch.delenv("T5X_DIR", raising=False)
    code = "from benchmarks import train_step; train_step.main()"
    flags = ["--batch_size=2", "--inputs=8", "--targets=8", "--steps=1", "--rounds=2", "--dtype=float32"]
    command = ["-c", code, f"--gin_file={tmp_path}/tiny.gin", *flags, "--against=t5x"]
    result = forks.run(command, dict(os.environ))
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["sizes"]["vocab_size"] == 64
    assert report["model_tflops"] > 0
    reports = report["dtypes"]["float32"]
    assert reports["t5x"].startswith("unavailable: RuntimeError: set T5X_DIR")
    ours = reports["limba"]
    assert {
        "seconds", "cpu_seconds", "compile_seconds", "tokens_per_second", "model_tflops_per_second", "mfu",
        "peak_memory_mib", "peak_memory_of", "temporary_mib", "parameters", "device", "versions",
    } == set(ours)  # fmt: skip
    assert ours["seconds"] > 0
    assert ours["mfu"] is None or 0 < ours["mfu"] < 1
    assert "round 2 of 2: limba" in result.stderr


def test_ratio_is_the_median_over_rounds():
    workload = train_step.Workload(SIZES, "float32", 4, 96, 32)
    facts = {"device": "NVIDIA A100-SXM4-80GB"}
    memory = {"peak_memory_mib": 1, "peak_memory_of": "device"}
    ours = [{"seconds": s, "cpu_seconds": 1.0, **memory} for s in (1.0, 2.0, 4.0)]
    theirs = [{"seconds": s, "cpu_seconds": 2.0, **memory} for s in (3.0, 4.0, 20.0)]
    report = sides.report(facts, theirs, ours)
    assert (report["seconds_ratio"], report["cpu_seconds_ratio"]) == (3.0, 2.0)
    assert report["seconds_ratio_range"] == [2.0, 5.0]
    assert "seconds_ratio" not in sides.report(facts, ours, ours)
    train_step.add_rates(workload, report)
    assert report["mfu"] == pytest.approx(train_step.model_flops(workload) / 4.0 / 312e12, abs=1e-4)
