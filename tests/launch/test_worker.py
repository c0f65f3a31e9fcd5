"""One worker: its place among many, its log, its end."""

import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.launch import launching

FOREVER = ("quickstart", "--gin.TRAIN_STEPS=20000")


@pytest.fixture
def env(tmp_path):
    launching.make_environment(tmp_path)
    return launching.environment(tmp_path, LIMBA_LOGS=str(tmp_path / "logs"), FAKE_ALONE="1")


def _begin(env, *arguments):
    process = subprocess.Popen(
        ["bash", str(launching.ROOT / "launch/worker.sh"), *arguments],
        cwd=launching.ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whoever runs the tests under nohup ignores it, and bash cannot change that.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    launching.wait_for(lambda: re.search(r"step=\d", _status(env)), "step")
    return process


def _status(env):
    return launching.call("worker.sh", "--status", env=env).stdout


def test_runs_to_the_end_with_a_stamped_log(env, tmp_path):
    result = launching.call("worker.sh", "quickstart", "--gin.TRAIN_STEPS=7", env=env)
    assert result.returncode == 0, result.stderr
    log = (tmp_path / "logs/worker-0.log").read_text()
    assert log == result.stdout  # on the terminal too
    lines = log.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line) for line in lines)
    assert "== worker 0 of 1 on " in lines[0] and " step 7/7: " in lines[-1]
    # The bar's carriage returns are lines.
    assert len(lines) == 1 + 8
    status = _status(env)
    assert "index=0 " in status and " process=exit:0 step=7/7 " in status


@pytest.mark.parametrize("code", [1, 76])
def test_the_exit_code_is_that_of_the_run(env, code):
    result = launching.call("worker.sh", "quickstart", env=env | {"FAKE_ENDS": f"0:3:{code}"})
    assert result.returncode == code
    assert f" process=exit:{code} step=2/20 " in _status(env)


def test_sigterm_saves_and_ends_with_75(env, tmp_path):
    process = _begin(env, *FOREVER)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 75
    assert "Stopped on request" in process.stdout.read()
    assert " process=exit:75:on-request " in _status(env)
    assert int((tmp_path / "run/checkpoint").read_text()) > 0


def test_the_exit_code_of_a_run_that_ends_while_its_script_answers_a_signal(env, tmp_path):
    # `ps`, which the script asks for the run when it is signalled, ends the run and takes its time.
    ps = tmp_path / "bin/ps"
    ps.parent.mkdir()
    ps.write_text(
        f'#!/bin/sh\nexec 2>/dev/null\n[ -f {tmp_path}/slow ] || exec /usr/bin/env -i PATH=/usr/bin:/bin ps "$@"\n'
        f"kill -TERM $5\nuntil [ -s {tmp_path}/logs/worker-0.exit ]; do sleep 0.05; done\nsleep 0.3\necho train\n"
    )
    ps.chmod(0o755)
    process = _begin(env | {"PATH": f"{ps.parent}:{env['PATH']}"}, *FOREVER)
    (tmp_path / "slow").touch()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 75


def test_a_signal_to_every_process_is_one_to_the_run(env):
    """As SLURM sends it to the processes of a step."""
    process = _begin(env, *FOREVER)
    number = int(re.search(r"process=running:(\d+)", _status(env))[1])
    os.killpg(os.getpgid(number), signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 75
    assert " process=exit:75:on-request " in _status(env)


def test_a_lost_terminal_ends_the_script_and_not_the_run(env):
    process = _begin(env, *FOREVER)
    process.stdout.close()
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=20) == -signal.SIGHUP
    before = _status(env)
    assert "process=running:" in before
    launching.wait_for(lambda: _status(env).partition("step=")[2] != before.partition("step=")[2], "further step")
    stopped = launching.call("worker.sh", "--stop", "20", env=env)
    assert stopped.returncode == 0 and "process=exit:75:on-request" in stopped.stdout


