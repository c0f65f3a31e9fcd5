"""From a run, a checkpoint or a Hugging Face folder to a GGUF file for llama.cpp, and the proof by reading it back.

    python -m convert to-gguf runs/quickstart exports/quickstart_gguf --quantization q8_0

It needs `pip install 'limba[gguf]'`, and neither torch nor transformers.
"""

import argparse
import functools
from typing import Any

from limba.addons.engines import engine_folder
from limba.addons.engines.engine_export import AnyExport
from limba.addons.engines.llama_cpp import export as of_t5
from limba.addons.engines.llama_cpp import library
from limba.addons.engines.llama_cpp.export import T5Export
from limba.convert.model_files.model import Model


def _export(model: Model, quantization: str) -> AnyExport:
    if not model.family.has_decoder:
        raise ValueError(
            f"{model.path} is {model.family.title}: only T5s become GGUF files here. `limba convert to-hf` writes a "
            "folder from which llama.cpp's own converter makes one of a BERT."
        )
    export: Any = T5Export(model, quantization)
    return export


ENGINE = engine_folder.Engine("gguf", of_t5.QUANTIZATIONS, library.version, _export)
to_gguf = functools.partial(engine_folder.convert, ENGINE)
run = functools.partial(engine_folder.run, ENGINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help_ = "of the weights (float32); q8_0 is about a quarter of the size, and the check prints what it changes"
    engine_folder.add_arguments(parser, ENGINE, help_)
