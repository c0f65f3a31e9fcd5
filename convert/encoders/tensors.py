"""The tensors of a class of Hugging Face, made from Limba's and read as Limba's: one table for both ways.

Each is a selection of rows of Limba's tensors, kernels transposed: joined (ModernBERT's query, key and value), in
another order (pairs of rotary positions, ids), or with rows before them (RoBERTa's positions).
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from convert.encoders.family import Family, Row
from convert.families.heads import Head
from limba.checkpoint_files.saved_tensors import SavedTensor, from_array
from limba.encoders.config import EncoderConfig

Shape = tuple[int, ...]

# The last part of Hugging Face's names by that of ours, and which tensors are transposed in PyTorch.
_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "rel_embedding": "weight", "bias": "bias"}
_TRANSPOSED = ("kernel", "rel_embedding")


@dataclasses.dataclass(frozen=True)
class Part:
    """One of Limba's tensors in one of Hugging Face's.

    Attributes:
      limba: its name, of unrolled layers.
      shape: of Limba's.
      rows: which of its rows, once it is transposed, each row of the part is; -1 is a row of zeros. None is all.
    """

    limba: str
    shape: Shape
    rows: np.ndarray | None = None

    @property
    def is_transposed(self) -> bool:
        return self.limba.rpartition("/")[2] in _TRANSPOSED

    @property
    def num_rows(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return self.shape[-1] if self.is_transposed else self.shape[0]

    def stored(self, tensor: SavedTensor) -> np.ndarray:
        whole = np.asarray(tensor)
        whole = whole.T if self.is_transposed else whole
        if self.rows is None:
            return whole
        with_zeros = np.concatenate([whole, np.zeros_like(whole[:1])])
        return with_zeros[self.rows]

    def limbas(self, part: np.ndarray) -> np.ndarray:
        """Limba's tensor of the part's rows."""
        if self.rows is not None:
            kept = self.rows >= 0
            whole = np.empty((int(kept.sum()), *part.shape[1:]), part.dtype)
            whole[self.rows[kept]] = part[kept]
            part = whole
        return part.T if self.is_transposed else part


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of Hugging Face's.

    Attributes:
      parts: one after the other; none for one that Limba's network has no parameter for.
      constant: the value of such a one.
    """

    name: str
    shape: Shape
    parts: tuple[Part, ...] = ()
    constant: np.ndarray | None = None

    def stored(self, tensors: Mapping[str, SavedTensor]) -> SavedTensor:
        """It, of a network's tensors by Limba's names."""
        if self.constant is not None:
            return from_array(self.constant)

        def whole() -> np.ndarray:
            return np.concatenate([part.stored(tensors[part.limba]) for part in self.parts])

        return _lazy(self.shape, tensors[self.parts[0].limba].dtype, whole)

    def limbas(self, stored: SavedTensor) -> dict[str, SavedTensor]:
        """Limba's tensors that are in it, by name."""
        found, start = {}, 0
        for part in self.parts:
            rows = slice(start, start + part.num_rows)
            start = rows.stop
            found[part.limba] = _lazy(part.shape, stored.dtype, functools.partial(_read_part, part, stored, rows))
        return found


def _read_part(part: Part, stored: SavedTensor, rows: slice) -> np.ndarray:
    return part.limbas(stored.read((rows, *(slice(None),) * (stored.ndim - 1))))


def _lazy(shape: Shape, dtype: np.dtype, whole: Callable[[], np.ndarray]) -> SavedTensor:
    return SavedTensor(shape, dtype, lambda index: whole()[index])


def plain(config: EncoderConfig) -> EncoderConfig:
    """The network unrolled and in float32, without what belongs to a run; two equal ones compute the same."""
    return dataclasses.replace(
        config,
        dtype=jnp.float32,
        scan_layers=False,
        kernels="xla",
        remat_policy="none",
        mlp_activations=tuple(config.mlp_activations),
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        initializer_range=1.0,
        param_scan_axis=1,
        float32_attention_logits=True,
    )


