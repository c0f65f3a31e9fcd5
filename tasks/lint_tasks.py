"""What would hurt in a task: its vocabulary, objective and lengths, its source, and its first examples."""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import seqio
import tensorflow as tf

from limba import data
from limba.findings import Finding, refused
from tasks import diacritics_task, objectives, preprocessors, sources, streams, vocabularies
from tasks.providers import converter_class, find_provider, tasks_with_split

# What leaves no examples to look at: of every task, and of those that check their sentinels.
_UNUSABLE = ("source", "no_cache", "vocabulary")
_UNUSABLE_DENOISED = (*_UNUSABLE, "sentinel_collision", "too_many_sentinels")
# Examples that are made and looked at.
_NUM_EXAMPLES = 32
# How much of a split is read to see whether it ends: documents, and seconds.
_MAX_DOCUMENTS, _MAX_SECONDS = 20_000, 15.0
# Documents that have to come again, one after the other, for a stream to have begun anew.
_REPEATED = 3
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
_KNOWN_TO_END = (sources.ShardedSource, seqio.TfdsDataSource, seqio.FileDataSource)


@dataclasses.dataclass(frozen=True)
class Use:
    """What a data set is read for.

    Attributes:
      role: "train", "train_eval" (teacher-forced) or "infer_eval" (predictions).
      steps: batches of an evaluation; None means the whole split.
      flops: of a row with so many inputs and targets; None if the network does not say.
      embedding_rows: of the model; None if the network does not say.
    """

    role: Literal["train", "train_eval", "infer_eval"]
    steps: int | None = None
    flops: Callable[[int, int], float] | None = None
    embedding_rows: int | None = None


def check(config: data.DatasetConfig, feature_converter: Any, use: Use) -> Iterator[Finding]:
    """What would hurt in a data set; nothing that it finds stops it."""
    try:
        provider = find_provider(config.mixture_or_task_name, config.module)
        converter = converter_class(feature_converter)
    except ValueError as error:
        yield refused("task", str(error))
        return
    try:
        tasks = tasks_with_split(provider, config.split)
    except (ValueError, OSError, RuntimeError) as error:  # The hub says which splits a data set has.
        yield refused("source", f"{config.name!r}: {error}")
        return
    if not tasks:
        has = ", ".join(map(repr, sorted(provider.splits)))
        yield refused("split", f"{config.name!r} has no split {config.split!r}; it has {has}.")
        return
    if config.task_feature_lengths is None and use.role != "infer_eval":
        yield refused("target_length", f"DatasetConfig.task_feature_lengths of {config.name!r} is None.")
        return
    found = [] if use.role == "infer_eval" else list(_check_lengths(tasks, config, use))
    yield from found
    whole = not any(finding.severity == "error" for finding in found)
    for task in tasks:
        found = list(_check_source(task, config, use))
        if use.role == "train":
            found += _check_vocabulary(task, config, use)
        yield from found
        unusable = _UNUSABLE_DENOISED if _is_denoised(task) else _UNUSABLE
        if use.role == "train" and whole and not any(finding.name in unusable for finding in found):
            yield from _check_examples(streams.Stream(config, provider, tasks, converter, None), task)


# -------------------------------------------------- vocabulary and objective -----------------------------------------


def find_objective(task: seqio.Task) -> Any:
    """The objective of a pre-training task, of `tasks.preprocessors` or in T5's own words; None for another task."""
    for step in task.preprocessors:
        if isinstance(step, preprocessors.Denoise):
            return step.objective
        keywords = dict(step.keywords) if isinstance(step, functools.partial) else {}
        function = step.func if isinstance(step, functools.partial) else step
        if objective := _OBJECTIVES.get(getattr(function, "__name__", "")):
            names = {field.name for field in dataclasses.fields(objective)}
            return objective(**{name: value for name, value in keywords.items() if name in names})
    return None


