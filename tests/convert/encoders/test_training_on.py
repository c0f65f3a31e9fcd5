"""An encoder of transformers trains on in Limba, from the gin file that `from-hf` writes, and goes back."""

import json

import numpy as np
import pytest
import torch
import transformers

from convert.from_hf import from_hf
from convert.to_hf import to_hf
from limba.checkpoints import checkpointing
from tests.convert import training_on
from tests.convert.encoders import conftest

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
    corpus = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "validation")}
    training_on.train_on(tmp_path / "begun", corpus, tmp_path / "mine", total_steps=9)
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
