"""Instructions as a task: a definition, examples and an input are answered, in Super-NaturalInstructions' format.

    register_instruction_task("instructions", "natural-instructions", vocabulary="vocab/spiece.model")

One task has all files of the folder; `register_instruction_mixture` makes a task of each file and mixes them by rates.
"""

import dataclasses
import functools
import json
import os
import re
import string
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from limba.addons.instructions.instruction_files import InstructionSource
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_0
from limba.tasks.metrics import metric_packages, rouge_words, text_metrics
from limba.tasks.registry import Mixture, MixtureRegistry, Task, TaskRegistry, mixtures, registering
from limba.tasks.supervised.dataset import SupervisedDataset
from limba.tasks.supervised.few_shots import FewShots
from limba.tasks.supervised.row_formats import Row
from limba.tasks.supervised.supervised_tasks import register_supervised_task
from limba.tasks.vocabularies import Vocabulary

_NOT_IN_NAMES = re.compile(r"[^\w.]")  # of tasks


@dataclasses.dataclass(frozen=True)
class Instructions:
    """The layout of Tk-Instruct (arXiv:2204.07705): the definition, examples, and the input to answer.

    Examples that would make the input longer than the model reads are left out, the last ones first. Of several right
    answers one is learned, drawn by the instance's texts: always the same. Metrics get all, this one first.

    Args:
      num_positive, num_negative: examples in front of the input; 0 and 0 is zero-shot.
      has_definition: whether the definition comes first.
      has_explanations: whether examples have theirs.
    """

    num_positive: int = 2
    num_negative: int = 0
    has_definition: bool = True
    has_explanations: bool = False
    nested_columns: ClassVar[tuple[str, ...]] = ()
    num_choices: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        for name in ("num_positive", "num_negative"):
            number_ranges.check(f"Instructions.{name}", getattr(self, name), AT_LEAST_0)

    @property
    def columns(self) -> tuple[str, ...]:
        examples = [name for name in ("positive", "negative") if getattr(self, f"num_{name}")]
        definition = ["definition"] if self.has_definition else []
        return ("input", "outputs", *definition, *(f"{name}_examples" for name in examples))

    def __call__(self, row: Row) -> list[FewShots]:
        definition = f"Definition: {_ended(row['definition'])}\n\n" if self.has_definition else ""
        question = f"Now complete the following example -\nInput: {_ended(row['input'])}\nOutput: "
        shots = [*self._shots(row, "positive", self.num_positive), *self._shots(row, "negative", self.num_negative)]
        longest, *shorter = (f"{definition}{''.join(shots[:count])}{question}" for count in range(len(shots), -1, -1))
        outputs = json.loads(row["outputs"])
        drawn = zlib.crc32(f"{row['input']}\n{row['outputs']}".encode()) % len(outputs)
        references = [outputs[drawn], *outputs[:drawn], *outputs[drawn + 1 :]]
        return [FewShots(longest, references[0], reference=references, shorter=tuple(shorter))]

    def _shots(self, row: Row, kind: str, most: int) -> list[str]:
        texts = []
        for number, example in enumerate(json.loads(row[f"{kind}_examples"])[:most] if most else [], 1):
            lines = [f" {kind.capitalize()} Example {number} -", f"Input: {_ended(example['input'])}"]
            lines.append(f" Output: {_ended(example['output'])}")
            if self.has_explanations and "explanation" in example:
                lines.append(f" Explanation: {_ended(example['explanation'])}")
            texts.append("\n".join(lines) + "\n\n")
        return texts

    def prediction(self, answer: str) -> str:
        return answer.strip()


def _ended(text: str) -> str:
    """A text that ends with punctuation of any script, a full stop where it has none."""
    text = text.strip()
    is_ended = text[-1:] and (text[-1] in string.punctuation or unicodedata.category(text[-1])[0] == "P")
    return text if is_ended else f"{text}."


