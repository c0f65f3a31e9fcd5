"""A model that a command has changed, written as what it was: a Hugging Face folder, or a run."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from limba.checkpoint_files import saved_tensors
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert import to_hf
from limba.convert.model_files.hf import hf_folder
from limba.convert.model_files.model import Model
from limba.convert.t5x import limba_run
from limba.files.output_folder import choose_out, complete_or_absent


def choose_empty(out: str, source: Path) -> Path:
    """OUT. Raises ValueError if something is there; the hidden folders that a killed command left do not count."""
    folder = choose_out(out, source)
    if folder.exists() and any(not _was_left(file) for file in folder.iterdir()):
        raise ValueError(f"{folder} is not empty; choose another OUT, or remove it.")
    return folder


def _was_left(file: Path) -> bool:
    """`limba infer` keeps answers in FILE.unfinished: those are the user's."""
    return file.name.startswith(".") and file.name.endswith(".unfinished") and file.is_dir()


def write(model: Model, source: Path, out: Path, name: str, record: dict[str, Any], verify: bool) -> Path:
    """Writes what SOURCE is, with the record of that name beside it, and returns the folder or the checkpoint.

    Raises:
      ValueError: if what was written reads back differently, and it was to be verified.
    """
    return (_write_folder if hf_folder.is_folder(source) else _write_run)(model, out, name, record, verify)


def _write_folder(model: Model, out: Path, name: str, record: dict[str, Any], verify: bool) -> Path:
    """A Hugging Face folder, with weights of the dtype that they have."""
    export = to_hf.export_of(model)
    for warning in export.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    with complete_or_absent(out, record) as folder:
        to_hf.write_files(folder, export, ("safetensors",), model.dtype.name, int(to_hf.SHARD_GB * 1e9))
        if verify:
            to_hf.check_files(folder, export, ("safetensors",))
        to_hf.write_json(folder / name, record)
    return out


def _write_run(model: Model, out: Path, name: str, record: dict[str, Any], verify: bool) -> Path:
    """A run with a checkpoint of the same step. Optimizers begin again: their state is of another loss and network."""
    tensors: dict[str, SavedTensor] = {f"target/{name}": tensor for name, tensor in model.tensors.items()}
    tensors["state/step"] = saved_tensors.from_array(np.int32(model.step))
    network = "scalable_t5" if model.info.get("network", {}).get("scan_layers") else None
    checkpoint = limba_run.write_run(model, tensors, network, out, verify, overwrite=False)
    to_hf.write_json(out / name, record)
    return checkpoint
