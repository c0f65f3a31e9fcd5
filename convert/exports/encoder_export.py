"""The export of an encoder with its head."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limba.convert.exports import filled_example
from limba.convert.exports.cards import markdown
from limba.convert.exports.cards.model_card import Description
from limba.convert.exports.export import Export
from limba.convert.families import heads
from limba.convert.families.config_files import encoder_config
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.convert.model_files.hf import tokenizer_folder
from limba.convert.model_files.model import EncoderModel
from limba.network.encoders.config import EncoderConfig

# What the hub calls the use of a kind of head.
_PIPELINES = {
    **dict.fromkeys((heads.MASKED_LM, heads.PAIRS), "fill-mask"),
    heads.SEQUENCE: "text-classification",
    heads.TOKENS: "token-classification",
    heads.DETECTOR: "feature-extraction",
}

_NOUNS = {
    heads.REGRESSION: "regressor",
    heads.SINGLE_LABEL: "classifier",
    heads.MULTI_LABEL: "classifier of several labels",
}

_PROGRAM_OF_DETECTORS = """import torch
from transformers import AutoModelForPreTraining, AutoTokenizer

folder = "."  # the folder of this file, or the name of its repository
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForPreTraining.from_pretrained(folder)
batch = tokenizer({text}, return_tensors="pt")
with torch.no_grad():
    is_replaced = model(**batch).logits[0] > 0
print(tokenizer.convert_ids_to_tokens(batch.input_ids[0][is_replaced]))"""


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

    def check_example(self, text: str) -> None:
        if self.model.head.kind in (heads.MASKED_LM, heads.PAIRS) and text and self._mask not in text:
            raise ValueError(f"--example {text!r}: the model fills {self._mask}, which the text does not have.")

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

    @property
    def _mask(self) -> str:
        return tokenizer_folder.special_tokens(self.vocabulary_file)["mask"]

    def describe(self, text: str, gin: str, formats: Sequence[str], dtype: str) -> Description:
        config, family, head = self.model.config, self.model.family, self.model.head
        parts = ["## Use", *self.warnings]
        of_run = None if text or head.kind in (heads.TOKENS, heads.DETECTOR) else self.run_example(gin)
        if head.labels:
            what = {heads.REGRESSION: "Scores are numbers", heads.MULTI_LABEL: "Labels, of which any may be right"}.get(
                head.problem, "Labels"
            )
            what = "The score is a number" if head.is_number and len(head.labels) == 1 else what
            parts.append(f"{what}: {', '.join(map(markdown.code, head.labels))}.")
            if of_run is not None and of_run.kind == "row":
                text = of_run.inputs
                answer = f", which says {markdown.code(of_run.targets)}" if of_run.targets else ""
                parts.append(f"The text is a row of the {of_run.data}{answer}.")
        elif head.kind == heads.DETECTOR:
            text = text or "1, 2, 3, 7, 5, 6."
            parts.append("The program prints the tokens that the model takes for replaced ones.")
        else:
            example = filled_example.find(of_run, text, self._mask)
            text = example.text
            parts.insert(1, filled_example.sentence(self.model, self.vocabulary_file, example, self._mask))
        parts.insert(1, markdown.python_block(self._program(text)))
        positions = config.position_embedding_type.replace("_", " ")
        return Description(
            title=f"A {family.title} {_NOUNS[head.problem] if head.labels else 'encoder'}",
            tag=family.name,
            pipeline=_PIPELINES[head.kind],
            use="\n\n".join(parts),
            network=(
                ("layers", str(config.num_layers)),
                ("width", f"{config.emb_dim}; {config.num_heads} heads of {config.head_dim}; MLP {config.mlp_dim}"),
                ("activation", " × ".join(config.mlp_activations)),
                ("norms", f"{config.norm.replace('_', ' ')}, {config.norm_position}"),
                ("positions", positions),
                ("stored as", dtype),
                ("vocabulary", f"{self.vocabulary['vocab_size']:,} ids; {config.vocab_size:,} rows of the embedding"),
            ),
            accuracy=f"accuracy of the {'labels' if head.labels else 'masked tokens'}",
        )

    def _program(self, text: str) -> str:
        """The use in transformers."""
        if self.model.head.kind == heads.DETECTOR:
            return _PROGRAM_OF_DETECTORS.format(text=repr(text))
        head, kind = self.model.head, self.model.head.kind
        options = ', aggregation_strategy="first"' if kind == heads.TOKENS else ""
        if head.is_number:
            options = ', function_to_apply="none"'  # Version 4 would apply a sigmoid.
        if kind == heads.SEQUENCE and head.problem_type is not None:
            options += ", top_k=None"  # all of them, not the largest alone
        begin = (
            "from transformers import pipeline\n\n"
            'folder = "."  # the folder of this file, or the name of its repository\n'
            f'model = pipeline("{_PIPELINES[kind]}", model=folder{options})\n'
        )
        if not head.labels:
            return f'{begin}for answer in model({text!r}):\n    print(answer["sequence"], answer["score"])'
        first, separator, second = (text or "A text.").partition("[SEP]")
        asked = repr(first.strip())
        if kind == heads.SEQUENCE and separator:
            asked = f'{{"text": {asked}, "text_pair": {second.strip()!r}}}'
        return f"{begin}print(model({asked}))"


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
