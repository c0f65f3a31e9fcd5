"""Checkpoints in a bucket, against a loopback server."""

import os
from pathlib import Path

import pytest
import tensorstore

from limba.files import storage

# TensorStore reads the server's address once in a process, so this runs in a fork of its own.
_SCRIPT = """
import os, sys, tarfile
from pathlib import Path
from tests.limba.fake_gcs import FakeGcs

gcs = FakeGcs()
os.environ["TENSORSTORE_GCS_HTTP_URL"] = gcs.url
import jax, jax.numpy as jnp, numpy as np
from limba.checkpoints import checkpointing as checkpoints
from limba.checkpoint_files import saved_tensors
from limba.files import storage
from limba.checkpoints.train_state import TrainState

local = Path(sys.argv[1])
for name in ("classic", "orbax_scanned"):
    with tarfile.open(f"tests/limba/golden/t5x_{name}.tar.xz") as archive:
        archive.extractall(local / name)
    gcs.upload("my-bucket", f"runs/{name}", local / name)
    url = f"gs://my-bucket/runs/{name}"
    assert checkpoints.RestoreCheckpointConfig(path=url).checkpoint == f"{url}/checkpoint_2"
    ours = saved_tensors.open_tensors(checkpoints.find_checkpoint(url))
    files = saved_tensors.open_tensors(local / name / "checkpoint_2")
    assert ours.keys() == files.keys()
    assert all(np.array_equal(np.asarray(ours[n]), np.asarray(files[n])) for n in files)
print("read")

state = TrainState(step=jnp.int32(0), params={"w": jnp.arange(6.0).reshape(2, 3)}, opt_state={})
run = "gs://my-bucket/runs/mine"
checkpointer = checkpoints.SaveCheckpointConfig(keep=2).make_checkpointer(run)
for step in (1, 2, 3):
    checkpointer.save(state.replace(step=jnp.int32(step)), {"reader-0": b"%d" % step}, {"run.json": b'{"a": 1}'})
gcs.put("my-bucket", "runs/mine/checkpoint_4/target.w/.zarray", b"half written")
checkpointer.close()
assert checkpoints.checkpoint_steps(run) == [2, 3], checkpoints.checkpoint_steps(run)
shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
restored, dataset_state = checkpointer.restore_latest(shapes)
assert int(restored.step) == 3 and dataset_state == {"reader-0": b"3"}
np.testing.assert_array_equal(restored.params["w"], state.params["w"])
assert checkpoints.load_run_info(run) == {"a": 1}
print("written")

try:
    checkpoints.find_checkpoint("gs://my-bucket/nowhere")
except FileNotFoundError as error:
    print(error)

from limba.reports import run_directory
from tests.limba import small

parts = "gs://my-bucket/runs/parts"
_, here = small.train(local / "run", 4)
usual = dict(vars(run_directory.BucketWriter))
for name in ("write_scalars", "close"):  # As a kill has it: what nothing but the checkpoint has copied.
    setattr(run_directory.BucketWriter, name, lambda *_: None)
small.train(parts, 2)
assert [step for step, _ in small.train_losses(storage.as_path(parts))] == [1, 2]
for name in ("write_scalars", "close"):
    setattr(run_directory.BucketWriter, name, usual[name])
_, again = small.train(parts, 4)
same = lambda a, b: jax.tree.all(jax.tree.map(lambda x, y: np.array_equal(jax.device_get(x), jax.device_get(y)), a, b))
assert same(again, here)
assert checkpoints.checkpoint_steps(parts) == [2, 4]
losses = [small.train_losses(storage.as_path(d)) for d in (parts, str(local / "run"))]
assert losses[0] == losses[1] and len(losses[0]) == 4
files = [name for name in storage.list_files(storage.as_path(parts)) if "checkpoint" not in name]
names = {name.partition("events.out")[0] for name in files}
assert {"metrics.jsonl", "config.gin", "train/", "training_eval/counter/"} <= names, names
print("trained")
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory, forks):
    done = forks.run(["-c", _SCRIPT, str(tmp_path_factory.mktemp("gcs"))], dict(os.environ))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_bucket_is_read_written_and_resumed_from_to_the_last_bit(output):
    assert (output[0], output[1], output[-1]) == ("read", "written", "trained")
    assert output[2].startswith("No checkpoint at gs://my-bucket/nowhere: it does not exist")


def test_a_bucket_out_of_reach_is_named_with_the_remedy(forks):
    script = "from limba.files import storage; storage.list_names(storage.as_path('gs://no-bucket/run'))"
    closed = os.environ | {"TENSORSTORE_GCS_HTTP_URL": "http://127.0.0.1:1"}
    done = forks.run(["-c", script], closed)
    assert done.returncode == 1
    assert "ValueError: gs://no-bucket/run cannot be reached" in done.stderr
    assert "--buckets=DIR" in done.stderr


def test_the_keys_and_the_address_of_another_s3(monkeypatch):
    """TensorStore knows no variable for the address, and asks every other service for its region in vain."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:9000")
    bucket = {"driver": "s3", "bucket": "my-bucket", "path": "run/"}
    run = storage.as_path("s3://my-bucket/run")
    assert storage.kvstore_spec(run) == bucket | {"endpoint": "http://localhost:9000", "aws_region": "us-east-1"}
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://s3.example.org")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "auto")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    elsewhere = {"endpoint": "https://s3.example.org", "aws_region": "auto"}
    spec = storage.kvstore_spec(run)
    assert spec == bucket | elsewhere | {"aws_credentials": {"type": "environment"}}
    tensorstore.KvStore.Spec(spec)  # It knows all of these.
    assert storage.kvstore_spec(storage.as_path("gs://my-bucket/run"))["driver"] == "gcs"
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name)
    assert storage.kvstore_spec(run) == bucket


