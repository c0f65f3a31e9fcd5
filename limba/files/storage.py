"""Directories of this machine and of buckets (gs://, s3://), through TensorStore's key-value stores.

A bucket has no directories: one exists while there are files below its name. Paths are `pathlib.Path` for this machine
and `epath.Path` for a bucket, so `/`, `.name` and `.parent` work for both; the functions below read and write without
TensorFlow or a cloud library.
"""

import os
import shutil
import stat
from pathlib import Path
from typing import Any, TypeAlias

import tensorstore as ts
from etils import epath

from limba.files import untrusted_files, written_files
from limba.files.local_paths import local_path

AnyPath: TypeAlias = Path | epath.Path

# Of a local file that is read at once.
MOST_BYTES = 2**30

_mounts: list[Path] = []

# Buckets that answered once. TensorStore retries for a quarter of an hour, which is right during a run. The first try
# is shorter: the bucket's name may be wrong, or this machine may have no network.
_reached: set[str] = set()
_FIRST_TRY = ts.Context({"gcs_request_retries": {"max_retries": 3}, "s3_request_retries": {"max_retries": 3}})


def mount_buckets(directory: str) -> None:
    """Makes gs://NAME/x mean the file NAME/x below this directory, as gcsfuse and Vertex AI mount buckets.

    Raises:
      FileNotFoundError: if the directory does not exist.
    """
    path = local_path(directory)
    if not path.is_dir():
        raise FileNotFoundError(f"--buckets={directory} is not a directory; name the one with the mounted buckets.")
    _mounts[:] = [path]


def mounted(path: str) -> str:
    """A path in a mounted bucket as a path of this machine; any other path as it is."""
    if _mounts and str(path).startswith("gs://"):
        return str(_mounts[0] / str(path).removeprefix("gs://"))
    return path


def as_path(path: str | AnyPath) -> AnyPath:
    """An absolute path of this machine, or a path in a bucket.

    Raises:
      ValueError: for a URL that does not begin with gs:// or s3://.
    """
    path = mounted(path) if isinstance(path, str) else path
    if is_remote(path):
        if not str(path).startswith(("gs://", "s3://")):
            raise ValueError(
                f"{path}: paths are folders of this machine, gs://BUCKET/… and s3://BUCKET/…. Mount another store as a "
                "folder, or copy."
            )
        return epath.Path(path)
    return local_path(path)


def is_remote(path: str | AnyPath) -> bool:
    return "://" in str(path)


