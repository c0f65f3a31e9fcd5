"""Hugging Face's own PyTorch classes run from tensors that are still on disk: what `from_pretrained(folder)` computes.

The model is built without weights. The `forward` of each module that owns parameters is replaced by one that reads them
just then, in parts, and frees them. So memory for a part of one tensor is enough, however large the model is. torch and
transformers are imported when a function is called.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare import transformers_library
from limba.convert.families.config_files import other_models
from limba.convert.families.t5_family import T5Family
from limba.convert.families.table import t5_families
from limba.convert.tensors import table, tensor_parts

# There are two copies of a part: as read, and in torch.
_BLOCK_BYTES = 32 * 2**20


def logits(folder: Path, tensors: Mapping[str, SavedTensor], batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Float32 logits `[batch, targets_length, vocab]`; of a classifier of tokens `[batch, inputs_length, labels]`.

    Args:
      folder: has the config.json, whose `model_type` names the class.
      tensors: of the model, by PyTorch's names, `encoder.block.0.layer.0.SelfAttention.q.weight`; of those that are
        tied, one or more.
      batch: `encoder_input_tokens` `[batch, inputs_length]` and `decoder_input_tokens` `[batch, targets_length]`, in
        the folder's ids.

    Raises:
      ValueError: if the folder is not a T5's, or the tensors are not exactly those of its class.
    """
    import torch

    model = _model(folder, tensors)
    inputs = _inputs(batch["encoder_input_tokens"], model)
    if not other_models.is_token_classifier(model.config.to_dict()):
        inputs["decoder_input_ids"] = torch.tensor(batch["decoder_input_tokens"], dtype=torch.long)
    with torch.inference_mode():
        output = model(**inputs)
    return output.logits.numpy()


def greedy(folder: Path, tensors: Mapping[str, SavedTensor], inputs: np.ndarray, num_tokens: int) -> np.ndarray:
    """The tokens of the class's own `generate` without sampling and beams, int32 `[batch, num_tokens]`.

    Args:
      folder, tensors: as of `logits`.
      inputs, num_tokens: `[batch, inputs_length]`; a row that ends earlier is filled with padding.

    Raises:
      ValueError: as `logits`.
    """
    import torch

    model = _model(folder, tensors)
    with torch.inference_mode():
        # Without its cache, which in version 4 is as long as the encoder is deep and fails for a deeper decoder.
        tokens = model.generate(**_inputs(inputs, model), max_new_tokens=num_tokens, use_cache=False)
    tokens = tokens[:, 1:].numpy().astype(np.int32)
    padding = num_tokens - tokens.shape[1]
    return np.pad(tokens, ((0, 0), (0, padding)), constant_values=model.generation_config.pad_token_id)


def _inputs(tokens: np.ndarray, model: Any) -> dict[str, Any]:
    import torch

    input_ids = torch.tensor(tokens, dtype=torch.long)
    return {"input_ids": input_ids, "attention_mask": (input_ids != model.config.pad_token_id).long()}


def _model(folder: Path, tensors: Mapping[str, SavedTensor]) -> Any:
    """The class that config.json names, with modules that read their parameters when they are called."""
    import torch

    transformers = transformers_library.load()
    config = transformers.AutoConfig.from_pretrained(folder, **transformers_library.NO_CODE)
    known = {family.model_type: family for family in t5_families().values() if family.in_transformers}
    if config.model_type not in known:
        raise ValueError(f"{folder}/config.json is of a {config.model_type!r}; it must be one of {', '.join(known)}.")
    is_classifier = other_models.is_token_classifier(config.to_dict())
    kind = transformers.AutoModelForTokenClassification if is_classifier else transformers.AutoModelForSeq2SeqLM
    family = known[config.model_type]
    config._attn_implementation = family.torch_attention  # transformers' own: "ORG/NAME" would be code of the hub
    with torch.device("meta"):
        model = kind.from_config(config, dtype=torch.float32, **transformers_library.NO_CODE)
    family.change_class(model)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if child._buffers:  # Of rotary positions, which are computed from the configuration.
                setattr(module, name, type(child)(child.config))
    for name, buffer in model._buffers.items():
        model._buffers[name] = torch.zeros(buffer.shape)  # Of BART's logits, zeros in all that Limba reads.
    assert not any(buffer.is_meta for buffer in model.buffers())
    model.eval()
    model.tie_weights()
    if not is_classifier:
        model.generation_config = _greedy_config(folder, model)
    for module, parameters in _parameters(folder, model, tensors, family):
        for leaf in parameters:
            _set(module, leaf, torch.empty(0))  # Of no size, so that nothing computes with it by mistake.
        scale = getattr(module, "embed_scale", None)  # of BART's embeddings; its positions do more than look up
        if type(module) is torch.nn.Embedding or (scale is not None and "weight" in parameters):
            module.forward = functools.partial(_embed, parameters["weight"], scale)
        elif isinstance(module, torch.nn.Linear):
            module.forward = functools.partial(_product, parameters["weight"], parameters.get("bias"))
        else:
            module.register_forward_pre_hook(functools.partial(_load, parameters=parameters))
            module.register_forward_hook(_free)
    return model


