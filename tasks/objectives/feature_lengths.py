"""How long the features of an objective are; and objectives with the settings of a paper.

NumPy only, so that gin files and planning tools compute lengths without TensorFlow:

    TASK_FEATURE_LENGTHS = @objectives.span_corruption_lengths()

and for the other objectives:

    TASK_FEATURE_LENGTHS = @objectives.lengths()
    objectives.lengths.objective = @objectives.PrefixLM()
"""

import dataclasses
from collections.abc import Sequence

from limba.tasks.objectives.objective import Objective
from limba.tasks.objectives.span_objectives import SpanCorruption
from limba.tasks.objectives.text_objectives import BertStyle, PrefixLM


def lengths(objective: Objective, length: int = 512) -> dict[str, int]:
    """Feature lengths of an objective for `length` inputs (targets, where an objective has no inputs)."""
    return objective.lengths(length)


def span_corruption_lengths(
    inputs_length: int = 512, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> dict[str, int]:
    """Feature lengths of span corruption: `{"inputs": 512, "targets": 114}` for T5's defaults."""
    if not isinstance(inputs_length, int) or isinstance(inputs_length, bool) or inputs_length < 1:
        raise ValueError(
            f"span_corruption_lengths.inputs_length is {inputs_length!r}; it is a number of tokens, such as 512."
        )
    return SpanCorruption(noise_density, mean_noise_span_length).lengths(inputs_length)


def byt5_span_corruption() -> SpanCorruption:
    """ByT5's objective: spans of 20 bytes (arXiv:2105.13626)."""
    return SpanCorruption(mean_noise_span_length=20.0)


def mass_style(noise_density: float = 0.15) -> BertStyle:
    """T5's MASS-style masking: `BertStyle` without random tokens."""
    return BertStyle(noise_density, random_token_rate=0.0)


# ------------------------------------------------------- UL2 ---------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Denoiser:
    """One of the objectives of a mixture of denoisers.

    Attributes:
      name: R, X or S and what it masks; ends the name of its task.
      objective: makes examples of windows.
      mode: the text in front of the inputs that tells the model which objective is meant.
    """

    name: str
    objective: Objective
    mode: str


# Table 1 of UL2 (arXiv:2205.05131) with the mode tokens of its published checkpoints. The sequential denoiser is, as in
# the code of the paper's appendix, T5's prefix LM.
UL2_DENOISERS = (
    Denoiser("r_span3", SpanCorruption(0.15, 3.0), "[NLU]"),
    Denoiser("r_span8", SpanCorruption(0.15, 8.0), "[NLU]"),
    Denoiser("x_span3", SpanCorruption(0.5, 3.0), "[NLG]"),
    Denoiser("x_span8", SpanCorruption(0.5, 8.0), "[NLG]"),
    Denoiser("x_span64", SpanCorruption(0.15, 64.0), "[NLG]"),
    Denoiser("x_span64_half", SpanCorruption(0.5, 64.0), "[NLG]"),
    Denoiser("s_prefix_lm", PrefixLM(), "[S2S]"),
)


def ul2_lengths(inputs_length: int = 512, denoisers: Sequence[Denoiser] = UL2_DENOISERS) -> dict[str, int]:
    """Feature lengths of a mixture of denoisers: the longest targets of any of them."""
    longest = max(denoiser.objective.lengths(inputs_length)["targets"] for denoiser in denoisers)
    return {"inputs": inputs_length, "targets": longest}
