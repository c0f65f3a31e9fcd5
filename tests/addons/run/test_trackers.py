"""`report_to`: where metrics go, and what is said of a tracker that is not installed."""

import logging

import pytest

from limba.addons.run import trackers
from limba.addons.run.keys.script_keys import from_values
from limba.reports import mlflow_writer, trackio_writer, wandb_writer

KEYS = {"config_name": "c.json", "train_file": "t.csv", "output_dir": "o"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_CONFIG_DIR", "WANDB_DIR", "NETRC"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))


def _found(report_to):
    """`report_to` as the run has it, after its check."""
    names = trackers.installed(from_values(KEYS | {"report_to": report_to})[0].trackers)
    trackers.check(names, [])
    return names


def test_all_is_what_is_installed(monkeypatch, caplog):
    for module in (wandb_writer, trackio_writer, mlflow_writer):
        monkeypatch.setattr(module, "is_installed", lambda: False)
    assert _found("all") == _found(["all"]) == ("tensorboard",)
    assert [x.message for x in caplog.records if x.levelno == logging.WARNING] == [
        "report_to all leaves out what is not installed: wandb, trackio, mlflow."
    ] * 2
    caplog.clear()
    for module in (wandb_writer, trackio_writer, mlflow_writer):
        monkeypatch.setattr(module, "is_installed", lambda: True)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert _found("all") == ("tensorboard", "wandb", "trackio", "mlflow") and not caplog.records
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(
        ValueError, match=r"^report_to has 'wandb': Weights & Biases has no key .* write --report_to none"
    ):
        _found("all")


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
@pytest.mark.parametrize("others", [[], ["tensorboard"], ["all"]])
def test_one_that_is_asked_for_is_needed(monkeypatch, name, others):
    for module in (wandb_writer, trackio_writer, mlflow_writer):
        monkeypatch.setattr(module, "is_installed", lambda: False)
    says = rf"^report_to has '{name}', .* not installed: pip install {name}\. To do without write --report_to none"
    with pytest.raises(ValueError, match=says):
        _found([*others, name])


def test_others_are_named():
    with pytest.raises(ValueError, match="report_to is 'comet'; use none, tensorboard, wandb, trackio, mlflow or all"):
        _found("comet")
