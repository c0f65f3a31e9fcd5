"""What exports for CTranslate2 have in common."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from limba.addons.engines.ct2 import ct2_weights
from limba.addons.engines.engine_export import TOKENIZER, PythonExport
from limba.convert.compare import comparison_rows
from limba.convert.compare.comparison import TEXT
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files.model import AFamily, ANetwork


class Ct2Export(PythonExport[AFamily, ANetwork]):
    """See `PythonExport`."""

    check_by = "In CTranslate2"
    engine, link, package = "CTranslate2", "https://opennmt.net/CTranslate2/", "ctranslate2"
    notes: tuple[str, ...] = ('Say the `compute_type`: `"auto"` may compute in int8 with weights of another type.',)

    @property
    def num_bytes(self) -> int:
        return ct2_weights.num_bytes(self.model, self.quantization)

    @property
    def compute_type(self) -> str:
        """For the program of the README."""
        return "int8" if self.quantization == ct2_weights.INT8 else "float32"


def compare_tokens(
    folder: Path, file: str, size: int, unknown: int, expected: Sequence[int] | None
) -> list[Comparison]:
    """Compares tokenizer.json with the tokens that the engine knows.

    Args:
      file: with the tokens by id that was written for the engine.
      size: ids of the vocabulary.
      unknown: the id of unknown tokens.
      expected: the ids of `TEXT`, special ones included.
    """
    written = json.loads((folder / file).read_text("utf-8"))
    ids, tokenizer = {token: id_ for id_, token in enumerate(written)}, Tokenizer.from_file(str(folder / TOKENIZER))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    differ = sum(tokenizer.id_to_token(i) not in (written[i], None) for i in range(size))
    text = [ids.get(tokenizer.id_to_token(i), unknown) for i in tokenizer.encode(TEXT).ids]
    return [
        Comparison("tokens with other ids", differ, 0, f"of {size}, in {TOKENIZER}"),
        comparison_rows.compare_vocabularies(expected, text),
    ]
