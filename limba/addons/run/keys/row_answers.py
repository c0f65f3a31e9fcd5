"""What rows are answered with, and all that differs by it: a T5's texts; labels, numbers or labels of words."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class RowAnswers:
    """One kind of answers.

    Attributes:
      what: for messages.
      recipe: the file of `gin/runs`.
      task: the function of `limba.addons.run.script_task`.
      network: of `limba.network.encoders.classifier`; "" of a T5.
      max_seq_length: tokens of the inputs where no key says it, as in the scripts.
      loss: its name in the evaluations of given targets.
      targets: the length of the targets where it is always the same; "inputs" is that of the inputs, None that of keys.
      file: of the answers to the test split.
      names: of metrics, those of the scripts by those of `tasks.metrics`, as in `limba.addons.run.script_metrics`.
    """

    what: str
    recipe: str
    task: str
    network: str
    max_seq_length: int
    loss: str
    targets: int | str | None
    file: str
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def feature_lengths(self, inputs: int, targets: int) -> dict[str, int]:
        """TASK_FEATURE_LENGTHS, where a T5's answers have `targets` tokens."""
        if self.targets == "inputs":
            return {"inputs": inputs, "targets": inputs}
        return {"inputs": inputs, "targets": targets if self.targets is None else int(self.targets)}

    def lines(self, predictions: Iterable[Any]) -> list[str]:
        """The lines of `file`, as the scripts write them, but a line break in a text is a blank."""
        if self.network != "SequenceClassifier":
            return [" ".join((x if isinstance(x, str) else " ".join(x)).strip().splitlines()) for x in predictions]
        texts = (f"{float(x):3.3f}" if self.recipe == "regress" else str(x) for x in predictions)
        return ["index\tprediction", *(f"{index}\t{text}" for index, text in enumerate(texts))]


TEXT, LABEL, NUMBER, WORD_LABELS = "text", "label", "number", "word_labels"
_OF_ROWS, _OF_TOKENS = "SequenceClassifier", "TokenClassifier"
_NATS, _RESULTS = "nats_per_target_token", "predict_results.txt"
_OF_TEXTS, _OF_LABELS = {"em": "exact_match"}, {"matthews_corrcoef": "matthews_correlation"}
_CORRELATIONS = {"pearson_corrcoef": "pearson", "spearman_corrcoef": "spearmanr"}
ANSWERS: Mapping[str, RowAnswers] = {
    TEXT: RowAnswers("texts", "finetune", "task", "", 512, _NATS, None, "generated_predictions.txt", _OF_TEXTS),
    LABEL: RowAnswers("labels", "classify", "task", _OF_ROWS, 128, _NATS, 1, _RESULTS, _OF_LABELS),
    NUMBER: RowAnswers("numbers", "regress", "task", _OF_ROWS, 128, "loss", 1, _RESULTS, _CORRELATIONS),
    WORD_LABELS: RowAnswers(
        "labels of words", "classify_tokens", "word_task", _OF_TOKENS, 512, _NATS, "inputs", "predictions.txt"
    ),
}
# The tasks of run_ner.py; other names are tasks of GLUE.
WORD_TASKS = ("ner", "pos", "chunk")
