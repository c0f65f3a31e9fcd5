"""`convert check` finds a wrong export: each folder here was written right, and then one thing in it was changed.

Files that are damaged or lost: test_damaged_folders.py.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert import __main__
from convert.compare import encoder_outputs, forward, t5_outputs
from convert.model_files import any_format
from convert.tensors import safetensors_files
from convert.to_hf import to_hf
from limba.addons import table
from limba.checkpoint_files.saved_tensors import from_array
from tests.convert.conftest import FAMILIES
from tests.convert.encoders.conftest import VARIANTS, new_encoder, tokenizer_file  # noqa: F401

Changes = dict[str, tuple[dict[str, Any], str]]
_OUTPUT = ("tie_word_embeddings", "scale_decoder_outputs")

SMALL = {"num_heads": 4, "num_encoder_layers": 1, "num_decoder_layers": 1}
T5S, ENCODERS = ("t5", "umt5"), ("bert", "mpnet")  # the other T5s differ in nothing that is read here
Tensors = dict[str, np.ndarray]


def _exchange(first: str, second: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {first: tensors[second], second: tensors[first]}


def _change(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: change(tensors[name])}


def _with_rows_exchanged(x: np.ndarray) -> np.ndarray:
    return x[[0, 2, 1, *range(3, len(x))]]


def _scaled(x: np.ndarray) -> np.ndarray:
    return x * np.float32(1.001)


def _of_tensors(attention: str, query: str, key: str, norm: str, table: str) -> dict[str, Callable[[Tensors], Tensors]]:
    query, key = (f"{attention}.{name}.weight" for name in (query, key))
    return {
        "two tensors exchanged": _exchange(query, key),
        "one transposed": _change(query, np.transpose),
        "a norm times 1.001": _change(f"{norm}.weight", _scaled),
        "a bucket moved": _change(f"{table}.weight", _with_rows_exchanged),
    }


_LAYER = "encoder.block.0.layer.0"
OF_T5 = _of_tensors(
    f"{_LAYER}.SelfAttention", "q", "k", f"{_LAYER}.layer_norm", f"{_LAYER}.SelfAttention.relative_attention_bias"
)
_MPNET = "mpnet.encoder.layer.0"
OF_MPNET = _of_tensors(
    f"{_MPNET}.attention.attn", "q", "k", f"{_MPNET}.output.LayerNorm", "mpnet.encoder.relative_attention_bias"
)
# What is written into config.json, what the error says, and what the numbers alone would find in another network.
_VERSIONS = "each version of transformers reads another"
_OF_T5S: Changes = {
    "epsilon": ({"layer_norm_epsilon": 1e-5}, "Limba's T5 has 1e-06"),
    "scaled or not": ({"scale_decoder_outputs": None}, _VERSIONS),
    "tied or not": ({"tie_word_embeddings": None}, _VERSIONS),
}
IN_CONFIG: dict[str, Changes] = {
    kind: {
        **_OF_T5S,
        "the output": (dict.fromkeys(_OUTPUT, None), "says that the embedding is the output too"),
        "the activation": ({"feed_forward_proj": "gated-silu"}, "mlp_activations is ['gelu', 'linear'] in A"),
    }
    for kind in T5S
}
IN_CONFIG["t5"] |= {
    "the output": (dict.fromkeys(_OUTPUT, None), "says that the output has its own matrix"),
    "the activation": ({"feed_forward_proj": "gelu_new"}, "mlp_activations is ['relu'] in A"),
}
for _kind in ENCODERS:
    IN_CONFIG[_kind] = {
        "epsilon": ({"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-12 in A"),
        "the output": ({"tie_word_embeddings": False}, "says that the output has its own matrix"),
        "the activation": ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu' in A"),
    }
IN_CONFIG["bert"]["heads"] = ({"num_attention_heads": 6}, "num_attention_heads is 3 in A")


@pytest.fixture(scope="module")
def pairs(new_run, new_encoder, tmp_path_factory) -> dict[str, tuple[Path, Path]]:  # noqa: F811
    """A run and its export, of each kind of model."""
    home = tmp_path_factory.mktemp("pairs")
    for name in T5S:
        new_run(home / f"{name}-run", **(SMALL | FAMILIES[name]))
        to_hf(home / f"{name}-run", home / name, formats=["safetensors"], verify=False)
    for name in ENCODERS:
        new_encoder(home / f"{name}-run", **(VARIANTS[name] | {"num_layers": 1, "norm_epsilon": 1e-12}))
        to_hf(home / f"{name}-run", home / name, verify=False)
    return {name: (home / f"{name}-run", home / name) for name in (*T5S, *ENCODERS)}


@pytest.fixture
def without_pytorch(monkeypatch):
    """Whatever finds a wrong model here is there for every user."""
    monkeypatch.delitem(table.ADDONS, "transformers_check")


def _copy(folder: Path, out: Path, change: Callable[[Tensors], Tensors] | dict[str, Any]) -> Path:
    """The export with tensors or keys of config.json changed."""
    shutil.copytree(folder, out)
    if isinstance(change, dict):
        file = out / "config.json"
        content = json.loads(file.read_text())
        # None is the opposite.
        content |= {key: not content[key] if value is None else value for key, value in change.items()}
        file.write_text(json.dumps(content))
        return out
    file = out / "model.safetensors"
    tensors = {name: np.asarray(t) for name, t in safetensors_files.open_tensors([file]).items()}
    changed = {name: from_array(np.ascontiguousarray(x)) for name, x in (tensors | change(tensors)).items()}
    file.unlink()
    safetensors_files.write(out, changed, lambda num_bytes: None, 10**9)
    return out


@pytest.mark.parametrize("kind", ["t5", "mpnet"])
def test_a_changed_tensor_is_found(pairs, kind, without_pytorch, tmp_path, capsys):
    run, folder = pairs[kind]
    changes = OF_MPNET if kind == "mpnet" else OF_T5
    by_logits = set()
    for number, (name, change) in enumerate(changes.items()):
        wrong = _copy(folder, tmp_path / str(number), change)
        assert __main__.main(["check", str(run), str(wrong)]) == 1, name
        out, error = capsys.readouterr()
        assert "WRONG parameters that differ " in out, name
        assert "A and B are not the same model: parameters that differ: " in error, name
        if "WRONG logits, B in NumPy" in out:
            by_logits.add(name)
    # The numbers find all of them without the comparison of tensors.
    assert by_logits == {*changes}


@pytest.mark.parametrize("kind", [*T5S, *ENCODERS])
def test_a_changed_setting_is_found(pairs, kind, tmp_path, capsys):
    run, folder = pairs[kind]
    for number, (name, (change, words)) in enumerate(IN_CONFIG[kind].items()):
        wrong = _copy(folder, tmp_path / str(number), change)
        assert __main__.main(["check", str(run), str(wrong)]) == 1, name
        assert words in capsys.readouterr().err, name


def _numbers_hold(model: Any, run: Any, change: dict[str, Any]) -> bool:
    """Whether the numbers alone take a folder, with a config.json that was changed after reading it, for the run."""
    content = model.folder.content | change
    model = dataclasses.replace(model, folder=dataclasses.replace(model.folder, content=content))
    if run.family.has_decoder:
        batch = t5_outputs.check_batch(run.config, np.zeros(0, np.int32))
        logits = forward.logits(run.config, run.tensors, batch)
        measure = t5_outputs.measures(model, batch)["logits"]
    else:
        batch = encoder_outputs.check_batch(run.config, np.zeros(0, np.int32))
        logits = encoder_outputs.limba_logits(run, batch)
        measure = encoder_outputs.measures(model, batch)["logits"]
    return measure.compare("logits", logits).holds


def test_what_the_numbers_find_without_the_settings(pairs):
    """Another epsilon changes less than float32's rounding, where inputs are large: the settings find it."""
    for kind in ("t5", "umt5"):
        run, folder = (any_format.open_model(path) for path in pairs[kind])
        assert _numbers_hold(folder, run, {})
        activation = "gelu_new" if kind == "t5" else "gated-silu"
        assert not _numbers_hold(folder, run, {"feed_forward_proj": activation})
        if kind == "t5":  # The others have no second matrix to read.
            stored = folder.folder.stored
            own = dataclasses.replace(folder.folder, stored={**stored, "lm_head.weight": stored["shared.weight"]})
            not_scaled = dataclasses.replace(folder, folder=own)
            assert not _numbers_hold(not_scaled, run, {"tie_word_embeddings": False})
        else:
            assert not _numbers_hold(folder, run, {"tie_word_embeddings": True})
    for kind in ENCODERS:
        run, folder = (any_format.open_model(path) for path in pairs[kind])
        assert _numbers_hold(folder, run, {})
        assert not _numbers_hold(folder, run, {"hidden_act": "gelu_new"})
        assert not _numbers_hold(folder, run, {"layer_norm_eps": 1e-5})


