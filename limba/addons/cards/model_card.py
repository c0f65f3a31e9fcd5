"""The model card of an export: README.md with the metadata that the hub reads, and what is known of the run.

Nothing is said that is not known: a bare checkpoint of T5X has a short card. Losses are nats per target token without
the z-loss, as the training prints them.
"""

import dataclasses
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons.cards import card_metadata
from limba.addons.cards.card_metadata import NO_METADATA, Metadata
from limba.checkpoint_files import run_folder
from limba.files import redaction, storage
from limba.files.output_folder import REPORT
from limba.files.storage import AnyPath
from limba.gin_config.recipe import Recipe
from limba.reports import average_lines, loss_picture, text_figures, writers
from limba.reports.markdown import code, plain, table

PICTURE = "loss.png"

# T5X's metric of the training, which has the z-loss in it, and the metrics of an evaluation.
_LOSS = "loss_per_nonpadding_target_token"
_NATS, _UNIGRAM = "nats_per_target_token", "unigram_nats_per_target_token"
_OF_TEXT = "nats_per_text_token_renormalized"
# The losses of an evaluation, and their titles in a card; the headline first.
LOSSES = {_OF_TEXT: "loss, nats per token of text", _NATS: "loss, nats per target token"}

_FROM_COUNTS = (
    "Training began from counts of pairs of tokens in its texts: the first embeddings, output matrix and part of the "
    "attention predicted as these counts do, and were not learned from random values."
)

