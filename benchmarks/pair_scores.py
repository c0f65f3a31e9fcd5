"""Which kind of score tells right sentences from wrong ones best, what it costs, and how it compares with a plain loop.

    python -m benchmarks.pair_scores pairs runs/moods/stories/validation.csv pairs.jsonl
    python -m benchmarks.pair_scores score runs/moods/pretrained runs/moods/export pairs.jsonl \
        --vocabulary runs/moods/vocab/spiece.model

The first makes pairs of the stories of `limba.addons.examples.moods`, whose rules are known. The second scores them by
each kind (docs/scores.md) and prints accuracies, cpu-seconds, and the ratio to transformers' class of an export, which
reads the same rows one by one. The two take turns in one process, in float32. A decoder has no export: give "-".
"""

import argparse
import csv
import dataclasses
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from limba.addons.examples import moods
from limba.addons.pairs import model_forms, pair_formats, pair_metrics, pair_scores, pairs_tasks, scored_rows
from limba.addons.pairs.pair_columns import PairColumns
from limba.addons.pairs.scored_rows import ScoredRow
from limba.addons.pairs.scorer import Scorer
from limba.addons.pairs.text_reader import TextReader
from limba.checkpoints import checkpointing
from limba.models import DecoderOnlyModel, EncoderDecoderModel, EncoderOnlyModel
from limba.network import decoder_only, t5
from limba.network.encoders import encoder
from limba.partitioning import meshes
from limba.tasks import vocabularies
from limba.tasks.registry.steps import bind
from limba.tasks.vocabularies import sentencepiece_models

# ------------------------------------------------------- pairs ------------------------------------------------------

_EVENTS = [event for events in moods._EVENTS.values() for event in events]


def _wrong(kind: str, story: str, rng: random.Random) -> str | None:
    """A story with a mistake of a kind, or None where it has no place for one."""
    names = [(found.start(), found.end()) for found in re.finditer("|".join(moods._NAMES), story)]
    if kind in ("second name", "first name"):
        if len(names) != 2:
            return None
        begin, end = names[kind == "second name"]
        return story[:begin] + rng.choice([x for x in moods._NAMES if x != story[begin:end]]) + story[end:]
    if kind == "but or and":
        given = next((x for x in ("but", "and") if f", {x} then" in story), None)
        return given and story.replace(f", {given} then", f", {'and' if given == 'but' else 'but'} then")
    event = rng.choice([x for x in _EVENTS if x in story])
    words = event.split()
    if kind == "object":
        other = rng.choice(_EVENTS).split()[-1]
        made = " ".join([*words[:-1], other])
        return None if made in _EVENTS else story.replace(event, made)
    assert kind == "missing word"
    place = rng.randrange(len(words) - 1)
    made = " ".join(words[:place] + words[place + 1 :])
    return None if made in _EVENTS else story.replace(event, made)


def make_pairs(stories: str, out: str, most: int) -> None:
    """Writes pairs of a csv file of stories, `most` of each kind of mistake."""
    with Path(stories).open(newline="", encoding="utf-8") as file:
        texts = [row["story"] for row in csv.DictReader(file)]
    with Path(out).open("w", encoding="utf-8") as file:
        for kind in ("first name", "second name", "but or and", "object", "missing word"):
            rng = random.Random(kind)
            found = ((text, _wrong(kind, text, rng)) for text in texts)
            pairs = [{"good": right, "bad": wrong, "phenomenon": kind} for right, wrong in found if wrong][:most]
            file.writelines(json.dumps(pair) + "\n" for pair in pairs)
            print(f"{kind}: {len(pairs)}")


# ------------------------------------------------------- sides ------------------------------------------------------

Rows = list[list[ScoredRow]]


def _open(run: str, vocabulary_file: str) -> tuple[Any, Any]:
    """The model of a run, in float32, and its parameters."""
    if vocabulary_file.endswith(".json"):
        vocabulary: Any = vocabularies.TokenizerVocabulary(vocabulary_file)
    else:
        vocabulary = sentencepiece_models.open_vocabulary(vocabulary_file)
    path = str(checkpointing.checkpoint_path(run, checkpointing.checkpoint_steps(run)[-1]))
    info = checkpointing.load_run_info(path)
    fields = info["network"] | {"dtype": "float32"}
    params, network = checkpointing.load_params(path), info["network_class"]
    if network == "TransformerConfig":
        known = {field.name for field in dataclasses.fields(decoder_only.TransformerConfig) if field.init}
        config = decoder_only.TransformerConfig(**{name: x for name, x in fields.items() if name in known})
        module = decoder_only.DecoderWrapper(config)
        return DecoderOnlyModel(module, vocabulary, None), params
    if network == "EncoderConfig":
        return EncoderOnlyModel(encoder.MaskedLanguageModel(encoder.EncoderConfig(**fields)), vocabulary, None), params
    return EncoderDecoderModel(t5.Transformer(t5.T5Config(**fields)), vocabulary, vocabulary, None), params


