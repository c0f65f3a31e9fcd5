"""W&B's own package, offline: what it wrote is read back from its files."""

import json
import os
import struct
import sys
import time

import pytest

from limba.reports.wandb_writer import WandbWriter

GIN = """
from __gin__ import dynamic_registration
from limba.training import trainer
BATCH_SIZE = 8
MODEL = @models.EncoderDecoderModel()
train/data.DatasetConfig.batch_size = %BATCH_SIZE
trainer.Trainer:
  num_microbatches = None
"""


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_RUN_ID", "WANDB_PROJECT", "WANDB_NAME"):
        monkeypatch.delenv(name, raising=False)


def _records(file):
    """The records of a `.wandb` file: LevelDB's log format, behind seven bytes of its own."""
    content, at, record = file.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # A header is never split between blocks.
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def _read(file):
    """The history (step: values), configuration and run of a `.wandb` file."""
    from wandb.proto import wandb_internal_pb2  # at the top, each process of the tests would import it

    history, config, run = {}, {}, None
    for data in _records(file):
        record = wandb_internal_pb2.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            values = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            history[record.history.step.num] = {k: v for k, v in values.items() if not k.startswith("_")}
        elif kind == "run":
            run = record.run
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "config":
            config |= {item.key: json.loads(item.value_json) for item in record.config.update}
    return history, config, run


def _files(model_dir):
    import wandb

    wandb.teardown()  # The process that writes ends when everything is written.
    return sorted(model_dir.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime)


def test_a_training_that_goes_on_is_one_run(tmp_path, monkeypatch):
    model_dir = tmp_path / "my_run"
    monkeypatch.setattr(sys, "argv", ["limba", "train", "--gin.FILES='https://me:pl4nted@h/a?X-Amz-Signature=pl4nted'"])
    writer = WandbWriter(model_dir, project="p", group="g", tags=("a",))
    assert "pl4nted" in sys.argv[2]
    writer.write_text(0, "train", "config", GIN)
    writer.write_scalars(2, "train", {"loss": 3.5, "broken": float("nan")})
    writer.write_scalars(2, "training_eval/task", {"accuracy": 0.25})
    writer.write_scalars(2, "training_eval/task_average", {"accuracy": 0.5})  # of the average of the parameters
    writer.write_scalars(2, "inference_eval/task", {"eval/em": 20.0})
    writer.write_scalars(4, "train", {"loss": 3.0})
    writer.close()
    # It was killed after step 4, and goes on from the checkpoint of step 2.
    writer = WandbWriter(model_dir, keep_until=2, project="p")
    writer.write_scalars(4, "train", {"loss": 3.0})
    writer.write_scalars(6, "train", {"loss": 2.5})
    writer.close()

    assert not [file for file in model_dir.rglob("*") if file.is_file() and b"pl4nted" in file.read_bytes()]
    first, second = map(_read, _files(model_dir))
    # Sweeps of Hugging Face's scripts look for the Trainer's names.
    evaluated = {"training_eval/task/accuracy": 0.25, "eval/accuracy": 0.25, "eval/em": 20.0}
    evaluated |= {"training_eval/task_average/accuracy": 0.5}
    evaluated |= {"inference_eval/task/eval/em": 20.0}
    assert first[0] == {2: {"train/loss": 3.5, **evaluated, "eval/exact_match": 20.0}, 4: {"train/loss": 3.0}}
    assert second[0] == {6: {"train/loss": 2.5}}
    assert first[1]["BATCH_SIZE"] == 8 and first[1]["MODEL"] == "@models.EncoderDecoderModel()"
    kept = json.loads((model_dir / "wandb.json").read_text())
    assert first[2].run_id == second[2].run_id == kept["id"] and kept["last_step"] == 6
    assert (first[2].project, first[2].display_name, first[2].run_group) == ("p", "my_run", "g")
    assert list(first[2].tags) == ["a"]


def test_an_agent_chooses_the_id(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "chosen7")
    WandbWriter(tmp_path).close()
    assert json.loads((tmp_path / "wandb.json").read_text())["id"] == "chosen7"


@pytest.mark.parametrize("known", ["a/b", "*?[a]", "x" * 3000, " ", "a:b"])
def test_an_id_that_is_none_of_wandb_s_begins_another_run(tmp_path, known):
    """It came with a folder, and would end the training."""
    (tmp_path / "wandb.json").write_text(json.dumps({"id": known}) + "\n")
    WandbWriter(tmp_path).close()
    assert len(json.loads((tmp_path / "wandb.json").read_text())["id"]) == 8
    assert (tmp_path / "wandb.json.damaged").exists()


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    import wandb

    with pytest.raises(ValueError, match=r"WandbWriter.mode is 'ofline'"):
        WandbWriter(tmp_path, mode="ofline")
    assert wandb.run is None
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"pip install wandb"):
        WandbWriter(tmp_path)


def test_a_missing_key_is_found_without_wandb(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "netrc").write_text("machine api.wandb.example login user password 1234\n")
    with pytest.raises(
        ValueError, match=r"no key for https://api\.wandb\.ai\. Set WANDB_API_KEY .* WANDB_MODE=offline"
    ):
        WandbWriter.check_key()
    for name, value in (
        *(("WANDB_MODE", mode) for mode in ("offline", "disabled")),
        *(("WANDB_API_KEY", "1234"), ("WANDB_BASE_URL", "https://api.wandb.example")),
    ):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            WandbWriter.check_key()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "settings").write_text("[default]\nmode = offline\n")
    WandbWriter.check_key()


def test_a_folder_does_not_choose_the_server(tmp_path, monkeypatch):
    """It would get the key."""
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_BASE_URL", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    settings = tmp_path / "wandb/settings"
    settings.parent.mkdir()
    settings.write_text("[default]\nentity = me\nproject=mine\nbase_url = https://api.wandb.ai\n")
    WandbWriter.check()
    settings.write_text("[default]\nBase_URL = http://their.host\n")
    with pytest.raises(ValueError, match=r"wandb/settings sets Base_URL .* set WANDB_BASE_URL=http://their\.host in"):
        WandbWriter.check()
    monkeypatch.setenv("WANDB_BASE_URL", "http://their.host")
    WandbWriter.check()
    settings.write_text("[default]\nhttps_proxy: http://their.host\n")
    with pytest.raises(ValueError, match="sets https_proxy for"):
        WandbWriter.check()
    settings.write_text("\n" * 50_000 + "https_proxy = a" + " " * 50_000 + "b\n")
    begun = time.process_time()
    with pytest.raises(ValueError, match="sets https_proxy for"):
        WandbWriter.check()
    assert time.process_time() - begun < 3
    os.truncate(settings, 2**35)  # holes
    with pytest.raises(ValueError, match="wandb/settings has 34,359,738,368 bytes"):
        WandbWriter.check()
