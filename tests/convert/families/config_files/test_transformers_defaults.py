"""A config.json that leaves keys out, or says null, is the network of transformers' class; the record is theirs."""

import json

import pytest

from convert.families.config_files import encoder_config, new_network, t5_config
from tests.convert.families.config_files import transformers_defaults
from tests.convert.families.config_files.transformers_defaults import ENCODERS, T5S

RECORD = json.loads(transformers_defaults.FILE.read_text("utf-8"))
KINDS = [(version, kind) for version in ("4", "5") for kind in (*T5S, *ENCODERS) if kind in RECORD[version]]
VERSIONS = {"4": "4.57.6", "5": "5.23.0"}
# mT5's own models have an output of their own; version 5 makes new ones without, and version 4 with.
TIES = {("5", "mt5"): {"tie_word_embeddings": False}}


@pytest.fixture
def explicit(tmp_path):
    """A function that gives all keys of the network of a config.json."""

    def function(content):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(content))
        if content["model_type"] in T5S:
            given = t5_config.read(file)
            return t5_config.explicit(given, t5_config.network_config(file, given))
        new_network.read_network(file)
        return encoder_config.read(file).explicit

    return function


def _defaults(version, kind):
    return RECORD[version][kind]["defaults"] | TIES.get((version, kind), {})


def _small(kind):
    """With rows for the ids of special tokens by default."""
    return {key: x for key, x in transformers_defaults.small(kind).items() if key != "vocab_size"}


def _same(found, expected):
    """The keys that both have are the same; the sizes are among them."""
    shared = {key: x for key, x in expected.items() if key in found}
    assert {key: found[key] for key in shared} == shared
    assert len(shared) >= 10


@pytest.mark.parametrize(("version", "kind"), KINDS)
def test_a_file_without_any_key_is_the_class_by_default(explicit, version, kind):
    _same(explicit({"model_type": kind, "transformers_version": VERSIONS[version]}), _defaults(version, kind))


@pytest.mark.parametrize(("version", "kind"), KINDS)
def test_each_key_can_be_left_out(explicit, version, kind):
    defaults = _defaults(version, kind)
    whole = defaults | _small(kind) | {"transformers_version": VERSIONS[version]}
    # These follow from the sizes.
    following = ("layer_types", "embedding_size", "num_decoder_layers", "head_dim", "num_key_value_heads")
    whole = {key: x for key, x in whole.items() if key not in following}
    for key in whole.keys() - {"model_type", "transformers_version"}:
        _same(explicit({name: x for name, x in whole.items() if name != key}), whole | {key: defaults[key]})


@pytest.mark.parametrize(("version", "kind"), KINDS)
def test_each_key_can_be_null_where_the_class_takes_it(explicit, version, kind):
    small = _small(kind) | {"transformers_version": VERSIONS[version]}
    for key, outcome in RECORD[version][kind]["null"].items():
        without = {name: x for name, x in small.items() if name != key}
        expected = explicit(without | CARRIED[key] if outcome == "other" and key in CARRIED else without)
        if key in REFUSED or (outcome == "other" and key not in CARRIED):
            with pytest.raises(ValueError, match=f"{key} is (null|None|False)"):
                explicit(small | {key: None})
        else:
            found = explicit(small | {key: None})
            assert {name: found[name] for name in expected} == expected, key


# What null means in the class where it is not the default.
CARRIED = {"decoder_bias": {"decoder_bias": False}, "local_rope_theta": {"local_rope_theta": 160_000.0}}
# To one version null is the default, and to the other something else.
REFUSED = ("tie_word_embeddings", "scale_decoder_outputs", "position_embedding_type")


@pytest.mark.parametrize("kind", T5S)
def test_another_name_of_num_layers_leaves_the_decoders(explicit, kind):
    """As in both versions: the decoder's layers are counted before the other name is taken."""
    found = explicit({"model_type": kind, "num_hidden_layers": 3})
    default = _defaults("4", kind)["num_layers"]
    assert (found["num_layers"], found["num_decoder_layers"]) == (3, default)
    found = explicit({"model_type": kind, "num_layers": 3})
    assert (found["num_layers"], found["num_decoder_layers"]) == (3, 3)


def test_an_encoder_whose_output_is_another_matrix_is_refused(explicit):
    with pytest.raises(
        ValueError, match="tie_word_embeddings is False; the output of Limba's encoders is the embedding"
    ):
        explicit({"model_type": "bert", "tie_word_embeddings": False})


def test_the_record_is_that_of_the_installed_version():
    """Sizes alone, without the networks, which take a minute."""
    from transformers import CONFIG_MAPPING

    for kind in RECORD["4"]:
        default, recorded = CONFIG_MAPPING[kind]().to_dict(), RECORD["4"][kind]["defaults"]
        assert {key: default[key] for key in recorded} == recorded
