"""The losses of `limba run` with AdamW, step by step beside a loop of PyTorch: warm-up, clipping, and what decays."""

import csv
import json

import gin
import numpy as np
import pytest

from limba.addons.run import command
from limba.reports import writers
from tests.convert import vocabularies

STEPS, WARMUP, RATE, DECAY = 6, 2, 1e-2, 0.1

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_checks")]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A T5 1.1 without dropout, and eight rows of different lengths, which are each batch."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("adamw", numbered=False)
    vocabularies.train(root / "spiece.model")
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 512}
    torch.manual_seed(0)
    config = transformers.T5Config(
        **sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.0, decoder_start_token_id=0
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(root / "hf")
    transformers.T5Tokenizer(str(root / "spiece.model"), extra_ids=100, legacy=False).save_pretrained(root / "hf")
    words = " ".join(vocabularies.sentences(40)).split()
    rows = [(" ".join(words[9 * i : 10 * i + 5]), " ".join(words[7 * i : 8 * i + 2])) for i in range(8)]
    with (root / "train.csv").open("w") as file:
        csv.writer(file).writerows([("text", "summary"), *rows])
    yield root
    gin.clear_config()


def _losses_of_pytorch(here, decays_all):
    """As of transformers' Trainer, or of a plain `torch.optim.AdamW(model.parameters())`."""
    import torch
    import transformers
    from transformers.trainer_pt_utils import get_parameter_names

    model = transformers.T5ForConditionalGeneration.from_pretrained(here / "hf")
    tokenizer = transformers.T5Tokenizer.from_pretrained(here / "hf", legacy=False)
    with (here / "train.csv").open() as file:
        rows = list(csv.DictReader(file))
    batch = tokenizer([x["text"] for x in rows], padding=True, return_tensors="pt")
    labels = tokenizer([x["summary"] for x in rows], padding=True, return_tensors="pt").input_ids
    labels[labels == 0] = -100
    # Trainer.get_decay_parameter_names
    patterns = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    decayed = get_parameter_names(model, [torch.nn.LayerNorm], patterns)
    groups = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[decays_all or name in decayed].append(parameter)
    optimizer = torch.optim.AdamW([{"params": x, "weight_decay": DECAY * decays} for decays, x in groups.items()], RATE)
    schedule = transformers.get_scheduler("linear", optimizer, WARMUP, STEPS)
    losses = []
    for _ in range(STEPS):
        loss = model(**batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [*losses, model(**batch, labels=labels).loss.item()]


def test_each_step_has_the_loss_of_pytorch(here, monkeypatch, one_device):
    """Where the norms do not decay, as with transformers' Trainer."""
    monkeypatch.chdir(here)
    gin.clear_config()
    out = here / "out"
    keys = {
        "model_name_or_path": "hf",
        "train_file": "train.csv",
        "validation_file": "train.csv",
        "output_dir": str(out),
    }
    keys |= {"text_column": "text", "summary_column": "summary", "max_source_length": 128, "max_target_length": 64}
    keys |= {"do_train": True, "do_eval": True, "max_steps": STEPS, "logging_steps": 1}
    keys |= {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, "predict_with_generate": False}
    keys |= {"learning_rate": RATE, "warmup_steps": WARMUP, "weight_decay": DECAY, "max_grad_norm": 1.0}
    (here / "run.json").write_text(json.dumps(keys))
    command.main([str(here / "run.json")])
    losses = [x["loss"] for x in writers.read_metrics(out / "run") if x["dataset"] == "train"]
    losses.append(json.loads((out / "all_results.json").read_text())["eval_loss"])
    expected = _losses_of_pytorch(here, decays_all=False)
    # Of gradients near 0 Adam's quotient magnifies the rounding: float64 in PyTorch differs as much from its float32.
    np.testing.assert_allclose(losses, expected, rtol=3e-5)
    other = _losses_of_pytorch(here, decays_all=True)
    assert abs(expected[-1] - other[-1]) > 3e-4  # which the tolerance would not hide
