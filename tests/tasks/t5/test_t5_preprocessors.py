import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from tasks import objectives
from tasks.supervised import postprocessors
from tasks.t5 import t5_data, t5_preprocessors, tfexample

VOCABULARY = seqio.ByteVocabulary(extra_ids=100)
FEATURES = {"targets": seqio.Feature(VOCABULARY, add_eos=True)}


def _documents(*lengths):
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, 200, n, dtype=np.int32) for n in lengths]
    dataset = tf.data.Dataset.from_generator(
        lambda: ({"targets": row} for row in rows), output_signature={"targets": tf.TensorSpec([None], tf.int32)}
    )
    return rows, dataset


def _restored(inputs, targets):
    """The window that inputs and targets were made of."""
    first_sentinel = VOCABULARY.vocab_size - 100
    spans, sentinel = {}, None
    for token in targets:
        if token >= first_sentinel:
            sentinel = token
            spans[sentinel] = []
        else:
            spans[sentinel].append(token)
    return [token for given in inputs for token in (spans[given] if given >= first_sentinel else [given])]


def test_span_corruption_hides_every_token_once_and_ends_without_eos():
    rows, dataset = _documents(150, 1, 90)
    lengths = {"inputs": 32, "targets": objectives.SpanCorruption().lengths(32)["targets"]}
    corrupted = t5_preprocessors.span_corruption(dataset, lengths, FEATURES)
    examples = list(corrupted.as_numpy_iterator())
    assert [token for e in examples for token in _restored(e["inputs"], e["targets"])] == np.concatenate(rows).tolist()
    # Room for the EOS that seqio appends, in full windows exactly.
    assert [len(examples[0]["inputs"]), len(examples[0]["targets"])] == [31, lengths["targets"] - 1]
    assert VOCABULARY.eos_id not in examples[0]["inputs"]


def test_span_corruption_checks_its_lengths():
    _, dataset = _documents(20)
    with pytest.raises(ValueError, match=r"makes 114 target tokens.*set it to 114"):
        t5_preprocessors.span_corruption(dataset, {"inputs": 512, "targets": 100}, FEATURES)


def test_a_task_module_of_t5x_users():
    """The chain that they write: it ends with EOS where a feature is declared, and not else."""
    lines = functools.partial(tf.data.Dataset.from_tensors, b"Now is the winter of our discontent " * 3)
    task = seqio.Task(
        "as_in_t5",
        source=seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: lines(), splits=["train"]),
        preprocessors=[
            seqio.map_over_dataset(lambda text: {"inputs": None, "targets": text}),
            seqio.preprocessors.tokenize,
            t5_preprocessors.span_corruption,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={"targets": seqio.Feature(VOCABULARY, add_eos=True)},
    )
    dataset = task.get_dataset({"inputs": 64, "targets": 32}, "train", shuffle=False)
    for example in dataset.as_numpy_iterator():
        assert example["targets"][-1] == 1
        assert example["inputs"][-1] != 1


def test_prefix_lm_cuts_in_two():
    rows, dataset = _documents(40)
    pieces = t5_preprocessors.prefix_lm(dataset, {"inputs": 16, "targets": 16}, FEATURES)
    examples = list(pieces.as_numpy_iterator())
    joined = [np.concatenate([e["inputs"], e["targets"]]) for e in examples]
    assert [len(window) for window in joined] == [15, 15, 10]
    assert np.concatenate(joined).tolist() == rows[0].tolist()
    assert all(len(e["inputs"]) and len(e["targets"]) for e in examples)
    # Targets that are a tenth of a window of 31 on average have at most 7: the shortest prefix is round(0.8 * 30).
    pieces = t5_preprocessors.prefix_lm(dataset, {"inputs": 32, "targets": 32}, FEATURES, noise_density=0.1)
    assert [len(e["targets"]) <= 7 for e in pieces.as_numpy_iterator()] == [True, True]