def test_a_file_larger_than_what_is_read_at_once(tmp_path, monkeypatch):
    """A file with holes takes no room on the disk, and a device has no end."""
    (tmp_path / "holes.gin").touch()
    os.truncate(tmp_path / "holes.gin", 20 * 2**30)
    monkeypatch.setattr(storage, "MOST_BYTES", 1000)
    (tmp_path / "device.gin").symlink_to("/dev/zero")
    (tmp_path / "memory.gin").symlink_to("/proc/self/mem")
    os.mkfifo(tmp_path / "fifo.gin")
    problems = {
        "holes": "has more than 1,000 bytes, which are read at once",
        "device": "is a device",
        "memory": "is of the kernel",
        "fifo": "is a FIFO",
    }
    for name, problem in problems.items():
        with pytest.raises(ValueError, match=rf"{name}\.gin {problem}"):
            storage.read_bytes(tmp_path / f"{name}.gin")
    read, write = os.pipe()
    os.write(write, b"of a shell")
    os.close(write)
    assert storage.read_bytes(Path(f"/dev/fd/{read}")) == b"of a shell"
    os.close(read)
    (tmp_path / "right.gin").write_bytes(b"a" * 1000)
    assert len(storage.read_bytes(tmp_path / "right.gin")) == 1000


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "a//x", "./x", "..", "a\0b"])
def test_a_name_in_a_bucket_leads_to_no_other_place(monkeypatch, name):
    """`limba branch` and a training that resumes write files of these names on this machine."""
    bucket = tensorstore.KvStore.open({"driver": "memory"}).result()
    monkeypatch.setattr(storage, "_open", lambda path: bucket)
    run = storage.as_path("gs://my-bucket/run")
    for key in ("", "checkpoint_4/run/run.json", "empty/", "config.gin"):
        bucket.write(key, b"ours").result()
    assert storage.list_files(run) == ["checkpoint_4/run/run.json", "config.gin"]
    assert storage.list_names(run) == ["", "checkpoint_4", "config.gin", "empty"]
    bucket.write(name, b"theirs").result()
    for names in (storage.list_files, storage.list_names):
        with pytest.raises(ValueError, match="whose name leads out of the directory; remove it"):
            names(run)
