"""What a T5 loses on its way into an engine: the loss and likeliest tokens of exports, on rows of real text.

    python -m benchmarks.exported_loss runs/quickstart/model exports/mine_ct2 exports/mine_int8 exports/mine_gguf \\
        --task quickstart_span_corruption --module limba.addons.examples.quickstart --inputs 104 --targets 24

The folders are of `limba convert to-ct2`, `to-onnx` and `to-gguf`. Prints a row for the run, computed by Limba in
float32, and one for each folder, computed by its engine; a GGUF file is computed from its own numbers in NumPy, since
no package of Python runs a T5 of llama.cpp. Rows are of the task's validation split, corrupted with one seed. A token
is equal where the run and the engine find the same one likeliest behind the same targets; CTranslate2 does not say it.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Scores = Callable[[np.ndarray, np.ndarray], np.ndarray]
_AT_ONCE = 32  # rows


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.exported_loss",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", help="the run or checkpoint that the folders were made of")
    parser.add_argument("folders", nargs="+", type=Path, help="for CTranslate2, ONNX Runtime or llama.cpp")
    parser.add_argument("--task", required=True, help="whose validation split is read")
    parser.add_argument("--module", help="the Python module that registers it")
    parser.add_argument("--inputs", type=int, default=512, help="tokens of a row (512)")
    parser.add_argument("--targets", type=int, default=114, help="tokens of a row's targets (114)")
    parser.add_argument("--rows", type=int, default=256, help="at most so many rows (256)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table."""
    flags = parse(argv)
    model = _model(flags.run)
    engines = {folder: _engine(folder, model) for folder in flags.folders}
    rows = validation_rows(flags)
    print("| | MB | loss | likeliest tokens equal |\n|---|---|---|---|")
    before = _limba(model, *rows)
    print(f"| {flags.run}, Limba | | {_loss(before.log_probabilities, rows[1]):.4f} | |", flush=True)
    for folder, engine in engines.items():
        name, found = engine(*rows)
        equal = ""
        if found.likeliest is not None:
            is_token = rows[1] != 0
            equal = f"{(found.likeliest == before.likeliest)[is_token].mean():.2%} of {is_token.sum():,}"
        size = sum(x.stat().st_size for x in folder.iterdir()) / 1e6
        loss = _loss(found.log_probabilities, rows[1])
        print(f"| {folder}, {name} | {size:.1f} | {loss:.4f} | {equal} |", flush=True)


class Found:
    """Of targets `[rows, length]`: log-probabilities, 0 for padding; the likeliest ids, if the engine gives them."""

    def __init__(self, log_probabilities: np.ndarray, likeliest: np.ndarray | None = None):
        self.log_probabilities, self.likeliest = log_probabilities, likeliest


def validation_rows(flags: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, int32 `[rows, length]`, 0 for padding."""
    from limba.data import contract
    from tasks.pipeline import task_batches

    lengths = {"inputs": flags.inputs, "targets": flags.targets}
    config = contract.DatasetConfig(
        flags.task, lengths, "validation", _AT_ONCE, shuffle=False, seed=0, module=flags.module
    )
    found: list[tuple[np.ndarray, np.ndarray]] = []
    (batches,) = task_batches.get_eval_batches(config).values()
    for batch in batches:
        inputs, targets = (np.asarray(batch[x], np.int32) for x in ("encoder_input_tokens", "decoder_target_tokens"))
        is_row = (targets != 0).any(1)
        found.append((inputs[is_row], targets[is_row]))
        if sum(len(x) for x, _ in found) >= flags.rows:
            break
    inputs, targets = (np.concatenate(x)[: flags.rows] for x in zip(*found, strict=True))
    return inputs, targets


def _model(path: str) -> Any:
    from convert.model_files import any_format

    return any_format.open_model(path).cast(np.dtype(np.float32))


def _loss(log_probabilities: np.ndarray, targets: np.ndarray) -> float:
    return -float(log_probabilities.sum()) / np.count_nonzero(targets)


def _by_parts(logits: Callable[[np.ndarray, np.ndarray], np.ndarray], inputs: np.ndarray, targets: np.ndarray) -> Found:
    """Of logits `[rows, length, vocab]` of inputs and targets, some rows at a time."""
    from limba.addons.engines import t5_check

    scores, likeliest = [], []
    for first in range(0, len(inputs), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        found = logits(inputs[part], targets[part])
        scores.append(t5_check.scores(found, targets[part]))
        likeliest.append(found.argmax(-1))
    return Found(np.concatenate(scores), np.concatenate(likeliest))


def _limba(model: Any, inputs: np.ndarray, targets: np.ndarray) -> Found:
    from convert.compare import t5_outputs
    from limba.addons.engines import t5_check

    def logits(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        batch = {
            "encoder_input_tokens": inputs,
            "decoder_input_tokens": t5_check.decoder_inputs(model, targets),
            "decoder_target_tokens": targets,
        }
        return t5_outputs.in_limba(model, batch)["logits"]

    return _by_parts(logits, inputs, targets)


def _engine(folder: Path, model: Any) -> Callable[[np.ndarray, np.ndarray], tuple[str, Found]]:
    """What computes rows by the engine that the folder is for. Ends the program at another folder."""
    if (folder / "model.bin").is_file():
        return lambda *rows: ("CTranslate2", _ct2(folder, *rows))
    if list(folder.glob("*.onnx")):
        return lambda *rows: ("ONNX Runtime", _onnx(folder, model, *rows))
    if (folder / "model.gguf").is_file():
        return lambda *rows: ("the file in NumPy", _gguf(folder / "model.gguf", model, *rows))
    raise SystemExit(f"{folder} is no folder of `limba convert to-ct2`, to-onnx or to-gguf.")


def _ct2(folder: Path, inputs: np.ndarray, targets: np.ndarray) -> Found:
    from limba.addons.engines.ct2 import ct2_t5_check

    tokens = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    engine = ct2_t5_check._Engine(folder, tokens, "default")  # the type that the file has, if this machine computes it
    return Found(engine.scores(inputs, targets))


def _onnx(folder: Path, model: Any, inputs: np.ndarray, targets: np.ndarray) -> Found:
    from limba.addons.engines import t5_check
    from limba.addons.engines.onnx import onnx_t5_check

    engine = onnx_t5_check.Engine(folder, model.config.decoder_start_token_id)
    return _by_parts(
        lambda inputs, targets: engine.logits(inputs, t5_check.decoder_inputs(model, targets)), inputs, targets
    )


def _gguf(path: Path, model: Any, inputs: np.ndarray, targets: np.ndarray) -> Found:
    from convert.compare import float64, numpy_t5
    from limba.addons.engines import t5_check
    from limba.addons.engines.llama_cpp import t5_file, t5_reader
    from limba.checkpoint_files import saved_tensors

    file = t5_reader.File(path)
    stored = {name: saved_tensors.from_array(file.tensors[own]) for name, own in t5_file.names(model).items()}
    weights = numpy_t5.TorchWeights(stored)

    def logits(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        shifted = t5_check.decoder_inputs(model, targets)
        return numpy_t5.logits(weights, file.content(), inputs, shifted, float64.Rounding())

    return _by_parts(logits, inputs, targets)


if __name__ == "__main__":
    main()