def shapes(config: EncoderConfig, head: Head) -> dict[str, Shape]:
    """The shapes of a network's parameters, by the names of unrolled layers."""
    return dict(_shapes(plain(config), head))


@functools.lru_cache(maxsize=8)
def _shapes(config: EncoderConfig, head: Head) -> dict[str, Shape]:
    init = functools.partial(head.network(config).init, enable_dropout=False)
    variables = jax.eval_shape(init, jax.random.key(0), jax.ShapeDtypeStruct((1, 1), jnp.int32))
    return {name: x.shape for name, x in traverse_util.flatten_dict(variables["params"], sep="/").items()}


def table(config: EncoderConfig, head: Head, family: Family, pad_id: int) -> list[Tensor]:
    """Every tensor of a folder with the padding `pad_id`; ids are exchanged if it is another one than the network's."""
    parts: dict[str, list[tuple[int, Part]]] = {}
    for name, shape in shapes(config, head).items():
        place, theirs = _theirs(name, (*family.rows, *family.heads[head.kind].rows), family.name)
        parts.setdefault(theirs, []).append((place, Part(name, shape, _rows_of(name, shape, config, family, pad_id))))
    found = []
    for name, placed in parts.items():
        of_tensor = tuple(part for _, part in sorted(placed, key=lambda pair: pair[0]))
        inner = of_tensor[0].shape[::-1] if of_tensor[0].is_transposed else of_tensor[0].shape
        found.append(Tensor(name, (sum(part.num_rows for part in of_tensor), *inner[1:]), of_tensor))
    found += [Tensor(name, x.shape, constant=x) for name, x in family.constants(config, pad_id).items()]
    return sorted(found, key=lambda tensor: _in_order(tensor.name))


def _theirs(name: str, rows: Sequence[Row], family: str) -> tuple[int, str]:
    """The row of a family that names a tensor of Limba's, and Hugging Face's name of it."""
    module, _, leaf = name.rpartition("/")
    layer = re.search(r"/layers_(\d+)/", name)
    number = layer[1] if layer else ""
    for place, row in enumerate(rows):
        if row.limba.replace("{i}", number) == module:
            return place, f"{row.theirs.replace('{i}', number)}.{_LEAVES[leaf]}"
    raise AssertionError(f"{family} has no place for {name}, which its `problems` should say")


def _in_order(name: str) -> list[tuple[int, str]]:
    """Layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _rows_of(name: str, shape: Shape, config: EncoderConfig, family: Family, pad_id: int) -> np.ndarray | None:
    """`Part.rows` of a tensor."""
    if name in ("token_embedder/embedding", "mlm_head/bias") and pad_id != config.pad_id:
        return exchanged(shape[0], config.pad_id, pad_id)
    if name == "encoder/position_embedder/embedding" and (first := family.first_position(pad_id)):
        return np.concatenate([np.full(first, -1), np.arange(shape[0])])
    if (
        config.position_embedding_type == "rotary"
        and config.rotary_pairs != family.rotary_pairs
        and re.search(r"/(query|key)/", name)
    ):
        return _other_pairs(config)
    return None


def exchanged(size: int, a: int, b: int) -> np.ndarray:
    """The numbers below `size`, with `a` and `b` in each other's place."""
    ids = np.arange(size)
    ids[[a, b]] = b, a
    return ids


def _other_pairs(config: EncoderConfig) -> np.ndarray:
    """Outputs of query or key in the order that the other value of `rotary_pairs` has."""
    pairs = config.head_dim // 2
    inner = (2, pairs) if config.rotary_pairs == "halves" else (pairs, 2)
    size = config.num_heads * math.prod(inner)
    return np.arange(size).reshape(config.num_heads, *inner).swapaxes(1, 2).reshape(size)
