"""Processes that read a training stream, keep its position, and are killed: `test_killed.py` starts them.

Imports take seconds, so one process imports everything, executes nothing with it, and forks the others:

    python stream_process.py ours     then, a line each on stdin: {"directory": …, "config": …, "index": 0, …}

`ours` reads tasks of ours, without TensorFlow; `seqio` a mixture of SeqIO's, of which one has a user's functions.

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

from limba.addons import diacritics
from limba.checkpoint_files import small_files
from limba.data import contract
from tasks import objectives
from tasks.pipeline import task_batches
from tasks.pretraining import denoising
from tasks.registry import Feature, MixtureRegistry, TaskRegistry
from tasks.sources import corpora
from tasks.vocabularies import ByteVocabulary

LENGTHS = {"inputs": 64, "targets": 14}
RATES = {"killed_a": 2.0, "killed_b": 1.0, "killed_c": 2.0}


def register_ours(corpus: str) -> str:
    """Three sources: two are corrupted, in groups of 8 documents; one has short examples, its sentences."""
    sources = {
        name: corpora.HuggingFaceSource({"train": f"{corpus}/{name}-*.jsonl"}, chunk_documents=4) for name in "abc"
    }
    for name in "ab":
        TaskRegistry.add(
            f"killed_{name}",
            sources[name],
            dict.fromkeys(LENGTHS, Feature(ByteVocabulary(extra_ids=100))),
            [denoising.Denoise(objectives.SpanCorruption(), documents_per_batch=8)],
            shuffle_buffer_size=64,
        )
    diacritics.register_diacritics_task(
        "killed_c",
        data_files=sources["c"],
        vocabulary=ByteVocabulary(extra_ids=100),
        language=None,
        shuffle_buffer_size=64,
    )
    return MixtureRegistry.add("killed", list(RATES.items())).name


def register_with_seqio(corpus: str) -> str:
    """The same, but that the short examples are made by SeqIO's functions and a user's own."""
    import seqio
    import tensorflow as tf

    @seqio.map_over_dataset(num_seeds=1)
    def turn_at_random(example, seed):
        """A random preprocessor: SeqIO's seeds."""
        turns = tf.random.stateless_uniform([], seed) < 0.5
        inputs = tf.cond(turns, lambda: example["inputs"][::-1], lambda: example["inputs"])
        return {"inputs": inputs, "targets": example["targets"]}

    @seqio.map_over_dataset
    def continue_text(example):
        half = tf.strings.length(example["text"]) // 2
        return {"inputs": tf.strings.substr(example["text"], 0, half), "targets": example["text"]}

    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=100), add_eos=True)
    denoise = [denoising.Denoise(objectives.SpanCorruption(), documents_per_batch=8)]
    short = [continue_text, seqio.preprocessors.tokenize, turn_at_random, seqio.preprocessors.append_eos]
    for name, preprocessors in (("a", denoise), ("b", denoise), ("c", short)):
        seqio.TaskRegistry.add(
            f"killed_{name}",
            source=corpora.HuggingFaceSource({"train": f"{corpus}/{name}-*.jsonl"}, chunk_documents=4),
            preprocessors=preprocessors,
            output_features=dict.fromkeys(LENGTHS, feature),
            shuffle_buffer_size=64,
        )
    return seqio.MixtureRegistry.add("killed", list(RATES.items())).name


ENGINES = {"ours": register_ours, "seqio": register_with_seqio}


def run(
    engine: str, directory: str, corpus: str, config: dict, index: int, count: int, steps: int, seconds_per_step: float
) -> None:
    """Reads with an engine from the newest position that all hosts have kept, up to a step; logs a checksum per row.

    Every second step the position is written with the code of the checkpoints into a folder that is renamed at the end.
    """
    name = ENGINES[engine](corpus)
    batches = task_batches.get_train_batches(
        contract.DatasetConfig(name, LENGTHS, "train", **config), process_index=index, process_count=count
    )
    step, folders = newest(Path(directory))
    if folders:
        batches.restore_state({k: v for folder in folders for k, v in small_files.read_files(folder).items()})
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
            small_files.write_files(unfinished, batches.save_state())
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


def main(engine: str) -> None:
    if engine == "seqio":
        from limba.addons.seqio import seqio_streams  # noqa: F401, TensorFlow
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                run(engine, **json.loads(line))
                assert ("tensorflow" in sys.modules) == (engine == "seqio")
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
