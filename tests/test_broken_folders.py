"""Every command that reads a folder, on folders that are broken: one message, an exit code that is not 0, no output.

The suite takes a sample of damages for each command, `pytest --exhaustive` every file in every way.
"""

import random
import re
import shutil
from pathlib import Path

import pytest

from tests import forked, line
from tests.convert.conftest import new_run, spiece_model  # noqa: F401, fixtures

pytestmark = pytest.mark.slow

SAMPLE = 3
NO_CHECK = ("--no-check",)
LENGTHS = "--gin.TASK_FEATURE_LENGTHS={'inputs': 32, 'targets': 16}"
TASK = ("--task", "broken", "--module", "broken_tasks", "--eval_steps", "1", LENGTHS)
PRETRAIN = ("gin/runs/pretrain.gin", "--gin.MODEL_DIR='OUT'", "--gin.TRAIN_STEPS=2", "--gin.MIXTURE_OR_TASK_NAME='x'")
# Damage to these changes nothing of what a command does: they are there for others, or tell where something comes from.
OPTIONAL = re.compile(
    r".*(_CHECKPOINT_METADATA|conversion_report.json|dataset/.*|run/run.json|README.md|generation_config.json"
    r"|special_tokens_map.json|tokenizer(_config|_settings)?.json)|model.gin|spiece.model"
)
TASKS = """
from tasks import pretraining, vocabularies

pretraining.register_pretraining_task(
    "broken", data_files={"validation": "CORPUS"}, vocabulary=vocabularies.SentencePieceVocabulary("VOCAB", 100)
)
"""
# The arguments of each command, and what is broken: BROKEN is a copy of RUN, EXPORT or T5X, and OUT is not there.
COMMANDS = {
    "eval": ("RUN", ("eval", "--run_dir", "BROKEN", *TASK)),
    "infer": ("RUN", ("infer", "--run_dir", "BROKEN", "--input", "a <extra_id_0>")),
    "try": ("RUN", ("try", "BROKEN")),
    "lint": ("RUN", ("lint", "BROKEN/model.gin", *PRETRAIN)),
    "plan": ("RUN", ("plan", "BROKEN/model.gin", *PRETRAIN, "--estimate_only", "--topology", "v4-8")),
    "precompile": ("RUN", ("precompile", "BROKEN/model.gin", *PRETRAIN)),
    "to-hf": ("RUN", ("convert", "to-hf", "BROKEN", "OUT", *NO_CHECK)),
    "to-t5x": ("RUN", ("convert", "to-t5x", "BROKEN", "OUT", *NO_CHECK)),
    "all": ("RUN", ("convert", "all", "BROKEN", "OUT", *NO_CHECK)),
    "from-t5x": ("T5X", ("convert", "from-t5x", "BROKEN", "OUT", "--vocab", "VOCAB", *NO_CHECK)),
    "from-hf": ("EXPORT", ("convert", "from-hf", "BROKEN", "OUT", *NO_CHECK)),
    "check": ("EXPORT", ("convert", "check", "BROKEN", "RUN")),
    "check alone": ("EXPORT", ("convert", "check", "BROKEN")),
    "repair": ("EXPORT", ("convert", "repair", "BROKEN", "OUT")),
    "push": ("EXPORT", ("convert", "push", "BROKEN", "user/mine")),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, new_run, spiece_model):  # noqa: F811
    """A folder with whole ones of each kind, and forks that have the commands' imports."""
    from convert.from_hf import from_hf
    from convert.to_hf import to_hf
    from convert.to_t5x import to_t5x

    root = tmp_path_factory.mktemp("broken")
    run = new_run(root / "saved", num_encoder_layers=1, num_decoder_layers=1, logits_via_embedding=False)
    to_hf(run, root / "export", formats=["safetensors"], verify=False)
    from_hf(root / "export", root / "run", verify=False)
    to_t5x(run, root / "t5x", verify=False)
    line.write_corpus(root / "corpus")
    tasks = TASKS.replace("CORPUS", str(root / "corpus/validation-0.jsonl")).replace("VOCAB", str(spiece_model))
    (root / "broken_tasks.py").write_text(tasks)
    warm = [
        "convert.to_hf",
        "convert.from_hf",
        "convert.from_t5x",
        "convert.to_t5x",
        "limba.addons.publish.push",
        "datasets",
    ]
    forks = forked.Server(root, [*warm, "limba.addons.plan.command", "limba.addons.plan.lint.command"])
    names = {"RUN": root / "run", "EXPORT": root / "export", "T5X": root / "t5x", "VOCAB": spiece_model}
    yield root, forks, {name: str(path) for name, path in names.items()}
    forks.close()


