"""Predictions are the same through `limba eval`, `limba infer` and the exported model in transformers."""

import json

import gin
import pytest
import seqio
import tensorflow as tf
import torch
import transformers

from convert import to_hf
from limba import eval, infer, train
from limba.checkpoints import checkpointing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]

TASK = "predictions_agree"
INPUTS = [f"{n} and {n % 7}" for n in range(3, 60, 4)]
CONFIG = """
from __gin__ import dynamic_registration
from limba.network import t5 as network
from limba.optimizers import schedules
from limba import train as train_script

include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/pretrain.gin'
include 'tests/small_training.gin'

BATCH_SIZE = 16
EVAL_PERIOD = 1000
TRAIN_STEPS = 200
PACK = False
network.T5Config:
  emb_dim = 64
  num_heads = 4
  head_dim = 16
  mlp_dim = 128
schedules.create_learning_rate_scheduler:
  factors = 'constant'
  base_learning_rate = 0.03
"""
GREEDY = ["--gin.models.EncoderDecoderModel.decode_fn=@decoding.temperature_sample"]
# Without a length penalty, which transformers computes otherwise.
BEAMS = [
    "--gin.models.EncoderDecoderModel.decode_fn=@decoding.beam_search",
    "--gin.decoding.beam_search.alpha=0.0",
    "--gin.MODEL/models.EncoderDecoderModel.default_decoder_params=@models.DecoderParams()",
    "--gin.models.DecoderParams.num_decodes=4",
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A model that has learnt a little of `12 and 5` -> `17`: enough to end its answers, too little to be sure."""

    def examples(split, shuffle_files, seed=None):
        texts = [f"{n} and {m}" for n in range(60) for m in range(7)] if split == "train" else INPUTS
        answers = [str(sum(map(int, text.split(" and ")))) for text in texts]
        return tf.data.Dataset.from_tensor_slices({"inputs": texts, "targets": answers})

    feature = seqio.Feature(seqio.ByteVocabulary(), add_eos=True)
    seqio.TaskRegistry.add(
        TASK,
        source=seqio.FunctionDataSource(examples, splits=["train", "validation"]),
        preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
        output_features={"inputs": feature, "targets": feature},
        metric_fns=[_exact],
    )
    folder = tmp_path_factory.mktemp("predictions")
    (folder / "run.gin").write_text(CONFIG)
    flags = [f"--gin.MODEL_DIR='{folder}/run'", f"--gin.MIXTURE_OR_TASK_NAME='{TASK}'"]
    assert _command(train, f"--gin_file={folder}/run.gin", *flags) == 0
    yield folder / "run"
    seqio.TaskRegistry.remove(TASK)


def _exact(targets, predictions):
    return {"exact": 100 * sum(t == p for t, p in zip(targets, predictions, strict=True)) / len(targets)}


def _command(module, *arguments):
    gin.clear_config()
    try:
        return module.main(list(arguments))
    finally:
        gin.clear_config()


def _lines(path, name="prediction"):
    return [json.loads(line)[name] for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def exported(run_dir):
    """The model in transformers, and its tokenizer."""
    folder = run_dir.parent / "hf"
    to_hf.to_hf(str(run_dir), str(folder), verify=False)
    return (
        transformers.T5ForConditionalGeneration.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
    )


@pytest.mark.parametrize(("name", "way", "beams"), [("greedy", GREEDY, 1), ("beams", BEAMS, 4)])
def test_the_same_predictions_everywhere(run_dir, exported, tmp_path, name, way, beams):
    checkpoint = checkpointing.find_checkpoint(run_dir)
    out = tmp_path / "eval"
    assert _command(eval, "--run_dir", str(run_dir), "--output_dir", str(out), *way) == 0
    by_eval = _lines(out / "inference_eval" / f"{TASK}-000200.jsonl")

    files = [f"--gin_file={checkpoint}/run/config.gin", "--gin_file=gin/runs/infer.gin"]
    where = [f"--gin.CHECKPOINT_PATH='{checkpoint}'", f"--gin.INFER_OUTPUT_DIR='{tmp_path}'"]
    assert _command(infer, *files, *where, *way) == 0
    by_infer = _lines(tmp_path / f"{TASK}-predict.jsonl-00000-of-00001")

    (tmp_path / "lines.txt").write_text("\n".join(INPUTS) + "\n")
    flags = ["--greedy"] if beams == 1 else [f"--beams={beams}", "--alpha=0"]
    flags += ["--max_decode_length=8", "--input_file", str(tmp_path / "lines.txt")]
    assert _command(infer, "--run_dir", str(run_dir), *flags, "--output_file", str(tmp_path / "answers.jsonl")) == 0
    by_lines = _lines(tmp_path / "answers.jsonl")

    model, tokenizer = exported
    tokens = tokenizer(INPUTS, return_tensors="pt", padding=True)
    with torch.no_grad():
        generated = model.generate(**tokens, num_beams=beams, length_penalty=0.0, do_sample=False)
    by_transformers = tokenizer.batch_decode(generated, skip_special_tokens=True)

    assert by_eval == by_infer == by_lines == by_transformers
    assert len(set(by_eval)) > 3 and all(text.isdigit() for text in by_eval), by_eval