def test_detached_and_only_one_at_a_time(env):
    assert "worker 0 of 1 started" in launching.call("worker.sh", "--detach", *FOREVER, env=env).stdout
    launching.wait_for(lambda: "process=running" in _status(env), "process")
    second = launching.call("worker.sh", "quickstart", env=env)
    assert second.returncode == 2 and "worker 0 runs already, as process" in second.stderr
    launching.call("worker.sh", "--stop", "20", env=env)
    assert "process=running" not in _status(env)
    assert "Stopped on request" in launching.call("worker.sh", "--logs", "3", env=env).stdout


def test_a_process_that_does_not_stop_is_named(env):
    process = _begin(env | {"FAKE_DEAF": "1"}, *FOREVER)
    result = launching.call("worker.sh", "--stop", "1", env=env)
    assert result.returncode == 1
    assert re.search(r"worker 0 still runs as process \d+ after 1 seconds; --kill ends it", result.stderr)
    killed = launching.call("worker.sh", "--kill", env=env)
    assert killed.returncode == 0 and "process=exit:137:on-request" in killed.stdout
    assert process.wait(timeout=20) == 137


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"LIMBA_PROCESS_INDEX": "1"}, "are '', '' and '1'. Give all three, or none"),
        (
            {"LIMBA_COORDINATOR_ADDRESS": "h:1", "LIMBA_PROCESS_COUNT": "2", "LIMBA_PROCESS_INDEX": "2"},
            "LIMBA_PROCESS_INDEX is 2 and LIMBA_PROCESS_COUNT 2",
        ),
        ({"SLURM_STEP_NODELIST": "n[1-2]"}, "SLURM_PROCID is '' and SLURM_NTASKS '': this is a part of a SLURM step's"),
        ({"SLURM_STEP_NODELIST": "n1", "SLURM_PROCID": "x1", "SLURM_NTASKS": "2"}, "SLURM_PROCID is 'x1' and SLURM_NT"),
        ({"LIMBA_ACCELERATOR": "npu"}, "LIMBA_ACCELERATOR is npu"),
        ({"VENV": "/nowhere"}, "there is none at /nowhere"),
    ],
)
def test_a_wrong_environment_is_named(env, given, words):
    result = launching.call("worker.sh", "quickstart", env=env | given)
    assert result.returncode != 0 and words in result.stderr


def test_wrong_recipes_are_named(env):
    unknown = launching.call("worker.sh", "quickstrat", env=env)
    assert unknown.returncode == 2 and "no recipe quickstrat; gin/recipes has " in unknown.stderr
    assert " pretrain_base pretrain_laptop pretrain_small_corpus quickstart " in unknown.stderr
    option = launching.call("worker.sh", "--gin.X=1", env=env)
    assert option.returncode == 2 and "--gin.X=1 stands where the recipe belongs" in option.stderr


def _command(tmp_path, index=0):
    return (tmp_path / f"logs/worker-{index}.log").read_text().splitlines()[0]


def test_explicit_place(env, tmp_path):
    place = {"LIMBA_COORDINATOR_ADDRESS": "10.0.0.1:8476", "LIMBA_PROCESS_COUNT": "4", "LIMBA_PROCESS_INDEX": "3"}
    assert launching.call("worker.sh", "quickstart", env=env | place).returncode == 0
    assert "== worker 3 of 4 on " in _command(tmp_path, 3)
    # The engine was told.
    assert (tmp_path / "run/starts").read_text().split()[0] == "3"


def test_slurm_place(env, tmp_path):
    place = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "5", "SLURM_NTASKS": "16"}
    assert launching.call("worker.sh", "quickstart", env=env | place).returncode == 0
    assert "== worker 5 of 16 on " in _command(tmp_path, 5)


