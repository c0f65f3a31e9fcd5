"""From a run, a checkpoint or a Hugging Face folder to a GGUF file for llama.cpp, and the proof by reading it back.

    python -m convert to-gguf runs/quickstart exports/quickstart_gguf --quantization q8_0

It needs `pip install 'limba[gguf]'`, and neither torch nor transformers.
"""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from limba.addons.engines import engine_folder, t5_check
from limba.addons.engines.engine_export import AnyExport, EngineExport
from limba.addons.engines.llama_cpp import library, t5_file, t5_reader
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.families.t5_family import T5Family
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import hf_tokenizer
from limba.convert.model_files.model import Model, T5Model
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1
from limba.network.t5 import T5Config

QUANTIZATIONS = tuple(t5_file.QUANTIZATIONS)
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "q8_0": 34 / 32}
_USUAL_LENGTH = 512


class GgufExport(EngineExport[T5Family, T5Config]):
    """See `EngineExport`.

    Raises:
      FileNotFoundError: if nothing tells the vocabulary.
      ValueError: if llama.cpp does not have the model, or its vocabulary.
    """

    engine: ClassVar[str] = "llama.cpp"
    check_by: ClassVar[str] = "The file, read back by gguf"
    link: ClassVar[str] = "https://github.com/ggml-org/llama.cpp"
    package: ClassVar[str] = "gguf"
    notes = (
        "Sentinels such as `<extra_id_0>` may stand in a prompt, and are shown in an answer.",
        "The end of an input is added by llama.cpp (`add_eos_token`).",
    )

    def __init__(self, model: T5Model, quantization: str):
        super().__init__(model, quantization)
        t5_file.check(model)
        tokenizer = hf_tokenizer.from_vocabulary(any_format.known_vocabulary(model))
        t5_check.require_usual_ids(model, tokenizer, self.engine)
        self._pieces = t5_file.pieces_of(tokenizer, model.config.vocab_size)
        self.vocabulary_file = tokenizer.model_file
        self.warnings = (*model.warnings, *tokenizer.warnings)
        self._length = _context_length(model)

    @property
    def num_bytes(self) -> int:
        rows = self.model.config.vocab_size * self.model.config.emb_dim * self.model.config.logits_via_embedding
        return int((self.model.num_parameters + rows) * _BYTES[self.quantization])

    def write(self, folder: Path) -> None:
        t5_file.write(self.model, self._pieces, self.quantization, folder / t5_file.NAME, self._length)

    def is_same(self, written: Path, found: Path) -> bool:
        return t5_reader.is_same(written, found)

    def compare(self, folder: Path) -> list[Comparison]:
        return t5_reader.compare(self.model, self._pieces, self.quantization, folder / t5_file.NAME, self._length)

    def use(self, folder: Path) -> Sequence[str]:
        return (
            f'    llama-completion -m {t5_file.NAME} -no-cnv --temp 0 -n 64 -p "The <extra_id_0> of the house."',
            "`llama-completion` is a program of llama.cpp; its server and its Python packages do not run T5s.",
        )


# Families whose masked language models are of a class that llama.cpp's convert_hf_to_gguf.py names.
_OF_THEIR_CONVERTER = ("bert", "distilbert", "modernbert")


def _context_length(model: T5Model) -> int:
    """The tokens of a run's inputs, which config.json of its folder has as `n_positions`; 512 where nothing says it."""
    if model.folder is None:
        return model.info.get("feature_lengths", {}).get("inputs") or _USUAL_LENGTH
    length = model.folder.content.get("n_positions") or _USUAL_LENGTH
    number_ranges.check(f"{model.path}: n_positions of config.json", length, AT_LEAST_1._replace(below=2**31))
    return length


def _export(model: Model, quantization: str) -> AnyExport:
    if not model.family.has_decoder:
        remedy = "`limba convert to-hf` exports it."
        if model.family.name in _OF_THEIR_CONVERTER:
            remedy = "llama.cpp's own converter knows the class of the folder that `limba convert to-hf` writes."
        raise ValueError(f"{model.path} is {model.family.title}: only T5s become GGUF files here. {remedy}")
    export: Any = GgufExport(model, quantization)
    return export


ENGINE = engine_folder.Engine("gguf", QUANTIZATIONS, library.version, _export)
to_gguf = functools.partial(engine_folder.convert, ENGINE)
run = functools.partial(engine_folder.run, ENGINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help_ = "of the weights (float32); q8_0 is about a quarter of the size, and the check prints what it changes"
    engine_folder.add_arguments(parser, ENGINE, help_)
