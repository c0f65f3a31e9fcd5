"""`limba env`: what a bug report needs to know of this machine, without its secrets.

JAX is asked for its devices in a process of its own, which is ended after a minute. `--no-devices` does not ask.
"""

import collections
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.files import json_text, named_flags
from limba.files.repository import REPOSITORY
from limba.workers import code_versions

# Beginnings of the names of variables that change what Limba, JAX, TensorFlow and the launchers do.
_PREFIXES = (
    *("JAX_", "XLA_", "LIMBA_", "HF_", "TPU_", "CUDA_", "LIBTPU", "TF_", "T5X_", "NCCL_", "NVIDIA_", "MEGASCALE_"),
    *("PYTHON", "LD_", "OMP_", "TFDS_", "TRANSFORMERS_", "WANDB_", "GOOGLE_", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS"),
    *("SLURM_PROCID", "VIRTUAL_ENV", "ALLOW_MULTIPLE_LIBTPU_LOAD", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
_SECRET = r"token|key|secret|passw|passphrase|credential|auth|cookie"
_PROGRAM = """
import json, jax
from jax.extend import backend
kinds = [device.device_kind for device in jax.local_devices()]
print(json.dumps([jax.default_backend(), backend.get_backend().platform_version, kinds]))
"""


def main(argv: Sequence[str]) -> int:
    """Prints the environment as text, or as JSON."""
    about = "Versions, devices, machine and environment variables, for a bug report."
    parser = named_flags.Parser(prog="limba env", description=about)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--no-devices", action="store_true", help="do not start JAX to ask for its devices")
    flags = parser.parse_args(argv)
    facts = machine_facts() | {"environment": variables(os.environ)}
    if not flags.no_devices:
        facts["jax"] = ask_jax()
    print(json_text.dumps(facts, indent=2) if flags.json else _text(facts))
    return 0


def machine_facts() -> dict[str, Any]:
    """Versions of code and packages, and the size of the machine in bytes and CPUs."""
    return {
        "limba": {
            "commits": code_versions.commits(),
            "sources": code_versions.sources(),
            "folder": str(REPOSITORY),
        },
        "python": sys.executable,
        "system": platform.platform(),
        "machine": {
            "cpus": os.cpu_count(),
            "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "available_memory": _available_memory(),
            "working_directory": str(Path.cwd()),
            "free_disk": shutil.disk_usage(Path.cwd()).free,
        },
        "packages": code_versions.packages("transformers", "torch"),
    }


def _available_memory() -> int | None:
    """Bytes that new processes can have without swapping, as Linux estimates them; None elsewhere."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def ask_jax(timeout: float = 60) -> dict[str, Any]:
    """JAX's backend, its version, `devices` (a count by kind) and its messages; or `error`, why there is no answer.

    A TPU that a training holds is not taken from it: libtpu then refuses the new process. On a GPU the process takes
    the few hundred MB of a CUDA context, and only until it ends.
    """
    # Only as information does JAX say which accelerator it could not open before it fell back to the CPU.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_LOGGING_LEVEL": "INFO"}
    environment.pop("ALLOW_MULTIPLE_LIBTPU_LOAD", None)  # It switches that refusal off.
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()  # Without waiting: a driver that hangs can keep even a killed process.
        return {
            "error": f"JAX did not answer in {timeout:g} seconds. On a pod it waits for the other workers: "
            "run `limba env` on all of them at once, or set JAX_PLATFORMS=cpu."
        }
    if process.returncode:
        reason = (err.strip().splitlines() or [f"its process ended with {process.returncode}"])[-1]
        return {"error": f"JAX cannot be asked for its devices: {without_secrets(reason)}"}
    backend, version, kinds = json.loads(out.splitlines()[-1])
    return {
        "backend": backend,
        "version": " ".join(version.split()),
        "devices": dict(collections.Counter(kinds)),
        "messages": [without_secrets(message) for message in re.findall(r"jax\._src\.xla_bridge:\d+: (.*)", err)],
    }


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that matter, by name and without secrets: a secret's value is "(set)"."""
    found = {}
    for name, value in sorted(environ.items()):
        if name.upper().startswith(_PREFIXES):
            found[name] = "(set)" if value and re.search(_SECRET, name, re.I) else without_secrets(value)
    return found


def without_secrets(text: str) -> str:
    """Puts `***` for user:password in URLs and proxies, query strings, and all that follows a `token=` or the like.

    It rather removes too much than too little.
    """
    text = re.sub(r"(\w://).*@", r"\1***@", text, flags=re.DOTALL)
    text = re.sub(r"(?<![^\s,;=\"'])[^\s/:@]+:(?!//)\S*@", "***@", text)
    text = re.sub(r"[?]\S+|(?<=://)([^\s#]+)#\S+", lambda found: f"{found[1] or ''}?***", text)
    text = re.sub(rf"((?:{_SECRET})\w*[\"']?(?:[=\s]|:(?!/))\s*).+", r"\1***", text, flags=re.DOTALL | re.I)
    # Tokens of Hugging Face, GitHub and GitLab, OpenAI, Slack.
    return re.sub(r"\b(hf|gh[a-z]|github_pat|glpat|sk|xox[a-z])[_-][\w-]{16,}", "***", text)


def _text(facts: Mapping[str, Any]) -> str:
    code, packages, machine, jax = facts["limba"], facts["packages"], facts["machine"], facts.get("jax")
    commits = ", ".join(f"commit of {name} {commit}" for name, commit in code["commits"].items()) or "in no checkout"
    memory = f"{_gigabytes(machine['memory'])} of memory"
    if machine["available_memory"] is not None:
        memory += f" ({_gigabytes(machine['available_memory'])} available)"
    lines = [
        f"Limba    {packages['limba']}, {commits}, CRC of the sources {code['sources']}, in {code['folder']}",
        f"Python   {packages['Python']}, {facts['python']}",
        f"System   {facts['system']}",
        f"Machine  {machine['usable_cpus']} of {machine['cpus']} CPUs, {memory}",
        f"Disk     {_gigabytes(machine['free_disk'])} free in {machine['working_directory']}",
    ]
    if jax is None:
        lines.append("Devices  not asked for (--no-devices)")
    elif "error" in jax:
        lines.append(f"Devices  {jax['error']}")
    else:
        devices = ", ".join(f"{count} x {kind}" for kind, count in jax["devices"].items())
        lines.append(f"Devices  {devices}; JAX's backend {jax['backend']}, version {jax['version']}")
        lines += [f"         JAX: {message}" for message in jax["messages"]]
    for title in ("packages", "environment"):
        lines += ["", f"{title.capitalize()}:", *(f"  {name}={value}" for name, value in facts[title].items())]
    return "\n".join(lines)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
