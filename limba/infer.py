"""`limba infer`: predictions or scores of a checkpoint, for the examples of a task or for lines of text.

    limba infer runs/quickstart/model --input "Return the ___ of the list."
    limba infer runs/quickstart/model --input_file questions.txt --output_file answers.jsonl
    limba infer runs/quickstart/model --validation 5

    limba infer --gin_file=RUN/config.gin --gin_file=gin/runs/infer.gin --gin.CHECKPOINT_PATH="'RUN'" \\
        --gin.INFER_OUTPUT_DIR="'RUN/infer'"

The first two answer lines (see `limba.inference.infer_text`). The third shows the likeliest words of a blank beside the
word that was left out (`limba.inference.likeliest`). The last runs over a task and writes
`INFER_OUTPUT_DIR/<task>-predict.jsonl-00000-of-00001`; an interrupted one resumes where it stopped.
"""

import argparse
import functools
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from tqdm import tqdm

from limba import command_line
from limba.checkpoint_files import run_folder
from limba.checkpoints import checkpointing, run_configuration
from limba.checkpoints.parameters import checkpoint_step, load_model_params, refuse_train_state_initializer
from limba.data.contract import Batch, DatasetConfig
from limba.devices import native_logs
from limba.files import storage, written_files
from limba.files.storage import AnyPath
from limba.gin_config import gin_files
from limba.inference import batch_inference, blanks, decoding_flags, infer_text, input_files, likeliest, tasks_door
from limba.inference.shard_files import MergeFn, ShardFiles, local_folder, merge_chunks_to_file
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner
from limba.workers import distributed

# `(path, (results, auxiliary values), task examples as a tf.data.Dataset, mode, vocabulary)`: predictions or scores,
# one an example, and lists or arrays with an entry an example.
WriteFn = Callable[..., None]


def infer(
    *,
    mode: str,
    model: BaseTransformerModel,
    dataset_cfg: DatasetConfig,
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    partitioner: PjitPartitioner,
    output_dir: str,
    checkpoint_period: int,
    shard_id: int = 0,
    num_shards: int = 1,
    merge_chunked_results: bool = True,
    write_fn: WriteFn | None = None,
    checkpoint_ds_iter: bool = True,
    train_state_initializer_cls: Any = None,
    fallback_init_rng: int | None = None,
    merge_fn: MergeFn = merge_chunks_to_file,
    summarize_config_fn: Callable[..., None] | None = gin_files.summarize_gin_config,
    verify_matching_vocabs_fn: Callable[[DatasetConfig, Any], None] | None = tasks_door.verify_matching_vocabs,
    output_vocab_feature_name: str = "targets",
    file_extension: str = "jsonl",
    keep_aux_as_numpy: bool = False,
    use_orbax: bool = True,
) -> None:
    """Predicts or scores every example of a task, or of each task of a mixture: T5X's `infer_script.infer`.

    Results are in the order of the files, in `<output_dir>/<task>-<mode>.<extension>-<shard>-of-<shards>`. Chunks of
    `checkpoint_period` batches are written to a folder of their own, `tmp-<task>-<mode>…`; an interrupted run resumes
    after the last whole chunk, with the result of an uninterrupted one. A complete shard is not run again.

    Args:
      mode: "predict" (decoded targets), "predict_with_aux" (and scores) or "score" (log likelihood of given targets).
      output_dir, file_extension: of the files; the directory is made if needed, and may be in a bucket.
      shard_id, num_shards: which part of the dataset this call works on, and how many parts there are.
      write_fn: writes one chunk; None is `tasks.pipeline.predictions.write_inferences_to_file`.
      train_state_initializer_cls: must be None: parameters are restored without one.
      fallback_init_rng: seed of what `RestoreCheckpointConfig.fallback_to_scratch` initializes.
      merge_fn: joins the chunks; with `merge_chunked_results` False they are left where they are.
      summarize_config_fn: writes the configuration, `(model_dir=, summary_writer=, step=)`; None does not.
      verify_matching_vocabs_fn: called with `dataset_cfg` and the model; None checks nothing.
      output_vocab_feature_name: the task's feature whose vocabulary decodes predictions.
      keep_aux_as_numpy: give auxiliary values to `write_fn` as arrays, not lists.
      checkpoint_ds_iter, use_orbax: accepted; every source can skip examples, and a checkpoint tells its format.

    Raises:
      ValueError: for another mode or shard, without a checkpoint, or if an interrupted run had other settings.
    """
    del checkpoint_ds_iter, use_orbax
    refuse_train_state_initializer(train_state_initializer_cls, "infer")
    _check(mode, shard_id, num_shards, checkpoint_period)
    directory, is_writer = storage.as_path(output_dir), jax.process_index() == 0
    if is_writer and shard_id == 0 and summarize_config_fn is not None:
        with local_folder(directory) as folder:
            summarize_config_fn(model_dir=str(folder), summary_writer=None, step=0)
    with native_logs.filtered():
        if verify_matching_vocabs_fn is not None:
            verify_matching_vocabs_fn(dataset_cfg, model)
        tasks = _tasks(dataset_cfg, output_vocab_feature_name if mode != "score" else None)
    write_fn = write_fn or tasks_door.predictions().write_inferences_to_file
    left = _incomplete(tasks, directory, f"{mode}.{file_extension}-{shard_id:05}-of-{num_shards:05}")
    if not left:
        return

    checkpoint = distributed.from_first("checkpoint", lambda: restore_checkpoint_cfg.checkpoint)
    params, _ = load_model_params(model, partitioner, restore_checkpoint_cfg, checkpoint, fallback_init_rng)
    infer_fn = batch_inference.make_mode_fn(model, mode, dataset_cfg.batch_size, partitioner)
    request = _request(checkpoint, mode, dataset_cfg, checkpoint_period)
    for task, files in left:
        done = distributed.from_first("count of whole chunks", functools.partial(files.num_whole_chunks, request))
        chunks = _open_chunks(task, dataset_cfg, model, (shard_id, num_shards), checkpoint_period, done)
        vocabulary = task.output_features[output_vocab_feature_name].vocabulary if mode != "score" else None
        for number, (examples, batches) in enumerate(chunks, start=done):
            names = _row_names(task.name, shard_id, number * request["examples_per_chunk"])
            outputs = infer_fn(params, batches, jax.random.fold_in(jax.random.PRNGKey(0), number), names)
            if is_writer:
                files.write_chunk(number, write_fn, _inferences(outputs, keep_aux_as_numpy), examples, mode, vocabulary)
        if is_writer:
            results = files.complete(merge_fn if merge_chunked_results else None, checkpoint_step(str(checkpoint)))
            print(f"{task.name}: results in {results}")
        multihost_utils.sync_global_devices(f"infer:{files.name}")


