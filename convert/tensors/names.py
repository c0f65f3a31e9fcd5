"""The names, shapes and orientations of a T5's tensors in Limba (T5X), PyTorch and Flax: one table, read both ways.

Limba's names are those of unrolled layers with joined kernels, `encoder/layers_0/attention/query/kernel`; other layouts
of the layers become these while they are read (`limba.checkpoint_files.layer_layouts`).
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from convert.tensors.tensor_parts import transposed
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.machine.untrusted_files import cut
from limba.network.t5 import NUM_BUCKETS, T5Config

Shape = tuple[int, ...]
_Row = tuple[str, str, tuple[str, ...]]

_BIAS = "layer.0.SelfAttention.relative_attention_bias"

# Limba's name, Hugging Face's module and the dims of Limba's tensor, in the words of the logical axes.
_MODEL = (
    ("token_embedder/embedding", "shared", ("vocab", "embed")),
    ("encoder/encoder_norm/scale", "encoder.final_layer_norm", ("embed",)),
    ("decoder/decoder_norm/scale", "decoder.final_layer_norm", ("embed",)),
)
_BIAS_OF_STACK = (
    ("encoder/relpos_bias/rel_embedding", f"encoder.block.0.{_BIAS}", ("heads", "buckets")),
    ("decoder/relpos_bias/rel_embedding", f"decoder.block.0.{_BIAS}", ("heads", "buckets")),
)
_BIAS_OF_LAYER = (("relpos_bias/rel_embedding", _BIAS, ("heads", "buckets")),)  # umT5
_UNTIED = (("decoder/logits_dense/kernel", "lm_head", ("embed", "vocab")),)

# Of a classifier of tokens, in whose class the T5 is a module.
TRANSFORMER = "transformer"
_CLASSIFIER = (
    ("classifier_head/logits/kernel", "classifier", ("embed", "labels")),
    ("classifier_head/logits/bias", "classifier", ("labels",)),
)

_ENCODER_LAYER = (
    ("pre_attention_layer_norm/scale", "layer.0.layer_norm", ("embed",)),
    ("attention/query/kernel", "layer.0.SelfAttention.q", ("embed", "joined_kv")),
    ("attention/key/kernel", "layer.0.SelfAttention.k", ("embed", "joined_kv")),
    ("attention/value/kernel", "layer.0.SelfAttention.v", ("embed", "joined_kv")),
    ("attention/out/kernel", "layer.0.SelfAttention.o", ("joined_kv", "embed")),
    ("pre_mlp_layer_norm/scale", "layer.1.layer_norm", ("embed",)),
    ("mlp/WI/kernel", "layer.1.DenseReluDense.WI", ("embed", "mlp")),
    ("mlp/wo/kernel", "layer.1.DenseReluDense.wo", ("mlp", "embed")),
)
_DECODER_LAYER = (
    ("pre_self_attention_layer_norm/scale", "layer.0.layer_norm", ("embed",)),
    ("self_attention/query/kernel", "layer.0.SelfAttention.q", ("embed", "joined_kv")),
    ("self_attention/key/kernel", "layer.0.SelfAttention.k", ("embed", "joined_kv")),
    ("self_attention/value/kernel", "layer.0.SelfAttention.v", ("embed", "joined_kv")),
    ("self_attention/out/kernel", "layer.0.SelfAttention.o", ("joined_kv", "embed")),
    ("pre_cross_attention_layer_norm/scale", "layer.1.layer_norm", ("embed",)),
    ("encoder_decoder_attention/query/kernel", "layer.1.EncDecAttention.q", ("embed", "joined_kv")),
    ("encoder_decoder_attention/key/kernel", "layer.1.EncDecAttention.k", ("embed", "joined_kv")),
    ("encoder_decoder_attention/value/kernel", "layer.1.EncDecAttention.v", ("embed", "joined_kv")),
    ("encoder_decoder_attention/out/kernel", "layer.1.EncDecAttention.o", ("joined_kv", "embed")),
    ("pre_mlp_layer_norm/scale", "layer.2.layer_norm", ("embed",)),
    ("mlp/WI/kernel", "layer.2.DenseReluDense.WI", ("embed", "mlp")),
    ("mlp/wo/kernel", "layer.2.DenseReluDense.wo", ("mlp", "embed")),
)

# By the last part of Limba's name: transposed in PyTorch, the last part of the name in Flax, transposed in Flax.
_KINDS = {
    "kernel": (True, "kernel", False),
    "bias": (False, "bias", False),
    "scale": (False, "weight", False),
    "embedding": (False, "embedding", False),
    "rel_embedding": (True, "embedding", True),
}


@dataclasses.dataclass(frozen=True)
class Stored:
    """One tensor as a foreign format keeps it: `shared.weight` in PyTorch, `shared/embedding` in Flax."""

    name: str
    shape: Shape
    transposed: bool  # Against Limba.

    def orient(self, tensor: SavedTensor) -> SavedTensor:
        """Limba's tensor as this format's, or this format's as Limba's."""
        return transposed(tensor) if self.transposed else tensor


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One parameter in every format; `limba` and `shape` are those of unrolled layers."""

    limba: str
    shape: Shape
    torch: Stored
    flax: Stored


