"""transformers' own classes, run in a process of their own.

Their imports take 0.4 GB, which the process frees at its end, and cannot disturb a training or conversion beside it.

    python -m convert.compare.transformers_process FOLDER FORMAT DTYPE DIRECTORY    (with config.json and batch.npz)
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from convert.compare import memory, torch_forward
from convert.hf import hf_folder
from convert.tensors import tensor_parts
from limba.machine import json_text

_BATCH, _ANSWER = "batch.npz", "answer.npz"
_NUM_TOKENS = "num_tokens"


def logits_and_tokens(
    folder: Path,
    config: Mapping[str, Any],
    format_: str,
    dtype: np.dtype,
    batch: Mapping[str, np.ndarray],
    num_tokens: int,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Float32 logits `[batch, targets_length, vocab]` and greedy tokens `[batch, num_tokens]` of a folder's model.

    Those of a classifier of tokens are `[batch, inputs_length, labels]`; it has no greedy tokens, and 0 asks for none.

    Args:
      folder: of Hugging Face; or a file that a PyTorch training script saved.
      config: the content of its config.json, with what it leaves to defaults: those differ between versions.
      format_, dtype: of the weights to read, "safetensors" or "torch", and to which they are rounded first.
      batch, num_tokens: as of `convert.compare.forward`.

    Raises:
      ValueError: with the last line of what the process said, if it failed.
    """
    with tempfile.TemporaryDirectory(prefix="limba-check-") as directory:
        np.savez(Path(directory, _BATCH), **batch, **{_NUM_TOKENS: np.int32(num_tokens)})  # type: ignore[arg-type]
        Path(directory, "config.json").write_text(json_text.dumps(dict(config)), "utf-8")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "convert.compare.transformers_process"]
        arguments = [str(folder), format_, dtype.name, directory]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ValueError(f"{folder} does not run in transformers: {said[-1]}")
        with np.load(Path(directory, _ANSWER)) as computed:
            return computed["logits"], computed.get("tokens")


def main(folder: str, format_: str, dtype: str, directory: str) -> None:
    """Runs in the new process."""
    memory.return_freed_memory()
    path = Path(folder)
    config_file = Path(directory, "config.json")
    if path.is_file():
        stored = hf_folder.open_weights(path, config_file).stored
    else:
        stored = hf_folder.open_folder(path, format_, config_file).stored
    tensors = {name: tensor_parts.cast(t, jnp.dtype(dtype), f"{path}: {name}") for name, t in stored.items()}
    with np.load(Path(directory, _BATCH)) as content:
        batch = dict(content)
    num_tokens = int(batch.pop(_NUM_TOKENS))
    answer = {"logits": torch_forward.logits(Path(directory), tensors, batch)}
    if num_tokens:
        answer["tokens"] = torch_forward.greedy(Path(directory), tensors, batch["encoder_input_tokens"], num_tokens)
    np.savez(Path(directory, _ANSWER), **answer)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
