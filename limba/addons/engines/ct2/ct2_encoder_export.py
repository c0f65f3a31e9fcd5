"""An encoder on its way into a CTranslate2 folder."""

from collections.abc import Sequence
from pathlib import Path

from limba.addons.engines import engine_export
from limba.addons.engines.ct2 import ct2_encoder, ct2_encoder_check, ct2_export, ct2_tokens
from limba.addons.engines.ct2.ct2_export import Ct2Export
from limba.convert.compare.comparison import TEXT
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import tokenizer_folder
from limba.convert.model_files.model import EncoderModel
from limba.convert.tensors.table import exchanged
from limba.network.encoders.config import EncoderConfig


class EncoderExport(Ct2Export[EncoderFamily, EncoderConfig]):
    """See `EngineExport`; the errors are those of `limba.addons.engines.ct2.ct2_t5_export.T5Export`."""

    notes = (
        *Ct2Export.notes,
        "The vector of a text is the mean of the hidden states of its tokens, without those of padding.",
    )

    def __init__(self, model: EncoderModel, quantization: str):
        super().__init__(model, quantization)
        ct2_encoder.check(model)
        vocabulary = any_format.known_vocabulary(model)
        self.vocabulary_file: Path = Path(vocabulary["tokenizer_file"])
        self._size = vocabulary["vocab_size"]
        # Limba's ids by the folder's: padding may have another one there.
        self._order = exchanged(model.config.vocab_size, model.config.pad_id, model.pad_id)
        by_own_ids = ct2_tokens.of_json(self.vocabulary_file, model.config.vocab_size)
        self._tokens = [by_own_ids[i] for i in self._order]
        self.warnings = (
            *model.warnings,
            "CTranslate2's encoders give hidden states: the head of the masked language model is left out.",
        )

    def write(self, folder: Path) -> None:
        special = tokenizer_folder.special_tokens(self.vocabulary_file)
        ct2_encoder.write(self.model, self._tokens, special, self.quantization, folder)
        config = self.model.config
        has_pairs = config.num_token_types > 1
        arguments = (self.vocabulary_file, folder, self.model.pad_id, config.max_positions, has_pairs)
        tokenizer_folder.write(*arguments, self.model.tokenizer_settings)

    def compare(self, folder: Path) -> list[Comparison]:
        file, order = self.vocabulary_file, self._order
        expected = [int(order[id_]) for id_ in tokenizer_folder.encode(file, TEXT)]
        unknown = int(order[tokenizer_folder.special_ids(file).get("unk", 0)])
        return [
            *ct2_export.compare_tokens(folder, ct2_encoder.VOCABULARY, self._size, unknown, expected),
            *ct2_encoder_check.compare(self.model, folder, self._tokens, self.quantization),
        ]

    def packages(self, folder: Path) -> Sequence[str]:
        return ("numpy", "tokenizers")

    def program(self, folder: Path) -> str:
        return "\n".join(
            (
                "import ctranslate2",
                "import numpy as np",
                "from tokenizers import Tokenizer",
                "",
                'folder = "."  # the folder of this file',
                f'encoder = ctranslate2.Encoder(folder, device="cpu", compute_type="{self.compute_type}")',
                *engine_export.opened(folder),
                "",
                'texts = ["The first text.", "The second one."]',
                f"rows = [[*{engine_export.TOKENS}] for text in texts]",
                "states = np.array(encoder.forward_batch(rows).last_hidden_state)  # [texts, tokens, width]",
                "for row, state in zip(rows, states):",
                "    print(state[: len(row)].mean(0))",
            )
        )