Line = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Description:
    """What a card says of a kind of model.

    Attributes:
      title: "A T5 1.1 encoder-decoder".
      tag: the family's name.
      pipeline: the hub's name of what the model does.
      task: the hub's name of a task below the pipeline, which is also a tag; "" is the pipeline itself.
      use: the section on the use.
      network: rows of the table.
      accuracy: what the metric of that name measures.
      datasets: of the example, on the hub.
    """

    title: str
    tag: str
    pipeline: str
    use: str
    network: tuple[tuple[str, str], ...]
    accuracy: str
    task: str = ""
    datasets: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of an exported model; empty values are unknown and not mentioned.

    Attributes:
      name: of the model, the card's title.
      run: `run.json`.
      gin: the run's operative config.gin.
      metrics: lines of the run's metrics.jsonl.
      comparisons: what the check found, by the weights it read: `what`, `value`, `allowed`, `note` and `holds` of each.
      metadata: what the user says for the card.
      average: the model is the average of the parameters that the run kept.
    """

    name: str
    description: Description
    num_parameters: int
    step: int
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    gin: str = ""
    metrics: Sequence[Line] = ()
    comparisons: Mapping[str, Sequence[Line]] = dataclasses.field(default_factory=dict)
    metadata: Metadata = NO_METADATA
    average: bool = False


def run_record(checkpoint: AnyPath) -> tuple[str, list[dict]]:
    """The config.gin and the lines of metrics.jsonl of `MODEL_DIR/checkpoint_<step>`, empty where there are none.

    A checkpoint that was copied elsewhere has its own config.gin and no metrics.
    """
    file = run_folder.find_gin(checkpoint)
    gin = "" if file is None else storage.read_bytes(file).decode()
    try:
        Recipe.parse(gin, str(file))
    except ValueError as error:
        print(f"warning: {error}. The card says less of the training.", file=sys.stderr)
        gin = ""
    return gin, writers.read_metrics(checkpoint.parent)


def write(folder: Path, facts: Facts) -> None:
    """Writes README.md into an export, and `loss.png` if the losses are known and can be drawn."""
    of_model = average_lines.of_average if facts.average else average_lines.of_parameters
    metrics = [line for line in of_model(facts.metrics) if line["step"] <= facts.step]
    curves = list(_curves(metrics, Recipe.parse(facts.gin).macros.get("LOSS_NORMALIZING_FACTOR")))
    picture = None
    if len({step for _, curve in curves for step, _ in curve}) > 1:
        picture = loss_picture.draw(curves, "steps", "nats per target token")
    if picture is not None:
        (folder / PICTURE).write_bytes(picture)
    trained = "trained and converted" if "seeds" in facts.run else "converted"
    sections = [
        _front_matter(facts, metrics),
        f"# {plain(facts.name)}",
        f"{facts.description.title} of {facts.num_parameters:,} parameters, {trained} with Limba.",
        *average_sentences(facts.average, facts.run, facts.gin),
        facts.description.use,
    ]
    if results := list(results_of(metrics, facts.description.accuracy)):
        sections.append(f"## Results\n\n{table(results, ('data', 'metric', 'value', 'step'))}")
    if picture is not None:
        sections.append(f"![Nats per target token against steps]({PICTURE})")
    if training := list(_training(facts, metrics)):
        sections.append(f"## Training\n\n{table(training)}")
        if _began_from_counts(Recipe.parse(facts.gin)):
            sections.append(_FROM_COUNTS)
    sections += [f"## Network\n\n{table(facts.description.network)}", f"## Check\n\n{_check(facts)}"]
    (folder / "README.md").write_text(redaction.redact("\n\n".join(sections)) + "\n", "utf-8")


def _front_matter(facts: Facts, metrics: Sequence[Line]) -> str:
    described = facts.description
    datasets = tuple(dict.fromkeys([*described.datasets, *facts.metadata.datasets]))
    by_task: dict[str, list[dict[str, Any]]] = {}
    for dataset, line in _last_evaluations(metrics).items():
        for name, title, type_ in _measures(dataset, line, described.accuracy):
            rounded = float(f"{line[name]:.6g}")
            by_task.setdefault(dataset.partition("/")[2], []).append({"type": type_, "value": rounded, "name": title})
    # The hub's name of the data, where it is clear which data set a task is of.
    known = datasets[0] if len(by_task) == len(datasets) == 1 else ""
    kind = described.task or described.pipeline
    results = [card_metadata.result(task, known or task, measured, kind) for task, measured in by_task.items()]
    tags = [described.tag, "limba", *([described.task] * bool(described.task)), *(["lora"] * ("lora" in facts.run))]
    metadata = dataclasses.replace(facts.metadata, datasets=datasets)
    return card_metadata.front_matter(metadata, tags, results, facts.name, described.pipeline)


# ------------------------------------------------------- facts -------------------------------------------------------


def _training(facts: Facts, metrics: Sequence[Line]) -> Iterator[tuple[str, str]]:
    run, recipe = facts.run, Recipe.parse(facts.gin)
    macros = recipe.macros
    initial = run.get("initial_step")
    total = run.get("total_steps")
    if facts.step:
        began = f", begun at {initial:,}" if initial else ""
        yield "step", f"{facts.step:,}" + (f" of {total:,}" if total else "") + began
    batch_size = run.get("batch_size", macros.get("BATCH_SIZE"))
    lengths = run.get("feature_lengths") or macros.get("TASK_FEATURE_LENGTHS") or {}
    if batch_size and lengths and initial is not None and facts.step > initial:
        seen = (facts.step - initial) * batch_size * sum(lengths.values())
        name = "non_padding_fraction/overall"
        filled = [line[name] for line in metrics if line["dataset"] == "train" and _is_number(line, name)]
        share = f", {sum(filled) / len(filled):.1%} of them not padding" if filled else ""
        since = f" since step {initial:,}" if initial else ""
        yield f"tokens seen{since}", f"{seen:,} positions of inputs and targets{share}"
    if task := run.get("task", macros.get("MIXTURE_OR_TASK_NAME")):
        yield "task or mixture", code(str(task))
    if batch_size:
        yield "batch", f"{batch_size:,} sequences"
    if lengths:
        yield "lengths", ", ".join(f"{plain(name)} {length:,}" for name, length in lengths.items())
    if lora := run.get("lora"):
        merged = f"rank {lora['rank']}, alpha {lora['alpha']:g}; merged into the kernels of these weights"
        yield "LoRA", merged
    if optimizer := _optimizer(recipe):
        yield "optimizer", code(optimizer)
    if (dropout := run.get("network", {}).get("dropout_rate")) is not None:
        yield "dropout", f"{dropout:g}"
    if initial_checkpoint := macros.get("INITIAL_CHECKPOINT_PATH"):
        yield "began from", code(_place(str(initial_checkpoint)))
    if converted_from := run.get("converted_from"):
        yield "converted from", code(_place(str(converted_from)))
    if ignored := run.get("ignored_config_keys"):
        yield "keys of its files taken for without effect", ", ".join(map(code, ignored))
    if seeds := run.get("seeds"):
        yield "seeds", ", ".join(f"{plain(name)} {seed}" for name, seed in seeds.items())
    if version := run.get("limba_version"):
        commit = run.get("commits", {}).get("limba")
        yield "Limba", plain(version) + (f", commit {code(commit)}" if commit else "")
    if commit := run.get("commits", {}).get("project"):
        yield "project", f"commit {code(commit)}"


def _began_from_counts(recipe: Recipe) -> bool:
    """Whether the run's first parameters were made by `limba.training.from_counts`; a checkpoint would replace them."""
    functions = _references(recipe.parameters("train").get("initial_values_fn", ""))
    return "StartFromCounts" in functions and not recipe.macros.get("INITIAL_CHECKPOINT_PATH")


