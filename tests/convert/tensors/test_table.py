"""Names and orientations of tensors, in both directions."""

import numpy as np
import pytest

from convert.families import heads
from convert.families.table import t5_families
from convert.tensors import table
from convert.tensors.table import Part, Row, Tensor
from limba.checkpoint_files.saved_tensors import from_array
from limba.network.t5 import T5Config

FIELDS = {
    "vocab_size": 64,
    "emb_dim": 8,
    "num_heads": 3,
    "head_dim": 4,
    "mlp_dim": 10,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
}


def t5_table(**fields):
    return {t.parts[0].limba: t for t in t5_families()["t5_1_1"].table(T5Config(**FIELDS, **fields), heads.OF_T5)}


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("activations", [("relu",), ("gelu", "linear")])
def test_every_parameter_of_a_t5_has_one_name_in_each_format(tied, activations, per_layer):
    fields = {"logits_via_embedding": tied, "mlp_activations": activations, "relative_bias_per_layer": per_layer}
    found = t5_table(**fields).values()
    # Of each layer: four kernels and a norm an attention, two or three kernels and a norm an MLP.
    mlp = 2 + len(activations)
    biases = 5 if per_layer else 2
    assert len(found) == 3 + (not tied) + biases + 2 * (5 + mlp) + 3 * (10 + mlp)
    for stored in ([t.name for t in found], [t.as_flax().name for t in found]):
        assert len(set(stored)) == len(found)


def test_names_and_orientations():
    table = t5_table()
    query = table["decoder/layers_2/encoder_decoder_attention/query/kernel"]
    assert (query.name, query.shape) == ("decoder.block.2.layer.1.EncDecAttention.q.weight", (12, 8))
    flax = query.as_flax()
    assert (flax.name, flax.shape) == ("decoder/block/2/layer/1/EncDecAttention/q/kernel", (8, 12))
    bias = table["encoder/relpos_bias/rel_embedding"]
    assert bias.name == "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    assert bias.shape == bias.as_flax().shape == (32, 3) and bias.parts[0].shape == (3, 32)
    per_layer = t5_table(relative_bias_per_layer=True)["decoder/layers_2/relpos_bias/rel_embedding"].as_flax()
    assert per_layer.name == "decoder/block/2/layer/0/SelfAttention/relative_attention_bias/embedding"
    assert per_layer.shape == (32, 3)
    assert table["token_embedder/embedding"].name == "shared.weight"
    assert table["token_embedder/embedding"].as_flax().name == "shared/embedding"
    assert (table["decoder/logits_dense/kernel"].name, query.parts[0].is_transposed) == ("lm_head.weight", True)
    assert table["decoder/decoder_norm/scale"].as_flax().name == "decoder/final_layer_norm/weight"


def test_parts_are_joined_chosen_and_taken_apart_again():
    shapes = {"a/kernel": (2, 3), "b/kernel": (2, 4), "c/embedding": (3, 2), "c/bias": (3,)}
    rows = (Row("b", "x.ba"), Row("a", "x.ba"), Row("c", "x.c"))
    order = {"c/embedding": np.array([-1, 2, 0, 1]), "a/kernel": np.array([2, 0, 1])}
    found = table.table(
        shapes, rows, chosen_rows=lambda name, shape: order.get(name), constants={"x.zeros": np.zeros(5, np.float32)}
    )
    assert [(t.name, t.shape) for t in found] == [
        *[("x.ba.weight", (7, 2)), ("x.c.bias", (3,)), ("x.c.weight", (4, 2)), ("x.zeros", (5,))]
    ]
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    tensors = {name: from_array(x) for name, x in arrays.items()}
    stored = {t.name: np.asarray(t.stored(tensors)) for t in found}
    a = arrays["a/kernel"].T[[2, 0, 1]]
    np.testing.assert_array_equal(stored["x.ba.weight"], np.concatenate([arrays["b/kernel"].T, a]))
    c = arrays["c/embedding"]
    np.testing.assert_array_equal(stored["x.c.weight"], [[0, 0], c[2], c[0], c[1]])
    back = {name: x for t in found for name, x in t.limbas(from_array(stored[t.name])).items()}
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].shape == array.shape
        np.testing.assert_array_equal(np.asarray(back[name]), array)
        np.testing.assert_array_equal(back[name].read((slice(1, 2),) * array.ndim), array[(slice(1, 2),) * array.ndim])


def test_a_whole_tensor_is_read_in_parts():
    read = []

    def part(index):
        read.append(index)
        return np.zeros((1, 5), np.float32)

    kernel = table.SavedTensor((4, 5), np.dtype(np.float32), part)
    stored = Tensor("x.weight", (5, 4), (Part("a/kernel", (4, 5), True),)).stored({"a/kernel": kernel})
    assert stored.read((slice(0, 5), slice(1, 2))).shape == (5, 1)
    assert read == [(slice(1, 2), slice(0, 5))]


def test_verify_names_missing_extra_and_misshaped_tensors_in_one_error():
    with pytest.raises(ValueError) as error:
        table.verify("The file", {"a": (1, 2), "b": (3,), "c": (4,)}, {"a": (1, 2), "b": (5,), "d": (6,)})
    assert "d is missing, c has no place in the network, b has shape (3,) instead of (5,)" in str(error.value)
