"""One checkpoint into another: format, dtype, layout of the layers, with or without optimizer state.

Shared by all conversions to a checkpoint. The folder appears when it is complete.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from tqdm import tqdm

from limba.checkpoint_files import layer_layouts, saved_average, saved_tensors, state_checksums
from limba.checkpoint_files.directories import checkpoint_path, find_checkpoint
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare import comparison_rows
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files import lora_merge
from limba.convert.t5x import t5x_state
from limba.convert.tensors import tensor_parts
from limba.files import json_text, written_files
from limba.files.output_folder import REPORT, choose_out, complete_or_absent, fingerprint, previous
from limba.files.storage import AnyPath

NETWORKS = ("t5", "scalable_t5")

Compare = Callable[[Path, Mapping[str, SavedTensor]], list[Comparison]]


@dataclasses.dataclass(frozen=True)
class SourceCheckpoint:
    """A checkpoint to convert: its tensors by name, in the layout wanted, and the step of training."""

    path: AnyPath
    tensors: Mapping[str, SavedTensor]
    step: int


def open_source(checkpoint: str | AnyPath, network: str | None = None, with_optimizer: bool = True) -> SourceCheckpoint:
    """Opens a checkpoint of Limba or T5X, or the newest one of a run's directory; LoRA adapters are merged.

    An average of the parameters is left out: T5X has no place for it.

    Args:
      network: whose layout the layers get: "t5" (unrolled), "scalable_t5" (scanned), or None as it is.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if it is damaged.
    """
    path = find_checkpoint(checkpoint)
    tensors = lora_merge.merged(saved_average.without(state_checksums.open_tensors(path)), path)
    step = int(np.asarray(tensors["state/step"])) if "state/step" in tensors else 0
    if not with_optimizer:
        tensors = without_optimizer(tensors)
    return SourceCheckpoint(path, in_layout(tensors, network, path), step)


def without_optimizer(tensors: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
    return {name: t for name, t in tensors.items() if not name.startswith("state/param_states/")}


def in_layout(tensors: Mapping[str, SavedTensor], network: str | None, path: AnyPath) -> dict[str, SavedTensor]:
    """A train state in the layout of a network of T5X; None leaves it as it is. Sorted by name.

    Raises:
      ValueError: naming `path`, if there is no such layout of it.
    """
    if network is not None:
        shapes = layer_layouts.shapes_for(tensors, network)
        tensors, _ = layer_layouts.convert(tensors, shapes)
        if missing := [name for name in shapes if name not in tensors]:
            raise ValueError(
                f"{path} cannot be a {network}: {missing[0]} cannot be made. t5 has one table of relative positions "
                "for all layers; those that scalable_t5 trains differ from layer to layer."
            )
    return dict(sorted(tensors.items()))


def write_checkpoint(
    source: SourceCheckpoint,
    out: str | Path,
    format_: str,
    dtype: str,
    compare: Compare | None,
    verify: bool,
    overwrite: bool,
    add_files: Callable[[Path], None] = lambda folder: None,
    files: str = "",
) -> Path:
    """Writes `OUT/checkpoint_<step>`, with a `conversion_report.json`, and returns it.

    Args:
      source, out: what to write, and the run's directory that gets it.
      format_: one of `t5x_state.FORMATS`.
      dtype: of the parameters.
      compare: gives the differences between the source and the model in a folder with these tensors; None if it is of a
        kind that cannot be run.
      verify: read back, and compare tensors, logits and tokens.
      overwrite: replace another conversion.
      add_files: puts further files into the folder before it is complete.
      files: all that these depend on.

    Raises:
      ValueError: if the folder is in use or a link, or the files written are not the source.
    """
    path = Path(checkpoint_path(choose_out(out), source.step))
    written_files.refuse_link(path)
    path = choose_out(path, source.path)
    num_bytes = sum(tensor_parts.num_bytes(t) for t in source.tensors.values())
    shapes = repr([(name, t.shape, np.dtype(t.dtype).name) for name, t in source.tensors.items()])
    request = {
        "fingerprint": fingerprint(source.path),
        "tensors": hashlib.sha256(shapes.encode()).hexdigest(),
        "format": format_,
        "dtype": dtype,
        "added_files": files,
        "checked": verify,
    }
    if previous(path, request, overwrite):
        print(f"{path} is there already.")
        return path
    with complete_or_absent(path, request) as folder:
        with tqdm(total=num_bytes, desc="converting", unit="B", unit_scale=True, disable=None) as bar:
            t5x_state.write(folder, format_, source.tensors, dtype, bar.update, f"{source.path}: ")
        add_files(folder)
        rows: list[Comparison] = []
        if verify:
            written = saved_tensors.open_tensors(folder)
            rows.append(comparison_rows.compare_states(t5x_state.as_saved(source.tensors, dtype), written))
            if compare is not None:
                rows += compare(folder, written)
            comparison_rows.require(rows, "What was written is not the model, nothing was kept")
        report = {**request, "source": str(source.path), "comparisons": {format_: comparison_rows.as_json(rows)}}
        (folder / REPORT).write_text(json_text.dumps(report, indent=2) + "\n", "utf-8")
    if rows:
        print(comparison_rows.table(rows))
    return path
