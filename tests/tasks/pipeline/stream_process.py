"""Processes that read a training stream, keep its position, and are killed: `test_killed.py` starts them.

Importing TensorFlow takes seconds, so one process imports it, executes nothing with it, and forks the others:

    python stream_process.py          then, a line each on stdin: {"directory": …, "config": …, "index": 0, …}

It answers with the id of each new process.
"""

import json
import os
import signal
import sys
import time
import traceback
import zlib
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import datasets  # noqa: F401, the source imports it when it is first read
import seqio
import tensorflow as tf

from limba import checkpoint_files, data
from tasks import objectives, pipeline, preprocessors, sources

LENGTHS = {"inputs": 64, "targets": 14}


@seqio.map_over_dataset(num_seeds=1)
def _turn_at_random(example, seed):
    """A random preprocessor of a user's own: SeqIO's seeds."""
    turns = tf.random.stateless_uniform([], seed) < 0.5
    inputs = tf.cond(turns, lambda: example["inputs"][::-1], lambda: example["inputs"])
    return {"inputs": inputs, "targets": example["targets"]}


@seqio.map_over_dataset
def _continue_text(example):
    half = tf.strings.length(example["text"]) // 2
    return {"inputs": tf.strings.substr(example["text"], 0, half), "targets": example["text"]}


def register_mixture(corpus: str) -> seqio.Mixture:
    """Three sources: two are corrupted, in groups of 8 documents; one has short examples, made by SeqIO's functions."""
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=100), add_eos=True)
    denoise = [preprocessors.Denoise(objectives.SpanCorruption(), documents_per_batch=8)]
    short = [_continue_text, seqio.preprocessors.tokenize, _turn_at_random, seqio.preprocessors.append_eos]
    for name, steps in (("a", denoise), ("b", denoise), ("c", short)):
        seqio.TaskRegistry.add(
            f"killed_{name}",
            source=sources.HuggingFaceSource({"train": f"{corpus}/{name}-*.jsonl"}, chunk_documents=4),
            preprocessors=steps,
            output_features={"inputs": feature, "targets": feature},
            shuffle_buffer_size=64,
        )
    return seqio.MixtureRegistry.add("killed", [("killed_a", 2.0), ("killed_b", 1.0), ("killed_c", 2.0)])


def run(directory: str, corpus: str, config: dict, index: int, count: int, steps: int, seconds_per_step: float) -> None:
    """Reads from the newest position that all hosts have kept, up to a step; logs a checksum per row.

    Every second step the position is written with the code of the checkpoints into a folder that is renamed at the end.
    """
    mixture = register_mixture(corpus)
    batches = pipeline.get_train_batches(
        data.DatasetConfig(mixture.name, LENGTHS, "train", **config), process_index=index, process_count=count
    )
    step, folders = newest(Path(directory))
    if folders:
        batches.restore_state({k: v for folder in folders for k, v in checkpoint_files.read_files(folder).items()})
    log = os.open(Path(directory) / f"log-{index}-of-{count}-{os.getpid()}", os.O_CREAT | os.O_WRONLY)
    while step < steps:
        batch = next(batches)
        rows = zip(*(batch[name] for name in sorted(batch)), strict=True)
        checksums = [zlib.crc32(b"".join(feature.tobytes() for feature in row)) for row in rows]
        os.write(log, f"{json.dumps([step, checksums])}\n".encode())
        step += 1
        if step % 2 == 0:
            folder = Path(directory) / f"step-{step:05d}" / f"{index}-of-{count}"
            unfinished = folder.with_name(f"unfinished-{os.getpid()}")
            checkpoint_files.write_files(unfinished, batches.save_state())
            if not folder.exists():  # by a process that was killed later
                unfinished.rename(folder)
        time.sleep(seconds_per_step)


def newest(directory: Path) -> tuple[int, list[Path]]:
    """The last step whose position all hosts of a run have written, and their folders; 0 at the beginning."""
    for step in sorted(directory.glob("step-*"), reverse=True):
        for count in (1, 2, 4):
            folders = [step / f"{index}-of-{count}" for index in range(count)]
            if all(folder.is_dir() for folder in folders):
                return int(step.name.removeprefix("step-")), folders
    return 0, []


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                run(**json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main()
