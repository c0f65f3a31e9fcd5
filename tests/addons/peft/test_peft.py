"""LoRAs of Limba in PEFT, and adapters of PEFT in Limba: by hand, and by the library itself."""

import json
import shutil
import types

import gin
import jax
import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

from convert.__main__ import main
from convert.compare import forward
from convert.model_files import any_format
from convert.model_files.model import NO_HINTS, ModelHints
from convert.to_hf import to_hf
from limba.addons.peft import bounded_time, factors, from_peft, peft_folder, to_peft
from limba.checkpoints import checkpointing
from limba.gin_config import gin_files
from limba.models import EncoderDecoderModel
from tests.convert.conftest import FAMILIES

RANK, ALPHA = 3, 2.0
SCANNED = {"scan_layers": True, "joined_attention_kernels": False}
KINDS = {"t5": {}, "umt5": SCANNED}


def _lora(new_run, directory, kind="t5", **adapters):
    return new_run(directory, adapters={"rank": RANK, "alpha": ALPHA} | adapters, **FAMILIES[kind], **KINDS[kind])


@pytest.fixture(scope="module", params=KINDS)
def lora(request, new_run, tmp_path_factory):
    """A LoRA: its run, the export of its base and of the merged model, and the adapter."""
    home = tmp_path_factory.mktemp(request.param)
    run = _lora(new_run, home / "run", request.param)
    to_hf(run, home / "base", formats=["safetensors"], hints=ModelHints(without_lora=True), verify=False)
    to_hf(run, home / "merged", formats=["safetensors"], verify=False)
    report = to_peft.to_peft(run, home / "adapter", str(home / "base"))
    return types.SimpleNamespace(kind=request.param, home=home, run=run, report=report)


def _batch(rng=None):
    rng = rng or np.random.default_rng(0)
    inputs, outputs = rng.integers(3, 512, (2, 24), np.int32), rng.integers(3, 512, (2, 12), np.int32)
    return {"encoder_input_tokens": inputs, "decoder_input_tokens": outputs, "decoder_target_tokens": outputs}


def _logits(model, batch):
    names = {"input_ids": "encoder_input_tokens", "decoder_input_ids": "decoder_input_tokens"}
    with torch.no_grad():
        return model.eval()(**{name: torch.tensor(batch[ours]).long() for name, ours in names.items()}).logits.numpy()


@pytest.fixture(scope="module")
def peft():
    """The library; tests/run.sh installs it."""
    return pytest.importorskip("peft")


def _base(lora):
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(lora.home / "base")


