"""A classifier of tokens on the encoder of a T5 converts both ways, trains on and answers as transformers does."""

import json
import re
import shutil

import gin
import numpy as np
import pytest
import safetensors.numpy

from convert.compare import comparison
from convert.families import heads
from convert.from_hf import from_hf
from convert.model_files.any_format import open_model
from convert.to_hf import to_hf
from limba import models
from limba.addons.run import starting_model
from limba.checkpoints import checkpointing
from limba.gin_config import gin_files
from limba.inference import answering
from tasks import supervised
from tasks.registry import TaskRegistry
from tests.convert import recorded
from tests.limba import small
from tests.limba.network.encoders import short_training

LABELS = ["O", "B-PER", "I-PER"]
SIZES = {"vocab_size": 512, "d_model": 16, "d_kv": 4, "d_ff": 20, "num_layers": 2, "num_heads": 3}


@pytest.fixture(scope="module", params=["T5", "MT5", "UMT5"])
def folder(request, tmp_path_factory, spiece_model):
    """As transformers saves it, with random numbers everywhere."""
    # The record has the folder's name, and a numbered one depends on which tests ran before.
    return _save(request.param, tmp_path_factory.mktemp("tokens") / request.param, spiece_model)


def _save(name, path, spiece_model):
    import torch
    import transformers

    rng = np.random.default_rng(0)
    named = {"id2label": dict(enumerate(LABELS)), "label2id": {label: i for i, label in enumerate(LABELS)}}
    config = getattr(transformers, f"{name}Config")(**SIZES, **named, tie_word_embeddings=False)
    classifier = getattr(transformers, f"{name}ForTokenClassification")(config)
    for parameter in classifier.parameters():
        parameter.data = torch.from_numpy(rng.normal(0, 0.5, tuple(parameter.shape)).astype(np.float32))
    classifier.save_pretrained(path)
    shutil.copy(spiece_model, path / "spiece.model")
    return path


@pytest.fixture(scope="module")
def t5(tmp_path_factory, spiece_model):
    return _save("T5", tmp_path_factory.mktemp("alone") / "folder", spiece_model)


def test_both_ways(folder, tmp_path):
    content = json.loads((folder / "config.json").read_text())
    checkpoint = from_hf(folder, tmp_path / "run")
    report = json.loads((checkpoint / "conversion_report.json").read_text())
    rows = {row["what"]: row for rows in report["comparisons"].values() for row in rows}
    assert all(rows[f"logits, A in {where}"]["value"] <= 1e-4 for where in ("PyTorch", "NumPy"))
    assert not any("loss" in what or "greedy" in what for what in rows)
    info = checkpointing.load_run_info(checkpoint)
    head = {"activation": None, "use_norm": False, "dense_bias": True, "drop_inputs": False}
    assert info["labels"] == LABELS and info["head"] == {"class": "TokenClassifier"} | head

    report = to_hf(tmp_path / "run", tmp_path / "hf", verify=content["model_type"] == "mt5")
    assert report["formats"] == ["safetensors"]
    again = json.loads((tmp_path / "hf/config.json").read_text())
    assert again["architectures"] == content["architectures"] and again["id2label"] == content["id2label"]
    theirs, ours = (safetensors.numpy.load_file(path / "model.safetensors") for path in (folder, tmp_path / "hf"))
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(ours[name], tensor)
    recorded.compare(f"{content['model_type']} tokens", tmp_path / "hf", report, checkpoint)