def test_iid_denoising_hides_every_token_once():
    rows, dataset = _documents(150, 90)
    denoised = t5_preprocessors.iid_denoising(dataset, {"inputs": 32, "targets": 32}, FEATURES)
    examples = list(denoised.as_numpy_iterator())
    text = np.concatenate(rows)
    assert len(examples) == 8 and VOCABULARY.eos_id not in np.concatenate([e["inputs"] for e in examples])
    for number, example in enumerate(examples):
        window = text[31 * number :][:31]
        kept, hidden = (x[x < VOCABULARY.vocab_size - 100] for x in (example["inputs"], example["targets"]))
        assert sorted([*kept, *hidden]) == sorted(window)
        is_sentinel = example["inputs"] >= VOCABULARY.vocab_size - 100
        assert np.array_equal(example["inputs"][is_sentinel], VOCABULARY.vocab_size - 1 - np.arange(is_sentinel.sum()))


def test_full_lm_ends_documents_and_not_windows():
    rows, dataset = _documents(25, 7)
    windows = [
        e["targets"].tolist() for e in t5_preprocessors.full_lm(dataset, {"targets": 20}, FEATURES).as_numpy_iterator()
    ]
    assert [token for window in windows for token in window] == [*rows[0], 1, *rows[1], 1]
    assert [len(window) for window in windows] == [20, 14]


def test_chunks_and_pieces():
    rows, dataset = _documents(25, 0)
    chunk = next(t5_preprocessors.select_random_chunk(dataset, max_length=10).as_numpy_iterator())["targets"]
    assert chunk.tolist() in [rows[0][start : start + 10].tolist() for start in (0, 10, 20)]
    by_length = t5_preprocessors.select_random_chunk(dataset, FEATURES, sequence_length={"targets": 30})
    assert len(next(by_length.as_numpy_iterator())["targets"]) == 25
    with pytest.raises(ValueError, match="max_length or sequence_length"):
        t5_preprocessors.select_random_chunk(dataset)
    with pytest.raises(ValueError, match="min_tokens_per_segment"):
        t5_preprocessors.split_tokens(dataset, 5)


def test_text():
    lines = tf.data.Dataset.from_tensors("a question\tan answer")
    parsed = next(t5_preprocessors.parse_tsv(lines).as_numpy_iterator())
    assert parsed == {"inputs": b"a question", "targets": b"an answer"}
    summary = next(
        t5_preprocessors.summarize(tf.data.Dataset.from_tensors(parsed), "inputs", "targets").as_numpy_iterator()
    )
    assert summary == {"inputs": b"summarize: a question", "targets": b"an answer"}


def _first(dataset):
    return next(dataset.as_numpy_iterator())


def test_lines_with_more_fields():
    lines = tf.data.Dataset.from_tensors('6\t7\t"42')
    assert _first(t5_preprocessors.parse_tsv(lines)) == {"inputs": b"6", "targets": b"7"}
    assert _first(t5_preprocessors.parse_tsv(lines, ["a"], field_columns=[2])) == {"a": b'"42'}
    formats = {"inputs_format": "of {2} and {1} {{}}", "targets_format": "{0}"}
    made = _first(t5_preprocessors.preprocess_tsv(lines, num_fields=3, **formats))
    assert made == {"inputs": b'of "42 and 7 {{}}', "targets": b"6"}
    formats = {"inputs_format": "{b} {0}", "targets_format": "{c}{c}", "field_names": ["a", "b", "c"]}
    assert _first(t5_preprocessors.preprocess_tsv(lines, **formats)) == {"inputs": b"7 {0}", "targets": b'"42"42'}
    with pytest.raises(ValueError, match=r"has the fields \['0', '1'\], and its formats name \['2'\]: num_fields\?"):
        t5_preprocessors.preprocess_tsv(lines, inputs_format="{2}")


def test_language_models_and_long_targets():
    assert _first(t5_preprocessors.lm(tf.data.Dataset.from_tensors({"text": "a"}))) == {"inputs": b"", "targets": b"a"}
    tokens = tf.data.Dataset.from_tensors({"inputs": tf.range(7), "targets": tf.range(7), "id": tf.constant(5)})
    made = _first(t5_preprocessors.trim_tokens_at_front(tokens, {"inputs": 4, "targets": 8}, ["inputs"]))
    assert made["inputs"].tolist() == [4, 5, 6] and made["targets"].tolist() == [*range(7)] and made["id"] == 5
    features = {name: seqio.Feature(seqio.ByteVocabulary(), add_eos=True) for name in ("inputs", "targets")}
    cut = t5_preprocessors.split_tokens_to_targets_length(tokens, {"inputs": 9, "targets": 4}, features)
    assert [x["targets"].tolist() for x in cut.as_numpy_iterator()] == [[0, 1, 2], [3, 4, 5], [6]]


