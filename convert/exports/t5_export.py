"""The export of a T5."""

import dataclasses
from pathlib import Path
from typing import Any

from limba.convert.exports.export import Export
from limba.convert.families.config_files import t5_config
from limba.convert.families.t5_family import T5Family
from limba.convert.model_files.hf import hf_tokenizer
from limba.convert.model_files.model import T5Model
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

    @property
    def vocabulary_file(self) -> Path | None:
        return self.tokenizer.model_file

    @property
    def warnings(self) -> tuple[str, ...]:
        family = self.model.family
        new = (f"transformers has {family.model_class} since version 5.",) if family.is_new else ()
        code = (family.code,) if family.code else ()
        return (*self.model.warnings, *self.tokenizer.warnings, *new, *code)

    def write_beside(self, folder: Path, dtype: str) -> dict[str, dict[str, Any]]:
        model, lengths = self.model, self.model.info.get("feature_lengths", {})
        hf_tokenizer.write(
            self.tokenizer,
            folder,
            dataclasses.replace(model.tokenizer_settings, pad_id=model.pad_id),
            model_type=model.family.model_type,
            inputs_length=lengths.get("inputs"),
        )
        network, family = model.config, model.family
        eos_id = t5_config.in_folder(self.tokenizer.special.eos.id, model.pad_id)
        ids = {"pad_token_id": model.pad_id, "eos_token_id": eos_id}
        if model.head.labels:
            return {"config.json": t5_config.classifier_config(network, family, model.head, dtype, ids)}
        return {
            "config.json": t5_config.model_config(network, family, dtype, lengths.get("inputs"), ids),
            "generation_config.json": t5_config.generation_config(network, family, lengths.get("targets"), ids),
        }
