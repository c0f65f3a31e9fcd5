"""Checks of a task: its vocabulary, objective and lengths, its source, and its first examples."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from limba.addons import table
from limba.addons.plan.data import lint_documents, lint_held_out, lint_letters
from limba.data import contract
from limba.data.lint_findings import Finding, refused, unreadable
from limba.tasks import objectives
from limba.tasks.pipeline import feature_lengths, predictions, streams, task_batches
from limba.tasks.pipeline.positions import ReadPlan
from limba.tasks.pretraining import denoising
from limba.tasks.registry import Task, rows
from limba.tasks.registry.providers import find_provider, tasks_with_split
from limba.tasks.registry.steps import Step
from limba.tasks.registry.tasks import is_mixture
from limba.tasks.sources.corpora import HuggingFaceSource
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.supervised import row_preprocessor
from limba.tasks.vocabularies import ByteVocabulary, sentencepiece_models, without_tensorflow

# Findings after which there are no examples to look at: of every task, and of those that check their sentinels.
_UNUSABLE = ("source", "no_cache", "vocabulary")
_UNUSABLE_DENOISED = (*_UNUSABLE, "sentinel_collision", "too_many_sentinels")
# Examples that are looked at.
_NUM_EXAMPLES = 32
# Epochs of a corpus with at most this many examples, which are counted in some seconds.
_MANY_EPOCHS, _SMALL_CORPUS = 1000, 4096
# ByT5 masks spans of 20 bytes; below half of that a span is a part of a word.
_SHORT_SPAN_OF_BYTES = 10
# 0xF5 to 0xFF are in no text: Google's ByT5 takes them for sentinels.
_BYTES_NOT_IN_UTF8 = 11
# By the names of T5's own preprocessors.
_OBJECTIVES = {
    "span_corruption": objectives.SpanCorruption,
    "iid_denoising": objectives.IidDenoising,
    "prefix_lm": objectives.PrefixLM,
}


@dataclasses.dataclass(frozen=True)
class Purpose:
    """What a data set is read for.

    Attributes:
      role: "train", "train_eval" (teacher-forced) or "infer_eval" (predictions).
      steps: batches of an evaluation, where None means the whole split; or of the training, where None is not known.
      flops: of a row, for its numbers of inputs and targets; None if the network does not give them.
      embedding_rows: of the model; None if the network does not give them.
    """

    role: Literal["train", "train_eval", "infer_eval"]
    steps: int | None = None
    flops: Callable[[int, int], float] | None = None
    embedding_rows: int | None = None


def check(config: contract.DatasetConfig, feature_converter: Any, purpose: Purpose) -> Iterator[Finding]:
    """Findings about a data set; errors do not stop the other checks."""
    try:
        provider = find_provider(config.mixture_or_task_name, config.module)
        kind = task_batches.kind_of_stream(config, provider, feature_converter)
    except ValueError as error:
        yield refused("task", str(error))
        return
    try:
        tasks = tasks_with_split(provider, config.split)
    except (ValueError, OSError, RuntimeError) as error:  # The hub has the list of splits.
        yield refused("source", f"{config.name!r}: {error}")
        return
    if not tasks:
        has = ", ".join(map(repr, sorted(provider.splits)))
        yield refused("split", f"{config.name!r} has no split {config.split!r}; it has {has}.")
        return
    if config.task_feature_lengths is None and purpose.role != "infer_eval":
        yield refused("target_length", f"DatasetConfig.task_feature_lengths of {config.name!r} is None.")
        return
    found = [] if purpose.role == "infer_eval" else list(_check_lengths(tasks, config, purpose))
    yield from found
    whole = not any(finding.severity == "error" for finding in found)
    if purpose.role == "infer_eval":
        try:
            predictions.check_metrics(config)
        except ValueError as error:
            yield refused("metrics_package", str(error))
    for task in tasks:
        found = list(_check_source(task, config, purpose))
        if purpose.role == "train":
            found += _check_vocabulary(task, config, purpose)
        if not any(finding.name in _UNUSABLE for finding in found):
            found += _check_rows(task, config)
        yield from found
        if purpose.role == "train" and not any(finding.name in _UNUSABLE for finding in found):
            yield from lint_letters.check(task, config.split)
            yield from lint_documents.check(task, config.split)
        unusable = _UNUSABLE_DENOISED if _find_denoise(task) else _UNUSABLE
        if purpose.role == "train" and whole and not any(finding.name in unusable for finding in found):
            yield from _check_examples(kind(config, provider, tasks, feature_converter, None), task)
            # Examples are counted in any order: without a shuffle buffer, which is filled before the first one comes.
            yield from _check_epochs(kind(config, provider, tasks, feature_converter, 1), task, purpose.steps)


# -------------------------------------------------- vocabulary and objective -----------------------------------------


def find_objective(task: Any) -> Any:
    """The objective of a pre-training task, ours or in T5's own words; None for another task."""
    if denoise := _find_denoise(task):
        return denoise.objective
    for step in task.preprocessors:
        keywords = dict(step.keywords) if isinstance(step, functools.partial) else {}
        function = step.func if isinstance(step, functools.partial) else step
        if objective := _OBJECTIVES.get(getattr(function, "__name__", "")):
            names = {field.name for field in dataclasses.fields(objective)}
            return objective(**{name: value for name, value in keywords.items() if name in names})
    return None


