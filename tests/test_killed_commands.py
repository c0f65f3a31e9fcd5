"""SIGKILL in the middle of commands that write: nothing half-written passes for whole, and the same call completes it.

The suite kills each at two places, `pytest --exhaustive` at all of them.
"""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from limba.checkpoint_files import saved_tensors
from tests import forked, line, loopback_hub
from tests.convert.conftest import new_run, spiece_model  # noqa: F401, fixtures

pytestmark = pytest.mark.slow

TASKS = """
from tasks import pretraining, vocabularies

pretraining.register_pretraining_task(
    "killed",
    data_files={"train": "CORPUS/train-*.jsonl", "validation": "CORPUS/validation-0.jsonl"},
    vocabulary=vocabularies.ByteVocabulary(extra_ids=100),
)
"""
SWEEP = """
program: fake
command: ["${interpreter}", "TRIAL", "${trial_dir}", "${args_no_hyphens}"]
metric: {name: training_eval/t/loss, goal: minimize}
method: grid
parameters: {x: {values: [1, 2]}, seconds: {value: 0.0}}
"""
NO_CHECK = ("--no-check",)
# The arguments of each command; RUN, EXPORT and T5X are there before, OUT is what it makes.
COMMANDS = {
    "to-hf": ("convert", "to-hf", "RUN", "OUT", "--shard_gb", "0.00003", *NO_CHECK),
    "from-hf": ("convert", "from-hf", "EXPORT", "OUT", *NO_CHECK),
    "to-t5x": ("convert", "to-t5x", "RUN", "OUT", *NO_CHECK),
    "to-t5x classic": ("convert", "to-t5x", "RUN", "OUT", "--format", "classic", *NO_CHECK),
    "from-t5x": ("convert", "from-t5x", "T5X", "OUT", "--vocab", "VOCAB", *NO_CHECK),
    "all": ("convert", "all", "RUN", "OUT", *NO_CHECK),
    "cache": (
        "cache",
        "killed",
        "--module",
        "killed_tasks",
        "--sequence_length",
        "inputs=32,targets=16",
        "--out",
        "OUT",
    ),
    "sweep": ("sweep", "SWEEP", "--dir", "OUT"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, new_run, spiece_model):  # noqa: F811
    """A folder with what the commands read, and forks that have their imports."""
    from convert.to_hf import to_hf
    from convert.to_t5x import to_t5x

    root = tmp_path_factory.mktemp("killed")
    run = new_run(root / "run", num_encoder_layers=1, num_decoder_layers=1, logits_via_embedding=False)
    to_hf(run, root / "export", formats=["safetensors"], verify=False)
    to_t5x(run, root / "t5x", verify=False)
    line.write_corpus(root / "corpus")
    (root / "killed_tasks.py").write_text(TASKS.replace("CORPUS", str(root / "corpus")))
    trial = Path(__file__).parent / "addons/sweep/sweep_trial.py"
    (root / "sweep.yaml").write_text(SWEEP.replace("TRIAL", str(trial)))
    (root / "outputs").mkdir()
    warm = [
        "convert.to_hf",
        "convert.from_hf",
        "convert.from_t5x",
        "convert.to_t5x",
        "limba.addons.cache.write_cache",
    ]
    hub = loopback_hub.LoopbackHub()
    with pytest.MonkeyPatch.context() as patched:  # huggingface_hub reads its address when it is imported.
        for name, value in hub.environment(root / "home").items():
            patched.setenv(name, value)
        forks = forked.Server(
            root,
            [*warm, "limba.addons.sweep.command", "limba.addons.publish.push", "datasets", "huggingface_hub.hf_api"],
        )
    names = {"RUN": run, "EXPORT": root / "export", "T5X": root / "t5x", "VOCAB": spiece_model}
    names |= {"SWEEP": root / "sweep.yaml", "OUT": root / "outputs/out"}
    yield root, forks, {name: str(path) for name, path in names.items()}, hub
    forks.close()
    hub.close()


def _content(folder):
    """All finished files by name; of a sweep without what tells times and processes."""
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    files = {name: content for name, content in files.items() if name[0] != "." and ".unfinished/" not in name}
    if "sweep.json" in files:
        trials = [json.loads(content) for name, content in sorted(files.items()) if name.endswith("trial.json")]
        return {"trials": [[trial[key] for key in ("number", "parameters", "status", "value")] for trial in trials]}
    # Orbax names its files at random: of its checkpoints the tensors are compared.
    tensors = {}
    for checkpoint in {Path(name).parts[0] for name in files if "/d/" in name or "ocdbt" in name}:
        opened = saved_tensors.open_tensors(folder / checkpoint)
        tensors |= {f"{checkpoint}/{name}": np.asarray(tensor).tobytes() for name, tensor in opened.items()}
    return tensors | {name: content for name, content in files.items() if "ocdbt" not in name and "/d/" not in name}


def _places(changes, is_exhaustive):
    """The changes before which the command is killed: of a sample one in the middle and the last."""
    return range(1, changes + 1) if is_exhaustive else sorted({changes // 2 + 1, changes})


# These write what the others write, by the same functions.
_ALIKE = ("to-t5x", "to-t5x classic", "all")


@pytest.mark.parametrize(
    "command", [pytest.param(x, marks=[pytest.mark.exhaustive] if x in _ALIKE else []) for x in COMMANDS]
)
def test_a_killed_command_is_completed_by_the_same_call(place, command, request):
    root, forks, names, _ = place
    outputs, out = root / "outputs", Path(names["OUT"])
    arguments = ["limba", *(names.get(word, word) for word in COMMANDS[command])]

    def call(before=None):
        more = {} if before is None else {"KILL_BEFORE": f"{before} {outputs}"}
        return line.forked(forks, root, *arguments, PYTHONPATH=str(root), **more)

    def clear():
        shutil.rmtree(outputs)
        outputs.mkdir()

    clear()
    whole = call(0)
    assert whole.returncode == 0, whole.stderr
    expected, names_there = _content(out), sorted(path.name for path in outputs.iterdir())
    changes = int(Path(f"{outputs}.changes").read_text())
    assert changes >= 5 and expected
    print(f"{command}: {changes} places")
    for before in _places(changes, request.config.getoption("--exhaustive")):
        clear()
        killed = call(before)
        assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), killed.stderr
        if out.exists() and command != "sweep":
            # What has its final name is whole.
            here = _content(out)
            finished = {f"{name.partition('/')[0]}/" for name in here if "/" in name}
            for folder in finished:
                whole = {name: content for name, content in expected.items() if name.startswith(folder)}
                assert {name: content for name, content in here.items() if name.startswith(folder)} == whole, before
        again = call()
        assert again.returncode == 0, f"killed before change {before} of {changes}: {again.stderr}"
        assert _content(out) == expected, before
        assert sorted(path.name for path in outputs.iterdir()) == names_there
        assert not [path for path in out.rglob("*") if ".unfinished" in path.name or path.name.endswith(".part")]


def test_a_killed_push_is_completed_by_the_same_call(place, tmp_path, request):
    """Killed at requests to the hub: a commit is there whole or not at all."""
    root, forks, names, hub = place
    process = None

    def push(before):
        nonlocal process
        asked = 0

        def kill(_):
            nonlocal asked
            asked += 1
            if asked == before:
                os.kill(process.pid, signal.SIGKILL)
                return 500
            return None

        hub.fault = kill
        environment = line.environment(root, **hub.environment(root / "home"))
        arguments = ["limba", "convert", "push", names["EXPORT"], "user/mine", *NO_CHECK]
        with (tmp_path / "said").open("wb") as said:
            process = forks.start(arguments, environment, said, said)
            return process.wait(120), asked

    code, requests = push(None)
    assert code == 0, (tmp_path / "said").read_text()
    expected = hub.repos["user/mine"].files
    print(f"push: {requests} places")
    for before in _places(requests, request.config.getoption("--exhaustive")):
        hub.repos.clear()
        hub.large_files.clear()
        code, _ = push(before)
        assert code in (-signal.SIGKILL, 128 + signal.SIGKILL), (before, (tmp_path / "said").read_text())
        assert "user/mine" not in hub.repos or hub.repos["user/mine"].files in ({}, expected)
        code, _ = push(None)
        assert code == 0 and hub.repos["user/mine"].files == expected, (tmp_path / "said").read_text()