def _check(mode: str, shard_id: int, num_shards: int, checkpoint_period: int) -> None:
    if mode not in batch_inference.MODES:
        raise ValueError(f"infer.mode is {mode!r}; use one of {tuple(batch_inference.MODES)}.")
    if not 0 <= shard_id < num_shards:
        raise ValueError(f"infer.shard_id is {shard_id}; it counts from 0 to num_shards - 1 = {num_shards - 1}.")
    if checkpoint_period < 1:
        raise ValueError(f"infer.checkpoint_period is {checkpoint_period}; it must be at least 1 batch.")


def _tasks(dataset_cfg: DatasetConfig, decodes: str | None) -> Sequence[Any]:
    if dataset_cfg.task_feature_lengths is None:
        raise ValueError(
            "DatasetConfig.task_feature_lengths is None, which only evaluations take: bind TASK_FEATURE_LENGTHS, such "
            "as {'inputs': 512, 'targets': 114}."
        )
    tasks = tasks_door.predictions().subtasks(dataset_cfg)
    for task in tasks:
        if decodes is not None and decodes not in task.output_features:
            has = list(task.output_features)
            raise ValueError(f"infer.output_vocab_feature_name is {decodes!r}; {task.name!r} has the features {has}.")
    return tasks


def _incomplete(tasks: Sequence[Any], directory: AnyPath, ending: str) -> list[tuple[Any, ShardFiles]]:
    """The tasks that no earlier run has completed, and where their results go."""
    files = [(task, ShardFiles(directory, f"{task.name}-{ending}")) for task in tasks]
    find = lambda: [of_task.name for _, of_task in files if of_task.is_complete()]  # noqa: E731
    complete = distributed.from_first("list of what is complete", find)
    for name in complete:
        print(f"{directory / name} is complete; nothing is left to do.")
    return [(task, of_task) for task, of_task in files if of_task.name not in complete]


def _request(checkpoint: str | None, mode: str, dataset_cfg: DatasetConfig, checkpoint_period: int) -> dict[str, Any]:
    """All that the chunks of a shard depend on."""
    lengths = dataset_cfg.task_feature_lengths
    # Bindings in use: what decodes and what writes. The number of a shard may come from gin or from a flag.
    lines = gin_files.operative_config(max_line_length=100_000).splitlines()
    bindings = "\n".join(x for x in lines if not re.match(r"#|(\S+\.)?infer\.shard_id\b", x))
    return {
        "checkpoint": checkpoint,
        "mode": mode,
        "split": dataset_cfg.split,
        "batch_size": dataset_cfg.batch_size,
        "examples_per_chunk": checkpoint_period * dataset_cfg.batch_size,
        "task_feature_lengths": lengths and dict(lengths),
        "seed": dataset_cfg.seed,
        "crc32 of the gin configuration": zlib.crc32(bindings.encode()),
    }


