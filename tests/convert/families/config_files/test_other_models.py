"""A folder of another kind is named in the first line of the error, with what to do."""

import json

import pytest

from convert import __main__
from convert.from_hf import find
from limba.addons.run import starting_model

CONFIG = {"model_type": "t5", "vocab_size": 384, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": 1}
BERT = {"model_type": "bert", "vocab_size": 64, "hidden_size": 24, "num_hidden_layers": 2} | {
    "num_attention_heads": 3,
    "intermediate_size": 20,
}
# Files of a folder, what it is, and a word of the remedy.
FOLDERS = {
    "peft": (["adapter_config.json", "adapter_model.safetensors"], "a PEFT adapter", "from-peft {here} OUT"),
    "peft and config": (["config.json", "adapter_config.json"], "a PEFT adapter", "from-peft {here} OUT"),
    "diffusers": (["model_index.json"], "a pipeline of diffusers", "text encoder"),
    "mesh": (
        ["operative_config.gin", "model.ckpt-1000.index", "model.ckpt-1000.data-00000-of-00002", "checkpoint"],
        "a checkpoint of Mesh TensorFlow's T5",
        "convert_t5_original_tf_checkpoint_to_pytorch",
    ),
    "google's bert": (
        ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "bert_config.json", "vocab.txt"],
        "a checkpoint of TensorFlow 1",
        "transformers convert",
    ),
    "tf2": (["config.json", "tf_model.h5"], "a model of TensorFlow 2", "from_tf=True"),
    "flax shards": (
        ["config.json", "flax_model-00001-of-00002.msgpack", "flax_model-00002-of-00002.msgpack"],
        "a model of Flax in parts without their index",
        "download the index",
    ),
    "onnx": (["config.json", "encoder_model.onnx", "decoder_model.onnx"], "a model of ONNX", "exported from"),
    "gguf": (["t5-q4.gguf"], "a model of llama.cpp (GGUF)", "made from"),
    "ctranslate2": (["config.json", "model.bin", "shared_vocabulary.json"], "a model of CTranslate2", "converted from"),
    "deepspeed": (["config.json", "zero_to_fp32.py", "latest"], "a checkpoint of DeepSpeed", "zero_to_fp32.py ."),
    "lightning": (["epoch=1-step=100.ckpt", "hparams.yaml"], "a checkpoint of PyTorch Lightning", "save_pretrained"),
    "fsdp": (["__0_0.distcp", ".metadata"], "a checkpoint of PyTorch in parts", "dcp_to_torch"),
    "orbax": (["manifest.ocdbt", "_METADATA"], "a checkpoint of Orbax", "from-t5x"),
    "tokenizer": (["tokenizer.json", "tokenizer_config.json"], "a tokenizer alone", "--vocab"),
    "spiece": (["spiece.model"], "a tokenizer alone", "--vocab"),
}


def _error(path, tmp_path, capsys):
    assert __main__.main(["from-hf", str(path), str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_of_another_kind_is_named(tmp_path, capsys, kind):
    files, what, remedy = FOLDERS[kind]
    folder = tmp_path / "model"
    folder.mkdir()
    for file in files:
        (folder / file).write_text(json.dumps(CONFIG) if file == "config.json" else "x")
    error = _error(folder, tmp_path, capsys)
    assert error.startswith(f"error: {folder} is {what}") and remedy.format(here=folder) in error
    with pytest.raises(ValueError, match="is a "):
        starting_model.open_model(str(folder), None, None)


def test_an_encoder_of_tensorflow_is_named(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    (tmp_path / "tf_model.h5").write_text("x")
    assert _error(tmp_path, tmp_path, capsys).startswith(f"error: {tmp_path} is a model of TensorFlow 2")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("model.zip", "a packed folder: unpack it"),
        ("model.tar.gz", "a packed folder"),
        ("model.safetensors", "the weights of a folder: give the folder"),
        ("tf_model.h5", "a model of TensorFlow 2"),
        ("model.gguf", "a model of llama.cpp"),
        ("model.onnx", "a model of ONNX"),
        ("spiece.model", "a SentencePiece model"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, capsys, name, what):
    (tmp_path / name).write_text("x")
    assert _error(tmp_path / name, tmp_path, capsys).startswith(f"error: {tmp_path / name} is {what}")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2', a decoder alone; converted are t5, mt5, umt5, t5gemma, t5gemm"),
        ({"model_type": "llama"}, "model_type is 'llama', a decoder alone"),
        ({"model_type": "pegasus"}, "model_type is 'pegasus', an encoder-decoder of another network"),
        ({"model_type": "plbart"}, "model_type is 'plbart', an encoder-decoder of another network"),
        ({"model_type": "albert"}, "model_type is 'albert', an encoder of another network; converted are t5, mt5"),
        ({"model_type": "big_bird"}, "model_type is 'big_bird', an encoder of another network; Limba's blocks"),
        ({"model_type": "mine"}, "model_type is 'mine'; converted are t5"),
        ({"model_type": None}, "model_type is missing; write the family's into the file"),
        ({"architectures": ["T5ForSequenceClassification"]}, "a T5 with a head for labels of texts"),
        ({"architectures": ["MT5ForSequenceClassification"]}, "T5ForConditionalGeneration.from_pretrained(FOLDER)"),
        ({"architectures": ["T5ForTokenClassification"], "id2label": {"0": "a", "2": "b"}}, "it has different texts"),
        ({"architectures": ["T5ForTokenClassification"], "id2label": {"0": "a"}}, "have at least two labels"),
        ({"architectures": ["T5ForQuestionAnswering"]}, "a T5 with a head for the ends of answers"),
        ({"architectures": "T5ForConditionalGeneration"}, "architectures is 'T5ForConditionalGeneration'; it is a lis"),
        *(
            (base | {"architectures": classes}, f"architectures is {shown}; it is a list of the name of a class")
            for base in ({}, BERT)
            for classes, shown in ((5, "5"), ([None], "a list of 1"), ({"a": 1}, "a table of 1"), (True, "True"))
        ),
    ],
)
def test_another_class_is_named(tmp_path, capsys, config, words):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | config))
    error = _error(tmp_path, tmp_path, capsys)
    assert error.startswith(f"error: {tmp_path / 'config.json'}: ") and words in error


@pytest.mark.parametrize("place", ["", "0_Transformer"])
def test_sentence_transformers_lead_to_their_network(tmp_path, capsys, place):
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "config.json").write_text(json.dumps(BERT))
    modules = [{"idx": 0, "path": place}, {"idx": 1, "path": "1_Pooling"}, {"idx": 2, "path": "2_Dense"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert find(str(tmp_path)) == tmp_path / place
    assert f"{place or 'its network'} is converted, without 1_Pooling, 2_Dense." in capsys.readouterr().err


@pytest.mark.parametrize("modules", ["[]", "{}", '[{"path": "../elsewhere"}]', '[{"path": "0_Missing"}]'])
def test_other_modules_lead_nowhere(tmp_path, modules):
    (tmp_path / "modules.json").write_text(modules)
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        find(str(tmp_path))
