"""Exported, trained by transformers, which saves tokenizer.json alone, and trained on in Limba with its own task."""

import json
import os
import sys

import pytest

from convert.from_hf import from_hf
from convert.to_hf import to_hf
from limba.checkpoint_files import run_folder
from tasks import objectives
from tasks.pretraining import masked_text
from tasks.vocabularies import SentencePieceVocabulary, TokenizerVocabulary, same_vocabulary
from tests import line
from tests.convert import train_in_transformers
from tests.convert.encoders import conftest

TASK_MODULE = """
from tasks import objectives, pretraining
for name, vocabulary, objective in (
    ("trained_t5", {t5!r}, objectives.SpanCorruption()),
    ("trained_bert", {bert!r}, objectives.MaskedLM()),
):
    files = {{split: {text!r} for split in ("train", "validation")}}
    pretraining.register_pretraining_task(name, data_files=files, vocabulary=vocabulary, objective=objective)
"""
LENGTHS = {"t5": objectives.SpanCorruption(), "bert": objectives.MaskedLM()}


@pytest.fixture(scope="module")
def home(new_run, new_encoder, spiece_model, tokenizer_file, tmp_path_factory):
    """Exports of a T5 and of a BERT whose padding has another id, and tasks with the vocabularies of before."""
    home = tmp_path_factory.mktemp("home")
    small = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    to_hf(new_run(home / "t5_run", **small), home / "t5", verify=False)
    new_encoder(home / "bert_run", num_layers=1, **conftest.VARIANTS["roberta_prelayernorm"])
    to_hf(home / "bert_run", home / "bert", verify=False)
    text = home / "text.jsonl"
    text.write_text("\n".join(json.dumps({"text": f"w{i % 40 + 5} w7 ba ce " * 20}) for i in range(60)))
    module = TASK_MODULE.format(t5=str(spiece_model), bert=str(tokenizer_file), text=str(text))
    (home / "trained_tasks.py").write_text(module)
    return home


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("version", ["4", "5"])
def test_round_trip(home, version, spiece_model, tokenizer_file, forks5, forks, checks_in_forks):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pairs = [str(path) for name in LENGTHS for path in (home / name, home / f"{name}_by_{version}")]
    if version == "4":
        done = checks_in_forks([sys.executable, "-m", train_in_transformers.__name__, *pairs], env=environment)
    else:
        done = forks5.run(train_in_transformers.__file__, *pairs)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, objective in LENGTHS.items():
        folder, begun = home / f"{name}_by_{version}", home / f"{name}_begun_{version}"
        assert json.loads((folder / "tokenizer.json").read_text())["padding"]
        checkpoint = from_hf(folder, begun, verify=False)
        assert checkpoint.name == "checkpoint_11"
        record = run_folder.load_run_info(checkpoint)["vocabulary"]
        before = {
            "t5": SentencePieceVocabulary(str(spiece_model), 100),
            "bert": TokenizerVocabulary(str(tokenizer_file)),
        }
        assert same_vocabulary(masked_text.open_vocabulary(record), before[name])
        if version == "4":
            continue
        answer = line.forked(
            forks,
            home,
            *["limba.train", f"--gin_file={begun}/model.gin", "--gin_file=gin/runs/pretrain.gin"],
            f"--gin.INITIAL_CHECKPOINT_PATH='{begun}'",
            f"--gin.MODEL_DIR='{home}/{name}_mine_{version}'",
            f"--gin.MIXTURE_OR_TASK_NAME='trained_{name}'",
            "--gin.MIXTURE_OR_TASK_MODULE='trained_tasks'",
            f"--gin.TASK_FEATURE_LENGTHS={objectives.lengths(objective, 32)}",
            *["--gin.TRAIN_STEPS=12", "--gin.BATCH_SIZE=2", "--gin.EVAL_PERIOD=1000", "--gin.EVAL_STEPS=1"],
            PYTHONPATH=str(home),
        )
        assert answer.returncode == 0, answer.stderr[-3000:]
        assert (home / f"{name}_mine_{version}/checkpoint_12").is_dir()