@metric_packages.needs("rouge_score")
def rouge_of_references(targets: Sequence[Sequence[str] | str], predictions: Sequence[str]) -> text_metrics.Metrics:
    """Mean ROUGE-L F of stemmed words by rouge-score, in percent. A target is a list of references, or the only one.

    `rougeL` takes the best reference of each prediction, as Super-NaturalInstructions does (arXiv:2204.07705);
    `rougeL_one_reference` the first, which is the one that the model learns. Where most letters are not Latin, words
    are those of `rouge_words.UnicodeWords`, without a stemmer.
    """
    text_metrics.check_texts(targets, predictions)
    references = [[target] if isinstance(target, str) else list(target) for target in targets]
    tokenizer = rouge_words.tokenizer_for([text for of_target in references for text in of_target])
    scorer = metric_packages.optional("rouge_score.rouge_scorer").RougeScorer(["rougeL"], True, tokenizer=tokenizer)
    best, first = 0.0, 0.0
    for of_target, prediction in zip(references, predictions, strict=True):
        scores = [scorer.score(reference, prediction)["rougeL"].fmeasure for reference in of_target]
        best, first = best + max(scores), first + scores[0]
    return {"rougeL": 100 * best / len(targets), "rougeL_one_reference": 100 * first / len(targets)}


@registering.once(TaskRegistry)
def register_instruction_task(
    name: str,
    folder: str | os.PathLike[str],
    *,
    vocabulary: Vocabulary | str | os.PathLike[str],
    tasks: str | Mapping[str, Sequence[str]] = "default",
    num_positive: int = 2,
    num_negative: int = 0,
    max_instances: int | None = 100,
    max_eval_instances: int | None = 100,
    shuffle_buffer_size: int = 4096,
    hint: str = "",
) -> Task:
    """Registers all tasks of a folder as one task, which is measured by ROUGE-L (`rouge_of_references`).

    A task of the folder comes as often as it has instances, `max_instances` of them at most. Nothing is read.
    Registering a name again with the same arguments is harmless.

    Args:
      folder, tasks, max_instances, max_eval_instances, hint: see `InstructionSource`.
      vocabulary, shuffle_buffer_size: see `register_supervised_task`.
      num_positive, num_negative: see `Instructions`; with 0 and 0 the model has the definition alone.

    Raises:
      ValueError: if the name is taken by a task with other arguments; for a negative number.
    """
    source = InstructionSource(
        os.fspath(folder), tasks=tasks, max_instances=max_instances, max_eval_instances=max_eval_instances, hint=hint
    )
    dataset = SupervisedDataset(Instructions(num_positive, num_negative), metric_fns=[rouge_of_references])
    return register_supervised_task(
        name, dataset, vocabulary=vocabulary, data_files=source, shuffle_buffer_size=shuffle_buffer_size
    )


@registering.once(MixtureRegistry)
def register_instruction_mixture(
    name: str,
    folder: str | os.PathLike[str],
    *,
    vocabulary: Vocabulary | str | os.PathLike[str],
    tasks: str | Mapping[str, Sequence[str]] = "default",
    temperature: float = 1.0,
    maximum: float | None = None,
    **arguments: Any,
) -> Mixture:
    """Registers each training task of a folder as `<name>_<task>`, and their mixture, at rates of their instances.

    Reads which files there are; their instances are counted when the mixture is used. With `max_instances=None` and a
    `maximum` a large task is read whole in time, and comes no more often than one of `maximum` instances. The tasks
    have the split "train" alone: `register_instruction_task` is for evaluation.

    Args:
      temperature, maximum: see `mixtures.mixing_rate`; sizes are numbers of instances.
      arguments: further ones of `register_instruction_task`.

    Raises:
      FileNotFoundError: if the folder, or a task of the lists, is missing.
      ValueError: as `register_instruction_task`; for a temperature or maximum that is not positive.
    """
    mixtures.mixing_rate(1, temperature, maximum)
    stems = InstructionSource(os.fspath(folder), tasks=tasks, hint=arguments.get("hint", "")).task_names("train")
    rate = functools.partial(_rate, temperature, maximum)
    rates = []
    for stem in stems:
        task = f"{name}_{_NOT_IN_NAMES.sub('_', stem)}"
        of_one = {"train": [stem]}
        register_instruction_task(task, folder, vocabulary=vocabulary, tasks=of_one, **arguments)
        rates.append((task, rate))
    return MixtureRegistry.add(name, rates)


def _rate(temperature: float, maximum: float | None, task: Task) -> float:
    return mixtures.mixing_rate(task.source.count_documents("train"), temperature, maximum)
