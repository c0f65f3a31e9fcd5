"""The lines at the end of a training."""

import json

import pytest

from limba.training import run_report


@pytest.mark.parametrize(("last", "says"), [(1.5, "(25.0% lower)"), (2.236, "(11.8% higher)"), (2.0, "(0.0% lower)")])
def test_a_loss_is_lower_or_higher_than_at_the_start(tmp_path, capsys, last, says):
    lines = [
        {"step": step, "dataset": "training_eval/t", "nats_per_target_token": x, "unigram_nats_per_target_token": 3.0}
        for step, x in ((0, 2.0), (5, last))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_report.print_validation_losses(tmp_path)
    assert says in capsys.readouterr().out
