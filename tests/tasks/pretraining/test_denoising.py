import numpy as np
import pytest
import seqio

from tasks import objectives, preprocessors


def test_encode_batch_equals_the_vocabulary():
    vocabulary = seqio.ByteVocabulary(100)
    texts = ["ab", "", "ștîă 你好"]
    tokens, lengths = preprocessors.encode_batch(vocabulary, [text.encode() for text in texts])
    assert lengths.tolist() == [2, 0, 14]
    assert tokens.tolist() == [token for text in texts for token in vocabulary.encode(text)]
    assert tokens.dtype == np.int32


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, []), (2, [2]), (10, [10]), (11, [10]), (12, [10, 2]), (25, [10, 10, 5])]
)
def test_windows_keep_a_short_rest_but_no_single_token(count, expected):
    tokens = np.arange(1, count + 1, dtype=np.int32)
    windows, lengths = preprocessors.split_into_windows(tokens, 10)
    assert lengths.tolist() == expected
    kept = np.concatenate([[], *(row[:length] for row, length in zip(windows, lengths, strict=True))])
    assert kept.tolist() == tokens[: sum(expected)].tolist()
    assert windows.shape == (len(expected), 10)


def test_examples_of_a_task_give_back_the_documents_in_order(task, lengths, make_document):
    vocabulary = task.output_features["inputs"].vocabulary
    examples = task.get_dataset(lengths, "validation", shuffle=False, seed=1).as_numpy_iterator()
    text = []
    for example in examples:
        inputs, targets = example["inputs"].tolist(), example["targets"].tolist()
        assert inputs[-1] == targets[-1] == vocabulary.eos_id
        assert len(inputs) <= 64 and len(targets) <= lengths["targets"]
        spans = {}
        for token in targets[:-1]:
            if token >= 259:
                spans[token] = []
            else:
                spans[max(spans, key=lambda sentinel: -sentinel)].append(token)
        for token in inputs[:-1]:
            text.extend(spans[token] if token >= 259 else [token])
    expected = "".join(make_document(99, row)["text"] for row in range(30))
    assert vocabulary.decode(text) == expected


def test_denoise_needs_lengths_and_sentinels(task, lengths):
    with pytest.raises(ValueError, match="sequence_length"):
        task.get_dataset(None, "train")
    features = {name: seqio.Feature(seqio.ByteVocabulary(0)) for name in ("inputs", "targets")}
    with pytest.raises(ValueError, match="extra_ids=0 and no sentinels"):
        preprocessors.Denoise(objectives.SpanCorruption()).check(features, lengths)
