"""What `limba train` costs until its first step, by the size of the corpus and the number of its files.

    python -m benchmarks.start_of_corpus --documents runs/package_docs/train-* --work runs/starts
    python -m benchmarks.start_of_corpus --documents runs/package_docs/train-* --work runs/starts --hub
    python -m benchmarks.start_of_corpus --documents runs/package_docs/train-* --work runs/starts --bucket http://127.0.0.1:5000

A corpus is JSON lines in shards of 1 MB: as many as --shards says, links to the same hundred files, so that 10 GB take
no disk. The training is of one step, with a small network (benchmarks/startup.gin), compiled programs from the cache,
an evaluation of one batch and a checkpoint. Prints cpu-seconds, seconds and peak memory of each start, medians of
--rounds, interleaved. --hub and --bucket read shards of --remote_bytes from a hub of this process, and from an S3 that
is there, such as moto's server; the bucket takes `pip install s3fs`.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import startup

_SHARD, _DISTINCT, _BUCKET = 1_000_000, 100, "start-of-corpus"
# What the training reads, for its process, which imports this module.
_FILES, _VOCABULARY, _TASK = "START_OF_CORPUS_FILES", "START_OF_CORPUS_VOCABULARY", "start_of_corpus"

if _FILES in os.environ:
    from limba.tasks.pretraining import register_pretraining_task

    register_pretraining_task(_TASK, data_files=json.loads(os.environ[_FILES]), vocabulary=os.environ[_VOCABULARY])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.start_of_corpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--documents", required=True, nargs="+", type=Path, help="JSON lines, 10 MB and more")
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hub", action="store_true", help="read from a hub on the loopback")
    parser.add_argument("--bucket", metavar="URL", help="read from the S3 at this address")
    parser.add_argument("--remote_bytes", type=int, default=20_000, help="of a shard of a hub or a bucket")
    flags = parser.parse_args(argv)
    work = flags.work.resolve()
    is_remote = flags.hub or flags.bucket
    distinct = _write_shards(flags.documents, work, flags.remote_bytes if is_remote else _SHARD)
    vocabulary = work / "spiece.model"
    if not vocabulary.is_file():
        files = [
            "--data_files",
            str(distinct[0].parent / "00*.jsonl"),
            "--vocab_size",
            "4096",
            "--out",
            str(vocabulary),
        ]
        subprocess.run([sys.executable, "-m", "limba", "vocab", "build", *files], cwd=startup.HERE, check=True)
    settings: dict[str, str] = {}
    if flags.hub:
        from tests.loopback_hub import LoopbackHub

        hub = LoopbackHub()
        settings = hub.environment(work / "hub_home") | {"HF_DATASETS_OFFLINE": "0"}
        patterns = {number: _on_hub(hub, distinct, number) for number in flags.shards}
    elif flags.bucket:
        settings = {"AWS_ENDPOINT_URL": flags.bucket, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        os.environ |= settings
        patterns = {number: _in_bucket(distinct, number) for number in flags.shards}
    else:
        patterns = {number: _linked(work, distinct, number) for number in flags.shards}
    _train(patterns[flags.shards[0]], work, vocabulary, settings)  # Compiles.
    costs: dict[int, list[startup.Cost]] = {number: [] for number in flags.shards}
    for _, number in itertools.product(range(flags.rounds), flags.shards):
        costs[number].append(_train(patterns[number], work, vocabulary, settings))
        print(number, costs[number][-1], flush=True)
    print("| shards | cpu-seconds | seconds | peak memory, MB |\n|---|---|---|---|")
    for number, found in costs.items():
        cpu, seconds, memory = (
            statistics.median(getattr(cost, name) for cost in found) for name in ("cpu_seconds", "seconds", "memory")
        )
        print(f"| {number:,} | {cpu:.1f} | {seconds:.1f} | {memory:,.0f} |")


def _write_shards(documents: Sequence[Path], work: Path, size: int) -> list[Path]:
    """The distinct shards, each of some `size` bytes."""
    folder = work / f"distinct-{size}"
    if not folder.is_dir():
        folder.mkdir(parents=True)
        lines = (line for file in itertools.cycle(sorted(documents)) for line in _lines(file))
        for number in range(_DISTINCT):
            with (folder / f"{number:03d}.jsonl").open("wb") as shard:
                while shard.tell() < size:
                    shard.write(next(lines))
    return sorted(folder.glob("*.jsonl"))


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        yield from stream


def _linked(work: Path, distinct: Sequence[Path], number: int) -> str:
    folder = work / f"corpus-{number}"
    folder.mkdir(exist_ok=True)
    for shard in range(number):
        if not (file := folder / f"train-{shard:05d}.jsonl").exists():
            file.hardlink_to(distinct[shard % len(distinct)])
    return str(folder / "train-*.jsonl")


def _on_hub(hub: object, distinct: Sequence[Path], number: int) -> str:
    from tests.loopback_hub import LoopbackHub, Repo

    assert isinstance(hub, LoopbackHub)
    texts = [file.read_bytes() for file in distinct]
    files = {f"train-{shard:05d}.jsonl": texts[shard % len(texts)] for shard in range(number)}
    hub.repos[f"org/corpus{number}"] = Repo(False, False, [files])
    return f"hf://datasets/org/corpus{number}/train-*.jsonl"


def _in_bucket(distinct: Sequence[Path], number: int) -> str:
    import fsspec

    store = fsspec.filesystem("s3")
    if not store.exists(_BUCKET):
        store.mkdir(_BUCKET)
    for shard in range(number):
        store.pipe_file(f"{_BUCKET}/{number}/train-{shard:05d}.jsonl", distinct[shard % len(distinct)].read_bytes())
    return f"s3://{_BUCKET}/{number}/train-*.jsonl"


def _train(pattern: str, work: Path, vocabulary: Path, settings: dict[str, str]) -> startup.Cost:
    """Runs the training of one step. Raises RuntimeError, with the end of its messages, if it fails."""
    first = pattern.replace("*", "00000")
    side = startup.Side(startup.HERE)
    environment = startup.environment(side, work, work / "cache") | settings
    # The package of a bucket's file system may lie elsewhere.
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], os.environ.get("PYTHONPATH", "")])
    environment |= {_FILES: json.dumps({"train": pattern, "validation": first}), _VOCABULARY: str(vocabulary)}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as written:
        line = [
            *side.program(["train"]),
            "--gin_file=benchmarks/startup.gin",
            f"--gin.MIXTURE_OR_TASK_NAME='{_TASK}'",
            "--gin.MIXTURE_OR_TASK_MODULE='benchmarks.start_of_corpus'",
            f"--gin.VOCABULARY_FILE='{vocabulary}'",
            *("--gin.VOCAB_SIZE=4096", "--gin.RANDOM_SEED=0", "--gin.DATASET_SEED=0"),
            f"--gin.MODEL_DIR='{folder}/model'",
            *("--gin.TRAIN_STEPS=1", "--gin.EVAL_STEPS=1", "--gin.train_script.train.run_eval_before_training=False"),
        ]
        began = time.monotonic()
        process = subprocess.Popen(line, cwd=startup.HERE, env=environment, stdout=written, stderr=written)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        if process.returncode:
            written.seek(0)
            said = written.read().decode(errors="replace")[-3000:]
            raise RuntimeError(f"a training on {pattern} ended with {process.returncode}:\n{said}")
    return startup.Cost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