@pytest.mark.parametrize(
    ("metadata", "place"), [("ZONE: 'z'", "2 of 3"), ("MEGASCALE_NUM_SLICES: '4'\\nMEGASCALE_SLICE_ID: '1'", "5 of 12")]
)
def test_tpu_place(env, tmp_path, metadata, place):
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    curl = fakes / "curl"
    curl.write_text(
        "#!/bin/sh\nfor url; do :; done\ncase $url in\n"
        "*/agent-worker-number) echo 2 ;;\n*/worker-network-endpoints) echo a:b:10.0.0.1,c:d:10.0.0.2,e:f:10.0.0.3 ;;\n"
        f'*/tpu-env) printf "{metadata}\\n" ;;\n*) exit 22 ;;\nesac\n'
    )
    curl.chmod(0o755)
    tpu = {"LIMBA_ACCELERATOR": "tpu", "PATH": f"{fakes}:{env['PATH']}"}
    assert launching.call("worker.sh", "quickstart", env=env | tpu).returncode == 0
    assert f"== worker {place} on " in _command(tmp_path, int(place.split()[0]))


def test_tpu_place_on_gke(env, tmp_path):
    gke = {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1", "MEGASCALE_NUM_SLICES": "3", "MEGASCALE_SLICE_ID": "2"}
    env = env | gke | {"LIMBA_ACCELERATOR": "tpu", "FAKE_ALONE": "1"}
    assert launching.call("worker.sh", "quickstart", env=env).returncode == 0
    assert "== worker 5 of 6 on " in _command(tmp_path, 5)


def test_variables_for_the_worker_come_from_a_file(env, repository, tmp_path):
    """They are literal: the file is not a script."""
    file = repository / ".limba-env"
    token = 'hf_$HOME "x" $(touch planted)'
    file.write_bytes(f"FAKE_ENDS=0:4:9\r\nHF_TOKEN='{token}'\r\nNOTE=two words; $x\n".encode())
    result = launching.call("worker.sh", "quickstart", env=env, repository=repository)
    file.unlink()
    assert result.returncode == 9
    seen = json.loads((tmp_path / "run/environment").read_text())
    assert seen["HF_TOKEN"] == token and seen["NOTE"] == "two words; $x"
    file.write_text("NOTE=x\nHF_TOKEN=`planted`\n")
    refused = launching.call("worker.sh", "quickstart", env=env, repository=repository)
    file.unlink()
    assert refused.returncode == 2 and ".limba-env, line 2: the value of HF_TOKEN has" in refused.stderr
    assert "planted" not in refused.stderr + refused.stdout and not (repository / "planted").exists()


@pytest.mark.parametrize("make", [lambda log: log.symlink_to("../mine"), os.mkfifo])
def test_a_log_that_leads_elsewhere_is_refused(env, tmp_path, make):
    (tmp_path / "mine").write_text("my own\n")
    (tmp_path / "logs").mkdir()
    make(tmp_path / "logs/worker-0.log")
    refused = launching.call("worker.sh", "quickstart", env=env)
    assert refused.returncode == 2 and "worker-0.log is a link or no file" in refused.stderr
    assert (tmp_path / "mine").read_text() == "my own\n"


def test_the_log_shows_no_credentials(env, tmp_path):
    """Neither of the command, which it begins with, nor of what any program says."""
    url = "https://me:pl4nted@host/a.jsonl?file=b&X-Amz-Signature=pl4nted"
    result = launching.call("worker.sh", "quickstart", f"--gin.FILES='{url}'", "--gin.TRAIN_STEPS=2", env=env)
    assert result.returncode == 0, result.stderr
    log = (tmp_path / "logs/worker-0.log").read_text()
    assert "--gin.FILES='https://***@host/a.jsonl?file=b&X-Amz-Signature=***'" in log.splitlines()[0]
    assert "pl4nted" not in log + result.stdout


def test_a_python_that_fits_is_provided(env, tmp_path):
    """On a machine whose only Python is 3.10: pip brings uv, and uv a Python."""
    old = tmp_path / "python3"
    log = tmp_path / "calls"
    old.write_text(
        f'#!/bin/sh\necho "$*" >>{log}\n[ "$1 $2" = "-m pip" ] || exit 1\n'
        "while [ $1 != --target ]; do shift; done\n"
        'mkdir -p "$2/bin"\n'
        f"printf '#!/bin/sh\\nwhile [ $1 != --install-dir ]; do shift; done\\nmkdir -p $2/cpython-3.12.9-linux/bin\\n"
        f'ln -s {sys.executable} $2/cpython-3.12.9-linux/bin/python3\\n\' >"$2/bin/uv"\nchmod +x "$2/bin/uv"\n'
    )
    old.chmod(0o755)
    script = (
        f"set -euo pipefail; REPOSITORY={tmp_path}; source {launching.ROOT}/launch/environment.sh; "
        "provide_python; echo $PYTHON; provide_python"
    )
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "bash", "mkdir", "ln", "chmod", "head", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool))
    small = {"PATH": str(tools), "PYTHON": str(old), "UV_VERSION": "1.2.3"}
    result = subprocess.run(["bash", "-c", script], env=small, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"{tmp_path}/.python/python/bin/python3"
    assert log.read_text().count("-m pip install") == 1 and "uv==1.2.3" in log.read_text()


def test_a_worker_with_an_old_python_trains_without_setup(env, tmp_path):
    """As `git pull && bash launch/….sh` finds it on a TPU machine."""
    binaries = tmp_path / "old"
    binaries.mkdir()
    numpy = importlib.metadata.version("numpy")
    (tmp_path / "requirements.lock").write_text(f"numpy=={numpy}\n")
    scripts = {
        binaries / "python3": "exit 1",
        binaries / "python3.12": f'exec {sys.executable} "$@"',
        tmp_path / "venv/bin/python": f'[ "$1 $2" = "-m pip" ] || exec {sys.executable} "$@"',
        tmp_path / "venv/bin/uv": "exit 0",
    }
    (tmp_path / "venv/bin/python").unlink()
    for path, line in scripts.items():
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    env = env | {"PATH": f"{binaries}:{env['PATH']}", "PYTHON": "python3", "LOCK": str(tmp_path / "requirements.lock")}
    result = launching.call("worker.sh", "quickstart", env=env)
    assert result.returncode == 0, result.stderr
    assert "step 20/20: " in result.stdout


def test_t5x_is_told_by_its_flags(env, tmp_path):
    (tmp_path / "t5x").mkdir()
    (tmp_path / "t5x/train.py").write_text("import sys; print(sys.argv[1:])")
    (tmp_path / "t5x/__init__.py").touch()
    place = {"LIMBA_COORDINATOR_ADDRESS": "10.0.0.1:8476", "LIMBA_PROCESS_COUNT": "4", "LIMBA_PROCESS_INDEX": "3"}
    t5x = {"T5X_DIR": str(tmp_path), "T5X_PYTHON": sys.executable}
    result = launching.call("worker.sh", "ro_t5_base", env=env | t5x | place)
    flags = "'--multiprocess_gpu', '--coordinator_address=10.0.0.1:8476', '--process_count=4', '--process_index=3'"
    assert result.returncode == 0 and f"{flags}, '--gin_file=gin/recipes/ro_t5_base.gin'" in result.stdout


def test_a_check_of_a_recipe_is_a_dry_run(env, tmp_path):
    """What limba train would refuse, --check refuses; a folder is a place to write to, as before."""
    limba, python = tmp_path / "venv/bin/limba", tmp_path / "venv/bin/python"
    python.unlink()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # with its packages
    python.chmod(0o755)
    limba.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\necho "$REFUSES" >&2\n[ -z "$REFUSES" ]\n')
    well = launching.call("worker.sh", "--check", "quickstart", "--gin.BATCH_SIZE=8", env=env)
    assert well.returncode == 0, well.stderr
    asked = "train --dry_run --gin_file=gin/recipes/quickstart.gin --gin.BATCH_SIZE=8\n"
    assert (tmp_path / "asked").read_text() == asked
    assert "accelerator=cpu" in well.stdout and "would start gin/recipes/quickstart.gin here" in well.stdout
    refused = launching.call("worker.sh", "--check", "quickstart", env=env | {"REFUSES": "error: no such batch"})
    assert refused.returncode == 1 and "error: no such batch" in refused.stderr and "would start" not in refused.stdout
    (tmp_path / "asked").unlink()
    folder = launching.call("worker.sh", "--check", str(tmp_path), env=env)
    assert folder.returncode == 0 and "can be written" in folder.stdout and not (tmp_path / "asked").exists()
