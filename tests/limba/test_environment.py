"""`limba env`: it tells what a bug report needs, and no secret."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

import limba
from limba import environment

ROOT = Path(__file__).parents[2]
SECRET = "s3cr3t"


def _env(folder: Path, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "limba", "env", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        check=True,
    )
    return done.stdout


def test_as_json(tmp_path):
    three = "--xla_force_host_platform_device_count=3"
    facts = json.loads(_env(tmp_path, "--json", JAX_PLATFORMS="cpu", XLA_FLAGS=three))
    assert facts["packages"]["limba"] == limba.__version__ and facts["packages"]["jax"] == jax.__version__
    assert facts["packages"].keys() >= {"transformers", "torch", "tensorflow", "numpy"}
    assert facts["packages"]["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["limba"]["folder"] == str(ROOT)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert facts["limba"]["commits"]["limba"].removesuffix("-dirty") == commit.strip()
    assert facts["jax"] == {"backend": "cpu", "version": "cpu", "devices": {"cpu": 3}, "messages": []}
    machine = facts["machine"]
    assert machine["usable_cpus"] == len(os.sched_getaffinity(0)) <= machine["cpus"]
    assert 0 < machine["available_memory"] < machine["memory"] and machine["free_disk"] > 0
    assert machine["working_directory"] == str(tmp_path)
    assert facts["environment"]["XLA_FLAGS"] == three


def test_as_text_without_secrets(tmp_path):
    """No secret, whatever holds it; and fast where JAX is not asked."""
    secrets = {
        "HF_TOKEN": SECRET,
        "WANDB_API_KEY": SECRET,
        "LIMBA_PASSWORD": SECRET,
        "GOOGLE_APPLICATION_CREDENTIALS": f"/home/me/{SECRET}.json",
        "TF_CLIENT_SECRET": SECRET,
        "HF_ENDPOINT": f"https://me:{SECRET}/@{SECRET}@hub.example/x?token={SECRET}&a={SECRET}",
        "https_proxy": f"me:{SECRET}/{SECRET}@proxy.example:3128",
        "LIBTPU_INIT_ARGS": f"--x=1 --hub_token {SECRET} --y={SECRET}",
        "SOMETHING_ELSE": SECRET,
    }
    started = time.perf_counter()
    out = _env(tmp_path, "--no-devices", **secrets, JAX_ENABLE_X64="0", CUDA_VISIBLE_DEVICES="0,1")
    assert time.perf_counter() - started < 10  # 0.8 s on a quiet machine
    assert SECRET not in out and "SOMETHING_ELSE" not in out
    lines = out.splitlines()
    assert lines[0].startswith(f"Limba    {limba.__version__}, commit of limba ")
    for line in (
        "Devices  not asked for (--no-devices)",
        f"  jax={jax.__version__}",
        "  CUDA_VISIBLE_DEVICES=0,1",
        "  GOOGLE_APPLICATION_CREDENTIALS=(set)",
        "  HF_ENDPOINT=https://***@hub.example/x?***",
        "  HF_TOKEN=(set)",
        "  JAX_ENABLE_X64=0",
        "  LIBTPU_INIT_ARGS=--x=1 --hub_token ***",
        "  LIMBA_PASSWORD=(set)",
        "  TF_CLIENT_SECRET=(set)",
        "  WANDB_API_KEY=(set)",
        "  https_proxy=***@proxy.example:3128",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:s3cr3t@host:80/a", "http://***@host:80/a"),
        ("http://s3cr3t@host", "http://***@host"),
        ("--url=http://me:s3 cr3t@host --b", "--url=http://***@host --b"),
        ("gs://bucket/a,gs://bucket/b", "gs://bucket/a,gs://bucket/b"),
        ("https://bucket/file?X-Signature=s3cr3t --b=1", "https://bucket/file?*** --b=1"),
        ("https://host/page#access=s3cr3t", "https://host/page?***"),
        ('{"api_key": "s3cr3t"}', '{"api_key": ***'),
        ("Authorization: Bearer s3cr3t", "Authorization: ***"),
        ("-x hf_s3cr3ts3cr3ts3cr3t -y", "-x *** -y"),
        ("/opt/tokens:/opt/lib", "/opt/tokens:/opt/lib"),
        ("/opt/python@3.11/lib:/opt/x@1/lib", "/opt/python@3.11/lib:/opt/x@1/lib"),
        ("--xla_force_host_platform_device_count=8", "--xla_force_host_platform_device_count=8"),
        ("10.0.0.1:8476", "10.0.0.1:8476"),
    ],
)
def test_secrets_inside_of_values(text, shown):
    assert environment.without_secrets(text) == shown


def test_which_variables_are_shown():
    environ = {"PATH": "/bin", "HOME": "/root", "PYTHONPATH": "a:b", "TPU_NAME": "v4", "HF_TOKEN": "", "no_proxy": "*"}
    assert environment.variables(environ) == {"PYTHONPATH": "a:b", "TPU_NAME": "v4", "HF_TOKEN": "", "no_proxy": "*"}


def test_a_jax_that_does_not_answer_is_ended(monkeypatch):
    monkeypatch.setattr(environment, "_PROGRAM", "import time; time.sleep(600)")
    started = time.perf_counter()
    assert "JAX did not answer in 0.5 seconds" in environment.ask_jax(timeout=0.5)["error"]
    assert time.perf_counter() - started < 30


def test_a_jax_that_fails_gives_its_reason(tmp_path, monkeypatch):
    """The command does not need JAX itself: a broken installation is what it is for."""
    monkeypatch.setenv("JAX_PLATFORMS", "no_such_platform")
    assert "no_such_platform" in environment.ask_jax()["error"]
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("raise ImportError('no jaxlib at https://me:s3cr3t@host')")
    facts = json.loads(_env(tmp_path, "--json", PYTHONPATH=f"{tmp_path}:{ROOT}"))
    assert facts["jax"] == {"error": "JAX cannot be asked for its devices: ImportError: no jaxlib at https://***@host"}


def test_an_accelerator_that_jax_could_not_open_is_named(monkeypatch):
    """JAX falls back to the CPU and says why to its log only. Its process takes no GPU memory and shares no TPU."""
    program = """
import json, os, sys
print("INFO:2026-01-01 00:00:00,000:jax._src.xla_bridge:849: no 'tpu': in use", file=sys.stderr)
names = "XLA_PYTHON_CLIENT_PREALLOCATE", "ALLOW_MULTIPLE_LIBTPU_LOAD", "JAX_LOGGING_LEVEL"
print(json.dumps(["cpu", "a\\nb", [str(os.environ.get(name)) for name in names]]))
"""
    monkeypatch.setattr(environment, "_PROGRAM", program)
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    assert environment.ask_jax() == {
        "backend": "cpu",
        "version": "a b",
        "devices": {"false": 1, "None": 1, "INFO": 1},
        "messages": ["no 'tpu': in use"],
    }
