"""`limba infer`: predictions or scores of a checkpoint, for the examples of a task or for lines of text.

    limba infer --run_dir runs/quickstart/model --input "Return the <extra_id_0> of the list."
    limba infer --run_dir runs/quickstart/model --input_file questions.txt --output_file answers.jsonl

    limba infer --gin_file=RUN/config.gin --gin_file=gin/runs/infer.gin --gin.CHECKPOINT_PATH="'RUN'" \\
        --gin.INFER_OUTPUT_DIR="'RUN/infer'"

The first two answer lines (see `limba.infer_text`). The third runs over a task and writes
`INFER_OUTPUT_DIR/<task>-predict.jsonl-00000-of-00001`; one that was interrupted goes on where it stopped.
"""

import contextlib
import json
import logging
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin
import jax
import numpy as np
from jax.experimental import multihost_utils
from tqdm import tqdm

from limba import (
    checkpoints,
    commands,
    data,
    decoding_flags,
    distributed,
    gin_utils,
    infer_text,
    inference,
    native_logs,
    run_configuration,
    storage,
)
from limba.data import Batch, DatasetConfig
from limba.eval import checkpoint_step, load_model_params, refuse_train_state_initializer
from limba.models import BaseTransformerModel
from limba.partitioning import PjitPartitioner
from limba.storage import AnyPath

logger = logging.getLogger(__name__)

# Predictions or scores, one an example, and auxiliary values: lists or arrays with an entry an example.
Inferences = tuple[Sequence[Any], Mapping[str, Any]]

# `(path, inferences, task examples as a tf.data.Dataset, mode, vocabulary)`.
WriteFn = Callable[..., None]
# `(output_dir, name of the output file, folder of the chunks, step)`.
MergeFn = Callable[[str, str, str, int | None], None]

_COMPLETED = ".COMPLETED"


def merge_chunks_to_file(output_dir: str, output_fname: str, tmp_dir: str, step: int | None) -> None:
    """Joins the chunks of a shard, in order, to `output_dir/output_fname`.

    Raises:
      ValueError: if there are none.
    """
    del step
    chunks_dir = storage.as_path(tmp_dir)
    chunks = [name for name in storage.list_names(chunks_dir) if _is_chunk(name, output_fname)]
    if not chunks:
        raise ValueError(f"There is nothing to write to {output_fname}: the split, or this shard of it, is empty.")
    with _written_here(storage.as_path(output_dir)) as directory, (directory / output_fname).open("wb") as file:
        for chunk in chunks:
            file.write(storage.read_bytes(chunks_dir / chunk))


def _is_chunk(name: str, output_fname: str) -> bool:
    return name.startswith(f"{output_fname}-chunk") and not name.endswith(_COMPLETED)


@contextlib.contextmanager
def _written_here(directory: AnyPath) -> Iterator[Path]:
    """Where to write the files of a directory: in it; or, for a bucket, in one of this machine that is copied there."""
    if not storage.is_remote(directory):
        directory.mkdir(parents=True, exist_ok=True)
        yield Path(directory)
        return
    with tempfile.TemporaryDirectory(prefix="limba-infer-") as temporary:
        local = Path(temporary)
        yield local
        for name in storage.list_files(local):
            storage.write_bytes(directory / name, storage.read_bytes(local / name))


# ---------------------------------------------------- inference ------------------------------------------------------


