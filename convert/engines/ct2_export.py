"""What a CTranslate2 folder has beside the model: tokenizer files, and a README that says how to load it."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from convert.compare import comparison_rows, t5_outputs
from convert.compare.comparison import TEXT
from convert.compare.comparison_rows import Comparison
from convert.engines import ct2_t5, ct2_t5_check, ct2_tokens, ct2_weights
from convert.families import heads
from convert.model_files import any_format
from convert.model_files.hf import hf_tokenizer
from convert.model_files.model import Model, T5Model

_TOKENIZER = "tokenizer.json"
_END, _UNKNOWN = "</s>", 2


class T5Export:
    """A T5 on its way into a CTranslate2 folder.

    Attributes:
      tokenizer: of the model.
      warnings: what a user of the folder should know, in whole sentences.

    Raises:
      FileNotFoundError: if nothing tells the vocabulary.
      ValueError: if CTranslate2 does not have the model, or it contradicts its vocabulary.
    """

    def __init__(self, model: T5Model, quantization: str):
        ct2_t5.check(model)
        self._model, self._quantization = model, quantization
        self.tokenizer = hf_tokenizer.from_vocabulary(any_format.known_vocabulary(model))
        self._tokens = ct2_tokens.of_t5(self.tokenizer, model.config.vocab_size)
        self.warnings = (*model.warnings, *self.tokenizer.warnings)

    def write(self, folder: Path) -> None:
        """Writes the model and the tokenizer's files."""
        ct2_t5.write(self._model, self._tokens, self._quantization, folder)
        hf_tokenizer.write(
            self.tokenizer,
            folder,
            self._model.tokenizer_settings,
            model_type=self._model.family.model_type,
            inputs_length=self._model.info.get("feature_lengths", {}).get("inputs"),
        )

    def compare(self, folder: Path) -> list[Comparison]:
        """Compares the folder with the model, in the engine; see `ct2_t5_check`."""
        return [
            *self._compare_tokens(folder),
            *ct2_t5_check.compare(self._model, folder, self._tokens, self._quantization),
        ]

    def _compare_tokens(self, folder: Path) -> list[Comparison]:
        """What the program of the README does to a text gives the model's ids."""
        written = json.loads((folder / "shared_vocabulary.json").read_text("utf-8"))
        ids, file = {token: id_ for id_, token in enumerate(written)}, folder / _TOKENIZER
        if not file.is_file():
            differ = sum(token != theirs for token, theirs in zip(self._tokens, written, strict=True))
            return [Comparison("tokens with other ids", differ, 0, f"of {len(written)}")]
        fast = FastTokenizer.from_file(str(file))
        size = self.tokenizer.vocab_size
        differ = sum(fast.id_to_token(i) != written[i] for i in range(size))
        # The tokens of unknown characters are these characters, for which the engine, too, takes <unk>.
        text = [ids.get(token, _UNKNOWN) for token in fast.encode(TEXT, add_special_tokens=False).tokens]
        expected = t5_outputs.text_tokens(self._model, TEXT)
        return [
            Comparison("tokens with other ids", differ, 0, f"of {size}, in {_TOKENIZER}"),
            comparison_rows.compare_vocabularies(expected, text),
        ]

    def readme(self, folder: Path, name: str, report: Mapping[str, Any], rows: list[Comparison]) -> str:
        """The text of README.md."""
        others = [] if self._reads_bytes else ["tokenizers"] if self._is_fast(folder) else ["sentencepiece"]
        average = "the average of the parameters at " if report["average"] else ""
        checked = "It was not checked (`--no-check`)."
        if rows:
            checked = f"In CTranslate2 {report['ctranslate2_version']}, by random tokens and a text:\n\n"
            checked += textwrap.indent(comparison_rows.table(rows), "    ")
        parts = (
            f"# {name}",
            f"A {self._model.family.title} for [CTranslate2](https://opennmt.net/CTranslate2/), made by Limba from "
            f"{average}`{report['checkpoint']}` (step {report['step']:,}, {report['parameters']:,} "
            f"parameters). Its weights are {self._quantization}.",
            "## Use",
            f"    pip install {' '.join(['ctranslate2', *others])}",
            f"```python\n{self._program(folder)}\n```",
            '- Say the `compute_type`: `"auto"` may compute in int8 with weights of another type.\n'
            f"- An input ends with `{_END}`, which CTranslate2 does not add.\n"
            "- It cuts inputs after 1,024 tokens; `max_input_length=0` keeps them whole.",
            "## Check",
            checked,
        )
        return "\n\n".join(parts) + "\n"

    @property
    def _reads_bytes(self) -> bool:
        return self.tokenizer.model_file is None

    def _is_fast(self, folder: Path) -> bool:
        return (folder / _TOKENIZER).is_file()

    def _program(self, folder: Path) -> str:
        compute_type = "int8" if self._quantization == ct2_weights.INT8 else "float32"
        imports, opened, encoded, decoded = self._of_tokenizer(folder)
        # Sentinels are tokens of tokenizer.json alone.
        text = "The <extra_id_0> of the <extra_id_1> is red." if self._is_fast(folder) else "The house is red."
        return "\n".join(
            (
                "import ctranslate2",
                *imports,
                "",
                'folder = "."  # the folder of this file',
                f'translator = ctranslate2.Translator(folder, device="cpu", compute_type="{compute_type}")',
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
        if self._reads_bytes:
            decoded = "answer = bytes(ord(token) for token in result.hypotheses[0] if len(token) == 1)"
            tokens = f'[*map(chr, text.encode()), "{_END}"]'
            return (), (), tokens, (decoded, 'print(answer.decode(errors="ignore"))')
        if self._is_fast(folder):
            ends = FastTokenizer.from_file(str(folder / _TOKENIZER)).encode("a").tokens[-1:] == [_END]
            tokens = "tokenizer.encode(text).tokens"
            return (
                ("from tokenizers import Tokenizer",),
                (f'tokenizer = Tokenizer.from_file(f"{{folder}}/{_TOKENIZER}")',),
                tokens if ends else f'[*{tokens}, "{_END}"]',
                (
                    "ids = map(tokenizer.token_to_id, result.hypotheses[0])",
                    "print(tokenizer.decode([i for i in ids if i is not None], skip_special_tokens=False))",
                ),
            )
        return (
            ("import sentencepiece",),
            (f'pieces = sentencepiece.SentencePieceProcessor(f"{{folder}}/{hf_tokenizer.SPIECE}")',),
            f'[*pieces.encode(text, out_type=str), "{_END}"]',
            ("print(pieces.decode(result.hypotheses[0]))",),
        )


def of_model(model: Model, quantization: str) -> T5Export:
    """The export of a model. Raises ValueError if CTranslate2 does not have it; see `T5Export`."""
    if not model.family.has_decoder:
        raise ValueError(f"{model.path} is a {model.family.title} ({heads.MASKED_LM}); only T5s are written so far.")
    return T5Export(model, quantization)
