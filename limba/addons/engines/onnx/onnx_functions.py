"""What the graphs of ONNX files compute: functions from tensors to tensors, of transformers' classes.

torch and transformers are imported when a function is called.
"""

from collections.abc import Callable, Sequence
from typing import Any

from limba.addons.engines.onnx import onnx_library

Tensor = Any  # of torch


def encode(model: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """Ids and mask `[rows, length]` to a T5's hidden states `[rows, length, embed]`."""
    return (model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state,)


def first_step(model: Any, scale: float, mask: Tensor, ids: Tensor, states: Tensor) -> tuple[Tensor, ...]:
    """The decoder from its beginning: logits `[rows, length, vocab]`, and keys and values for the steps after it."""
    library = onnx_library.transformers().cache_utils
    cache = library.EncoderDecoderCache(library.DynamicCache(), library.DynamicCache())
    found = [_logits(model, scale, ids, states, mask, cache)]
    for own, cross in zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True):
        found += [own.keys, own.values, cross.keys, cross.values]
    return tuple(found)


def following_step(model: Any, scale: float, mask: Tensor, ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
    """One more token, with keys and values `[rows, heads, length, head_dim]` of the steps before it.

    Those of the encoder stay as they are, so they are not given back.
    """
    import torch

    library = onnx_library.transformers().cache_utils
    own, cross = library.DynamicCache(), library.DynamicCache()
    num_layers = len(past) // 4
    for i in range(num_layers):
        keys, values, cross_keys, cross_values = past[4 * i : 4 * i + 4]
        own.update(keys, values, i)
        cross.update(cross_keys, cross_values, i)
    cache = library.EncoderDecoderCache(own, cross)
    for i in range(num_layers):
        cache.is_updated[i] = True
    others = {}
    if onnx_library.transformers().__version__.startswith("4."):
        others["cache_position"] = torch.arange(past[0].shape[2], past[0].shape[2] + 1)
    # Keys and values are there: the states themselves are not read, only their shape.
    states = torch.zeros(past[2].shape[0], past[2].shape[2], model.config.d_model)
    logits = _logits(model, scale, ids, states, mask, cache, **others)
    return (logits, *(x for layer in cache.self_attention_cache.layers for x in (layer.keys, layer.values)))


def _logits(
    model: Any, scale: float, ids: Tensor, states: Tensor, mask: Tensor, cache: Any, **others: Tensor
) -> Tensor:
    decoded = model.decoder(
        input_ids=ids,
        encoder_hidden_states=states,
        encoder_attention_mask=mask,
        past_key_values=cache,
        use_cache=True,
        **others,
    ).last_hidden_state
    return model.lm_head(decoded * scale)


def states_and_logits(model: Any, ids: Tensor, mask: Tensor, types: Tensor | None = None) -> tuple[Tensor, ...]:
    """An encoder with its head: hidden states `[rows, length, embed]` and logits, perhaps two kinds of them."""
    states = []
    base = model.transformer.encoder if hasattr(model, "transformer") else model.base_model
    hook = base.register_forward_hook(lambda module, arguments, output: states.append(output[0]))
    given = {} if types is None else {"token_type_ids": types}
    try:
        output = model(input_ids=ids, attention_mask=mask, **given)
    finally:
        hook.remove()
    if "prediction_logits" in output:  # with a head for sentence pairs
        return states[0], output.prediction_logits, output.seq_relationship_logits
    return states[0], output.logits


def module(function: Callable[..., tuple[Tensor, ...]], parts: Sequence[Any]) -> Any:
    """The function as a module of torch that has the parts' parameters."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(parts)

        def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
            return function(*tensors)

    return Module().eval()