def kvstore_spec(path: AnyPath) -> dict[str, Any]:
    """TensorStore's description of a directory. One in s3:// is at AWS_ENDPOINT_URL, if that is set, as for boto."""
    if not is_remote(path):
        return {"driver": "file", "path": f"{path}/"}
    spec = ts.KvStore.Spec(f"{path}/").to_json()
    if spec["driver"] == "s3":
        if endpoint := _set("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
            # Without a region TensorStore asks the service for it, in a way that only Amazon's answers.
            spec |= {"endpoint": endpoint, "aws_region": _set("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"}
        if _set("AWS_ACCESS_KEY_ID"):
            # Else it reads ~/.aws first, and prints five errors at each opening where there is none.
            spec["aws_credentials"] = {"type": "environment"}
    return spec


def list_names(path: AnyPath) -> list[str]:
    """Names of the files and folders in a directory, sorted; [] if it does not exist."""
    if is_remote(path):
        return sorted({name.split("/")[0] for name in _keys(path)})
    return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []


def list_files(path: AnyPath) -> list[str]:
    """Names of all files below a directory, relative to it, sorted.

    Raises:
      ValueError: if a bucket cannot be reached, or a name in it leads out of the directory.
    """
    if is_remote(path):
        # Consoles keep a folder without files as an object whose name ends with a slash.
        return sorted(name for name in _keys(path) if name and not name.endswith("/"))
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def check_stays(path: AnyPath) -> None:
    """Raises ValueError for a link out of its folder; see `untrusted_files.check_stays`. A bucket has no links."""
    if not is_remote(path):
        untrusted_files.check_stays(Path(path))


def is_file(path: AnyPath) -> bool:
    if is_remote(path):
        return _open(path.parent).read(path.name).result().state == "value"
    return path.is_file()


def is_dir(path: AnyPath) -> bool:
    return bool(list_names(path)) if is_remote(path) else path.is_dir()


def read_bytes(path: AnyPath) -> bytes:
    """The content of a file.

    Raises:
      FileNotFoundError: if the file does not exist.
      ValueError: if a local one has more than `MOST_BYTES`: a file with holes, or a device, may be larger than memory;
        and for a FIFO or a device in a folder, which may wait for ever. Those of the shell are in /dev and /proc.
    """
    if is_remote(path):
        read = _open(path.parent).read(path.name).result()
        if read.state != "value":
            raise FileNotFoundError(f"{path} does not exist")
        return read.value
    if not str(path).startswith(("/dev/", "/proc/")):
        untrusted_files.refuse_endless(path, path.stat().st_mode)
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES:
            return file.read()
        blocks, size = [], found.st_size
        while size <= MOST_BYTES and (block := file.read(1 << 20)):  # A pipe or a device does not know its size.
            blocks.append(block)
            size += len(block)
    if size > MOST_BYTES:
        raise ValueError(f"{path} has more than {MOST_BYTES:,} bytes, which are read at once; remove it.")
    return b"".join(blocks)


def write_bytes(path: AnyPath, content: bytes) -> None:
    """Writes a file; creates its directory if needed. A link is replaced, not followed.

    Raises:
      ValueError: for a FIFO or a device.
    """
    if is_remote(path):
        _open(path.parent).write(path.name, content).result()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        untrusted_files.refuse_endless(path, path.stat().st_mode)
    path.write_bytes(content)


def remove_file(path: AnyPath) -> None:
    """Removes a file, if it is there."""
    if is_remote(path):
        _open(path.parent).write(path.name, None).result()
    else:
        path.unlink(missing_ok=True)


def replace_text(file: Path, text: str) -> None:
    """Writes a text file of this machine whole. A link is replaced, not followed."""
    with written_files.replacing(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_tree(path: AnyPath) -> None:
    """Removes a directory and everything below it. On this machine it is renamed first, so that it is never partial.

    Of a link only the link is removed.
    """
    if is_remote(path):
        _open(path).delete_range(ts.KvStore.KeyRange()).result()
        return
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        renamed = path.with_name(f".removed_{path.name}")
        if renamed.is_symlink():
            renamed.unlink()
        shutil.rmtree(renamed, ignore_errors=True)
        path.rename(renamed)
        shutil.rmtree(renamed)


def unsynced() -> ts.Context:
    """A context for writing many files without an fsync for each; call `os.sync()` at the end."""
    return ts.Context({"file_io_sync": False})


def _set(*names: str) -> str:
    """The first of these variables that is set, or ""."""
    return next(filter(None, map(os.environ.get, names)), "")


def _keys(path: AnyPath) -> list[str]:
    """The names of all objects below a directory of a bucket, relative to it. They become files of this machine.

    Raises:
      ValueError: for a name that leads out of the directory, such as `../../x`: a bucket takes any.
    """
    names = [key.decode("utf-8", "backslashreplace") for key in _open(path).list().result()]
    for name in names:
        if name and not untrusted_files.is_inside(name.removesuffix("/")):
            raise ValueError(
                f"{path} has an object {untrusted_files.shown(name)}, whose name leads out of the directory; remove it."
            )
    return names


def _open(path: AnyPath) -> ts.KvStore:
    bucket = "/".join(str(path).split("/")[:3])
    if bucket not in _reached:
        try:
            ts.KvStore.open(kvstore_spec(path), context=_FIRST_TRY).result().read("").result()
        except ValueError as error:
            raise ValueError(
                f"{path} cannot be reached: {error}\nCheck the bucket's name, and this machine's network and "
                "credentials. For buckets that are mounted as folders give --buckets=DIR."
            ) from None
        _reached.add(bucket)
    return ts.KvStore.open(kvstore_spec(path)).result()
