"""The proof for ONNX Runtime of an encoder with its head: hidden states and logits of rows of several lengths."""

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from limba.addons.engines import encoder_check
from limba.addons.engines.onnx import onnx_library
from limba.addons.engines.onnx.onnx_graphs import LOGITS, MODEL, PAIR_LOGITS, STATES
from limba.convert.compare import encoder_outputs, float64
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files.model import EncoderModel

_ENGINE = "ONNX Runtime"


def compare(model: EncoderModel, folder: Path) -> list[Comparison]:
    """Compares model.onnx with the model, which has a folder that NumPy's encoders read.

    Raises:
      ValueError: if the engine cannot load it.
    """
    assert model.folder is not None
    ids, types = encoder_check.check_rows(model)
    is_token = ids != model.config.pad_id
    order = encoder_outputs.order_of(model)
    run = functools.partial(
        importlib.import_module(model.family.numpy_forward).hidden_states, model.folder.stored, model.folder.content
    )
    states = float64.measure(run, order[ids], types, counted=is_token)
    batch = {"tokens": ids, "token_types": types}
    measures, ours = encoder_outputs.measures(model, batch), encoder_outputs.limba_outputs(model, batch)
    found = outputs(folder, order[ids], is_token, types)
    rows = [
        states.compare("hidden states, Limba and NumPy", encoder_check.limba_states(model, ids, types)),
        states.compare(
            f"hidden states, {_ENGINE}", found[STATES], note=f"of {is_token.sum()} tokens in {len(ids)} rows"
        ),
    ]
    names = {"logits": LOGITS, "pair logits": PAIR_LOGITS}
    assert not isinstance(measures, str), measures
    for what, measure in measures.items():
        rows.append(measure.compare(f"{what}, Limba and NumPy", ours[what]))
        rows.append(measure.compare(f"{what}, {_ENGINE}", encoder_outputs.in_order(what, found[names[what]], model)))
    return rows


def compare_quantized(model: EncoderModel, folder: Path, quantization: str) -> Comparison:
    """What quantization changes, of which nothing is demanded."""
    ids, types = encoder_check.check_rows(model)
    is_token = ids != model.config.pad_id
    order = encoder_outputs.order_of(model)
    before = np.where(is_token[..., None], encoder_check.limba_states(model, ids, types), 0).sum(1)
    after = np.where(is_token[..., None], outputs(folder, order[ids], is_token, types)[STATES], 0).sum(1)
    return encoder_check.compare_vectors(before, after, quantization)


def outputs(folder: Path, ids: np.ndarray, is_token: np.ndarray, types: np.ndarray) -> Mapping[str, np.ndarray]:
    """What model.onnx gives for ids `[rows, length]` of the folder, by its names."""
    session = onnx_library.session(folder / MODEL)
    feed = {"input_ids": ids, "attention_mask": is_token, "token_type_ids": types}
    given = {i.name: np.asarray(feed[i.name]).astype(np.int64) for i in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, given), strict=True))
