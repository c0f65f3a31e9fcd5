"""`report_to`: where metrics go, and what is said of a tracker that is not installed."""

import logging

import pytest

from limba.gin_config.hf_keys.script_keys import from_values
from limba.hf_script import trackers
from limba.reports import wandb_writer

KEYS = {"config_name": "c.json", "train_file": "t.csv", "output_dir": "o"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CONFIG_DIR", "WANDB_DIR", "NETRC"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))


def _found(report_to):
    """`report_to` as the run has it, after its check."""
    arguments = trackers.without_absent(from_values(KEYS | {"report_to": report_to})[0])
    trackers.check(arguments, [])
    return arguments.report_to


def test_all_is_what_is_installed(monkeypatch, caplog):
    monkeypatch.setattr(wandb_writer, "is_installed", lambda: False)
    assert _found("all") == "tensorboard" and _found(["all"]) == "tensorboard"
    assert [x.message for x in caplog.records if x.levelno == logging.WARNING] == [
        "report_to all: TensorBoard; wandb is left out, because its package is not installed."
    ] * 2
    caplog.clear()
    monkeypatch.setattr(wandb_writer, "is_installed", lambda: True)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert _found("all") == "all" and not caplog.records
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(ValueError, match=r"^report_to is 'all': Weights & Biases has no key .* write --report_to none"):
        _found("all")


@pytest.mark.parametrize("report_to", ["wandb", ["tensorboard", "wandb"], ["all", "wandb"]])
def test_wandb_that_is_asked_for_is_needed(monkeypatch, report_to):
    monkeypatch.setattr(wandb_writer, "is_installed", lambda: False)
    says = r"^report_to is 'wandb', .* not installed: pip install wandb\. To do without W&B write --report_to none"
    with pytest.raises(ValueError, match=says):
        _found(report_to)


def test_others_are_named():
    with pytest.raises(ValueError, match="report_to is 'mlflow'; use none, tensorboard, wandb or all"):
        _found("mlflow")