def _open_chunks(
    task: Any,
    dataset_cfg: DatasetConfig,
    model: BaseTransformerModel,
    shard: tuple[int, int],
    checkpoint_period: int,
    done: int,
) -> Iterator[tuple[Any, Iterator[tuple[np.ndarray, Batch]]]]:
    """The task's examples in each chunk after the first `done`, and the batches that the model gets of them."""
    batch_size = dataset_cfg.batch_size
    size = checkpoint_period * batch_size
    with native_logs.filtered():
        converter = model.FEATURE_CONVERTER_CLS
        chunks = tasks_door.predictions().chunks(task, dataset_cfg, converter, *shard, size, done)
    with tqdm(
        desc=task.name, unit="example", initial=done * size, disable=jax.process_index() != 0 or None
    ) as progress:
        for examples, features in chunks:
            yield examples, _batches(features, batch_size, progress)


def _row_names(task: str, shard_id: int, first: int) -> Callable[[int], str]:
    return lambda index: f"example {first + index} of {task}, shard {shard_id}"


def _batches(features: Batch, batch_size: int, progress: tqdm) -> Iterator[tuple[np.ndarray, Batch]]:
    """The batches of a chunk with the indices of their rows in it."""
    count = len(next(iter(features.values())))
    for start in range(0, count, batch_size):
        index = np.arange(start, min(start + batch_size, count))
        yield index, {name: x[start : start + batch_size] for name, x in features.items()}
        progress.update(len(index))


def _inferences(outputs: Any, keep_aux_as_numpy: bool) -> tuple[list[Any], Any]:
    """Results `[examples, …]`, or trees of them, as a list with an entry an example; and the auxiliary values."""
    results, aux = batch_inference.split_aux(outputs)
    leaves, structure = jax.tree.flatten(results)
    rows = [jax.tree.unflatten(structure, row) for row in zip(*(leaf.tolist() for leaf in leaves), strict=True)]
    return rows, aux if keep_aux_as_numpy else jax.tree.map(lambda x: x.tolist(), aux)


# ----------------------------------------------------- command -------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and infers."""
    parser = command_line.argument_parser("infer", __doc__ or "", takes_run=True)
    parser.add_argument("--input", action="append", default=[], metavar="TEXT", help="a line to answer; repeatable")
    parser.add_argument("--input_file", metavar="FILE", help="one input a line, or a table; - reads standard input")
    column = "of a table (csv, JSON, Parquet), with the texts; if not given, rows are read as the run's task reads them"
    parser.add_argument("--text_column", metavar="NAME", help=column)
    parser.add_argument("--output_file", metavar="FILE", help="JSON lines, - for standard output; printed if not given")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --output_file")
    parser.add_argument(
        "--validation", type=int, metavar="N",
        help="N sentences of the run's validation split with a word left out: the word, and the likeliest ones",
    )  # fmt: skip
    decoding_flags.add_flags(parser)
    parser.add_argument("--shard_id", type=int, help="the part of a task to work on; before infer.shard_id of gin")
    flags = command_line.parse_flags(parser, argv)
    if not flags.run_dir and not flags.gin_file:
        parser.error("give RUN, or gin files: a model, and gin/runs/infer.gin")
    if not (flags.run_dir or flags.input or flags.input_file or flags.validation):
        configured = gin_files.configurable(infer, module="limba.infer")
        gin_files.parse_gin_flags(flags.gin_file, flags.gin_bindings, flags.gin_search_paths)
        gin_files.require_bindings(CHECKPOINT_PATH="\"'runs/my_run'\"", INFER_OUTPUT_DIR="\"'runs/my_run/infer'\"")
        if command_line.goes_on(flags):
            configured(**({} if flags.shard_id is None else {"shard_id": flags.shard_id}))
        return 0

    if flags.validation is not None:
        return _show_likeliest(flags, parser)
    return _answer_texts(flags)


