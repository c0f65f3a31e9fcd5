"""The files of one shard of a task's predictions: chunks while it is worked on, one file when it is complete."""

import contextlib
import dataclasses
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from limba.files import json_text, storage, written_files
from limba.files.storage import AnyPath

logger = logging.getLogger(__name__)

# `(output_dir, name of the output file, folder of the chunks, step)`.
MergeFn = Callable[[str, str, str, int | None], None]

_COMPLETED = ".COMPLETED"


def merge_chunks_to_file(output_dir: str, output_fname: str, tmp_dir: str, step: int | None) -> None:
    """Joins the chunks of a shard, in order, to `output_dir/output_fname`; raises ValueError if there are none."""
    del step
    chunks_dir = storage.as_path(tmp_dir)
    names = [name for name in storage.list_names(chunks_dir) if name.startswith(f"{output_fname}-chunk")]
    chunks = [name for name in names if not name.endswith(_COMPLETED)]
    if not chunks:
        raise ValueError(f"There is nothing to write to {output_fname}: the split, or this shard of it, is empty.")
    with (
        local_folder(storage.as_path(output_dir)) as folder,
        written_files.replacing(folder / output_fname) as temporary,
        temporary.open("wb") as file,
    ):
        for chunk in chunks:
            file.write(storage.read_bytes(chunks_dir / chunk))


@contextlib.contextmanager
def local_folder(directory: AnyPath) -> Iterator[Path]:
    """The directory to write files in; for a bucket a temporary one of this machine, which is then copied there."""
    if not storage.is_remote(directory):
        directory.mkdir(parents=True, exist_ok=True)
        yield Path(directory)
        return
    with tempfile.TemporaryDirectory(prefix="limba-infer-") as temporary:
        local = Path(temporary)
        yield local
        for name in storage.list_files(local):
            storage.write_bytes(directory / name, storage.read_bytes(local / name))


@dataclasses.dataclass(frozen=True)
class ShardFiles:
    """Where the results of a shard are."""

    directory: AnyPath  # of all results
    name: str  # of the file, such as `my_task-predict.jsonl-00000-of-00001`

    @property
    def chunks_dir(self) -> AnyPath:
        return self.directory / f"tmp-{self.name}"

    @property
    def path(self) -> AnyPath:
        return self.directory / self.name

    def is_complete(self) -> bool:
        return storage.is_file(self.directory / (self.name + _COMPLETED))

    def num_whole_chunks(self, request: Mapping[str, Any]) -> int:
        """How many chunks an interrupted run wrote; any later ones are written again.

        Args:
          request: all that the chunks depend on; kept beside them.

        Raises:
          ValueError: if that run had another request, or the folder of the chunks is a link.
        """
        if isinstance(self.chunks_dir, Path):
            written_files.refuse_link(self.chunks_dir)
        description = self.chunks_dir / "chunks.json"
        request = json.loads(json_text.dumps(request))  # as it is read back
        if not storage.is_file(description):
            storage.write_bytes(description, json_text.dumps(request).encode())
            return 0
        before = json.loads(storage.read_bytes(description))
        if before != request:
            changed = [f"{key} {before.get(key)!r} -> {x!r}" for key, x in request.items() if before.get(key) != x]
            raise ValueError(
                f"{self.chunks_dir} holds chunks of an interrupted run, and this one differs: {', '.join(changed)}. "
                "Resume it with the same settings, or remove the folder to start from the beginning."
            )
        count = 0
        while storage.is_file(self.chunks_dir / (self._chunk(count) + _COMPLETED)):
            count += 1
        if count:
            logger.info("Resuming after %d chunks of %s.", count, self.name)
        return count

    def write_chunk(self, number: int, write_fn: Callable[..., None], *arguments: Any) -> None:
        """Calls `write_fn` with a path of this machine for the chunk, and the arguments."""
        name = self._chunk(number)
        with local_folder(self.chunks_dir) as folder:
            (folder / name).unlink(missing_ok=True)  # In a folder of somebody else it may be a link.
            write_fn(str(folder / name), *arguments)
        # Written last: a chunk without this file is written again.
        storage.write_bytes(self.chunks_dir / (name + _COMPLETED), b"")

    def complete(self, merge_fn: MergeFn | None, step: int) -> AnyPath:
        """Merges the chunks (None leaves them where they are), and returns where the results are."""
        if merge_fn is not None:
            merge_fn(str(self.directory), self.name, str(self.chunks_dir), step)
            storage.remove_tree(self.chunks_dir)
        storage.write_bytes(self.directory / (self.name + _COMPLETED), b"")
        return self.chunks_dir if merge_fn is None else self.path

    def _chunk(self, number: int) -> str:
        return f"{self.name}-chunk{number:05}"
