"""The proof that an export is the model: tensors bit for bit, logits through other people's arithmetic.

Everything is read back from the written files. Reading them through the table of names that wrote them would repeat
its mistakes, so the logits are also computed from the files alone, in NumPy and, where installed, in PyTorch.
"""

import dataclasses
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convert import hf_weights, names, numpy_t5
from limba.network import T5Config, Transformer

# Two float32 implementations of one model differ by less: about 1e-5 for a random T5 of base size. Rounding grows with
# the logits, so where the largest is above 10, 1e-5 of it is allowed.
TOLERANCE = 1e-4
RELATIVE_TOLERANCE = 1e-5

_INPUTS_LENGTH, _TARGETS_LENGTH = 48, 24


def check_export(
    folder: Path, formats: Sequence[str], config: T5Config, params: Mapping[str, np.ndarray], dtype: str
) -> dict[str, float]:
    """Compares the files in `folder` with the checkpoint's unrolled parameters.

    Returns:
      The largest difference between Limba's logits and those of each export, by what was compared.

    Raises:
      ValueError: if a tensor is not the checkpoint's in `dtype`, or logits differ by more than the tolerance.
    """
    batch = check_batch(config.vocab_size)
    hf_config = json.loads((folder / "config.json").read_text("utf-8"))
    ours = limba_logits(config, {name: x.astype(dtype, copy=False) for name, x in params.items()}, batch)
    differences = {}
    for format_ in formats:
        if format_ == "safetensors":
            file = hf_weights.SAFETENSORS
            tensors: Mapping[str, np.ndarray] = hf_weights.Safetensors(folder / file)
            weights: numpy_t5.Weights = numpy_t5.TorchWeights(tensors)
            stored = {t.limba: t.torch for t in names.table(config)}
        else:
            file = hf_weights.FLAX
            tensors = hf_weights.read_flax(folder / file)
            weights = numpy_t5.FlaxWeights(tensors)
            stored = {t.limba: t.flax for t in names.table(config)}
        exported = _same_tensors(file, tensors, stored, params, dtype)
        theirs = limba_logits(config, exported, batch)
        differences[f"limba vs export (Limba, from {file})"] = _largest_difference(ours, theirs)
        theirs = numpy_t5.logits(weights, hf_config, batch["encoder_input_tokens"], batch["decoder_input_tokens"])
        differences[f"limba vs export (NumPy, from {file})"] = _largest_difference(ours, theirs)
    if "safetensors" in formats and importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        differences["limba vs export (PyTorch)"] = _largest_difference(ours, _torch_logits(folder, batch))
    allowed = max(TOLERANCE, RELATIVE_TOLERANCE * float(np.max(np.abs(ours))))
    wrong = [f"{what}: {difference:.2e}" for what, difference in differences.items() if not difference <= allowed]
    if wrong:
        raise ValueError(
            f"The export does not compute what the checkpoint does; largest logits difference {'; '.join(wrong)}, "
            f"allowed {allowed:.0e}. Nothing was kept."
        )
    return differences


def check_batch(vocab_size: int) -> dict[str, np.ndarray]:
    """A fixed batch of two rows, the second with padded inputs; features are int32 `[2, length]`."""
    rng = np.random.default_rng(0)
    inputs = rng.integers(min(3, vocab_size - 1), vocab_size, (2, _INPUTS_LENGTH), np.int32)
    inputs[1, _INPUTS_LENGTH // 2 :] = 0
    targets = rng.integers(min(3, vocab_size - 1), vocab_size, (2, _TARGETS_LENGTH), np.int32)
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": targets,
    }


def limba_logits(config: T5Config, params: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Float32 logits of Limba's network with unrolled parameters."""
    network = Transformer(dataclasses.replace(config, dtype=jnp.float32))
    tree = names.roll({name: x.astype(np.float32, copy=False) for name, x in params.items()}, config)
    # Accelerators would multiply float32 matrices in fewer bits.
    with jax.default_matmul_precision("highest"):
        return np.asarray(
            jax.jit(lambda p, b: network.apply({"params": p}, **b, enable_dropout=False))(tree, dict(batch))
        )


def _same_tensors(
    file: str,
    tensors: Mapping[str, np.ndarray],
    stored: Mapping[str, names.Stored],
    params: Mapping[str, np.ndarray],
    dtype: str,
) -> dict[str, np.ndarray]:
    """The file's tensors under Limba's names, after comparing each with the checkpoint's."""
    shapes = {name: tensors[name].shape for name in tensors}
    names.verify(file, shapes, {s.name: s.shape for s in stored.values()})
    exported = {}
    for name, s in stored.items():
        exported[name] = s.orient(tensors[s.name])
        if _bits(exported[name]) != _bits(params[name].astype(dtype, copy=False)):
            raise ValueError(f"{file}: {s.name} is not the checkpoint's {name} in {dtype}. Nothing was kept.")
    return exported


def _bits(array: np.ndarray) -> tuple[Any, bytes]:
    return array.dtype, array.tobytes()


def _torch_logits(folder: Path, batch: Mapping[str, np.ndarray]) -> np.ndarray:
    os.environ.setdefault("USE_TF", "0")  # transformers 4 would import TensorFlow, for nothing.
    import torch
    import transformers

    model = transformers.T5ForConditionalGeneration.from_pretrained(folder).float().eval()
    inputs = torch.from_numpy(batch["encoder_input_tokens"]).long()
    with torch.no_grad():
        output = model(
            input_ids=inputs,
            attention_mask=(inputs != 0).long(),
            decoder_input_ids=torch.from_numpy(batch["decoder_input_tokens"]).long(),
        )
    return output.logits.numpy()


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.max(np.abs(a - b)))
