"""The model card of an export: README.md with the metadata that the hub reads, and what is known of the run.

Nothing is said that is not known: a bare checkpoint of T5X has a short card. The license is left to the user.
"""

import ast
import dataclasses
import html
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from convert.families.family import Family
from convert.hf import loss_picture
from limba.checkpoint_files import run_folder
from limba.machine import storage
from limba.machine.storage import AnyPath
from limba.network.t5 import T5Config
from limba.reports import writers

PICTURE = "loss.png"

# T5X's metric, for training and validation alike; what a model of one's own measures may have another name.
_LOSS = "loss_per_nonpadding_target_token"
_ONE_LINE = re.compile(r"^([A-Z_0-9]+) = (?!\\$)(.+)$", re.MULTILINE)

Line = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of an exported model; empty values are unknown and not mentioned.

    Attributes:
      name: of the model, the card's title.
      vocabulary: as `run.json` describes it.
      formats, dtype: of the weights, "safetensors" and "flax".
      run: `run.json`.
      gin: the run's operative config.gin.
      metrics: lines of the run's metrics.jsonl.
      comparisons: what the check found, by the weights it read: `what`, `value`, `allowed`, `note` and `holds` of each.
    """

    name: str
    family: Family
    network: T5Config
    num_parameters: int
    vocabulary: Mapping[str, Any]
    step: int
    formats: Sequence[str]
    dtype: str
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    gin: str = ""
    metrics: Sequence[Line] = ()
    comparisons: Mapping[str, Sequence[Line]] = dataclasses.field(default_factory=dict)


def run_record(checkpoint: AnyPath) -> tuple[str, list[dict]]:
    """The config.gin and the lines of metrics.jsonl of `MODEL_DIR/checkpoint_<step>`, empty where there are none.

    A checkpoint that was copied elsewhere has its own config.gin and no metrics.
    """
    file = run_folder.find_gin(checkpoint)
    gin = "" if file is None else storage.read_bytes(file).decode()
    return gin, writers.read_metrics(checkpoint.parent)


def write(folder: Path, facts: Facts) -> None:
    """Writes README.md into an export, and `loss.png` if the losses are known and can be drawn."""
    metrics = [line for line in facts.metrics if line["step"] <= facts.step]
    # T5X's metric divides a loss that is a mean already once more.
    loss = "loss" if isinstance(_macros(facts.gin).get("LOSS_NORMALIZING_FACTOR"), str) else _LOSS
    curves = list(_curves(metrics, loss))
    picture = None
    if len({step for _, curve in curves for step, _ in curve}) > 1:
        picture = loss_picture.draw(curves, "steps", "loss per target token")
    if picture is not None:
        (folder / PICTURE).write_bytes(picture)
    trained = "trained and converted" if "seeds" in facts.run else "converted"
    sections = [
        _metadata(facts),
        f"# {_plain(facts.name)}",
        f"A {facts.family.title} encoder-decoder of {facts.num_parameters:,} parameters, {trained} with Limba.",
        _usage(facts),
        f"## Network\n\n{_table(_network(facts))}",
    ]
    if training := list(_training(facts, metrics)):
        sections.append(f"## Training\n\n{_table(training)}")
    if picture is not None:
        sections.append(f"![Loss per target token against steps]({PICTURE})")
    if results := list(_results(metrics, loss)):
        sections.append(f"## Results\n\n{_table(results, ('data', 'metric', 'value', 'step'))}")
    sections.append(f"## Check\n\n{_check(facts)}")
    (folder / "README.md").write_text("\n\n".join(sections) + "\n", "utf-8")


def _metadata(facts: Facts) -> str:
    """YAML; every value is JSON, which is YAML too."""
    return (
        "---\nlibrary_name: transformers\npipeline_tag: text2text-generation\n"
        f"tags: {json.dumps([facts.family.name, 'limba'])}\n"
        "# Before publishing, say here what is not known to the converter (https://huggingface.co/docs/hub/model-cards):\n"
        "# license: apache-2.0\n# language: ro\n# datasets: [owner/name]\n---"
    )


def _usage(facts: Facts) -> str:
    flax = "safetensors" not in facts.formats
    model_class = "FlaxAutoModelForSeq2SeqLM" if flax else "AutoModelForSeq2SeqLM"
    tensors, output = ("np", ".sequences") if flax else ("pt", "")
    needs = "\n\nThese are weights for Flax, which transformers has up to version 4.57." if flax else ""
    return (
        "## Use\n\n```python\n"
        f"from transformers import {model_class}, AutoTokenizer\n\n"
        'folder = "."  # of this file, or the name of its repository\n'
        "tokenizer, model = AutoTokenizer.from_pretrained(folder), "
        f"{model_class}.from_pretrained(folder)\n"
        f'output = model.generate(**tokenizer("…", return_tensors="{tensors}"), max_new_tokens=64){output}\n'
        "print(tokenizer.decode(output[0]))\n"
        f"```{needs}"
    )


# ------------------------------------------------------- facts -------------------------------------------------------


def _network(facts: Facts) -> Iterator[tuple[str, str]]:
    config = facts.network
    yield "layers", f"{config.num_encoder_layers} encoder, {config.num_decoder_layers} decoder"
    yield "width", f"{config.emb_dim}; {config.num_heads} heads of {config.head_dim}; feed-forward {config.mlp_dim}"
    yield "activation", " × ".join(config.mlp_activations)
    yield "output", "the embedding (tied)" if config.logits_via_embedding else "a matrix of its own (untied)"
    yield "stored as", facts.dtype
    vocabulary = facts.vocabulary
    sentinels = f", the last {vocabulary['extra_ids']} of them sentinels" if vocabulary["extra_ids"] else ""
    ids = f"{vocabulary['vocab_size']:,} ids{sentinels}"
    kind = "bytes" if run_folder.is_bytes(vocabulary) else "SentencePiece"
    yield "vocabulary", f"{kind}, {ids}; {config.vocab_size:,} rows of the embedding"


def _training(facts: Facts, metrics: Sequence[Line]) -> Iterator[tuple[str, str]]:
    run, macros = facts.run, _macros(facts.gin)
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
        yield "task or mixture", _code(str(task))
    if batch_size:
        yield "batch", f"{batch_size:,} sequences"
    if lengths:
        yield "lengths", ", ".join(f"{_plain(name)} {length:,}" for name, length in lengths.items())
    if optimizer := macros.get("OPTIMIZER"):
        yield "optimizer", _code(str(optimizer).removeprefix("@").removesuffix("()").rpartition(".")[2])
    if (dropout := run.get("network", {}).get("dropout_rate")) is not None:
        yield "dropout", f"{dropout:g}"
    if initial_checkpoint := macros.get("INITIAL_CHECKPOINT_PATH"):
        yield "began from", _code(_place(str(initial_checkpoint)))
    if converted_from := run.get("converted_from"):
        yield "converted from", _code(_place(str(converted_from)))
    if seeds := run.get("seeds"):
        yield "seeds", ", ".join(f"{_plain(name)} {seed}" for name, seed in seeds.items())
    if version := run.get("limba_version"):
        commit = run.get("commits", {}).get("limba")
        yield "Limba", _plain(version) + (f", commit {_code(commit)}" if commit else "")
    if commit := run.get("commits", {}).get("project"):
        yield "project", f"commit {_code(commit)}"


def _place(path: str) -> str:
    """A bucket's path, or the end of one on the machine that wrote it, which says little and may say too much."""
    return "/".join(Path(path).parts[-2:]) if path.startswith(("/", "~")) else path


