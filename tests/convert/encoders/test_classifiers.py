"""Classes of classifiers, both ways: logits are those of transformers 4 and 5, whose pipelines give the labels."""

import dataclasses
import json
import os
import re
import shutil
import sys

import gin
import numpy as np
import pytest

from convert.__main__ import main as convert_main
from convert.compare import encoder_outputs
from convert.families import heads
from convert.families.table import find_encoder
from convert.from_hf import from_hf
from convert.model_files import any_format
from limba import models
from limba.checkpoint_files import run_folder
from limba.checkpoints import checkpointing
from limba.gin_config import gin_files
from limba.network.encoders.config import EncoderConfig
from tests.convert import recorded
from tests.convert.encoders import conftest
from tests.convert.encoders.test_both_ways import SIZES

EXPORTED = conftest.CLASSIFIERS


@pytest.mark.parametrize("name", conftest.CLASSIFIERS)
def test_exports_give_the_logits_of_transformers_4_and_of_numpy(name, exported):
    folder, report = exported[name]
    found = conftest.largest(report, "safetensors")
    print(name, found)
    is_there = conftest.CLASSIFIERS[name][0] not in conftest.OF_5_ALONE
    assert {"NumPy"} | ({"PyTorch"} if is_there else set()) <= found.keys() and max(found.values()) < 1e-5
    content = json.loads((folder / "config.json").read_text())
    kind = conftest.CLASSIFIERS[name][1].kind
    assert content["architectures"][0].endswith(f"For{kind}")
    if name == "bert number":
        assert content["id2label"] == {"0": "similarity"} and content["problem_type"] == "regression"
        return
    if name in ("bert several", "mpnet numbers"):
        problem, noun = {
            "bert several": ("multi_label_classification", "A BERT classifier of several labels"),
            "mpnet numbers": ("regression", "A MPNet regressor"),
        }[name]
        card = (folder / "README.md").read_text()
        assert content["problem_type"] == problem and noun in card and "top_k=None" in card
        return
    assert content["id2label"] == {"0": "glad", "1": "calm", "2": "sad"}
    assert content["label2id"] == {"glad": 0, "calm": 1, "sad": 2}
    assert content.get("problem_type") == {heads.SEQUENCE: "single_label_classification"}.get(kind)


@pytest.mark.parametrize("name", conftest.CLASSIFIERS)
def test_exports_give_the_logits_and_labels_of_transformers_5(name, exported, in_5):
    folder, _ = exported[name]
    inputs, model = conftest.batch(name, folder)
    tokens = conftest.exchange(model.pad_id)[inputs["input_ids"]]
    ours = encoder_outputs.limba_logits(
        model, {"tokens": tokens, "token_types": inputs.get("token_type_ids", np.zeros_like(tokens))}
    )
    theirs = in_5[name]["logits"].reshape(ours.shape)
    real = np.ones(ours.shape[:2], bool) if ours.shape[1] == 1 else tokens != 0
    assert np.abs(ours).max() > 0.3 and np.ptp(ours, axis=0).max() > 0.05
    assert np.abs(ours - theirs)[real].max() < 1e-5

    found = json.loads(str(in_5[name]["found"]))
    assert not found["lost"] and not found["extra"]
    row = np.zeros_like(tokens)
    row[0, :6] = [2, 7, 9, 4, 6, 3]  # the pipeline's text
    logits = encoder_outputs.limba_logits(model, {"tokens": row, "token_types": np.zeros_like(row)})[0]
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    if name in ("bert several", "mpnet numbers"):
        expected = 1 / (1 + np.exp(-logits[0])) if name == "bert several" else logits[0]
        if name == "mpnet numbers":  # which the pipeline of version 5 leaves as they are only if it is told
            return
        for answer in found["answers"]:
            assert float(answer["score"]) == pytest.approx(expected[conftest.LABELS.index(answer["label"])], abs=1e-5)
        assert len(found["answers"]) == 3
    elif name == "bert number":
        (answer,) = found["answers"]
        assert answer["label"] == "similarity" and float(answer["score"]) == pytest.approx(logits[0, 0], abs=1e-5)
    elif logits.shape[0] == 1:
        for answer in found["answers"]:
            assert float(answer["score"]) == pytest.approx(shares[0, conftest.LABELS.index(answer["label"])], abs=1e-5)
        assert len(found["answers"]) == 3
    else:
        assert {int(x["index"]): x["entity"] for x in found["answers"]} == {
            place: conftest.LABELS[shares[place].argmax()] for place in (1, 2, 4)
        } | {int(x["index"]): x["entity"] for x in found["answers"] if x["index"] == 3}


