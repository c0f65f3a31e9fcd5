"""The verbs of launch/pod.sh in order, over a fake gcloud and a fake ssh whose workers are folders."""

import re
import shutil
import subprocess

import pytest

from tests.launch import launching

TYPE = ("--name", "limba", "--type", "v4-16", "--zone", "z")  # two machines
COMPUTE = (
    "--name",
    "limba",
    "--type",
    "v5p-16",
    "--zone",
    "us-east5-a",
    "--project",
    "p",
    "--api",
    "compute",
)  # two, too
V4_32 = ("--name", "limba", "--type", "v4-32")
CREATES = {
    TYPE: [
        "gcloud compute tpus tpu-vm create limba --zone=z --accelerator-type=v4-16 --subnetwork=tpusubnet "
        "--version=tpu-ubuntu2204-base --network=mine"
    ],
    COMPUTE: [
        "gcloud compute resource-policies create workload-policy limba --project=p --region=us-east5 "
        "--type=HIGH_THROUGHPUT --accelerator-topology=2x2x2",
        "gcloud compute instance-templates create limba --project=p --machine-type=ct5p-hightpu-4t "
        "--image-family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e --image-project=ubuntu-os-accelerator-images "
        "--boot-disk-size=200GB --boot-disk-type=pd-balanced --maintenance-policy=TERMINATE --scopes=cloud-platform "
        "--subnet=projects/p/regions/us-east5/subnetworks/tpusubnet --network=mine",
        "gcloud compute instance-groups managed create limba --zone=us-east5-a --project=p --template=limba --size=2 "
        "--default-action-on-vm-failure=do-nothing "
        "--workload-policy=projects/p/regions/us-east5/resourcePolicies/limba --target-size-policy-mode=bulk",
    ],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, repository):
    """A folder with a fake environment and a cloud without pods; and a clean repository."""
    directory = tmp_path_factory.mktemp("pod")
    launching.make_environment(directory)
    return directory, repository


@pytest.fixture
def pod(place):
    directory, repository = place
    calls = directory / "cloud/calls"

    def verb(*arguments, **extra):
        calls.write_text("")
        env = launching.environment(directory, **extra)
        result = launching.call("pod.sh", *arguments, env=env, repository=repository)
        result.calls = calls.read_text()
        return result

    return verb


def _rows(result):
    return [re.sub(r" \(\d\)", "", line).split() for line in result.stdout.splitlines()[1:]]


