"""Hugging Face's classes run from tensors on disk give what `from_pretrained` gives, to the last bit."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file

from convert.families import t5_1_0
from convert.tensors import tensor_parts
from limba.addons.transformers_check import torch_forward, transformers_process
from limba.checkpoint_files.saved_tensors import SavedTensor, from_array

REPOSITORY = Path(__file__).parents[3]
TARGETS_LENGTH = 6
SIZES = {
    "vocab_size": 96,
    "d_model": 32,
    "num_heads": 3,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "decoder_start_token_id": 0,
    "initializer_factor": 0.5,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
KINDS = {
    "tied": ("T5", {"feed_forward_proj": "relu", "tie_word_embeddings": True}),
    "untied": ("T5", GATED),
    "mt5": ("MT5", GATED),
    "umt5": ("UMT5", GATED),
}


def _save(folder: Path, kind: str, fields: dict[str, Any]) -> Path:
    """A random model, written by its class."""
    config = getattr(transformers, f"{kind}Config")(**(SIZES | fields))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    model.save_pretrained(folder)
    return folder


def _tensors(folder: Path) -> dict[str, SavedTensor]:
    return {name: from_array(x) for name, x in load_file(folder / "model.safetensors").items()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    return {name: _save(directory / name, *kind) for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = rng.integers(3, 96, (3, 30), np.int32)
    inputs[1, 15:] = 0
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(rng.integers(3, 96, (3, TARGETS_LENGTH - 1), np.int32), ((0, 0), (1, 0))),
    }


def _asked(inputs: np.ndarray) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.tensor(inputs).long(), "attention_mask": torch.tensor(inputs != 0).long()}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_tokens_are_those_of_from_pretrained(folders, kind, batch):
    folder, inputs = folders[kind], batch["encoder_input_tokens"]
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    assert type(model).__name__ == f"{KINDS[kind][0]}ForConditionalGeneration"
    with torch.no_grad():
        theirs = model(**_asked(inputs), decoder_input_ids=torch.tensor(batch["decoder_input_tokens"]).long()).logits
        tokens = model.generate(**_asked(inputs), max_new_tokens=TARGETS_LENGTH, num_beams=1, do_sample=False)[:, 1:]
    ours = torch_forward.logits(folder, _tensors(folder), batch)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs.numpy())
    ours = torch_forward.greedy(folder, _tensors(folder), inputs, TARGETS_LENGTH)
    assert ours.dtype == np.int32
    np.testing.assert_array_equal(ours[:, : tokens.shape[1]], tokens.numpy())


def test_attention_that_a_folder_names_on_the_hub_is_not_fetched(folders, batch, tmp_path):
    """transformers would run its code, where `kernels` is installed."""
    named = json.loads((folders["untied"] / "config.json").read_text()) | {"_attn_implementation": "theirs/attention"}
    (tmp_path / "config.json").write_text(json.dumps(named))
    expected = torch_forward.logits(folders["untied"], tensors := _tensors(folders["untied"]), batch)
    np.testing.assert_array_equal(torch_forward.logits(tmp_path, tensors, batch), expected)


@pytest.mark.slow
def test_in_transformers_5(folders, batch, forks5, tmp_path):
    np.savez(tmp_path / "batch.npz", **batch)
    script, out = Path(__file__).with_name("forward_in_transformers5.py"), tmp_path / "out.json"
    arguments = [REPOSITORY, sysconfig.get_paths()["purelib"], tmp_path / "batch.npz", out, *folders.values()]
    done = forks5.run(script, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text())
    for name, folder in folders.items():
        assert found[name]["class"] == f"{KINDS[name][0]}ForConditionalGeneration"
        assert found[name]["same logits"] and found[name]["same tokens"], name
        # Version 5 takes every umT5 for tied and scales its logits; version 4.57 goes by config.json.
        scale = SIZES["d_model"] ** -0.5 if name == "umt5" else 1.0
        here = torch_forward.logits(folder, _tensors(folder), batch)
        np.testing.assert_allclose(found[name]["logits"], here * scale, rtol=0, atol=1e-5)


def test_bfloat16_files_are_computed_with_in_float32(folders, batch, tmp_path):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folders["untied"], dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).float().eval()
    with torch.no_grad():
        theirs = theirs(
            **_asked(batch["encoder_input_tokens"]),
            decoder_input_ids=torch.tensor(batch["decoder_input_tokens"]).long(),
        )
    tensors = _tensors(tmp_path)
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"bfloat16"}
    np.testing.assert_array_equal(torch_forward.logits(tmp_path, tensors, batch), theirs.logits.numpy())


def test_tensors_are_read_in_parts(folders, batch, monkeypatch):
    whole = torch_forward.logits(folders["untied"], _tensors(folders["untied"]), batch)
    monkeypatch.setattr(torch_forward, "_BLOCK_BYTES", 1)
    reads: dict[str, list] = {}

    def recording(name: str, tensor: SavedTensor) -> SavedTensor:
        def read(index):
            part = tensor.read(index)
            reads.setdefault(name, []).append((index[0], part.nbytes))
            return part

        return SavedTensor(tensor.shape, tensor.dtype, read)

    tensors = {name: recording(name, tensor) for name, tensor in _tensors(folders["untied"]).items()}
    np.testing.assert_allclose(torch_forward.logits(folders["untied"], tensors, batch), whole, rtol=0, atol=1e-5)
    assert set(reads) == set(tensors)
    assert (
        max(size for parts in reads.values() for _, size in parts)
        <= tensor_parts.num_bytes(tensors["lm_head.weight"]) / 4
    )
    rows = [(part.start, part.stop) for part, _ in reads["shared.weight"]]
    ids = [np.unique(batch[feature]) for feature in ("encoder_input_tokens", "decoder_input_tokens")]
    assert rows == [(i, i + 1) for i in np.concatenate(ids)]


def test_rows_end_with_eos_and_padding(folders, batch, tmp_path):
    folder, inputs = folders["untied"], batch["encoder_input_tokens"]
    before = torch_forward.greedy(folder, _tensors(folder), inputs, TARGETS_LENGTH)
    arrays = load_file(folder / "model.safetensors")
    last = int(before[0, 1])
    swapped = np.arange(96)
    swapped[[1, last]] = last, 1
    for name in ("shared.weight", "lm_head.weight"):
        arrays[name] = arrays[name][swapped]
    after = torch_forward.greedy(
        folder, {name: from_array(x) for name, x in arrays.items()}, swapped[inputs], TARGETS_LENGTH
    )
    expected = swapped[before]
    for row in expected:
        ends = np.flatnonzero(row == 1)
        row[ends[0] + 1 if len(ends) else len(row) :] = 0
    assert 1 in expected[0, :2]
    for row, (x, y) in enumerate(zip(after, expected, strict=True)):
        # What ended a row before is another token now, after which it goes on.
        same = [*np.flatnonzero(before[row] == 1), TARGETS_LENGTH - 1][0] + 1
        np.testing.assert_array_equal(x[:same], y[:same])


def test_greedy_is_greedy_whatever_the_folder_prefers(folders, batch, tmp_path):
    inputs = batch["encoder_input_tokens"]
    plain = torch_forward.greedy(folders["tied"], _tensors(folders["tied"]), inputs, TARGETS_LENGTH)
    (tmp_path / "config.json").write_bytes((folders["tied"] / "config.json").read_bytes())
    generation = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}
    preferred = {"num_beams": 3, "no_repeat_ngram_size": 1, "max_length": 3, "early_stopping": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation | preferred))
    tokens = torch_forward.greedy(tmp_path, _tensors(folders["tied"]), inputs, TARGETS_LENGTH)
    np.testing.assert_array_equal(tokens, plain)


def test_a_decoder_deeper_than_the_encoder(batch, tmp_path):
    """Its `generate` fails in 4.57.6 with the cache."""
    folder = _save(tmp_path, "T5", GATED | {"num_layers": 1, "num_decoder_layers": 3})
    tokens = torch_forward.greedy(folder, _tensors(folder), batch["encoder_input_tokens"], TARGETS_LENGTH)
    again = batch | {"decoder_input_tokens": np.pad(tokens[:, :-1], ((0, 0), (1, 0)))}
    np.testing.assert_array_equal(torch_forward.logits(folder, _tensors(folder), again).argmax(-1), tokens)


def test_names_that_a_file_may_have_besides(folders, batch):
    """As the files of the first T5 have them: the embedding four times, and a bias that the class does not use."""
    tensors = _tensors(folders["tied"])
    shared = tensors["shared.weight"]
    more = {f"{name}.weight": shared for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")}
    unused = tensors["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    more["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = unused
    ours = torch_forward.logits(folders["tied"], tensors | more, batch)
    np.testing.assert_array_equal(ours, torch_forward.logits(folders["tied"], tensors, batch))


def test_tensors_that_do_not_fit_are_named(folders, batch):
    folder = folders["untied"]
    tensors = _tensors(folder)
    name = "decoder.block.1.layer.2.DenseReluDense.wi_1.weight"

    def fails(tensors: dict[str, SavedTensor], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            torch_forward.logits(folder, tensors, batch)

    fails({k: v for k, v in tensors.items() if k != name}, f"T5ForConditionalGeneration.*{name} is missing")
    fails({k: v for k, v in tensors.items() if k != "lm_head.weight"}, "lm_head.weight is missing")
    fails(tensors | {"encoder.extra.weight": tensors[name]}, "encoder.extra.weight has no place")
    fails(
        tensors | {name: tensor_parts.transposed(tensors[name])}, rf"{name} has shape \(32, 40\) instead of \(40, 32\)"
    )


def test_another_model_is_refused(batch, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "pegasus"}))
    with pytest.raises(ValueError, match=r"config.json is of a 'pegasus'; it must be one of"):
        torch_forward.logits(tmp_path, {}, batch)


def test_nothing_is_imported_before_it_is_needed_and_tensorflow_never():
    code = (
        "import os, sys; os.environ.pop('USE_TF', None); "
        "from limba.addons.transformers_check import transformers_process; from convert.families import t5_1_0;"
        "from convert.compare import transformers_library; possible = transformers_process.possible(t5_1_0.FAMILY);"
        "assert possible is None and not {'torch', 'transformers'} & set(sys.modules);"
        "assert not transformers_library.load().utils.is_tf_available()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(transformers_process.transformers_library, "version", lambda: None)
    assert transformers_process.possible(t5_1_0.FAMILY) == "transformers is not installed"
    monkeypatch.setattr(transformers_process.importlib.util, "find_spec", lambda name: None)
    assert transformers_process.possible(t5_1_0.FAMILY) == "torch is not installed"