def _find_denoise(task: Any) -> denoising.Denoise | None:
    return next((step for step in task.preprocessors if isinstance(step, denoising.Denoise)), None)


def _check_vocabulary(task: Any, config: contract.DatasetConfig, purpose: Purpose) -> Iterator[Finding]:
    features = task.output_features
    vocabulary = features["targets" if "targets" in features else next(iter(features))].vocabulary
    objective = find_objective(task)
    inputs_length = (config.task_feature_lengths or {}).get("inputs")
    try:
        sentencepiece_models.check_file(vocabulary)
    except (ValueError, OSError) as error:
        yield refused("vocabulary", f"Task {task.name!r}: {error}")
        return
    if purpose.embedding_rows is not None and vocabulary.vocab_size > purpose.embedding_rows:
        yield Finding(
            "embedding_rows",
            "error",
            f"Task {task.name!r} makes ids up to {vocabulary.vocab_size - 1}, and the embedding has "
            f"{purpose.embedding_rows} rows (T5Config.vocab_size).",
            "the last ids, the sentinels first of all, share one row without a warning",
            f"Set T5Config.vocab_size to {-(-vocabulary.vocab_size // 128) * 128} or more.",
        )
    for step in task.preprocessors:
        if isinstance(step, Step):
            yield from step.find_missing_letters(vocabulary) or ()
    if objective is None or inputs_length is None:
        return
    num_sentinels = sentencepiece_models.num_sentinels(vocabulary)
    if num_sentinels:
        try:
            if denoise := _find_denoise(task):
                denoise.check(features, config.task_feature_lengths or {})
            else:
                objective.check_sentinels(inputs_length, num_sentinels)
        except ValueError as error:
            cost = "training stops at its start, or real pieces are taken for the missing sentinels"
            yield Finding("too_many_sentinels", "error", f"Task {task.name!r}: {error}", cost)
    elif count := _num_collisions(task, vocabulary, objective, inputs_length):
        ids = range(vocabulary.vocab_size - 1, vocabulary.vocab_size - 1 - min(count, 3), -1)
        last = ", ".join(repr(vocabulary.decode([i]) or i) for i in ids)
        yield Finding(
            "sentinel_collision",
            "error",
            f"Task {task.name!r} opens its vocabulary with extra_ids={vocabulary.extra_ids}, and the vocabulary has no "
            f"sentinels of its own: its last {count} pieces, {last} …, are taken for sentinels.",
            f"{count} real pieces mean masked spans too, in pre-training and ever after",
            "Open it with extra_ids=100, in the task and for the model (seqio.SentencePieceVocabulary.extra_ids), and "
            "give T5Config.vocab_size 100 rows more, rounded up to a multiple of 128.",
        )
    span = getattr(objective, "mean_noise_span_length", None)
    if isinstance(without_tensorflow(vocabulary), ByteVocabulary) and span is not None and span < _SHORT_SPAN_OF_BYTES:
        yield Finding(
            "byte_span",
            "warning",
            f"Task {task.name!r} masks spans of {span:g} tokens on average, and its tokens are bytes.",
            "a span is less than a word and can be guessed from its neighbours; the model learns spelling",
            "Set mean_noise_span_length to 20, as ByT5 has it.",
        )


