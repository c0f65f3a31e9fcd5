"""The export of a T5."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from convert.compare import comparison
from convert.compare.comparison_rows import Comparison
from convert.families import hf_config
from convert.hf import card_example, hf_tokenizer, run_example, t5_card
from convert.hf.model_card import Description
from convert.model_files import any_format
from convert.model_files.any_format import Model, ModelHints
from convert.tensors import names, tensor_parts
from limba.checkpoint_files.saved_tensors import SavedTensor


class T5Export:
    """See `convert.exports.export.Export`."""

    def __init__(self, checkpoint: str | Path, hints: ModelHints):
        self.model: Model = any_format.open_checkpoint(checkpoint, hints)
        family = self.model.family
        if self.model.head and not family.in_transformers:
            raise ValueError(
                f"{self.model.path} is a classifier of tokens, and transformers has none of {family.title}; `limba "
                "infer` answers with it."
            )
        self.tokenizer = hf_tokenizer.from_vocabulary(self.model.known_vocabulary())

    @property
    def model_class(self) -> str:
        return self.model.family.classifier_class if self.model.head else self.model.family.model_class

    @property
    def formats(self) -> tuple[str, ...]:
        return ("safetensors",) if self.model.head else ("safetensors", "flax")

    @property
    def vocabulary_file(self) -> Path | None:
        return self.tokenizer.model_file

    @property
    def warnings(self) -> tuple[str, ...]:
        return (*self.model.warnings, *self.tokenizer.warnings)

    def check_example(self, text: str) -> None:
        """Any text will do."""

    def write_beside(self, folder: Path, dtype: str) -> dict[str, dict[str, Any]]:
        model, lengths = self.model, self.model.info.get("feature_lengths", {})
        hf_tokenizer.write(
            self.tokenizer,
            folder,
            model.tokenizer_settings,
            model_type=model.family.model_type,
            inputs_length=lengths.get("inputs"),
        )
        if model.head:
            return {"config.json": hf_config.classifier_config(model.config, model.family, model.head, dtype)}
        return {
            "config.json": hf_config.model_config(model.config, model.family, dtype, lengths.get("inputs")),
            "generation_config.json": hf_config.generation_config(model.config, model.family, lengths.get("targets")),
        }

    def stored(self, format_: str, dtype: str) -> dict[str, SavedTensor]:
        result = {}
        for row in names.tensors(self.model.config, len(self.model.labels)):
            stored = row.flax if format_ == "flax" else row.torch
            where = f"The checkpoint's {row.limba}"
            tensor = tensor_parts.cast(self.model.tensors[row.limba], jnp.dtype(dtype), where)
            result[self.model.family.tensor_name(stored.name)] = stored.orient(tensor)
        return result

    def compare(self, folder: Path, format_: str) -> list[Comparison]:
        return comparison.compare(self.model, any_format.open_model(folder, format_=format_))

    def describe(self, text: str, gin: str, formats: Sequence[str], dtype: str) -> Description:
        model = self.model
        if model.head:
            return t5_card.describe_classifier(
                model.family, model.config, model.labels, self.tokenizer.vocabulary, dtype, text, model.assumed
            )
        example = _example(model, gin, text)
        return t5_card.describe(
            model.family, model.config, self.tokenizer.vocabulary, formats, dtype, example, model.assumed
        )


def _example(model: Model, gin: str, text: str) -> card_example.Example | None:
    """For the card: the run's own, with the user's text if there is one; None if the run names no task."""
    found = None
    if model.info.get("task") and run_example.modules(gin):
        try:
            found = run_example.of_run(model.info, gin)
        except ValueError as error:
            remedy = "" if text else " The example of the model card is a neutral one; --example TEXT gives another."
            print(f"warning: the data of the run cannot be read: {str(error).rstrip('.')}.{remedy}", file=sys.stderr)
    if not text:
        return found
    return dataclasses.replace(found or card_example.Example("text", text), kind="text", inputs=text, targets="")
