"""Pairs of texts as a task for `models.ContrastiveModel`, which learns vectors that compare texts.

    text_pairs.register_text_pairs(
        "questions", data_files={"train": "train.csv", "validation": "validation.csv"}, vocabulary="vocab/spiece.model"
    )

or, without a Python module, in a gin file:

    MIXTURE_OR_TASK_NAME = @text_pairs.task()
    text_pairs.task:
      name = 'questions'
      vocabulary = %VOCABULARY
      files = {'train': 'train.csv', 'validation': 'validation.csv'}
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from limba.tasks.metrics import text_pair_metrics
from limba.tasks.metrics.text_pair_metrics import TextPair
from limba.tasks.registry import Feature, Task, TaskRegistry, mixtures, registering
from limba.tasks.sources import corpora
from limba.tasks.supervised import found_columns, supervised_tasks
from limba.tasks.supervised.cell_texts import as_text
from limba.tasks.supervised.row_formats import Example, Row
from limba.tasks.supervised.row_preprocessor import Supervise
from limba.tasks.vocabularies import Vocabulary, sentencepiece_models

_KNOWN = (
    *(("anchor", "positive"), ("sentence1", "sentence2"), ("query", "answer"), ("question", "answer")),
    *(("query", "positive"), ("text1", "text2")),
)
_SCORES = ("score", "similarity_score", "similarity")


@dataclasses.dataclass(frozen=True)
class PairColumns:
    """The columns of a file of pairs, and the format of its rows.

    Attributes:
      first, second: of the texts.
      score: of how alike they are, a number; None where all pairs belong together.
    """

    first: str = "anchor"
    second: str = "positive"
    score: str | None = None
    # Of gin/runs/contrastive.gin. Nothing is generated.
    length_setting: ClassVar[str] = "MAX_LENGTH"
    nested_columns: ClassVar[tuple[str, ...]] = ()
    num_choices: ClassVar[int | None] = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.first, self.second, *([] if self.score is None else [self.score]))

    def __call__(self, row: Row) -> list[Example]:
        texts = [as_text(row[name]).strip() for name in (self.first, self.second)]
        for name, text in zip((self.first, self.second), texts, strict=True):
            if not text:
                raise ValueError(f"column {name!r} is empty, and a pair has two texts")
        return [Example(texts[0], texts[1], reference=None if self.score is None else _number(self.score, row))]

    def prediction(self, answer: str) -> str:
        return answer


def _number(column: str, row: Row) -> float:
    text = as_text(row[column]).strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"column {column!r} has {text!r} where a number is needed")
    return number


def find_columns(data_files: Mapping[str, corpora.DataFiles] | Any, columns: Sequence[str] | None) -> PairColumns:
    """The columns that are named, two or three, or those of a known name of the first local file.

    Raises:
      ValueError: if the file has no columns of known names, or others than two or three are named.
    """
    if columns is not None:
        if isinstance(columns, str) or len(columns) not in (2, 3):
            raise ValueError(f"columns are {columns!r}; name those of the two texts, and perhaps of a score.")
        return PairColumns(*columns)
    file, names = found_columns.of_data(data_files)
    if not names:
        return PairColumns()
    if (known := found_columns.known_pair(names, _KNOWN)) is None:
        raise ValueError(
            f"{found_columns.without_known(file, names, _KNOWN)} Name the columns of the two texts: "
            "columns=('FIRST', 'SECOND'), in gin PAIR_COLUMNS. A file with scores has one of these pairs of names and "
            f"a column {' or '.join(_SCORES)}."
        )
    return PairColumns(*known, next((name for name in _SCORES if name in names), None))


@registering.once(TaskRegistry)
def register_text_pairs(
    name: str,
    *,
    data_files: Mapping[str, corpora.DataFiles] | Any,
    vocabulary: Vocabulary | str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    shuffle_buffer_size: int = 4096,
) -> Task:
    """Registers pairs of texts; the features are `inputs`, the first text, and `targets`, the second.

    Both are read as `limba embed` reads a text: with EOS after it (T5), or between [CLS] and [SEP]. Without scores the
    metric is `text_pair_metrics.retrieval`, with scores `text_pair_metrics.cosine_correlations`. Of files that are
    there the names of the columns are read. Registering a name again with the same arguments is harmless.

    Args:
      data_files: per split a file, a pattern or a list of them (csv, tsv, json, jsonl, parquet, also compressed), or a
        source of `tasks.sources`.
      vocabulary: of the model; see `pretraining.register_pretraining_task`.
      columns: of the two texts, and perhaps of a score; None takes known names: anchor and positive, sentence1 and
        sentence2, query or question and answer, query and positive, text1 and text2; score.

    Raises:
      ValueError: as `find_columns`; for a training split of pairs with scores; if the name is taken by a task with
        other arguments.
    """
    form = find_columns(data_files, columns)
    source = supervised_tasks.open_texts(data_files, form.columns)
    if form.score is not None and "train" in source.splits:
        raise ValueError(
            f"Task {name!r} trains on pairs with scores (column {form.score!r}), and every pair of a training split "
            "counts as one that belongs together. Keep the rows that do and name the two columns of texts alone, "
            f"columns=({form.first!r}, {form.second!r}); give the file with scores as another split or task."
        )
    feature = Feature(sentencepiece_models.open_vocabulary(vocabulary))
    return TaskRegistry.add(
        name,
        source=source,
        preprocessors=[Supervise(name, form)],
        output_features={"inputs": feature, "targets": feature},
        postprocess_fn=_pair,
        metric_fns=[text_pair_metrics.retrieval if form.score is None else text_pair_metrics.cosine_correlations],
        shuffle_buffer_size=shuffle_buffer_size,
    )


def _pair(answer: Any, example: Mapping[str, Any], is_target: bool = True) -> TextPair:
    """The target of the metrics."""
    del answer, is_target
    first, second = (example[f"{name}_pretokenized"].decode("utf-8", "replace") for name in ("inputs", "targets"))
    return TextPair(first, second, json.loads(example["reference"]))


def task(
    name: str,
    vocabulary: Vocabulary,
    files: Mapping[str, corpora.DataFiles],
    columns: Sequence[str] | None = None,
    scores: corpora.DataFiles | None = None,
    shuffle_buffer_size: int = 4096,
) -> str:
    """Registers the task, unless it is there already, and returns its name.

    Args:
      scores: a file of pairs with scores, which is evaluated too: as the task `<name>_scores`, beside this one in the
        mixture `<name>_and_scores`, whose name is then returned.

    Raises:
      ValueError: as `register_text_pairs`; for `scores` without a column of scores.
    """
    register_text_pairs(
        name, data_files=files, vocabulary=vocabulary, columns=columns, shuffle_buffer_size=shuffle_buffer_size
    )
    if scores is None:
        return name
    of_scores = {"validation": scores}
    if find_columns(of_scores, None).score is None:
        raise ValueError(f"text_pairs.task.scores is {scores!r}, which has no column of scores ({', '.join(_SCORES)}).")
    register_text_pairs(f"{name}_scores", data_files=of_scores, vocabulary=vocabulary)
    rates = {name: 1.0, f"{name}_scores": 1.0}
    return mixtures.register_mixture(f"{name}_and_scores", rates).name