def _num_collisions(task: Any, vocabulary: Any, objective: Any, inputs_length: int) -> int:
    """How many of the last ids would be sentinels and something else too, in a vocabulary without sentinels."""
    needed = inputs_length
    # The fewest with which the objective's own check is content.
    for needed in range(inputs_length + 1):
        try:
            objective.check_sentinels(inputs_length, needed)
            break
        except ValueError:
            continue
    unused = isinstance(without_tensorflow(vocabulary), ByteVocabulary) and not _find_denoise(task)
    return 0 if unused and needed <= _BYTES_NOT_IN_UTF8 else needed


def _check_lengths(tasks: Sequence[Any], config: contract.DatasetConfig, purpose: Purpose) -> Iterator[Finding]:
    """The lengths against the objectives: those of a mixture share rows, so its longest targets count."""
    lengths = config.task_feature_lengths or {}
    for task in tasks:
        if missing := feature_lengths.without_length(task, lengths):
            problem = f"TASK_FEATURE_LENGTHS {dict(lengths)} has no length for {missing} of {task.name!r}."
            yield refused("target_length", problem)
            return
    if purpose.role != "train" or not {"inputs", "targets"} <= lengths.keys():
        return
    found = [_targets_needed(task, lengths) for task in tasks]
    if None in found:
        return
    inputs, given, needed = lengths["inputs"], lengths["targets"], max(filter(None, found))
    if given < needed:
        yield Finding(
            "target_length",
            "error",
            f"TASK_FEATURE_LENGTHS gives {given} targets; {inputs} inputs of {config.name!r} have {needed}.",
            f"an example loses its last targets, up to {needed - given} of them, or training stops at its start",
            f"Set targets to {needed}.",
        )
    # The tokens of a mode make windows a little shorter.
    elif given - needed >= 0.01 * given:
        cost = f"{(given - needed) / given:.0%} of the decoder's work is on padding"
        if purpose.flops is not None:
            more = purpose.flops(inputs, given) / purpose.flops(inputs, needed) - 1
            cost = f"{more:.0%} more FLOPs for the same examples; packing cannot win them back"
        yield Finding(
            "target_length",
            "warning",
            f"TASK_FEATURE_LENGTHS gives {given} targets; {inputs} inputs of {config.name!r} have at most {needed}.",
            cost,
            f"Set targets to {needed}, or TASK_FEATURE_LENGTHS = @objectives.span_corruption_lengths().",
        )


def _targets_needed(task: Any, lengths: Mapping[str, int]) -> int | None:
    """Tokens of a full example's targets; None of a task without an objective."""
    if denoise := _find_denoise(task):
        return denoise.lengths(task.output_features, lengths)["targets"]
    objective = find_objective(task)
    return None if objective is None else objective.lengths(lengths["inputs"])["targets"]


# ------------------------------------------------------- the source --------------------------------------------------


def _check_source(task: Any, config: contract.DatasetConfig, purpose: Purpose) -> Iterator[Finding]:
    if not (isinstance(task, Task) and isinstance(task.source, ShardedSource)):
        of_seqio = table.part("seqio", f"Task {task.name!r}, which has parts of SeqIO's,")
        if not of_seqio.reads_documents(task, config):
            yield from of_seqio.check(task, config, purpose.role, purpose.steps)
            return
    try:
        task.source.check(config.split)
        if purpose.role != "train" and "train" in task.splits and config.split != "train":
            yield from lint_held_out.check(task, config.split)
    except (ValueError, OSError, RuntimeError) as error:
        yield refused("source", f"Task {task.name!r}, split {config.split!r}: {error}")


def _check_rows(task: Any, config: contract.DatasetConfig) -> Iterator[Finding]:
    """What training says of the first rows before it begins, in its words."""
    try:
        for feature in task.output_features.values():
            sentencepiece_models.check_file(feature.vocabulary)
    except (ValueError, OSError):  # It is a finding of the training's own vocabulary.
        return
    try:
        yield from row_preprocessor.find_in_rows(task, config.split, config.task_feature_lengths)
    except (ValueError, OSError, RuntimeError) as error:
        yield refused("source", str(error))


