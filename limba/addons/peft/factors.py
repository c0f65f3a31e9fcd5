"""The factors of a LoRA by Limba's kernels, from a checkpoint or for one, and by the modules of Hugging Face."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from limba.addons.peft.peft_config import REMEDY
from limba.addons.peft.peft_folder import Adapter, ModuleFactors
from limba.checkpoint_files import run_folder, saved_average, state_checksums
from limba.checkpoint_files.saved_tensors import SavedTensor, from_array
from limba.convert.model_files.model import Model
from limba.convert.tensors.table import Tensor
from limba.files.storage import AnyPath
from limba.files.untrusted_files import shown_list
from limba.models import lora
from limba.network.encoders.config import EncoderConfig
from limba.network.encoders.encoder import num_unscanned_layers

_SCANNED = re.compile(r"(encoder|decoder)/\1/(?:layers_(\d+)/)?(.*)")
_WEIGHT = ".weight"


@dataclasses.dataclass(frozen=True)
class Factors:
    """The factors of a LoRA of unrolled layers.

    Attributes:
      alpha: products are multiplied by `alpha / rank`.
      kernels: by the module's name, `encoder/layers_0/attention/query`: A `[in, rank]` and B `[rank, out]`.
    """

    alpha: float
    kernels: Mapping[str, tuple[np.ndarray, np.ndarray]]


# -------------------------------------------------- from a checkpoint -----------------------------------------------


def of_checkpoint(path: AnyPath, average: bool = False) -> Factors:
    """Those of a LoRA's checkpoint; with `average` the average of them that the run kept.

    Raises:
      ValueError: if it is not of a LoRA, or its factors are damaged.
    """
    tensors = saved_average.chosen(state_checksums.open_tensors(path), path, average)
    names = [n for n in tensors if n.startswith("target/") and n.endswith(f"/{lora.A}")]
    info = run_folder.load_run_info(path) if run_folder.has_run_info(path) else {}
    if not names or "lora" not in info:
        raise ValueError(
            f"{path} is not of a LoRA: it has no factors (gin/runs/lora.gin trains some). The whole model becomes a "
            "Hugging Face folder by `limba convert to-hf`."
        )
    first, period = 0, 1
    if run_folder.network_class(info) == "EncoderConfig":
        config = EncoderConfig.from_json(info["network"])
        first, period = num_unscanned_layers(config), config.global_attention_every
    kernels: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in names:
        module = name.removesuffix(f"/{lora.A}")
        if f"{module}/{lora.B}" not in tensors:
            raise ValueError(f"{path}: {name} is there, and {module}/{lora.B} is missing.")
        a, b = (np.asarray(tensors[f"{module}/{factor}"]).astype(np.float32) for factor in (lora.A, lora.B))
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise ValueError(
                f"{path}: the factors of {module} hold NaN or infinite values; convert an earlier checkpoint."
            )
        kernels.update(_layers(module.removeprefix("target/"), a, b, first, period))
    return Factors(float(info["lora"]["alpha"]), kernels)


def _layers(
    module: str, a: np.ndarray, b: np.ndarray, first: int, period: int
) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """The factors of each layer of a module, which may be scanned; of layers `first` come before, `period` are one."""
    scanned = _SCANNED.fullmatch(module)
    if scanned is None or a.ndim == 2:
        yield module, (a, b)
        return
    for number in range(a.shape[1]):
        layer = first + number * period + int(scanned[2] or 0)
        yield f"{scanned[1]}/layers_{layer}/{scanned[3]}", (a[:, number], b[:, number])


# --------------------------------------------------- to the modules -------------------------------------------------


def to_modules(factors: Factors, model: Model) -> dict[str, ModuleFactors]:
    """The factors by Hugging Face's modules.

    A module that holds several kernels, ModernBERT's `Wqkv`, gets the factors of all: their ranks add up, and each
    writes its own rows.

    Raises:
      ValueError: if the model's class has no module for a kernel, or the factors do not fit it.
    """
    modules, used = {}, set()
    for tensor in model.family.table(model.config, model.head, model.pad_id):
        adapted = [part.limba for part in tensor.parts if part.limba.removesuffix("/kernel") in factors.kernels]
        if not adapted:
            continue
        if any(part.member is not None for part in tensor.parts):
            raise ValueError(
                f"{model.path} adapts {adapted[0]}, the kernels of experts, for which Limba writes no adapter of PEFT. "
                "Export the merged model (limba convert to-hf), or adapt other kernels (LoRA.kernels)."
            )
        used |= {name.removesuffix("/kernel") for name in adapted}
        pairs = [factors.kernels[name.removesuffix("/kernel")] for name in adapted]
        for part in tensor.parts:
            if part.limba in adapted:
                _check_shape(model, part.limba, part.shape, *factors.kernels[part.limba.removesuffix("/kernel")])
        rank = sum(a.shape[1] for a, _ in pairs)
        rows, begun = [], 0
        for part in tensor.parts:
            row = np.zeros((part.stored_shape[0], rank), np.float32)
            if part.limba in adapted:
                _, b = factors.kernels[part.limba.removesuffix("/kernel")]
                row[:, begun : begun + len(b)] = np.asarray(part.stored(from_array(b)))
                begun += len(b)
            rows.append(row)
        # Each kernel's scale is alpha by its own rank, which all have alike.
        alpha = factors.alpha * rank / pairs[0][0].shape[1]
        module = model.family.tensor_name(tensor.name).removesuffix(_WEIGHT)
        modules[module] = ModuleFactors(np.concatenate([a.T for a, _ in pairs]), np.concatenate(rows), alpha)
    if others := [name for name in factors.kernels if name not in used]:
        raise ValueError(
            f"{model.path} adapts {shown_list(others[:3])}, for which {model.family.class_of(model.head.kind)} has no "
            "module."
        )
    return modules


def _check_shape(model: Model, name: str, shape: Sequence[int], a: np.ndarray, b: np.ndarray) -> None:
    if (a.shape[0], b.shape[1]) != tuple(shape) or a.shape[1] != b.shape[0]:
        raise ValueError(f"{model.path}: {name}: the adapters {a.shape} and {b.shape} do not fit the kernel {shape}.")


# ------------------------------------------------- from an adapter --------------------------------------------------


def of_adapter(adapter: Adapter, model: Model) -> Factors:
    """The factors for Limba's kernels, of a base model.

    Raises:
      ValueError: if the base has no such kernels, or Limba's LoRA, which has one rank and one alpha, cannot be the
        adapter.
    """
    modules = adapter.modules
    for what, values in (
        ("ranks", {name: module.rank for name, module in modules.items()}),
        ("scales (alpha by rank)", {name: module.scale for name, module in modules.items()}),
    ):
        one, *others = {value: name for name, value in reversed(values.items())}.items()
        if others:
            (value, name), (other, of) = others[0], one
            raise ValueError(
                f"{adapter.path} has {what} that differ, {value:g} of {name} and {other:g} of {of}, and Limba's LoRA "
                f"has one for all. {REMEDY}"
            )
    tensors = {
        model.family.tensor_name(tensor.name).removesuffix(_WEIGHT): tensor
        for tensor in model.family.table(model.config, model.head, model.pad_id)
        if tensor.parts and tensor.parts[0].limba.endswith("/kernel") and tensor.parts[0].member is None
    }
    kernels: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, module in modules.items():
        if name not in tensors:
            raise ValueError(
                f"{adapter.path} adapts {name}, which is no kernel of {model.path}, a "
                f"{model.family.class_of(model.head.kind)}. Is that its base? --base names another. If it is: {REMEDY}"
            )
        kernels.update(_of_module(adapter, name, module, tensors[name]))
    return Factors(next(iter(modules.values())).alpha, kernels)


def _of_module(
    adapter: Adapter, name: str, module: ModuleFactors, tensor: Tensor
) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    wanted = (tensor.shape[0], tensor.shape[1])
    if (module.b.shape[0], module.a.shape[1]) != wanted:
        raise ValueError(
            f"{adapter.path}: the factors of {name} are for a kernel {[module.b.shape[0], module.a.shape[1]]}, and the "
            f"base has one {list(wanted)}. --base names another."
        )
    for limba, part in tensor.limbas(from_array(module.b)).items():
        yield limba.removesuffix("/kernel"), (np.ascontiguousarray(module.a.T), np.asarray(part))


# --------------------------------------------------- in a checkpoint -------------------------------------------------


def saved(factors: Factors) -> dict[str, SavedTensor]:
    """The factors as a checkpoint has them, by name."""
    found = {}
    for module, (a, b) in factors.kernels.items():
        found[f"target/{module}/{lora.A}"] = from_array(a)
        found[f"target/{module}/{lora.B}"] = from_array(b)
    return found


def description(factors: Factors, model: Model) -> dict[str, Any]:
    """What `run.json` says of them: rank, alpha, and expressions that choose exactly their kernels of the model."""
    rank = next(iter(factors.kernels.values()))[0].shape[1]
    names = [f"/{name}" for name in model.tensors]
    chosen = {f"/{module}/kernel" for module in factors.kernels}
    leaves = dict.fromkeys(module.rpartition("/")[2] for module in sorted(factors.kernels))
    any_layer = tuple(dict.fromkeys(re.sub(r"/layers_\d+/", r"/layers_\\d+/", name) for name in sorted(chosen)))
    for expressions in (lora.KERNELS, (f"/.*/({'|'.join(leaves)})/kernel",), any_layer, tuple(sorted(chosen))):
        if {name for name in names if any(re.fullmatch(x, name) for x in expressions)} == chosen:
            break
    alpha = factors.alpha
    return {"rank": rank, "alpha": int(alpha) if math.floor(alpha) == alpha else alpha, "kernels": [*expressions]}
