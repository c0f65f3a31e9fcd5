"""What a network is, beside how a run computes it: its plain form, and the shapes of its parameters."""

import dataclasses
import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import traverse_util

from limba.convert.families import heads
from limba.convert.families.heads import Head
from limba.convert.tensors.table import Shape
from limba.network import own_layers
from limba.network.encoders.config import EncoderConfig
from limba.network.t5 import T5Config

Network = T5Config | EncoderConfig
Config = TypeVar("Config", bound=Network)

# Fields that belong to a run, which change how a network is trained or computed, and not what it is; and its name.
_OF_RUNS: dict[str, Any] = {
    "dtype": jnp.float32,
    "dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
    "initializer_range": 1.0,
    "float32_attention_logits": True,
    "one_hot_embedding": False,
    "scan_layers": False,
    "param_scan_axis": 1,
    "joined_attention_kernels": True,
    "remat_policy": "none",
    "kernels": "xla",
    "family": None,
}


def of_runs(config: Network) -> dict[str, Any]:
    """The fields of a network that belong to a run, with the values that its plain form has."""
    known = {field.name for field in dataclasses.fields(config)}
    found = {name: value for name, value in _OF_RUNS.items() if name in known}
    return found | dict(config.of_runs) if isinstance(config, T5Config) else found


def plain(config: Config) -> Config:
    """The network unrolled and in float32, without what belongs to a run; two equal ones compute the same."""
    own = config.plain_fields() if isinstance(config, T5Config) else {}
    return dataclasses.replace(config, **of_runs(config), **own, mlp_activations=tuple(config.mlp_activations))


def shapes(config: Network, head: Head) -> dict[str, Shape]:
    """The shapes of a network's parameters, by the names of unrolled layers; attention of a user's own has T5's."""
    config = plain(config)
    if isinstance(config, T5Config):
        no_layers: dict[str, Any] = dict.fromkeys(own_layers.FIELDS)
        config = dataclasses.replace(config, **no_layers)
    return dict(_shapes(config, head))


@functools.lru_cache(maxsize=8)
def _shapes(config: Network, head: Head) -> dict[str, Shape]:
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    inputs = (tokens,) * (3 if head.kind == heads.GENERATION else 1)
    init = functools.partial(head.network(config).init, enable_dropout=False)
    variables = jax.eval_shape(init, jax.random.key(0), *inputs)
    return {name: x.shape for name, x in traverse_util.flatten_dict(variables["params"], sep="/").items()}
