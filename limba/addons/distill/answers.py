"""What a teacher answered, kept in a folder: another run on the same rows need not run the teacher.

A file for each process that writes, named by a fingerprint of the teacher and its settings. It has records of one size,
each of which says which row was asked; a record with another checksum than its own, as a kill leaves one, is not read.
"""

import hashlib
import itertools
import logging
import os
import stat
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from limba.addons.distill.distilled_model import LOG_PROBS, TEMPERATURE, TOKENS, WEIGHTS
from limba.data.contract import Batch
from limba.files import storage, written_files

logger = logging.getLogger(__name__)

_DTYPES = {TOKENS: np.int32, LOG_PROBS: np.float32, WEIGHTS: np.float32}


class KeptAnswers:
    """The answers of a teacher: those of rows that were asked before are read from the folder."""

    def __init__(self, teacher: Any, folder: str, num_tokens: int, top_k: int, process: int):
        """Args:
          teacher: a `Likeliest` or an `AlignedLikeliest`.
          folder: is made where there is none.
          num_tokens: of the student's vocabulary.
          top_k: how many of them each position gets.
          process: the number of this one; each writes a file of its own.

        Raises:
          ValueError: for what is no folder of this machine.
        """
        is_local = isinstance(folder, str) and not storage.is_remote(folder)
        if not is_local or (Path(folder).exists() and not Path(folder).is_dir()):
            raise ValueError(
                f"add_teacher.answers_folder (TEACHER_ANSWERS) is {folder!r}; give a folder of this machine."
            )
        self._teacher, self._folder, self._process = teacher, Path(folder), process
        self._num_tokens, self._top_k = num_tokens, top_k
        self._found: dict[bytes, tuple[BinaryIO, int]] = {}
        self._record = np.dtype([])
        self._own: BinaryIO | None = None

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        """The features of a batch that `distilled_model` names."""
        if self._own is None:
            self._own = self._open(batch["decoder_target_tokens"].shape[1])
        keys = _keys(batch)
        known = [record for key in keys if (record := self._read(key)) is not None]
        if len(known) == len(keys):
            records = np.concatenate(known)
            answer = {name: records[name].astype(dtype) for name, dtype in _DTYPES.items()}
            return {TEMPERATURE: self._teacher.temperatures(len(keys))} | answer
        answer = self._teacher(batch)
        records = np.zeros(len(keys), self._record)
        records["key"] = keys
        for name in _DTYPES:
            records[name] = answer[name]
        for key, record in zip(keys, records, strict=True):
            if key not in self._found:
                record["checksum"] = _checksum(record)
                self._found[key] = self._own, self._own.seek(0, os.SEEK_END)
                self._own.write(record.tobytes())
        self._own.flush()
        return answer

    def _open(self, length: int) -> BinaryIO:
        """Finds the records of all processes; the file of this one ends behind its last whole record."""
        shape = (length, self._top_k)
        tokens = "<u2" if self._num_tokens <= 2**16 else "<i4"
        self._record = np.dtype(
            [
                ("key", "S16"),
                ("checksum", "<u4"),
                (TOKENS, tokens, shape),
                (LOG_PROBS, "<f4", shape),
                (WEIGHTS, "u1", (length,)),
            ]
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{self._teacher.fingerprint}-{length}"
        own = self._folder / f"{name}-{self._process}.answers"
        written_files.refuse_link(own)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(own, flags, 0o644)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ValueError(f"{own} is no file; remove it, or set TEACHER_ANSWERS to another folder.")
        opened, size = os.fdopen(descriptor, "r+b"), self._record.itemsize
        for path in [own, *sorted(set(self._folder.glob(f"{name}-*.answers")) - {own})]:
            keys: list[bytes] = []
            if path.is_file() and (number := path.stat().st_size // size):
                file = opened if path == own else path.open("rb")
                # Behind a record without a key nothing is read: a file with holes may be larger than any disk.
                of_records = np.memmap(path, self._record, "r", shape=(number,))["key"]
                keys = [*itertools.takewhile(bool, map(bytes, of_records))]
                self._found |= {key: (file, place * size) for place, key in enumerate(keys)}
            if path == own:
                opened.truncate(len(keys) * size)
        logger.info("%s has the teacher's answers to %s rows.", self._folder, f"{len(self._found):,}")
        return opened

    def _read(self, key: bytes) -> np.ndarray | None:
        """The record of a row, `[1]`; None if there is none, or only a damaged one."""
        if key not in self._found:
            return None
        file, place = self._found[key]
        file.seek(place)
        content = file.read(self._record.itemsize)
        record = np.frombuffer(content, self._record) if len(content) == self._record.itemsize else None
        if record is None or record[0]["checksum"] != _checksum(record[0]) or not self._can_be(record[0]):
            del self._found[key]
            return None
        return record

    def _can_be(self, record: Any) -> bool:
        tokens, log_probs = record[TOKENS], record[LOG_PROBS]
        is_token = (tokens >= 0) & (tokens < self._num_tokens)
        is_share = (record[WEIGHTS] <= 1).all()
        return bool(is_token.all() and is_share and (log_probs <= 1e-3).all() and np.isfinite(log_probs).all())


def _keys(batch: Batch) -> list[bytes]:
    """Of each row a checksum of what its encoder and decoder read, without zero bytes, which NumPy leaves out."""
    names = sorted(name for name in batch if name.startswith(("encoder_", "decoder_")))
    rows = len(batch["decoder_target_tokens"])
    found = []
    for place in range(rows):
        key = hashlib.blake2b(digest_size=8)
        for name in names:
            key.update(name.encode() + np.ascontiguousarray(batch[name][place]).tobytes())
        found.append(key.hexdigest().encode())
    return found


def _checksum(record: Any) -> int:
    return zlib.crc32(record["key"] + b"".join(record[name].tobytes() for name in _DTYPES))
