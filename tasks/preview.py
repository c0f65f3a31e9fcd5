"""Shows what a task feeds to a model: a few examples as text, and how full the rows are.

limba preview my_recipe.gin                    # the recipe's task, with its lengths
limba preview runs/mine                        # that of a run
limba preview my_task --module my_tasks
limba preview my_recipe.gin --words            # counts the words of the whole split, for a budget of BabyLM
limba preview my_recipe.gin --words 10000000   # and fails if there are more
"""

import argparse
import itertools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limba.data import contract
from limba.files import named_flags, os_errors
from limba.gin_config import closed_list, run_folders
from limba.inference import blanks
from limba.tasks.objectives import sentence_pairs
from limba.tasks.pipeline import task_batches
from limba.tasks.pipeline.feature_lengths import without_length
from limba.tasks.pretraining import denoising
from limba.tasks.registry import get_subtasks, providers
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.vocabularies import LabelVocabulary, MultiLabelVocabulary, NumberVocabulary, without_tensorflow

_OF_LABELS, _OF_NUMBERS = "EncoderClassificationFeatureConverter", "EncoderRegressionFeatureConverter"
# Words between blanks that a model of BabyLM's tracks may be trained on.
_BUDGETS = (10_000_000, 100_000_000)
_PAIRS = {sentence_pairs.FOLLOWS: "B follows A", sentence_pairs.DOES_NOT_FOLLOW: "B does not follow A"}


def feature_lengths(task: Any, inputs_length: int, targets_length: int | None) -> dict[str, int]:
    """The lengths asked for; without a targets length, the one that the task's objective computes."""
    steps = [step for sub in get_subtasks(task) for step in sub.preprocessors]
    computed = [step.objective.lengths(inputs_length) for step in steps if isinstance(step, denoising.Denoise)]
    if targets_length is None and converter_of(task) in (_OF_LABELS, _OF_NUMBERS):
        of_targets = without_tensorflow(task.output_features["targets"].vocabulary)
        of_row = len(of_targets.labels) if isinstance(of_targets, MultiLabelVocabulary | NumberVocabulary) else 1
        targets_length = inputs_length if any(getattr(step, "labels_tokens", False) for step in steps) else of_row
    if targets_length is None:
        if not computed:
            raise ValueError(
                f"{task.name!r} has no objective that computes its targets' length; give --targets_length."
            )
        targets_length = max(lengths["targets"] for lengths in computed)
    # Other features of the targets, such as their places, are as long.
    given = {"inputs": inputs_length, "pair_start": 1, "pair_labels": 1}
    needed = without_length(get_subtasks(task)[0], {})
    if _has_inputs(task) and "inputs" not in needed:
        # Steps read the length of inputs that no example needs to have: T5's own tasks say required=False of them.
        needed.append("inputs")
    return {name: given.get(name, targets_length) for name in needed}


def _has_inputs(task: Any) -> bool:
    return "inputs" in task.output_features


def converter_of(task: Any) -> str:
    """The feature converter of the model that the task is for."""
    if not _has_inputs(task):
        return "LMFeatureConverter"
    if "target_positions" in task.output_features:
        return "MaskedLanguageModelFeatureConverter"
    of_targets = without_tensorflow(task.output_features["targets"].vocabulary)
    if isinstance(of_targets, NumberVocabulary):
        return _OF_NUMBERS
    return _OF_LABELS if isinstance(of_targets, LabelVocabulary) else "EncDecFeatureConverter"


def main(argv: list[str] | None = None) -> None:
    parser = named_flags.Parser(prog="limba preview", description=__doc__.partition("\n")[0])
    parser.add_argument("task", nargs="+", metavar="TASK", help="a registered task or mixture, a run, or gin files")
    parser.add_argument("--module", help="the module that registers it, such as my_tasks")
    parser.add_argument("--split", default="train")
    parser.add_argument("--num", type=int, default=3, help="examples to show (3)")
    parser.add_argument("--inputs_length", type=int, help="that of the gin files, else 512")
    parser.add_argument("--targets_length", type=int, help="that of the gin files, else computed from the objective")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--words",
        type=int,
        nargs="?",
        const=0,
        metavar="N",
        help="count the words of all documents of the split, and stop; fail if there are more than N",
    )
    words = [*map(_gin_of_run, sys.argv[1:] if argv is None else argv)]
    reads_gin = any(word.endswith(".gin") or word.startswith("--gin") for word in words)
    if reads_gin:
        words = _add_gin_flags(parser, words)
    args = parser.parse_intermixed_args(words)
    if args.words is not None and args.words < 0:
        parser.error(f"--words is {args.words}; it is a number of words, such as 10000000, or alone.")
    try:
        closed_list.give_flags([args.module] if args.module else [])
        if reads_gin:
            _take_from_gin(args)
        if len(args.task) > 1:
            parser.error(f"give one task, not {' and '.join(args.task)}.")
        (args.task,) = args.task
        preview(args)
    except BrokenPipeError:  # `| head`: `limba` ends without a word.
        raise
    except (ValueError, OSError, RuntimeError) as error:  # A shard that stays broken is a RuntimeError.
        sys.exit(f"error: {os_errors.describe(error) or error}")


