"""The whole line as a user types it: corpus, vocabulary, training, kill -9, export, filling blanks, and bad input."""

import contextlib
import json
import random
import signal
import time
from pathlib import Path

import pytest

from convert import to_hf
from tests import line

STEPS = 120
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def directory(tmp_path_factory, forks):
    """With `corpus/` and `vocab/spiece.model`."""
    made = tmp_path_factory.mktemp("line")
    line.write_corpus(made / "corpus")
    built = line.forked(
        forks,
        made,
        "limba",
        *("vocab", "build"),
        f"--data_files={made}/corpus/train-*.jsonl",
        "--vocab_size=256",
        f"--out={made}/vocab/spiece.model",
    )
    assert built.returncode == 0, built.stderr
    return made


@pytest.fixture(scope="module")
def uninterrupted(directory, forks):
    """The model directory of a run from beginning to end."""
    model_dir = directory / "whole"
    result = line.forked(forks, directory, *line.train_arguments(directory, model_dir, STEPS))
    assert result.returncode == 0, result.stderr
    return model_dir


def _train_lines(model_dir):
    path = model_dir / "metrics.jsonl"
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue  # being written
    return [x for x in lines if x["dataset"] == "train"]


class _Reached:
    """Whether a run has reached a step. Its file is read again only when it has grown: this is asked all the time."""

    def __init__(self, model_dir, step):
        self.model_dir, self.step, self.size, self.is_reached = model_dir, step, -1, False

    def __bool__(self):
        path = self.model_dir / "metrics.jsonl"
        if not self.is_reached and path.exists() and (size := path.stat().st_size) != self.size:
            self.size = size
            self.is_reached = any(x["step"] >= self.step for x in _train_lines(self.model_dir))
        return self.is_reached


def _unfinished(model_dir):
    """What Orbax is writing, and renames when all of it is there."""
    return list(model_dir.glob("checkpoint_*.orbax-checkpoint-tmp*"))


def _wait_until_it_stands_still(pid):
    """Or has ended; each thread: the file system is asked by others than the first."""
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            while task.read_text().rpartition(")")[2].split()[0] not in "TXZ":
                time.sleep(0.0005)


def test_sigkill_inside_a_save_at_a_random_step_changes_nothing(directory, uninterrupted, forks):
    model_dir = directory / "killed"
    arguments = line.train_arguments(directory, model_dir, STEPS)
    # Three saves follow: on a busy machine a look can miss one.
    kill_at = random.Random(time.time_ns()).randint(5, STEPS // 2)
    with (directory / "killed.log").open("a") as log:
        process = forks.start(arguments, line.environment(directory), log, log)
        reached = _Reached(model_dir, kill_at)
        while process.poll() is None:
            if reached and _unfinished(model_dir):
                process.send_signal(signal.SIGSTOP)
                _wait_until_it_stands_still(process.pid)
                # It may have renamed the folder before it stood still.
                if _unfinished(model_dir):
                    process.kill()
                    process.wait(60)  # No signal may follow: its number may be free before its end is told.
                else:
                    process.send_signal(signal.SIGCONT)
            time.sleep(0.001)
    assert process.returncode == -signal.SIGKILL, (kill_at, (directory / "killed.log").read_text()[-2000:])
    assert _unfinished(model_dir)

    result = line.forked(forks, directory, *line.train_arguments(directory, model_dir, STEPS))
    assert result.returncode == 0, result.stderr
    expected = [(x["step"], x["loss"], x["accuracy"]) for x in _train_lines(uninterrupted)]
    assert len(expected) == STEPS
    # Equal to the last bit; a batch that differed in one token would show.
    assert [(x["step"], x["loss"], x["accuracy"]) for x in _train_lines(model_dir)] == expected, kill_at


def test_it_learns(uninterrupted):
    lines = (json.loads(text) for text in (uninterrupted / "metrics.jsonl").read_text().splitlines())
    evaluations = [x for x in lines if x["dataset"].startswith("training_eval/")]
    assert evaluations[0]["step"] == 0 and evaluations[-1]["step"] == STEPS
    assert evaluations[-1]["nats_per_target_token"] < 0.8 * evaluations[0]["nats_per_target_token"]


def test_export_eval_and_infer(directory, uninterrupted, forks):
    def run(*arguments):
        done = line.forked(forks, directory, *map(str, arguments))
        assert done.returncode == 0, done.stderr
        return done.stdout

    to_hf.to_hf(uninterrupted, directory / "hf", verify=False)  # tests/convert/test_to_hf.py has the check
    names = {path.name for path in (directory / "hf").iterdir()}
    assert names >= {
        "model.safetensors",
        "flax_model.msgpack",
        "config.json",
        "generation_config.json",
        "spiece.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
    }

    filled = run("limba.infer", "--run_dir", uninterrupted, "--input", "the list <extra_id_0> names")
    assert filled.splitlines()[0] == "the list ___ names"
    assert "  -> the list" in filled

    run(
        "limba.eval",
        f"--gin_file={uninterrupted}/config.gin",
        "--gin_file=gin/runs/eval.gin",
        f"--gin.CHECKPOINT_PATH='{uninterrupted}'",
        f"--gin.EVAL_OUTPUT_DIR='{directory}/eval'",
    )
    report = json.loads((directory / "eval" / "quickstart_span_corruption-metrics.json").read_text())
    lines = [json.loads(text) for text in (uninterrupted / "metrics.jsonl").read_text().splitlines()]
    trained = [x for x in lines if x["dataset"].startswith("training_eval/")][-1]
    assert report["nats_per_target_token"] == pytest.approx(trained["nats_per_target_token"], rel=1e-5)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            ["--gin.MIXTURE_OR_TASK_NAME='quickstart_span_coruption'"],
            ["'quickstart_span_coruption'", "'quickstart_span_corruption'"],
        ),
        (["--gin.VOCAB_SIZE=128"], ["256 tokens", "128 rows", "T5Config.vocab_size"]),
        (["--gin.VOCABULARY_FILE='/nowhere/spiece.model'"], ["/nowhere/spiece.model"]),
    ],
)
def test_bad_input_is_one_message_before_training(directory, forks, tmp_path, more, words):
    model_dir = tmp_path / "model"
    result = line.forked(forks, directory, *line.train_arguments(directory, model_dir, 5, *more))
    assert result.returncode == 1
    errors = [text for text in result.stderr.splitlines() if text.startswith("error:")]
    assert len(errors) == 1 and "Traceback" not in result.stderr, result.stderr
    for word in words:
        assert word in errors[0]
    assert not (model_dir / "metrics.jsonl").exists()


def test_missing_and_empty_corpora(directory, forks, tmp_path):
    for name, content, word in (
        ("missing", None, "corpus"),
        ("empty", "", "empty"),
        ("column", '{"txt": "a"}', "text"),
    ):
        place = tmp_path / name
        (place / "vocab").mkdir(parents=True)
        (place / "vocab" / "spiece.model").write_bytes((directory / "vocab" / "spiece.model").read_bytes())
        if content is not None:
            (place / "corpus").mkdir()
            for split in ("train", "validation"):
                (place / "corpus" / f"{split}-0.jsonl").write_text(content + "\n" if content else "")
        arguments = line.train_arguments(place, place / "model", 5)
        result = line.forked(forks, place, *arguments)
        assert result.returncode == 1, name
        errors = [text for text in result.stderr.splitlines() if text.startswith("error:")]
        assert len(errors) == 1 and word in errors[0], result.stderr
        assert "Traceback" not in result.stderr
