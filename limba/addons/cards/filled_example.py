"""What an encoder fills into the example of its model card."""

import dataclasses
from pathlib import Path

import numpy as np

from limba.addons.cards.card_example import BLANK, Example
from limba.convert.compare import encoder_outputs
from limba.convert.model_files.hf import tokenizer_folder
from limba.convert.model_files.model import EncoderModel


@dataclasses.dataclass(frozen=True)
class FilledExample:
    """A text with a mask.

    Attributes:
      text: the text.
      source: where the text comes from, and the word that stands there, as the beginning of a sentence; or "".
    """

    text: str
    source: str = ""


def find(found: Example | None, text: str, mask: str) -> FilledExample:
    """The user's text; else that of the run's data, if it is a sentence; else one in no language."""
    if text:
        return FilledExample(text)
    if found is not None and found.kind == "blank":
        source = f"A sentence of the {found.data} without its word “{found.targets}”. "
        return FilledExample(found.inputs.replace(BLANK, mask), source)
    return FilledExample(f"1, 2, 3, {mask}, 5, 6.")


def sentence(model: EncoderModel, file: str | Path, example: FilledExample, mask: str) -> str:
    """What the card says of the example: where it comes from, and the model's own answer."""
    ids = tokenizer_folder.encode(file, example.text)[: model.config.longest_row]
    mask_id = tokenizer_folder.special_ids(file)["mask"]
    if mask_id not in ids:  # The text is too long.
        return example.source
    tokens = np.asarray([ids], np.int32)
    logits = encoder_outputs.limba_logits(model, {"tokens": tokens, "token_types": np.zeros_like(tokens)})[
        0, ids.index(mask_id)
    ]
    shares = np.exp(logits - logits.max())
    best = int(shares.argmax())
    word = tokenizer_folder.decode(file, [best]).strip()
    return f"{example.source}The model fills `{mask}` with “{word}” ({shares[best] / shares.sum():.1%})."
