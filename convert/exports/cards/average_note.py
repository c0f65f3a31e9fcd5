"""What a card says of a model that is an average of the parameters of a run."""

from collections.abc import Mapping
from typing import Any

from limba.gin_config.recipe import Recipe


def sentences(average: bool, run: Mapping[str, Any], gin: str) -> list[str]:
    """A paragraph, or none.

    Args:
      average: the model is the moving average that the run kept.
      run: `run.json`, where `limba average` writes which checkpoints it took.
      gin: the run's config.gin.
    """
    if average:
        decay = Recipe.parse(gin).parameters("AveragedOptimizer").get("decay")
        of = f" (decay {decay})" if isinstance(decay, float) else ""
        return [f"Its parameters are an exponential moving average{of} of those that were trained."]
    steps = run.get("mean_of", {}).get("steps") if isinstance(run.get("mean_of"), dict) else None
    if isinstance(steps, list) and all(isinstance(step, int) for step in steps):
        shown = ", ".join(f"{step:,}" for step in steps)
        return [f"Its parameters are the mean of {len(steps)} checkpoints of the training, those of the steps {shown}."]
    return []