@pytest.mark.parametrize("TYPE", CREATES, ids=["tpus", "compute"])
def test_the_verbs_in_order(pod, place, TYPE):
    directory, repository = place
    shutil.rmtree(directory / "run")
    (directory / "run").mkdir()
    assert pod("state", *TYPE).stdout == "ABSENT\n"
    early = pod("status", *TYPE)
    assert early.returncode == 1 and "pod limba is ABSENT, not READY. `pod.sh create` makes it" in early.stderr

    created = pod("create", *TYPE, "--subnetwork", "tpusubnet", "--", "--network=mine")
    assert created.returncode == 0, created.stderr
    assert [line for line in created.calls.splitlines() if " create " in line] == CREATES[TYPE]
    assert pod("create", *TYPE).stdout == "limba is there already.\n"

    secret = directory / "worker.env"
    secret.write_text("HF_TOKEN=abc\n")
    for _ in range(2):  # any number of times
        ready = pod("setup", *TYPE, "--worker-env", str(secret))
        assert ready.returncode == 0, ready.stdout + ready.stderr
    # A copy that others could read for a moment would arrive in a folder that is open to them.
    assert ready.calls.count("arrived .limba-private/worker-env 700\n") == 2
    home = directory / "cloud/limba/worker-1/limba"
    assert (home / ".limba-env").read_text() == "HF_TOKEN=abc\n" and (home / ".limba-env").stat().st_mode % 512 == 0o600

    new = launching.commit(repository, "Another")
    deployed = pod("deploy", *TYPE)
    assert deployed.stdout.count("Another") == 2, deployed.stdout + deployed.stderr
    run = pod("run", *TYPE, "quickstart", "--gin.TRAIN_STEPS=20000", "--gin.NAME='a b'")
    assert run.returncode == 0, run.stdout + run.stderr

    def both_step():
        rows = _rows(pod("status", *TYPE))
        return rows if all(re.fullmatch(r"\d+/20000", row[3]) for row in rows) else None

    rows = launching.wait_for(both_step, "steps")
    # Compute Engine lists machines by name, the run counts them in its own way: both numbers are shown.
    assert ("\n0 (1) " in pod("status", *TYPE).stdout) == (TYPE == COMPUTE)
    assert [row[0] for row in rows] == ["0", "1"]
    assert all(row[1] == new[:10] and row[2].startswith("running:") and int(row[4]) < 60 for row in rows)
    starts = sorted((directory / "run/starts").read_text().splitlines())
    assert [line.split()[:2] for line in starts] == [["0", "0"], ["1", "0"]]

    busy = pod("deploy", *TYPE)
    assert busy.returncode == 1 and "[1] error: training runs here from these files" in busy.stdout
    twice = pod("run", *TYPE, "quickstart")
    assert twice.returncode == 2 and "worker 1 runs already" in twice.stdout
    assert "run failed on worker 0 1 of 2" in twice.stderr

    lines = pod("logs", *TYPE, "20").stdout.splitlines()
    assert len(lines) == 40 and {line[:3] for line in lines} == {"[0]", "[1]"}
    times = [line.split()[1] for line in lines]
    assert times == sorted(times)

    following = subprocess.Popen(
        ["timeout", "3", "bash", str(repository / "launch/pod.sh"), "attach", *TYPE],
        env=launching.environment(directory),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert {line[:3] for line in following.communicate()[0].splitlines()} == {"[0]", "[1]"}

    stopped = pod("stop", *TYPE)
    assert stopped.returncode == 0, stopped.stdout
    assert [row[2] for row in _rows(pod("status", *TYPE))] == ["exit:75:on-request"] * 2
    assert int((directory / "run/checkpoint").read_text()) > 0

    head = pod("exec", *TYPE, "git -C limba rev-parse HEAD")
    assert sorted(re.findall(r"^\[.\] \w+$", head.stdout, re.M)) == [f"[0] {new}", f"[1] {new}"]
    assert pod("delete", *TYPE).returncode == 0
    assert pod("state", *TYPE).stdout == "ABSENT\n"


def test_queued_resources(pod):
    flags = (*TYPE, "--name", "queued", "--queued")
    created = pod("create", *flags, "--spot")
    assert created.returncode == 0, created.stderr
    assert "create queued --node-id=queued --zone=z --accelerator-type=v4-16 --spot --runtime-version=" in created.calls
    waited = [line.split()[-1] for line in created.stdout.splitlines() if " queued resource " in line]
    assert waited == ["WAITING_FOR_RESOURCES", "ACTIVE"]
    deleted = pod("delete", *flags)
    assert (
        deleted.calls.splitlines()[-1] == "gcloud compute tpus queued-resources delete queued --zone=z --force --quiet"
    )
    assert pod("delete", *flags).stdout == "queued is not there.\n"


def test_several_slices_are_one_pod(pod, place):
    flags = (*TYPE, "--name", "many", "--slices", "03")
    printed = pod("create", "--dry-run", *flags)
    assert printed.stdout == (
        "gcloud compute tpus queued-resources create many --node-count=3 --node-prefix=many --zone=z "
        "--accelerator-type=v4-16 --runtime-version=tpu-ubuntu2204-base\n"
    )
    assert len(pod("stop", "--dry-run", *flags).stdout.splitlines()) == 6
    created = pod("create", *flags)
    assert created.returncode == 0 and created.stdout.endswith("queued resource many is ACTIVE\n"), created.stderr
    assert printed.stdout in created.calls

    said = pod("exec", *flags, "echo $LIMBA_PROCESS_INDEX of $LIMBA_PROCESS_COUNT in ${PWD##*/cloud/}")
    lines = sorted(line for line in said.stdout.splitlines() if "SSH" not in line)
    assert lines == [f"[{i}] {i} of 6 in many-{i // 2}/worker-{i % 2}" for i in range(6)]
    status = pod("status", *flags)
    assert status.returncode == 1 and [row[:2] for row in _rows(status)[:6]] == [[str(i), "none:"] for i in range(6)]

    (place[0] / "cloud/many-1/state").write_text("PREEMPTED\n")
    assert pod("state", *flags).stdout == "PREEMPTED\n"
    deleted = pod("delete", *flags)
    assert deleted.calls.splitlines()[-1] == "gcloud compute tpus queued-resources delete many --zone=z --force --quiet"
    assert pod("state", *flags).stdout == "ABSENT\n" and not list((place[0] / "cloud").glob("many*"))


def test_a_pod_that_waits_in_the_queue_keeps_its_place(pod, place):
    flags = (*TYPE, "--name", "waits", "--slices", "2")
    queue = place[0] / "cloud/queue/waits"
    queue.write_text("waits v4-16 waits-0 waits-1\n")
    assert pod("state", *flags).stdout == "WAITING_FOR_RESOURCES\n"
    queue.write_text("waits v4-16 waits-0 waits-1\n")
    again = pod("create", *flags)
    assert again.returncode == 0 and "waits is ACTIVE" in again.stdout and " create " not in again.calls
    pod("delete", *flags)


def test_only_commits_are_deployed(pod, place):
    _, repository = place
    pod("create", *TYPE, "--name", "dirty")
    (repository / "my_tasks.py").write_text("")
    refused = pod("deploy", *TYPE, "--name", "dirty")
    assert refused.returncode == 2
    assert "changes that are not committed" in refused.stderr and "?? my_tasks.py" in refused.stderr
    assert "ssh" not in refused.calls
    # A commit by its name does not care.
    named = pod("deploy", *TYPE, "--name", "dirty", "HEAD")
    assert named.returncode == 0, named.stdout + named.stderr
    (repository / "my_tasks.py").unlink()

    # What was changed by hand on one worker is not lost.
    changed = place[0] / "cloud/dirty/worker-1/limba/README.md"
    changed.write_text("mine")
    hand = pod("deploy", *TYPE, "--name", "dirty")
    assert hand.returncode == 1 and "deploy failed on worker 1 of 2" in hand.stderr
    assert "[1] error: limba has changes of its own:  M README.md" in hand.stdout
    assert changed.read_text() == "mine"


def test_hosts(pod, place):
    directory, _ = place
    for host in ("alpha", "beta"):
        (directory / "cloud" / host).mkdir()
    listed = directory / "hosts"
    listed.write_text("# the machines\nalpha\nbeta\n")
    hosts = ("--hosts", str(listed), "--coordinator", "127.0.0.1:9")
    refused = pod("create", *hosts)
    assert refused.returncode == 2 and "are yours to start" in refused.stderr
    assert pod("setup", *hosts).returncode == 0
    run = pod("run", *hosts, "quickstart", "--gin.TRAIN_STEPS=5")
    assert "worker 1 of 2 started" in run.stdout, run.stdout + run.stderr
    ended = ["exit:0", "exit:0"]
    launching.wait_for(lambda: [row[2] for row in _rows(pod("status", *hosts))] == ended, "end")
    log = (directory / "cloud/beta/limba/logs/worker-1.log").read_text()
    assert "== worker 1 of 2 on " in log

    missing = pod("status", "--hosts", "alpha,gamma")
    assert missing.returncode == 1
    assert "1       none: ssh: connect to host gamma port 22: No route to host" in missing.stdout


HOSTILE = "a 'b' \"c\" $(touch touched) `touch touched`; touch touched\ntouch touched"


def test_the_worker_s_shell_gets_text_and_runs_none_of_it(pod, place):
    home = place[0] / "cloud/hostile"
    home.mkdir()
    at = ("--hosts", "hostile", "--dir", HOSTILE, "--coordinator", "127.0.0.1:9")
    deployed = pod("deploy", *at, "HEAD")
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    assert (home / HOSTILE / "launch/worker.sh").is_file()
    run = pod("run", *at, "quickstart", "--gin.TRAIN_STEPS=2", f"--gin.NAME={HOSTILE}")
    assert run.returncode == 0, run.stdout + run.stderr
    launching.wait_for(lambda: "exit:0" in pod("status", *at).stdout, "end")
    for verb in ("logs", "stop"):
        refused = pod(verb, *at, HOSTILE)
        assert refused.returncode == 2
        assert f"--{verb} takes a whole number, not 'a 'b' \"c\" $(touch touched) `" in refused.stdout
    assert len(pod("logs", *at, "08").stdout.splitlines()) in range(2, 9)
    assert not list(home.rglob("touched"))


def test_what_a_worker_answers_is_no_command_here(pod, place, tmp_path):
    """Bash's arithmetic runs the command in a text such as i[$(command)]."""
    home = place[0] / "cloud/answers/limba/launch"
    home.mkdir(parents=True)
    touch = f"i[$(touch${{IFS}}{tmp_path}/touched)]"

    def answer(process, age="1"):
        line = f"index=0 commit=\\033[2Jc process={process} step=08/9 age={age}"
        (home / "worker.sh").write_text(f"printf '%b\\n' '{line}'\n")

    answer("running:1", touch)
    shown = pod("status", "--hosts", "answers").stdout
    assert shown.splitlines()[1:] == [
        f"0       ?[2Jc               running:1              08/9          {touch} s ago",
        "Quiet for more than five minutes: worker 0.",
    ]
    answer(f"exit:{touch}")
    env = launching.environment(place[0], POD_HOSTS="answers", POD_POLL_SECONDS="0", LIMIT="0")
    ended = launching.call("supervise.sh", "--pod", "quickstart", env=env, repository=place[1])
    assert ended.returncode == 1 and "without a step beyond 0 (code 255)" in ended.stderr, ended.stderr
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("host", ["-oProxyCommand=touch touched", "alpha,-F/dev/null", "root@-oProxyCommand=x", "a,,b"])
def test_a_host_is_no_option_of_ssh(pod, host):
    refused = pod("exec", "--hosts", host, "true")
    assert refused.returncode == 2 and "is NAME or USER@NAME, and does not begin with a dash" in refused.stderr
    assert refused.calls == ""
    printed = pod("exec", "--dry-run", "--hosts", "alpha", "true").stdout
    assert printed == "ssh -o BatchMode=yes -o ConnectTimeout=15 -- alpha true\n"


def test_dry_run_prints_and_runs_nothing(pod, place):
    printed = pod("create", "--dry-run", *V4_32, "--subnetwork", "tpusubnet")
    assert printed.stdout == (
        "gcloud compute tpus tpu-vm create limba --accelerator-type=v4-32 --subnetwork=tpusubnet "
        "--version=tpu-ubuntu2204-base\n"
    )
    run = pod("run", "--dry-run", *V4_32, "quickstart", "--gin.MODEL_DIR='gs://b/a b'")
    assert len(run.stdout.splitlines()) == 4 and run.calls == printed.calls == ""
    # What is printed is shell, and means the same.
    words = subprocess.run(
        ["bash", "-c", f"gcloud() {{ printf '%s\\n' \"$@\"; }}; {run.stdout.splitlines()[3]}"],
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert words[-2] == "--worker=3"
    assert words[-1].startswith("--command=cd -- limba && bash launch/worker.sh --detach quickstart '--gin.MODEL_DIR=")


def test_a_dry_run_of_every_verb_can_be_pasted(pod, place, tmp_path):
    """One command a line, with the option before the verb; the lines do what the verb does."""
    env = {"TMPDIR": str(tmp_path)}
    worker_env = tmp_path / "worker.env"
    worker_env.write_text("HF_TOKEN=abc\n")
    verbs = {"create": 1, "setup": 17, "deploy": 6, "run": 2, "status": 2, "logs": 2, "attach": 2, "stop": 2}
    verbs |= {"kill": 2, "exec": 2, "ssh": 1, "state": 1, "delete": 1, "check": 5}
    assert set(verbs) == set(re.findall(r"^  ([a-z]+) ", pod("--help").stdout.partition("In order")[0], re.M))
    for verb, lines in verbs.items():
        flags = {"setup": ("--worker-env", str(worker_env)), "check": ("--bucket", "gs://b/run")}.get(verb, ())
        result = pod("--dry-run", *TYPE, *flags, verb, *{"run": ["quickstart"], "exec": ["df -h"]}.get(verb, []), **env)
        assert result.returncode == 0 and result.calls == "", verb
        assert len(result.stdout.splitlines()) == lines, result.stdout
        assert all(
            line.startswith(("gcloud compute tpus tpu-vm ", "gcloud storage ", "git -C "))
            for line in result.stdout.splitlines()
        )
    assert list(tmp_path.iterdir()) == [worker_env]

    pod("create", *TYPE, "--name", "pasted")
    printed = pod("deploy", *TYPE, "--name", "pasted", "--dry-run", "HEAD", **env).stdout
    environment = launching.environment(place[0])
    done = subprocess.run(["bash", "-ec", printed], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("now at ") == 2, done.stderr
    assert (place[0] / "cloud/pasted/worker-1/limba/launch/worker.sh").is_file()


POD = {"POD_NAME": "limba", "POD_TYPE": "v4-16", "POD_ZONE": "z"}


@pytest.mark.parametrize(
    "verb",
    [
        ("run", "quickstart", "--gin.TRAIN_STEPS=5"),
        ("stop", "60"),
        ("check", "quickstart", "--gin.MODEL_DIR='gs://b/run'"),
        ("create",),
        ("create", "--", "--network=mine"),
        ("delete",),
    ],
    ids=" ".join,
)
def test_dry_run_behind_the_arguments_is_dry_too(pod, verb):
    first, last = pod("--dry-run", *verb, **POD), pod(*verb, "--dry-run", **POD)
    assert last.calls == "" and last.returncode == 0
    printed = [re.sub(r"(limba-check-\S*-)\d+", r"\1PID", one.stdout) for one in (first, last)]
    assert printed[0] == printed[1] and last.stdout.startswith("gcloud "), last.stderr


@pytest.mark.parametrize("verb", ["create", "status", "delete"])
def test_without_pod_env_the_missing_settings_are_named_before_gcloud(pod, place, verb):
    refused = pod(verb)
    assert refused.returncode == 2 and refused.calls == "" and refused.stdout == ""
    assert refused.stderr == (
        "error: no pod is named; missing: POD_NAME (--name); POD_TYPE (--type); POD_ZONE (--zone), unless gcloud's "
        f"configured zone is meant. Put them as NAME=VALUE lines into pod.env (read here: {place[1]}/pod.env, which "
        "does not exist), or give the flags; or give --hosts for machines that you reach by ssh. See --help.\n"
    )
    assert "missing: POD_TYPE (--type). Put" in pod(verb, "--dry-run", POD_NAME="ro", POD_ZONE="z").stderr


def test_an_option_after_the_arguments_is_refused_and_not_left_out(pod):
    for verb, words in (
        (("stop", "60", "--plain"), "stop takes one argument; '--plain' is a second"),
        (("kill", "now"), "here is 'now'"),
        (("run", "quickstart", "--name", "other"), "--name is an option of pod.sh; put it before the recipe"),
        (("exec", "rsync", "--dry-run", "a", "b"), "exec has --dry-run in its command. Put it before exec"),
    ):
        refused = pod(*verb, **POD)
        assert refused.returncode == 2 and words in refused.stderr and refused.calls == ""


@pytest.mark.parametrize(
    ("kind", "image", "machines"),
    [
        ("v2-8", "tpu-ubuntu2204-base", 1),
        ("v3-32", "tpu-ubuntu2204-base", 4),
        ("v4-32", "tpu-ubuntu2204-base", 4),
        ("v5litepod-8", "v2-alpha-tpuv5-lite", 1),
        ("v5litepod-16", "v2-alpha-tpuv5-lite", 4),
        ("v5p-16", "v2-alpha-tpuv5", 2),
        ("v6e-16", "v2-alpha-tpuv6e", 4),
    ],
)
def test_images(pod, kind, image, machines):
    assert f"--version={image}\n" in pod("create", "--dry-run", "--name", "limba", "--type", kind).stdout
    assert len(pod("stop", "--dry-run", "--name", "limba", "--type", kind).stdout.splitlines()) == machines


def test_configuration_by_file_environment_and_flag(pod, place, tmp_path):
    config = tmp_path / "pod.env"
    config.write_text(f"# ours\nPOD_NAME=file\nPOD_ZONE=file-z\nPOD_TYPE=v6e-8\nPOD_WITH={tmp_path}\n")
    flags = ("--config", str(config), "--name", "flag")
    result = pod("delete", "--dry-run", *flags, POD_NAME="environment", POD_ZONE="environment-z")
    assert result.stdout == "gcloud compute tpus tpu-vm delete flag --zone=environment-z --quiet\n"
    config.write_text("PATH=/nowhere\n")
    refused = pod("state", *flags)
    assert refused.returncode == 2 and "line 1 sets PATH, which is not a name of this file" in refused.stderr
    # As an editor of Windows writes it.
    config.write_bytes(
        b"\xef\xbb\xbfPOD_ZONE=\"z\"\r\n\r\n# ours\r\nPOD_PROJECT='p'\r\nPOD_TYPE=v4-8\r\n POD_NAME=windows"
    )
    result = pod("delete", "--dry-run", "--config", str(config))
    assert result.stdout == "gcloud compute tpus tpu-vm delete windows --zone=z --project=p --quiet\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("POD_TIPE=v4-8", "sets POD_TIPE, which is not a name of this file. Its names match POD_NAME, POD_ZONE"),
        ('POD_NAME="ro', "line 2: the value of POD_NAME has a quote that is not closed"),
        ("POD_NAME=ro # mine", "or a comment behind it"),
        ("POD_NAME = ro", "line 2 is not NAME=VALUE. There is no space around ="),
        ("POD_DIR=~/limba", "values are literal. Write out what it stands for"),
        ("POD_ZONE=b", "line 2 sets POD_ZONE for the second time"),
    ],
)
def test_a_line_that_can_be_misread_is_refused(pod, tmp_path, line, words):
    config = tmp_path / "pod.env"
    config.write_text(f"POD_ZONE=a\n{line}\n")
    refused = pod("state", "--config", str(config))
    assert refused.returncode == 2 and words in refused.stderr and refused.calls == ""


def test_a_file_for_the_workers_is_read_here_first_and_never_shown(pod, tmp_path):
    secrets = tmp_path / "worker.env"
    for content in ("HF_TOKEN=hf_planted`x\n", "hf_planted\n", "export HF_TOKEN=hf_planted\n", "UID=hf_planted\n"):
        secrets.write_text(content)
        refused = pod("setup", "--hosts", "alpha", "--worker-env", str(secrets))
        assert refused.returncode == 2 and refused.calls == ""
        assert "worker.env, line 1" in refused.stderr and "hf_planted" not in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("start",), "start is not a verb; the verbs are check, create, setup"),
        (("run", "--gin.X=1"), "--gin.X=1 is not an option of pod.sh"),
        (("create", "--type"), "--type lacks its value"),
        (("create", "--dry-run", "--name", "ro", "--type", "v9-8"), "v9-8 is not an accelerator type that is known he"),
        (
            ("run", "--dry-run", "--name", "ro", "--type", "v4-abc", "quickstart"),
            "--type (POD_TYPE) is 'v4-abc'; an accelerator type ends",
        ),
        (("state", *TYPE, "--type", "v4-0"), "--type (POD_TYPE) is 'v4-0'"),
        (("run", "--dry-run", *TYPE), "run what?"),
        (("create", *TYPE, "--slices", "two"), "--slices (POD_SLICES) is 'two'; give a whole number from 1"),
        (("create", *TYPE, "--slices", "0"), "--slices (POD_SLICES) is '0'"),
        (("state", *TYPE, "--name", "--zone=x"), "--name (POD_NAME) is '--zone=x'"),
    ],
)
def test_wrong_calls_are_named(pod, arguments, words):
    result = pod(*arguments)
    assert result.returncode == 2 and words in result.stderr


