"""From a run, a checkpoint or a Hugging Face folder to a folder that CTranslate2 loads, and the proof by that engine.

    python -m convert to-ct2 runs/quickstart exports/quickstart_ct2 --quantization int8

It needs the package ctranslate2 (pip install 'limba[ct2]'), and neither torch nor transformers.
"""

import argparse
import functools

from limba.addons.engines import engine_folder
from limba.addons.engines.ct2 import ct2_library, ct2_weights
from limba.addons.engines.ct2.ct2_encoder_export import EncoderExport
from limba.addons.engines.ct2.ct2_export import Ct2Export
from limba.addons.engines.ct2.ct2_t5_export import T5Export
from limba.convert.model_files.model import Model


def _export(model: Model, quantization: str) -> Ct2Export:
    return (T5Export if model.family.has_decoder else EncoderExport)(model, quantization)


ENGINE = engine_folder.Engine("ctranslate2", ct2_weights.QUANTIZATIONS, ct2_library.version, _export)
to_ct2 = functools.partial(engine_folder.convert, ENGINE)
run = functools.partial(engine_folder.run, ENGINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help_ = "of the weights (float32); int8 is a quarter of the size, and the check prints what it changes"
    engine_folder.add_arguments(parser, ENGINE, help_)
