"""The speedrun as people type it, on a loopback hub with a tiny stand-in."""

import json
import re
import sys
from pathlib import Path

import pytest

from limba.reports import writers
from tests import compilation, loopback_hub
from tests.launch import launching, speedrun_stand_in

STEPS = 60
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A folder, the arguments of the launcher, and its environment."""
    folder = tmp_path_factory.mktemp("speedrun")
    hub = loopback_hub.LoopbackHub()
    arguments = speedrun_stand_in.make(folder, hub, STEPS)
    own = {"LIMBA_SPEEDRUN_INSTRUCTIONS": str(folder / "instructions"), "LIMBA_SPEEDRUN_DIR": str(folder / "job")}
    own["LIMBA_SPEEDRUN_BUFFER"] = "48"
    own |= hub.environment(folder / "home") | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": compilation.FAST}
    yield folder, arguments, own
    hub.close()


@pytest.fixture(scope="module")
def job(stand_in):
    """What the launcher says. What it resumes: tests/benchmarks/test_speedrun.py and tests/test_line.py."""
    folder, arguments, own = stand_in
    environment = launching.environment(folder, VENV=str(Path(sys.executable).parent.parent), **own)
    return launching.call("speedrun.sh", "--seeds", "0", *arguments, env=environment)


def _figures(folder: Path) -> tuple[float, dict[str, float], list[dict]]:
    """Held-out loss, ROUGE-L, and the answers of a seed."""
    loss = writers.read_metrics(folder / "pretrained", "training_eval/")[-1]
    rouge = writers.read_metrics(folder / "instructions", "inference_eval/")[-1]
    assert loss["step"] == STEPS and rouge["step"] == STEPS + 24  # two epochs of 48 instances in batches of 4
    file = folder / f"instructions/inference_eval/speedrun_instructions-{rouge['step']:06}.jsonl"
    return loss["nats_per_target_token"], rouge, [json.loads(text) for text in file.read_text().splitlines()]


def _common(a: list[str], b: list[str]) -> int:
    """The length of the longest common subsequence."""
    if not a or not b:
        return 0
    return _common(a[1:], b[1:]) + 1 if a[0] == b[0] else max(_common(a[1:], b), _common(a, b[1:]))


def _f(reference: str, answer: str) -> float:
    words = [re.findall(r"[a-z0-9]+", text.lower()) for text in (reference, answer)]
    common = _common(*words)
    return 2 * common / sum(map(len, words)) if common else 0.0


def test_the_table_has_the_figures_of_the_run(stand_in, job):
    folder, _, _ = stand_in
    assert job.returncode == 0, job.stdout[-2000:] + job.stderr[-3000:]
    loss, rouge, answers = _figures(folder / "job/seed-0")
    assert 2 < loss < 5.2
    best = 100 * sum(max(_f(target, x["prediction"]) for target in x["target"]) for x in answers) / 24
    one = 100 * sum(_f(x["target"][0], x["prediction"]) for x in answers) / 24
    assert len(answers) == 24 and 20 < one < best < 100
    assert (rouge["eval/rougeL"], rouge["eval/rougeL_one_reference"]) == pytest.approx((best, one))
    assert re.search(rf"^seed 0 +{loss:.4f} +{one:.2f} +{best:.2f} +0\.\d\d +0\.\d\d$", job.stdout, re.M)
    assert re.search(r"^nanoT5 +1\.953 +40\.7$", job.stdout, re.M)
    written = (folder / "job/leaderboard.md").read_text()
    assert written in job.stdout and f"| 1 cpu | {STEPS} x 4 | pretrain.gin, finetune.gin | {loss:.4f} | " in written
    for page in ("pretraining.html", "instructions.html"):
        assert "seed-0" in (folder / "job" / page).read_text()
