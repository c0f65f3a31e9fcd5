"""The example of a model card: a program that runs as pasted, and shows what the model was trained to do."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from limba.files import json_text
from limba.reports import markdown

BLANK = "<extra_id_0>"
# Tokens of an answer to a blank: a model that was only pre-trained fills all sentinels, one after the other.
_BLANK_TOKENS = 20
_MOST_LABELS = 20
_MOST_PAIRS = 5
_TEXT_BEHIND_SENTINEL = re.compile(r"<extra_id_\d+>(?=\S)")
# For weights of Flax alone; docs/conversion.md has the same lines.
_OLD_JAX = """\
import jax.numpy as jnp
from transformers.models.t5 import modeling_flax_t5


class OldNumpy:  # transformers 4 calls jnp.clip with arguments that JAX no longer has
    clip = staticmethod(lambda x, a_min=None, a_max=None: jnp.clip(x, min=a_min, max=a_max))
    __getattr__ = lambda self, name: getattr(jnp, name)


modeling_flax_t5.jnp = OldNumpy()
"""


@dataclasses.dataclass(frozen=True)
class Example:
    """What a model card shows, and what it says of the data.

    Attributes:
      kind: "blank" for a sentence with a blank, "row" for a row of a task with answers, "text" for the user's own,
        "neutral" where no data are known.
      inputs: the text to give to the model.
      targets: what the data have as its answer; "" where that is not known.
      template, labels: of a supervised task, where it has them.
      split: of the data, "validation" or "train".
      datasets: the data sets of the task on the Hugging Face hub.
    """

    kind: str
    inputs: str
    targets: str = ""
    template: str = ""
    labels: tuple[str, ...] = ()
    split: str = "validation"
    datasets: tuple[str, ...] = ()

    @property
    def data(self) -> str:
        """What the split is called in a sentence."""
        return "training data" if self.split == "train" else "validation data"


@dataclasses.dataclass(frozen=True)
class Texts:
    """What becomes of the texts of an example.

    Attributes:
      written: a text as the model writes it, whose vocabulary may normalize it.
      adds_spaces: whether the class of the tokenizer reads a space behind each sentinel in transformers 5.
    """

    written: Callable[[str], str] = str
    adds_spaces: bool = False


AS_THEY_ARE = Texts()


def neutral(vocabulary: Mapping[str, Any]) -> Example:
    """An example in no language, for a model of which no data are known; `vocabulary` is as in `run.json`."""
    return Example("neutral", f"1, 2, 3, {BLANK}, 5, 6." if vocabulary["extra_ids"] else "1, 2, 3,")


def section(example: Example, formats: Sequence[str], use_cache: bool = True, texts: Texts = AS_THEY_ARE) -> str:
    """The section "Use" of a card.

    Args:
      formats: of the weights: "safetensors", "flax" or both.
      use_cache: False leaves transformers' cache out, which 4.57 makes too short for a decoder deeper than its encoder.
    """
    program = markdown.python_block(_program(example, formats, use_cache))
    parts = ["## Use", *_before(example, texts), program, *_after(example, texts)]
    if "safetensors" not in formats:
        parts.append("These are weights for Flax, which transformers has up to version 4.57.")
    return "\n\n".join(parts)


def _before(example: Example, texts: Texts) -> Iterator[str]:
    data = "training data" if example.split == "train" else "validation data"
    if example.kind == "blank":
        yield f"The model fills blanks. This sentence of the {data} has one in the place of a word:"
    if example.template:
        yield f"The model answers inputs of the form {markdown.code(example.template)}."
    if example.labels:
        shown = [markdown.code(texts.written(label)) for label in example.labels[:_MOST_LABELS]]
        more = f" and {len(example.labels) - _MOST_LABELS} more" if len(example.labels) > _MOST_LABELS else ""
        yield f"Its answers are {', '.join(shown)}{more}."
    if example.kind == "row":
        yield f"A row of the {data}:"
    if example.kind == "neutral":
        yield "Put a text of your own in the place of this one:"


def _after(example: Example, texts: Texts) -> Iterator[str]:
    if example.targets:
        what = "The word that belongs there" if example.kind == "blank" else "The answer in the data"
        yield f"{what} is {markdown.code(texts.written(example.targets))}."
    # Of a text that is no label its characters, as it may be long.
    pairs = {given: texts.written(given) for given in example.labels or dict.fromkeys(example.targets)}
    if changed := [f"{markdown.code(made)} for {markdown.code(x)}" for x, made in pairs.items() if made not in ("", x)]:
        more = f" and {len(changed) - _MOST_PAIRS} more" if len(changed) > _MOST_PAIRS else ""
        yield (
            f"The vocabulary normalizes texts: the model writes {', '.join(changed[:_MOST_PAIRS])}{more}. Normalize "
            "the answers of the data likewise before you compare texts."
        )
    if texts.adds_spaces and (found := _TEXT_BEHIND_SENTINEL.search(example.inputs)):
        yield (
            f"transformers 5 reads a space behind {markdown.code(found[0])}, which this text does not have and "
            "training did not read; `PreTrainedTokenizerFast` in the place of `AutoTokenizer` reads what training read."
        )


def _program(example: Example, formats: Sequence[str], use_cache: bool) -> str:
    flax = "safetensors" not in formats
    model_class = "FlaxAutoModelForSeq2SeqLM" if flax else "AutoModelForSeq2SeqLM"
    tensors, output = ("np", ".sequences") if flax else ("pt", "")
    options = ["**inputs"]
    if example.kind != "row":
        options.append(f"max_new_tokens={_BLANK_TOKENS}")
    reason = ""
    if not use_cache:
        options.append("use_cache=False")
        reason = "# The cache of transformers 4 is too short for a decoder that is deeper than the encoder.\n"
    # A sentinel in the answer is a special token too.
    plain = example.kind == "row" and BLANK not in example.targets and not any(BLANK in x for x in example.labels)
    decoded = "tokenizer.decode(output[0], skip_special_tokens=True)" if plain else "tokenizer.decode(output[0])"
    return (
        f"from transformers import {model_class}, AutoTokenizer\n"
        f"{_OLD_JAX if flax else ''}\n"
        'folder = "."  # the folder of this file, or the name of its repository\n'
        "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
        f"model = {model_class}.from_pretrained(folder)\n"
        f"text = {json_text.dumps(example.inputs, ensure_ascii=False)}\n"
        f'inputs = tokenizer(text, return_tensors="{tensors}")\n'
        f"{reason}output = model.generate({', '.join(options)}){output}\n"
        f"print({decoded})"
    )