def _check_vocabulary(task: seqio.Task, config: data.DatasetConfig, use: Use) -> Iterator[Finding]:
    features = task.output_features
    vocabulary = features["targets" if "targets" in features else next(iter(features))].vocabulary
    objective = find_objective(task)
    inputs_length = (config.task_feature_lengths or {}).get("inputs")
    try:
        vocabularies.check_file(vocabulary)
    except (ValueError, OSError) as error:
        yield refused("vocabulary", f"Task {task.name!r}: {error}")
        return
    if use.embedding_rows is not None and vocabulary.vocab_size > use.embedding_rows:
        yield Finding(
            "embedding_rows",
            "error",
            f"Task {task.name!r} makes ids up to {vocabulary.vocab_size - 1}, and the embedding has "
            f"{use.embedding_rows} rows (T5Config.vocab_size).",
            "the last ids, the sentinels first of all, share one row without a word",
            f"Set T5Config.vocab_size to {-(-vocabulary.vocab_size // 128) * 128} or more.",
        )
    for step in task.preprocessors:
        if isinstance(step, diacritics_task.RemoveDiacritics):
            yield from step.find_missing_letters(vocabulary)
    if objective is None or inputs_length is None:
        return
    num_sentinels = vocabularies.num_sentinels(vocabulary)
    if num_sentinels:
        try:
            _check_sentinels(task, objective, config.task_feature_lengths or {}, num_sentinels)
        except ValueError as error:
            cost = "training stops at its start, or real pieces are taken for the sentinels that lack"
            yield Finding("too_many_sentinels", "error", f"Task {task.name!r}: {error}", cost)
    elif count := _num_collisions(task, vocabulary, objective, inputs_length):
        yield _sentinel_collision(task, vocabulary, count)
    span = getattr(objective, "mean_noise_span_length", None)
    if isinstance(vocabulary, seqio.ByteVocabulary) and span is not None and span < _SHORT_SPAN_OF_BYTES:
        yield Finding(
            "byte_span",
            "warning",
            f"Task {task.name!r} masks spans of {span:g} tokens on average, and its tokens are bytes.",
            "a span is less than a word and can be guessed from its neighbours; the model learns spelling",
            "Set mean_noise_span_length to 20, as ByT5 has it.",
        )


def _check_sentinels(task: seqio.Task, objective: Any, lengths: Mapping[str, int], num_sentinels: int) -> None:
    for step in task.preprocessors:
        if isinstance(step, preprocessors.Denoise):
            step.check(task.output_features, lengths)
            return
    objective.check_sentinels(lengths["inputs"], num_sentinels)


def _num_collisions(task: seqio.Task, vocabulary: seqio.Vocabulary, objective: Any, inputs_length: int) -> int:
    """How many of the last ids would be sentinels and something else too, in a vocabulary without sentinels."""
    needed = _num_sentinels_needed(objective, inputs_length)
    unused = isinstance(vocabulary, seqio.ByteVocabulary) and not _is_denoised(task)
    return 0 if unused and needed <= _BYTES_NOT_IN_UTF8 else needed


def _sentinel_collision(task: seqio.Task, vocabulary: seqio.Vocabulary, count: int) -> Finding:
    ids = range(vocabulary.vocab_size - 1, vocabulary.vocab_size - 1 - min(count, 3), -1)
    last = [repr(vocabulary.decode([i]) or i) for i in ids]
    return Finding(
        "sentinel_collision",
        "error",
        f"Task {task.name!r} opens its vocabulary with extra_ids={vocabulary.extra_ids}, and the vocabulary has no "
        f"sentinels of its own: its last {count} pieces, {', '.join(last)} …, are taken for sentinels.",
        f"{count} real pieces mean masked spans too, in pre-training and ever after",
        "Open it with extra_ids=100, in the task and for the model (seqio.SentencePieceVocabulary.extra_ids), and give "
        "T5Config.vocab_size 100 rows more, rounded up to a multiple of 128.",
    )


def _num_sentinels_needed(objective: Any, inputs_length: int) -> int:
    """The fewest with which the objective's own check is content."""
    for count in range(inputs_length + 1):
        try:
            objective.check_sentinels(inputs_length, count)
        except ValueError:
            continue
        return count
    return inputs_length


