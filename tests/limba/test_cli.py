"""Commands that packages outside the repository add to `limba`."""

import gc
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from limba import cli

ROOT = Path(__file__).parents[2]

HELLO = """
def main(argv):
    if not argv:
        raise ValueError("hello to whom? Give a name.")
    print("hello", *argv)
    return len(argv)
"""


def _install(folder: Path, package: str, entry_points: str) -> None:
    """What an installer leaves of a package: `PACKAGE.commands`, and metadata with its entry points."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").touch()
    (folder / package / "commands.py").write_text(HELLO)
    metadata = folder / f"{package}-2.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.5\n")
    (metadata / "entry_points.txt").write_text(f"[limba.commands]\n{entry_points}\n")


def _limba(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-m", "limba", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        # A shell that runs the tests in the background has them ignore Ctrl-C, and so their processes.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_a_package_adds_commands(tmp_path):
    _install(tmp_path, "greetings", "hello = greetings.commands\nvocab greet = greetings.commands")
    greeted = _limba(tmp_path, "hello", "Ana", "--loud")
    assert (greeted.returncode, greeted.stdout) == (2, "hello Ana --loud\n"), greeted.stderr
    greeted = _limba(tmp_path, "vocab", "greet", "Ion")
    assert (greeted.returncode, greeted.stdout) == (1, "hello Ion\n"), greeted.stderr
    failed = _limba(tmp_path, "hello")
    assert (failed.returncode, failed.stderr) == (1, "error: hello to whom? Give a name.\n")

    listing = _limba(tmp_path, "--help")
    ours, _, theirs = listing.stdout.partition("\nfrom other packages:\n\n")
    assert listing.returncode == 0 and "  train  " in ours and "hello" not in ours
    assert theirs.splitlines()[:2] == [
        "  hello        greetings 2.5 (greetings.commands)",
        "  vocab greet  greetings 2.5 (greetings.commands)",
    ]
    listing = _limba(tmp_path, "vocab", "--help")
    assert "  vocab build  " in listing.stdout and "  vocab greet  greetings 2.5" in listing.stdout
    assert "hello" not in listing.stdout

    unknown = _limba(tmp_path, "helo")
    assert unknown.returncode == 2 and unknown.stdout == ""
    assert "no command 'helo'. Did you mean 'hello'?" in unknown.stderr


def test_without_other_packages_the_listing_has_limbas_commands_only(tmp_path):
    listing = _limba(tmp_path, "--help")
    assert listing.returncode == 0 and "other packages" not in listing.stdout
    assert "no command 'tran'. Did you mean 'train'?" in _limba(tmp_path, "tran").stderr


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs packages where this process looks for them."""
    monkeypatch.syspath_prepend(tmp_path)
    return lambda *arguments: _install(tmp_path, *arguments)


def _error(command: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli._load(command)
    return str(stop.value.code)


def test_limbas_own_commands_come_first(installed, monkeypatch):
    installed("greetings", "env = greetings.commands\nhello = greetings.commands")
    assert [entry.name for entry in cli._from_other_packages()] == ["hello"]
    assert cli._load("env").__name__ == "limba.environment"
    monkeypatch.setattr(cli, "_from_other_packages", pytest.fail)  # One of ours is found without a look at others.
    for arguments in (["env"], ["vocab", "build"]):
        monkeypatch.setattr(sys, "argv", ["limba", *arguments])
        assert cli._find_command() == " ".join(arguments)


def test_a_command_without_main_and_one_of_two_packages(installed):
    installed("greetings", "hello = greetings.commands:main\nhi = greetings.commands")
    assert "'hello' of greetings 2.5 is 'greetings.commands:main', which has no main(argv)" in _error("hello")
    installed("salutations", "hi = salutations.commands")
    assert _error("hi").startswith("error: greetings 2.5 and salutations 2.5 all have a command 'hi'")


def test_the_version():
    said = subprocess.run([sys.executable, "-m", "limba", "--version"], capture_output=True, text=True, cwd=ROOT)
    assert (said.returncode, said.stdout) == (0, f"limba {metadata.version('limba')}\n")


# As TensorStore does where Ctrl-C comes while it is imported.
INTERRUPTED = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    signal.sigtimedwait([], 0.1)
except KeyboardInterrupt:
    raise ImportError("initialization failed")
main = print
"""


def test_ctrl_c_during_imports_is_one_word_and_130(tmp_path):
    _install(tmp_path, "greetings", "hello = greetings.commands")
    (tmp_path / "greetings/commands.py").write_text(INTERRUPTED)
    stopped = _limba(tmp_path, "hello")
    assert (stopped.returncode, stopped.stdout, stopped.stderr) == (130, "", "\ninterrupted\n")
    ignoring = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); from limba.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    kept = subprocess.run([sys.executable, "-c", ignoring, "hello"], capture_output=True, text=True, env=environment)
    assert (kept.returncode, kept.stdout) == (0, "[]\n"), kept.stderr


def test_nothing_large_is_imported_before_ctrl_c_is_heard():
    script = "import sys, limba.cli; print(sorted({'tensorstore', 'numpy', 'jax'} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert found.stdout == "[]\n", found.stderr


def test_what_is_imported_is_never_searched_for_garbage():
    try:
        with cli._without_garbage():
            assert not gc.isenabled()
            made = [[] for _ in range(3)]
        assert gc.isenabled() and gc.get_freeze_count() > len(made)
    finally:
        gc.unfreeze()