def _optimizer(recipe: Recipe) -> str:
    """The name of the run's optimizer; of those inside, where it is a chain or trains a part of the parameters."""
    names = _references(recipe.macros.get("OPTIMIZER", ""))
    inner = recipe.parameters(names[0]) if names else {}
    return ", ".join(_references(inner.get("optimizer") or inner.get("transformations") or "") or names)


def _references(value: Any) -> list[str]:
    """`adamw` of `@optimizers.adamw()`."""
    return [name.rpartition(".")[2] for name in re.findall(r"@([\w./]+)", str(value))]


def _place(path: str) -> str:
    """A bucket's path, or the end of one on the machine that wrote it, which says little and may say too much."""
    return "/".join(Path(path).parts[-2:]) if path.startswith(("/", "~")) else path


def _curves(metrics: Sequence[Line], factor: Any) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Training, and validation as the mean over tasks where each was measured."""
    training = [(line["step"], nats) for line in metrics if (nats := _training_nats(line, factor)) is not None]
    if training:
        yield "training", training
    by_task: dict[str, dict[int, float]] = {}
    for line in metrics:
        folder, _, task = line["dataset"].partition("/")
        if folder == "training_eval" and _is_number(line, _NATS):
            by_task.setdefault(task, {})[line["step"]] = line[_NATS]
    if by_task:
        steps = sorted(set.intersection(*(set(losses) for losses in by_task.values())))
        label = "validation" if len(by_task) == 1 else f"validation, mean of {len(by_task)} tasks"
        if steps:
            yield label, [(step, sum(losses[step] for losses in by_task.values()) / len(by_task)) for step in steps]


def _training_nats(line: Line, factor: Any) -> float | None:
    """The loss of a line of the training in nats per target token, without its z-loss; None where it is not known.

    `factor` is LOSS_NORMALIZING_FACTOR, by which the run divided its losses: a number, None, or how many there are.
    """
    names = ("z_loss", "cross_ent_loss", _LOSS)
    if line["dataset"] != "train" or not all(_is_number(line, name) for name in names) or not line["cross_ent_loss"]:
        return None
    if isinstance(factor, str):
        return line["cross_ent_loss"] if factor.endswith("NUM_REAL_TARGET_TOKENS") else None
    return line[_LOSS] * (factor or 1) * line["cross_ent_loss"] / (line["cross_ent_loss"] + line["z_loss"])


def _last_evaluations(metrics: Sequence[Line]) -> dict[str, Line]:
    """The last line of each evaluation, by `training_eval/<task>` and `inference_eval/<task>`."""
    return {line["dataset"]: line for line in metrics if line["dataset"] != "train"}


def _measures(dataset: str, line: Line, accuracy: str) -> Iterator[tuple[str, str, str]]:
    """Of a line of an evaluation the metrics of the model: the name in it, a title, and the hub's type."""
    if dataset.startswith("training_eval/"):
        shown = [
            *((name, title, "loss") for name, title in LOSSES.items()),
            ("accuracy", accuracy, "accuracy"),
        ]
    else:
        names = [name for name in line if name not in ("step", "dataset") and not name.startswith("timing/")]
        shown = [(name, name.removeprefix("eval/"), name.rpartition("/")[2]) for name in names]
    yield from ((name, title, type_) for name, title, type_ in shown if _is_number(line, name))


