"""The export of an encoder with its head."""

from pathlib import Path
from typing import Any

from limba.convert.exports.export import Export
from limba.convert.families import heads
from limba.convert.families.config_files import encoder_config
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.convert.model_files.hf import tokenizer_folder
from limba.convert.model_files.model import EncoderModel
from limba.network.encoders.config import EncoderConfig


class EncoderExport(Export[EncoderFamily, EncoderConfig]):
    """See `Export`."""

    def __init__(self, model: EncoderModel):
        # transformers never had Flax classes for all of the families.
        super().__init__(model, ("safetensors",))

    @property
    def vocabulary_file(self) -> Path:
        return Path(self.vocabulary["tokenizer_file"])

    @property
    def warnings(self) -> tuple[str, ...]:
        found = [*self.model.warnings]
        if self.model.config.has_relative_keys:
            kind = self.model.config.position_embedding_type
            found.append(
                f"transformers 5 has no {kind}: it would load the folder without these tables and compute something "
                "else. Use transformers 4.57."
            )
        if self.model.family.is_new:
            found.append(f"transformers has {self.model_class} since version 5.")
        if self.model.not_held:
            found.append(
                f"Hugging Face has no {self.model.family.class_of(heads.PAIRS)}: the head for sentence pairs is left "
                f"out ({', '.join(self.model.not_held)})."
            )
        return tuple(found)

    def write_beside(self, folder: Path, dtype: str) -> dict[str, dict[str, Any]]:
        model, config = self.model, self.model.config
        ids = tokenizer_folder.write(
            self.vocabulary_file,
            folder,
            model.pad_id,
            row_length(model),
            config.num_token_types > 1,
            model.tokenizer_settings,
        )
        special_ids = {key: ids[role] for key, role in model.family.special_ids.items()}
        content = {
            "architectures": [self.model_class],
            "model_type": model.family.model_type,
            **model.head.settings(),
            **encoder_config.settings(model.family, config, model.head, model.pad_id),
            **special_ids,
            "torch_dtype": dtype,
        }
        return {"config.json": content}


def row_length(model: EncoderModel) -> int:
    """The tokens of the longest row that transformers makes, `model_max_length`.

    A model with labels is for rows as long as those of its run. Other runs and conversions keep what the folder said
    from which they came, where a run reads at least so many positions; it may be endless, for a table of positions.
    """
    config = model.config
    kept = model.tokenizer_settings.others.get("model_max_length", config.max_positions)
    of_run = model.info.get("feature_lengths", {}).get("inputs")
    if of_run is None:
        return kept
    wanted = of_run if model.head.labels else kept
    return wanted if config.longest_row is None else min(wanted, config.longest_row)