def _gin_of_run(word: str) -> str:
    """The configuration of a run's folder; another word is itself."""
    file = Path(word) / "config.gin"
    if not file.is_file():
        return word
    run_folders.read_run(word)
    return str(file)


def _add_gin_flags(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    from limba import command_line  # imports JAX

    command_line.add_gin_flags(parser.add_argument_group("gin and files"))
    return command_line.rewrite_gin_flags(words)


def _take_from_gin(args: argparse.Namespace) -> None:
    """Replaces gin files in `task` by the name that they have; module and lengths that are not given are theirs too."""
    from limba import command_line  # imports JAX
    from limba.gin_config import gin_files

    command_line.take_gin_flags(args)
    files = [*args.gin_file, *(word for word in args.task if word.endswith(".gin"))]
    gin_files.parse_gin_flags(files, args.gin_bindings, args.gin_search_paths)
    args.module = args.module or gin_files.value_of("%MIXTURE_OR_TASK_MODULE")
    lengths = gin_files.value_of("%TASK_FEATURE_LENGTHS")
    if args.inputs_length is None and isinstance(lengths, Mapping):
        args.inputs_length, args.targets_length = lengths.get("inputs"), args.targets_length or lengths.get("targets")
    name = gin_files.value_of("%MIXTURE_OR_TASK_NAME")
    args.task = [word for word in args.task if not word.endswith(".gin")] or [name]
    if not isinstance(args.task[0], str):
        raise ValueError(f"{', '.join(files)}: no task is named; add --gin.MIXTURE_OR_TASK_NAME=\"'my_task'\".")
    print(f"--- {args.task[0]}, split {args.split}")


def word_count(task: Any, split: str, most: int = 0) -> str:
    """A sentence about the words between blanks of a split, each document once, beside the budgets of BabyLM.

    Args:
      most: a budget; 0 is none.

    Raises:
      ValueError: for a task that reads no corpus of texts, or has a source of SeqIO's; for more words than the budget.
    """
    documents = words = 0
    for sub in get_subtasks(task):
        columns = [step.text_column for step in sub.preprocessors if isinstance(step, denoising.Denoise)]
        if not columns or not isinstance(sub.source, ShardedSource):
            raise ValueError(f"--words counts the texts of a pre-training task of Limba's, and {sub.name!r} is none.")
        for _, _, table in sub.source.numbered_tables(split):
            documents += len(table)
            words += sum(len(str(text).split()) for text in table.column(columns[0]).to_pylist() if text is not None)
    if most and words > most:
        raise ValueError(
            f"Split {split} has {words:,} words in {documents:,} documents, {words - most:,} more than --words {most}: "
            "take fewer files, or cut the corpus with the key `words` of `limba corpus`."
        )
    of_budgets = ", ".join(f"{words / budget:.1%} of {budget:,}" for budget in ((most,) if most else _BUDGETS))
    return f"split {split}: {words:,} words in {documents:,} documents, {of_budgets}"


def preview(args: argparse.Namespace) -> None:
    try:
        task = providers.find_provider(args.task, args.module)
    except ValueError:
        if not args.module and Path(args.task).is_dir():
            from limba.gin_config import messages

            raise ValueError(messages.missing_file(args.task)) from None
        raise
    if args.words is not None:
        print(f"--- {word_count(task, args.split, args.words)}")
        return
    lengths = feature_lengths(task, args.inputs_length or 512, args.targets_length)
    config = contract.DatasetConfig(args.task, lengths, args.split, 1, seed=args.seed, use_memory_cache=False)
    converter = converter_of(task)
    # Unshuffled and finite, so that the fill is that of the corpus and not of a buffer.
    sets = task_batches.get_eval_batches(config, converter)
    tasks = [name for name in sets if name != task.name or len(sets) == 1]  # without the mixture of them
    batches = [batch for name in tasks for batch in itertools.islice(sets[name], 500)]
    if not batches:
        raise ValueError(
            f"Split {args.split!r} of {args.task!r} has no examples: its documents are blank, or its preprocessors "
            "drop all of them."
        )
    for number, batch in enumerate(batches[: args.num]):
        for name, key in (("inputs", "encoder_input_tokens"), ("targets", "decoder_target_tokens")):
            if key not in batch:
                continue
            vocabulary, tokens = task.output_features[name].vocabulary, batch[key][0]
            if converter == _OF_LABELS and name == "targets":
                tokens = tokens + batch["decoder_loss_weights"][0]  # the ids of labels, which begin with 1
            if converter == _OF_NUMBERS and name == "targets":
                tokens = batch["decoder_target_values"][0].view(np.int32)
            print(f"--- example {number}, {name}: {np.count_nonzero(tokens)} of {len(tokens)} tokens")
            print(blanks.row_text(vocabulary, tokens))
            print(" ".join(map(str, tokens[:16])), "…")
        if "pair_labels" in batch:
            print("--- pair:", _PAIRS[int(batch["pair_labels"][0, 0])])
    keys = {"inputs": "encoder_input_tokens", "targets": "decoder_loss_weights"}
    fill = {name: np.mean([x[key] != 0 for x in batches]) for name, key in keys.items() if key in batches[0]}
    shares = ", ".join(f"{name} {share:.1%}" for name, share in fill.items())
    print(f"--- fill of the first {len(batches)} examples: {shares}")


if __name__ == "__main__":
    main()
