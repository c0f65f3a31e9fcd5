"""transformers' own classes, run in a process of their own.

What they import takes 0.4 GB, which the process gives back when it ends; and nothing of it disturbs a training or a
conversion that goes on.

    python -m convert.transformers_process FOLDER FORMAT DTYPE DIRECTORY      which has config.json and batch.npz
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from convert import flax_forward, hf_folder, memory, streams, torch_forward

_BATCH, _ANSWER = "batch.npz", "answer.npz"
_NUM_TOKENS = "num_tokens"


def logits_and_tokens(
    folder: Path,
    config: Mapping[str, Any],
    format_: str,
    dtype: np.dtype,
    batch: Mapping[str, np.ndarray],
    num_tokens: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Float32 logits `[batch, targets_length, vocab]` and greedy tokens `[batch, num_tokens]` of a folder's model.

    Args:
      folder: of Hugging Face.
      config: the content of its config.json, with what it leaves to defaults: those differ between versions.
      format_: of the weights to read, "safetensors" or "torch" (for the PyTorch class), "flax" (for the Flax class).
      dtype: to which the weights are rounded first.
      batch: as of `convert.forward.logits`.
      num_tokens: greedy tokens for each row of inputs.

    Raises:
      ValueError: with the last line of what the process said, if it failed.
    """
    with tempfile.TemporaryDirectory(prefix="limba-check-") as directory:
        np.savez(Path(directory, _BATCH), **batch, **{_NUM_TOKENS: np.int32(num_tokens)})  # type: ignore[arg-type]
        Path(directory, "config.json").write_text(json.dumps(dict(config)), "utf-8")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "convert.transformers_process", str(folder), format_, dtype.name, directory]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ValueError(f"{folder} does not run in transformers: {said[-1]}")
        with np.load(Path(directory, _ANSWER)) as computed:
            return computed["logits"], computed["tokens"]


def main(folder: str, format_: str, dtype: str, directory: str) -> None:
    """What the process does."""
    memory.give_back_at_once()
    path = Path(folder)
    stored = hf_folder.open_folder(path, format_).stored
    tensors = {name: streams.cast(t, jnp.dtype(dtype), f"{path}: {name}") for name, t in stored.items()}
    with np.load(Path(directory, _BATCH)) as content:
        batch = dict(content)
    num_tokens = int(batch.pop(_NUM_TOKENS))
    implementation = flax_forward if format_ == "flax" else torch_forward
    logits = implementation.logits(Path(directory), tensors, batch)
    tokens = implementation.greedy(Path(directory), tensors, batch["encoder_input_tokens"], num_tokens)
    np.savez(Path(directory, _ANSWER), logits=logits, tokens=tokens)


if __name__ == "__main__":
    main(*sys.argv[1:])
