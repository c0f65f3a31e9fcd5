"""ByT5 (arXiv:2105.13626): T5 1.1 on bytes."""

import dataclasses

from limba.convert.families import t5_1_1

FAMILY = dataclasses.replace(
    t5_1_1.FAMILY,
    name="byt5",
    title="ByT5",
    network={"relative_bias_per_layer": False},
    in_bytes=True,
    recognized_by="its vocabulary is bytes",
)
