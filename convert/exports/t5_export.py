"""The export of a T5."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from limba.convert.exports.cards import card_example, t5_card
from limba.convert.exports.cards.model_card import Description
from limba.convert.exports.export import Export
from limba.convert.families.config_files import t5_config
from limba.convert.families.t5_family import T5Family
from limba.convert.model_files.hf import hf_tokenizer
from limba.convert.model_files.model import T5Model
from limba.data import sentinels
from limba.network.t5 import T5Config


class T5Export(Export[T5Family, T5Config]):
    """See `Export`."""

    def __init__(self, model: T5Model):
        family = model.family
        if model.head.labels and (family.layer_kind != "t5" or not family.in_transformers):
            raise ValueError(
                f"{model.path} is a classifier of tokens on an encoder, and transformers has none of {family.title}; "
                "`limba infer` answers with it."
            )
        in_flax = family.in_flax and not (model.head.labels or model.pad_id)
        super().__init__(model, ("safetensors", "flax") if in_flax else ("safetensors",))
        self.tokenizer = hf_tokenizer.from_vocabulary(self.vocabulary)
        self._tokenizer_class = ""  # known when it is written

    @property
    def vocabulary_file(self) -> Path | None:
        return self.tokenizer.model_file

    @property
    def warnings(self) -> tuple[str, ...]:
        family = self.model.family
        new = (f"transformers has {family.model_class} since version 5.",) if family.is_new else ()
        code = (family.code,) if family.code else ()
        return (*self.model.warnings, *self.tokenizer.warnings, *new, *code)

    def check_example(self, text: str) -> None:
        """Any text will do."""

    def write_beside(self, folder: Path, dtype: str) -> dict[str, dict[str, Any]]:
        model, lengths = self.model, self.model.info.get("feature_lengths", {})
        hf_tokenizer.write(
            self.tokenizer,
            folder,
            dataclasses.replace(model.tokenizer_settings, pad_id=model.pad_id),
            model_type=model.family.model_type,
            inputs_length=lengths.get("inputs"),
        )
        self._tokenizer_class = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))["tokenizer_class"]
        network, family = model.config, model.family
        eos_id = t5_config.in_folder(self.tokenizer.special.eos.id, model.pad_id)
        ids = {"pad_token_id": model.pad_id, "eos_token_id": eos_id}
        if model.head.labels:
            return {"config.json": t5_config.classifier_config(network, family, model.head, dtype, ids)}
        return {
            "config.json": t5_config.model_config(network, family, dtype, lengths.get("inputs"), ids),
            "generation_config.json": t5_config.generation_config(network, family, lengths.get("targets"), ids),
        }

    def describe(self, text: str, gin: str, formats: Sequence[str], dtype: str) -> Description:
        model = self.model
        if model.head.labels:
            return t5_card.describe_classifier(
                model.family, model.config, model.head.labels, self.tokenizer.vocabulary, dtype, text, model.assumed
            )
        example = self.run_example(gin, bool(text))
        if text:
            example = example or card_example.Example("text", text)
            example = dataclasses.replace(example, kind="text", inputs=text, targets="")
        if example and self.tokenizer.sentinel_names:  # As transformers' tokenizer reads them.
            texts: dict[str, Any] = {name: sentinels.as_masks(getattr(example, name)) for name in ("inputs", "targets")}
            example = dataclasses.replace(example, **texts)
        return t5_card.describe(
            family=model.family,
            network=model.config,
            vocabulary=self.tokenizer.vocabulary,
            formats=formats,
            dtype=dtype,
            example=example,
            assumed=model.assumed,
            texts=card_example.Texts(self._written(), self._tokenizer_class in hf_tokenizer.T5_CLASSES),
        )

    def _written(self) -> Callable[[str], str]:
        """What makes of a text the one that the model writes: the vocabulary's normalization."""
        file = self.tokenizer.model_file
        if file is None:
            return str
        from limba.tasks.vocabularies import SentencePieceVocabulary, T5TokenizerVocabulary, normalization

        vocabulary: Any
        if self.tokenizer.is_json:
            vocabulary = T5TokenizerVocabulary(str(file))
        else:
            vocabulary = SentencePieceVocabulary(str(file), extra_ids=self.tokenizer.extra_ids)
        return functools.partial(normalization.normalized, vocabulary)