def test_right_ones_pass(pairs, without_pytorch, capsys):
    for run, folder in pairs.values():
        assert __main__.main(["check", str(run), str(folder)]) == 0
        assert "ok    logits, B in NumPy" in capsys.readouterr().out


# ------------------------------------------------------- the files ---------------------------------------------------


def _other_id(folder: Path) -> None:
    """Two tokens are exchanged."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    vocab = content["model"]["vocab"]
    if isinstance(vocab, list):
        first, second = ([piece for piece, _ in vocab].index(letter) for letter in "ae")
        vocab[first], vocab[second] = vocab[second], vocab[first]
    else:
        vocab["w7"], vocab["w8"] = vocab["w8"], vocab["w7"]
    file.write_text(json.dumps(content), "utf-8")


@pytest.fixture(scope="module")
def in_all_formats(pairs, tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    home = tmp_path_factory.mktemp("formats")
    to_hf(pairs["t5"][0], home / "t5", formats=["safetensors", "flax"], verify=False)
    return {"t5": (pairs["t5"][0], home / "t5"), "bert": pairs["bert"]}


@pytest.mark.parametrize("kind", ["t5", "bert"])
def test_exchanged_tokens_are_found(in_all_formats, kind, without_pytorch, tmp_path, capsys):
    run, folder = in_all_formats[kind]
    wrong = tmp_path / "wrong"
    shutil.copytree(folder, wrong)
    (wrong / "spiece.model").unlink(missing_ok=True)
    _other_id(wrong)
    text = "w7 w8" if kind == "bert" else "xaxexa"
    assert __main__.main(["check", str(run), str(wrong), "--text", text]) == 1
    assert "texts with other ids: 1" in capsys.readouterr().err


def test_weights_of_further_formats_are_compared_and_others_are_named(
    in_all_formats, without_pytorch, tmp_path, capsys
):
    run, folder = in_all_formats["t5"]
    assert __main__.main(["check", str(run), str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "A and B are the same model." and "ok    parameters that differ, B in flax" in out
    other = _copy(folder, tmp_path / "other", _change("shared.weight", _scaled))
    assert __main__.main(["check", str(folder), str(other)]) == 1
    assert "parameters that differ, B in flax: 1" in capsys.readouterr().err
    more = tmp_path / "more"
    shutil.copytree(folder, more)
    (more / "onnx").mkdir()
    for name in ("tf_model.h5", "onnx/model.onnx", "training_args.bin"):
        (more / name).write_bytes(b"noise")
    (more / "generation_config.json").write_text('{"num_beams": 4, "top_k": 50}')
    assert __main__.main(["check", str(folder), str(more)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: A and B are not the same model: settings of generate: 2, allowed 0e+00 (")
    assert "num_beams of generation_config.json is None in A and 4 in B" in error
    shutil.copy(folder / "generation_config.json", more)
    assert __main__.main(["check", str(folder), str(more)]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: A and B do not differ in what was compared. Not compared: files not read, B (['onnx/model.onnx', "
        "'tf_model.h5'])."
    )
