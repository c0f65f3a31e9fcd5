import numpy as np
import pytest

from tasks import preview
from tasks.vocabularies import ByteVocabulary


def test_text_with_sentinels():
    vocabulary = ByteVocabulary(100)
    tokens = np.array([*vocabulary.encode("ab"), 358, *vocabulary.encode("c"), 357, 1, 0, 0])
    assert preview.to_text(vocabulary, tokens) == "ab <0> c <1> </s>"


def test_preview_command(task, capsys):
    preview.main(["test_task", "--split", "validation", "--inputs_length", "64", "--num", "2"])
    output = capsys.readouterr().out
    assert "example 1, targets: 14 of 14 tokens" in output
    assert "fill of the first" in output
    with pytest.raises(SystemExit, match=r"error: There is no task or mixture 'test_tak'.*--module my_module"):
        preview.main(["test_tak"])
