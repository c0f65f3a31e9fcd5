"""A T5 that was fine-tuned with another decoder_start_token_id: there and back, and what contradicts it."""

import json
import shutil

import numpy as np
import pytest

from convert.compare import comparison, forward, t5_outputs
from convert.families.config_files import t5_config
from convert.families.table import t5_families
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.model_files.model import ModelHints
from convert.to_hf import to_hf
from convert.to_t5x import to_t5x
from limba.checkpoints import checkpointing
from limba.network.t5 import T5Config

START = 7
IGNORED = ModelHints(ignore_config_keys=("my_key",))


@pytest.fixture
def folder(all_exported, tmp_path):
    """Of Hugging Face, whose decoder begins with START."""
    folder = tmp_path / "model"
    shutil.copytree(all_exported["t5_1_1-t5"].folder, folder)
    for name in ("flax_model.msgpack", "conversion_report.json", "README.md"):
        (folder / name).unlink(missing_ok=True)
    _set(folder / "config.json", START, my_key=3)
    _set(folder / "generation_config.json", START)
    return folder


def _set(file, start, **more):
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"decoder_start_token_id": start} | more))


def test_there_and_back(folder, tmp_path):
    checkpoint = from_hf(folder, tmp_path / "run", hints=IGNORED, verify=False)
    assert checkpointing.load_run_info(checkpoint)["ignored_config_keys"] == ["my_key"]
    assert checkpointing.load_run_info(checkpoint)["network"]["decoder_start_token_id"] == START
    assert f"  decoder_start_token_id = {START}\n" in (tmp_path / "run/model.gin").read_text()
    report = to_hf(tmp_path / "run", tmp_path / "back", formats=("safetensors",))
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "back" / name).read_text())["decoder_start_token_id"] == START
    rows = {row["what"]: row for row in report["comparisons"]["safetensors"]}
    assert rows["logits, B in PyTorch"]["holds"] and rows["greedy tokens, B in PyTorch"]["holds"], rows
    assert rows["logits, B in NumPy"]["holds"], rows
    assert "keys of its files taken for without effect | `my_key`" in (tmp_path / "back/README.md").read_text()


def test_two_starts_are_two_models(folder, all_exported):
    a, b = (any_format.open_model(path, IGNORED) for path in (all_exported["t5_1_1-t5"].run, folder))
    with pytest.raises(ValueError, match=r"decoder_start_token_id is 0 in A .* and 7 in B"):
        comparison.compare(a, b)


def test_t5x_has_no_such_network(folder, tmp_path):
    from_hf(folder, tmp_path / "run", hints=IGNORED, verify=False)
    with pytest.raises(ValueError, match=r"begins with 7 \(decoder_start_token_id\), and T5X's always begins with 0"):
        to_t5x(tmp_path / "run", tmp_path / "t5x")
    assert not (tmp_path / "t5x").exists()


@pytest.mark.parametrize(
    ("of_config", "of_generation", "start", "note"),
    [
        (3, 4, 4, "decoder_start_token_id is 3 in config.json and 4 in generation_config.json: 4 counts"),
        (0, 4, 4, "decoder_start_token_id is 0 in config.json and 4 in generation_config.json: 4 counts"),
        (None, 4, 4, ""),
        (3, None, 3, ""),
        (None, None, 0, ""),
    ],
)
def test_generation_config_counts(tmp_path, of_config, of_generation, start, note):
    file = tmp_path / "config.json"
    content = t5_config.model_config(T5Config(vocab_size=8), t5_families()["t5_1_1"], "float32", None)
    file.write_text(json.dumps(content | {"decoder_start_token_id": of_config}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": of_generation}))
    assert t5_config.network_config(file, t5_config.read(file)).decoder_start_token_id == start
    notes = [*t5_config.notes(file)]
    assert len(notes) == bool(note) and note in "".join(notes)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ({"pad_token_id": 3}, "generation_config.json: pad_token_id is 3, and in config.json it is 0"),
        ({"eos_token_id": [1, 4]}, "generation_config.json: eos_token_id is a list of 2; Limba has one"),
    ],
)
def test_other_special_ids_of_generation_are_refused(folder, tmp_path, ids, words):
    (folder / "generation_config.json").write_text(json.dumps(ids))
    with pytest.raises(ValueError, match=words):
        from_hf(folder, tmp_path / "run", hints=IGNORED)
    assert not (tmp_path / "run").exists()


def test_the_numpy_t5_sees_the_start(folder):
    """The check's logits depend on it: one that both sides left out would not be noticed."""
    model = any_format.open_model(folder, IGNORED)
    batch = t5_outputs.check_batch(model.config, np.zeros(0, np.int32))
    assert set(batch["decoder_input_tokens"][:, 0]) == {model.config.decoder_start_token_id}
    batch["decoder_input_tokens"][:, 0] = 0
    zero = forward.logits(T5Config(**{**vars(model.config), "decoder_start_token_id": 0}), model.tensors, batch)
    assert np.abs(zero - forward.logits(model.config, model.tensors, batch)).max() > 0.1