def _answer_texts(flags: argparse.Namespace) -> int:
    """`--input` and `--input_file`."""
    flags.output_file = flags.output_file and written_files.named_by_flag(flags.output_file)
    files = (flags.input_file, flags.output_file)
    if all(files) and Path(files[0]).resolve() == Path(files[1]).expanduser().resolve():
        raise ValueError(f"--output_file {flags.output_file} is the input file, which the answers would replace.")
    if flags.output_file:
        infer_text.check_output(flags.output_file, flags.overwrite)
    if flags.input_file:
        input_files.check_input(flags.input_file)
    by_task = input_files.is_table(flags.input_file or "-") and flags.text_column is None
    # What cannot be read is said before the run is.
    texts = [] if by_task else input_files.read_texts(flags.input_file, flags.text_column)
    decoding = decoding_flags.from_flags(flags)
    bindings = {"CHECKPOINT_PATH": run_configuration.newest_checkpoint(flags.run_dir)} if flags.run_dir else {}
    if by_task:
        texts = _read_as_task(flags, bindings)
    else:
        run_configuration.parse(flags, "gin/runs/infer_text.gin", bindings, needs_tasks=False)
    has_blanks = not flags.run_dir or run_folder.has_blanks(_checkpoint(flags.run_dir))
    # A row that the run's task reads is that of its training, where `___` is text.
    typed = [*flags.input, *([] if by_task else texts)]
    inputs = [blanks.typed(line) if has_blanks else line for line in typed] + (texts if by_task else [])
    gin_files.require_bindings(CHECKPOINT_PATH="\"'runs/my_run'\"")
    configured = gin_files.configurable(infer_text.infer_text, module="limba.inference.infer_text")
    given: dict[str, Any] = {"output_file": flags.output_file} if flags.output_file else {}
    names = input_files.line_names(flags.input, flags.input_file)
    given |= {"name_line": names, "overwrite": flags.overwrite}
    if command_line.goes_on(flags):
        configured(inputs=inputs, decoding=decoding, **given)
    return 0


def _read_as_task(flags: argparse.Namespace, bindings: Mapping[str, Any]) -> list[str]:
    """The texts of a table, as the run's task reads it; parses the run's gin, with its modules of tasks."""
    lengths = _lengths_of_run(flags.run_dir) if flags.run_dir else {}
    try:
        run_configuration.parse(flags, "gin/runs/infer_text.gin", {**bindings, **lengths})
    except gin_files.GinError as error:
        raise gin_files.GinError(f"{error} Or name the column with the texts: --text_column NAME.") from error
    checkpoint = gin_files.value_of("%CHECKPOINT_PATH")
    return input_files.read_as_task(flags.input_file, *_task_of(checkpoint))


def _lengths_of_run(run_dir: str) -> dict[str, Any]:
    """Bindings that cut rows, and limit their answers, as training and evaluations do."""
    checkpoint = _checkpoint(run_dir)
    info = run_folder.load_run_info(checkpoint) if run_folder.has_run_info(checkpoint) else {}
    recorded = info.get("feature_lengths", {})
    names = {"inputs": "max_inputs_length", "targets": "max_decode_length"}
    return {f"answers.Answerer.{name}": recorded[x] for x, name in names.items() if x in recorded}


def _checkpoint(run_dir: str) -> AnyPath:
    return storage.as_path(run_configuration.newest_checkpoint(run_dir))


def _task_of(checkpoint: str) -> tuple[Any, str | None]:
    """The run's task, and the module that registers it. Raises ValueError if it has none."""
    name, module = (gin_files.value_of(f"%MIXTURE_OR_TASK_{x}") for x in ("NAME", "MODULE"))
    name = name or run_folder.load_run_info(storage.as_path(checkpoint)).get("task")
    if name is None:
        raise ValueError(
            f"{checkpoint} has no task: it was converted, or its vocabulary changed, and not trained since. Ask it "
            "with --input TEXT or --input_file FILE (of a table with --text_column NAME)."
        )
    return name, module


def _show_likeliest(flags: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """`--validation N`."""
    if flags.validation < 1:
        parser.exit(2, f"error: --validation {flags.validation}: it is a number of sentences, at least 1.\n")
    if not flags.run_dir or flags.input or flags.input_file or flags.output_file:
        parser.error("--validation N asks N sentences of the task of --run_dir RUN; leave --input and files out.")
    decoding = decoding_flags.from_flags(flags)
    checkpoint = run_configuration.newest_checkpoint(flags.run_dir)
    run_configuration.parse(flags, "gin/runs/infer_text.gin", {"CHECKPOINT_PATH": checkpoint})
    sentences = tasks_door.sentences_with_blanks(*_task_of(checkpoint), "validation", flags.validation)
    configured = gin_files.configurable(likeliest.show_likeliest, module="limba.inference.likeliest")
    if command_line.goes_on(flags):
        configured(sentences=sentences, decoding=decoding)
    return 0


if __name__ == "__main__":
    from limba import infer as _this

    command_line.run_command(_this.main)
