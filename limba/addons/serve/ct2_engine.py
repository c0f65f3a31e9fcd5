"""CTranslate2 behind the server: a folder of `limba convert to-ct2`, on the CPU.

A T5's answers are those of the run that the folder was made of; its encoder alone has no door in CTranslate2, so it
gives no vectors. An encoder gives vectors, and no answers: its head is left out of the folder.
"""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.addons.serve import candidates
from limba.addons.serve.base_engine import BaseEngine, Reply, Text
from limba.checkpoint_files import run_folder
from limba.data.token_rows import Row
from limba.files import untrusted_json
from limba.files.output_folder import REPORT, read_report
from limba.files.untrusted_files import shown
from limba.inference import tasks_door, text_batches

FORMAT = "ctranslate2"
_WEIGHTS = "model.bin"
_TOKENS = ("shared_vocabulary.json", "vocabulary.json")
# Below it, as in `limba.models.decoding`, decoding is greedy.
_MIN_TEMPERATURE = 1e-4


def is_folder(path: Path) -> bool:
    """Whether a folder is, or was to become, one for CTranslate2."""
    if (path / _WEIGHTS).is_file() and any((path / name).is_file() for name in _TOKENS):
        return True
    return path.is_dir() and read_report(path).get("format") == FORMAT


class Ct2Engine(BaseEngine):
    """A folder of `limba convert to-ct2`.

    Args:
      max_input_tokens: longer texts are refused.

    Raises:
      ModuleNotFoundError: without the package ctranslate2.
      ValueError: if a file of the folder is missing or damaged, or another program wrote it.
    """

    has_one_temperature = True

    def __init__(self, folder: Path, max_input_tokens: int = 512):
        report = _whole_report(folder)
        record = report["vocabulary"]
        file = str(folder / run_folder.vocabulary_name(record))
        vocabulary = tasks_door.open_vocabulary(run_folder.with_vocabulary_file(record, file))
        self.input_vocabulary = self.output_vocabulary = vocabulary
        self.decodes = (folder / _TOKENS[0]).is_file()
        self.has_blanks = self.decodes and report.get("has_blanks", True)
        self.texts = text_batches.Sequences(vocabulary, vocabulary, 0)
        self.max_input_tokens = min(max_input_tokens, report.get("longest_row") or max_input_tokens)
        self._tokens = _tokens(folder / _TOKENS[not self.decodes], vocabulary.vocab_size)
        self._ids = {token: id_ for id_, token in enumerate(self._tokens)}
        self._ends = candidates.end_tokens(self._ids, self._tokens[vocabulary.eos_id or 1]) if self.has_blanks else []
        self.has_candidates = bool(self._ends)
        library = _library()
        load: Any = library.Translator if self.decodes else library.Encoder
        compute_type = "int8" if report.get("quantization") == "int8" else "float32"
        try:
            self._model = load(str(folder), device="cpu", compute_type=compute_type, intra_threads=_threads())
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"CTranslate2 {library.__version__} cannot load {folder}: {error}. {_again()}") from error

    def warm_up(self) -> None:
        """Runs one text."""
        self.run([Text("", Row([1], [0], 1), 1, int(self.decodes))])

    def run(self, texts: Sequence[Text]) -> Sequence[Reply | Exception]:
        rows = [[self._tokens[i] for i in text.ids] for text in texts]
        if not self.decodes:
            states = np.array(self._model.forward_batch(rows).last_hidden_state)
            # The mean over the tokens, as of `limba embed` without other flags.
            vectors = [state[: len(row)].mean(0) for row, state in zip(rows, states, strict=True)]
            return [Reply(vector=vector, hint=text.unknown) for text, vector in zip(texts, vectors, strict=True)]
        answers = self._decode(texts, rows)
        replies = [self.reply(text, answer) for text, answer in zip(texts, answers, strict=True)]
        return [
            self._with_candidates(*asked) if asked[0].num_candidates else asked[-1]
            for asked in zip(texts, rows, answers, replies, strict=True)
        ]

    def _with_candidates(self, text: Text, tokens: list[str], answer: np.ndarray, reply: Reply) -> Reply:
        of_answer = [self._tokens[i] for i in answer.tolist()]
        found = candidates.find(self._model, tokens, of_answer, text.line, self._ends, text.num_candidates)
        decode = lambda beam: self.output_vocabulary.decode([self._ids[token] for token in beam])  # noqa: E731
        of_blanks = [[(decode(beam), score) for beam, score in beams] for beams in found]
        return dataclasses.replace(reply, candidates=[candidates.words(x, text.num_candidates) for x in of_blanks])

    def _decode(self, texts: Sequence[Text], rows: list[list[str]]) -> list[np.ndarray]:
        most = [text.max_tokens for text in texts]
        sampling: dict[str, Any] = {}
        if texts[0].temperature > _MIN_TEMPERATURE:
            sampling = {"sampling_topk": 0, "sampling_temperature": texts[0].temperature}

        def ends(step: Any) -> bool:
            """Does nothing that can fail: an error in a callback brings the engine down."""
            text = texts[step.batch_id]
            is_left = text.listener is not None and text.listener(step.token_id)
            return is_left or step.step + 1 >= text.max_tokens

        found = self._model.translate_batch(
            rows,
            beam_size=1,
            max_input_length=0,
            max_decoding_length=max(most),
            min_decoding_length=0,
            callback=ends if len({*most}) > 1 or any(text.listener for text in texts) else None,
            **sampling,
        )
        return [np.array([self._ids[token] for token in result.hypotheses[0]], np.int32) for result in found]

    def _encode(self, line: str, is_answered: bool) -> Row:
        if is_answered and not self.decodes:
            raise ValueError(
                "This server has the vectors of an encoder; its head is not in a folder for CTranslate2. Ask for "
                "/v1/embeddings, or let `limba serve` have the run."
            )
        if self.decodes and not is_answered:
            raise ValueError(
                "CTranslate2 gives no vectors of a T5. Ask for /v1/completions, or let `limba serve` have the run."
            )
        return super()._encode(line, is_answered)