def test_the_line_of_the_docs_pulls_and_trains_on_all_workers(place):
    """Without pod.sh: the first command of docs/pods.md, as it is."""
    directory, repository = place
    page = (launching.ROOT / "docs/pods.md").read_text()
    block = page.partition("\n    gcloud ")[2].partition("\n\n")[0]
    loop = "gcloud " + block
    assert "git pull && bash launch/ro_t5_base.sh" in loop
    environment = launching.environment(directory, FAKE_RUN=str(directory / "pulled"))
    (directory / "pulled").mkdir()
    launching.call("pod.sh", "create", *TYPE, "--name", "ro", env=environment)
    upstream = directory / "upstream"
    launching.git(directory, "clone", "--quiet", str(repository), str(upstream))
    workers = [directory / f"cloud/ro/worker-{i}" for i in (0, 1)]
    for worker in workers:
        launching.git(worker, "clone", "--quiet", str(upstream), "limba")
    new = launching.commit(upstream, "What is to be trained")
    done = subprocess.run(
        ["bash", "-c", loop], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for index, worker in enumerate(workers):
        log = (worker / f"limba/logs/worker-{index}.log").read_text()
        assert f"== worker {index} of 2 on " in log and f"commit {new[:10]}: limba train" in log
        assert "--gin.MODEL_DIR='gs://my-bucket/ro_t5_base'" in log and " step 20/20: " in log


def test_users_own_loop_comes_before_pod_sh():
    for name in ("README.md", "docs/pods.md"):
        page = (launching.ROOT / name).read_text()
        assert page.index("git pull && bash launch/ro_t5_base.sh") < page.index("launch/pod.sh"), name
    assert "tensorboard --logdir gs://" in (launching.ROOT / "docs/pods.md").read_text()
