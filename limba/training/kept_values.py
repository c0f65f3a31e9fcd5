"""Initial values that an earlier start of a run has made: `MODEL_DIR/start_values.npz`, until there is a checkpoint.

`initial_values_fn` may count texts for minutes. A run that is killed before its first checkpoint begins again, with the
same seeds, and so with the same values.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from limba.checkpoint_files.directories import START_VALUES
from limba.data.contract import DatasetConfig
from limba.files import json_text
from limba.files.storage import AnyPath
from limba.training import kept_arrays
from limba.workers import distributed

logger = logging.getLogger(__name__)

PyTree = Any


def change(
    initial_values_fn: Callable[..., PyTree],
    model: Any,
    dataset: DatasetConfig,
    facts: Mapping[str, Any],
    model_dir: AnyPath | None,
) -> Callable[[PyTree], PyTree]:
    """The function of the parameters alone, as whole arrays, which calls `initial_values_fn` once in a run.

    Args:
      facts: of what the result depends on beside the function and the network; values of other facts are made again.
      model_dir: where they are kept; None keeps nothing.
    """
    make = functools.partial(initial_values_fn, model=model, dataset=dataset)
    if model_dir is None:
        return make
    made_of = {"function": repr(initial_values_fn), "network": repr(getattr(model.module, "config", None)), **facts}
    text = json_text.dumps(made_of, sort_keys=True, ensure_ascii=False)
    file = model_dir / START_VALUES

    def kept_or_made(params: PyTree) -> PyTree:
        # Worker 0 decides, so that all do the same.
        if distributed.from_first("initial values of an earlier start", lambda: _read(file, text) is not None):
            logger.info("The initial values are those that an earlier start has made (%s).", file)
            kept = _read(file, text)
            is_same = kept is not None and jax.tree.map(np.shape, kept) == jax.tree.map(np.shape, params)
            if not is_same or any(x.dtype != np.float32 for x in jax.tree.leaves(kept)):
                raise ValueError(f"{file} has no initial values of this network that can be read here: remove it.")
            return kept
        made = make(params)
        if jax.process_index() == 0:
            flat = traverse_util.flatten_dict(made, sep="/")
            kept_arrays.write(file, text, {name: np.asarray(x, np.float32) for name, x in flat.items()})
        return made

    return kept_or_made


def _read(file: AnyPath, text: str) -> PyTree | None:
    found = kept_arrays.read(file, text, "initial values")
    return None if found is None else traverse_util.unflatten_dict(found, sep="/")
