"""transformers' own classes, run in a process of their own.

Their imports take 0.4 GB, which the process frees at its end, and cannot disturb a training or conversion beside it.

    python -m limba.addons.transformers_check.transformers_process DIRECTORY

with request.json, config.json and batch.npz in it.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from limba.addons.transformers_check import torch_forward
from limba.convert.compare import memory, transformers_library
from limba.convert.compare.outputs import Batch
from limba.convert.families import heads
from limba.convert.families.config_files import t5_config
from limba.convert.families.t5_family import T5Family
from limba.convert.model_files import t5_files
from limba.convert.tensors import tensor_parts
from limba.files import json_text, python_path

_REQUEST, _BATCH, _ANSWER = "request.json", "batch.npz", "answer.npz"


def possible(family: T5Family) -> str | None:
    """Why a family's class cannot be used here; None if it can."""
    if not family.in_transformers:
        return f"transformers has no {family.model_class}"
    if not importlib.util.find_spec("torch"):
        return "torch is not installed"
    if not (version := transformers_library.version()):
        return "transformers is not installed"
    has_class = transformers_library.has_model(family.model_type)
    return None if has_class else f"transformers {version} has no {family.model_class}"


def run_t5(
    path: Path, config: Mapping[str, Any], dtype: np.dtype, batch: Batch, request: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Float32 "logits" `[batch, targets_length, vocab]` and greedy "tokens" `[batch, num_tokens]` of a T5.

    Logits of a classifier of tokens are `[batch, inputs_length, labels]`; it has no greedy tokens, and 0 asks for none.

    Args:
      path: a folder of Hugging Face, or a file that a PyTorch training script saved.
      config: the content of its config.json, with what it leaves to defaults: those differ between versions.
      dtype: to which the weights are rounded first.
      batch: as of `convert.compare.forward`.
      request: "format", "safetensors" or "torch", and "num_tokens".

    Raises:
      ValueError: with the last line of what the process said, if it failed.
    """
    return _run(path, dtype, batch, {**request, "has_decoder": True}, config)


def run_encoder(path: Path, dtype: np.dtype, batch: Batch, request: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Float32 logits of the encoder in a folder, which the process loads whole.

    "logits" are `[batch, length, vocab]`, of a classifier `[batch, labels]` or `[batch, length, labels]`. A head for
    sentence pairs has "pair logits" `[batch, 2]`, and one that detects replaced tokens "logits" `[batch, length]`.

    Args:
      path, dtype: as of `run_t5`.
      batch: the arguments of the class, int32 `[batch, length]`.
      request: "head", its kind in `convert.families.heads`, and "config", the folder or file of its configuration.

    Raises:
      ValueError: as `run_t5`.
    """
    return _run(path, dtype, batch, {**request, "has_decoder": False}, {})


def _run(
    path: Path, dtype: np.dtype, batch: Batch, request: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory(prefix="limba-check-") as directory:
        whole = {**request, "path": str(path), "dtype": dtype.name}
        Path(directory, _REQUEST).write_text(json_text.dumps(whole), "utf-8")
        Path(directory, "config.json").write_text(json_text.dumps(dict(config)), "utf-8")
        np.savez(Path(directory, _BATCH), **batch)  # type: ignore[arg-type]
        environment = python_path.with_path({"JAX_PLATFORMS": "cpu"})
        command = [sys.executable, "-m", "limba.addons.transformers_check.transformers_process", directory]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ValueError(f"{path} does not run in transformers: {said[-1]}")
        with np.load(Path(directory, _ANSWER)) as computed:
            return dict(computed)


def main(directory: str) -> None:
    """Runs in the new process."""
    request = json.loads(Path(directory, _REQUEST).read_text("utf-8"))
    with np.load(Path(directory, _BATCH)) as content:
        batch = dict(content)
    answer = (_t5 if request["has_decoder"] else _encoder)(Path(directory), request, batch)
    np.savez(Path(directory, _ANSWER), **answer)  # type: ignore[arg-type]


def _t5(directory: Path, request: Mapping[str, Any], batch: Batch) -> dict[str, np.ndarray]:
    memory.return_freed_memory()
    path = Path(request["path"])
    config_file = directory / "config.json"
    stored = t5_files.read_files(path, config_file, t5_config.read(config_file), request["format"]).folder.stored
    dtype = jnp.dtype(request["dtype"])
    tensors = {name: tensor_parts.cast(t, dtype, f"{path}: {name}") for name, t in stored.items()}
    answer = {"logits": torch_forward.logits(directory, tensors, batch)}
    if num_tokens := request["num_tokens"]:
        answer["tokens"] = torch_forward.greedy(directory, tensors, batch["encoder_input_tokens"], num_tokens)
    return answer


def _encoder(directory: Path, request: Mapping[str, Any], batch: Batch) -> dict[str, np.ndarray]:
    import torch

    transformers = transformers_library.load()
    model, loading = getattr(transformers, f"AutoModelFor{heads.ending(request['head'])}").from_pretrained(
        request["path"],
        config=transformers.AutoConfig.from_pretrained(request["config"], **transformers_library.NO_CODE),
        dtype=torch.float32,
        output_loading_info=True,
        attn_implementation="eager",
        **transformers_library.NO_CODE,
    )
    lost = {kind: sorted(map(str, loading.get(kind) or ())) for kind in ("missing_keys", "mismatched_keys")}
    # RoFormer computes its sines itself.
    lost["missing_keys"] = [name for name in lost["missing_keys"] if "embed_positions" not in name]
    if any(lost.values()):
        raise ValueError(f"{type(model).__name__} does not find its tensors: {json_text.dumps(lost)[:300]}")
    with torch.inference_mode():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(parameter.to(getattr(torch, request["dtype"])))
        found = model.eval()(**{name: torch.tensor(array, dtype=torch.long) for name, array in batch.items()})
        if request["head"] != heads.PAIRS:
            return {"logits": found.logits.numpy()}
        return {"logits": found.prediction_logits.numpy(), "pair logits": found.seq_relationship_logits.numpy()}


if __name__ == "__main__":
    main(*sys.argv[1:])
