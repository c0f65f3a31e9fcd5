"""Answers of a model to lines of text, printed or in a file: `limba infer RUN --input TEXT`."""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from limba.checkpoints import checkpointing
from limba.files import json_text, storage, written_files
from limba.files.local_paths import local_path
from limba.gin_config import gin_files
from limba.inference import answering, blanks
from limba.inference.answering import Answer, Answerer
from limba.inference.decoding_flags import AS_BOUND, Decoding
from limba.workers import distributed

logger = logging.getLogger(__name__)


def infer_text(
    *,
    answerer_cls: Callable[..., Answerer],
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    inputs: Sequence[str],
    output_file: str | None = None,
    decoding: Decoding = AS_BOUND,
    name_line: Callable[[int], str] = "line {}".format,
    overwrite: bool = False,
) -> list[Answer]:
    """Answers lines of text.

    With a file, finished answers are kept in `<output_file>.unfinished`: an interrupted call resumes from there, with
    the result of an uninterrupted one.

    Args:
      answerer_cls: called with the checkpoint: `limba.inference.answering.Answerer` with its other arguments.
      output_file: JSON lines with the fields of `limba.inference.answering.Answer`; None prints them.
      decoding: the values that replace the run's.
      name_line: the name of an input for messages, by its number from 1.
      overwrite: replace an output file that is there.

    Returns:
      The answers that were printed or added to the file.

    Raises:
      FileExistsError: if the output file is there, without `overwrite`.
      ValueError: without inputs or a checkpoint; or if the interrupted call had other inputs or settings.
    """
    if not inputs:
        raise ValueError("Nothing to answer: give --input TEXT or --input_file FILE.")
    if output_file:
        check_output(output_file, overwrite)
    checkpoint = distributed.from_first("checkpoint", lambda: restore_checkpoint_cfg.checkpoint)
    is_writer = jax.process_index() == 0
    path = local_path(output_file) if output_file else None
    file = _AnswersFile(path, checkpoint, inputs, decoding) if path else None
    done = distributed.from_first("count of answers", lambda: file.done() if file else 0)
    answers = []
    if done < len(inputs):
        answerer = answerer_cls(restore_checkpoint_cfg=restore_checkpoint_cfg, **decoding.arguments())
        answerer.name_line = name_line
        if is_writer and (unknown := answerer.find_unknown(inputs)):
            logger.warning("%s", unknown)
        done -= done % answerer.lines_at_once
        hidden = not is_writer or len(inputs) <= answerer.batch_size or None
        writing = file.writing(done) if file and is_writer else contextlib.nullcontext(_print)
        progress_bar = tqdm(desc="infer", unit="line", total=len(inputs), initial=done, disable=hidden)
        with progress_bar as progress, writing as write:
            for answer in answerer.answer(inputs, done):
                if is_writer:
                    write(answer)
                answers.append(answer)
                progress.update()
        if is_writer and (without := sum(bool(blanks.hint(x.input, x.prediction)) for x in answers)):
            logger.warning(
                "%d of %d inputs without a blank got words for blanks. %s", without, len(answers), blanks.HINT
            )
    if file and is_writer:
        file.finish()
        print(f"{len(inputs)} answers in {file.path}", file=written_files.messages_beside(file.path))
    return answers


def check_output(output_file: str, overwrite: bool) -> None:
    """Raises ValueError if answers cannot be written there, and FileExistsError for a file without `overwrite`."""
    path = Path(output_file).expanduser()
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir():
        problem = f"{path} is a folder" if path.is_dir() else f"{folder} is a file"
        raise ValueError(f"--output_file {path}: {problem}; name a file, such as answers.jsonl.")
    written_files.refuse_existing(path, "--output_file", overwrite)


def _print(answer: Answer) -> None:
    best, *others = map(answering.visible, (answer.filled, *answer.others))
    tqdm.write(blanks.shown("\n  or ".join([f"{answer.input}\n  -> {best}", *others])))


class _AnswersFile:
    """Answers as JSON lines. While it is unfinished, its first line is the request."""

    def __init__(self, path: Path, checkpoint: str | None, inputs: Sequence[str], decoding: Decoding):
        self.path = path
        # What goes into a device or a pipe cannot be resumed.
        self._folder = tempfile.TemporaryDirectory() if written_files.is_stream(path) else None
        beside = Path(self._folder.name) if self._folder else path.parent
        self._unfinished = beside / f"{path.name}.unfinished"
        self._request = {
            "checkpoint": checkpoint,
            "inputs": hashlib.sha256("\n".join(inputs).encode()).hexdigest(),
            "way of decoding": dataclasses.asdict(decoding),
            "configuration": hashlib.sha256(gin_files.get_gin_config_str().encode()).hexdigest(),
        }

    def done(self) -> int:
        """How many whole answers an interrupted call has left. Raises ValueError if it had another request."""
        whole = self._unfinished.read_bytes().split(b"\n")[:-1] if self._unfinished.is_file() else []
        if not whole:
            return 0
        try:
            before = json.loads(whole[0])
        except ValueError:
            before = None
        if not isinstance(before, dict):
            raise ValueError(
                f"{self._unfinished} is not the file of an interrupted call: its first line is {whole[0][:40]!r}. "
                "Remove it to start again, or name another --output_file."
            )
        if before != self._request:
            changed = [name for name, value in self._request.items() if before.get(name) != value]
            raise ValueError(
                f"{self._unfinished} holds answers of an interrupted call, and this one has another "
                f"{' and other '.join(changed)}. Repeat the same call to resume it, or remove the file to start again."
            )
        return len(whole) - 1

    @contextlib.contextmanager
    def writing(self, done: int) -> Iterator[Callable[[Answer], Any]]:
        """A function that adds an answer after the first `done`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if done:
            lines = self._unfinished.read_bytes().split(b"\n")
            os.truncate(self._unfinished, sum(len(line) + 1 for line in lines[: done + 1]))
        else:
            storage.replace_text(self._unfinished, _line(self._request))
        with written_files.append(self._unfinished, buffering=1, encoding="utf-8") as file:
            yield lambda answer: file.write(_line(dataclasses.asdict(answer)))

    def finish(self) -> None:
        """Gives the file its name, without the line of the request."""
        if not self._unfinished.is_file():
            return
        with (
            written_files.writing(self.path) as temporary,
            self._unfinished.open(encoding="utf-8") as source,
            temporary.open("w", encoding="utf-8") as file,
        ):
            next(source)
            file.writelines(source)
        self._unfinished.unlink()


def _line(values: dict[str, Any]) -> str:
    return json_text.dumps(values, ensure_ascii=False) + "\n"
