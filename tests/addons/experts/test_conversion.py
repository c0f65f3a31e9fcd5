"""Switch Transformers' folders: there and back beside transformers' own class, keys, refusals, and their gin files."""

import json
import math

import gin
import numpy as np
import pytest

from convert.families import table
from convert.families.config_files import t5_config
from convert.from_hf import from_hf
from convert.model_files import any_format, t5_files
from convert.tensors import weight_files
from convert.to_hf import to_hf
from convert.to_t5x import to_t5x
from limba.addons.cards import t5_card
from limba.addons.experts import switch
from limba.addons.experts.switch_family import FAMILY
from limba.gin_config import gin_files
from tests.addons.experts import switch_folder, test_switch


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder, `hf`, as a run, `run`."""
    home = tmp_path_factory.mktemp("switch")
    switch_folder.write(home / "hf", 1, tie_word_embeddings=False, router_bias=True, dense_act_fn="gelu_new")
    from_hf(home / "hf", home / "run", verify=False)
    return home


def test_a_folder_there_and_back_computes_what_transformers_does_and_has_the_same_tensors_and_keys(home, tmp_path):
    report = to_hf(home / "run", tmp_path / "out", formats=("safetensors",))
    rows = {row["what"]: row for row in report["comparisons"]["safetensors"]}
    for what in ("logits, B in NumPy", "logits, B in PyTorch"):
        assert rows[what]["value"] < 1e-5 and rows[what]["holds"], what
    assert rows["greedy tokens, B in PyTorch"]["value"] == rows["parameters that differ"]["value"] == 0
    given, written = (json.loads((path / "config.json").read_text()) for path in (home / "hf", tmp_path / "out"))
    # What the class does not read.
    ignored = ("feed_forward_proj", "is_gated_act", "router_type", "router_ignore_padding_tokens", "add_router_probs")
    ignored += ("n_positions", "torch_dtype", "use_cache", "initializer_factor")
    read_by_it = lambda content: {key: x for key, x in content.items() if key not in ignored}  # noqa: E731
    assert read_by_it(written) == read_by_it(given)
    names = weight_files.open_tensors(tmp_path / "out", "safetensors").keys()
    assert {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"} < names, "transformers 4 wants them untied"
    before, after = (any_format.open_model(path).folder.stored for path in (home / "hf", tmp_path / "out"))
    assert before.keys() == after.keys() and "decoder.block.1.layer.2.mlp.experts.expert_2.wo.weight" in after
    assert all(np.array_equal(np.asarray(before[name]), np.asarray(after[name])) for name in before)


def bound_network(file, bindings):
    gin.clear_config()
    gin_files.parse_gin_flags([str(file)], bindings)
    module = gin.get_configurable(switch.Transformer)()
    gin.clear_config()
    return module


def test_a_run_says_its_network_in_json_and_in_gin(home):
    opened = any_format.open_model(home / "run")
    assert opened.family is FAMILY and opened.tensors["encoder/layers_1/mlp/expert/wi/kernel"].ndim == 3
    module = bound_network(home / "run/model.gin", [])
    fields = ("num_experts", "encoder_sparse_step", "decoder_sparse_step", "expert_capacity", "router_bias")
    assert [getattr(module.config, x) for x in fields] == [getattr(opened.config, x) for x in fields]


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({"num_sparse_encoder_layers": 6, "num_layers": 12}, (2, 4)),
        (
            {"num_layers": 5, "num_sparse_encoder_layers": 0, "num_decoder_layers": 4, "num_sparse_decoder_layers": 4},
            (5, 1),
        ),
        ({"num_layers": 5, "num_sparse_encoder_layers": 2, "encoder_sparse_step": 3}, (3, 4)),
    ],
    ids=str,
)
def test_sparse_layers_are_those_of_the_class(keys, steps):
    """`SwitchTransformersConfig(**keys)` of transformers 4.57 and 5.0 has these steps."""
    read = FAMILY.with_t5_keys("config.json", keys)
    assert (read["encoder_sparse_step"], read["decoder_sparse_step"]) == steps


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_experts": 0}, "num_experts is 0"),
        ({"router_dtype": "bfloat16"}, "router_dtype is 'bfloat16'; the router computes in it"),
        ({"expert_capacity": "many"}, "expert_capacity is 'many'"),
        ({"router_bias": 1}, "router_bias is 1; it is true or false"),
        ({"dense_act_fn": "gated-gelu-x"}, "dense_act_fn is 'gated-gelu-x'; Limba's experts have"),
        ({"num_shared_experts": 1}, "num_shared_experts is 1. Limba does not know this key"),
    ],
    ids=str,
)
def test_another_config_is_one_message(home, tmp_path, keys, message):
    content = json.loads((home / "hf/config.json").read_text()) | keys
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        from_hf(tmp_path / "config.json", tmp_path / "run", verify=False)


def test_experts_that_the_weights_cannot_have_are_not_counted_out(home):
    """A name for each of a billion took all memory."""
    file = home / "hf/config.json"
    content = t5_config.read(file) | {"num_experts": 2000}
    with pytest.raises(
        ValueError, match=r"a network with [\d,]+ tensors of experts, and .*hf has \d+ tensors; they do"
    ):
        t5_files.read_files(home / "hf", file, content)


def test_what_has_no_such_network_refuses_it_by_name(home, tmp_path):
    from limba.addons.engines import to_ct2, to_gguf, to_onnx

    for convert in (to_ct2.to_ct2, to_onnx.to_onnx, to_gguf.to_gguf, to_t5x):
        with pytest.raises(ValueError, match=r"is (a )?Switch Transformer, "):
            convert(home / "run", tmp_path / "out")
    cfg = test_switch.config
    assert not table.no_class(cfg())
    assert "depends on the length (eval_capacity_factor = 2.0)" in table.no_class(cfg(eval_capacity_factor=2.0))
    beyond = {"num_selected_experts": 2, "encoder_routing": "experts_choose", "group_size": 64, "extra_mlp": True}
    for name, value in (beyond | {"sparse_place": "last"}).items():
        assert f"no such experts ({name} = {value!r})" in table.no_class(cfg(encoder_sparse_step=4, **{name: value}))
    assert "are gated" in table.no_class(cfg(mlp_activations=("gelu", "linear")))


def test_a_card_says_the_parameters_that_a_token_does_not_use():
    network = test_switch.config(num_encoder_layers=4, num_experts=5, num_selected_experts=2)
    row = ("experts of a token", "2 of 5, in 3 sparse layers; 3,456 of the parameters are the other experts'")
    assert network.card_rows == [row] and 3_456 == 3 * 3 * 2 * 16 * 12
    vocabulary = {"class": "ByteVocabulary", "vocab_size": 256, "extra_ids": 0}
    assert row in t5_card.describe(FAMILY, network, vocabulary, ["safetensors"], "float32").network


def test_gin_files_have_the_sizes_of_the_hub():
    base = bound_network("gin/models/switch/base_8.gin", ["DROPOUT_RATE = 0.0"]).config
    shapes = FAMILY.shapes(base, FAMILY.usual_head)
    assert sum(map(math.prod, shapes.values())) == 619_339_008, "as transformers' class with the hub's config.json"
    active = sum(math.prod(x) // (x[0] if "/expert/" in name else 1) for name, x in shapes.items())
    assert active == 222_977_280
    tiny = bound_network("gin/models/switch/tiny.gin", ["DROPOUT_RATE = 0.0"]).config
    assert (tiny.num_experts, tiny.emb_dim, tiny.capacity(512, True)) == (4, 8, 64)
