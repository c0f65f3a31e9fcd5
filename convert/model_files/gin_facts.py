"""The network and the vocabulary in a run's config.gin, read without importing the modules it names.

T5X writes the operative configuration into MODEL_DIR. It may import modules of the user, which a conversion
neither has nor needs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from limba.checkpoint_files.run_folder import BYTES, SENTENCEPIECE
from limba.gin_config.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class GinFacts:
    """Parameters that a gin file binds, macros put in: `T5Config`'s, and of the vocabulary."""

    network: Mapping[str, Any]
    vocabulary: Mapping[str, Any]


def read(text: str, where: str) -> GinFacts:
    """Reads a gin file.

    Raises:
      ValueError: if it is not gin.
    """
    recipe = Recipe.parse(text, where)
    chosen = str(recipe.macros.get("VOCABULARY", "")).removesuffix("()").rpartition(".")[2]
    kind = chosen if chosen in (SENTENCEPIECE, BYTES) else SENTENCEPIECE
    network, vocabulary = (
        {name: value for name, value in recipe.parameters(of).items() if value is not None} for of in ("T5Config", kind)
    )
    return GinFacts(network, {"class": kind, **vocabulary} if vocabulary or chosen else {})