def tensors(config: T5Config, num_labels: int = 0) -> list[Tensor]:
    """`classifier_table` where there are labels, else `table`."""
    return classifier_table(config, num_labels) if num_labels else table(config)


def table(config: T5Config) -> list[Tensor]:
    """Every tensor of a network, in the order in which exports are written."""
    return _tensors(config, _rows(config))


def classifier_table(config: T5Config, num_labels: int) -> list[Tensor]:
    """Every tensor of a classifier of tokens: the encoder's, and the head's; see `table`."""
    return _tensors(config, _rows_of_classifier(config), num_labels)


def _tensors(config: T5Config, rows: Iterable[_Row], num_labels: int = 0) -> list[Tensor]:
    sizes = {
        "vocab": config.vocab_size,
        "embed": config.emb_dim,
        "joined_kv": config.num_heads * config.head_dim,
        "mlp": config.mlp_dim,
        "heads": config.num_heads,
        "buckets": NUM_BUCKETS,
        "labels": num_labels,
    }
    return [_tensor(limba, module, tuple(sizes[dim] for dim in dims)) for limba, module, dims in rows]


def _rows_of_classifier(config: T5Config) -> Iterator[_Row]:
    for limba, module, dims in _rows(config):
        if not limba.startswith("decoder/"):
            yield limba, f"{TRANSFORMER}.{module}", dims
    yield from _CLASSIFIER


def _rows(config: T5Config) -> Iterator[_Row]:
    per_layer = config.relative_bias_per_layer
    yield from _MODEL
    yield from () if config.logits_via_embedding else _UNTIED
    yield from () if per_layer else _BIAS_OF_STACK
    branches = len(config.mlp_activations)
    wi_names = ["wi"] if branches == 1 else [f"wi_{i}" for i in range(branches)]
    stacks = (
        ("encoder", config.num_encoder_layers, _ENCODER_LAYER),
        ("decoder", config.num_decoder_layers, _DECODER_LAYER),
    )
    for stack, num_layers, rows in stacks:
        for layer in range(num_layers):
            for limba, module, dims in (_BIAS_OF_LAYER if per_layer else ()) + rows:
                for wi in wi_names if "WI" in limba else [""]:
                    yield (
                        f"{stack}/layers_{layer}/{limba.replace('WI', wi)}",
                        f"{stack}.block.{layer}.{module.replace('WI', wi)}",
                        dims,
                    )


def _tensor(limba: str, module: str, shape: Shape) -> Tensor:
    torch_transposed, flax_leaf, flax_transposed = _KINDS[limba.rpartition("/")[2]]
    torch_shape = shape[::-1] if torch_transposed else shape
    flax_shape = shape[::-1] if flax_transposed else shape
    return Tensor(
        limba,
        shape,
        torch=Stored(f"{module}.{'bias' if flax_leaf == 'bias' else 'weight'}", torch_shape, torch_transposed),
        flax=Stored(f"{module.replace('.', '/')}/{flax_leaf}", flax_shape, flax_transposed),
    )


def shapes(config: T5Config, num_labels: int = 0) -> dict[str, Shape]:
    """Shapes of the parameters, by name, of unrolled layers; see `tensors`."""
    return {t.limba: t.shape for t in tensors(config, num_labels)}


def verify(what: str, found: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> None:
    """Checks that `what` has exactly the wanted tensors.

    Raises:
      ValueError: naming the tensors that are missing, extra or of another shape.
    """
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{cut(name)} has no place in the network" for name in found if name not in wanted]
    problems += [
        f"{name} has shape {found[name]} instead of {shape}"
        for name, shape in wanted.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    if problems:
        more = f", and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise ValueError(f"{what} does not fit its network configuration: {', '.join(problems[:8])}{more}.")
