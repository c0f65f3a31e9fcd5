import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from limba.devices import out_of_memory

_TPU = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G."
)
_GPU = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 93.13GiB. [executable_name='jit_step']"


def _error(text):
    return jax.errors.JaxRuntimeError(text)


def test_a_real_one_is_seen():
    with pytest.raises(jax.errors.JaxRuntimeError) as found:
        jnp.zeros((10**13,)).block_until_ready()
    assert out_of_memory.is_cause(found.value)
    message = out_of_memory.describe(found.value, "limba.eval", [])
    assert message.startswith("Out of memory: 37,252.90 GiB were asked for on 8 x cpu.") and "limba plan" not in message
    assert not out_of_memory.is_cause(ValueError("RESOURCE_EXHAUSTED")) and not out_of_memory.is_cause(
        _error("ABORTED")
    )


@pytest.mark.parametrize(
    ("text", "kind", "count", "words"),
    [
        (
            _TPU,
            "TPU v5 lite",
            16,
            ["20.50 GiB were asked for; each device of 16 x TPU v5 lite has 15.75 GiB", "v5e-16"],
        ),
        (_TPU, "TPU v4", 4, ["--topology v4-8"]),
        (_TPU, "TPU7x", 8, ["--topology tpu7x-8"]),
        (_GPU, "NVIDIA H100 80GB HBM3", 8, ["93.13 GiB were asked for; each device of 8 x", "74.51 GiB", "h100-8"]),
        (_GPU, "Some GPU", 1, ["--topology NAME"]),
    ],
)
def test_what_was_asked_what_there_is_and_what_helps(monkeypatch, text, kind, count, words):
    class Device:
        device_kind = kind

        def memory_stats(self):
            return {"bytes_limit": 80_000_000_000}

    monkeypatch.setattr(jax, "devices", lambda: [Device()] * count)
    argv = ["gin/models/t5_1_1/base.gin", "--gin_file=my run.gin", "--gin.MODEL_DIR='runs/x'", "--verbosity=1"]
    message = out_of_memory.describe(_error(text), "limba.train", argv)
    for word in (*words, "num_microbatches=2", "remat_policy", "fsdp_logical_axis_rules", "BATCH_SIZE"):
        assert word in message
    assert "limba plan gin/models/t5_1_1/base.gin '--gin_file=my run.gin' \"--gin.MODEL_DIR='runs/x'\" --top" in message


def test_a_command_ends_with_the_message():
    code = (
        "import jax.numpy as jnp\n"
        "from limba import command_line\n"
        "def main(argv): jnp.zeros((10**13,)).block_until_ready()\n"
        "main.__module__ = 'limba.train'\n"
        "command_line.run_command(main, ['mine.gin'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: Out of memory: 37,252.90 GiB") and "limba plan mine.gin" in done.stderr
