"""The table covers exactly the parameters of the network."""

import pytest

from convert.tensors import names
from limba.checkpoint_files.assignment_maps import flatten_state_dict
from limba.models import EncoderDecoderModel
from limba.network.t5 import T5Config, Transformer

FIELDS = {
    "vocab_size": 64,
    "emb_dim": 8,
    "num_heads": 3,
    "head_dim": 4,
    "mlp_dim": 10,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
}


def network_shapes(config: T5Config) -> dict[str, tuple[int, ...]]:
    model = EncoderDecoderModel(Transformer(config), None, None, optimizer_def=None)
    shapes, _ = model.param_shapes_and_axes()
    return {name: x.shape for name, x in flatten_state_dict(shapes).items()}


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("activations", [("relu",), ("gelu", "linear")])
def test_every_parameter_has_one_name_in_each_format(tied, activations, per_layer):
    config = T5Config(
        **FIELDS, logits_via_embedding=tied, mlp_activations=activations, relative_bias_per_layer=per_layer
    )
    table = names.table(config)
    assert {t.limba: t.shape for t in table} == network_shapes(config)
    for stored in ([t.torch.name for t in table], [t.flax.name for t in table]):
        assert len(set(stored)) == len(table)


def test_names_and_orientations():
    table = {t.limba: t for t in names.table(T5Config(**FIELDS))}
    query = table["decoder/layers_2/encoder_decoder_attention/query/kernel"]
    assert query.torch == names.Stored("decoder.block.2.layer.1.EncDecAttention.q.weight", (12, 8), True)
    assert query.flax == names.Stored("decoder/block/2/layer/1/EncDecAttention/q/kernel", (8, 12), False)
    bias = table["encoder/relpos_bias/rel_embedding"]
    assert bias.torch.name == "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    assert bias.torch.shape == bias.flax.shape == (32, 3)
    per_layer = {t.limba: t for t in names.table(T5Config(**FIELDS, relative_bias_per_layer=True))}
    assert per_layer["decoder/layers_2/relpos_bias/rel_embedding"].flax == names.Stored(
        "decoder/block/2/layer/0/SelfAttention/relative_attention_bias/embedding", (32, 3), True
    )
    assert table["token_embedder/embedding"].torch == names.Stored("shared.weight", (64, 8), False)
    assert table["decoder/logits_dense/kernel"].torch == names.Stored("lm_head.weight", (64, 8), True)


def test_verify_names_missing_extra_and_misshaped_tensors_in_one_error():
    with pytest.raises(ValueError) as error:
        names.verify("The file", {"a": (1, 2), "b": (3,), "c": (4,)}, {"a": (1, 2), "b": (5,), "d": (6,)})
    assert "d is missing, c has no place in the network, b has shape (3,) instead of (5,)" in str(error.value)
