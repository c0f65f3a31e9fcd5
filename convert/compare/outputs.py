"""What a model computes, as the comparison has it from every implementation."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from limba.convert.compare.float64 import Measure

Batch = Mapping[str, np.ndarray]
# Logits by what they are of: "logits" of tokens or labels, and "pair logits" of sentence pairs.
Logits = Mapping[str, np.ndarray]
NO_ADDON = "this Limba has no add-on that runs transformers' classes"


@dataclasses.dataclass(frozen=True)
class Output:
    """The output of one implementation: logits and perhaps greedy tokens, or the reason why there are none."""

    logits: Logits = dataclasses.field(default_factory=dict)
    tokens: np.ndarray | None = None
    reason: str = ""


# In float64, by what they are of; or the reason why there are none.
Measures = Mapping[str, Measure] | str
