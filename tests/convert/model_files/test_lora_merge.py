import json
import types

import jax
import numpy as np
import pytest
from flax import traverse_util

from convert.compare import forward
from convert.model_files import any_format, lora_merge
from convert.to_hf import to_hf
from convert.to_t5x import to_t5x
from limba.checkpoint_files import saved_tensors
from limba.checkpoint_files.small_files import load_files, write_files
from limba.checkpoints import checkpointing
from limba.models import EncoderDecoderModel
from limba.models.lora import LoRA
from limba.network.t5 import T5Config, Transformer
from tests.convert.conftest import FAMILIES, SMALL

# Products about a third as large as their kernels.
ADAPTERS = {"rank": 3, "alpha": 1.0}
SCANNED = {"scan_layers": True, "joined_attention_kernels": False}


@pytest.fixture(scope="module", params=[("t5", {}), ("umt5", SCANNED)], ids=["t5", "umt5-scanned"])
def run(request, new_run, tmp_path_factory):
    """A run with adapters, its parameters and its network."""
    family, layout = request.param
    directory = new_run(tmp_path_factory.mktemp("run"), adapters=ADAPTERS, **FAMILIES[family], **layout)
    config = T5Config(**(SMALL | FAMILIES[family] | layout))
    return types.SimpleNamespace(
        directory=directory, module=LoRA(Transformer(config), **ADAPTERS), params=checkpointing.load_params(directory)
    )


def test_exports_have_the_logits_of_the_adapter_model(run, tmp_path):
    vocabulary = types.SimpleNamespace(eos_id=1)
    model = EncoderDecoderModel(run.module, vocabulary, vocabulary, optimizer_def=None)
    rng = np.random.default_rng(0)
    batch = {
        name: rng.integers(3, 512, (2, length), np.int32)
        for name, length in (("encoder_input_tokens", 24), ("decoder_input_tokens", 12), ("decoder_target_tokens", 12))
    }
    of_adapters = np.asarray(jax.jit(model.logits)(run.params, batch))
    to_hf(run.directory, tmp_path / "hf", formats=["safetensors"], verify=False)
    exported = any_format.open_model(tmp_path / "hf")
    np.testing.assert_allclose(forward.logits(exported.config, exported.tensors, batch), of_adapters, rtol=0, atol=1e-5)


def test_the_checkpoint_for_t5x_is_the_sum(run, tmp_path):
    path = to_t5x(run.directory, tmp_path / "t5x", format_="classic", verify=False)
    merged = traverse_util.flatten_dict(run.module.merge(run.params), sep="/")
    written = {n: np.asarray(t) for n, t in saved_tensors.open_tensors(path).items() if n.startswith("target/")}
    assert written.keys() == {f"target/{name}" for name in merged}
    for name, tensor in merged.items():
        np.testing.assert_allclose(written[f"target/{name}"], tensor, rtol=1e-6, atol=1e-6)


def test_parts_are_those_of_the_whole(run):
    path = checkpointing.find_checkpoint(run.directory)
    tensors = lora_merge.merged(saved_tensors.open_tensors(path), path)
    for name, tensor in tensors.items():
        if name.endswith(("out/kernel", "query/kernel")):
            index = tuple(slice(size // 2, size) for size in tensor.shape)
            np.testing.assert_allclose(tensor.read(index), np.asarray(tensor)[index], rtol=1e-6, atol=1e-6)


def test_what_cannot_be_merged(new_run, tmp_path):
    path = checkpointing.find_checkpoint(new_run(tmp_path / "run", adapters=ADAPTERS))
    tensors = saved_tensors.open_tensors(path)
    name = "target/encoder/layers_0/attention/query/lora_b"
    with pytest.raises(ValueError, match=f"lora_a is there, and {name} is missing"):
        lora_merge.merged({n: t for n, t in tensors.items() if n != name}, path)
    with pytest.raises(ValueError, match=r"adapters \(32, 3\) and \(2, 24\) do not fit the kernel \(32, 24\)"):
        lora_merge.merged({**tensors, name: saved_tensors.from_array(np.ones((2, 24), np.float32))}, path)
    info = checkpointing.load_run_info(path)
    assert info["lora"] == {**ADAPTERS, "kernels": ["/.*/(query|key|value|out|wi|wi_0|wi_1|wo)/kernel"]}
    del info["lora"]
    write_files(path / "run", load_files(path, "run") | {"run.json": json.dumps(info).encode()})
    with pytest.raises(ValueError, match="does not say the alpha"):
        any_format.open_checkpoint(path)
