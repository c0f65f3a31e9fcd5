"""The table of `benchmarks/trimmed_vocabularies.py`."""

import numpy as np
import pytest

from benchmarks import trimmed_vocabularies
from limba.addons.surgery import trimmed_pieces


def test_a_row_has_tokens_of_the_texts_and_sizes_of_the_model():
    sizes = {"pieces": 32028, "parameters": 76.1e6, "megabytes": 304.4, "forward_flops": 35.25e9, "logits_share": 0.106}
    usage = trimmed_pieces.Usage(np.array([30, 20]), lines=4, unknown=1)
    row = trimmed_vocabularies.row("ru before", sizes, usage)
    assert row == ["ru before", "32,028", "12.5", "2.00%", "76.1 M", "304", "35.2", "11%"]
    assert len(row) == len(trimmed_vocabularies.HEADER)


def test_a_pattern_without_split_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        trimmed_vocabularies.main(["--work", str(tmp_path), "ru=ru.jsonl"])
    assert "ru=ru.jsonl: the pattern has {split} for train and validation" in capsys.readouterr().err
