"""The export of an encoder with its masked language model's head."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from convert.compare import comparison, encoder_comparison
from convert.compare.comparison_rows import Comparison
from convert.encoders import encoder_model, tensors, tokenizer_folder
from convert.encoders.encoder_model import EncoderModel
from convert.hf import markdown
from convert.hf.model_card import Description
from convert.model_files.any_format import ModelHints
from convert.tensors import tensor_parts
from limba.checkpoint_files.saved_tensors import SavedTensor


class EncoderExport:
    """See `convert.exports.export.Export`."""

    # transformers never had Flax classes for all of the families.
    formats = ("safetensors",)

    def __init__(self, checkpoint: str | Path, hints: ModelHints):
        self.model: EncoderModel = encoder_model.open_checkpoint(checkpoint, hints)
        self.vocabulary = self.model.known_vocabulary()
        self.vocabulary_file: Path | None = Path(self.vocabulary["tokenizer_file"])

    @property
    def warnings(self) -> tuple[str, ...]:
        if not self.model.config.has_relative_keys:
            return ()
        kind = self.model.config.position_embedding_type
        return (
            f"transformers 5 has no {kind}: it would load the folder without these tables and compute something else. "
            "Use transformers 4.57.",
        )

    def check_example(self, text: str) -> None:
        if text and self._mask not in text:
            raise ValueError(f"--example {text!r}: the model fills {self._mask}, which the text does not have.")

    def write_beside(self, folder: Path, dtype: str) -> dict[str, dict[str, Any]]:
        model, config = self.model, self.model.config
        assert self.vocabulary_file is not None
        ids = tokenizer_folder.write(
            self.vocabulary_file, folder, model.pad_id, config.max_positions, has_pairs=config.num_token_types > 1
        )
        special_ids = {key: ids[role] for key, role in model.family.special_ids.items()}
        content = {
            "architectures": [model.family.model_class],
            "model_type": model.family.model_type,
            **model.family.settings(config, model.pad_id),
            **special_ids,
            "tie_word_embeddings": True,
            "torch_dtype": dtype,
        }
        return {"config.json": content}

    def stored(self, format_: str, dtype: str) -> dict[str, SavedTensor]:
        model = self.model.cast(jnp.dtype(dtype))
        rows = tensors.table(model.config, model.family, model.pad_id)
        result = {row.name: row.stored(model.tensors) for row in rows}
        return {name: tensor_parts.cast(t, jnp.dtype(dtype), name) for name, t in result.items()}

    def compare(self, folder: Path, format_: str) -> list[Comparison]:
        return encoder_comparison.compare(
            self.model, encoder_model.open_folder(folder, format_=format_), comparison.TEXT
        )

    @property
    def _mask(self) -> str:
        assert self.vocabulary_file is not None
        return tokenizer_folder.special_tokens(self.vocabulary_file)["mask"]

    def describe(self, text: str, gin: str, formats: Sequence[str], dtype: str) -> Description:
        config, family = self.model.config, self.model.family
        program = (
            "from transformers import pipeline\n\n"
            'folder = "."  # the folder of this file, or the name of its repository\n'
            'fill = pipeline("fill-mask", model=folder)\n'
            f"for answer in fill({text or f'1, 2, 3, {self._mask}, 5, 6.'!r}):\n"
            '    print(answer["sequence"], answer["score"])'
        )
        parts = ["## Use", markdown.python_block(program), *self.warnings]
        positions = config.position_embedding_type.replace("_", " ")
        return Description(
            title=f"A {family.title} encoder",
            tag=family.name,
            pipeline="fill-mask",
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
            accuracy="accuracy of the masked tokens",
        )
