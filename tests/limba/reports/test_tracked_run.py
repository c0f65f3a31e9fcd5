"""What a folder says of a tracker's run."""

import json

import pytest

from limba.reports.tracked_run import TrackedRun


@pytest.mark.parametrize(
    ("record", "known"),
    [
        ({"id": "1f5", "last_step": 6}, "1f5"),
        ({"id": "my run/2"}, "my run/2"),
        ({"id": "../../theirs"}, None),
        ({"id": "/theirs"}, None),
        ({"id": "1\n5"}, None),
        ({"id": ["1f5"]}, None),
        ({"id": 10**400}, None),
        ({"id": ""}, None),
        ({"id": "1f5", "last_step": "6"}, None),
        ({"id": "1f5", "last_step": 2**63}, None),
    ],
)
def test_a_damaged_record_begins_another_run(tmp_path, record, known):
    (tmp_path / "wandb.json").write_text(json.dumps(record) + "\n")
    run = TrackedRun(tmp_path / "wandb.json", 2)
    assert run.id == known
    assert run.values(4, "train", {"loss": 2.5}) == ({} if record.get("last_step") == 6 else {"train/loss": 2.5})
    assert (tmp_path / "wandb.json.damaged").exists() == (known is None)
