"""One checkpoint into another: format, dtype, layout of the layers, with or without optimizer state.

What all conversions to a checkpoint share. The folder appears when it is complete.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from tqdm import tqdm

from convert import streams, t5x_state
from convert.folder import complete_or_absent, fingerprint
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
    """Opens a checkpoint of Limba or T5X, or the newest one of a run's directory.

    Args:
      checkpoint: on this machine or in a bucket.
      network: whose layout the layers get: "t5" (unrolled), "scalable_t5" (scanned), or None as it is.
      with_optimizer: False leaves the optimizer's statistics out.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if it is damaged.
    """
    path = find_checkpoint(checkpoint)
    tensors: Mapping[str, SavedTensor] = saved_tensors.open_tensors(path)
    if network is not None:
        shapes = scan_layout.shapes_for(tensors, network)
        tensors, _ = scan_layout.convert(tensors, shapes)
        if missing := [name for name in shapes if name not in tensors]:
            raise ValueError(
                f"{path} cannot be a {network}: {missing[0]} cannot be made. Tables of relative positions that differ "
                "from layer to layer, as scalable_t5 trains them, have no place in t5."
            )
    step = int(np.asarray(tensors["state/step"])) if "state/step" in tensors else 0
    if not with_optimizer:
        tensors = {name: t for name, t in tensors.items() if not name.startswith("state/param_states/")}
    return Source(path, dict(sorted(tensors.items())), step)


def write_checkpoint(
    source: Source,
    out: str | Path,
    format_: str,
    dtype: str,
    overwrite: bool,
    add_files: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Writes `OUT/checkpoint_<step>` and returns it.

    Args:
      source: what to write.
      out: a run's directory.
      format_: one of `t5x_state.FORMATS`.
      dtype: of the parameters.
      overwrite: replace a checkpoint that stands there.
      add_files: puts further files into the folder before it is complete; it checks the checkpoint, too.

    Raises:
      ValueError: if there is one and `overwrite` is False.
    """
    path = Path(checkpoint_path(Path(out), source.step))
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists; choose another OUT or give --overwrite.")
    num_bytes = sum(streams.num_bytes(t) for t in source.tensors.values())
    request = {"fingerprint": fingerprint(source.path), "format": format_, "dtype": dtype, "tensors": num_bytes}
    with (
        complete_or_absent(path, request) as folder,
        tqdm(total=num_bytes, desc="converting", unit="B", unit_scale=True, file=sys.stderr) as bar,
    ):
        t5x_state.write(folder, format_, source.tensors, dtype, bar.update)
        add_files(folder)
    return path
