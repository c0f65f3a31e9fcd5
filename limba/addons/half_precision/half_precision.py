"""Does a network hold in float16 or bfloat16? Its largest numbers by layer, and what rounding does to its logits.

The network runs in float32, once as it is and once with everything that a layer takes and gives, and its parameters,
rounded to the other type: as GPUs compute, which multiply numbers of 16 bits and sum in 32. What is inside a layer of
Flax, such as the logits of attention, stays in float32, as in Limba's own networks.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.convert.compare import encoder_outputs, forward, t5_outputs
from limba.convert.compare.outputs import Batch
from limba.convert.families import heads, networks
from limba.convert.model_files.model import Model
from limba.network.finite_numbers import interceptors
from limba.network.layers import CenteredLayerNorm, DenseGeneral, Embed, LayerNorm, ResidualLayerNorm

_LONGEST, _MOST_LAYERS = 128, 20
_SEEN = (DenseGeneral, Embed, LayerNorm, ResidualLayerNorm, CenteredLayerNorm)


@dataclasses.dataclass(frozen=True)
class Layer:
    """The largest absolute value of what a layer takes or gives, and where: "decoder/layers_0/mlp/wo"."""

    path: str
    side: str
    largest: float


@dataclasses.dataclass(frozen=True)
class Result:
    """What a type does to a network.

    Attributes:
      dtype: the type.
      layers: in the order of the network, in float32.
      logits: the largest of them.
      difference: the largest one of a logit in the type; infinite if it is not finite.
      same_choice: the share of places whose likeliest token or label is the same.
      losses: of the texts' tokens as a decoder's targets, in float32 and in the type; an encoder has none.
    """

    dtype: str
    layers: tuple[Layer, ...]
    logits: float
    difference: float
    same_choice: float
    losses: tuple[float, float] | None

    @property
    def limit(self) -> float:
        """The largest number of the type."""
        return float(jnp.finfo(self.dtype).max)

    @property
    def too_large(self) -> list[Layer]:
        """The layers that overflow."""
        return [layer for layer in self.layers if not layer.largest <= self.limit]

    def report(self) -> str:
        """The layers that overflow, or else the three with the largest numbers, and the logits."""
        largest: dict[str, Layer] = {}  # by path, of the two sides
        for layer in self.too_large or self.layers:
            largest[layer.path] = max(largest.get(layer.path, layer), layer, key=lambda x: x.largest)
        if self.too_large:
            shown = list(largest.values())[:_MOST_LAYERS]
            title = f"{len(largest)} layers overflow:"
        else:
            shown = sorted(largest.values(), key=lambda x: -x.largest)[:3]
            title = "None overflows; the largest:"
        lines = [f"{self.dtype} holds numbers up to {self.limit:,.6g}. {title}"]
        lines += [f"  {layer.path} {layer.side} {layer.largest:,.6g}" for layer in shown]
        if self.too_large and len(largest) > len(shown):
            lines.append(f"  and {len(largest) - len(shown)} more")
        found = f"{self.difference:.2e} of {self.logits:.4g}" if np.isfinite(self.difference) else "not finite"
        lines.append(f"Logits in {self.dtype}: the largest difference is {found}.")
        if np.isfinite(self.difference):
            lines.append(f"The likeliest token or label is the same at {self.same_choice:.2%} of the places.")
        if self.losses is not None:
            of_32, of_16 = self.losses
            lines.append(f"The loss of the texts, copied by the decoder: {of_32:.6f}, in {self.dtype} {of_16:.6f}.")
        return "\n".join(lines)


def measure(model: Model, batch: Batch, dtype: str) -> Result:
    """Runs a model twice on a batch of `batch_of`."""
    plain, rounded = _Largest(None), _Largest(dtype)
    logits, in_dtype = (_logits(model, batch, numbers) for numbers in (plain, rounded))
    real = _real_places(model, batch)
    ours, theirs = logits[real], in_dtype[real]
    finite = bool(np.isfinite(theirs).all())
    losses = None
    if model.family.has_decoder and not model.head.labels:
        targets = batch["decoder_target_tokens"]
        losses = forward.loss(logits, targets), forward.loss(in_dtype, targets) if finite else float("nan")
    return Result(
        dtype=dtype,
        layers=tuple(Layer(*where, largest) for where, largest in plain.found.items()),
        logits=float(np.abs(ours).max()),
        difference=float(np.abs(ours - theirs).max()) if finite else float("inf"),
        same_choice=float(np.mean(ours.argmax(-1) == theirs.argmax(-1))),
        losses=losses,
    )


def difference(a: Model, b: Model, batch: Batch) -> float:
    """The largest difference of a logit of two models, in float32."""
    real = _real_places(a, batch)
    return float(np.abs(_logits(a, batch, _Largest(None)) - _logits(b, batch, _Largest(None)))[real].max())


def batch_of(model: Model, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """The texts as the inputs of a model, and of a decoder as its targets, `[texts, length]`, up to 128 tokens each.

    Raises:
      ValueError: if the model has no vocabulary that can be read, or there is no text.
    """
    outputs: Any = t5_outputs if model.family.has_decoder else encoder_outputs
    rows = [list(found)[:_LONGEST] for text in texts if (found := outputs.text_tokens(model, text))]
    if not rows:
        raise ValueError(f"{model.path} has no vocabulary that can be read, or there is no text; give --vocab FILE.")
    pad = 0 if model.family.has_decoder else model.config.pad_id
    tokens = np.full((len(rows), max(map(len, rows)) + 1), pad, np.int32)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    if not model.family.has_decoder:
        tokens = tokens[:, : model.config.longest_row]
        return {"tokens": tokens, "token_types": np.zeros_like(tokens)}
    tokens[np.arange(len(rows)), [len(ids) for ids in rows]] = _eos_id(model)
    inputs = np.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=0)
    inputs[:, 0] = model.config.decoder_start_token_id
    return {"encoder_input_tokens": tokens, "decoder_input_tokens": inputs, "decoder_target_tokens": tokens}


def _eos_id(model: Model) -> int:
    from limba.tasks.pretraining import masked_text

    vocabulary: Any = masked_text.open_vocabulary(model.vocabulary or {})
    return vocabulary.eos_id


def _logits(model: Model, batch: Batch, numbers: "_Largest") -> np.ndarray:
    if numbers.dtype is not None:
        tensors = {name: _rounded(tensor, np.dtype(numbers.dtype)) for name, tensor in model.tensors.items()}
        model = dataclasses.replace(model, tensors=tensors)
    with interceptors.intercept(numbers):
        if not model.family.has_decoder:
            logits = encoder_outputs.untraced_logits(model, batch)
        elif model.head.labels:
            inputs = batch["encoder_input_tokens"]
            logits = forward.token_logits(networks.plain(model.config), model.head.labels, model.tensors, inputs)
        else:
            logits = forward.logits(networks.plain(model.config), model.tensors, batch)
    return np.asarray(numbers.rounded(logits))


def _rounded(tensor: SavedTensor, dtype: np.dtype) -> SavedTensor:
    """A tensor that is read in another type; what that cannot hold is infinite."""

    def read(index: Index) -> np.ndarray:
        with np.errstate(over="ignore"):
            return tensor.read(index).astype(dtype)

    return SavedTensor(tensor.shape, dtype, read)


def _real_places(model: Model, batch: Batch) -> np.ndarray:
    """Which logits mean something; those of a row have one place."""
    if model.family.has_decoder:
        return batch["encoder_input_tokens" if model.head.labels else "decoder_target_tokens"] != 0
    is_real = batch["tokens"] != model.config.pad_id
    return is_real[:, :1] if model.head.kind == heads.SEQUENCE else is_real


class _Largest:
    """An interceptor of Flax: the largest absolute value of what each layer takes and gives, perhaps rounded."""

    def __init__(self, dtype: str | None):
        self.dtype = dtype
        self.found: dict[tuple[str, str], float] = {}

    def rounded(self, x: Any) -> Any:
        """Arrays of floats in the type; others as they are."""
        if self.dtype is None or not isinstance(x, jax.Array | np.ndarray) or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return jnp.asarray(x).astype(self.dtype).astype(jnp.float32)

    def __call__(
        self, call: Callable[..., Any], args: tuple, kwargs: dict[str, Any], context: nn.module.InterceptorContext
    ) -> Any:
        # Copies of modules that compute a part of one have no path.
        path = "/".join(context.module.path)
        if not path or context.method_name == "setup" or not isinstance(context.module, _SEEN):
            return call(*args, **kwargs)
        args = jax.tree.map(self.rounded, args)
        self._see(path, "takes", args)
        outputs = jax.tree.map(self.rounded, call(*args, **kwargs))
        self._see(path, "gives", outputs)
        return outputs

    def _see(self, path: str, side: str, tree: Any) -> None:
        for x in jax.tree.leaves(tree):
            if jnp.issubdtype(x.dtype, jnp.floating) and x.size:
                largest = float(jnp.abs(x).max())
                self.found[path, side] = max(self.found.get((path, side), 0.0), largest)
