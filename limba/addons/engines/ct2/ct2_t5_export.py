"""A T5 on its way into a CTranslate2 folder."""

from collections.abc import Sequence
from pathlib import Path

from limba.addons.engines import engine_export, t5_check
from limba.addons.engines.ct2 import ct2_export, ct2_t5, ct2_t5_check, ct2_tokens
from limba.addons.engines.ct2.ct2_export import Ct2Export
from limba.addons.engines.engine_export import END, is_fast
from limba.convert.compare import t5_outputs
from limba.convert.compare.comparison import TEXT
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.families.t5_family import T5Family
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import hf_tokenizer
from limba.convert.model_files.model import T5Model
from limba.network.t5 import T5Config


class T5Export(Ct2Export[T5Family, T5Config]):
    """See `EngineExport`.

    Raises:
      FileNotFoundError: if nothing tells the vocabulary.
      ValueError: if CTranslate2 does not have the model, or it contradicts its vocabulary.
    """

    notes = (
        *Ct2Export.notes,
        f"An input ends with `{END}`, which CTranslate2 does not add.",
        "It cuts inputs after 1,024 tokens; `max_input_length=0` keeps them whole.",
    )

    def __init__(self, model: T5Model, quantization: str):
        ct2_t5.check(model)
        self._tokenizer = hf_tokenizer.from_vocabulary(any_format.known_vocabulary(model))
        if self._tokenizer.is_json or self._tokenizer.special.eos.name != END:
            t5_check.require_usual_ids(model, self._tokenizer, self.engine)
        model = t5_check.in_limbas_ids(model)
        super().__init__(model, quantization)
        self._tokens = ct2_tokens.of_t5(self._tokenizer, model.config.vocab_size)
        self.vocabulary_file = self._tokenizer.model_file
        self.warnings = (*model.warnings, *self._tokenizer.warnings)

    def write(self, folder: Path) -> None:
        ct2_t5.write(self.model, self._tokens, self._tokenizer.special, self.quantization, folder)
        hf_tokenizer.write(
            self._tokenizer,
            folder,
            self.model.tokenizer_settings,
            model_type=self.model.family.model_type,
            inputs_length=self.model.info.get("feature_lengths", {}).get("inputs"),
        )

    def compare(self, folder: Path) -> list[Comparison]:
        of_tokens = []
        if is_fast(folder):
            text = t5_outputs.text_tokens(self.model, TEXT)
            ends = [self._tokenizer.special.eos.id] if engine_export.appends_end(folder) else []
            expected = None if text is None else [*text, *ends]
            size, unknown = self._tokenizer.vocab_size, ct2_t5.unknown_id(self._tokenizer.special)
            of_tokens = ct2_export.compare_tokens(folder, ct2_t5.VOCABULARY, size, unknown, expected)
        return [*of_tokens, *ct2_t5_check.compare(self.model, folder, self._tokens, self.quantization)]

    def packages(self, folder: Path) -> Sequence[str]:
        return engine_export.t5_packages(folder, self.vocabulary_file)

    def program(self, folder: Path) -> str:
        imports, opened, encoded, decoded = self._of_tokenizer(folder)
        # Sentinels are tokens of tokenizer.json alone.
        text = "The <extra_id_0> of the <extra_id_1> is red." if is_fast(folder) else "The house is red."
        return "\n".join(
            (
                "import ctranslate2",
                *imports,
                "",
                'folder = "."  # the folder of this file',
                f'translator = ctranslate2.Translator(folder, device="cpu", compute_type="{self.compute_type}")',
                *opened,
                "",
                f'text = "{text}"  # as the model was trained',
                f"tokens = {encoded}",
                "result = translator.translate_batch([tokens], beam_size=1, max_decoding_length=64)[0]",
                *decoded,
            )
        )

    def _of_tokenizer(self, folder: Path) -> tuple[Sequence[str], Sequence[str], str, Sequence[str]]:
        """Of the program: imports, what opens the tokenizer, the tokens of a text, the text of tokens."""
        if self.vocabulary_file is None:
            decoded = "answer = bytes(ord(token) for token in result.hypotheses[0] if len(token) == 1)"
            tokens = f'[*map(chr, text.encode()), "{END}"]'
            return (), (), tokens, (decoded, 'print(answer.decode(errors="ignore"))')
        if is_fast(folder):
            ends = "" if engine_export.appends_end(folder) else f', "{END}"'
            return (
                ("from tokenizers import Tokenizer",),
                engine_export.opened(folder),
                f"[*{engine_export.TOKENS}{ends}]",
                (
                    "ids = map(tokenizer.token_to_id, result.hypotheses[0])",
                    "print(tokenizer.decode([i for i in ids if i is not None], skip_special_tokens=False))",
                ),
            )
        return (
            ("import sentencepiece",),
            (engine_export.opened_pieces(),),
            f'[*pieces.encode(text, out_type=str), "{END}"]',
            ("print(pieces.decode(result.hypotheses[0]))",),
        )
