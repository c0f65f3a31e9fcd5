import functools

import numpy as np
import pytest
import tokenizers

from limba.data import contract
from tasks import objectives
from tasks.pipeline import predictions
from tasks.pretraining import denoising
from tasks.registry import Feature, rows, steps
from tasks.vocabularies import ByteVocabulary, TokenizerVocabulary
from tasks.vocabularies.vocabulary import encode_batch


def test_encode_batch_equals_the_vocabulary():
    vocabulary = ByteVocabulary(100)
    texts = ["ab", "", "ștîă 你好"]
    tokens, lengths = encode_batch(vocabulary, [text.encode() for text in texts])
    assert lengths.tolist() == [2, 0, 14]
    assert tokens.tolist() == [token for text in texts for token in vocabulary.encode(text)]
    assert tokens.dtype == np.int32


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, []), (2, [2]), (10, [10]), (11, [10]), (12, [10, 2]), (25, [10, 10, 5])]
)
def test_windows_keep_a_short_rest_but_no_single_token(count, expected):
    tokens = np.arange(1, count + 1, dtype=np.int32)
    windows, lengths = denoising.split_into_windows(tokens, 10)
    assert lengths.tolist() == expected
    kept = np.concatenate([[], *(row[:length] for row, length in zip(windows, lengths, strict=True))])
    assert kept.tolist() == tokens[: sum(expected)].tolist()
    assert windows.shape == (len(expected), 10)


def test_examples_of_a_task_give_back_the_documents_in_order(task, lengths, make_document):
    vocabulary = task.output_features["inputs"].vocabulary
    examples = predictions.examples(task, contract.DatasetConfig(task.name, lengths, "validation", 1, seed=1))
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
    (denoise,) = task.preprocessors
    with pytest.raises(ValueError, match="sequence_length"):
        steps.bind(denoise, task.output_features, None).rows_function()
    features = {name: Feature(ByteVocabulary(0)) for name in ("inputs", "targets")}
    with pytest.raises(ValueError, match="extra_ids=0 and no sentinels"):
        denoising.Denoise(objectives.SpanCorruption()).check(features, lengths)


def test_rows_of_documents(task, lengths):
    """The step's own function: which document each window begins in, and the same rows from the same seed."""
    denoise = steps.bind(task.preprocessors[0], task.output_features, lengths)
    texts = np.array([b"a" * 30, b"", b"b" * 90, b"c" * 20], object)
    documents = np.array([[0, 4, row] for row in range(4)])
    make = functools.partial(denoise.rows_function(), rows.Rows({"text": texts}, documents, np.arange(4)))
    made = make(5).columns
    assert made.keys() == denoise.columns().keys() == {"inputs", "targets"}
    # Windows of 67 bytes: of 140 bytes the first begins in document 0, the second and the rest of 6 in 2 and 3.
    raw_length = denoise.objective.raw_length(64)
    begins = np.searchsorted([30, 30, 120, 140], np.arange(0, 140, raw_length), side="right")
    assert make(5).document.tolist() == [[0, 4, row] for row in begins.tolist()]
    assert made["inputs"].lengths[:2].tolist() == [64, 64] and made["targets"].lengths[0] == lengths["targets"]
    kept = [made[name].padded[i, : made[name].lengths[i]] for i in range(len(begins)) for name in ("inputs", "targets")]
    bytes_of_text = np.concatenate(kept)
    bytes_of_text = bytes_of_text[(bytes_of_text >= 3) & (bytes_of_text < 259)] - 3
    assert np.bincount(bytes_of_text)[[97, 98, 99]].tolist() == [30, 90, 20]
    again, other = (make(seed).columns for seed in (5, 6))
    np.testing.assert_array_equal(again["inputs"].padded, made["inputs"].padded)
    assert not np.array_equal(other["inputs"].padded, made["inputs"].padded)


def test_blank_lines_make_no_rows_though_blanks_have_tokens(tmp_path):
    """As run_mlm.py leaves them out; the last line has a no-break space alone."""
    letters = {token: i for i, token in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ab \n\u00a0"))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(letters, [], unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(letters)[:5])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    feature = Feature(TokenizerVocabulary(str(tmp_path / "tokenizer.json")))
    step = denoising.Denoise(
        objectives.MaskedLM(),
        line_by_line=True,
        output_features={"inputs": feature, "targets": feature},
        sequence_length={"inputs": 8},
    )
    lines = [b"ab", b"", b" ", b"b \n", b"\n \n", "\u00a0".encode()]
    examples, documents = step.function()(lines, seed=0)
    assert documents.tolist() == [0, 3] and examples["inputs"][1].tolist() == [4, 5]