def _check_lengths(tasks: Sequence[seqio.Task], config: data.DatasetConfig, use: Use) -> Iterator[Finding]:
    """The lengths against the objectives: those of a mixture share rows, so its longest targets count."""
    lengths = config.task_feature_lengths or {}
    for task in tasks:
        if missing := [name for name in task.output_features if name not in lengths]:
            yield refused(
                "target_length", f"TASK_FEATURE_LENGTHS {dict(lengths)} has no length for {missing} of {task.name!r}."
            )
            return
    if use.role != "train" or not {"inputs", "targets"} <= lengths.keys():
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
        if use.flops is not None:
            more = use.flops(inputs, given) / use.flops(inputs, needed) - 1
            cost = f"{more:.0%} more FLOPs for the same examples; packing cannot win them back"
        yield Finding(
            "target_length",
            "warning",
            f"TASK_FEATURE_LENGTHS gives {given} targets; {inputs} inputs of {config.name!r} have at most {needed}.",
            cost,
            f"Set targets to {needed}, or TASK_FEATURE_LENGTHS = @objectives.span_corruption_lengths().",
        )


def _targets_needed(task: seqio.Task, lengths: Mapping[str, int]) -> int | None:
    """Tokens of a full example's targets; None of a task without an objective."""
    for step in task.preprocessors:
        if isinstance(step, preprocessors.Denoise):
            return step.lengths(task.output_features, lengths)["targets"]
    objective = find_objective(task)
    return None if objective is None else objective.lengths(lengths["inputs"])["targets"]


# ------------------------------------------------------- the source --------------------------------------------------


def _check_source(task: seqio.Task, config: data.DatasetConfig, use: Use) -> Iterator[Finding]:
    if streams.reads_cache(task, config):
        try:
            streams.check_cached(task)
        except ValueError as error:
            yield refused("no_cache", str(error))
        return
    if isinstance(task.source, sources.ShardedSource):
        try:
            task.source.check(config.split)
        except (ValueError, OSError, RuntimeError) as error:
            yield refused("source", f"Task {task.name!r}, split {config.split!r}: {error}")
        return
    if use.role == "train":
        yield from _check_shards(task, config)
        yield from _check_generator(task, config)
    elif not isinstance(task.source, _KNOWN_TO_END):
        yield from _check_end(task, config, use)


def _check_shards(task: seqio.Task, config: data.DatasetConfig) -> Iterator[Finding]:
    readers = config.num_readers or data.default_num_readers(config.batch_size)
    shards = streams.num_shards(task, config)
    if shards is not None and shards < readers:
        yield Finding(
            "unshardable_source",
            "warning",
            f"The source of task {task.name!r} has {shards} {'shard' if shards == 1 else 'shards'} for {readers} "
            "readers.",
            f"every host downloads and tokenizes everything and keeps its share: with {readers} hosts {readers} times "
            "the work",
            "Read the corpus with tasks.sources.HuggingFaceSource (docs/data.md), or give it as that many files.",
        )


def _check_generator(task: seqio.Task, config: data.DatasetConfig) -> Iterator[Finding]:
    try:
        dataset = task.source.get_dataset(config.split, shuffle=False, seed=0)
    except Exception as error:  # A source of the user's own may raise anything.
        yield _unreadable(task, config, error)
        return
    if _is_generator(dataset):
        yield Finding(
            "generator_source",
            "warning",
            f"The source of task {task.name!r} is a Python generator, whose place in the data nothing can save.",
            "a restart reads all earlier batches again before it goes on; in T5X it begins at the first document again",
            "Read the corpus with tasks.sources.HuggingFaceSource (docs/data.md).",
        )


def _is_generator(dataset: tf.data.Dataset) -> bool:
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset), external_state_policy=1, strip_device_assignment=True
    )
    return b"GeneratorDataset" in graph.numpy()