def infer(
    *,
    mode: str,
    model: BaseTransformerModel,
    dataset_cfg: DatasetConfig,
    restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig,
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
    summarize_config_fn: Callable[..., None] | None = gin_utils.summarize_gin_config,
    verify_matching_vocabs_fn: Callable[[DatasetConfig, Any], None] | None = data.verify_matching_vocabs,
    output_vocab_feature_name: str = "targets",
    file_extension: str = "jsonl",
    keep_aux_as_numpy: bool = False,
    use_orbax: bool = True,
) -> None:
    """Predicts or scores every example of a task, or of each task of a mixture: T5X's `infer_script.infer`.

    Results are in the order of the dataset, in `<output_dir>/<task>-<mode>.<extension>-<shard>-of-<shards>`. Chunks of
    `checkpoint_period` batches are written to a folder of their own, `tmp-<task>-<mode>…`; a run that was interrupted
    goes on after the last whole chunk, with the result of an uninterrupted one. A complete shard is not run again.

    Args:
      mode: "predict" (decoded targets), "predict_with_aux" (and scores) or "score" (log likelihood of given targets).
      model: network, vocabularies and decoding.
      dataset_cfg: task, split, lengths, batch size. The order is always that of the files.
      restore_checkpoint_cfg: the checkpoint.
      partitioner: mesh and rules.
      output_dir: made if needed; may be in a bucket.
      checkpoint_period: batches in a chunk.
      shard_id, num_shards: the part of the dataset that this call works on, of so many.
      merge_chunked_results: False leaves the chunks where they are.
      write_fn: writes one chunk; None is `tasks.inference.write_inferences_to_file`.
      checkpoint_ds_iter: accepted; a run that goes on reads past the examples that are done, which every source can.
      train_state_initializer_cls: must be None: parameters are restored without one.
      fallback_init_rng: seed of what `RestoreCheckpointConfig.fallback_to_scratch` initializes.
      merge_fn: joins the chunks.
      summarize_config_fn: writes the configuration, `(model_dir=, summary_writer=, step=)`; None does not.
      verify_matching_vocabs_fn: called with `dataset_cfg` and the model; None checks nothing.
      output_vocab_feature_name: the task's feature whose vocabulary decodes predictions.
      file_extension: in the names of files.
      keep_aux_as_numpy: give auxiliary values to `write_fn` as arrays, not lists.
      use_orbax: accepted; the format is seen in the checkpoint.

    Raises:
      ValueError: for another mode or shard, without a checkpoint, or if the folder of an interrupted run is that of a
        run with other settings or another checkpoint.
    """
    del checkpoint_ds_iter, use_orbax
    _check_mode(mode)
    refuse_train_state_initializer(train_state_initializer_cls, "infer")
    if not 0 <= shard_id < num_shards:
        raise ValueError(f"infer.shard_id is {shard_id}; it counts from 0 to num_shards - 1 = {num_shards - 1}.")
    if checkpoint_period < 1:
        raise ValueError(f"infer.checkpoint_period is {checkpoint_period}; it must be at least 1 batch.")
    directory = storage.as_path(output_dir)
    is_writer = jax.process_index() == 0
    if is_writer and summarize_config_fn is not None and shard_id == 0:
        with _written_here(directory) as local:
            summarize_config_fn(model_dir=str(local), summary_writer=None, step=0)
    with native_logs.filtered():
        from tasks import inference as task_inference  # TensorFlow comes in here, and only here.

        if verify_matching_vocabs_fn is not None:
            verify_matching_vocabs_fn(dataset_cfg, model)
        tasks = task_inference.subtasks(dataset_cfg)
    write_fn = write_fn or task_inference.write_inferences_to_file
    suffix = f"{shard_id:05}-of-{num_shards:05}"
    names = {task.name: f"{task.name}-{mode}.{file_extension}-{suffix}" for task in tasks}
    complete = distributed.from_first(
        "list of what is complete",
        lambda: [name for name, file in names.items() if storage.is_file(directory / (file + _COMPLETED))],
    )
    left = [task for task in tasks if task.name not in complete]
    for task in tasks:
        if task not in left:
            print(f"{directory / names[task.name]} is complete; nothing is left to do.")
    if not left:
        return

    checkpoint = distributed.from_first("checkpoint", lambda: restore_checkpoint_cfg.checkpoint)
    params, _ = load_model_params(model, partitioner, restore_checkpoint_cfg, checkpoint, fallback_init_rng)
    infer_step = getattr(model, inference.MODES[mode])
    infer_fn = inference.make_infer_fn(infer_step, dataset_cfg.batch_size, partitioner)
    chunk_size = checkpoint_period * dataset_cfg.batch_size
    identity = {
        "checkpoint": checkpoint,
        "mode": mode,
        "split": dataset_cfg.split,
        "batch_size": dataset_cfg.batch_size,
        "examples_per_chunk": chunk_size,
        "task_feature_lengths": dataset_cfg.task_feature_lengths and dict(dataset_cfg.task_feature_lengths),
        "seed": dataset_cfg.seed,
        "crc32 of the gin configuration": _crc_of_gin(),
    }

    for task in left:
        output_fname = names[task.name]
        chunks_dir = directory / f"tmp-{output_fname}"
        done = _done_before(chunks_dir, output_fname, identity)
        with native_logs.filtered():
            shard = (shard_id, num_shards)
            chunks = task_inference.chunks(task, dataset_cfg, model.FEATURE_CONVERTER_CLS, *shard, chunk_size, done)
        progress = tqdm(desc=f"{task.name} {mode}", unit="example", initial=done * chunk_size, disable=not is_writer)
        vocabulary = task.output_features[output_vocab_feature_name].vocabulary if mode != "score" else None
        for chunk, (examples, features) in enumerate(chunks, start=done):
            batches = _batches(features, dataset_cfg.batch_size, progress)
            outputs = infer_fn(params, batches, jax.random.fold_in(jax.random.PRNGKey(0), chunk))
            results, aux = inference.split_aux(outputs)
            if not keep_aux_as_numpy:
                aux = jax.tree.map(lambda x: x.tolist(), aux)
            if is_writer:
                name = f"{output_fname}-chunk{chunk:05}"
                with _written_here(chunks_dir) as local:
                    write_fn(str(local / name), (_per_example(results), aux), examples, mode, vocabulary)
                # Written last: a chunk without this file is made again.
                storage.write_bytes(chunks_dir / (name + _COMPLETED), b"")
        progress.close()
        if is_writer:
            if merge_chunked_results:
                merge_fn(str(directory), output_fname, str(chunks_dir), checkpoint_step(str(checkpoint)))
                storage.remove_tree(chunks_dir)
            storage.write_bytes(directory / (output_fname + _COMPLETED), b"")
            where = directory / output_fname if merge_chunked_results else chunks_dir
            print(f"{task.name}: results in {where}")
        multihost_utils.sync_global_devices(f"infer:{output_fname}")


