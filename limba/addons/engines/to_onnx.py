"""From a run, a checkpoint or a Hugging Face folder to ONNX files for ONNX Runtime and Optimum, and the proof by it.

    python -m convert to-onnx runs/quickstart exports/quickstart_onnx --quantization int8

It needs torch and transformers, and `pip install 'limba[onnx]'`.
"""

import argparse
import functools

from limba.addons.engines import engine_folder
from limba.addons.engines.onnx import onnx_export, onnx_library
from limba.addons.engines.onnx.onnx_export import OnnxExport
from limba.convert.exports.encoder_export import EncoderExport
from limba.convert.exports.t5_export import T5Export
from limba.convert.model_files.model import Model


def _export(model: Model, quantization: str) -> OnnxExport:
    if model.family.has_decoder:
        return onnx_export.T5Export(T5Export(model), quantization)
    return onnx_export.EncoderExport(EncoderExport(model), quantization)


ENGINE = engine_folder.Engine("onnx", onnx_export.QUANTIZATIONS, onnx_library.version, _export)
to_onnx = functools.partial(engine_folder.convert, ENGINE)
run = functools.partial(engine_folder.run, ENGINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help_ = "of the weights (float32); int8 is a quarter of the size, and the check prints what it changes"
    engine_folder.add_arguments(parser, ENGINE, help_)
