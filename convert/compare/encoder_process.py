"""transformers' encoders with their heads, run in a process of their own.

python -m convert.compare.encoder_process FOLDER DTYPE HEAD DIRECTORY    (with batch.npz)
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from convert.compare import transformers_library
from limba.machine import json_text

_BATCH, _ANSWER = "batch.npz", "answer.npz"


def logits(folder: Path, dtype: np.dtype, head: str, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Float32 logits of a folder's model, which the process loads whole.

    "logits" are `[batch, length, vocab]`, of a classifier `[batch, labels]` or `[batch, length, labels]`. A head for
    sentence pairs has "pair logits" `[batch, 2]`.

    Args:
      folder: of Hugging Face, with weights for PyTorch.
      dtype: to which these are rounded first.
      head: the ending of the class, "MaskedLM".
      batch: the arguments of the model, int32 `[batch, length]`.

    Raises:
      ValueError: with the last line of what the process said, if it failed.
    """
    with tempfile.TemporaryDirectory(prefix="limba-check-") as directory:
        np.savez(Path(directory, _BATCH), **batch)  # type: ignore[arg-type]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "convert.compare.encoder_process", str(folder), dtype.name, head, directory]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ValueError(f"{folder} does not run in transformers: {said[-1]}")
        with np.load(Path(directory, _ANSWER)) as computed:
            return dict(computed)


def main(folder: str, dtype: str, head: str, directory: str) -> None:
    """Runs in the new process."""
    import torch

    transformers = transformers_library.load()
    model, loading = getattr(transformers, f"AutoModelFor{head}").from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, attn_implementation="eager"
    )
    lost = {kind: sorted(map(str, loading.get(kind) or ())) for kind in ("missing_keys", "mismatched_keys")}
    # RoFormer computes its sines itself.
    lost["missing_keys"] = [name for name in lost["missing_keys"] if "embed_positions" not in name]
    if any(lost.values()):
        raise ValueError(f"{type(model).__name__} does not find its tensors: {json_text.dumps(lost)[:300]}")
    with torch.inference_mode():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter.to(getattr(torch, dtype)))
        with np.load(Path(directory, _BATCH)) as content:
            batch = {name: torch.tensor(array, dtype=torch.long) for name, array in content.items()}
        found = model.eval()(**batch)
        if head == "PreTraining":
            outputs = {"logits": found.prediction_logits, "pair logits": found.seq_relationship_logits}
        else:
            outputs = {"logits": found.logits}
        np.savez(Path(directory, _ANSWER), **{name: x.numpy() for name, x in outputs.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
