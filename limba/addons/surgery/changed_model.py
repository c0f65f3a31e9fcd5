"""What the commands of `limba vocab` count: the lines of a corpus, and what a model costs before and after."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.model_files.model import Model
from limba.convert.tensors import tensor_parts
from limba.network.flops import forward_flops


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a model before or after."""

    pieces: int
    rows: int
    lines: int
    tokens: int
    unknown: int
    in_bytes: int
    parameters: int
    megabytes: float
    forward_flops: float
    logits_share: float


def source(corpus: Sequence[str], text_column: str) -> Any:
    """The corpus, a `corpora.ShardedSource`. Raises ValueError or OSError if there is none."""
    from limba.tasks.sources import corpora

    found = corpora.HuggingFaceSource({"train": list(corpus)}, [text_column])
    found.check("train")
    return found


def lines(corpus: Sequence[str], text_column: str, what: str) -> Iterator[str]:
    """The lines of the corpus, with a progress bar. Raises ValueError or OSError at once if there is none."""
    from limba.tasks.vocabularies import training_text

    text = training_text.TrainingText(source(corpus, text_column), text_column=text_column)
    print(what, file=sys.stderr)
    return filter(None, training_text.sentences(text))


# -------------------------------------------------------- report ------------------------------------------------------


def sizes(model: Model[Any, Any], usage: Any, num_pieces: int, bytes_each: int) -> Sizes:
    """Of a model, and of the lines of a corpus that are `trimmed_pieces.Usage`."""
    lengths = {"inputs": 512, "targets": 114} | dict(model.info.get("feature_lengths") or {})
    inputs, targets, fields = lengths["inputs"], lengths["targets"], vars(model.config)
    if not model.family.has_decoder:  # Each position has logits.
        targets = 0 if model.head.labels else inputs
        fields = fields | {"num_encoder_layers": model.config.num_layers, "num_decoder_layers": 0}
    flops = forward_flops(fields, inputs, targets)
    logits = flops - forward_flops({**fields, "vocab_size": 0}, inputs, targets)
    return Sizes(
        pieces=num_pieces,
        rows=model.config.vocab_size,
        lines=usage.lines,
        tokens=usage.tokens,
        unknown=usage.unknown,
        in_bytes=usage.in_bytes,
        parameters=model.num_parameters,
        megabytes=round(sum(map(_num_elements, model.tensors.values())) * bytes_each / 1e6, 3),
        forward_flops=flops,
        logits_share=logits / flops,
    )


def _num_elements(tensor: SavedTensor) -> int:
    return tensor_parts.num_bytes(tensor) // np.dtype(tensor.dtype).itemsize


def report(before: Sizes, after: Sizes) -> str:
    """A table with a column for before and one for after."""
    show: dict[str, Callable[[Sizes], str]] = {
        "pieces": lambda x: f"{x.pieces:,}",
        "rows of the embedding": lambda x: f"{x.rows:,}",
        "tokens per line": lambda x: f"{x.tokens / x.lines:.3f}",
        "unknown tokens": lambda x: f"{x.unknown:,}",
        "tokens that are bytes": lambda x: f"{x.in_bytes:,}",
        "parameters": lambda x: f"{x.parameters:,}",
        "megabytes": lambda x: f"{x.megabytes:,.1f}",
        "GFLOPs of a forward pass": lambda x: f"{x.forward_flops / 1e9:,.3f}",
        "share of logits in them": lambda x: f"{x.logits_share:.1%}",
    }
    of_corpus = ("tokens per line", "unknown tokens", "tokens that are bytes")
    shown = [f"{'':26}{'before':>16}{'after':>16}"]
    shown += [
        f"{name:26}{value(before):>16}{value(after):>16}"
        for name, value in show.items()
        if before.lines or name not in of_corpus
    ]
    return "\n".join(shown)
