"""`launch/pod.sh run` and `check` stop, in a dry run too, where the workers' commit lacks what the run needs."""

import json
import shutil
import subprocess

import pytest

from tests.launch import launching

TASKS = """
import os
from tasks import pretraining

CORPUS = os.environ.get("MY_CORPUS", "corpus")
pretraining.register_pretraining_task("mine", data_files={"train": "texts/train.jsonl"}, vocabulary="v")
"""
RECIPE = "include 'gin/runs/pretrain.gin'\nimport my_tasks\nMODEL_DIR = 'runs/here'\n# 'notes/here.txt' is a comment\n"
POD = ("--name", "limba", "--type", "v4-16", "--zone", "z")


@pytest.fixture
def clone(tmp_path):
    """A clone with a recipe, its task module and a vocabulary; beside them files that no commit has."""
    repository = tmp_path / "clone"
    shutil.copytree(launching.ROOT / "launch", repository / "launch", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in {
        "gin/runs/pretrain.gin": "BATCH_SIZE = 8\n",
        "gin/recipes/committed.gin": RECIPE + "VOCABULARY_FILE = 'vocab/spiece.model'\n",
        "vocab/spiece.model": "pieces",
        "my_tasks.py": TASKS,
        "limba/files/redaction.py": (launching.ROOT / "limba/files/redaction.py").read_text(),
    }.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    for name in ("runs/here/checkpoint_1", "notes/here.txt", "elsewhere/train.jsonl"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("x")
    launching.make_environment(tmp_path)

    def pod(*arguments, **variables):
        env = launching.environment(tmp_path, **variables)
        return launching.call("pod.sh", *POD, *arguments, env=env, repository=repository)

    return pod, repository


def test_what_the_commit_has_reaches_the_workers(clone):
    pod, _ = clone
    for words in (["committed"], ["gin/recipes/committed.gin", "--gin.MODEL_DIR='runs/here'"]):
        done = pod("--dry-run", "run", *words)
        assert done.returncode == 0 and len(done.stdout.splitlines()) == 2, done.stderr
    far = "--gin.VOCABULARY_FILE='gs://bucket/elsewhere/spiece.model'"
    assert pod("run", "committed", far, "--dry-run", MY_CORPUS="gs://bucket/texts").returncode == 0
    assert pod("check", "committed", "--gin.MODEL_DIR='gs://b/run'", "--dry-run").returncode == 0


@pytest.mark.parametrize(
    ("files", "words", "says"),
    [
        ({"own.gin": RECIPE}, ["own.gin"], "the recipe own.gin: {}/own.gin is here only"),
        ({"gin/recipes/own.gin": RECIPE}, ["own"], "the recipe own: {}/gin/recipes/own.gin is here only"),
        ({"part.gin": ""}, ["committed", "--gin_file=part.gin"], "--gin_file=part.gin: {}/part.gin is here only"),
        ({}, ["committd"], "the recipe committd: there is no gin/recipes/committd.gin, here or in the commit"),
        ({"texts/train.jsonl": "x"}, ["committed"], "my_tasks names texts/train.jsonl: {}/texts/train.jsonl is"),
        (
            {},
            ["committed", "--gin.masked_text.task.files={'train': ['elsewhere/*.jsonl']}"],
            "names elsewhere/*.jsonl: {}/elsewhere/train.jsonl is here only",
        ),
        (
            {"own.gin": "include 'mine/size.gin'\nimport own_tasks\n", "mine/size.gin": "", "own_tasks.py": ""},
            ["own.gin"],
            "own.gin includes mine/size.gin: {}/mine/size.gin is here only\nown.gin imports own_tasks: {}/",
        ),
    ],
)  # fmt: skip
def test_what_is_beside_the_clone_stops_a_dry_run_with_the_remedy(clone, files, words, says):
    pod, repository = clone
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    done = pod("--dry-run", "run", *words)
    assert done.returncode == 2 and done.stdout == ""
    assert says.format(*[repository] * 2) in done.stderr and "`pod.sh setup --with DIR`" in done.stderr


def test_data_that_the_workers_have(clone):
    pod, repository = clone
    words = ("run", "committed", "--gin.FILES=['elsewhere/train.jsonl']", "--dry-run")
    assert pod(*words).returncode == 2
    assert pod("--on-workers", "elsewhere", *words).returncode == 0
    assert pod(*words, POD_ON_WORKERS="other,elsewhere/train.jsonl").returncode == 0
    # Hosts may share the folder.
    assert (
        launching.call(
            "pod.sh", "--hosts", "alpha", *words, env=launching.environment(repository.parent), repository=repository
        ).returncode
        == 0
    )


def test_a_folder_beside_the_clone_is_copied_and_the_run_works_there(clone):
    pod, repository = clone
    mine = repository.parent / "mine"
    for name, text in {
        "own.gin": "include 'gin/runs/pretrain.gin'\nimport own_tasks\nVOCABULARY_FILE = 'vocab/own.model'\n",
        "own_tasks.py": TASKS,
        "texts/train.jsonl": "x",
        ".venv/large": "x",
    }.items():
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(text)
    (repository.parent / "own.model").write_text("pieces")
    (mine / "vocab").mkdir()
    (mine / "vocab/own.model").symlink_to(repository.parent / "own.model")
    words = ("run", "own.gin", "--gin.MODEL_DIR='gs://b/x'")
    assert pod(*words, "--dry-run").returncode == 2
    absolute = pod("--with", str(mine), *words, f"--gin.FILES=['{mine}/texts/train.jsonl']", "--dry-run")
    assert absolute.returncode == 2 and "train.jsonl is here only" in absolute.stderr, "another path on a worker"
    assert pod("--with", "absent", *words).returncode == 2

    assert pod("create").returncode == pod("deploy", "HEAD").returncode == 0
    early = pod("--with", str(mine), *words)
    assert early.returncode == 1 and "pod.sh setup --with copies it first" in early.stdout
    ready = pod("--with", str(mine), "setup", "HEAD")
    assert ready.returncode == 0, ready.stdout + ready.stderr
    started = pod("--with", str(mine), *words)
    assert started.returncode == 0, started.stdout + started.stderr
    for worker in ("worker-0", "worker-1"):
        copy = repository.parent / "cloud/limba" / worker / "limba-with"
        assert (copy / "vocab/own.model").read_text() == "pieces" and not (copy / ".venv").exists()
        assert not (copy.parent / "limba-with.tgz").exists()
    seen = repository.parent / "run/environment"
    launching.wait_for(seen.is_file, "run on a worker")
    assert json.loads(seen.read_text())["PWD"].endswith("/limba-with")
    pod("kill")


def test_a_variable_of_this_shell_that_names_data(clone):
    pod, repository = clone
    words, own = ("run", "committed", "--dry-run"), {"MY_CORPUS": str(repository / "elsewhere")}
    refused = pod(*words, **own)
    assert (
        refused.returncode == 2 and f"reads MY_CORPUS, which is {own['MY_CORPUS']} in this shell only" in refused.stderr
    )
    worker_env = repository.parent / "worker.env"
    worker_env.write_text("MY_CORPUS=/data/elsewhere\n")
    assert pod("--worker-env", str(worker_env), *words, **own).returncode == 0


def test_the_run_stops_as_its_dry_run(clone):
    pod, repository = clone
    assert pod("create").returncode == 0
    (repository / "own.gin").write_text(RECIPE)
    dry, real = pod("run", "own.gin", "--dry-run"), pod("run", "own.gin")
    assert dry.returncode == real.returncode == 2 and dry.stderr == real.stderr
