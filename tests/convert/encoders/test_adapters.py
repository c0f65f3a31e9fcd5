"""LoRAs of encoders in PEFT: ModernBERT has one module for several kernels of Limba."""

import json

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

from convert.model_files import any_format
from convert.model_files.model import NO_HINTS, ModelHints
from convert.to_hf import to_hf
from limba.addons.peft.from_peft import from_peft
from limba.addons.peft.to_peft import to_peft
from tests.convert.encoders.conftest import VARIANTS


def test_adapters_of_joined_kernels(new_encoder, tmp_path):
    peft = pytest.importorskip("peft")
    # Layer 0 is unrolled, layers 1 and 2 are scanned.
    adapters = {"rank": 2, "alpha": 3.0, "kernels": ["/.*/(query|value|wi_0|wi_1|wo)/kernel"]}
    run = new_encoder(tmp_path / "run", adapters=adapters, **VARIANTS["modernbert"])
    to_hf(run, tmp_path / "base", hints=ModelHints(without_lora=True), verify=False)
    to_hf(run, tmp_path / "merged", verify=False)
    to_peft(run, tmp_path / "adapter", str(tmp_path / "base"))
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    names = {name.rpartition(".")[2]: name for name in config["target_modules"]}
    assert sorted(names) == ["Wi", "Wo", "Wqkv"] and len(config["target_modules"]) == 9
    assert config["r"] == 4 and config["rank_pattern"] == {f"model.layers.{i}.mlp.Wo": 2 for i in range(3)}
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "base")
    model = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").merge_and_unload()
    found, base = model.state_dict(), safetensors.numpy.load_file(tmp_path / "base/model.safetensors")
    for name, wanted in safetensors.numpy.load_file(tmp_path / "merged/model.safetensors").items():
        np.testing.assert_allclose(found[name].numpy(), wanted, rtol=1e-5, atol=1e-6)
        assert np.array_equal(base[name], wanted) == (name.removesuffix(".weight") not in config["target_modules"])

    # The other way: one pair of factors of Wqkv is one of each of its kernels.
    config = peft.LoraConfig(r=2, lora_alpha=3, target_modules=["Wqkv", "mlp.Wo"], init_lora_weights=False)
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "base")
    model = peft.get_peft_model(model, config)
    model.save_pretrained(tmp_path / "of_peft")
    checkpoint = from_peft(tmp_path / "of_peft", tmp_path / "back", str(tmp_path / "base"), hints=NO_HINTS)
    kernels = json.loads((checkpoint / "run/run.json").read_text())["lora"]["kernels"]
    assert kernels == ["/.*/(key|query|value|wo)/kernel"]
    wanted = model.merge_and_unload().state_dict()
    for name, tensor in any_format.open_model(tmp_path / "back").stored().items():
        np.testing.assert_allclose(np.asarray(tensor), wanted[name].numpy(), rtol=1e-5, atol=1e-6)
    assert torch.is_tensor(wanted[names["Wqkv"] + ".weight"])
