"""The encoder of a T5 alone, as transformers' T5EncoderModel saves it, becomes a T5 with a new decoder."""

import json
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

from convert.from_hf import from_hf
from convert.model_files import any_format
from limba.checkpoints import checkpointing
from limba.network.t5 import T5Config, Transformer


def test_its_hidden_states_are_those_of_transformers(all_exported, tmp_path, capsys):
    import torch
    import transformers

    exported = all_exported["umt5-scalable_t5"]
    cls = transformers.UMT5EncoderModel
    encoder = cls.from_pretrained(exported.folder)
    encoder.save_pretrained(tmp_path / "encoder")
    shutil.copy(exported.folder / "spiece.model", tmp_path / "encoder")
    config = json.loads((tmp_path / "encoder/config.json").read_text())
    assert config["architectures"] == [cls.__name__]

    checkpoint = from_hf(tmp_path / "encoder", tmp_path / "run")
    assert "is the encoder of a T5 alone, and gets a new decoder. `limba embed` and" in capsys.readouterr().err
    report = json.loads((checkpoint / "conversion_report.json").read_text())
    rows = {row["what"]: row for rows in report["comparisons"].values() for row in rows}
    assert rows["logits, A in PyTorch"]["holds"] and rows["logits, A in NumPy"]["holds"]

    fields = checkpointing.load_run_info(checkpoint)["network"]
    network, params = Transformer(T5Config(**fields)), checkpointing.load_params(checkpoint)
    ids = exported.inputs[:1, :12]
    found = jax.jit(lambda p: network.apply({"params": p}, ids, enable_dropout=False, method=network.encode))(params)
    expected = encoder(input_ids=torch.tensor(ids, dtype=torch.long)).last_hidden_state.detach().numpy()
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_its_encoder_is_that_of_the_whole_t5(all_exported, tmp_path):
    folder = tmp_path / "encoder"
    exported = all_exported["t5-t5"]
    shutil.copytree(exported.folder, folder)
    (folder / "model.safetensors").unlink()
    tensors = safetensors.numpy.load_file(exported.folder / "model.safetensors")
    alone = {name: x for name, x in tensors.items() if name.startswith(("shared", "encoder"))}
    safetensors.numpy.save_file(alone, folder / "model.safetensors")
    (folder / "flax_model.msgpack").unlink()
    with pytest.raises(ValueError, match=r"decoder\.block\.0\.layer\.0\.layer_norm\.weight is missing"):
        any_format.open_model(folder)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"architectures": ["T5EncoderModel"]}))
    opened, whole = any_format.open_model(folder), any_format.open_model(exported.run)
    assert opened.tensors.keys() == whole.tensors.keys()
    for name, tensor in whole.tensors.items():
        if not name.startswith("decoder/"):
            np.testing.assert_array_equal(np.asarray(opened.tensors[name]), np.asarray(tensor))
