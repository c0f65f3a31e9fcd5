"""LongT5 (arXiv:2112.07916): T5 1.1 whose encoder attends to a window, and perhaps to sums of blocks."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

from limba.convert.families import t5_1_0
from limba.convert.families.config_keys import t5_keys
from limba.convert.families.config_keys.keys import carried, table
from limba.convert.families.heads import Head
from limba.convert.families.t5_family import ROWS, T5Family
from limba.convert.tensors.table import Row, Tensor
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1
from limba.files.untrusted_files import shown
from limba.network import long_attention
from limba.network.t5 import T5Config

_USUAL = {"encoder_attention_type": long_attention.LOCAL, "local_radius": 127, "global_block_size": 16}
USUAL_SUMS = _USUAL | {"encoder_attention_type": long_attention.TRANSIENT_GLOBAL}
# The models on the hub have 127. transformers' class, which a check runs, pads a row of ten tokens to three blocks of
# the radius, and computes the logits of all of them.
_RADIUS = AT_LEAST_1._replace(below=512)
# flaxformer's classes.
_CLASSES = {
    long_attention.LOCAL: "EncoderLocalSelfAttention",
    long_attention.TRANSIENT_GLOBAL: "EtcTransientGlobalSelfAttention",
}
_MODULES = {long_attention.LOCAL: "LocalSelfAttention", long_attention.TRANSIENT_GLOBAL: "TransientGlobalSelfAttention"}


def fields(file: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `T5Config` for a config.json with all keys. Raises ValueError for a value out of range."""
    found = {key: content[key] for key in long_attention.FIELDS}
    if (kind := found["encoder_attention_type"]) not in tuple(_MODULES):  # It may be a list, which no table asks for.
        raise ValueError(f"{file}: encoder_attention_type is {shown(kind)}; it is one of {', '.join(_MODULES)}.")
    for key, allowed in (("local_radius", _RADIUS), ("global_block_size", AT_LEAST_1)):
        number_ranges.check(f"{file}: {key}", found[key], allowed)
    if (size := found["global_block_size"]) & (size - 1):
        raise ValueError(f"{file}: global_block_size is {size}; Limba's LongT5 has powers of 2.")
    return found


def fields_of_flaxformer(bound: Callable[[str], Mapping[str, Any]]) -> dict[str, Any]:
    """The same for one of flaxformer's gin files, of which `bound` gives the parameters of a class."""
    for kind, name in _CLASSES.items():
        if found := bound(name):
            values = kind, found.get("local_radius"), found.get("tokens_per_block")
            return {key: value for key, value in zip(long_attention.FIELDS, values, strict=True) if value is not None}
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongT5Family(T5Family):
    """See `T5Family`. The modules of the encoder's attention are named for its kind."""

    layer_kind: ClassVar[str] = "long"
    numpy_forward: ClassVar[str] = "limba.convert.compare.numpy_longt5"

    def with_t5_keys(self, file: Path, content: Mapping[str, Any], ignored: Collection[str] = ()) -> dict[str, Any]:
        found = super().with_t5_keys(file, content, ignored)
        fields(file, self.completed(found))
        return found

    def make_network(self, content: Mapping[str, Any], **fields: Any) -> T5Config:
        return T5Config(**fields, **{key: content[key] for key in long_attention.FIELDS})

    def layer_keys(self, network: T5Config) -> dict[str, Any]:
        return {key: getattr(network, key) for key in long_attention.FIELDS}

    def table(self, network: T5Config, head: Head, pad_id: int = 0) -> list[Tensor]:
        of_kind = dataclasses.replace(self, rows=_rows(_MODULES[network.encoder_attention_type]))
        return T5Family.table(of_kind, network, head, pad_id)


def _rows(attention: str) -> tuple[Row, ...]:
    """T5's rows, with the attention of the encoder's layers under another name, and what sums of blocks have."""
    first, layer = (f"encoder.block.{i}.layer.0.{attention}" for i in ("0", "{i}"))
    return (
        *(
            Row(row.limba, row.theirs.replace("SelfAttention", attention) if "encoder" in row.theirs else row.theirs)
            for row in ROWS
        ),
        Row("encoder/side_relpos_bias", f"{first}.global_relative_attention_bias"),
        Row("encoder/layers_{i}/attention/T5LayerNorm_0", f"{layer}.global_input_layer_norm"),
    )


FAMILY = LongT5Family(
    name="longt5",
    title="LongT5",
    model_type="longt5",
    model_class="LongT5ForConditionalGeneration",
    network={"relative_bias_per_layer": False},
    recognized_by="its encoder has LongT5's attention (encoder_attention_type)",
    in_bytes=None,
    defaults={**t5_1_0.FAMILY.defaults, **_USUAL},
    in_transformers=True,
    keys=t5_keys.KEYS
    | table(
        *carried(
            encoder_attention_type="encoder_attention_type",
            local_radius="local_radius",
            global_block_size="global_block_size",
        )
    ),
)
