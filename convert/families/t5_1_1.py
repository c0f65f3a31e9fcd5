"""T5 1.1, also Flan and the LM-adapted models: an output matrix of its own."""

import dataclasses

from limba.convert.families import t5_1_0

FAMILY = dataclasses.replace(
    t5_1_0.FAMILY,
    name="t5_1_1",
    title="T5 1.1",
    network={"logits_via_embedding": False, "relative_bias_per_layer": False},
    recognized_by="there is an output matrix (decoder/logits_dense), and one table of relative positions a stack",
)
