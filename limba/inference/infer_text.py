"""Answers of a model to lines of text, printed or in a file: `limba infer --run_dir RUN --input TEXT`."""

import contextlib
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gin
import jax
from tqdm import tqdm

from limba import checkpoints, distributed
from limba.answers import Answer, Answerer
from limba.decoding_flags import AS_BOUND, Decoding


def infer_text(
    *,
    answerer_cls: Callable[..., Answerer],
    restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig,
    inputs: Sequence[str],
    output_file: str | None = None,
    decoding: Decoding = AS_BOUND,
) -> list[Answer]:
    """Answers lines of text.

    With a file, what is done lies in `<output_file>.unfinished`: a call that was interrupted goes on there, with the
    result of an uninterrupted one.

    Args:
      answerer_cls: called with the checkpoint: `limba.answers.Answerer` with its other arguments.
      restore_checkpoint_cfg: the checkpoint.
      inputs: lines.
      output_file: JSON lines with the fields of `limba.answers.Answer`; None prints them.
      decoding: where it is not the run's.

    Returns:
      What was printed, or was new in the file.

    Raises:
      ValueError: without inputs or a checkpoint; or if an interrupted call was another one.
    """
    if not inputs:
        raise ValueError("Nothing to answer: give --input TEXT or --input_file FILE.")
    if output_file:
        _check_output(Path(output_file).expanduser())
    checkpoint = distributed.from_first("checkpoint", lambda: restore_checkpoint_cfg.checkpoint)
    is_writer = jax.process_index() == 0
    file = (
        _AnswersFile(Path(output_file).expanduser().absolute(), checkpoint, inputs, decoding) if output_file else None
    )
    done = distributed.from_first("count of answers", lambda: file.done() if file else 0)
    answers = []
    if done < len(inputs):
        answerer = answerer_cls(restore_checkpoint_cfg=restore_checkpoint_cfg, **decoding.arguments())
        done -= done % answerer.lines_at_once
        hidden = not is_writer or len(inputs) <= answerer.batch_size
        with (
            tqdm(desc="infer", unit="line", total=len(inputs), initial=done, disable=hidden) as progress,
            file.writing(done)
            if file and is_writer
            else contextlib.nullcontext(_print if is_writer else _ignore) as write,
        ):
            for answer in answerer.answer(inputs, done):
                write(answer)
                answers.append(answer)
                progress.update()
    if file and is_writer:
        file.finish()
        print(f"{len(inputs)} answers in {file.path}")
    return answers


def _check_output(path: Path) -> None:
    """Raises ValueError if the answers could not be written there, before they are made."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir():
        what = f"{path} is a folder" if path.is_dir() else f"{folder} is a file"
        raise ValueError(f"--output_file {path}: {what}; name a file, such as answers.jsonl.")


def _print(answer: Answer) -> None:
    tqdm.write(f"{answer.input}\n  -> {answer.filled}")
    for other in answer.others:
        tqdm.write(f"  or {other}")


def _ignore(answer: Answer) -> None:
    """Of a worker that is not the first."""


class _AnswersFile:
    """Answers as JSON lines. Unfinished, the first line says of what."""

    def __init__(self, path: Path, checkpoint: str | None, inputs: Sequence[str], decoding: Decoding):
        self.path = path
        self._unfinished = path.with_name(path.name + ".unfinished")
        self._header = {
            "checkpoint": checkpoint,
            "inputs": hashlib.sha256("\n".join(inputs).encode()).hexdigest(),
            "way of decoding": dataclasses.asdict(decoding),
            "configuration": hashlib.sha256(gin.config_str().encode()).hexdigest(),
        }

    def done(self) -> int:
        """Whole answers of an interrupted call.

        Raises:
          ValueError: if it was another call.
        """
        if not self._unfinished.is_file():
            return 0
        whole = self._unfinished.read_bytes().split(b"\n")[:-1]
        if not whole:
            return 0
        try:
            before = json.loads(whole[0])
        except ValueError:
            before = None
        if not isinstance(before, dict):
            raise ValueError(
                f"{self._unfinished} is not what an interrupted call leaves: its first line is {whole[0][:40]!r}. "
                "Remove it to start anew, or name another --output_file."
            )
        if before != self._header:
            changed = [name for name, value in self._header.items() if before.get(name) != value]
            raise ValueError(
                f"{self._unfinished} holds answers of an interrupted call, and this one has another "
                f"{' and other '.join(changed)}. Call it as before to go on, or remove the file to start anew."
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
            self._unfinished.write_text(_line(self._header), encoding="utf-8")
        with self._unfinished.open("a", buffering=1, encoding="utf-8") as file:
            yield lambda answer: file.write(_line(dataclasses.asdict(answer)))

    def finish(self) -> None:
        """Gives the file its name, without the line that said of what it is."""
        if not self._unfinished.is_file():
            return
        temporary = self.path.with_name(self.path.name + ".tmp")
        with self._unfinished.open(encoding="utf-8") as source, temporary.open("w", encoding="utf-8") as file:
            next(source)
            file.writelines(source)
        temporary.replace(self.path)
        self._unfinished.unlink()


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False) + "\n"


def read_lines(file: str) -> list[str]:
    """Lines of a file, or of standard input for "-"; only ends of lines separate them, so that none becomes two.

    Raises:
      FileNotFoundError: if it is not there.
      ValueError: if it is not UTF-8.
    """
    path = Path(file)
    if file != "-" and not path.is_file():
        raise FileNotFoundError(
            f"--input_file {file} does not exist; give a file with one input a line, or - for stdin."
        )
    content = sys.stdin.buffer.read() if file == "-" else path.read_bytes()
    try:
        text = content.decode("utf-8-sig")  # Some editors put a mark before the text.
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(f"--input_file {file} is not UTF-8 in line {line} ({error}); save it as UTF-8.") from error
    lines = text.replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]
