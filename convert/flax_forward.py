"""Hugging Face's own Flax classes, which version 4.57 of transformers was the last to have: small models only.

They hold all parameters; there is no way to give them one after the other. transformers is imported when it is needed.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convert import names, transformers_library
from limba.saved_tensors import SavedTensor
from limba.state_utils import flatten_state_dict, unflatten_state_dict

# Of float32 parameters. The classes need them several times: to decode they also draw random ones, for their shapes.
MOST_BYTES = 256 * 2**20
_MODEL_TYPES = ("t5", "mt5")


def possible(folder: Path, num_bytes: int) -> str | None:
    """Why these classes cannot be used for the model in a folder; None if they can.

    Args:
      folder: has the config.json.
      num_bytes: of its parameters in float32.
    """
    version = transformers_library.version()
    if version is None:
        return "transformers is not installed"
    if int(version.split(".")[0]) > 4:
        return f"transformers {version} has no Flax models; 4.57.6 was the last version with them"
    model_type = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
    if model_type not in _MODEL_TYPES:
        return f"transformers has no Flax class for {model_type}"
    if num_bytes > MOST_BYTES:
        return (
            f"its Flax classes hold the whole model, {num_bytes / 2**20:,.0f} MiB; here {MOST_BYTES >> 20} are allowed"
        )
    return None


def logits(folder: Path, tensors: Mapping[str, SavedTensor], batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Float32 logits `[batch, targets_length, vocab]`.

    Args:
      folder: has the config.json, whose `model_type` names the class.
      tensors: of the model, by Flax's names, `encoder/block/0/layer/0/SelfAttention/q/kernel`.
      batch: `encoder_input_tokens` `[batch, inputs_length]`, 0 is padding, and `decoder_input_tokens`
        `[batch, targets_length]`.

    Raises:
      ValueError: if the tensors are not exactly those of the class.
    """
    with _running():
        model, params = _model(folder, tensors)

        @jax.jit
        def compute(params: Any, asked: dict[str, jax.Array], decoder_inputs: jax.Array) -> jax.Array:
            return model(**asked, decoder_input_ids=decoder_inputs, params=params).logits

        return np.asarray(compute(params, _inputs(batch["encoder_input_tokens"]), batch["decoder_input_tokens"]))


def greedy(folder: Path, tensors: Mapping[str, SavedTensor], inputs: np.ndarray, num_tokens: int) -> np.ndarray:
    """The tokens of the class's own `generate` without sampling and beams, int32 `[batch, num_tokens]`.

    Args:
      folder, tensors: as of `logits`.
      inputs: `[batch, inputs_length]`, 0 is padding.
      num_tokens: a row that ends earlier is filled with padding.

    Raises:
      ValueError: as `logits`.
    """
    with _running():
        model, params = _model(folder, tensors)

        @jax.jit
        def compute(params: Any, asked: dict[str, jax.Array]) -> jax.Array:
            return model.generate(**asked, params=params, max_new_tokens=num_tokens).sequences

        return np.asarray(compute(params, _inputs(inputs)))[:, 1:].astype(np.int32)


def _inputs(tokens: np.ndarray) -> dict[str, Any]:
    return {"input_ids": jnp.asarray(tokens, jnp.int32), "attention_mask": jnp.asarray(tokens != 0, jnp.int32)}


def _model(folder: Path, tensors: Mapping[str, SavedTensor]) -> tuple[Any, dict[str, Any]]:
    """The class that config.json names, and its tree of parameters."""
    transformers = transformers_library.load()
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.FlaxAutoModelForSeq2SeqLM.from_config(config, _do_init=False)
    model.generation_config = transformers_library.greedy_config(folder, model)
    wanted = {name: x.shape for name, x in flatten_state_dict(model.params_shape_tree).items()}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    names.verify(f"{folder} in {type(model).__name__} of transformers", found, wanted)
    return model, unflatten_state_dict({name: jnp.asarray(np.asarray(tensors[name]), jnp.float32) for name in wanted})


class _OldNumpy:
    """`jax.numpy` with the arguments that `clip` had when those classes were written."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @staticmethod
    def clip(x: Any, a_min: Any = None, a_max: Any = None) -> Any:
        return jnp.clip(x, min=a_min, max=a_max)


@contextlib.contextmanager
def _running() -> Iterator[None]:
    """While the classes run: what they need of an older JAX, and matrix products in full float32."""
    transformers_library.load()
    from transformers.models.t5 import modeling_flax_t5

    current = modeling_flax_t5.jnp
    modeling_flax_t5.jnp = _OldNumpy()  # type: ignore[assignment]
    try:
        with jax.default_matmul_precision("highest"):
            yield
    finally:
        modeling_flax_t5.jnp = current