def _check_end(task: seqio.Task, config: data.DatasetConfig, use: Use) -> Iterator[Finding]:
    """Reads a split until it ends, begins anew, or is too long to tell."""
    first: list[bytes] = []
    repeated = number = 0
    began = time.monotonic()
    ended, seen = False, "did not end"
    try:
        dataset = task.source.get_dataset(config.split, shuffle=False, seed=0)
        for number, example in enumerate(dataset.as_numpy_iterator()):
            document = b"\0".join(np.asarray(x).tobytes() for x in tf.nest.flatten(example))
            if len(first) < _REPEATED:
                first.append(document)
                continue
            repeated = repeated + 1 if document == first[repeated] else int(document == first[0])
            if repeated == _REPEATED:
                seen = f"began anew after {number + 1 - _REPEATED} documents"
                break
            if number >= _MAX_DOCUMENTS or time.monotonic() - began > _MAX_SECONDS:
                seen = f"did not end within {number + 1} documents"
                break
        else:
            ended = True
    except Exception as error:  # A source of the user's own may raise anything.
        yield _unreadable(task, config, error)
    if ended:
        return
    whole = use.steps is None
    what = f"The split {config.split!r} of task {task.name!r} is not known to end"
    yield Finding(
        "endless_evaluation",
        "error" if whole else "warning",
        f"{what}: when it was read it {seen}." if number else f"{what}: its source is a function of its own.",
        "the first evaluation never ends, and training waits for it"
        if whole
        else f"the {use.steps} batches of every evaluation are all that is ever evaluated, and no loss is of the split",
        "Evaluate a split that ends (tasks.sources.HuggingFaceSource makes one pass)"
        + (", or set train.eval_steps." if whole and use.role == "train_eval" else "."),
    )


def _unreadable(task: seqio.Task, config: data.DatasetConfig, error: Exception) -> Finding:
    # TensorFlow wraps the error of a reading function into its own, with a traceback as text.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = next((line for line in lines if "Error: " in line), lines[0] if lines else "")
    return Finding(
        "source",
        "error",
        f"Split {config.split!r} of task {task.name!r} cannot be read: {reason.rpartition('}} ')[2]}"
        f"{'' if 'Error: ' in reason else f' ({type(error).__name__})'}.",
        "training stops at its first batch, if it is the same where it runs",
        "Mend the source; or look again on a machine that can reach it.",
    )


# ------------------------------------------------------ first examples -----------------------------------------------


def _check_examples(stream: streams.Stream, task: seqio.Task) -> Iterator[Finding]:
    """Looks at the ends of the first examples; where they cannot be made, at what the task declares."""
    try:
        made = stream.examples(task, 0, reader=0, num_readers=1, num_epochs=1)
        examples = list(itertools.islice(made.as_numpy_iterator(), _NUM_EXAMPLES))
    except Exception as error:  # A task of the user's own may raise anything.
        yield _unreadable(task, stream.config, error)
        if find_objective(task) is not None and not _is_denoised(task):
            for name in ("inputs", "targets"):
                if name not in task.output_features or not task.output_features[name].add_eos:
                    yield _missing_eos(task, name, f"Task {task.name!r} appends no end-of-sequence id to its {name}")
        return
    if _is_denoised(task):
        return  # The objective says where EOS stands.
    if not examples:
        yield refused("source", f"Split {stream.config.split!r} of task {task.name!r} has no examples.")
        return
    for name in ("inputs", "targets"):
        feature = task.output_features.get(name, task.output_features.get("targets"))
        eos_id = feature.vocabulary.eos_id if feature is not None else None
        if name not in examples[0] or eos_id is None or eos_id < 0:
            continue
        ends = [example[name][example[name] != 0][-2:].tolist() for example in examples]
        without = sum(end[-1:] != [eos_id] for end in ends)
        doubled = sum(end == [eos_id, eos_id] for end in ends)
        some = f"of the first {len(ends)} examples of task {task.name!r}"
        if without:
            yield _missing_eos(
                task, name, f"{without} {some} have no end-of-sequence id ({eos_id}) behind their {name}"
            )
        if doubled:
            yield Finding(
                "double_eos",
                "warning",
                f"{doubled} {some} end with two end-of-sequence ids behind their {name}.",
                "one token of each row is wasted, and the model learns to answer with two",
                "Append EOS once: in the text or by seqio.preprocessors.append_eos, not both.",
            )


def _is_denoised(task: seqio.Task) -> bool:
    return any(isinstance(step, preprocessors.Denoise) for step in task.preprocessors)


def _missing_eos(task: seqio.Task, name: str, what: str) -> Finding:
    undeclared = "" if name in task.output_features else f": it declares no output feature {name!r}"
    return Finding(
        "missing_eos",
        "error",
        f"{what}{undeclared}.",
        "the encoder never sees what stands behind every input of T5's checkpoints and of the converted tokenizer"
        if name == "inputs"
        else "the model never learns to stop",
        "Declare output_features for inputs and targets with add_eos=True, and end the preprocessors with "
        "seqio.preprocessors.append_eos_after_trim.",
    )
