"""LongT5's family: Hugging Face's keys and names of tensors, and flaxformer's classes in T5X's gin files."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from limba.addons.longt5.long_attention import LOCAL, TRANSIENT_GLOBAL
from limba.addons.longt5.longt5 import LongT5Config
from limba.convert.families import t5_1_0
from limba.convert.families.config_keys import t5_keys
from limba.convert.families.config_keys.keys import carried, table
from limba.convert.families.heads import Head
from limba.convert.families.t5_family import ROWS, T5Family
from limba.convert.tensors.table import Row, Tensor
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1
from limba.files.untrusted_files import shown
from limba.network.t5 import T5Config

# Of `LongT5Config`, and in transformers'.
_FIELDS = ("encoder_attention_type", "local_radius", "global_block_size")
_NAME = "longt5"
# The models on the hub have 127. transformers' class, which a check runs, pads a row of ten tokens to three blocks of
# the radius, and computes the logits of all of them.
_RADIUS = AT_LEAST_1._replace(below=512)
# flaxformer's classes.
_CLASSES = {LOCAL: "EncoderLocalSelfAttention", TRANSIENT_GLOBAL: "EtcTransientGlobalSelfAttention"}
_MODULES = {LOCAL: "LocalSelfAttention", TRANSIENT_GLOBAL: "TransientGlobalSelfAttention"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongT5Family(T5Family):
    """See `T5Family`. The modules of the encoder's attention are named for its kind."""

    layer_kind: ClassVar[str] = "long"
    config_class: ClassVar[type[T5Config]] = LongT5Config
    numpy_forward: ClassVar[str] = "limba.addons.longt5.numpy_longt5"

    def with_t5_keys(self, file: Path, content: Mapping[str, Any], ignored: Collection[str] = ()) -> dict[str, Any]:
        found = super().with_t5_keys(file, content, ignored)
        completed = self.completed(found)
        if (kind := completed["encoder_attention_type"]) not in tuple(_MODULES):  # It may be a list.
            raise ValueError(f"{file}: encoder_attention_type is {shown(kind)}; it is one of {', '.join(_MODULES)}.")
        for key, allowed in (("local_radius", _RADIUS), ("global_block_size", AT_LEAST_1)):
            number_ranges.check(f"{file}: {key}", completed[key], allowed)
        if (size := completed["global_block_size"]) & (size - 1):
            raise ValueError(f"{file}: global_block_size is {size}; Limba's LongT5 has powers of 2.")
        return found

    def make_network(self, content: Mapping[str, Any], **fields: Any) -> LongT5Config:
        return LongT5Config(**fields, **{key: content[key] for key in _FIELDS})

    def layer_keys(self, network: T5Config) -> dict[str, Any]:
        return {key: getattr(network, key) for key in _FIELDS}

    def fields_of_t5x(self, parameters: Callable[[str], Mapping[str, Any]]) -> dict[str, Any]:
        """See `T5Family.fields_of_t5x`: flaxformer has a class for each kind of attention."""
        found = dict(parameters(LongT5Config.__name__))
        for kind, name in _CLASSES.items():
            if bound := parameters(name):
                values = kind, bound.get("local_radius"), bound.get("tokens_per_block")
                found |= {key: x for key, x in zip(_FIELDS, values, strict=True) if x is not None}
        return found and found | {"family": _NAME}

    def fields_of_names(self, names: Collection[str]) -> dict[str, Any]:
        has_sums = "encoder/side_relpos_bias/rel_embedding" in names
        return {"encoder_attention_type": TRANSIENT_GLOBAL} if has_sums else {}

    def table(self, network: T5Config, head: Head, pad_id: int = 0) -> list[Tensor]:
        assert isinstance(network, LongT5Config)
        of_kind = dataclasses.replace(self, rows=tuple(_rows(_MODULES[network.encoder_attention_type])))
        return T5Family.table(of_kind, network, head, pad_id)


def _rows(attention: str) -> Iterator[Row]:
    """T5's rows, with the attention of the encoder's layers under another name, and what sums of blocks have."""
    for row in ROWS:
        yield Row(row.limba, row.theirs.replace("SelfAttention", attention) if "encoder" in row.theirs else row.theirs)
    first, layer = (f"encoder.block.{i}.layer.0.{attention}" for i in ("0", "{i}"))
    yield Row("encoder/side_relpos_bias", f"{first}.global_relative_attention_bias")
    yield Row("encoder/layers_{i}/attention/T5LayerNorm_0", f"{layer}.global_input_layer_norm")


FAMILY = LongT5Family(
    name=_NAME,
    title="LongT5",
    model_type="longt5",
    model_class="LongT5ForConditionalGeneration",
    network={"relative_bias_per_layer": False},
    recognized_by="its network is a LongT5Config",
    in_bytes=None,
    defaults={**t5_1_0.FAMILY.defaults, "encoder_attention_type": LOCAL, "local_radius": 127, "global_block_size": 16},
    in_transformers=True,
    keys=t5_keys.KEYS | table(*carried(**{field: field for field in _FIELDS})),
)
