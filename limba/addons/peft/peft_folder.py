"""A folder that PEFT loads: an adapter's factors by the modules of Hugging Face that they change."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from limba.addons.peft import bounded_time, peft_config
from limba.addons.peft.peft_config import REMEDY, PeftConfig
from limba.checkpoint_files.saved_tensors import SavedTensor, from_array
from limba.convert.tensors import safetensors_files, tensor_parts, weight_files
from limba.files.untrusted_files import cut

WEIGHTS, _PICKLED = "adapter_model.safetensors", "adapter_model.bin"
_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"


@dataclasses.dataclass(frozen=True)
class ModuleFactors:
    """The factors of one module: its weight is `W + alpha / rank * b @ a`.

    Attributes:
      a: `[rank, in]`.
      b: `[out, rank]`.
    """

    a: np.ndarray
    b: np.ndarray
    alpha: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True)
class Adapter:
    """An adapter; `modules` by their names in the class of Hugging Face, `encoder.block.0.layer.0.SelfAttention.q`."""

    path: Path
    config: PeftConfig
    modules: Mapping[str, ModuleFactors]


def config_of(modules: Mapping[str, ModuleFactors], base: str | None) -> PeftConfig:
    """The configuration of factors, with patterns for modules of another rank or scale than most."""
    ranks = [module.rank for module in modules.values()]
    alphas = [module.alpha for module in modules.values()]
    rank, alpha = max(ranks, key=ranks.count), max(alphas, key=alphas.count)
    return PeftConfig(
        rank=rank,
        alpha=alpha,
        targets=tuple(modules),
        base=base,
        rank_pattern={name: module.rank for name, module in modules.items() if module.rank != rank},
        alpha_pattern={name: module.alpha for name, module in modules.items() if module.alpha != alpha},
    )


def write_weights(folder: Path, modules: Mapping[str, ModuleFactors]) -> None:
    """Writes the file of the tensors."""
    tensors: dict[str, SavedTensor] = {}
    for name, module in modules.items():
        tensors[f"{_PREFIX}{name}{_A}"] = from_array(np.ascontiguousarray(module.a, np.float32))
        tensors[f"{_PREFIX}{name}{_B}"] = from_array(np.ascontiguousarray(module.b, np.float32))
    whole = sum(map(tensor_parts.num_bytes, tensors.values()))
    safetensors_files.write(folder, tensors, lambda num_bytes: None, whole, WEIGHTS)


def read(path: Path, ignored: Collection[str] = ()) -> Adapter:
    """Reads an adapter.

    Args:
      ignored: keys of adapter_config.json that have no effect, as the user knows.

    Raises:
      FileNotFoundError: if a file is missing.
      ValueError: if one is damaged, they contradict each other, or Limba's LoRA cannot be this adapter.
    """
    config = peft_config.read(path / peft_config.FILE, ignored)
    weights = next((path / name for name in (WEIGHTS, _PICKLED) if (path / name).is_file()), None)
    if weights is None:
        raise FileNotFoundError(f"{path} has no {WEIGHTS}: an adapter's tensors are in it.")
    is_pickle = weights.name == _PICKLED
    tensors = (weight_files.pickles(str(weights)) if is_pickle else safetensors_files).open_tensors([weights])
    factors: dict[str, dict[str, SavedTensor]] = {}
    for name, tensor in tensors.items():
        ending = next((ending for ending in (_A, _B) if name.endswith(ending)), None)
        if not name.startswith(_PREFIX):
            raise ValueError(f"{weights}: {cut(name)} does not begin with {_PREFIX}: PEFT would leave it out.")
        if ending is None:
            raise ValueError(
                f"{weights}: {cut(name)} is no factor of a kernel, and Limba's LoRA has no others. {REMEDY}"
            )
        factors.setdefault(name.removeprefix(_PREFIX).removesuffix(ending), {})[ending] = tensor
    if not factors:
        raise ValueError(f"{weights} has no factors.")
    with bounded_time.within(f"{path / peft_config.FILE}: looking for modules by its expressions"):
        modules = {name: _module(weights, config, name, pair) for name, pair in factors.items()}
    return Adapter(path, config, modules)


def _module(weights: Path, config: PeftConfig, name: str, pair: Mapping[str, SavedTensor]) -> ModuleFactors:
    if missing := [ending for ending in (_A, _B) if ending not in pair]:
        raise ValueError(f"{weights}: {cut(name)} has one factor, and {missing[0].removeprefix('.')} is missing.")
    if not config.targets_module(name):
        raise ValueError(
            f"{weights} has factors of {cut(name)}, which target_modules and layers_to_transform of "
            f"{peft_config.FILE} do not choose: PEFT would leave them out. Add the module there, or remove its tensors."
        )
    a, b = (np.asarray(pair[ending]).astype(np.float32) for ending in (_A, _B))
    rank = config.rank_of(name)
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != rank or b.shape[1] != rank:
        raise ValueError(
            f"{weights}: the factors of {cut(name)} are {a.shape} and {b.shape}, and {peft_config.FILE} says the rank "
            f"{rank}."
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError(f"{weights}: the factors of {cut(name)} hold NaN or infinite values.")
    return ModuleFactors(a, b, config.alpha_of(name))
