"""Limba's network run from tensors that are still on disk: logits and greedy tokens of a model of any size.

It is `limba.network.t5.Transformer` itself, outside `jax.jit`. Flax hands every call of a module with parameters to
`_Leaves`, which reads these parameters just then, in parts, and computes with the module's own code. So memory for a
part of one tensor is enough, however large the model is.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.tensors import tensor_parts
from limba.network.attention import RelativePositionBiases
from limba.network.encoders.classifier import TokenClassifier
from limba.network.finite_numbers import interceptors
from limba.network.layers import CenteredLayerNorm, DenseGeneral, Embed, ResidualLayerNorm
from limba.network.t5 import T5Config, Transformer

# In Limba, whatever a folder has; it also begins the decoder's inputs.
PAD_ID = 0

# There are up to four copies of a part on its way: as read, in the order and the dtype of the network, in JAX.
_BLOCK_BYTES = 32 * 2**20


def token_logits(
    config: T5Config, labels: Sequence[str], tensors: Mapping[str, SavedTensor], inputs: np.ndarray
) -> np.ndarray:
    """Float32 logits `[batch, length, labels]` of a classifier of tokens `[batch, length]`; see `logits`."""
    network = TokenClassifier(_plain(config), labels)
    with jax.default_matmul_precision("highest"), interceptors.intercept(_Leaves(tensors)):
        return np.asarray(network.apply({}, inputs, enable_dropout=False))


def logits(config: T5Config, tensors: Mapping[str, SavedTensor], batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Float32 logits `[batch, targets_length, vocab]`, without dropout.

    Args:
      config: the network. Its dtype is taken for float32, its layers for unrolled with joined attention kernels.
      tensors: by the names of unrolled layers, `encoder/layers_3/attention/query/kernel`.
      batch: `encoder_input_tokens` `[batch, inputs_length]`, `decoder_input_tokens` and `decoder_target_tokens`
        `[batch, targets_length]`.

    Raises:
      ValueError: if a tensor of the network is missing or has another shape.
    """
    # Accelerators would multiply float32 matrices in fewer bits.
    with jax.default_matmul_precision("highest"), interceptors.intercept(_Leaves(tensors)):
        return np.asarray(_network(config).apply({}, **dict[str, Any](batch), enable_dropout=False))