def _parameters(
    folder: Path, model: Any, tensors: Mapping[str, SavedTensor], family: T5Family
) -> list[tuple[Any, dict[str, SavedTensor]]]:
    """The modules that own parameters, with the tensors of these by the parameters' names in the module.

    A tied parameter is read from the tensor of its own name, if there is one, else from that of another of its names.
    """
    ties: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        ties.setdefault(id(parameter), []).append(family.name_in_files(name))
    aliases = {name: group for group in ties.values() for name in group}
    wanted: dict[str, tuple[int, ...]] = {}
    owners: list[tuple[Any, dict[str, str]]] = []
    for prefix, module in model.named_modules():
        parameters = {}
        for leaf, parameter in module.named_parameters(recurse=False):
            own = family.name_in_files(f"{prefix}.{leaf}")
            parameters[leaf] = next((name for name in (own, *aliases[own]) if name in tensors), aliases[own][0])
            wanted[parameters[leaf]] = tuple(parameter.shape)
        if parameters:
            owners.append((module, parameters))
    ignored = model._keys_to_ignore_on_load_unexpected or ()
    found = {
        name: tensor.shape
        for name, tensor in tensors.items()
        if name in wanted
        or not (name in aliases or name in model._buffers or any(re.search(pattern, name) for pattern in ignored))
    }
    table.verify(f"{folder} in {type(model).__name__} of transformers", found, wanted)
    return [(module, {leaf: tensors[name] for leaf, name in parameters.items()}) for module, parameters in owners]


# ------------------------------------------ what the modules do instead ------------------------------------------


def _embed(table: SavedTensor, scale: float | None, ids: Any) -> Any:
    """Reads the rows of the ids, which are multiplied by the scale."""
    import torch

    rows, places = np.unique(ids.numpy(), return_inverse=True)
    weight = np.concatenate([table.read((slice(row, row + 1), slice(None))) for row in rows])
    embedded = torch.nn.functional.embedding(torch.from_numpy(places.reshape(ids.shape)), _as_torch(weight))
    return embedded if scale is None else embedded * scale


def _product(kernel: SavedTensor, bias: SavedTensor | None, x: Any) -> Any:
    """Reads some rows of the kernel, `[out, in]`, after others."""
    import torch

    parts = [torch.nn.functional.linear(x, _as_torch(rows)) for rows in tensor_parts.blocks(kernel, _BLOCK_BYTES)]
    product = torch.cat(parts, -1)
    return product if bias is None else product + _as_torch(np.asarray(bias))


def _load(module: Any, args: tuple, *, parameters: Mapping[str, SavedTensor]) -> None:
    """Before the call of a module that computes with whole parameters, which are small: its norm's scale."""
    for leaf, tensor in parameters.items():
        _set(module, leaf, _as_torch(np.asarray(tensor)))


def _free(module: Any, args: tuple, output: Any) -> None:
    import torch

    for leaf, _ in module.named_parameters(recurse=False):
        _set(module, leaf, torch.empty(0))


def _set(module: Any, leaf: str, value: Any) -> None:
    import torch

    module.register_parameter(leaf, torch.nn.Parameter(value, requires_grad=False))


def _as_torch(array: np.ndarray) -> Any:
    """A float32 tensor in memory of torch's own, aligned as its kernels like it."""
    import torch

    tensor = torch.empty(array.shape, dtype=torch.float32)
    tensor.numpy()[...] = array
    return tensor


def _greedy_config(folder: Path, model: Any) -> Any:
    """A GenerationConfig without sampling, beams, penalties or lengths, whatever the folder prefers.

    Args:
      folder: a generation_config.json there says which ids begin, end and pad a sequence.
      model: of transformers; otherwise its own configuration says it.
    """
    transformers = transformers_library.load()
    given = model.generation_config
    if (folder / "generation_config.json").exists():
        given = transformers.GenerationConfig.from_pretrained(folder)
    special_ids = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    return transformers.GenerationConfig(
        do_sample=False, num_beams=1, **{name: getattr(given, name) for name in special_ids}
    )
