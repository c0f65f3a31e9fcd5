"""LoRA as people use it: gin/runs/lora.gin after a model and gin/runs/finetune.gin, then evaluation and export."""

import logging

import gin
import jax
import numpy as np
import pytest

from convert.compare import forward
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba import infer, train
from limba.checkpoint_files import saved_tensors
from limba.checkpoints import checkpointing, train_state
from limba.gin_config import gin_files
from limba.models import EncoderDecoderModel
from tests.limba import small
from tests.test_finetuning import tasks  # noqa: F401

MODEL = """
from __gin__ import dynamic_registration
from limba.models import lora
from limba import train as train_script

include 'gin/models/t5_1_1/tiny.gin'
include 'gin/runs/{run}.gin'
{more}
include 'tests/small_training.gin'
DROPOUT_RATE = 0.0
MIXTURE_OR_TASK_NAME = 'finetuning_a'
PACK = False
"""
LORA = """
include 'gin/runs/lora.gin'
lora.LoRA.rank = 2
train_script.train.train_eval_dataset_cfg = None
train_script.train.infer_eval_dataset_cfg = None
train_script.train.run_eval_before_training = False
"""


def _file(folder, run, more=""):
    gin.clear_config()
    file = folder / f"{run}.gin"
    file.write_text(MODEL.format(run=run, more=more))
    return f"--gin_file={file}"


def _train(folder, run, model_dir, more, *bindings):
    assert train.main([_file(folder, run, more), f"--gin.MODEL_DIR='{model_dir}'", *bindings]) == 0


def _save_base(folder, model_dir):
    """A random model's checkpoint, with an optimizer state that LoRA has no use for."""
    gin_files.parse_gin_flags([_file(folder, "pretrain").partition("=")[2]], ["TRAIN_STEPS = 1", "MODEL_DIR = ''"], "")
    model = gin.get_configurable(EncoderDecoderModel)()
    initializer = train_state.TrainStateInitializer(model.optimizer_def, model.initial_variables, small.partitioner())
    checkpointer = checkpointing.Checkpointer(model_dir, checkpointing.SaveCheckpointConfig())
    checkpointer.save(initializer.from_scratch(jax.random.key(1)).replace(step=np.int32(1)), None, {})
    checkpointer.close()


def _tensors(run):
    return {name: np.asarray(t) for name, t in saved_tensors.open_tensors(checkpointing.find_checkpoint(run)).items()}


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_fine_tuning_becomes_lora_by_one_include(tmp_path, tasks, caplog, capsys):  # noqa: F811
    _save_base(tmp_path, tmp_path / "base")
    initial = f"--gin.INITIAL_CHECKPOINT_PATH='{tmp_path}/base/checkpoint_1'"
    with caplog.at_level(logging.INFO):
        _train(tmp_path, "finetune", tmp_path / "run", LORA, initial, "--gin.TRAIN_EPOCHS=0.4")
    assert "0.4 epochs of 40 rows in batches of 8 are 2 steps." in caplog.text
    assert "36 tensors are new and initialized, such as target/decoder/layers_0/encoder_decoder" in caplog.text
    assert "9,144 parameters (768 of them trained, 8.40%)" in caplog.text
    before, after = _tensors(tmp_path / "base"), _tensors(tmp_path / "run")
    assert int(after["state/step"]) == 3
    for name, tensor in after.items():
        if name in before and name.startswith("target/"):
            np.testing.assert_array_equal(tensor, before[name])
    factors = [name for name in after if name.endswith("/lora_b") and name.startswith("target/")]
    assert len(factors) == 18 and all(np.any(after[name]) for name in factors)
    statistics = {name for name in after if name.startswith("state/param_states/")}
    assert len(statistics) == 2 * 36 + 1 and all("/lora_" in name or name.endswith("/count") for name in statistics)

    # The export is an ordinary T5 with the logits of the adapter model.
    capsys.readouterr()
    answers = infer.main(["--run_dir", str(tmp_path / "run"), "--input", "number 3"])
    assert answers == 0 and "number 3\n  -> " in capsys.readouterr().out
    to_hf(tmp_path / "run", tmp_path / "export", verify=False)
    exported = any_format.open_model(tmp_path / "export")
    assert set(exported.tensors) == {n.removeprefix("target/") for n in before if n.startswith("target/")}
    bindings = ["TRAIN_STEPS = 1", "MODEL_DIR = ''", "INITIAL_CHECKPOINT_PATH = ''"]
    gin_files.parse_gin_flags([_file(tmp_path, "finetune", LORA).partition("=")[2]], bindings, "")
    model = gin.get_configurable(EncoderDecoderModel)()
    rng = np.random.default_rng(0)
    batch = {
        "encoder_input_tokens": rng.integers(3, 380, (2, 16), np.int32),
        "decoder_input_tokens": rng.integers(3, 380, (2, 8), np.int32),
        "decoder_target_tokens": rng.integers(3, 380, (2, 8), np.int32),
    }
    of_adapters = np.asarray(jax.jit(model.logits)(checkpointing.load_params(tmp_path / "run"), batch))
    of_export = forward.logits(exported.config, exported.tensors, batch)
    np.testing.assert_allclose(of_export, of_adapters, rtol=0, atol=1e-5)
