"""The network and the vocabulary in a run's config.gin, read without importing the modules it names.

T5X writes the operative configuration into MODEL_DIR. It may import modules of the user, which a conversion
neither has nor needs.
"""

from typing import Any

from limba.checkpoint_files.run_folder import BYTES, SENTENCEPIECE
from limba.gin_config.recipe import Recipe, given


def read(text: str, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of T5Config, and the vocabulary as `run.json` describes it, as far as a gin file binds them.

    Raises:
      ValueError: if it is not gin.
    """
    recipe = Recipe.parse(text, where)
    chosen = str(recipe.macros.get("VOCABULARY", "")).removesuffix("()").rpartition(".")[2]
    kind = chosen if chosen in (SENTENCEPIECE, BYTES) else SENTENCEPIECE
    vocabulary = given(**recipe.parameters(kind))
    return given(**recipe.parameters("T5Config")), {"class": kind, **vocabulary} if vocabulary or chosen else {}
