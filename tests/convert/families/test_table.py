"""Each network has one family, and no other."""

import importlib.metadata

import pytest

from convert.families import table
from convert.families.table import all_families, find_t5, of_model_type
from limba.network.t5 import T5Config

BYTES, PIECES = {"class": "ByteVocabulary"}, {"class": "SentencePieceVocabulary"}


@pytest.mark.parametrize(
    ("fields", "vocabulary", "named", "family", "model_type"),
    [
        ({"logits_via_embedding": True}, PIECES, None, "t5", "t5"),
        ({}, PIECES, None, "t5_1_1", "t5"),
        ({}, PIECES, "mt5", "mt5", "mt5"),
        ({"family": "mt5"}, PIECES, None, "mt5", "mt5"),
        # One that it was, and no longer can be.
        ({"family": "mt5", "logits_via_embedding": True}, PIECES, None, "t5", "t5"),
        ({"family": "mt5"}, PIECES, "t5_1_1", "t5_1_1", "t5"),
        ({}, BYTES, None, "byt5", "t5"),
        ({"relative_bias_per_layer": True}, PIECES, None, "umt5", "umt5"),
    ],
)
def test_families(fields, vocabulary, named, family, model_type):
    config = T5Config(vocab_size=8, **fields)
    found = find_t5(config, vocabulary, named)
    assert (found.name, found.model_type) == (family, model_type)


@pytest.mark.parametrize(
    ("fields", "named", "why"),
    [
        ({"relative_bias_per_layer": True}, "t5_1_1", "every layer has its table"),
        ({}, "umt5", "one table of relative positions a stack"),
        ({}, "t5", "there is an output matrix"),
        ({"logits_via_embedding": True}, "mt5", "the embedding is the output too"),
    ],
)
def test_a_family_that_the_shapes_contradict_is_refused(fields, named, why):
    with pytest.raises(ValueError, match=f"--family {named}: .*{why}"):
        find_t5(T5Config(vocab_size=8, **fields), PIECES, named)


def test_the_first_family_of_a_model_type_says_how_it_is_read():
    assert [of_model_type(x).name for x in ("t5", "mt5", "umt5")] == ["t5", "mt5", "umt5"]
    assert of_model_type("pegasus") is None


@pytest.mark.parametrize(
    ("value", "words"),
    [("json:dumps", "is not a convert.families"), ("convert.families.t5_1_0:FAMILY", "name that is taken")],
)
def test_an_entry_point_that_is_no_new_family_is_named(monkeypatch, value, words):
    points = [importlib.metadata.EntryPoint("x", value, "limba.families")]
    monkeypatch.setattr(table.importlib.metadata, "entry_points", lambda group: points)
    all_families.cache_clear()
    try:
        with pytest.raises(ValueError, match=f"{value}.*{words}"):
            all_families()
    finally:
        all_families.cache_clear()
