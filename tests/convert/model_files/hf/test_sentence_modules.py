import json

import pytest

from convert import from_hf

_POOLINGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")


def _write(folder, modules, settings=None, prompts=None):
    names = ["", *modules]
    (folder / "modules.json").write_text(json.dumps([{"path": name, "type": "…"} for name in names]))
    (folder / "config.json").write_text("{}")
    for name, content in modules.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(content))
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings or {}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts or {}))


def _pooling(*names):
    return {"word_embedding_dimension": 8} | {f"pooling_mode_{name}": name in names for name in _POOLINGS}


@pytest.mark.parametrize(
    ("modules", "settings", "note"),
    [
        ({"1_Pooling": _pooling("cls_token"), "2_Normalize": {}}, {}, "with --pooling first --normalize.\n"),
        (
            {"1_Pooling": _pooling("mean_tokens")},
            {"max_seq_length": 32},
            "with --pooling mean --gin.embedding.Embedder.max_inputs_length=32.\n",
        ),
        ({"1_Pooling": _pooling("cls_token", "mean_tokens")}, {}, "`limba embed` does not have 1_Pooling, so"),
        ({"1_Pooling": _pooling("mean_sqrt_len_tokens")}, {}, "`limba embed` does not have 1_Pooling, so"),
        ({"1_Pooling": _pooling("mean_tokens"), "2_Dense": {"in_features": 8}}, {}, "does not have 2_Dense, so"),
        ({"1_Pooling": _pooling("mean_tokens")}, {"do_lower_case": True}, "reads texts in small letters"),
    ],
)
def test_the_vectors_of_a_folder_are_named(modules, settings, note, tmp_path, capsys):
    _write(tmp_path, modules, settings)
    assert from_hf.find(str(tmp_path)) == tmp_path
    assert note in capsys.readouterr().err


def test_a_prompt_is_named(tmp_path, capsys):
    _write(tmp_path, {}, prompts={"prompts": {"query": "query: "}, "default_prompt_name": "query"})
    from_hf.find(str(tmp_path))
    assert "puts 'query: ' before each text" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["model.fp16.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin.incomplete", "model.pt"]
)
def test_weights_under_another_name_are_no_training_from_scratch(name, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for unread in ("training_args.bin", "optimizer.pt"):
        (tmp_path / unread).write_bytes(b"")
    assert not from_hf.has_weights(tmp_path)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=f"has {name}, and no weights under the names that transformers looks for"):
        from_hf.has_weights(tmp_path)
