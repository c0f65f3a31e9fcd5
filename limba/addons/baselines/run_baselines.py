"""The n-grams of a run's training texts, counted once and kept in the run, and what they predict of its evaluation."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax

from limba.data.contract import DatasetConfig
from limba.files import json_text, storage, untrusted_json
from limba.files.storage import AnyPath
from limba.inference import tasks_door
from limba.models import BaseTransformerModel
from limba.reports import json_lines
from limba.training.baselines import NgramBaselines

logger = logging.getLogger(__name__)

NAME = "baselines.json"
Baselines = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclasses.dataclass
class RunBaselines:
    """The baselines of one run.

    Attributes:
      model_dir: where they are kept.
      train_config, eval_config: of the run.
      opens: the functions that open the streams of both.
    """

    settings: NgramBaselines
    model: BaseTransformerModel
    model_dir: AnyPath
    train_config: DatasetConfig
    eval_config: DatasetConfig | None
    eval_steps: int | None
    opens: tuple[Callable[..., Any] | None, Callable[..., Any] | None]

    def __post_init__(self) -> None:
        of_training, of_evaluation = self.opens
        is_ours = tasks_door.is_own(of_training) and tasks_door.is_own(
            of_evaluation, tasks_door.get_training_eval_datasets
        )
        vocabularies = [getattr(self.model, f"{side}_vocabulary", None) for side in ("input", "output")]
        has_one = vocabularies[0] is not None and vocabularies[0] == vocabularies[1]
        self._are_wanted = self.eval_config is not None and is_ours and has_one
        self._made: Baselines | None = None

    def of_task(
        self, task: str, step: int, say: Callable[[str], None], check: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """As of `limba.training.baselines.RunBaselines`."""
        if not self._are_wanted or jax.process_index() != 0:
            return {}
        if step < self.settings.first_step:
            return {}
        if self._made is None:
            self._made = self._read()
        if self._made is None:
            try:
                self._made = self._count(say, check)
            except (OSError, ValueError, LookupError, MemoryError) as error:
                self._made = {}
                logger.warning(
                    "There are no n-grams to compare with: %s. train.baselines = None does not count them.", error
                )
        return {f"{name}/{key}": x for name, found in self._made.get(task, {}).items() for key, x in found.items()}

    @property
    def _facts(self) -> dict[str, Any]:
        """What the baselines depend on; those of other facts are counted again."""
        evaluation = self.eval_config
        assert evaluation is not None
        return {
            "train": self._facts_of(self.train_config),
            "evaluation": [*self._facts_of(evaluation), evaluation.batch_size, evaluation.seed, self.eval_steps],
            "pieces": self.model.output_vocabulary.vocab_size,
            "most_tokens": self.settings.most_tokens,
        }

    @staticmethod
    def _facts_of(config: DatasetConfig) -> list[Any]:
        lengths = dict(config.task_feature_lengths or {})
        return [config.name, config.split, config.module, config.use_cached, config.pack, lengths]

    def _read(self) -> Baselines | None:
        path = self.model_dir / NAME
        try:
            kept = untrusted_json.parse_object(storage.read_bytes(path), NAME) if path.exists() else {}
        except (OSError, ValueError):
            return None  # Damaged: it is made again.
        return kept["baselines"] if kept.get("facts") == self._facts and _are_baselines(kept.get("baselines")) else None

    def _count(self, say: Callable[[str], None], check: Callable[[], None]) -> Baselines:
        from limba.addons.baselines import predicted_targets
        from limba.tasks.pipeline import corpus_ngrams

        assert self.eval_config is not None
        say("counting n-grams of the training split, for comparison")
        vocabulary, converter = self.model.output_vocabulary, self.model.FEATURE_CONVERTER_CLS
        counts = corpus_ngrams.count(self.train_config, vocabulary, converter, self.settings.most_tokens, check)
        made = predicted_targets.predict(counts, self.eval_config, vocabulary, converter, self.eval_steps, check)
        content = {"facts": self._facts, "counted_tokens": counts.num_tokens, "baselines": made}
        storage.replace_text(self.model_dir / NAME, json_text.dumps(content, indent=2) + "\n")
        return made


def _are_baselines(kept: Any) -> bool:
    """Whether a value of a file is numbers by task, predictor and name."""
    for _ in range(2):
        if not isinstance(kept, dict) or not all(isinstance(found, dict) for found in kept.values()):
            return False
        kept = {f"{outer} {name}": x for outer, found in kept.items() for name, x in found.items()}
    return all(map(json_lines.is_number, kept.values()))
