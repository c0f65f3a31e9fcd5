"""A folder written again with changes, and the proof that its numbers are those of the other one."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from limba.addons.repair import embedding_findings, looking
from limba.addons.repair.findings import Change, Line
from limba.addons.repair.hub_folder import HubFolder
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert import to_hf
from limba.convert.compare import comparison
from limba.convert.compare.comparison_rows import Comparison, require
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import stray_weights
from limba.convert.model_files.model import ModelHints
from limba.convert.tensors import safetensors_files, tensor_parts, weight_files
from limba.convert.tensors.table import verify
from limba.files import untrusted_files
from limba.files.output_folder import REPORT, complete_or_absent, fingerprint

RECORD = "repair.json"


def write(
    folder: HubFolder, wrong: Sequence[Line], out: Path, leave: Sequence[str], hints: ModelHints
) -> list[Comparison]:
    """Writes OUT with the changes of findings, looks at it, and returns the proof.

    Raises:
      ValueError: if it is not right; nothing is kept then.
    """
    changes = [line.change for line in wrong if line.change is not None]
    files = {name: dict(content) for name, content in folder.files.items()}
    tensors = dict(folder.tensors)
    for change in changes:
        tensors = embedding_findings.renamed(tensors, change)
        for name, keys in change.settings.items():
            files[name] = {k: v for k, v in {**files[name], **keys}.items() if v is not None or k not in keys}
    described = {line.code: [*line.change.described(folder.files)] for line in wrong if line.change is not None}
    record = {"source": str(folder.path), "fingerprint": fingerprint(folder.path), "changes": described}
    with complete_or_absent(out, record) as place:
        _write_weights(folder, changes, tensors, place)
        changed = {name for change in changes for name in change.settings}
        for name in changed:
            to_hf.write_json(place / name, files[name])
        for source in _others(folder.path):
            if source.name not in changed:
                shutil.copyfile(source, place / source.name)
        proof = [_compare_tensors(tensors, place), *_look(place, leave, hints)]
        require(proof, "What was written is not the model, and nothing was kept")
        to_hf.write_json(place / RECORD, record)
    return proof


def _write_weights(
    folder: HubFolder, changes: Sequence[Change], tensors: Mapping[str, SavedTensor], place: Path
) -> None:
    """The weights: as the files are, or in safetensors where names change."""
    if any(change.is_of_tensors for change in changes):
        if folder.format == "flax":
            raise ValueError(f"{folder.path} has weights of Flax alone, whose names are not changed.")
        for file in weight_files.find(folder.path, folder.format)[1]:
            untrusted_files.check_stays(file)
        num_bytes = sum(map(tensor_parts.num_bytes, tensors.values()))
        with tqdm(total=num_bytes, desc="writing", unit="B", unit_scale=True, disable=None) as bar:
            safetensors_files.write(place, tensors, bar.update, int(to_hf.SHARD_GB * 1e9))
        return
    names = [file.name for file in folder.path.iterdir()]
    left_out = {format_ for change in changes for format_ in change.left_out}
    for format_ in weight_files.formats(names):
        if format_ not in left_out:
            index = weight_files.index_name(weight_files.FILES[format_])
            for name in [*weight_files.of_format(names, format_), *([index] if index in names else [])]:
                untrusted_files.check_stays(folder.path / name)
                shutil.copyfile(folder.path / name, place / name)


def _others(path: Path) -> list[Path]:
    """The files beside the weights: not those of programs that read other weights, and not Limba's report."""
    files = [file for file in sorted(path.iterdir()) if file.is_file() and not file.name.startswith(".")]
    indices = {weight_files.index_name(name) for name in weight_files.FILES.values()}
    weights = {*stray_weights.named([file.name for file in files]), *indices, REPORT, RECORD}
    kept = [file for file in files if file.name not in weights]
    for file in kept:
        untrusted_files.check_stays(file)
    return kept


def _compare_tensors(wanted: Mapping[str, SavedTensor], place: Path) -> Comparison:
    """How many tensors of the folder are not, bit for bit, those of the source."""
    found = weight_files.open_tensors(place)
    verify("What was written", {n: t.shape for n, t in found.items()}, {n: t.shape for n, t in wanted.items()})
    differ = [name for name, tensor in wanted.items() if not _is_same(tensor, found[name])]
    return Comparison("tensors that differ", len(differ), 0, f"of {len(wanted)}, bit for bit")


def _is_same(a: SavedTensor, b: SavedTensor) -> bool:
    parts = zip(tensor_parts.blocks(a), tensor_parts.blocks(b), strict=True)
    return a.dtype == b.dtype and all(x.tobytes() == y.tobytes() for x, y in parts)


def _look(place: Path, leave: Sequence[str], hints: ModelHints) -> list[Comparison]:
    """What is still wrong, and the logits: in Limba, in NumPy and, where it is installed, in transformers."""
    _, lines = looking.look(place, hints)
    wrong = [line for line in lines if line.is_right is False and line.code not in leave]
    note = "; ".join(f"{line.code}: {line.found}" for line in wrong)
    rows = [Comparison("findings", len(wrong), 0, note or f"of {len(lines)} that were looked for")]
    unread = [line for line in lines if line.code == "tensors" and not line.is_right]
    if wrong or unread:
        rows.append(Comparison("logits", None, 0, f"not compared: {'; '.join(line.found for line in unread) or note}"))
        return rows
    model = any_format.open_model(place, hints)
    return rows + [row for row in comparison.compare(model, model) if "B in " in row.what]
