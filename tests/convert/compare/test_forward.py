"""The network run from tensors on disk is the network: the same logits and tokens, from parts of tensors."""

import dataclasses

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from convert.compare import forward
from convert.tensors import tensor_parts
from limba.checkpoint_files.assignment_maps import flatten_state_dict, unflatten_state_dict
from limba.checkpoint_files.saved_tensors import SavedTensor, from_array
from limba.network.t5 import T5Config, Transformer
from tests.limba import small

GATED = {"mlp_activations": ("gelu", "linear")}
KINDS = {
    "T5 1.0": {"logits_via_embedding": True},
    "T5 1.1": GATED,
    "umT5": GATED | {"relative_bias_per_layer": True, "num_encoder_layers": 1, "num_decoder_layers": 3},
}
TARGETS_LENGTH = 6


def _config(**fields) -> T5Config:
    """Three heads of 8 for a width of 32, and depths that differ."""
    sizes = {"vocab_size": 96, "emb_dim": 32, "num_heads": 3, "head_dim": 8, "mlp_dim": 40}
    return T5Config(**(sizes | {"num_encoder_layers": 3, "num_decoder_layers": 2} | fields))


def _batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = rng.integers(3, 96, (3, 30), np.int32)
    inputs[1, 15:] = 0
    targets = rng.integers(3, 96, (3, TARGETS_LENGTH), np.int32)
    targets[2, 4:] = 0
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": targets,
    }


def _params(config: T5Config) -> dict[str, np.ndarray]:
    """Random parameters by their names, as wide as a network's are at first; norms differ from 1."""
    init = lambda key: Transformer(config).init(key, **_batch(), enable_dropout=False)["params"]  # noqa: E731
    shapes = flatten_state_dict(jax.eval_shape(init, jax.random.key(0)))
    rng = np.random.default_rng(1)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        spread = 0.3 if name.endswith("scale") else 1.0 if "embedding" in name else shape[0] ** -0.5
        spread *= config.head_dim**-0.5 if "/query/" in name else 1.0
        return rng.normal(name.endswith("scale"), spread, shape).astype(np.float32)

    return {name: draw(name, shape.shape) for name, shape in shapes.items()}


