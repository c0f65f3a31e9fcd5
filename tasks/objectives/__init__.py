"""Pre-training objectives: how a window of text becomes `inputs` and `targets`. NumPy only.

Imports nothing of Limba; every room of `tasks` may import it. gin files and task modules use these names.
"""

from limba.tasks.objectives.feature_lengths import (
    UL2_DENOISERS,
    Denoiser,
    byt5_span_corruption,
    lengths,
    mass_style,
    span_corruption_lengths,
    ul2_lengths,
)
from limba.tasks.objectives.masked_lm import MaskedLM
from limba.tasks.objectives.objective import CorruptedBatch, Objective, VocabularyIds, example_seeds, missing_names
from limba.tasks.objectives.span_objectives import IidDenoising, SpanCorruption
from limba.tasks.objectives.text_objectives import BertStyle, Deshuffling, FullLM, PrefixLM

__all__ = [
    "UL2_DENOISERS",
    "BertStyle",
    "CorruptedBatch",
    "Denoiser",
    "Deshuffling",
    "FullLM",
    "IidDenoising",
    "MaskedLM",
    "Objective",
    "PrefixLM",
    "SpanCorruption",
    "VocabularyIds",
    "byt5_span_corruption",
    "example_seeds",
    "lengths",
    "mass_style",
    "missing_names",
    "span_corruption_lengths",
    "ul2_lengths",
]
