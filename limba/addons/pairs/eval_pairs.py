"""`limba eval RUN --pairs FILE …`: how often a model prefers the right sentence of a pair, by phenomenon."""

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from limba import command_line
from limba.addons.pairs import (
    model_forms,
    pair_columns,
    pair_files,
    pair_formats,
    pair_metrics,
    pair_ngrams,
    pair_scores,
    pairs_tasks,
    scored_rows,
)
from limba.checkpoint_files import run_folder
from limba.checkpoints import checkpointing, run_configuration
from limba.checkpoints.parameters import checkpoint_step, load_model_params, no_checkpoint
from limba.data.contract import DatasetConfig
from limba.devices import native_logs
from limba.files import json_text, storage
from limba.gin_config import gin_files
from limba.inference import evaluation
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner
from limba.reports import pair_results
from limba.tasks.pipeline import corpus_ngrams
from limba.tasks.registry import Mixture
from limba.workers import distributed

logger = logging.getLogger(__name__)

SPLIT = "pairs"
# The row of the pairs of several files together.
NGRAM_TOKENS = 5_000_000
# Of more files only the table of all together is printed.
_MOST_TABLES = 6

Results = dict[str, dict[str, Any]]


def evaluate_pairs(
    *,
    model: BaseTransformerModel,
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    partitioner: PjitPartitioner,
    output_dir: str,
    files: Sequence[str],
    inference_evaluator_cls: Callable[..., Any],
    columns: Mapping[str, str | None] | None = None,
    mode: str = "",
    batch_size: int = 32,
    score: str | None = None,
    train_dataset_cfg: DatasetConfig | None = None,
    ngram_tokens: int | None = None,
) -> Results:
    """Scores the pairs of files with one checkpoint or several, and prints a table.

    `<output_dir>/pairs_results.jsonl` gets a line for each file and checkpoint, `<output_dir>/inference_eval` what the
    loggers of the evaluator write. A row that is bad is found before parameters are read.

    Args:
      files: tables with two columns of sentences (`limba.addons.pairs.pair_columns`).
      inference_evaluator_cls: `task_metrics.Evaluator` with its loggers.
      columns: the names of the columns "good", "bad" and "phenomenon"; those of known formats need none.
      mode: text in front of the inputs of a model with sentinels, such as UL2's "[NLU]".
      batch_size: sentences that are scored together.
      score: a kind of `scored_rows.KINDS`; None is "whole" for decoders, "words" for other models.
      train_dataset_cfg, ngram_tokens: n-grams of this number of their tokens score the pairs too; None scores none.

    Returns:
      The metrics of each file, of the last checkpoint.

    Raises:
      ValueError: for a model that gives no words a probability, and for a file or row that cannot be scored.
    """
    kind = model_forms.form_of(model)
    directory = evaluation.make_folder(output_dir)
    longest = model_forms.longest_row(model)
    named = {"good": None, "bad": None, "phenomenon": None} | dict(columns or {})
    tasks = _tasks_of(files, named, kind, model.input_vocabulary, mode, longest, score)
    file_of = {task.name: file for task, file in zip(tasks, files, strict=True)}
    config = DatasetConfig(Mixture(SPLIT, tasks, default_rate=1.0), None, SPLIT, batch_size, shuffle=False, seed=0)
    with native_logs.filtered():
        evaluator = pair_scores.KindEvaluator(
            config,
            inference_evaluator_cls,
            model,
            partitioner,
            directory,
            kind=score or scored_rows.usual_kind(kind),
            form=kind,
            tasks=tasks,
            longest=longest,
        )
    checkpoints = distributed.from_first(
        "checkpoints", lambda: [str(path) for path in restore_checkpoint_cfg.checkpoints]
    )
    if not checkpoints:
        raise no_checkpoint()
    _warn_of_no_blanks(kind, checkpoints[0])
    of_all = _with_kind(pair_results.ALL_FILES, score)
    ngrams: Results = {}
    if ngram_tokens is not None and train_dataset_cfg is not None and jax.process_index() == 0:
        ngrams = _ngram_accuracies(model, tasks, train_dataset_cfg, ngram_tokens)
    results, rows = Results(), list[dict[str, Any]]()
    for path in checkpoints:
        step = checkpoint_step(path)
        params, _ = load_model_params(model, partitioner, restore_checkpoint_cfg, path, None)
        results = evaluator.evaluate(params, step)
        del params
        if jax.process_index() == 0:
            where = {"split": SPLIT, "step": step, "checkpoint": path, "loss": {}} | ({"score": score} if score else {})
            new = [where | row for row in _rows(results, ngrams, file_of, of_all)]
            pair_results.add(directory, new)
            rows += new
    evaluator.close()
    if jax.process_index() == 0:
        shown = rows if len(files) <= _MOST_TABLES else _by_phenomenon_and_file(rows, of_all)
        print(f"\n{pair_results.table(shown)}\n(all of it in {directory / pair_results.NAME})")
    return results


