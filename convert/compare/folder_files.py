"""What of a Hugging Face folder `comparison.compare` does not read: weights in further formats, lost and damaged files.

A folder may have its weights several times, and a check of one of them says nothing of the others.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from limba.convert.compare import encoder_outputs, exported_files, t5_outputs
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import hf_tokenizer, older_tokenizers, stray_weights, tokenizer_settings
from limba.convert.model_files.model import Model, ModelHints
from limba.convert.tensors import weight_files
from limba.files import untrusted_json
from limba.files.output_folder import REPORT, read_report
from limba.files.untrusted_files import shown_list

_GENERATION = "generation_config.json"
_READ = (
    *("config.json", "tokenizer.json", "added_tokens.json", REPORT),
    *(tokenizer_settings.CONFIG, tokenizer_settings.SPECIAL_TOKENS_MAP, *tokenizer_settings.FILES),
)
# What people, trainers and the hub leave beside a model, and folders.
NO_PART = re.compile(
    r"(?i)^\.|\.(md|png|jpe?g|gif|svg|webp|pdf|ipynb|log|jsonl|lock|gin)$|^(licen[cs]e|notice|use_policy)"
    r"|^(trainer_state|(all|eval|train|predict|test|generate)_results|all_metrics|run|model_index|rescale|repair)\.json$|^events\.out"
    r"|^(optimizer|scheduler|scaler|rng_state|training_args)\b|^[^.]*$"
)


def compare(label: str, model: Model, hints: ModelHints) -> Iterator[Comparison]:
    """The rows of a folder's other files; none for a checkpoint, whose report, if it has one, must be readable.

    Args:
      label: of the model in the table.
      model: that was opened with the hints.
    """
    folder = Path(str(model.path))
    if not folder.is_dir():
        return
    report = read_report(folder)
    if model.folder is None:
        return
    names = sorted(file.name for file in folder.iterdir())
    if report:
        there = [name for name in {*names, *(report.get("files") or ())} if (folder / name).is_file()]
        yield from exported_files.compare(label, folder, report, there, by_hash=False)
    yield from _damaged(label, folder, names)
    yield from _of_report(label, model, report)
    yield from _of_config(label, model, model.folder.content)
    yield from _two_tokenizers(label, model, folder, names)
    known = {_GENERATION} if model.family.has_decoder else set()
    for format_ in weight_files.formats(names):
        known |= {*weight_files.of_format(names, format_)}
        if format_ != model.folder.format:
            yield _of_format(label, model, format_, hints)
            known.add(weight_files.index_name(weight_files.FILES[format_]))
    if weight_files.is_in_shards(folder, model.folder.format):
        known.add(weight_files.index_name(weight_files.FILES[model.folder.format]))
    others = {*stray_weights.named(stray_weights.files_below(folder)), *_unknown(names, model.family.has_decoder)}
    if others := others - known:
        yield Comparison(f"files not read, {label}", None, 0, f"not compared: {shown_list(sorted(others))}")


def _of_report(label: str, model: Model, report: Mapping[str, Any]) -> Iterator[Comparison]:
    """Whether the weights are as exact as the report says: rounded ones are not those that were exported."""
    told = report.get("dtype")
    found = sorted({np.dtype(tensor.dtype).name for tensor in model.tensors.values()})
    if told is not None:
        yield Comparison(
            f"weights rounded, {label}", int(found != [told]), 0, f"{', '.join(found)}; exported was {told}"
        )


def _of_config(label: str, model: Model, content: Mapping[str, Any]) -> Iterator[Comparison]:
    """transformers 5 loads weights in the dtype that config.json names; T5's `wo` may stay in float32 there."""
    named = content.get("dtype", content.get("torch_dtype"))
    found = sorted({np.dtype(tensor.dtype).name for tensor in model.tensors.values()})
    if named in ("float16", "bfloat16") and found == ["float32"]:
        yield Comparison(
            f"weights that transformers rounds, {label}", 1, 0, f"config.json names {named}, and they are float32"
        )


def _two_tokenizers(label: str, model: Model, folder: Path, names: list[str]) -> Iterator[Comparison]:
    """Whether older files of the tokenizer have the tokens of tokenizer.json: one class reads these, another that."""
    what, found = f"tokenizers that differ, {label}", ""
    if "tokenizer.json" not in names:
        return
    if not model.family.has_decoder or hf_tokenizer.SPIECE not in names:
        is_there = older_tokenizers.has_files(folder)
        found = older_tokenizers.differences(folder) if is_there else ""
    else:
        is_there = True
        from limba.tasks.vocabularies import tokenizer_texts

        differences = tokenizer_texts.differences_of_files(
            hf_tokenizer.open_model(folder / hf_tokenizer.SPIECE, None).vocabulary, folder
        )
        found = differences.describe("tokenizer.json", hf_tokenizer.SPIECE) if differences else ""
    if found:  # The model has one of the two.
        yield Comparison(what, None, 0, f"not compared: {found.rstrip('.')}")
    elif is_there:
        yield Comparison(what, 0, 0, "in tokenizer.json and the older files beside it")


def _unknown(names: list[str], has_decoder: bool) -> Iterator[str]:
    """The files of which nothing is known but that they lie in the folder."""
    older = (older_tokenizers.BYTES,) if has_decoder else older_tokenizers.FILES
    tokenizer = {hf_tokenizer.SPIECE} if has_decoder and hf_tokenizer.SPIECE in names else {*itertools.chain(*older)}
    for name in names:
        if name not in _READ and name not in tokenizer and not NO_PART.search(name):
            yield name


def _damaged(label: str, folder: Path, names: list[str]) -> Iterator[Comparison]:
    problems = []
    found = [name for name in names if name.endswith(".json")]
    for name in found:
        try:
            untrusted_json.read(folder / name)
        except (OSError, ValueError) as error:
            problems.append(str(error))
    note = f"of {len(found)} of JSON{': ' if problems else ''}{'; '.join(problems[:2])}"
    yield Comparison(f"files damaged, {label}", len(problems), 0, note)


def _of_format(label: str, model: Model, format_: str, hints: ModelHints) -> Comparison:
    """Whether the weights in a further format are those that were read."""
    assert model.folder is not None
    what = f"parameters that differ, {label} in {format_}"
    if format_ == "flax" and not model.family.has_decoder:
        return Comparison(what, None, 0, f"not compared: {weight_files.FILES[format_]} of encoders is not read")
    outputs: ModuleType = t5_outputs if model.family.has_decoder else encoder_outputs
    try:
        other = any_format.open_model(model.path, hints, format_)
        row = outputs.compare_parameters(model, other)
    except (OSError, ValueError) as error:
        return Comparison(what, 1, 0, f"they cannot be read: {error}")
    return dataclasses.replace(row, what=what)