def _macros(gin: str) -> dict[str, Any]:
    """Values of the macros that fit on a line; a reference is its text."""
    macros: dict[str, Any] = {}
    for name, text in _ONE_LINE.findall(gin):
        try:
            macros[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            macros[name] = text
    return macros


def _curves(metrics: Sequence[Line], loss: str) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Training, and validation as the mean over tasks where each was measured."""
    training = [(line["step"], line[loss]) for line in metrics if line["dataset"] == "train" and _is_number(line, loss)]
    if training:
        yield "training", training
    by_task: dict[str, dict[int, float]] = {}
    for line in metrics:
        folder, _, task = line["dataset"].partition("/")
        if folder == "training_eval" and _is_number(line, loss):
            by_task.setdefault(task, {})[line["step"]] = line[loss]
    if by_task:
        steps = sorted(set.intersection(*(set(losses) for losses in by_task.values())))
        label = "validation" if len(by_task) == 1 else f"validation, mean of {len(by_task)} tasks"
        if steps:
            yield label, [(step, sum(losses[step] for losses in by_task.values()) / len(by_task)) for step in steps]


def _results(metrics: Sequence[Line], loss: str) -> Iterator[tuple[str, str, str, str]]:
    """The last losses and accuracies, and whatever predictions were measured by."""
    last: dict[str, Line] = {line["dataset"]: line for line in metrics}
    for dataset, line in sorted(last.items(), key=lambda item: item[0] != "train"):
        folder, _, task = dataset.partition("/")
        of_predictions = [name for name in line if name not in ("step", "dataset") and not name.startswith("timing/")]
        for name in of_predictions if folder == "inference_eval" else (loss, "accuracy"):
            if _is_number(line, name):
                metric = {loss: "loss per target token", "accuracy": "accuracy of the next token"}.get(name, name)
                data = "training" if folder == "train" else _code(task)
                yield data, _plain(metric), f"{line[name]:.4g}", f"{line['step']:,}"


def _is_number(line: Line, name: str) -> bool:
    value = line.get(name)
    return isinstance(value, int | float) and math.isfinite(value)


def _check(facts: Facts) -> str:
    if not facts.comparisons:
        return "This export was not checked."
    tables = []
    for format_, rows in facts.comparisons.items():
        lines = []
        for row in rows:
            value = "not compared" if row["value"] is None else f"{row['value']:.3g}"
            lines.append((_plain(row["what"]), value, f"{row['allowed']:.3g}", _plain(row["note"])))
        tables.append(f"Weights in {_plain(format_)}:\n\n{_table(lines, ('compared', 'difference', 'allowed', ''))}")
    return "The files were read back and compared with the checkpoint.\n\n" + "\n\n".join(tables)


# ------------------------------------------------------ markdown -----------------------------------------------------


def _table(rows: Sequence[tuple[str, ...]] | Iterator[tuple[str, ...]], header: tuple[str, ...] = ("", "")) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Text in which nothing is markup."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~$-])", r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


def _code(text: str) -> str:
    """Text between backticks, more of them than it has itself, in a table too."""
    text = " ".join(str(text).split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}".replace("|", r"\|")
