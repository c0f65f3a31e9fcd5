"""What `limba corpus` is good for: the quickstart's network on kept and on raw text, evaluated on the same clean text.

    python -m benchmarks.kept_and_raw --crawl runs/gigabyte --out killed --work runs/kept --steps 1500 --seeds 0

CRAWL is the folder of `benchmarks.corpus_gigabyte`: the raw text is its crawl, the kept text a corpus in it, and the
clean text its documents that are not in the crawl. Both sides have the vocabulary of the kept text, the same seeds and
steps, and begin from counts of their own text, as the quickstart does. Prints nats per token of text, renormalized, of
the clean text, before and after training.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import startup

_FOLDER, _CORPUS, _WORK = "KEPT_AND_RAW_FOLDER", "KEPT_AND_RAW_CORPUS", "KEPT_AND_RAW_WORK"
_TASK = "{side}_text_{purpose}"
_SHARES = {"training": 0.33, "evaluation": 0.15}  # the share of masked text, as in the quickstart
_LOSS = "nats_per_text_token_renormalized"

if _FOLDER in os.environ:  # in a training, which imports this module
    from limba.tasks.pretraining import register_pretraining_task

    _files = {"kept": f"{os.environ[_CORPUS]}/crawl/train-*.jsonl.zst", "raw": "crawl/*.jsonl.zst"}
    for _side, _pattern in _files.items():
        for _purpose, _share in _SHARES.items():
            _folder = Path(os.environ[_FOLDER])
            register_pretraining_task(
                _TASK.format(side=_side, purpose=_purpose),
                data_files={"train": str(_folder / _pattern), "validation": str(_folder / "clean.jsonl")},
                vocabulary=f"{os.environ[_WORK]}/spiece.model",
                noise_density=_share,
            )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kept_and_raw",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--crawl", required=True, type=Path, help="the folder of benchmarks.corpus_gigabyte")
    parser.add_argument("--out", default="undisturbed", help="the corpus in it: killed or undisturbed")
    parser.add_argument("--work", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--sides", nargs="+", choices=("kept", "raw"), default=["kept", "raw"])
    flags = parser.parse_args(argv)
    crawl, work = flags.crawl.resolve(), flags.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    vocabulary = work / "spiece.model"
    environment = startup.environment(startup.Side(startup.HERE), work, work / "cache")
    environment |= {_FOLDER: str(crawl), _CORPUS: flags.out, _WORK: str(work)}

    def limba(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "limba", *words], cwd=startup.HERE, env=environment, check=True)

    if not vocabulary.is_file():
        first = sorted((crawl / flags.out / "crawl").glob("train-*.jsonl.zst"))[0]
        limba("vocab", "build", "--data_files", str(first), "--vocab_size", "4096", "--out", str(vocabulary))
    for seed in flags.seeds:
        for side in flags.sides:
            run = work / f"{side}-{seed}-{flags.steps}"
            training, evaluation = (_TASK.format(side=side, purpose=purpose) for purpose in _SHARES)
            limba(
                "train",
                "--gin_file=gin/recipes/quickstart.gin",
                "--gin.MIXTURE_OR_TASK_MODULE='benchmarks.kept_and_raw'",
                f"--gin.MIXTURE_OR_TASK_NAME='{evaluation}'",
                f"--gin.train/data.DatasetConfig.mixture_or_task_name='{training}'",
                f"--gin.VOCABULARY_FILE='{vocabulary}'",
                f"--gin.MODEL_DIR='{run}'",
                f"--gin.TRAIN_STEPS={flags.steps}",
                f"--gin.EVAL_PERIOD={flags.steps}",
                f"--gin.RANDOM_SEED={seed}",
                f"--gin.DATASET_SEED={seed}",
            )
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
            losses = {line["step"]: line[_LOSS] for line in lines if _LOSS in line and "eval" in line["dataset"]}
            print(f"{side}, seed {seed}: {losses}", flush=True)


if __name__ == "__main__":
    main()
