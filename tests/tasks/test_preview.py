import numpy as np
import pytest
import seqio

from tasks import preview, unigram_baseline


def test_text_with_sentinels():
    vocabulary = seqio.ByteVocabulary(100)
    tokens = np.array([*vocabulary.encode("ab"), 358, *vocabulary.encode("c"), 357, 1, 0, 0])
    assert preview.to_text(vocabulary, tokens) == "ab <0> c <1> </s>"


def test_preview_command(task, capsys):
    preview.main(["test_task", "--split", "validation", "--inputs_length", "64", "--num", "2"])
    output = capsys.readouterr().out
    assert "example 1, targets: 14 of 14 tokens" in output
    assert "fill of the first" in output
    with pytest.raises(SystemExit, match="error: There is no task or mixture 'test_tak'"):
        preview.main(["test_tak"])


def test_unigram_cross_entropy_is_the_entropy_of_the_counted_targets():
    batches = [
        {"decoder_target_tokens": np.array([[5, 5, 7, 0]]), "decoder_loss_weights": np.array([[1, 1, 1, 0]])},
        {"decoder_target_tokens": np.array([[900, 3, 0, 0]]), "decoder_loss_weights": np.array([[1, 0, 0, 0]])},
    ]
    # Counted: 5 twice, 7 once, 900 once.
    assert unigram_baseline.unigram_cross_entropy(batches) == pytest.approx(1.5 * np.log(2))


def test_unigram_command(task, capsys):
    unigram_baseline.main(["test_task", "--inputs_length", "64"])
    name, _, value = capsys.readouterr().out.partition(": ")
    assert name == "test_task"
    assert 2.0 < float(value.split()[0]) < np.log(359)