def results_of(metrics: Sequence[Line], accuracy: str) -> Iterator[tuple[str, str, str, str]]:
    """The last validation loss with its baseline, and whatever else was measured on validation data."""
    firsts = {line["dataset"]: line for line in reversed(metrics)}
    for dataset, line in _last_evaluations(metrics).items():
        for name, title, _ in _measures(dataset, line, accuracy):
            value = f"{line[name]:.4f}" if name == _NATS else f"{line[name]:.4g}"
            if name == _NATS and _is_number(line, _UNIGRAM):
                value += f"; the best constant (unigram) predictor has {line[_UNIGRAM]:.4f}"
            if name == _OF_TEXT:
                value = text_figures.in_words(line, firsts[dataset] if firsts[dataset] is not line else None)
            yield code(dataset.partition("/")[2]), plain(title), value, f"{line['step']:,}"


def _is_number(line: Line, name: str) -> bool:
    value = line.get(name)
    return isinstance(value, int | float) and math.isfinite(value)


def _check(facts: Facts) -> str:
    """One line: what was compared with the checkpoint, and the file that has all of it."""
    if not facts.comparisons:
        return "This export was not checked."
    rows = [row for rows in facts.comparisons.values() for row in rows]
    # "of 52 tensors, in float32"; an export with a difference is not kept.
    note = next((row["note"] for row in rows if row["what"] == "parameters that differ"), "")
    tensors = re.match(r"of (\d+) tensors, in (\w+)$", note)
    found = [f"all {int(tensors[1]):,} tensors are equal in {tensors[2]}"] if tensors else []
    logits = [row for row in rows if row["what"].startswith("logits, B in ") and row["value"] is not None]
    if logits:
        libraries = dict.fromkeys(row["what"].removeprefix("logits, B in ") for row in logits)
        largest = max(row["value"] for row in logits)
        found.append(f"logits differ by at most {largest:.1e} in {' and '.join(map(plain, libraries))}")
    return f"Read back and compared with the checkpoint: {'; '.join(found)} ([{REPORT}]({REPORT}))."


def average_sentences(average: bool, run: Mapping[str, Any], gin: str) -> list[str]:
    """A paragraph, or none.

    Args:
      average: the model is the moving average that the run kept.
      run: `run.json`, where `limba average` writes which checkpoints it took.
      gin: the run's config.gin.
    """
    if average:
        decay = Recipe.parse(gin).parameters("AveragedOptimizer").get("decay")
        of = f" (decay {decay})" if isinstance(decay, float) else ""
        return [f"Its parameters are an exponential moving average{of} of those that were trained."]
    steps = run.get("mean_of", {}).get("steps") if isinstance(run.get("mean_of"), dict) else None
    if isinstance(steps, list) and all(isinstance(step, int) for step in steps):
        shown = ", ".join(f"{step:,}" for step in steps)
        return [f"Its parameters are the mean of {len(steps)} checkpoints of the training, those of the steps {shown}."]
    return []
