"""`limba eval --pairs --score`: pairs of files scored by a kind of `limba.addons.pairs.scored_rows`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from limba.addons.pairs import differing_words, pair_metrics, scored_rows
from limba.addons.pairs.pairs_tasks import ReadRow, ScorePairs
from limba.addons.pairs.scored_rows import RowMaker, ScoredRow
from limba.addons.pairs.scorer import Scorer
from limba.addons.pairs.text_reader import TextReader
from limba.data.contract import DatasetConfig
from limba.files import untrusted_files
from limba.inference import metric_loggers
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner
from limba.tasks.registry.steps import bind
from limba.tasks.supervised import row_preprocessor


class PairScorer:
    """Scores the pairs of tasks by one kind.

    Args:
      kind: of `scored_rows.KINDS`.
      form: the class of `pair_formats` that the model has.
      split: of the tasks, which `pairs_tasks.make_pairs_task` has made.
      batch_size: rows at a time.
      longest: tokens of a row that the network has positions for.

    Raises:
      ValueError: for a kind that the model has no score of, and for a bad row: all are read.
    """

    def __init__(
        self,
        model: BaseTransformerModel,
        partitioner: PjitPartitioner,
        tasks: Sequence[Any],
        *,
        kind: str,
        form: str,
        split: str,
        batch_size: int,
        longest: int | None,
    ):
        scored_rows.check_kind(kind, form)
        self._kind, self._form, self._split = kind, form, split
        for task in tasks:
            row_preprocessor.warn(row_preprocessor.find_in_rows(task, split, None))
        self._scorer = Scorer(model, partitioner, batch_size, longest)

    def score(self, task: Any, params: Any) -> tuple[list[pair_metrics.ScoredSentence], np.ndarray]:
        """The sentences of a task's pairs, right ones and wrong ones in turn, and their scores, float64 `[sentences]`.

        Raises:
          NotFiniteError: for a sentence whose score is not finite.
        """
        texts: list[tuple[str, str, str]] = []
        count = sum(len(numbers) for _, numbers, _ in task.source.numbered_tables(self._split))

        def named(number: int) -> str:
            return untrusted_files.shown(texts[number // 2][number % 2])

        rows = self._sentences(task, texts)
        scores, tokens, _ = self._scorer.score(params, rows, 2 * count, named, "sentence")
        targets = [
            pair_metrics.ScoredSentence(i // 2, i % 2 == 0, texts[i // 2][2], num_tokens, texts[i // 2][i % 2])
            for i, num_tokens in enumerate(tokens.tolist())
        ]
        return targets, scores

    def _sentences(self, task: Any, texts: list[tuple[str, str, str]]) -> Iterator[Iterable[ScoredRow]]:
        """The rows of the sentences, right ones and wrong ones in turn; the texts of each pair are added to `texts`."""
        (step,) = task.preprocessors
        bound: ScorePairs = bind(step, task.output_features, None)
        vocabulary = task.output_features["targets"].vocabulary
        maker = scored_rows.row_maker(self._form, TextReader(vocabulary, bound.form).ids, bound.mode_tokens)
        read = bound.row_reader()
        for file, number, document in task.source.numbered_documents(self._split):
            row = read(document, f"row {number} (the first is 0) of {file}")
            texts.append(row.texts)
            yield from sentence_rows(maker, self._kind, row)


class KindEvaluator:
    """Scores the pairs of tasks by one kind, with the metrics and loggers of an evaluation.

    Args:
      config: with the tasks of `pairs_tasks.make_pairs_task`.
      evaluator_cls: `task_metrics.Evaluator` with its loggers, which write to `directory`.
      kind, form, longest: as of `PairScorer`.
      tasks: those of the configuration.

    Raises:
      ValueError: as `PairScorer`.
    """

    def __init__(
        self,
        config: DatasetConfig,
        evaluator_cls: Callable[..., Any],
        model: BaseTransformerModel,
        partitioner: PjitPartitioner,
        directory: Path,
        *,
        kind: str,
        form: str,
        tasks: Sequence[Any],
        longest: int | None,
    ):
        self._tasks = tasks
        self._scorer = PairScorer(
            model,
            partitioner,
            tasks,
            kind=kind,
            form=form,
            split=config.split,
            batch_size=config.batch_size,
            longest=longest,
        )
        folder = directory / "inference_eval"
        folder.mkdir(parents=True, exist_ok=True)
        classes = evaluator_cls(config=config, feature_converter=model.FEATURE_CONVERTER_CLS).logger_cls
        self._loggers = [logger(output_dir=str(folder)) for logger in classes]

    def evaluate(self, params: Any, step: int) -> dict[str, dict[str, Any]]:
        """The metrics of `pair_metrics.pair_accuracy` of each task, which are logged.

        Raises:
          NotFiniteError: for a sentence whose score is not finite.
        """
        return {task.name: self._evaluate(task, params, step) for task in self._tasks}

    def close(self) -> None:
        """Returns when events are written."""
        for logger in self._loggers:
            if hasattr(logger, "close"):
                logger.close()

    def _evaluate(self, task: Any, params: Any, step: int) -> dict[str, Any]:
        targets, scores = self._scorer.score(task, params)
        metrics = pair_metrics.pair_accuracy(targets, scores.tolist())
        if jax.process_index() == 0:
            values = {name: metric_loggers.Scalar(value) for name, value in metrics.items()}
            inferences = {"score": scores.tolist()}
            for log in self._loggers:
                log(task_name=task.name, step=step, metrics=values, dataset=(), inferences=inferences, targets=targets)
        return metrics


def sentence_rows(maker: RowMaker, kind: str, row: ReadRow) -> Iterator[Iterable[ScoredRow]]:
    """The rows of the right sentence of a pair, and those of the wrong one.

    The context of a continuation are the words that both sentences begin with.
    """
    regions = differing_words.differences(*row.texts[:2])
    for i in (0, 1):
        text, tokens = row.texts[i], row.tokens[i]
        of_sentence = [region[i] for region in regions]
        if kind == "words":
            yield maker.words(row.features[i], tokens, of_sentence)
        elif kind == "continuation":
            yield maker.continuation(tokens, scored_rows.context_length(tokens, of_sentence[0][0]), True)
        else:
            yield scored_rows.of_text(maker, kind, text, tokens)
