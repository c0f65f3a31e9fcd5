"""Examples per cpu-second and per second: this project's input pipeline against the usual shape of a SeqIO pipeline.

    python -m benchmarks.input_pipeline [--seconds 20] [--against ANOTHER_CHECKOUT]

Prints one JSON line. All sides read the same JSON-lines shards through the same source, tokenize with the same
SentencePiece vocabulary, concatenate, corrupt spans (512 inputs, 114 targets), shuffle and batch. "ours" is
`tasks.pipeline` as it trains, position saved once per round, in threads; "processes" is the same with `num_workers` 2;
"cached" reads the same task from `limba cache`. The reference is made of SeqIO's own preprocessors and feature
converter, an example per graph call, with T5's span corruption written in TensorFlow, as T5's mixtures do. "grain", if
that is installed, is `benchmarks/grain_pipeline.py`. "before" is "ours" in the other checkout. Each side has a process
of its own, whose children's time counts; rounds alternate, so that all see the same machine.
"""

import argparse
import importlib.util
import itertools
import json
import logging
import multiprocessing
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from limba.data import contract
from limba.devices import library_patches
from tasks import objectives, pretraining, sources

ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTHS = objectives.span_corruption_lengths()


def reference_batches(
    data_files: str, vocabulary_file: str, batch_size: int, shuffle_buffer_size: int
) -> Iterator[Any]:
    import seqio

    from benchmarks import seqio_pipeline

    vocabulary = seqio.SentencePieceVocabulary(vocabulary_file, extra_ids=100)
    feature = seqio.Feature(vocabulary=vocabulary, add_eos=True)
    task = seqio.TaskRegistry.add(
        "benchmark_reference",
        source=sources.HuggingFaceSource({"train": data_files}),
        preprocessors=seqio_pipeline.reference_preprocessors(vocabulary),
        output_features={"inputs": feature, "targets": feature},
        shuffle_buffer_size=shuffle_buffer_size,
    )
    dataset = seqio.get_dataset(
        task.name, LENGTHS, seqio.EncDecFeatureConverter(pack=False), "train",
        shuffle=True, num_epochs=None, seed=0, verbose=False,
    )  # fmt: skip
    return dataset.batch(batch_size, drop_remainder=True).as_numpy_iterator()


def open_side(side: str, folder: pathlib.Path, batch_size: int) -> Iterator[Any]:
    """The training batches of a side."""
    data_files, vocabulary = str(folder / "corpus" / "train-*.jsonl"), str(folder / "spiece.model")
    if side == "reference":
        return reference_batches(data_files, vocabulary, batch_size, 2000)
    if side == "grain":
        from benchmarks import grain_pipeline

        return grain_pipeline.batches(data_files, vocabulary, batch_size, 2000)
    pretraining.register_pretraining_task(
        "benchmark_ours", data_files={"train": data_files}, vocabulary=vocabulary, shuffle_buffer_size=2000
    )
    config = contract.DatasetConfig(
        "benchmark_ours", LENGTHS, "train", batch_size, seed=0, num_workers=2 if side == "processes" else 0
    )
    if side == "cached":
        from limba.addons.cache import cached_data, write_cache
        from tasks.registry import providers

        write_cache.write_cache(providers.find_provider("benchmark_ours"), "train", LENGTHS, folder / "cached")
        return iter(cached_data.get_dataset(config, 0, 1, "EncDecFeatureConverter", str(folder / "cached")))
    from limba.inference import tasks_door

    return iter(tasks_door.get_dataset(config, 0, 1, "EncDecFeatureConverter"))


def _cpu_seconds() -> float:
    """Of this process and of its running children."""
    ticks = os.sysconf("SC_CLK_TCK")
    children = [pathlib.Path(f"/proc/{child.pid}/stat").read_text() for child in multiprocessing.active_children()]
    of_children = sum(sum(map(int, stat.rpartition(")")[2].split()[11:13])) for stat in children)
    return time.process_time() + of_children / ticks


def measure(side: str, folder: pathlib.Path, seconds: float, batch_size: int) -> dict[str, float]:
    """Examples per cpu-second and per second of one side, in this process."""
    logging.disable(logging.WARNING)
    library_patches.install()
    batches = open_side(side, folder, batch_size)
    for _ in range(30):  # What was made ahead while the pipeline was opened does not count.
        next(batches)
    began, cpu, examples = time.monotonic(), _cpu_seconds(), 0
    while time.monotonic() - began < seconds:
        examples += len(next(batches)["encoder_input_tokens"])
    if hasattr(batches, "save_state"):
        batches.save_state()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "per_cpu_second": examples / (_cpu_seconds() - cpu),
        "per_second": examples / (time.monotonic() - began),
        "peak_mb": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="wall time to measure each side (20)")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3, help="in which the time is measured (3)")
    parser.add_argument("--against", metavar="FOLDER", help="another checkout, whose pipeline is the side `before`")
    parser.add_argument("--side", help="measure one side, in the folder given by --folder")
    parser.add_argument("--folder", type=pathlib.Path)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args.side, args.folder, args.seconds, args.batch_size)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        _run(ROOT, "limba.addons.examples.python_docs", "--out", str(folder / "corpus"))
        vocabulary = ["--data_files", str(folder / "corpus" / "train-*.jsonl"), "--vocab_size", "8192"]
        _run(ROOT, "limba", "vocab", "build", *vocabulary, "--out", str(folder / "spiece.model"))
        sides = ["ours", "processes", "reference", "cached", *(["before"] if args.against else [])]
        sides += ["grain"] if importlib.util.find_spec("grain") else []
        options = ["--folder", name, "--seconds", str(args.seconds / args.rounds), "--batch_size", str(args.batch_size)]
        found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _, side in itertools.product(range(args.rounds), sides):
            found[side].append(_measure_in_process(side, options, args.against))
    medians = {
        side: {key: round(statistics.median(one[key] for one in of_side), 1) for key in of_side[0]}
        for side, of_side in found.items()
    }
    ours = medians["ours"]
    print(
        json.dumps(
            {
                "benchmark": "input_pipeline",
                **medians,
                "ratio_to_reference": round(ours["per_cpu_second"] / medians["reference"]["per_cpu_second"], 2),
                "ratio_of_processes": round(medians["processes"]["per_second"] / ours["per_second"], 2),
                "inputs": LENGTHS["inputs"],
                "targets": LENGTHS["targets"],
                "batch_size": args.batch_size,
                "cpus": os.cpu_count(),
            }
        )
    )


def _measure_in_process(side: str, options: list[str], against: str | None) -> dict[str, float]:
    # This file measures the other checkout too: its modules are found there first.
    root = pathlib.Path(against) if side == "before" and against else ROOT
    command = [str(ROOT / "benchmarks" / "input_pipeline.py"), "--side", "ours" if side == "before" else side, *options]
    out = _run(root, *command)
    return json.loads(out.splitlines()[-1])


def _run(root: pathlib.Path, *command: str) -> str:
    program = [sys.executable, *([] if command[0].endswith(".py") else ["-m"]), *command]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(program, env=environment, cwd=root, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
