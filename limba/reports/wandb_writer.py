"""Writes metrics to Weights & Biases: `train_script.train.metric_writers = [@wandb_writer.WandbWriter]`.

Needs `pip install wandb` (the extra `wandb`). WANDB_MODE=offline needs no network and writes into MODEL_DIR/wandb;
`wandb sync` uploads that later. Names are `<dataset>/<metric>`: `train/loss`, `training_eval/my_task/accuracy`.
"""

import importlib.util
import netrc
import os
import re
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from limba.files import redaction, untrusted_files, written_files
from limba.gin_config.recipe import Recipe
from limba.reports.tracked_run import TrackedRun
from limba.reports.writers import Scalars

_RECORD = "wandb.json"
# As transformers reads WANDB_DISABLED.
_TRUE = ("1", "ON", "YES", "TRUE")
_HOST = "https://api.wandb.ai"
# What `wandb init` and `wandb offline` write into the working directory's wandb/settings.
_OF_FOLDER = ("entity", "project", "mode", "disabled")
_SETTING = re.compile(r"^[ \t]*([\w-]+)[ \t]*[=:](.*)", re.MULTILINE)


def is_disabled() -> bool:
    """Whether the environment forbids W&B in transformers' words, WANDB_DISABLED=true."""
    return os.environ.get("WANDB_DISABLED", "").upper() in _TRUE


def is_installed() -> bool:
    """Whether the package of W&B is there."""
    return importlib.util.find_spec("wandb") is not None


class WandbWriter:
    """One W&B run for one training run, also after it resumes: `MODEL_DIR/wandb.json` keeps the run's id.

    The W&B run's configuration is the operative gin configuration.

    Args:
      model_dir: of the training run.
      keep_until: the step from which training resumes, -1 for a new run. Later values that W&B already has stay: a
        resumed run repeats the same numbers.
      project: on W&B; None is WANDB_PROJECT, or "limba".
      name: of the run; None is WANDB_NAME, or the name of MODEL_DIR.
      entity: owner of the project; None is WANDB_ENTITY, or the user.
      group: of runs, such as a sweep's; None is WANDB_RUN_GROUP.
      tags: of the run.
      mode: "online", "offline" or "disabled"; None is WANDB_MODE, or online.

    Raises:
      ValueError: if wandb is not installed, or for an unknown mode.
      RuntimeError: if W&B cannot be reached, or there is no key.
    """

    def __init__(
        self,
        model_dir: Path,
        keep_until: int = -1,
        project: str | None = None,
        name: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        mode: str | None = None,
    ):
        if mode not in (None, "online", "offline", "disabled"):
            raise ValueError(f"WandbWriter.mode is {mode!r}; use 'online', 'offline' or 'disabled'.")
        self.check()
        import wandb

        # A W&B agent has already chosen the id.
        self._tracked = TrackedRun(model_dir / _RECORD, keep_until, os.environ.get("WANDB_RUN_ID"), r"[\w.-]{1,64}")
        run_id = self._tracked.id or secrets.token_hex(4)
        written_files.make_folder(model_dir, "wandb")
        given = sys.argv[:]
        try:
            sys.argv[:] = map(redaction.redact, given)  # W&B keeps the command line of a run.
            self._run: Any = wandb.init(
                project=project or os.environ.get("WANDB_PROJECT", "limba"),
                name=name or os.environ.get("WANDB_NAME") or model_dir.name,
                entity=entity,
                group=group,
                tags=list(tags) or None,
                mode=mode,  # type: ignore[arg-type]
                id=run_id,
                resume="allow",
                dir=str(model_dir),
            )
        except wandb.errors.Error as error:
            raise RuntimeError(
                f"Weights & Biases did not start a run ({error}). Set WANDB_API_KEY or run `wandb login`; "
                "WANDB_MODE=offline needs neither."
            ) from error
        finally:
            sys.argv[:] = given
        self._tracked.begin(run_id)

    @staticmethod
    def check() -> None:
        """Raises ValueError, before data is opened, if wandb is not installed, or a folder's settings name a server."""
        if not is_installed():
            raise ValueError(
                "WandbWriter needs one more package: pip install wandb. Or remove WandbWriter from "
                "train.metric_writers."
            )
        _check_settings_of_folder()

    @staticmethod
    def check_key() -> None:
        """Raises ValueError if wandb would find no key: `wandb.init` says it after minutes, when all is compiled."""
        host = os.environ.get("WANDB_BASE_URL") or _HOST
        if not (_is_quiet() or _has_key(urlsplit(host).netloc)):
            raise ValueError(
                f"Weights & Biases has no key for {redaction.redact(host)}. Set WANDB_API_KEY or run `wandb login`; "
                "WANDB_MODE=offline needs neither."
            )

    def write_scalars(self, step: int, dataset: str, scalars: Scalars) -> None:
        # W&B's steps only increase: what it has already is not sent again.
        if values := self._tracked.values(step, dataset, scalars):
            self._run.log(values, step=step)
            self._tracked.sent(step)

    def write_text(self, step: int, dataset: str, name: str, text: str) -> None:
        if name == "config":
            self._run.config.update({x.name: x.value for x in Recipe.parse(text).bindings}, allow_val_change=True)

    def close(self) -> None:
        self._run.finish()


def _folders() -> list[Path]:
    """Where wandb looks for settings of a folder."""
    return [Path(os.environ.get("WANDB_DIR") or ".") / name for name in ("wandb", ".wandb")]


def _check_settings_of_folder() -> None:
    """Raises ValueError for a setting that a downloaded folder may not choose, such as the server that gets the key."""
    for file in (folder / "settings" for folder in _folders()):
        if not file.is_file():
            continue
        for name, text in _SETTING.findall(untrusted_files.read_bytes(file).decode("utf-8", "replace")):
            value = text.strip()
            is_host = name.lower() == "base_url" and value in (_HOST, os.environ.get("WANDB_BASE_URL"))
            if name.lower() not in _OF_FOLDER and not is_host:
                remedy = f"WANDB_BASE_URL={value}" if name.lower() == "base_url" else f"WANDB_{name.upper()}"
                raise ValueError(
                    f"{file} sets {name} for Weights & Biases, and may have come with the folder. If it is yours, set "
                    f"{redaction.redact(untrusted_files.cut(remedy))} in the environment; else remove the line."
                )


def _is_quiet() -> bool:
    """Whether wandb needs no key, or its own settings may say so, or name another server."""
    folders = [Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser()]
    settings = any((folder / "settings").is_file() for folder in [*folders, *_folders()])
    return settings or os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled")


def _has_key(server: str) -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    given = os.environ.get("NETRC")
    for file in [given] if given else ["~/.netrc", "~/_netrc"]:
        try:
            if netrc.netrc(Path(file).expanduser()).authenticators(server):
                return True
        except (OSError, netrc.NetrcParseError):
            continue  # wandb does not read it either.
    return False