def _library() -> Any:
    try:
        import ctranslate2
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "A folder for CTranslate2 is served by the package ctranslate2: pip install 'limba[serve,ct2]'.",
            name=error.name,
        ) from error
    return ctranslate2


def _whole_report(folder: Path) -> dict[str, Any]:
    """The report of the conversion. Raises ValueError if there is none, or files that it lists are missing."""
    report = read_report(folder)
    if not report:
        raise ValueError(
            f"{folder} has no {REPORT}: a copy of it was interrupted, or another program wrote it. {_again()}"
        )
    missing = [name for name in report.get("files", [_WEIGHTS]) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is not whole: it lacks {', '.join(missing)}. {_again()}")
    if report.get("vocabulary") is None:
        raise ValueError(f"{folder} was written by an earlier version: {REPORT} has no vocabulary. {_again()}")
    run_folder.check_vocabulary(report["vocabulary"], str(folder / REPORT))
    return report


def _tokens(file: Path, vocab_size: int) -> list[str]:
    """The tokens by their ids. Raises ValueError if a text may become an id that has none."""
    tokens = untrusted_json.read(file)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ValueError(f"{file} is damaged: it is {shown(tokens)} and no list of tokens. {_again()}")
    if len(tokens) < vocab_size:
        raise ValueError(f"{file} is damaged: it has {len(tokens):,} of the {vocab_size:,} tokens. {_again()}")
    return tokens


def _threads() -> int:
    """Half of the CPUs, or 0 where OMP_NUM_THREADS says the number.

    Threads of OpenMP wait for each other without leaving their CPUs: where one has none left, a batch takes 20 times as
    long.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 0 if os.environ.get("OMP_NUM_THREADS") else max(1, cpus // 2)


def _again() -> str:
    return "Write it with `limba convert to-ct2 RUN FOLDER --overwrite`."
