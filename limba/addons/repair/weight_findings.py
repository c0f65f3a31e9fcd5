"""The weights as files: whether all formats hold the same numbers, under which names, and whether all are finite."""

from collections.abc import Iterator, Mapping

import numpy as np
from tqdm import tqdm

from limba.addons.repair import embedding_findings, hub_folder
from limba.addons.repair.findings import Change, Line, right, wrong
from limba.addons.repair.hub_folder import CONFIG, HubFolder
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare import comparison_rows
from limba.convert.tensors import tensor_parts, weight_files
from limba.files import untrusted_json
from limba.files.untrusted_files import cut, shown, some

_NARROW = ("float16", "bfloat16")
_TYPES = (*_NARROW, "float32", "float64")


def look(folder: HubFolder) -> Iterator[Line]:
    """The lines of the weights."""
    dtypes = sorted({np.dtype(tensor.dtype).name for tensor in folder.tensors.values()})
    yield _indexed(folder, dtypes)
    yield _wrapped(folder)
    yield _rounded(folder, dtypes)
    yield _finite(folder)
    yield _differ(folder)


def _indexed(folder: HubFolder, dtypes: list[str]) -> Line:
    """Whether the index of shards says to transformers what is in them."""
    index = weight_files.index_name(folder.weights_file)
    remedy, change = "The weights are written again, with an index of their own.", Change(rewrites=True)
    if folder.format != "flax" and weight_files.is_in_shards(folder.path, folder.format):
        if left_out := weight_files.not_in_index(folder.path, folder.format, hub_folder.buffers_of(folder.family)):
            found = f"{index} does not name {some([*map(cut, left_out)])}: transformers 4 draws random ones."
            return wrong("weights", found, remedy, change)
        if not isinstance(untrusted_json.read_object(folder.path / index).get("metadata"), dict):
            return wrong("weights", f"{index} has no metadata, without which transformers stops.", remedy, change)
    return right("weights", f"{folder.weights_file}: {len(folder.tensors):,} tensors, {', '.join(dtypes)}")


def _wrapped(folder: HubFolder) -> Line:
    if not weight_files.is_wrapped(folder.path, folder.format, hub_folder.buffers_of(folder.family)):
        return right("names-wrapped")
    return wrong(
        "names-wrapped",
        f"{folder.weights_file}: all names begin with that of a wrapper, and transformers finds none of the tensors.",
        "They are written without it.",
        Change(rewrites=True),
    )


def _rounded(folder: HubFolder, dtypes: list[str]) -> Line:
    config = folder.files[CONFIG]
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    named = config.get(key)
    if named is not None and named not in _TYPES:
        return wrong(
            "weights-rounded",
            f"{CONFIG}: {key} is {shown(named)}, which is no type of weights: transformers stops, or rounds them.",
            f"{key} becomes {dtypes[0]}." if len(dtypes) == 1 else f"Write one of {', '.join(_TYPES)}.",
            Change(settings={CONFIG: {key: dtypes[0]}}) if len(dtypes) == 1 else None,
        )
    if named not in _NARROW or dtypes != ["float32"]:
        return right("weights-rounded", f"{key} is {named}" if named else "")
    return wrong(
        "weights-rounded",
        f"{CONFIG}: {key} is {named}, and {folder.weights_file} is float32: transformers 5 rounds the weights.",
        f"{key} becomes float32.",
        Change(settings={CONFIG: {key: "float32"}}),
    )


def _finite(folder: HubFolder) -> Line:
    found = []
    num_bytes = sum(map(tensor_parts.num_bytes, folder.tensors.values()))
    with tqdm(total=num_bytes, desc="looking at weights", unit="B", unit_scale=True, disable=None) as bar:
        for name, tensor in folder.tensors.items():
            # ml_dtypes' bfloat16 is of kind "V" for NumPy.
            if not all(np.isfinite(x.astype(np.float32, copy=False)).all() for x in tensor_parts.blocks(tensor)):
                found.append(name)
            bar.update(tensor_parts.num_bytes(tensor))
    if not found:
        return right("not-finite")
    return wrong(
        "not-finite",
        f"{folder.weights_file}: NaN or infinite numbers in {some([*map(cut, found)])}.",
        "Take an earlier checkpoint; of a model in float16 one in float32 or bfloat16.",
    )


def _differ(folder: HubFolder) -> Line:
    """Whether the weights in further formats are those that transformers loads."""
    code, path = "weights-differ", folder.path
    others = [x for x in weight_files.formats([file.name for file in path.iterdir()]) if x != folder.format]
    if "torch" not in others:  # Flax has other names and dims; `looking` compares it.
        return right(code, "one format for PyTorch")
    other = "torch"
    change = Change(left_out=(other,))
    remedy = f"transformers loads {folder.weights_file}; {weight_files.FILES[other]} is left out."
    try:
        tensors = weight_files.open_tensors(path, other, hub_folder.buffers_of(folder.family))
    except (OSError, ValueError) as error:
        return wrong(code, f"{weight_files.FILES[other]} cannot be read: {error}", remedy, change)
    a, b = (_without_copies(folder, found) for found in (folder.tensors, tensors))
    if one_sided := sorted(a.keys() ^ b.keys()):
        found = f"{some([*map(cut, one_sided)])} of {folder.weights_file} and {weight_files.FILES[other]}: one has it."
        return wrong(code, found, remedy, change)
    if shapes := [name for name in a if a[name].shape != b[name].shape]:
        return wrong(code, f"{cut(shapes[0])} has another shape in {weight_files.FILES[other]}.", remedy, change)
    row = comparison_rows.compare_tensors(a, b)
    if row.value:
        return wrong(
            code, f"{folder.weights_file} and {weight_files.FILES[other]}: {row.value} {row.note}.", remedy, change
        )
    return right(code, f"{folder.weights_file} and {weight_files.FILES[other]}: {row.note}")


def _without_copies(folder: HubFolder, tensors: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
    """The tensors without further names of the embedding that are copies; one format has them and another not."""
    named = embedding_findings.names(folder)
    first = next((tensors[name] for name in (named.embedding, *named.others) if name in tensors), None)
    if first is None:
        return dict(tensors)
    copies = [name for name in (*named.others, named.output) if name in tensors]
    copies = [name for name in copies if tensors[name] is not first and tensor_parts.equal(first, tensors[name])]
    return {name: tensor for name, tensor in tensors.items() if name not in copies}
