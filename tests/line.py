"""A corpus, a vocabulary and the flags of a run that takes seconds, for tests of the commands as people type them."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from tests import compilation
from tests import forked as forked_commands

ROOT = Path(__file__).parent.parent
WORDS = "the list of names is a file that holds each value in order and returns none when not found"


def write_corpus(directory: Path) -> None:
    """Sentences of a small grammar, in two training shards and one for validation."""
    rng = random.Random(0)
    directory.mkdir(parents=True)
    for name, documents in (("train-0", 300), ("train-1", 200), ("validation-0", 60)):
        with (directory / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for _ in range(documents):
                text = " ".join(rng.choices(WORDS.split(), k=rng.randint(20, 80))) + f" {rng.randint(0, 9999)}"
                file.write(json.dumps({"text": text}) + "\n")


def write_vocabulary(corpus: Path, file: Path) -> None:
    """256 pieces of what `write_corpus` wrote."""
    from tasks.sources import corpora
    from tasks.vocabularies import sentencepiece_training

    source = corpora.HuggingFaceSource({"train": str(corpus / "train-*.jsonl")})
    sentencepiece_training.train_vocabulary(source, str(file), vocab_size=256)


def environment(directory: Path, **extra: str) -> dict[str, str]:
    """What a new shell has: one CPU device, nothing of the tests' own settings but being offline and compiling fast."""
    env = {name: value for name, value in os.environ.items() if name != "LIMBA_TRACEBACK"}
    env["XLA_FLAGS"] = compilation.FAST
    own = {"LIMBA_QUICKSTART_DIR": str(directory), "LIMBA_LOGS": str(directory / "logs"), "JAX_PLATFORMS": "cpu"}
    return env | own | extra


def command(
    directory: Path, *arguments: str, typed: str | None = None, **extra_env: str
) -> subprocess.CompletedProcess:
    """Runs `python -m …` from the repository, with what is typed on its standard input, and returns what it said."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=environment(directory, **extra_env),
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def forked(server: forked_commands.Server, directory: Path, *arguments: str, **extra_env: str):
    """The same in a fork, which has the imports already."""
    return server.run(list(arguments), environment(directory, **extra_env))


def train_arguments(directory: Path, model_dir: Path, steps: int, *more: str) -> list[str]:
    """`limba.train` with the quickstart's recipe at a size of seconds."""
    return [
        "limba.train",
        "--gin_file=gin/recipes/quickstart.gin",
        f"--gin.MODEL_DIR='{model_dir}'",
        f"--gin.VOCABULARY_FILE='{directory}/vocab/spiece.model'",
        "--gin.VOCAB_SIZE=256",
        f"--gin.TRAIN_STEPS={steps}",
        "--gin.BATCH_SIZE=4",
        "--gin.EVAL_PERIOD=1000000",
        "--gin.objectives.span_corruption_lengths.inputs_length=32",
        "--gin.network.T5Config.emb_dim=16",
        "--gin.network.T5Config.num_heads=2",
        "--gin.network.T5Config.head_dim=8",
        "--gin.network.T5Config.mlp_dim=32",
        "--gin.network.T5Config.num_encoder_layers=1",
        "--gin.network.T5Config.num_decoder_layers=1",
        "--gin.network.T5Config.dtype='float32'",
        "--gin.DROPOUT_RATE=0.1",
        "--gin.train/data.DatasetConfig.num_readers=2",
        "--gin.train.stats_period=1",
        "--gin.optimizers.adamw_scale.vocab_rate=1.0",  # a hundred steps are enough to learn the first sentinel
        "--gin.checkpoints.SaveCheckpointConfig.period=20",
        *more,
    ]