def _warn_of_no_blanks(kind: str, checkpoint: str) -> None:
    if kind == "FilledBlanks" and not run_folder.has_blanks(storage.as_path(checkpoint)):
        logger.warning(
            "The task of %s has no blanks: a T5 that was fine-tuned without them fills them badly. Score the run that "
            "it began with.",
            checkpoint,
        )


def _tasks_of(
    files: Sequence[str],
    columns: Mapping[str, str | None],
    kind: str,
    vocabulary: Any,
    mode: str,
    longest: int | None,
    score: str | None,
) -> list[Any]:
    """A task of each file, with the split "pairs"; their columns are found. Its name ends with the kind of score.

    Raises:
      FileNotFoundError, ValueError: if a file is not there, cannot be read, is empty or lacks a column.
    """
    found = [pair_columns.find(file, columns["good"], columns["bad"], columns["phenomenon"]) for file in files]
    form = getattr(pair_formats, kind)()
    return [
        pairs_tasks.make_pairs_task(_with_kind(name, score), {SPLIT: file}, vocabulary, form, mode, names, longest)
        for name, file, names in zip(pair_columns.names_of_files(files), files, found, strict=True)
    ]


def _ngram_accuracies(
    model: BaseTransformerModel, tasks: Sequence[Any], dataset: DatasetConfig, most_tokens: int
) -> Results:
    vocabulary, converter = model.output_vocabulary, model.FEATURE_CONVERTER_CLS
    counts = corpus_ngrams.count(dataset, vocabulary, converter, most_tokens)
    return {task.name: pair_ngrams.accuracies(task, SPLIT, counts, vocabulary) for task in tasks}


def _by_phenomenon_and_file(rows: Sequence[dict[str, Any]], of_all: str) -> list[dict[str, Any]]:
    """Of many files the pairs of all, and for each checkpoint a row whose phenomena are the files."""
    together = [row for row in rows if row["task"] == of_all]
    names = ("accuracy", "accuracy_low", "accuracy_high", "pairs", "ties")

    def by_file(row: dict[str, Any], key: str | None) -> dict[str, Any]:
        """The metrics of a row of all files, or those of n-grams in it, with those of each file."""
        mine = [other for other in rows if other["step"] == row["step"] and other["task"] != of_all]
        found = [(other["task"], other["ngrams"][key] if key else other["metrics"]) for other in mine]
        whole = row["ngrams"][key] if key else row["metrics"]
        single = {f"{name}/{task}": metrics[name] for task, metrics in found for name in names}
        return single | {name: whole[name] for name in names}

    made = [
        row
        | {"task": "by file", "metrics": by_file(row, None)}
        | ({"ngrams": {key: by_file(row, key) for key in row["ngrams"]}} if "ngrams" in row else {})
        for row in together
    ]
    return [*together, *made]


def _with_kind(name: str, score: str | None) -> str:
    """The name of a task, by which tables and files of several kinds of score differ."""
    return name if score is None else f"{name}.{score}"


def _rows(results: Results, ngrams: Results, file_of: Mapping[str, str], of_all: str) -> list[dict[str, Any]]:
    """A row of each file; of several also one of all their pairs together, with this name."""
    rows: list[dict[str, Any]] = [
        {"task": task, "metrics": dict(found), "file": file_of[task]} | ({"ngrams": ngrams[task]} if ngrams else {})
        for task, found in results.items()
    ]
    if len(rows) > 1:
        names = next(iter(ngrams.values()), {})
        by_ngrams = {name: pair_metrics.pooled([x[name] for x in ngrams.values()]) for name in names}
        pooled = {"task": of_all, "metrics": pair_metrics.pooled([*results.values()])}
        rows.append(pooled | ({"ngrams": by_ngrams} if by_ngrams else {}))
    return rows


