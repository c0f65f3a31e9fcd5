"""What a run of `limba run` does: the request, complete, with all that was looked up for it, once.

The gin file is written from it (`gin_text`), and what comes after the training reads it (`results`).
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons.run.keys.request import Request
from limba.files.local_paths import local_path

# Examples in the shuffle buffers of a task, where an epoch has as many.
BUFFER = 4096


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Where the documents or rows are, as `masked_text.open_source` and `script_task.open_source` take it.

    Attributes:
      name: of the task.
      has_validation, has_test: whether it has these splits.
      class_names: the texts of numbers by column, where the card of a folder says them.
    """

    name: str
    files: Mapping[str, Sequence[str]] | None = None
    dataset: str | None = None
    dataset_config: str | None = None
    splits: Mapping[str, str] | None = None
    has_validation: bool = False
    has_test: bool = False
    class_names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Counted:
    """Training examples of an epoch.

    Attributes:
      number: None if they were not counted.
      is_exact: and no estimate.
      buffer: examples in the shuffle buffers: one of several epochs would mix them. None if it is not known whether an
        epoch has fewer than `BUFFER`.
      drops_last: whether the last, partial batch of an epoch is no step, as of T5's masked spans, whose script is one
        of Flax; else the next epoch fills it up.
    """

    number: int | None = None
    is_exact: bool = True
    buffer: int | None = None
    drops_last: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run does. All of it is JSON: worker 0 makes it, for all workers (`as_json`).

    Attributes:
      keys: the request, with what the model, the data and an earlier run say where no key does.
      work: the folder of the files that are no results.
      named: it as the gin file names it.
      gin_file: where the gin file is written.
      examples: of an epoch of training.
      devices: of all workers.
      is_encoder: whether the network is an encoder and no T5.
      dropout_rate, attention_dropout_rate, vocab_size: of the network.
      has_weights: whether the model to begin with is an initial checkpoint.
      labels, head: those of an encoder with labels, and the fields of its network that the head has.
      shared_modules: of that head, which begin with modules of the initial checkpoint that have other names.
      frame: of an encoder's documents, that of `objectives.MaskedLM`.
      held: lines about what the files of the run hold now (`given_files`).
    """

    keys: Request
    work: Path
    named: Path
    gin_file: Path
    corpus: Corpus
    examples: Counted
    devices: int
    is_encoder: bool = False
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    vocab_size: int = 0
    has_weights: bool = False
    labels: Sequence[str] = ()
    head: Mapping[str, Any] | None = None
    shared_modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    frame: tuple[int, int] = (1, 1)
    held: str = ""

    @property
    def out(self) -> Path:
        """OUTPUT_DIR."""
        return local_path(self.keys.output_dir)

    @property
    def rows(self) -> int:
        """Of one update on all devices."""
        return self.keys.per_device_train_batch_size * self.devices * self.keys.gradient_accumulation_steps

    @property
    def eval_rows(self) -> int:
        """Of a batch of an evaluation on all devices."""
        return self.keys.per_device_eval_batch_size * self.devices

    @functools.cached_property
    def steps(self) -> int:
        """Updates."""
        if self.examples.number is None or self.keys.max_steps >= 0:
            return max(self.keys.max_steps, 0)
        return math.ceil(self.steps_of_epoch * self.keys.num_train_epochs)

    @property
    def how_many(self) -> str:
        """How the number of updates came about."""
        if self.examples.number is None or self.keys.max_steps >= 0:
            return "max_steps"
        about = "" if self.examples.is_exact else "about "
        return f"{self.keys.num_train_epochs:g} epochs of {about}{self.examples.number:,} examples"

    @property
    def steps_of_epoch(self) -> int:
        """Updates in an epoch, at least one, as the scripts count them; the examples are counted."""
        examples, one_pass = self.examples, self.keys.per_device_train_batch_size * self.devices
        assert examples.number is not None
        dropped = examples.number % one_pass if self.keys.dataloader_drop_last else 0
        batches = (examples.number - dropped) / self.rows
        return max(1, math.floor(batches) if examples.drops_last else math.ceil(batches))

    @property
    def train_samples(self) -> int | None:
        """Examples of an epoch; None where they were not counted exactly."""
        return self.examples.number if self.examples.is_exact else None

    def epoch(self, step: int) -> dict[str, float]:
        """The epoch at a step, where it is known."""
        return {} if self.train_samples is None else {"epoch": step / self.steps_of_epoch}

    def period(self, what: str) -> int:
        """Steps between checkpoints ("save"), evaluations ("eval") or lines of training metrics ("logging").

        Raises:
          ValueError: if it is an epoch, whose examples are not known.
        """
        strategy = getattr(self.keys, f"{what}_strategy")
        if strategy == "no" or not self.keys.do_train:  # The last step has all three in any case.
            return max(self.steps, 1)
        if strategy == "best":  # The checkpointer keeps those of the best evaluations.
            return self.period("eval")
        return self.steps_of_epoch_for(what) if strategy == "epoch" else self.keys.steps_between(what, self.steps)

    def steps_of_epoch_for(self, what: str) -> int:
        """`steps_of_epoch`. Raises ValueError, which names the key of `what`, if its examples are not known."""
        if self.examples.number is None:
            raise ValueError(
                f"{what}_strategy is 'epoch', and the examples of an epoch are not known: with max_steps only files on "
                f"this machine are counted, because a data set elsewhere would be read to its end. Write {what}_steps, "
                "or num_train_epochs in place of max_steps."
            )
        return self.steps_of_epoch

    def feature_lengths(self, targets: int) -> dict[str, int]:
        """Of rows with answers, those of a T5 with so many tokens."""
        return self.keys.row_answers.feature_lengths(self.keys.inputs_length, targets)

    def of_dataset(self, role: str) -> dict[str, Any]:
        """The bindings of a data set that is evaluated or answered: its targets have the length of the answers."""
        values: dict[str, Any] = {"batch_size": self.eval_rows}
        if self.keys.is_finetuning:
            values["task_feature_lengths"] = self.feature_lengths(self.keys.answer_length)
        return {f"{role}/data.DatasetConfig.{name}": value for name, value in values.items()}

    def as_json(self, request: Request) -> dict[str, Any]:
        """The plan for other workers, which have the same request, with its secrets: of the keys what was found."""
        found = {name: value for name, value in vars(self.keys).items() if value != getattr(request, name)}
        paths = {name: str(getattr(self, name)) for name in ("work", "named", "gin_file")}
        return {**dataclasses.asdict(self), "keys": found, **paths}

    @classmethod
    def of_json(cls, fields: Mapping[str, Any], request: Request) -> "Plan":
        """The plan that worker 0 made for a request, as `as_json` has it."""
        parts = {
            "keys": dataclasses.replace(request, **fields["keys"]),
            **{name: Path(fields[name]) for name in ("work", "named", "gin_file")},
            "corpus": Corpus(**fields["corpus"]),
            "examples": Counted(**fields["examples"]),
        }
        return cls(**{**fields, **parts})