def _done_before(chunks_dir: AnyPath, output_fname: str, identity: Mapping[str, Any]) -> int:
    """The whole chunks of an interrupted run, as worker 0 sees them."""
    return distributed.from_first(
        "count of whole chunks", lambda: _completed_chunks(chunks_dir, output_fname, identity)
    )


def _check_mode(mode: str) -> None:
    if mode not in inference.MODES:
        raise ValueError(f"infer.mode is {mode!r}; use one of {tuple(inference.MODES)}.")


def _batches(features: Batch, batch_size: int, progress: tqdm) -> Any:
    """The batches of a chunk with the indices of their rows in it."""
    count = len(next(iter(features.values())))
    for start in range(0, count, batch_size):
        index = np.arange(start, min(start + batch_size, count))
        yield index, {name: x[start : start + batch_size] for name, x in features.items()}
        progress.update(len(index))


def _per_example(results: Any) -> list[Any]:
    """Arrays, or trees of them, `[examples, …]` as a list with an entry an example."""
    leaves, structure = jax.tree.flatten(results)
    return [jax.tree.unflatten(structure, row) for row in zip(*(leaf.tolist() for leaf in leaves), strict=True)]


def _crc_of_gin() -> int:
    """Of the bindings in use: what decodes and what writes. The number of a shard may come from gin or from a flag."""
    lines = gin.operative_config_str(max_line_length=100_000).splitlines()
    return zlib.crc32("\n".join(x for x in lines if not re.match(r"#|(\S+\.)?infer\.shard_id\b", x)).encode())


def _completed_chunks(chunks_dir: AnyPath, output_fname: str, identity: Mapping[str, Any]) -> int:
    """How many chunks an earlier run wrote; what it wrote beyond is written again.

    Raises:
      ValueError: if it was another run.
    """
    description = chunks_dir / "chunks.json"
    identity = json.loads(json.dumps(identity))  # as it is read back
    if not storage.is_file(description):
        storage.write_bytes(description, json.dumps(identity).encode())
        return 0
    before = json.loads(storage.read_bytes(description))
    if before != identity:
        changed = ", ".join(
            f"{name} {before.get(name)!r} -> {value!r}" for name, value in identity.items() if before.get(name) != value
        )
        raise ValueError(
            f"{chunks_dir} holds chunks of an interrupted run, and this one differs: {changed}. Go on with the same "
            "settings, or remove the folder to start anew."
        )
    done = 0
    while storage.is_file(chunks_dir / f"{output_fname}-chunk{done:05}{_COMPLETED}"):
        done += 1
    if done:
        logger.info("Going on after %d chunks of %s.", done, output_fname)
    return done


# ----------------------------------------------------- command -------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and infers."""
    parser = commands.argument_parser("infer", __doc__ or "")
    parser.add_argument("--run_dir", help="a run's directory or one checkpoint; brings its own gin configuration")
    parser.add_argument("--input", action="append", default=[], metavar="TEXT", help="a line to answer; repeatable")
    parser.add_argument("--input_file", metavar="FILE", help="one input a line; - reads standard input")
    parser.add_argument("--output_file", metavar="FILE", help="JSON lines; printed if not given")
    decoding_flags.add_flags(parser)
    parser.add_argument("--shard_id", type=int, help="the part of a task to work on; before infer.shard_id of gin")
    flags = commands.parse_flags(parser, argv)
    if not flags.run_dir and not flags.gin_file:
        parser.error("give --run_dir RUN, or --gin_file with a model and gin/runs/infer.gin")
    if not (flags.run_dir or flags.input or flags.input_file):
        configured = gin_utils.configurable(infer, module="limba.infer")
        gin_utils.parse_gin_flags(flags.gin_file, flags.gin_bindings, flags.gin_search_paths)
        gin_utils.require_bindings(CHECKPOINT_PATH="\"'runs/my_run'\"", INFER_OUTPUT_DIR="\"'runs/my_run/infer'\"")
        commands.start(configured, flags, **({} if flags.shard_id is None else {"shard_id": flags.shard_id}))
        return 0

    inputs = flags.input + (infer_text.read_lines(flags.input_file) if flags.input_file else [])
    decoding = decoding_flags.from_flags(flags)
    bindings = []
    if flags.run_dir:
        bindings = [f"CHECKPOINT_PATH = {run_configuration.newest_checkpoint(flags.run_dir)!r}"]
    run_configuration.parse(flags, "gin/runs/infer_text.gin", bindings)
    gin_utils.require_bindings(CHECKPOINT_PATH="\"'runs/my_run'\"")
    configured = gin_utils.configurable(infer_text.infer_text, module="limba.infer_text")
    given: dict[str, Any] = {"output_file": flags.output_file} if flags.output_file else {}
    commands.start(configured, flags, inputs=inputs, decoding=decoding, **given)
    return 0


if __name__ == "__main__":
    from limba import infer as _this

    commands.run_command(_this.main)
