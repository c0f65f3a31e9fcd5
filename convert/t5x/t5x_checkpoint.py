"""One checkpoint into another: format, dtype, layout of the layers, with or without optimizer state.

What all conversions to a checkpoint share. The folder appears when it is complete.
"""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from tqdm import tqdm

from convert import check, lora_merge, models, streams, t5x_state
from convert.folder import REPORT, choose_out, complete_or_absent, fingerprint, previous
from convert.models import Model
from limba import saved_tensors, scan_layout
from limba.checkpoint_directories import checkpoint_path, find_checkpoint
from limba.saved_tensors import SavedTensor
from limba.storage import AnyPath

NETWORKS = ("t5", "scalable_t5")


@dataclasses.dataclass(frozen=True)
class Source:
    """A checkpoint to convert.

    Attributes:
      path: of the checkpoint.
      tensors: by name, in the layout wanted.
      step: where the run stood.
    """

    path: AnyPath
    tensors: Mapping[str, SavedTensor]
    step: int


def open_source(checkpoint: str | AnyPath, network: str | None = None, with_optimizer: bool = True) -> Source:
    """Opens a checkpoint of Limba or T5X, or the newest one of a run's directory; LoRA adapters are merged.

    Args:
      checkpoint: on this machine or in a bucket.
      network: whose layout the layers get: "t5" (unrolled), "scalable_t5" (scanned), or None as it is.
      with_optimizer: False leaves the optimizer's statistics out.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if it is damaged.
    """
    path = find_checkpoint(checkpoint)
    tensors = lora_merge.merged(saved_tensors.open_tensors(path), path)
    step = int(np.asarray(tensors["state/step"])) if "state/step" in tensors else 0
    if not with_optimizer:
        tensors = without_optimizer(tensors)
    return Source(path, in_layout(tensors, network, path), step)


def without_optimizer(tensors: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
    return {name: t for name, t in tensors.items() if not name.startswith("state/param_states/")}


def in_layout(tensors: Mapping[str, SavedTensor], network: str | None, path: AnyPath) -> dict[str, SavedTensor]:
    """A train state in the layout of a network of T5X; None leaves it as it is. Sorted by name.

    Raises:
      ValueError: naming `path`, if there is no such layout of it.
    """
    if network is not None:
        shapes = scan_layout.shapes_for(tensors, network)
        tensors, _ = scan_layout.convert(tensors, shapes)
        if missing := [name for name in shapes if name not in tensors]:
            raise ValueError(
                f"{path} cannot be a {network}: {missing[0]} cannot be made. Tables of relative positions that differ "
                "from layer to layer, as scalable_t5 trains them, have no place in t5."
            )
    return dict(sorted(tensors.items()))


def write_checkpoint(
    source: Source,
    out: str | Path,
    format_: str,
    dtype: str,
    model: Model | None,
    verify: bool,
    overwrite: bool,
    add_files: Callable[[Path], None] = lambda folder: None,
    files: str = "",
) -> Path:
    """Writes `OUT/checkpoint_<step>`, with a `conversion_report.json`, and returns it.

    Args:
      source: what to write.
      out: a run's directory.
      format_: one of `t5x_state.FORMATS`.
      dtype: of the parameters.
      model: whose logits the checkpoint must give; None if it is of another kind than those that can be run.
      verify: read back, and compare tensors, logits and tokens.
      overwrite: replace another conversion that stands there.
      add_files: puts further files into the folder before it is complete.
      files: all that these depend on.

    Raises:
      ValueError: if something else stands there, or what was written is not the source.
    """
    path = choose_out(str(checkpoint_path(Path(out), source.step)), source.path)
    num_bytes = sum(streams.num_bytes(t) for t in source.tensors.values())
    shapes = repr([(name, t.shape, np.dtype(t.dtype).name) for name, t in source.tensors.items()])
    request = {
        "fingerprint": fingerprint(source.path),
        "tensors": hashlib.sha256(shapes.encode()).hexdigest(),
        "format": format_,
        "dtype": dtype,
        "files": files,
        "checked": verify,
    }
    if previous(path, request, overwrite):
        print(f"{path} is there already.")
        return path
    with complete_or_absent(path, request) as folder:
        with tqdm(total=num_bytes, desc="converting", unit="B", unit_scale=True, file=sys.stderr) as bar:
            t5x_state.write(folder, format_, source.tensors, dtype, bar.update, f"{source.path}: ")
        add_files(folder)
        rows: list[check.Comparison] = []
        if verify:
            written = saved_tensors.open_tensors(folder)
            rows.append(check.compare_states(t5x_state.as_saved(source.tensors, dtype), written))
            if model is not None:
                rows += check.compare(model, models.with_tensors(model, folder, written))
            check.require(rows, "What was written is not the model, nothing was kept")
        report = {
            **request,
            "source": str(source.path),
            "comparisons": {format_: check.as_json(rows)},
        }
        (folder / REPORT).write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    if rows:
        print(check.table(rows))
    return path
