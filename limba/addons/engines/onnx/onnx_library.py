"""The packages that write ONNX files and run them: are they there, and their parts."""

import importlib
import importlib.metadata
import logging
from pathlib import Path
from types import ModuleType
from typing import Any

from limba.convert.compare import transformers_library

EXTRA = "pip install 'limba[onnx]'"
# torch 2.9 is the first that exports so by default; the others are of its time. The check proves what newer ones write.
_LEAST = {"onnx": (1, 18), "onnxscript": (0, 5), "onnxruntime": (1, 22), "torch": (2, 9), "transformers": (4, 57)}
# A plain request for torch brings gigabytes of CUDA on Linux.
_TORCH = "pip install torch transformers (pytorch.org says how to get torch for a CPU alone, which is enough)"
_REMEDIES = {"torch": _TORCH, "transformers": _TORCH}


def version() -> str:
    """That of onnxruntime.

    Raises:
      ValueError: if a package is missing or older than what was tried.
    """
    for package, least in _LEAST.items():
        remedy = _REMEDIES.get(package, EXTRA)
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise ValueError(
                f"{package} is not installed. ONNX files are written by torch from transformers' classes, and run by "
                f"onnxruntime: {remedy}."
            ) from None
        if tuple(int(part) for part in found.split(".")[:2]) < least:
            wanted = ".".join(map(str, least))
            raise ValueError(f"{package} {found} is installed, and {wanted} or newer is needed: {remedy}.")
    return importlib.metadata.version("onnxruntime")


def transformers() -> Any:
    return transformers_library.load()


def session(file: Path) -> Any:
    """A file in ONNX Runtime, on the CPU.

    Raises:
      ValueError: if the engine cannot load it.
    """
    library: Any = _module("onnxruntime")
    options = library.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        return library.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # Its classes have no public names.
        if type(error).__module__.startswith("onnxruntime"):
            raise ValueError(f"ONNX Runtime {library.__version__} cannot load {file}: {error}") from error
        raise


def quantize(source: Path, target: Path) -> None:
    """Weights in 8 bits, with a scale for each column; ONNX Runtime computes the scales of activations as it runs.

    They are without a sign: with one, sums overflow on x86 processors that lack VNNI.
    """
    quantization: Any = _module("onnxruntime.quantization")
    # It advises to prepare the model, which the export has done, by a line on the root logger.
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        quantization.quantize_dynamic(
            str(source),
            str(target),
            per_channel=True,
            weight_type=quantization.QuantType.QUInt8,
            use_external_data_format=source.with_name(f"{source.name}.data").exists(),
        )
    finally:
        logger.setLevel(level)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{name} cannot be imported ({error}): {EXTRA}.") from error