# ------------------------------------------------------ command ------------------------------------------------------


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `limba eval` that are about pairs."""
    group = parser.add_argument_group(
        "minimal pairs",
        "limba eval RUN --pairs pairs.jsonl: which sentence of a pair the model prefers (docs/pairs.md)",
    )
    group.add_argument(
        "--pairs",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="score pairs of a right and a wrong sentence instead: files, patterns or folders; RUN goes before it",
    )
    for name, what in (("good", "right sentences"), ("bad", "wrong sentences"), ("phenomenon", "phenomena")):
        group.add_argument(
            f"--{name}_column", metavar="NAME", help=f"the column with the {what}; known formats need none"
        )
    group.add_argument("--mode", metavar="TEXT", help="text in front of the inputs of a model with sentinels: '[NLU]'")
    group.add_argument(
        "--score",
        choices=scored_rows.KINDS,
        help="what is scored (docs/scores.md): the differing words, the whole sentence, each piece, or what follows "
        "the words that both begin with",
    )
    group.add_argument(
        "--ngrams",
        type=int,
        nargs="?",
        const=NGRAM_TOKENS,
        metavar="N",
        help=f"also score the pairs by n-grams of N tokens of the run's training texts ({NGRAM_TOKENS:,})",
    )


def is_asked(flags: argparse.Namespace) -> bool:
    """Whether this evaluation is to be run, and not one of tasks."""
    return flags.pairs is not None


def check_flags(flags: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Ends the process for flags that do not go together."""
    names = ("good_column", "bad_column", "phenomenon_column", "mode", "score", "ngrams")
    if flags.pairs is None:
        if given := [f"--{name}" for name in names if getattr(flags, name) is not None]:
            parser.error(f"{given[0]} goes with --pairs FILE.")
        return
    others = ("task", "module", "split", "eval_steps")
    if given := [f"--{name}" for name in others if getattr(flags, name) is not None]:
        parser.error(f"--pairs scores files, and {given[0]} is about tasks: leave one of them out.")
    if flags.ngrams is not None and flags.ngrams < 1:
        parser.error(f"--ngrams is {flags.ngrams}; it is a number of tokens of the run's training texts.")
    if not flags.run_dir:
        parser.error("give RUN before --pairs FILE: limba eval RUN --pairs FILE")


def run(flags: argparse.Namespace, bindings: Mapping[str, Any]) -> int:
    """Evaluates pairs with the flags of a command, and the bindings of its run.

    Raises:
      FileNotFoundError: for a file that is not there, and a folder or pattern without files.
    """
    files = pair_files.find(flags.pairs)
    config = "eval/checkpoints.RestoreCheckpointConfig"
    given = {x: bindings[x] for x in ("CHECKPOINT_PATH", "EVAL_OUTPUT_DIR", f"{config}.mode", f"{config}.average")}
    configured = gin_files.configurable(evaluate_pairs, module="limba.addons.pairs.eval_pairs")
    file = "gin/runs/eval_pairs.gin" if flags.ngrams is None else "gin/runs/eval_pairs_ngrams.gin"
    run_configuration.parse(flags, file, given, needs_tasks=flags.ngrams is not None)
    columns = {name: getattr(flags, f"{name}_column") for name in ("good", "bad", "phenomenon")}
    of_ngrams = {} if flags.ngrams is None else {"ngram_tokens": flags.ngrams}
    if command_line.goes_on(flags):
        configured(files=files, columns=columns, mode=flags.mode or "", score=flags.score, **of_ngrams)
    return 0


class PairsLogger:
    """`<task>-pairs-<step>.jsonl` of a task of minimal pairs: a line a pair, with the scores of both sentences.

    Of other tasks nothing is written.
    """

    def __init__(self, output_dir: str):
        self.output_dir = output_dir

    def __call__(
        self, task_name: str, step: int | None, inferences: Mapping[str, Any], targets: Sequence[Any], **others: Any
    ) -> None:
        del others
        if not inferences or "score" not in inferences or not all(hasattr(x, "is_right") for x in targets):
            return
        lines: dict[int, dict[str, Any]] = {}
        for sentence, score in zip(targets, inferences["score"], strict=True):
            line = lines.setdefault(sentence.pair, {"pair": sentence.pair, "phenomenon": sentence.phenomenon})
            kind = "good" if sentence.is_right else "bad"
            names = ("sentence", "score", "tokens")
            values = (sentence.sentence, float(score), int(sentence.num_tokens))
            line |= {f"{name}_{kind}": value for name, value in zip(names, values, strict=True)}
        for line in lines.values():
            line["is_right"] = line["score_good"] > line["score_bad"]
        file = Path(self.output_dir) / f"{task_name}-pairs-{-1 if step is None else step:06}.jsonl"
        storage.replace_text(file, "".join(f"{json_text.dumps(line, ensure_ascii=False)}\n" for line in lines.values()))
