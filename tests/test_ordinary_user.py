"""Commands without the right to write or read, and with few open files: one message, and nothing half-written.

root may read and write everywhere. So the commands of root run without that capability (setpriv); those of others as
they are.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests import forked, line
from tests.convert.conftest import new_run, spiece_model  # noqa: F401, fixtures

pytestmark = pytest.mark.slow

_RIGHTS = "-dac_override,-dac_read_search"
WITHOUT_RIGHTS = () if os.geteuid() else ("setpriv", f"--bounding-set={_RIGHTS}", f"--inh-caps={_RIGHTS}")
if WITHOUT_RIGHTS and shutil.which("setpriv") is None:
    pytest.skip("root may write everywhere, and setpriv, which takes that away, is not here", allow_module_level=True)

TASKS = """
from tasks import pretraining, vocabularies

for name in ("corpus", "many", "secret"):
    pretraining.register_pretraining_task(
        f"user_{name}",
        data_files=dict.fromkeys(("train", "validation"), f"ROOT/{name}/*.jsonl"),
        vocabulary=vocabularies.ByteVocabulary(extra_ids=100),
    )
"""
NO_CHECK = ("--no-check",)
CACHE = ("--module", "user_tasks", "--sequence_length", "inputs=32,targets=16", "--out")
SWEEP = """
program: fake
command: ["${interpreter}", "-c", "0"]
metric: {name: t/loss, goal: minimize}
method: grid
parameters: {x: {values: [1]}}
"""
# What cannot be written or read by whom it may concern: the arguments, and words of the message.
REFUSED = {
    "to-hf": (("convert", "to-hf", "ROOT/run", "ROOT/closed/out", *NO_CHECK), "ROOT/closed"),
    "to-t5x": (("convert", "to-t5x", "ROOT/run", "ROOT/closed/out", *NO_CHECK), "ROOT/closed"),
    "from-hf": (("convert", "from-hf", "ROOT/export", "ROOT/closed/out", *NO_CHECK), "ROOT/closed"),
    "all": (("convert", "all", "ROOT/run", "ROOT/closed/out", *NO_CHECK), "ROOT/closed"),
    "cache": (("cache", "user_corpus", *CACHE, "ROOT/closed/out"), "ROOT/closed"),
    "sweep": (("sweep", "ROOT/sweep.yaml", "--dir", "ROOT/closed/out"), "ROOT/closed"),
    "vocab": (
        ("vocab", "build", "--data_files=ROOT/corpus/train-*.jsonl", "--vocab_size=256", "--out=ROOT/closed/v.model"),
        "ROOT/closed",
    ),
    "train": (("train", "ROOT/train.gin", "--gin.MODEL_DIR='ROOT/closed/out'"), "ROOT/closed"),
    "a checkpoint": (("convert", "to-hf", "ROOT/secret_run", "ROOT/outputs/out", *NO_CHECK), "ROOT/secret_run"),
    "weights": (("convert", "from-hf", "ROOT/secret_export", "ROOT/outputs/out", *NO_CHECK), "ROOT/secret_export"),
    "a corpus": (("cache", "user_secret", *CACHE, "ROOT/outputs/out"), "ROOT/secret"),
    "a gin file": (("train", "ROOT/secret.gin", "--gin.MODEL_DIR='ROOT/outputs/out'"), "ROOT/secret.gin"),
}
# With 64 open files; they succeed, or say why not.
FEW_FILES = {
    "to-hf": ("convert", "to-hf", "ROOT/run", "ROOT/outputs/out", *NO_CHECK),
    "cache": ("cache", "user_many", *CACHE, "ROOT/outputs/out"),
    "train": ("train", "ROOT/train.gin", "--gin.MODEL_DIR='ROOT/outputs/out'"),
}
TRAIN = """
include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/pretrain.gin'
include 'tests/small_training.gin'
MIXTURE_OR_TASK_NAME = 'user_many'
MIXTURE_OR_TASK_MODULE = 'user_tasks'
TASK_FEATURE_LENGTHS = {'inputs': 16, 'targets': 8}
TRAIN_STEPS = 2
EVAL_PERIOD = 1000
seqio.ByteVocabulary.extra_ids = 100
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, new_run, spiece_model):  # noqa: F811
    """What the commands read, of which `secret…` and `closed` are closed; and forks without rights."""
    from convert.to_hf import to_hf

    root = tmp_path_factory.mktemp("user")
    run = new_run(root / "run", num_encoder_layers=1, num_decoder_layers=1, logits_via_embedding=False)
    to_hf(run, root / "export", formats=["safetensors"], verify=False)
    line.write_corpus(root / "corpus")
    (root / "corpus/validation-0.jsonl").unlink()
    (root / "many").mkdir()
    for number in range(100):
        (root / f"many/{number:03d}.jsonl").write_text('{"text": "a document of many words, and of more"}\n' * 20)
    (root / "user_tasks.py").write_text(TASKS.replace("ROOT", str(root)))
    (root / "sweep.yaml").write_text(SWEEP)
    (root / "train.gin").write_text("from __gin__ import dynamic_registration\nimport seqio\n" + TRAIN)
    shutil.copytree(run, root / "secret_run")
    shutil.copytree(root / "export", root / "secret_export")
    shutil.copytree(root / "corpus", root / "secret")
    (root / "secret.gin").write_text("TRAIN_STEPS = 1\n")
    weights = max((root / "secret_run").rglob("*"), key=lambda file: file.stat().st_size * file.is_file())
    for file in (weights, root / "secret_export/model.safetensors", root / "secret/train-1.jsonl", root / "secret.gin"):
        file.chmod(0)
    (root / "outputs").mkdir()
    (root / "closed").mkdir(mode=0o555)
    warm = ["convert.to_hf", "convert.from_hf", "convert.to_t5x", "limba.addons.cache.write_cache", "datasets"]
    forks = forked.Server(root, [*warm, "limba.addons.sweep.command"], WITHOUT_RIGHTS)
    yield root, forks
    forks.close()


def _call(place, arguments, **extra):
    root, forks = place
    words = [word.replace("ROOT", str(root)) for word in arguments]
    return line.forked(forks, root, "limba", *words, PYTHONPATH=str(root), **extra)


def _one_message(result, what):
    errors = [text for text in result.stderr.splitlines() if text.startswith("error: ")]
    assert "Traceback" not in result.stderr and "[Errno" not in result.stderr, what
    assert result.returncode == 1 and len(errors) == 1, what
    return errors[0]


@pytest.mark.parametrize("what", REFUSED)
def test_what_may_not_be_written_or_read_is_named(place, what):
    root, _ = place
    arguments, named = REFUSED[what]
    result = _call(place, arguments)
    message = _one_message(result, f"{what}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}")
    assert named.replace("ROOT", str(root)) in message, message
    assert not list((root / "closed").iterdir()) and not list((root / "outputs").iterdir())


@pytest.mark.parametrize("command", FEW_FILES)
def test_with_few_open_files(place, command, request):
    if command == "train" and not request.config.getoption("--exhaustive"):
        pytest.skip("a training takes long: --exhaustive")
    root, _ = place
    result = _call(place, FEW_FILES[command], OPEN_FILES="64")
    what = f"{command}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    if result.returncode:
        assert "its limit is 64" in _one_message(result, what) and "ulimit -n" in result.stderr, what
    else:
        assert (root / "outputs/out").is_dir(), what
    for entry in Path(root / "outputs").iterdir():
        shutil.rmtree(entry)