def decoder_outputs(
    config: T5Config, tensors: Mapping[str, SavedTensor], batch: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Float32 `[batch, targets_length, embed]`, whose products with the rows of the output are the logits.

    Arguments and errors are those of `logits`; the output itself is not read.
    """
    with jax.default_matmul_precision("highest"), interceptors.intercept(_LeavesWithoutOutput(tensors)):
        return np.asarray(_network(config).apply({}, **dict[str, Any](batch), enable_dropout=False))


def greedy(
    config: T5Config, tensors: Mapping[str, SavedTensor], inputs: np.ndarray, num_tokens: int, eos_id: int = 1
) -> np.ndarray:
    """The most probable tokens, one after the other, int32 `[batch, num_tokens]`; after EOS comes padding.

    Args:
      config, tensors: as of `logits`.
      inputs, num_tokens: `[batch, inputs_length]`; the decoder's tensors are read once for each token.
      eos_id: ends a row.

    Raises:
      ValueError: if a tensor of the network is missing or has another shape.
    """
    network = _network(config)
    # The decoder sees PAD_ID and what it has said. Later positions do not count: attention is causal.
    tokens = np.full((len(inputs), 1 + num_tokens), PAD_ID, np.int32)
    seen = tokens[:, :-1]
    ended = np.zeros(len(inputs), bool)
    with jax.default_matmul_precision("highest"), interceptors.intercept(_Leaves(tensors)):
        encoded = network.apply({}, inputs, enable_dropout=False, method="encode")
        for i in range(num_tokens):
            # As targets, ones: none of them is padding.
            step = network.apply({}, encoded, inputs, seen, np.ones_like(seen), enable_dropout=False, method="decode")
            tokens[:, i + 1] = np.where(ended, PAD_ID, np.argmax(np.asarray(step)[:, i], axis=-1))
            ended |= tokens[:, i + 1] == eos_id
            if ended.all():
                break
    return tokens[:, 1:]


def loss(logits: np.ndarray, targets: np.ndarray) -> float:
    """The mean cross entropy of the targets `[batch, targets_length]` that are not padding, in nats."""
    total = 0.0
    for row, row_targets in zip(logits, targets, strict=True):
        row = row.astype(np.float64)
        row -= row.max(-1, keepdims=True)
        picked = np.take_along_axis(row, row_targets[:, None], -1)[:, 0]
        total += float(np.sum((np.log(np.exp(row).sum(-1)) - picked)[row_targets != PAD_ID]))
    return total / np.count_nonzero(targets != PAD_ID)


def _network(config: T5Config) -> Transformer:
    return _plain(config).network()


def _plain(config: T5Config) -> T5Config:
    # Recomputation in the backward pass would trace the layers, and traced calls have no numbers to look up.
    unrolled: dict[str, Any] = {"scan_layers": False, "joined_attention_kernels": True, "remat_policy": "none"}
    return dataclasses.replace(config, dtype=jnp.float32, **unrolled)


_READ = DenseGeneral | Embed | ResidualLayerNorm | CenteredLayerNorm | RelativePositionBiases


class _Leaves:
    """Answers the calls of modules that own parameters. Of what it reads it keeps only the rows of tokens.

    A module of another kind says itself how it computes from parameters on disk: `from_saved(tensor, *args)`.
    """

    def __init__(self, tensors: Mapping[str, SavedTensor]):
        self._tensors = tensors
        self._rows: dict[tuple[str, int], np.ndarray] = {}

    def __call__(
        self, call: Callable[..., Any], args: tuple, kwargs: dict[str, Any], context: nn.module.InterceptorContext
    ) -> Any:
        module = context.module
        if hasattr(module, "from_saved") and module.path and context.method_name == "__call__":
            return module.from_saved(functools.partial(self._tensor, module), *args)
        if not isinstance(module, _READ) or not module.path:
            return call(*args, **kwargs)  # Also the copies that are made below, which have no path.
        if context.method_name == "setup":
            return None  # It would make the parameters.
        if isinstance(module, DenseGeneral):
            return self._product(module, *args)
        if isinstance(module, Embed):
            return self._attend(module, *args) if context.method_name == "attend" else self._embed(module, *args)
        if isinstance(module, ResidualLayerNorm):
            scale = self._tensor(module, "scale", (args[0].shape[-1],))
            return _compute(module, {"scale": np.asarray(scale)}, *args)
        if isinstance(module, CenteredLayerNorm):
            names, shape = ("scale", "bias") if module.use_bias else ("scale",), (args[0].shape[-1],)
            return _compute(module, {name: np.asarray(self._tensor(module, name, shape)) for name in names}, *args)
        table = self._tensor(module, "rel_embedding", (module.num_heads, module.num_buckets))
        lengths = dict(zip(("qlen", "klen"), args, strict=True))
        return _compute(module, {"rel_embedding": np.asarray(table)}, **lengths, **kwargs)

    def _product(self, module: DenseGeneral, x: jax.Array) -> jax.Array:
        features, axis = np.atleast_1d(module.features).tolist(), np.atleast_1d(module.axis).tolist()
        shape = (math.prod(x.shape[i] for i in axis), math.prod(features))
        kernel = self._tensor(module, "kernel", shape)
        columns = tensor_parts.blocks(tensor_parts.transposed(kernel), _BLOCK_BYTES)
        part = module.clone(use_bias=False)
        parts = [_compute(part.clone(features=len(block)), {"kernel": block.T}, x) for block in columns]
        product = jnp.concatenate(parts, -1).reshape(*parts[0].shape[:-1], *features)
        if not module.use_bias:
            return product
        bias = np.asarray(self._tensor(module, "bias", (math.prod(features),)), np.float32)
        return product + bias.reshape(features)

    def _embed(self, module: Embed, tokens: jax.Array) -> jax.Array:
        name = "/".join((*module.path, "embedding"))
        table = self._tensor(module, "embedding", (module.num_embeddings, module.features))
        ids, places = np.unique(np.clip(tokens, 0, module.num_embeddings - 1), return_inverse=True)
        unread = np.array([i for i in ids if (name, i) not in self._rows], int)
        # Not one by one: where the tensor is stored in chunks, each row would cost the reading of a chunk.
        for span in tensor_parts.spans(table, _BLOCK_BYTES):
            inside = unread[(span.start <= unread) & (unread < span.stop)]
            if len(inside):
                part = table.read((slice(inside[0], inside[-1] + 1), slice(None)))
                self._rows |= {(name, i): part[i - inside[0]].astype(np.float32) for i in inside}
        # One for each token, also of tokens that are there twice: as many whatever is decoded, so it is compiled once.
        rows = np.zeros((tokens.size, module.features), np.float32)
        for place, i in enumerate(ids):
            rows[place] = self._rows[name, i]
        return _compute(module.clone(num_embeddings=len(rows)), {"embedding": rows}, places.reshape(tokens.shape))

    def _attend(self, module: Embed, x: jax.Array) -> jax.Array:
        table = self._tensor(module, "embedding", (module.num_embeddings, module.features))
        parts = [
            _compute(module.clone(num_embeddings=len(block)), {"embedding": block}, x, method="attend")
            for block in tensor_parts.blocks(table, _BLOCK_BYTES)
        ]
        return jnp.concatenate(parts, -1)

    def _tensor(self, module: nn.Module, parameter: str, shape: tuple[int, ...]) -> SavedTensor:
        name = "/".join((*module.path, parameter))
        if name not in self._tensors:
            raise ValueError(f"The network needs {name} {shape}, which the model does not have.")
        if tuple(self._tensors[name].shape) != shape:
            raise ValueError(f"{name} has shape {tuple(self._tensors[name].shape)}; the network needs {shape}.")
        return self._tensors[name]


class _LeavesWithoutOutput(_Leaves):
    """The logits are the decoder's outputs; if embedding and output are one, as they are scaled there."""

    def _product(self, module: DenseGeneral, x: jax.Array) -> jax.Array:
        return x if module.name == "logits_dense" else super()._product(module, x)

    def _attend(self, module: Embed, x: jax.Array) -> jax.Array:
        return x


def _compute(module: nn.Module, params: dict[str, np.ndarray], *arrays: Any, **fixed: Any) -> jax.Array:
    """Calls a module on its own with these parameters; `fixed` are the arguments that are not arrays."""
    # Without its name and initializers, of which some are made for each module, it equals its like in other layers and
    # is compiled once for all of them. What is compiled stays in memory, more than a megabyte each time.
    updates: dict[str, Any] = {
        field.name: nn.initializers.zeros for field in dataclasses.fields(module) if field.name.endswith("_init")
    }
    alike = module.clone(name=None, **updates)
    in_float32 = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    # The next part is not read while this one is still computed with.
    return jax.block_until_ready(_apply(alike, tuple(fixed.items()), in_float32, *arrays))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _apply(
    module: nn.Module, fixed: tuple[tuple[str, Any], ...], params: dict[str, jax.Array], *arrays: jax.Array
) -> jax.Array:
    outputs: Any = module.apply({"params": params}, *arrays, **dict(fixed))
    return outputs