def _whole(config: T5Config, params: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> np.ndarray:
    """What the network computes with all parameters in memory."""
    with jax.default_matmul_precision("highest"):
        return np.asarray(small.call(Transformer(config), unflatten_state_dict(params), **batch))


class Reads:
    """Tensors that record what is read of them."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.largest = 0
        self.of: dict[str, list] = {name: [] for name in arrays}
        self.tensors = {name: self._recording(name, array) for name, array in arrays.items()}

    def _recording(self, name: str, array: np.ndarray) -> SavedTensor:
        def read(index):
            self.of[name].append(index)
            self.largest = max(self.largest, array[index].nbytes)
            return array[index]

        return SavedTensor(array.shape, array.dtype, read)


@pytest.fixture(params=list(KINDS), scope="module")
def model(request) -> tuple[T5Config, dict[str, np.ndarray]]:
    config = _config(**KINDS[request.param])
    return config, _params(config)


@pytest.fixture(scope="module")
def untied() -> tuple[T5Config, dict[str, np.ndarray]]:
    config = _config(**GATED)
    return config, _params(config)


def _saved(params: dict[str, np.ndarray]) -> dict[str, SavedTensor]:
    return {name: from_array(array) for name, array in params.items()}


def test_logits_are_the_networks(model):
    config, params = model
    ours = forward.logits(config, _saved(params), _batch())
    assert ours.dtype == np.float32 and ours.shape == (3, TARGETS_LENGTH, 96)
    np.testing.assert_allclose(ours, _whole(config, params, _batch()), rtol=0, atol=1e-5)


def test_how_the_network_was_trained_makes_no_difference(untied):
    config, params = untied
    trained = dataclasses.replace(config, dtype=jnp.bfloat16, scan_layers=True, remat_policy="full")
    ours, theirs = (forward.logits(c, _saved(params), _batch()) for c in (trained, config))
    np.testing.assert_array_equal(ours, theirs)


def test_greedy_tokens_follow_the_logits(model):
    config, params = model
    inputs = _batch()["encoder_input_tokens"]
    tokens = forward.greedy(config, _saved(params), inputs, TARGETS_LENGTH)
    assert tokens.dtype == np.int32 and 1 not in tokens
    batch = {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(tokens[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": np.ones_like(tokens),
    }
    np.testing.assert_array_equal(tokens, _whole(config, params, batch).argmax(-1))


def test_eos_ends_a_row(untied):
    config, params = untied
    inputs = _batch()["encoder_input_tokens"]
    before = forward.greedy(config, _saved(params), inputs, TARGETS_LENGTH)
    last = before[0, 2]
    assert last not in before[0, :2]
    # The token and EOS change places in the vocabulary.
    swapped = np.arange(96)
    swapped[[1, last]] = last, 1
    table, kernel = params["token_embedder/embedding"], params["decoder/logits_dense/kernel"]
    changed = params | {"token_embedder/embedding": table[swapped], "decoder/logits_dense/kernel": kernel[:, swapped]}
    after = forward.greedy(config, _saved(changed), swapped[inputs], TARGETS_LENGTH)
    expected = swapped[before]
    for row in expected:
        ends = np.flatnonzero(row == 1)
        row[ends[0] + 1 if len(ends) else len(row) :] = 0
    assert (expected[0, 2:] == [1, 0, 0, 0]).all()
    np.testing.assert_array_equal(after, expected)


def test_it_stops_when_every_row_has_ended(untied):
    config, params = untied
    inputs = _batch()["encoder_input_tokens"][[0, 0, 0]]
    first = forward.greedy(config, _saved(params), inputs, TARGETS_LENGTH)[0, 0]
    kernel = params["decoder/logits_dense/kernel"].copy()
    kernel[:, [1, first]] = kernel[:, [first, 1]]
    reads = Reads(params | {"decoder/logits_dense/kernel": kernel})
    assert forward.greedy(config, reads.tensors, inputs, TARGETS_LENGTH).tolist() == [[1, 0, 0, 0, 0, 0]] * 3
    assert len(reads.of["decoder/decoder_norm/scale"]) == 1


@pytest.mark.parametrize("tied", [True, False])
def test_tensors_are_read_in_parts(tied, monkeypatch):
    monkeypatch.setattr(forward, "_BLOCK_BYTES", 1)
    config = _config(logits_via_embedding=tied)
    params = _params(config)
    reads = Reads(params)
    batch = _batch()
    ours = forward.logits(config, reads.tensors, batch)
    np.testing.assert_allclose(ours, _whole(config, params, batch), rtol=0, atol=1e-5)
    assert reads.largest <= params["token_embedder/embedding"].nbytes / 4
    assert all(reads.of.values())


def test_of_the_embedding_only_parts_with_new_tokens_are_read(untied, monkeypatch):
    monkeypatch.setattr(forward, "_BLOCK_BYTES", 1)
    config, params = untied
    batch = _batch()
    reads = Reads(params)
    forward.logits(config, reads.tensors, batch)
    encoder, decoder = (set(batch[f"{stack}_input_tokens"].flat) for stack in ("encoder", "decoder"))
    expected = []
    for ids in (encoder, decoder - encoder):
        quarters = [[i for i in ids if start <= i < start + 24] for start in range(0, 96, 24)]
        expected += [slice(min(quarter), max(quarter) + 1) for quarter in quarters if quarter]
    assert [index[0] for index in reads.of["token_embedder/embedding"]] == expected


def test_the_encoder_is_read_once_for_all_tokens(untied):
    config, params = untied
    reads = Reads(params)
    forward.greedy(config, reads.tensors, _batch()["encoder_input_tokens"], TARGETS_LENGTH)
    assert len(reads.of["encoder/layers_1/mlp/wo/kernel"]) == 1
    assert len(reads.of["decoder/layers_1/mlp/wo/kernel"]) == TARGETS_LENGTH


def test_bfloat16_tensors_are_computed_with_in_float32(untied):
    config, params = untied
    rounded = {name: array.astype(jnp.bfloat16) for name, array in params.items()}
    ours = forward.logits(config, _saved(rounded), _batch())
    whole = _whole(config, {name: array.astype(np.float32) for name, array in rounded.items()}, _batch())
    np.testing.assert_allclose(ours, whole, rtol=0, atol=1e-5)


def test_settings_are_left_alone(untied):
    config, params = untied
    before = jax.config.jax_default_matmul_precision
    with pytest.raises(ValueError, match="decoder_norm"):
        forward.logits(config, _saved({k: v for k, v in params.items() if "decoder_norm" not in k}), _batch())
    assert jax.config.jax_default_matmul_precision == before
    with pytest.raises(flax.errors.ScopeCollectionNotFound):  # Calls outside are not answered from the tensors.
        Transformer(config).apply({}, **_batch(), enable_dropout=False)


def test_missing_and_misshaped_tensors_are_named(untied):
    config, params = untied
    name = "decoder/layers_1/encoder_decoder_attention/key/kernel"
    tensors = _saved(params)
    with pytest.raises(ValueError, match=rf"needs {name} \(32, 24\), which the model does not have"):
        forward.logits(config, {k: v for k, v in tensors.items() if k != name}, _batch())
    with pytest.raises(ValueError, match=rf"{name} has shape \(24, 32\); the network needs \(32, 24\)"):
        forward.logits(config, tensors | {name: tensor_parts.transposed(tensors[name])}, _batch())


def test_loss_is_the_mean_over_real_targets():
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(0, 3, (3, 5, 11)).astype(np.float32), rng.integers(1, 11, (3, 5))
    targets[1, 2:] = 0
    each = optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(logits), jnp.asarray(targets))
    assert forward.loss(logits, targets) == pytest.approx(float(each[targets > 0].mean()), rel=1e-6)
