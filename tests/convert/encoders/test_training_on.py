"""An encoder of transformers trains on in Limba, from the gin file that `from-hf` writes, and goes back."""

import json

import gin
import numpy as np
import pytest
import torch
import transformers

from convert.from_hf import from_hf
from convert.to_hf import to_hf
from limba.checkpoints import checkpointing
from limba.data.contract import DatasetConfig
from limba.gin_config import gin_files
from limba.models import EncoderOnlyModel
from limba.network.encoders import encoder
from limba.optimizers import adafactor, schedules
from limba.train import train
from limba.training import trainer
from tasks import objectives, pretraining
from tasks.registry import TaskRegistry
from tasks.vocabularies import TokenizerVocabulary
from tests.convert.encoders import conftest
from tests.limba import small

SIZES = {"vocab_size": 64, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 20, "num_hidden_layers": 2}


@pytest.mark.slow
def test_training_on(tmp_path):
    torch.manual_seed(0)
    config = transformers.RobertaPreLayerNormConfig(**SIZES, max_position_embeddings=50, layer_norm_eps=1e-5)
    transformers.RobertaPreLayerNormForMaskedLM(config).save_pretrained(tmp_path / "theirs")
    special_tokens = [conftest.SPECIAL_TOKENS[i] for i in (1, 0, 2, 3, 4)]
    conftest.write_tokenizer(tmp_path / "theirs" / "tokenizer.json", special_tokens)
    from_hf(tmp_path / "theirs", tmp_path / "begun", verify=False, step=7)

    for split in ("train", "validation"):
        lines = [json.dumps({"text": f"w{i % 50 + 5} " * 60}) for i in range(60)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    vocabulary = TokenizerVocabulary(str(tmp_path / "begun/tokenizer.json"))
    task = pretraining.register_pretraining_task(
        "test_training_on",
        data_files={split: str(tmp_path / f"{split}.jsonl") for split in ("train", "validation")},
        vocabulary=vocabulary,
        objective=objectives.MaskedLM(),
    )
    gin.clear_config()
    gin_files.parse_gin_flags([str(tmp_path / "begun/model.gin")], ["encoder.EncoderConfig.dtype = 'float32'"])
    optimizer = adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules())
    model = EncoderOnlyModel(gin.get_configurable(encoder.MaskedLanguageModel)(), vocabulary, optimizer)
    try:
        train(
            model=model,
            train_dataset_cfg=DatasetConfig(
                task.name, objectives.lengths(objectives.MaskedLM(), 32), "train", 8, seed=0
            ),
            checkpoint_cfg=checkpointing.CheckpointConfig(
                save=checkpointing.SaveCheckpointConfig(period=2),
                restore=checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "begun")),
            ),
            partitioner=small.partitioner(),
            trainer_cls=lambda **arguments: trainer.Trainer(
                learning_rate_fn=schedules.create_learning_rate_scheduler("constant", 0.02), **arguments
            ),
            model_dir=str(tmp_path / "mine"),
            total_steps=9,
            eval_period=2,
            stats_period=2,
            random_seed=0,
        )
    finally:
        TaskRegistry.remove(task.name)
    assert (tmp_path / "mine/checkpoint_9/run/tokenizer.json").read_bytes() == (
        (tmp_path / "begun/tokenizer.json").read_bytes()
    )
    before, after = (
        checkpointing.load_params(tmp_path / name)["token_embedder"]["embedding"] for name in ("begun", "mine")
    )
    assert 0 < np.abs(before - after).max() < 1

    report = to_hf(tmp_path / "mine", tmp_path / "export")
    assert report["step"] == 9 and "fill-mask" in (tmp_path / "export/README.md").read_text()
    theirs, ours = (json.loads((tmp_path / name / "tokenizer.json").read_text()) for name in ("theirs", "export"))
    assert theirs["model"]["vocab"] == ours["model"]["vocab"] and ours["model"]["vocab"]["[PAD]"] == 1
    assert json.loads((tmp_path / "export/config.json").read_text())["pad_token_id"] == 1
    found = transformers.pipeline("fill-mask", model=str(tmp_path / "export"), device="cpu")("w7 w7 [MASK] w7 w7")
    assert len(found) == 5 and found[0]["score"] > 1 / 64