def _damages(whole: Path) -> list[tuple[str, str]]:
    """What can be wrong with a folder: with all of it, and with each of its files.

    The data files of a state are one, `d/*`: their names are drawn anew at each save, and what is in which depends on
    when each write ended. Half of one of them may be numbers that a later write replaced.
    """
    names = {str(file.relative_to(whole)) for file in whole.rglob("*") if file.is_file()}
    files = sorted({re.sub(r"(?<=/)d/[0-9a-f]{32}$", "d/*", name) for name in names})
    of_files = [(how, file) for file in files for how in ("missing", "empty", "half", "a folder", "noise")]
    return [("absent", "."), ("emptied", "."), ("a file", "."), *of_files]


def _damage(folder: Path, how: str, name: str) -> None:
    if how in ("absent", "emptied", "a file"):
        shutil.rmtree(folder)
        if how == "emptied":
            folder.mkdir()
        elif how == "a file":
            folder.write_text("no folder\n")
        return
    for file in sorted(folder.glob(name)):
        content = file.read_bytes()
        file.unlink()
        if how == "a folder":
            file.mkdir()
        elif how != "missing":
            noise = random.Random(0).randbytes(len(content))
            file.write_bytes({"empty": b"", "half": content[: len(content) // 2], "noise": noise}[how])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_broken_folder_gets_one_message(place, tmp_path, command, request):
    root, forks, names = place
    kind, words = COMMANDS[command]
    damages = _damages(Path(names[kind]))
    reads_gin = any("BROKEN/model.gin" in word for word in words)
    if reads_gin:
        damages = [damage for damage in damages if damage[1] in (".", "model.gin")]
    if not request.config.getoption("--exhaustive"):
        drawn = random.Random(command)
        needed = [damage for damage in damages[3:] if reads_gin or not OPTIONAL.fullmatch(damage[1])]
        damages = [drawn.choice(damages[:3]), *drawn.sample(needed, SAMPLE - 1)]
    print(f"{command}: {damages}")
    places = names | {"BROKEN": str(tmp_path / "broken"), "OUT": str(tmp_path / "out")}
    for how, name in damages:
        broken, out = tmp_path / "broken", tmp_path / "out"
        shutil.copytree(names[kind], broken)
        _damage(broken, how, name)
        arguments = list(words)
        for key, value in places.items():
            arguments = [argument.replace(key, value) for argument in arguments]
        result = line.forked(forks, root, "limba", *arguments, PYTHONPATH=str(root), HF_TOKEN="none")
        what = (
            f"{command}, {name} {how}: exit code {result.returncode}\n{result.stdout[-500:]}\n{result.stderr[-3000:]}"
        )
        assert "Traceback" not in result.stderr and "[Errno" not in result.stderr, what
        if result.returncode == 0:
            # Without weights, from-hf writes the network of a training from scratch.
            assert OPTIONAL.fullmatch(name) or (command, name, how) == ("from-hf", "model.safetensors", "missing"), what
        else:
            errors = [text for text in result.stderr.splitlines() if text.startswith("error: ")]
            assert result.returncode == 1 and len(errors) == 1 and not out.exists(), what
        shutil.rmtree(broken) if broken.is_dir() else broken.unlink(missing_ok=True)
        shutil.rmtree(out, ignore_errors=True)