def _check_epochs(stream: streams.Stream, task: Any, steps: int | None) -> Iterator[Finding]:
    """Whether a training sees a small corpus on this machine thousands of times."""
    if steps is None or not isinstance(task.source, HuggingFaceSource):
        return
    mixed = is_mixture(stream.provider)
    rates = {other.name: stream.provider.get_rate(other) if mixed else 1.0 for other in stream.tasks}
    seen = steps * stream.config.batch_size * rates[task.name] / sum(rates.values())
    most = min(seen / _MANY_EPOCHS, _SMALL_CORPUS)
    count = 0
    try:
        for block in stream.examples(task, ReadPlan(seed=0, num_epochs=1)):
            count += rows.num_rows(block)
            if count > most:
                return
    except Exception as error:  # A task of the user's own may raise anything.
        yield unreadable(task, stream.config, error)
        return
    if count:
        yield Finding(
            "many_epochs",
            "warning",
            f"The split {stream.config.split!r} of task {task.name!r} has {count:,} examples of this length, and the "
            f"training reads {seen:,.0f}: {seen / count:,.0f} epochs.",
            "the model learns the corpus by heart",
            f"Give more text, or fewer steps: {max(1, round(steps * 10 * count / seen)):,} are 10 epochs.",
        )


# ------------------------------------------------------ first examples -----------------------------------------------


def _check_examples(stream: streams.Stream, task: Any) -> Iterator[Finding]:
    """Looks at the ends of the first examples; where they cannot be made, at the task's declared features."""
    try:
        blocks = stream.examples(task, ReadPlan(seed=0, num_epochs=1))
        examples = next(streams.rebatch(blocks, _NUM_EXAMPLES), None)
    except Exception as error:  # A task of the user's own may raise anything.
        yield unreadable(task, stream.config, error)
        if find_objective(task) is not None and not _find_denoise(task):
            for name in ("inputs", "targets"):
                if name not in task.output_features or not task.output_features[name].add_eos:
                    yield _missing_eos(task, name, f"Task {task.name!r} appends no end-of-sequence id to its {name}")
        return
    if _find_denoise(task):
        return  # The objective puts EOS where it belongs.
    if examples is None:
        yield refused("source", f"Split {stream.config.split!r} of task {task.name!r} has no examples.")
        return
    for name in ("inputs", "targets"):
        feature = task.output_features.get(name, task.output_features.get("targets"))
        eos_id = feature.vocabulary.eos_id if feature is not None else None
        if name not in examples or eos_id is None or eos_id < 0:
            continue
        ends = [tokens[tokens != 0][-2:].tolist() for tokens in examples[name]]
        without = sum(end[-1:] != [eos_id] for end in ends)
        doubled = sum(end == [eos_id, eos_id] for end in ends)
        of_first = f"of the first {len(ends)} examples of task {task.name!r}"
        if without:
            problem = f"{without} {of_first} have no end-of-sequence id ({eos_id}) behind their {name}"
            yield _missing_eos(task, name, problem)
        if find_objective(task) is None:  # A corpus may have rare characters in every document.
            yield from _check_unknown(task, name, feature.vocabulary, examples[name])
        if doubled:
            yield Finding(
                "double_eos",
                "warning",
                f"{doubled} {of_first} end with two end-of-sequence ids behind their {name}.",
                "one token of each row is wasted, and the model learns to answer with two",
                "Append EOS once: in the text or by seqio.preprocessors.append_eos, not both.",
            )


def _check_unknown(task: Any, name: str, vocabulary: Any, examples: Sequence[Any]) -> Iterator[Finding]:
    """Whether most examples have text that the vocabulary cannot write, as that of a template."""
    unknown = vocabulary.unk_id
    found = [tokens for tokens in examples if unknown is not None and unknown >= 0 and (tokens == unknown).any()]
    if 2 * len(found) > len(examples):
        shown = vocabulary.decode([token for token in found[0].tolist() if token])
        yield Finding(
            "unknown_pieces",
            "warning",
            f"{len(found)} of the first {len(examples)} examples of task {task.name!r} have unknown characters (⁇) in "
            f"their {name}: {shown[:100]!r}.",
            "the model neither reads nor writes them",
            "Write the task's own words (prefix, template, labels) in characters of the vocabulary, or build one with "
            "--byte_fallback or from text that has them.",
        )


def _missing_eos(task: Any, name: str, problem: str) -> Finding:
    undeclared = "" if name in task.output_features else f": it declares no output feature {name!r}"
    return Finding(
        "missing_eos",
        "error",
        f"{problem}{undeclared}.",
        "the encoder never sees the id that ends every input of T5's checkpoints and of the converted tokenizer"
        if name == "inputs"
        else "the model never learns to stop",
        "Declare output_features for inputs and targets with add_eos=True, and end the preprocessors with "
        "seqio.preprocessors.append_eos_after_trim.",
    )