@pytest.mark.parametrize(
    "name",
    [
        "bert rows",
        "bert number",
        "bert several",
        "mpnet tokens",
        "roformer rows",
        "modernbert rows",
        "modernbert tokens",
    ],
)
def test_what_transformers_5_saves_again_comes_back(name, exported, in_5, tmp_path):
    folder, _ = exported[name]
    checkpoint = from_hf(f"{folder}_again", tmp_path / "back", verify=False)
    original, back = any_format.open_model(folder.parent / f"run_{name}"), any_format.open_model(checkpoint)
    # Dropout is the class's, and where nothing is computed with a field, its default.
    assert dataclasses.replace(back.head, drop_inputs=False) == original.head
    assert original.tensors.keys() == back.tensors.keys()
    for path, tensor in any_format.open_model(folder).tensors.items():
        np.testing.assert_array_equal(np.asarray(tensor), np.asarray(back.tensors[path]), err_msg=path)


NEW = {
    "rows": ("BertForSequenceClassification", {"max_position_embeddings": 48, "layer_norm_eps": 0.01}),
    "number": (
        "RobertaPreLayerNormForSequenceClassification",
        {"max_position_embeddings": 50, "pad_token_id": 0, "id2label": {0: "much"}},
    ),
    "tokens": (
        "ModernBertForTokenClassification",
        {"local_attention": 8, "norm_eps": 0.01, "pad_token_id": 0, "classifier_activation": "silu"}
        # As in ModernBERT-base's file: the class that labels words reads no pooling.
        | {"classifier_pooling": "mean"}
        | {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    ),
}


@pytest.fixture(scope="module")
def new_folders(tmp_path_factory, checks_in_forks):
    """Folders that transformers 4 made."""
    home = tmp_path_factory.mktemp("new")
    labels = {"id2label": {0: "no", 1: "yes", 2: "don't know"}}
    new = [(cls, SIZES | labels | settings, str(home / name)) for name, (cls, settings) in NEW.items()]
    (home / "request.json").write_text(json.dumps({"version": "4", "new": new}))
    command = [sys.executable, "-m", "tests.convert.encoders.run_in_transformers", str(home / "request.json")]
    done = checks_in_forks(command, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    for name in NEW:
        conftest.write_tokenizer(home / name / "tokenizer.json", conftest.SPECIAL_TOKENS)
        (home / name / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return home


@pytest.mark.parametrize("name", NEW)
def test_classifiers_of_transformers_become_checkpoints_with_their_logits(name, new_folders, tmp_path, capsys):
    assert convert_main(["from-hf", str(new_folders / name), str(tmp_path / "run")]) == 0
    assert "--gin_file=gin/runs/finetune.gin --gin.PACK=False" in capsys.readouterr().out
    checkpoint = checkpointing.find_checkpoint(tmp_path / "run")
    report = json.loads((checkpoint / "conversion_report.json").read_text())
    found = conftest.largest(report, "orbax")
    assert found.keys() == {"PyTorch", "NumPy"} and max(found.values()) < 1e-5

    # What `limba infer --run_dir` reads makes the same network.
    gin.clear_config()
    gin_files.parse_gin_flags([str(tmp_path / "run" / "model.gin")], [])
    model = gin.query_parameter("%MODEL").scoped_configurable_fn()
    record = run_folder.load_run_info(checkpoint)
    assert type(model) is (models.EncoderRegressor if name == "number" else models.EncoderClassifier)
    labels = ["much"] if name == "number" else ["no", "yes", "don't know"]
    assert list(model.output_vocabulary.labels) == record["labels"] == labels
    assert model.module.head_record == record["head"] == any_format.open_model(checkpoint).head.record["head"]
    assert record["head"]["activation"] == {"rows": "tanh", "number": "tanh", "tokens": "silu"}[name]


def test_check_tells_labels_and_kinds_apart(exported, tmp_path, capsys):
    folder, _ = exported["bert rows"]
    run = str(folder.parent / "run_bert rows")
    # The inputs and outputs of other tests lie there, too.
    export = shutil.copytree(folder, tmp_path / "export", ignore=shutil.ignore_patterns("*.npz"))
    assert convert_main(["check", run, str(export)]) == 0
    assert convert_main(["check", run, str(exported["bert tokens"][0])]) == 1
    assert "is a SequenceClassifier of ['glad', 'calm', 'sad'] and B" in capsys.readouterr().err


# ---------------------------------------------------- what is refused -----------------------------------------------

_ROW = heads.Head(heads.SEQUENCE, conftest.LABELS, "tanh")
_GATED = dataclasses.replace(_ROW, use_norm=True)


@pytest.mark.parametrize(
    ("variant", "head", "words"),
    [
        ("bert", {"pooling": "mean"}, "BertForSequenceClassification, its EncoderConfig or SequenceClassifier would"),
        ("bert", {"pooling": "mean"}, "pooling is 'mean', and must be 'first'"),
        ("bert", {"activation": "relu"}, "activation is 'relu', and must be 'tanh'"),
        ("mpnet", {"use_norm": True}, "use_norm is True, and must be False"),
        ("roberta_prelayernorm", {"dense_bias": False}, "dense_bias is False, and must be True"),
        ("roformer", {}, "activation is 'tanh', and must be 'gelu_erf'"),
        ("modernbert", {"activation": "gelu_erf"}, "use_norm is False, and must be True"),
        ("modernbert", {"use_norm": True}, "activation is 'tanh', and must be 'gelu_erf' or 'gelu' or"),
        ("bert", {"kind": heads.TOKENS}, "BertForTokenClassification, its EncoderConfig or TokenClassifier would"),
        ("bert", {"kind": heads.TOKENS}, "activation is 'tanh', and must be None"),
    ],
)
def test_a_head_that_no_class_has_is_refused_by_field(variant, head, words):
    config = EncoderConfig(**(conftest.SIZES | {"num_layers": 2} | conftest.VARIANTS[variant]))
    with pytest.raises(ValueError, match=re.escape(words)):
        find_encoder(config, dataclasses.replace(_ROW, **head))


def test_a_masked_language_model_s_fields_do_not_matter_to_a_classifier():
    config = EncoderConfig(**conftest.SIZES, num_layers=2, head_activation=None, logits_bias=False)
    assert find_encoder(config, _ROW).name == "bert"
    with pytest.raises(ValueError, match="logits_bias is False, and must be True"):
        find_encoder(config)


def test_a_run_that_does_not_say_its_head_is_refused(exported):
    folder, _ = exported["bert rows"]
    run = folder.parent / "run_bert rows"
    record = run_folder.load_run_info(run)
    for head, words in ((None, "does not describe its head"), ({"class": "Mine"}, "says that it is a 'Mine'")):
        with pytest.raises(ValueError, match=words):
            heads.of_run(record | {"head": head}, run)
    with pytest.raises(ValueError, match="does not describe a SequenceClassifier of this version"):
        heads.of_run(record | {"head": record["head"] | {"temperature": 1}}, run)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"problem_type": "ranking"}, "problem_type is 'ranking'; transformers has regression, "),
        ({"problem_type": "single_label_classification", "id2label": {"0": "a"}}, "there is one label; give two"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label is .*; it has different texts"),
        ({"id2label": {"0": "a", "1": "a"}}, "it has different texts"),
        ({"id2label": [1, 2]}, "it has different texts"),
    ],
)
def test_labels_that_limba_does_not_have_are_refused(content, words):
    with pytest.raises(ValueError, match=words):
        heads.of_config({"architectures": ["BertForSequenceClassification"]} | content)
    with pytest.raises(ValueError, match="tokens have at least two labels"):
        heads.of_config({"architectures": ["BertForTokenClassification"], "id2label": {"0": "a"}})
    assert heads.of_config({"architectures": ["BertForMaskedLM"]} | content) == heads.OF_MASKED_LM
    assert heads.of_config({"architectures": ["BertForTokenClassification"]}).labels == ("LABEL_0", "LABEL_1")