def test_the_files_are_the_factors_transposed(lora):
    config = json.loads((lora.home / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (3, 2, "SEQ_2_SEQ_LM")
    assert config["base_model_name_or_path"] == str(lora.home / "base")
    tensors = safetensors.numpy.load_file(lora.home / "adapter/adapter_model.safetensors")
    params = checkpointing.load_params(lora.run)
    stack = params["decoder"]["decoder"] if lora.kind == "umt5" else params["decoder"]["layers_1"]
    of_layer = stack["encoder_decoder_attention"]["out"]
    a, b = (np.asarray(of_layer[f"lora_{factor}"]) for factor in "ab")
    if lora.kind == "umt5":
        a, b = a[:, 1], b[:, 1]
    name = "base_model.model.decoder.block.1.layer.1.EncDecAttention.o"
    np.testing.assert_array_equal(tensors[f"{name}.lora_A.weight"], a.T)
    np.testing.assert_array_equal(tensors[f"{name}.lora_B.weight"], b.T)
    # 3 encoder layers of 4 kernels, 2 of the decoder with 8, and the MLP's.
    in_mlp = 3 if lora.kind == "umt5" else 2
    assert len(config["target_modules"]) == len(tensors) // 2 == 3 * 4 + 2 * 8 + 5 * in_mlp
    of_tensors = lora.report["comparisons"][-1]
    assert of_tensors["value"] <= of_tensors["allowed"] < 1e-5
    assert f"{len(tensors) // 2} of them with factors" in of_tensors["note"]


@pytest.mark.sample(1)
def test_peft_loads_it_with_the_logits_of_the_merged_export(lora, peft):
    batch = _batch()
    base = _base(lora)
    before = _logits(base, batch)
    model = peft.PeftModel.from_pretrained(base, lora.home / "adapter")
    merged = _logits(transformers.AutoModelForSeq2SeqLM.from_pretrained(lora.home / "merged"), batch)
    assert np.abs(before - merged).max() > 0.5
    np.testing.assert_allclose(_logits(model, batch), merged, rtol=0, atol=2e-5)
    found = model.merge_and_unload().state_dict()
    for name, wanted in safetensors.numpy.load_file(lora.home / "merged/model.safetensors").items():
        np.testing.assert_allclose(found[name].numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(1)
def test_the_way_back_has_the_same_factors_and_trains_on(lora, tmp_path):
    checkpoint = from_peft.from_peft(lora.home / "adapter", tmp_path / "run", hints=NO_HINTS)
    assert checkpoint.name == "checkpoint_10"  # the report's step
    before, after = (factors.of_checkpoint(checkpointing.find_checkpoint(run)) for run in (lora.run, tmp_path / "run"))
    assert after.alpha == ALPHA and after.kernels.keys() == before.kernels.keys()
    for name, pair in before.kernels.items():
        np.testing.assert_equal(after.kernels[name], pair)
    # The model of model.gin alone, and that of a training, have the checkpoint's parameters.
    for files in (["model.gin"], ["model.gin", "lora.gin"]):
        gin.clear_config()
        of_run = [str(tmp_path / "run" / name) for name in files]
        gin_files.parse_gin_flags([of_run[0], "gin/runs/finetune.gin", *of_run[1:]], ["TRAIN_STEPS = 1"], "")
        model = gin.get_configurable(EncoderDecoderModel)()
        assert model.module.description == json.loads((checkpoint / "run/run.json").read_text())["lora"]
        shapes, _ = model.param_shapes_and_axes()
        params = checkpointing.load_params(tmp_path / "run")
        assert jax.tree.map(lambda x: x.shape, params) == jax.tree.map(lambda x: x.shape, shapes)
    assert type(model.optimizer_def).__name__ == "PartialOptimizer"


def test_an_adapter_that_peft_made(all_exported, tmp_path, peft):
    """rsLoRA of half of the layers, in bfloat16, by an expression."""
    folder = all_exported["t5_1_1-t5"].folder
    config = peft.LoraConfig(
        task_type="SEQ_2_SEQ_LM",
        r=4,
        lora_alpha=5,
        use_rslora=True,
        lora_dropout=0.1,
        target_modules=r".*encoder\.block\.[02]\..*\.(q|wi_1)",
        init_lora_weights=False,
    )
    base = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    model = peft.get_peft_model(base, config)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "lora_" in name:
                x.copy_(x.bfloat16())
    model.save_pretrained(tmp_path / "adapter")
    tensors = safetensors.torch.load_file(tmp_path / "adapter/adapter_model.safetensors")
    tensors = {name: x.bfloat16() for name, x in tensors.items()}
    safetensors.torch.save_file(tensors, tmp_path / "adapter/adapter_model.safetensors")
    from_peft.from_peft(tmp_path / "adapter", tmp_path / "run", str(folder), hints=NO_HINTS)
    record = checkpointing.load_run_info(tmp_path / "run")["lora"]
    assert record["rank"] == 4 and record["alpha"] == 10.0  # 5 / sqrt(4) is 10 / 4
    assert record["kernels"] == [
        *[f"/encoder/layers_{i}/{name}/kernel" for i in (0, 2) for name in ("attention/query", "mlp/wi_1")]
    ]
    batch = _batch()
    found = any_format.open_model(tmp_path / "run")
    wanted = _logits(model, batch)
    np.testing.assert_allclose(forward.logits(found.config, found.tensors, batch), wanted, rtol=0, atol=2e-5)


# ------------------------------------------------------ refusals ---------------------------------------------------


@pytest.fixture(scope="module")
def plain(new_run, tmp_path_factory):
    """A LoRA of queries alone, its base and its adapter."""
    home = tmp_path_factory.mktemp("plain")
    run = _lora(new_run, home / "run", kernels=["/.*/query/kernel"])
    to_hf(run, home / "base", formats=["safetensors"], hints=ModelHints(without_lora=True), verify=False)
    to_peft.to_peft(run, home / "adapter")
    return types.SimpleNamespace(home=home, run=run)


QUERY = "decoder.block.0.layer.0.SelfAttention.q"
CONFIGS = {
    "another kind": ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; Limba has LORA alone. Merge it"),
    "DoRA": ({"use_dora": True}, "use_dora is True, and Limba's LoRA has no magnitudes of its own. Merge it in PEFT"),
    "biases": ({"bias": "lora_only"}, "bias is 'lora_only', and Limba's LoRA has no biases"),
    "whole modules": (
        {"modules_to_save": ["lm_head"]},
        "modules_to_save is ['lm_head'], and Limba's LoRA has no whole",
    ),
    "other ranks": ({"rank_pattern": {QUERY: 5}}, f"factors of {QUERY} are (3, 32) and (24, 3), and adapter_config"),
    "other scales": (
        {"alpha_pattern": {QUERY: 1}},
        f"differ, 0.333333 of {QUERY} and 0.666667 of decoder.block.0.layer.1.EncDec",
    ),
    "PiSSA": ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa': PEFT changes the base's own weights"),
    "too few targets": ({"target_modules": [QUERY]}, "which target_modules and layers_to_transform of adapter_config"),
    "too few layers": (
        {"target_modules": ["q"], "layers_to_transform": [1], "layers_pattern": "block"},
        f"has factors of {QUERY}, which target_modules and layers_to_transform",
    ),
    "a layer that is a word": ({"layers_to_transform": ["0"]}, "layers_to_transform is a list of 1; it is a number"),
    "a flag within": ({"rank_pattern": {"(?i)q": 3}}, "rank_pattern has '(?i)q', which is no expression: global flags"),
    "a word that is no expression": ({"layers_pattern": "(("}, "layers_pattern has '((', which is no expression"),
    "excluded": ({"exclude_modules": [QUERY]}, f"has factors of {QUERY}, which target_modules"),
    "a key of a later version": ({"new_way": 3}, "new_way is 3, a key that Limba does not know"),
    # Each step back doubles the steps.
    "an expression without an end": (
        {"target_modules": "((.*)*)*!"},
        "adapter_config.json: looking for modules by its expressions takes more than 0.5 seconds.",
    ),
    "a pattern without an end": (
        {"rank_pattern": {"((\\w|\\.)*)*!": 3}},
        "adapter_config.json: looking for modules by its expressions takes more than 0.5 seconds.",
    ),
    "no rank": ({"r": 0}, "r is 0; it is a number above 0 and below 2"),
    "a rate that is a list": ({"lora_dropout": [1]}, "lora_dropout is a list of 1; it is a number of at least 0"),
    "a rate without an end": ({"lora_dropout": 10**400}, "lora_dropout is a whole number of about 401 digits; it is a"),
    "a rate above 1": ({"lora_dropout": 7}, "lora_dropout is 7; it is a number of at least 0 and below 1"),
    "rsLoRA in a word": ({"use_rslora": "yes"}, "use_rslora is 'yes'; it is true or false"),
    "a scale without an end": ({"lora_alpha": 10**400}, "lora_alpha is a whole number of about 401 digits; it is a"),
    "no base": ({}, "does not name the base of the adapter (base_model_name_or_path): give --base"),
    "a revision": (
        {"base_model_name_or_path": "a/b", "revision": "v2"},
        "asks for the revision v2 of a/b: download it",
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_limba_cannot_hold(plain, tmp_path, capsys, monkeypatch, name):
    changes, message = CONFIGS[name]
    if name.endswith("without an end"):
        monkeypatch.setattr(bounded_time, "SECONDS", 0.5)
    (tmp_path / "adapter").mkdir()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / "adapter" / file).write_bytes((plain.home / "adapter" / file).read_bytes())
    file = tmp_path / "adapter/adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    of_base = [] if name in ("no base", "a revision") else ["--base", str(plain.home / "base")]
    assert main(["from-peft", str(tmp_path / "adapter"), str(tmp_path / "run"), *of_base]) == 1
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not (tmp_path / "run").exists()


TENSORS = {
    "no prefix": (
        lambda name: name.removeprefix("base_model.model."),
        f"{QUERY}.lora_A.weight does not begin with base",
    ),
    "DoRA's": (lambda name: name.replace("lora_B.weight", "lora_magnitude_vector"), "vector is no factor of a kernel"),
    "one factor": (
        lambda name: None if "lora_B" in name else name,
        f"{QUERY} has one factor, and lora_B.weight is miss",
    ),
    "another model": (lambda name: name.replace(".block.", ".layers."), "which is no kernel of"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_have_no_place(plain, tmp_path, capsys, name):
    rename, message = TENSORS[name]
    (tmp_path / "adapter").mkdir()
    config = json.loads((plain.home / "adapter/adapter_config.json").read_text())
    config["target_modules"] = ["q"]
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    tensors = safetensors.numpy.load_file(plain.home / "adapter/adapter_model.safetensors")
    renamed = {rename(tensor): x for tensor, x in tensors.items() if rename(tensor)}
    safetensors.numpy.save_file(renamed, tmp_path / "adapter/adapter_model.safetensors")
    arguments = [str(tmp_path / "adapter"), str(tmp_path / "run"), "--base", str(plain.home / "base")]
    assert main(["from-peft", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_bad_input(plain, new_run, tmp_path, capsys, monkeypatch):
    def error(*arguments):
        capsys.readouterr()
        assert main([*map(str, arguments)]) == 1
        return capsys.readouterr().err

    other = new_run(tmp_path / "other", **FAMILIES["t5"] | {"num_decoder_layers": 1})
    out = tmp_path / "out"
    assert "is not of a LoRA: it has no factors" in error("to-peft", other, out)
    assert "is not of a LoRA: it has no adapters to leave out" in error("to-hf", other, out, "--no-lora")
    to_hf(other, tmp_path / "other_base", formats=["safetensors"], verify=False)
    assert "other_base is not the base of" in error("to-peft", plain.run, out, "--base", tmp_path / "other_base")
    to_hf(plain.run, tmp_path / "merged", formats=["safetensors"], verify=False)
    wrong = error("to-peft", plain.run, out, "--base", tmp_path / "merged")
    assert "merged is not the base of" in wrong and "parameters that differ: 7 of" in wrong and "--no-lora" in wrong
    assert "holds another conversion (other adapter of)" in error(
        "to-peft", plain.run, plain.home / "adapter", "--base", plain.home / "base"
    )
    assert "has no adapter_config.json: it is not an adapter" in error("from-peft", plain.home / "base", out)
    adapter = plain.home / "adapter"
    assert f"limba convert from-peft {adapter} OUT --base BASE" in error("from-hf", adapter, out)
    # Another adapter of the same shapes, in the same folder, is not taken for the one that is there.
    shutil.copytree(plain.home / "adapter", tmp_path / "adapter")
    given = ["from-peft", tmp_path / "adapter", tmp_path / "run", "--base", plain.home / "base", "--no-check"]
    assert main([*map(str, given)]) == 0
    tensors = safetensors.numpy.load_file(tmp_path / "adapter/adapter_model.safetensors")
    twice = {name: 2 * x for name, x in tensors.items()}
    safetensors.numpy.save_file(twice, tmp_path / "adapter/adapter_model.safetensors")
    assert "holds another conversion (other added files)" in error(*given)
    # A mistake in what is written: the check finds it, and nothing is left.
    write = peft_folder.write_weights

    def write_wrong(folder, modules):
        write(folder, {name: peft_folder.ModuleFactors(m.a, m.b[::-1], m.alpha) for name, m in modules.items()})

    monkeypatch.setattr(peft_folder, "write_weights", write_wrong)
    assert "What was written is not the run's model, nothing was kept: base + adapter" in error(
        "to-peft", plain.run, out
    )
    assert not out.exists() and not [*tmp_path.glob(".*")]
