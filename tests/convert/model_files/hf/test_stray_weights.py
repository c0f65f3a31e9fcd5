"""Weights in other places than transformers' are named, with the way to convert them."""

import json

import numpy as np
import pytest

from convert import __main__, from_hf
from convert.model_files.hf import hub_models, stray_weights
from convert.tensors import weight_files
from limba.addons.run import starting_model

CONFIG = {"model_type": "t5", "vocab_size": 384, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2, "num_layers": 1}
CONFIG |= {"tokenizer_class": "ByT5Tokenizer", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
COPY = "Copy the other files of {top} into"
# Files beside config.json; the one that is named first; words of the remedy.
PLACES = {
    "fsdp in parts": (
        ["pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__0_0.distcp", "optimizer_0/__0_0.distcp"],
        "pytorch_model_fsdp_0/__0_0.distcp",
        "dcp_to_torch {top}/pytorch_model_fsdp_0 {top}/pytorch_model.bin",
    ),
    "deepspeed, model": (
        ["pytorch_model/mp_rank_00_model_states.pt", "scheduler.bin"],
        "pytorch_model/mp_rank_00_model_states.pt",
        "from-hf {top}/pytorch_model/mp_rank_00_model_states.pt OUT --config {top}/config.json",
    ),
    "deepspeed, parts": (
        ["global_step10/mp_rank_00_model_states.pt", "global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt"],
        "global_step10/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "python zero_to_fp32.py .",
    ),
    "checkpoints": (
        [
            f"checkpoint-{step}/{file}"
            for step in (90, 500)
            for file in ("config.json", "model.safetensors", "optimizer.pt")
        ],
        "checkpoint-500/model.safetensors, checkpoint-90/model.safetensors,",
        "Convert it: limba convert from-hf {top}/checkpoint-500 OUT",
    ),
    "checkpoint without config": (["checkpoint-5/pytorch_model.bin"], "checkpoint-5/pytorch_model.bin", COPY),
    "parts": (
        ["deep/er/model-00001-of-00002.safetensors", "deep/er/model.safetensors.index.json"],
        "deep/er/model-00001-of-00002.safetensors",
        COPY,
    ),
    "msgpack": (["flax/flax_model.msgpack"], "flax/flax_model.msgpack", COPY),
    "tf2": (["tf/tf_model.h5"], "tf/tf_model.h5", "from_tf=True"),
    "onnx": (["onnx/model.onnx"], "onnx/model.onnx", "exported from"),
    "adapter": (
        ["lora/adapter_config.json", "lora/adapter_model.safetensors"],
        "lora/adapter_config.json",
        "from-peft {top}/lora OUT --base BASE",
    ),
    "best": (["best.pt"], "best.pt", "limba convert from-hf {top}/best.pt OUT --config {top}/config.json"),
    "llama's": (["consolidated.00.pth"], "consolidated.00.pth", "from-hf {top}/consolidated.00.pth OUT"),
    "rust": (["rust_model.ot"], "rust_model.ot", "Call a whole file model.safetensors"),
    "one of parts": (["a/pytorch_model-00001-of-00002.bin"], "a/pytorch_model-00001-of-00002.bin", "with their index"),
    "download": ([".cache/x/abc.incomplete"], ".cache/x/abc.incomplete", "not downloaded to its end"),
    "many": ([f"part{i}.pt" for i in range(5)], "part0.pt, part1.pt, part2.pt and 2 more files,", "part0.pt OUT"),
}


def _folder(path, files):
    for file in files:
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).write_bytes(b"x")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.mark.parametrize("kind", PLACES)
def test_weights_elsewhere_are_named(tmp_path, capsys, kind):
    files, named, remedy = PLACES[kind]
    folder = _folder(tmp_path / "model", files)
    assert __main__.main(["from-hf", str(folder), str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith(f"error: {folder} has {named}"), error
    assert remedy.format(top=folder) in error and f"To train from scratch give {folder}/config.json." in error
    with pytest.raises(ValueError, match="no weights under the names"):
        starting_model.open_model(str(folder), None, None)


def test_lightnings_file_is_named(tmp_path, capsys):
    folder = _folder(tmp_path / "model", ["last.ckpt"])
    assert __main__.main(["from-hf", str(folder), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith(f"error: {folder} is a checkpoint of PyTorch Lightning")


def test_a_folder_without_weights_begins_from_scratch(tmp_path, capsys):
    beside = ["training_args.bin", "optimizer.pt", "optimizer_0/__0_0.distcp", "rng_state_0.pth", "random_states_0.pkl"]
    folder = _folder(tmp_path / "model", [*beside, "runs/events.out.tfevents.1", "tokenizer/tokenizer_config.json"])
    assert not from_hf.has_weights(folder)
    assert __main__.main(["from-hf", str(folder), str(tmp_path / "out")]) == 0
    assert "Train it from scratch with:" in capsys.readouterr().out


def test_a_whole_model_of_fsdp_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.full((2, 3), 7.0)}, tmp_path / "pytorch_model_fsdp.bin")
    assert weight_files.find(tmp_path) == ("torch", [tmp_path / "pytorch_model_fsdp.bin"])
    tensors = weight_files.open_tensors(tmp_path)
    np.testing.assert_array_equal(np.asarray(tensors["a"]), np.full((2, 3), 7, np.float32), strict=True)
    assert not weight_files.is_for_transformers(tmp_path, "torch")
    assert hub_models.wanted(["config.json", "pytorch_model_fsdp.bin"]) == ["config.json", "pytorch_model_fsdp.bin"]
    # Where transformers finds its own, that is the model.
    torch.save({"a": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    assert weight_files.find(tmp_path) == ("torch", [tmp_path / "pytorch_model.bin"])
    assert weight_files.is_for_transformers(tmp_path, "torch")


def test_files_below_a_folder(tmp_path):
    _folder(tmp_path, ["a/b/c.pt", ".git/lfs/x.bin"])
    assert sorted(stray_weights.files_below(tmp_path)) == ["a/b/c.pt", "config.json"]


def test_weights_of_a_repository_that_are_not_read():
    there = ["config.json", "tf_model.h5", "original/consolidated.00.pth"]
    with pytest.raises(ValueError, match=r"^Get org/m with `hf download org/m --local-dir DIR`: DIR has tf_model\.h5"):
        hub_models._check_no_others("org/m", there)
    hub_models._check_no_others("org/m", ["config.json", "README.md"])