def test_a_problem_type_is_kept_where_the_number_of_labels_does_not_say_it():
    two, one = ({"architectures": ["BertForSequenceClassification"], "num_labels": count} for count in (2, 1))
    for content, problem, kept in (
        (two, "multi_label_classification", "multi_label_classification"),
        (one, "multi_label_classification", "multi_label_classification"),
        (two, "regression", "regression"),
        (one, "regression", None),
        (two, "single_label_classification", None),
    ):
        head = heads.of_config(content | {"problem_type": problem})
        assert (head.problem_type, head.settings()["problem_type"]) == (kept, problem)
        assert heads.of_run(head.record, "run") == head


def test_a_number_of_labels_alone_gives_them_the_names_of_transformers():
    classes = {"architectures": ["BertForSequenceClassification"]}
    assert heads.of_config(classes | {"num_labels": 3}).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert heads.of_config(classes | {"_num_labels": 1}).is_number
    assert heads.of_config(classes | {"num_labels": 3, "id2label": {"0": "a", "1": "b"}}).labels == ("a", "b")


@pytest.mark.parametrize("name", conftest.CLASSIFIERS)
def test_as_recorded(name, exported, tmp_path):
    folder, report = exported[name]
    recorded.compare(name, folder, report, from_hf(folder, tmp_path / "run", verify=False))