def test_postprocessors():
    assert postprocessors.lower_text("Ab", example=None, is_target=True) == "ab"
    assert [postprocessors.string_to_float(text) for text in ("1.5", "x", "nan")] == [1.5, -1.0, -1.0]
    assert [postprocessors.string_label_to_class_id(label, ["no", "yes"]) for label in ("yes", "so")] == [1, -1]
    assert postprocessors.qa("a", {"answers": [b"a", b"b"]}, is_target=True) == ["a", "b"]
    assert postprocessors.qa("a", {"answers": [b"a", b"b"]}) == "a"


def test_default_vocabulary_has_sentinels():
    vocabulary = t5_data.get_default_vocabulary()
    assert (vocabulary.sentencepiece_model_file, vocabulary.extra_ids) == (t5_data.DEFAULT_SPM_PATH, 100)


def test_a_task_of_tf_examples(tmp_path):
    file = tmp_path / "questions.tfrecord"
    with tf.io.TFRecordWriter(str(file)) as writer:
        for text in (b"one", b"two"):
            value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))
            writer.write(tf.train.Example(features=tf.train.Features(feature={"question": value})).SerializeToString())
    features = {name: seqio.Feature(VOCABULARY, add_eos=True) for name in ("inputs", "targets")}
    arguments = ([str(file)], "tfrecord", "question", None, features)
    name = tfexample.create_task_from_tfexample_file(*arguments)
    assert tfexample.create_task_from_tfexample_file(*arguments) == name
    dataset = seqio.get_mixture_or_task(name).get_dataset({"inputs": 8, "targets": 8}, "infer", shuffle=False)
    examples = list(dataset.as_numpy_iterator())
    assert [VOCABULARY.decode(e["inputs"].tolist()) for e in examples] == ["one", "two"]
    assert [e["inputs"][-1] for e in examples] == [1, 1]
    with pytest.raises(ValueError, match="'csv'"):
        tfexample.create_task_from_tfexample_file([str(file)], "csv", "a", None, features)


# ------------------------------------------------- ranking of answers ------------------------------------------------


def _stories():
    rows = {"text": ["A", "B"], "label": [1, 0], "w": [2.0, 0.5]}
    return tf.data.Dataset.from_tensor_slices(rows).map(lambda x: {**x, "inner": {"n": x["label"] + 5}})


def test_every_answer_becomes_an_example():
    made = t5_preprocessors.rank_classification_formatter(
        _stories(), "{text} {{x}} {inner/n}", ["no", "yes {text}"], weight_key="w"
    )
    rows = [
        (x["idx"].tolist(), x["inputs"], x["targets"], bool(x["is_correct"]), x["weight"])
        for x in made.as_numpy_iterator()
    ]
    assert rows == [
        ([0, 0], b"A {x} 6", b"no", False, 2.0),
        ([0, 1], b"A {x} 6", b"yes A", True, 2.0),
        ([1, 0], b"B {x} 5", b"no", True, 0.5),
        ([1, 1], b"B {x} 5", b"yes B", False, 0.5),
    ]
    train = t5_preprocessors.rank_classification_formatter(_stories(), ["{text}1", "{text}2"], "x", mode="train")
    assert [x["inputs"] for x in train.as_numpy_iterator()] == [b"A2", b"B1"]
    together = t5_preprocessors.rank_classification_formatter(_stories(), "{text}", ["a", "b"], mode="fewshot_eval")
    assert [x["targets"].tolist() for x in together.as_numpy_iterator()] == [[b"a", b"b"]] * 2
    example = next(made.as_numpy_iterator())
    assert postprocessors.rank_classification("no", example=example | {"targets": [7, 8, 1]}, is_target=True)[1:] == (
        False,
        2.0,
        3,
    )
    with pytest.raises(ValueError, match="not 'test'"):
        t5_preprocessors.rank_classification_formatter(_stories(), "a", ["b", "c"], mode="test")
    with pytest.raises(ValueError, match="2 inputs_formats do not go with 3"):
        t5_preprocessors.rank_classification_formatter(_stories(), ["a", "b"], ["b", "c", "d"])