def test_it_trains_on_and_answers_as_transformers(t5, tmp_path):
    import torch
    import transformers

    from_hf(t5, tmp_path / "begun", verify=False)
    rows = [{"tokens": ["ba", "cefi", "ba"], "tags": ["B-PER", "I-PER", "O"]}] * 32
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gin.clear_config()
    gin_files.parse_gin_flags([str(tmp_path / "begun/model.gin")], ["network.T5Config.dtype = 'float32'"])
    model = gin.get_configurable(models.EncoderClassifier)()
    restore = checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "begun"))
    task = supervised.register_token_task(
        "test_t5_names",
        supervised.TokenDataset(LABELS),
        data_files={split: str(tmp_path / "rows.jsonl") for split in ("train", "validation")},
        vocabulary=model.input_vocabulary,
    )
    lengths = {"inputs": 16, "targets": 16}
    try:
        metrics = short_training.metrics_of_training(
            model, task.name, lengths, tmp_path / "run", steps=2, restore=restore
        )
    finally:
        TaskRegistry.remove(task.name)
    (evaluated,) = (x for x in metrics if x["dataset"] == f"inference_eval/{task.name}")
    assert 0 <= evaluated["eval/accuracy"] <= 100 and "eval/entity_f1" in evaluated

    answerer = answering.Answerer(
        model=model,
        restore_checkpoint_cfg=checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "run")),
        partitioner=small.partitioner(),
    )
    words = ["ba", "Cefi", "!", "soșâ", "ﬁne", "ba"]
    (answer,) = answerer.answer([" ".join(words)])
    to_hf(tmp_path / "run", tmp_path / "hf", verify=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    exported = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "hf").eval()
    batch = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    assert batch["input_ids"][0, :-1].tolist() == model.input_vocabulary.encode_words([words])[0].ids
    with torch.no_grad():
        best = exported(batch["input_ids"]).logits[0].argmax(-1).tolist()
    labels = [LABELS[best[batch.word_ids().index(number)]] for number in range(len(words))]
    assert answer.prediction.split() == labels
    card = (tmp_path / "hf/README.md").read_text()
    assert "pipeline_tag: token-classification" in card and "A T5 1.1 token classifier of" in card
    assert "Labels: `O`, `B-PER`, `I-PER`." in card


def test_a_config_alone_becomes_a_gin_file(t5, tmp_path):
    shutil.copy(t5 / "config.json", tmp_path / "config.json")
    gin_file = from_hf(tmp_path / "config.json", tmp_path / "run").read_text()
    assert "LABELS = ['O', 'B-PER', 'I-PER']" in gin_file and "@classifier.TokenClassifier()" in gin_file


def test_other_labels_are_another_model(t5, tmp_path):
    shutil.copytree(t5, tmp_path / "other")
    content = json.loads((t5 / "config.json").read_text())
    content["id2label"] = {str(i): label for i, label in enumerate("abc")}
    (tmp_path / "other/config.json").write_text(json.dumps(content))
    message = f"A ({t5}) is a classifier of ['O', 'B-PER', 'I-PER'] and B ({tmp_path}/other) is a classifier of ['a', "
    with pytest.raises(ValueError, match=re.escape(message)):
        comparison.compare(open_model(t5), open_model(tmp_path / "other"))
    content["id2label"] |= {"3": "d"}
    (tmp_path / "other/config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"classifier\.weight has shape \(3, 16\) instead of \(4, 16\)"):
        open_model(tmp_path / "other")


def test_what_cannot_be_is_refused(t5, tmp_path):
    words = r"is a TokenClassifier of the labels O, B-PER, I-PER, and a new network, or a T5, begins without labels"
    with pytest.raises(ValueError, match=words):
        starting_model.open_model(str(t5), None, None)
    with pytest.raises(ValueError, match=r"is a TokenClassifier of the labels"):
        starting_model.open_model(None, str(t5 / "config.json"), None)
    checkpoint = from_hf(t5, tmp_path / "run", verify=False)
    with pytest.raises(ValueError, match="--format flax: transformers never had it for all classes such as T5ForToken"):
        to_hf(checkpoint, tmp_path / "hf", formats=["flax"])
    info = checkpointing.load_run_info(checkpoint)
    of_mean = {"class": "SequenceClassifier", "pooling": "mean"}
    for fields, reason in (
        (of_mean, "it labels the mean of a row, T5ForTokenClassification each token, and others the decoder's output"),
        ({"activation": "tanh"}, "its activation is 'tanh', and that of T5ForTokenClassification None"),
    ):
        with pytest.raises(ValueError, match=f"no class of Hugging Face holds it: {reason}"):
            heads.on_t5(info | {"head": info["head"] | fields}, checkpoint)