def _plain_loop(folder: str) -> Callable[[Rows], list[float]]:
    """Scores rows one by one with transformers' class of a folder."""
    import torch
    import transformers

    torch.set_flush_denormal(True)
    torch.set_num_threads(1)  # A row at a time of a small model is slower with more: its threads wait for each other.
    architecture = json.loads((Path(folder) / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, architecture).from_pretrained(folder).eval()

    @torch.no_grad()
    def score(texts: Rows) -> list[float]:
        scores = []
        for rows in texts:
            total = 0.0
            for row in rows:
                targets, inputs = torch.tensor(row.targets), torch.tensor([row.inputs])
                if row.positions:
                    logits = model(input_ids=inputs).logits[0, row.positions]
                else:
                    logits = model(input_ids=inputs, labels=targets[None]).logits[0]
                found = torch.log_softmax(logits, -1)[torch.arange(len(targets)), targets]
                total += float(found @ torch.tensor(row.weights, dtype=found.dtype))
            scores.append(total)
        return scores

    return score


def _sentences(model: Any, file: str, kind: str) -> Callable[[int, int], Iterator[Any]]:
    """What makes the rows of the sentences of some pairs of a file, as `limba eval --pairs` does."""
    form = model_forms.form_of(model)
    format_ = getattr(pair_formats, form)()
    columns = PairColumns("good", "bad", "phenomenon")
    task = pairs_tasks.make_pairs_task("pairs", {"pairs": file}, model.input_vocabulary, format_, columns=columns)
    step = bind(task.preprocessors[0], task.output_features, None)
    maker = scored_rows.row_maker(form, TextReader(model.input_vocabulary, format_).ids)
    documents = [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]

    def rows(begin: int, end: int) -> Iterator[Any]:
        read = step.row_reader()
        for document in documents[begin:end]:
            yield from pair_scores.sentence_rows(maker, kind, read(document, "a row"))

    return rows


def _accuracies(scores: np.ndarray, tokens: np.ndarray, file: str) -> dict[str, float]:
    phenomena = [json.loads(line)["phenomenon"] for line in Path(file).read_text("utf-8").splitlines()]
    targets = [
        pair_metrics.ScoredSentence(i // 2, i % 2 == 0, phenomena[i // 2], int(n), "") for i, n in enumerate(tokens)
    ]
    return dict(pair_metrics.pair_accuracy(targets, scores.tolist()))


def _timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    result = run()
    return result, time.perf_counter() - began, time.process_time() - cpu


def score(
    run: str, export: str, file: str, vocabulary: str, rounds: int, block: int, batch_size: int, kinds: list[str]
) -> None:
    """Prints a line for each kind, as JSON."""
    model, params = _open(run, vocabulary)
    theirs = None if export == "-" else _plain_loop(export)
    scorer = Scorer(
        model, meshes.PjitPartitioner(num_partitions=1), batch_size=32, longest=model_forms.longest_row(model)
    )
    count = len(Path(file).read_text("utf-8").splitlines())
    for kind in kinds:
        rows = _sentences(model, file, kind)
        once = lambda rows=rows: scorer.score(params, rows(0, count), 2 * count)  # noqa: E731
        (scores, tokens, _), _, _ = _timed(once)  # It compiles.
        line: dict[str, Any] = {"kind": kind, **{x: round(v, 1) for x, v in _accuracies(scores, tokens, file).items()}}
        if theirs is not None:
            theirs([list(of_sentence) for of_sentence in rows(0, 2)])  # Its first calls are slower.
        ours, ratios, cpu_ratios = [], [], []
        for number in range(rounds):
            _, wall, cpu = _timed(once)
            ours.append(1000 * cpu / count)
            if theirs is None:
                continue
            begin = number * block % count
            part = [list(of_sentence) for of_sentence in rows(begin, begin + block)]
            found, their_wall, their_cpu = _timed(lambda part=part: theirs(part))
            assert np.abs(found - scores[2 * begin : 2 * (begin + block)]).max() < 1e-3, "other scores"
            scale = count / (len(part) / 2)
            ratios.append(their_wall * scale / wall)
            cpu_ratios.append(their_cpu * scale / cpu)
        line["cpu_seconds_a_thousand"] = [round(x, 2) for x in ours]
        for name, found in (("wall_ratio", ratios), ("cpu_ratio", cpu_ratios)):
            if found:
                line[name] = [round(x, 1) for x in (statistics.median(found), min(found), max(found))]
        print(json.dumps(line), flush=True)


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("pairs")
    making.add_argument("stories")
    making.add_argument("out")
    making.add_argument("--most", type=int, default=200, help="pairs of each kind of mistake")
    scoring = commands.add_parser("score")
    for name in ("run", "export", "file"):
        scoring.add_argument(name)
    scoring.add_argument("--vocabulary", required=True)
    scoring.add_argument("--rounds", type=int, default=3)
    scoring.add_argument("--block", type=int, default=50, help="pairs that the plain loop scores in a round")
    scoring.add_argument("--batch_size", type=int, default=32, help="rows that Limba scores together")
    scoring.add_argument("--kinds", nargs="+", default=["words", "whole", "continuation"])
    flags = vars(parser.parse_args())
    command = flags.pop("command")
    if command == "pairs":
        make_pairs(**flags)
    else:
        jax.config.update("jax_platforms", "cpu")
        score(**flags)


if __name__ == "__main__":
    main()
