"""Prints the accelerator that JAX has on this worker, and whether it can write to a folder or bucket.

    python launch/check_worker.py [FOLDER]

`launch/pod.sh check` runs it on all workers at once, because JAX on one worker of a pod waits for the others. The exit
code is 1 if JAX does not answer or the folder cannot be written.
"""

import os
import socket
import sys

from limba import environment
from limba.files import storage


def main(folder: str | None = None) -> int:
    jax = environment.ask_jax(timeout=120)
    if "error" in jax:
        print(f"error: {jax['error']}")
        return 1
    devices = ", ".join(f"{count} x {kind}" for kind, count in jax["devices"].items())
    print(f"accelerator={jax['backend']} devices={devices} asked={os.environ.get('LIMBA_ACCELERATOR', '')}")
    if jax["backend"] == "cpu":
        print(*jax["messages"], sep="\n")
    if folder is None:
        return 0
    place = storage.as_path(folder) / f".limba-check-{socket.gethostname()}-{os.getpid()}"
    try:
        storage.write_bytes(place / "file", b"Written by launch/check_worker.py, which removes it.\n")
        storage.remove_tree(place)
    except (OSError, ValueError) as error:
        print(
            f"error: this worker cannot write to {folder}; a TPU's service account needs the role "
            f"roles/storage.objectUser on a bucket: {error}"
        )
        return 1
    print(f"ok: {folder} can be written from this worker")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
