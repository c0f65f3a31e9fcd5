"""Packing and features of models, against SeqIO's converters on random examples."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.data import contract
from tasks.pipeline import converters, packing


def _examples(seed, lengths, count=60):
    """Random tokens; some features are empty, some full."""
    rng = np.random.default_rng(seed)
    sizes = {name: rng.integers(0, length + 1, count) for name, length in lengths.items()}
    for name, length in lengths.items():
        sizes[name][rng.integers(0, count, 4)] = length
    return [{name: rng.integers(1, 99, sizes[name][i]).astype(np.int32) for name in lengths} for i in range(count)]


def _padded(examples, lengths):
    return {
        name: np.stack([np.pad(example[name], (0, length - len(example[name]))) for example in examples])
        for name, length in lengths.items()
    }


def _seqio_s(converter, examples, lengths):
    signature = {name: tf.TensorSpec([None], tf.int32) for name in lengths}
    dataset = tf.data.Dataset.from_generator(lambda: iter(examples), output_signature=signature)
    rows = list(converter(dataset, lengths).as_numpy_iterator())
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.sample(5)
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("EncDecFeatureConverter", {"inputs": 24, "targets": 17}),
        ("LMFeatureConverter", {"targets": 30}),
        ("PrefixLMFeatureConverter", {"inputs": 12, "targets": 20}),
        ("DecoderFeatureConverter", {"inputs": 16, "targets": 9}),
        ("DecoderFeatureConverter", {"targets": 30}),
    ],
)
def test_converters_are_seqio_s(name, lengths, pack):
    examples = _examples(0, lengths)
    assert any(not len(tokens) for example in examples for tokens in example.values())
    expected = _seqio_s(getattr(seqio, name)(pack=pack), examples, lengths)
    actual = converters.CONVERTERS[name](_padded(examples, lengths), pack)
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert actual[key].dtype == value.dtype, key
        np.testing.assert_array_equal(actual[key], value, key)
    assert len(next(iter(actual.values()))) < len(examples) or not pack
    if name == "EncDecFeatureConverter" and not pack:
        again = contract.encoder_decoder_features(*_padded(examples, lengths).values())
        assert all(np.array_equal(again[key], expected[key]) for key in expected)


@pytest.mark.parametrize("seed", range(3))
def test_packing_is_seqio_s(seed):
    """Of short and of long examples: more than one group of as many as the longest row has tokens."""
    rng = np.random.default_rng(100 + seed)
    lengths = {"a": int(rng.integers(3, 40)), "b": int(rng.integers(3, 40))}
    most = {name: max(1, length // (1 + seed % 3 * 2)) for name, length in lengths.items()}
    examples = [
        {name: rng.integers(1, 99, rng.integers(1, most[name] + 1)).astype(np.int32) for name in lengths}
        for _ in range(150)
    ]
    signature = {name: tf.TensorSpec([None], tf.int32) for name in lengths}
    dataset = tf.data.Dataset.from_generator(lambda: iter(examples), output_signature=signature)
    rows = list(seqio.utils.trim_and_pack_dataset(dataset, lengths).as_numpy_iterator())
    packed = packing.pack(_padded(examples, lengths))
    assert packed.keys() == rows[0].keys()
    for name in packed:
        np.testing.assert_array_equal(packed[name], np.stack([row[name] for row in rows]), name)
        assert packed[name].dtype == np.int32
    assert (packed["a_segment_ids"] > 0).sum() == sum(len(example["a"]) for example in examples)


def test_packing_by_hand():
    features = {"inputs": np.array([[5, 6, 0, 0], [7, 0, 0, 0], [8, 9, 3, 0], [4, 0, 0, 0]], np.int32)}
    packed = packing.pack(features)
    assert packed["inputs"].tolist() == [[5, 6, 7, 0], [8, 9, 3, 4]]
    assert packed["inputs_positions"].tolist() == [[0, 1, 0, 0], [0, 1, 2, 0]]
    assert packed["inputs_segment_ids"].tolist() == [[1, 1, 2, 0], [1, 1, 1, 2]]


def test_which_converters_need_no_seqio():
    class Own(seqio.EncDecFeatureConverter):
        pass

    assert converters.is_known("LMFeatureConverter") and converters.is_known(seqio.DecoderFeatureConverter)
    assert not converters.is_known(Own) and not converters.is_known(seqio.EncoderFeatureConverter)
    assert not converters.is_known("PassThroughFeatureConverter")
    assert converters.name_of(Own) == "Own" and converters.name_of("x") == "x"
    assert "The nearest are 'LMFeatureConverter'" in str(converters.unknown("LMFeaturConverter", converters.CONVERTERS))
