"""Are two models the same? Parameters by name, then logits, and of T5s loss and greedy output, on the same tokens.

Models are run in our network and, for a Hugging Face folder, in other people's: a mistake in the table of names, which
both directions share, shows there.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from tqdm import tqdm

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare import encoder_outputs, float64, folder_tokens, forward, t5_outputs
from limba.convert.compare.comparison_rows import Comparison, compare_vocabularies, narrower
from limba.convert.compare.outputs import Logits, Measures, Output
from limba.convert.families import networks
from limba.convert.model_files import any_format
from limba.convert.model_files.model import Model

TEXT = (
    "The quick brown fox jumps over the lazy dog. Câinele leneș doarme; vulpea, nu. 12.5 % – „știi?” Über 3 Äpfel, "
    "ça va: быстрая лиса и собака, 狐は犬を跳び越える."
)


def compare(a: Model, b: Model, text: str = TEXT) -> list[Comparison]:
    """Compares two models: the text is encoded with the vocabulary of either.

    Logits are measured by those in float64 of a folder; see `convert.compare.float64`. Where the dtypes of tensors
    differ, both are rounded to the narrower.

    Raises:
      ValueError: if they are of different networks, or one cannot be read.
      NotFiniteError: if the logits of one are not finite.
    """
    if a.family.has_decoder != b.family.has_decoder:
        raise ValueError(f"A is {a.family.title} and B is {b.family.title}: one is an encoder alone.")
    outputs = t5_outputs if a.family.has_decoder else encoder_outputs
    settings = [outputs.compare_networks(a, b), *_assumed("A", a), *_assumed("B", b)]
    tokens_a, tokens_b = (outputs.text_tokens(model, text) for model in (a, b))
    rows = [outputs.compare_parameters(a, b), *settings, compare_vocabularies(tokens_a, tokens_b)]
    tensors_differ = bool(rows[0].value)
    are_alike = not tensors_differ and (networks.plain(a.config), a.head) == (networks.plain(b.config), b.head)
    dtype = narrower(a.dtype, b.dtype)
    a, b = a.cast(dtype), b.cast(dtype)
    batch = outputs.check_batch(a.config, np.asarray(tokens_a or tokens_b or (), np.int32))
    with tqdm(desc="comparing logits", unit=" passes", disable=None) as bar:
        # Others first: transformers has a process of its own, which is gone before our network takes memory.
        others: list[tuple[str, Model, Measures, Output]] = []
        for label, model in (("A", a), ("B", b)):
            if model.folder is not None:
                others.append((label, model, outputs.measures(model, batch), outputs.in_transformers(model, batch)))
                bar.update(2)
        of_a = outputs.in_limba(a, batch)
        bar.update()
        of_b: Logits | None = None  # Once more would be the same computation.
        if not are_alike:
            of_b = outputs.in_limba(b, batch)
            bar.update()
        targets = batch.get("decoder_target_tokens") if not a.head.labels else None
        measures = next((found for _, _, found, _ in others if not isinstance(found, str)), None)
        rows += _b_in_limba(of_a, of_b, tensors_differ, measures, targets)
        for label, _, found, output in others:
            rows += _compare_output(f"{label} in PyTorch", output, [*of_a], found, targets)
            rows += _compare_output(f"{label} in NumPy", Output(of_a), [*of_a], found, targets)
        if any(output.tokens is not None for *_, output in others):
            rows += t5_outputs.compare_tokens(a, batch, others)
            bar.update()
    return rows


def with_source(model: Model) -> Callable[[Path, Mapping[str, SavedTensor]], list[Comparison]]:
    """Compares the checkpoint in a folder, with all that it says of itself, with the model it was made of, and the
    tokens of this with those of transformers."""

    def run(path: Path, saved: Mapping[str, SavedTensor]) -> list[Comparison]:
        return [*folder_tokens.compare("A", model, TEXT), *compare(model, any_format.open_checkpoint(path))]

    return run


def _assumed(label: str, model: Model) -> Iterator[Comparison]:
    for name, value in model.assumed.items():
        yield Comparison(f"{name}, {label}", None, 0, f"assumed: {value}; the checkpoint does not say it")


def _b_in_limba(
    of_a: Logits, of_b: Logits | None, tensors_differ: bool, measures: Measures | None, targets: np.ndarray | None
) -> Iterator[Comparison]:
    for what, logits in of_a.items():
        row = f"{what}, B in Limba"
        if of_b is None:
            loss = "" if targets is None else f"; loss of random tokens {forward.loss(logits, targets):.6f}"
            yield Comparison(row, None, 0, f"those of A, as are tensors and network{loss}")
        elif tensors_differ:
            yield Comparison(row, float64.largest_difference(logits, of_b[what]), 0.0)
        elif measures is None or isinstance(measures, str):
            yield Comparison(row, None, 0, "not compared: neither is a folder to measure by")
        else:
            yield measures[what].compare(row, of_b[what])


def _compare_output(
    label: str, output: Output, kinds: list[str], measures: Measures, targets: np.ndarray | None
) -> Iterator[Comparison]:
    """Of logits, and of the loss of the targets if there are some."""
    for what in kinds:
        if isinstance(measures, str) or not output.logits:
            yield Comparison(f"{what}, {label}", None, 0, output.reason or str(measures))
            continue
        yield measures[what].compare(f"{what}, {label}", output.logits[what])
        if targets is not None:
            losses = [forward.loss(x, targets) for x in (output.logits[what], measures[what].logits)]
            # The logarithm of the sum and the target's logit may differ by as much as logits do.
            difference = abs(losses[0] - losses[1])
            yield measures[what].row(f"loss, {label}", difference, 2, f"{losses[0]:.6f}")
