"""A run's directory from a foreign model: a checkpoint with its `run/`, and the gin file of the model.

OUT/checkpoint_0/     what INITIAL_CHECKPOINT_PATH = OUT restores
OUT/model.gin         the network and the vocabulary; the first --gin_file of a training
OUT/lora.gin          of a LoRA, the last --gin_file of a training that goes on with it
OUT/spiece.model      or tokenizer.json; beside it tokenizer_settings.json, if a folder of Hugging Face says any
"""

import argparse
import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.checkpoint_files import run_folder, state_checksums
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.checkpoint_files.small_files import write_files
from limba.convert.compare import comparison
from limba.convert.model_files import any_format, t5_files
from limba.convert.model_files.model import Model
from limba.convert.t5x import model_gin, t5x_state
from limba.convert.t5x.t5x_checkpoint import NETWORKS, Compare, SourceCheckpoint, in_layout, write_checkpoint
from limba.files import json_text, storage
from limba.files.output_folder import choose_out, fingerprint
from limba.files.version import VERSION
from limba.network.t5 import T5Config

MODEL_GIN, LORA_GIN = "model.gin", "lora.gin"
# Of the parameters of a run.
_DTYPE = "float32"
# They belong to a run and not to the network, and config.json has them.
_RATES = ("dropout_rate", "attention_dropout_rate")


def add_options(parser: argparse.ArgumentParser, usual_network: str) -> None:
    """Adds the options of the commands that write a run's directory; `usual_network` is for --help."""
    parser.add_argument("--network", choices=NETWORKS, help=f"whose layout the layers get ({usual_network})")
    parser.add_argument("--no-check", action="store_true", help="write without reading back and comparing")
    parser.add_argument("--overwrite", action="store_true", help="replace what another conversion wrote to OUT")
    any_format.add_hint_arguments(parser)


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments `hints`, `network`, `verify` and `overwrite` from the command line."""
    return {
        "hints": any_format.hints_of(args),
        "network": args.network,
        "verify": not args.no_check,
        "overwrite": args.overwrite,
    }


@dataclasses.dataclass(frozen=True)
class LoraRecord:
    """Adapters of a run: what `run.json` says of them, and the folder that they came from."""

    description: Mapping[str, Any]
    source: Path


def write_run(
    model: Model,
    tensors: Mapping[str, SavedTensor],
    network: str | None,
    out: Path,
    verify: bool,
    overwrite: bool,
    lora: LoraRecord | None = None,
) -> Path:
    """Writes the directory and returns the checkpoint in it.

    Args:
      model, tensors: what is converted, and its train state by name, `target/…` and perhaps `state/…`.
      network: whose layout the layers of a T5 get, "t5" or "scalable_t5"; None is as they are.
      out, verify, overwrite: as of `t5x_checkpoint.write_checkpoint`.
      lora: the adapters among the tensors, which the model has merged; None if there are none.

    Raises:
      FileNotFoundError: if the vocabulary is not known.
      ValueError: if it is not the model's, the layout is impossible, or OUT has the checkpoint already.
    """
    vocabulary = dict(any_format.known_vocabulary(model))
    out = choose_out(out, model.path)
    source = SourceCheckpoint(model.path, in_layout(tensors, network, model.path), model.step)
    content = None
    if not run_folder.is_bytes(vocabulary):
        content = Path(run_folder.vocabulary_file(vocabulary) or "").read_bytes()
        vocabulary = run_folder.with_vocabulary_file(vocabulary, str(out / run_folder.vocabulary_name(vocabulary)))
    files = files_of_run(model, source, vocabulary, content, lora)
    return write_files_of_run(source, files, comparison.with_source(model), out, verify, overwrite)


@dataclasses.dataclass(frozen=True)
class RunFiles:
    """What a run's directory has beside the tensors.

    Attributes:
      network_class, network, vocabulary: as `run.json` has them.
      gin: the content of model.gin.
      lora_gin: the content of lora.gin; "" if there is no LoRA.
      vocabulary_content: of the vocabulary's file; None if it has none.
      more: further keys of `run.json`.
      tokenizer_settings: the content of their file; None if there are none.
    """

    network_class: str
    network: Mapping[str, Any]
    vocabulary: Mapping[str, Any]
    gin: str
    vocabulary_content: bytes | None
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tokenizer_settings: bytes | None = None
    lora_gin: str = ""

    def info(self, source: SourceCheckpoint) -> dict[str, Any]:
        """The content of `run.json`."""
        return {
            "limba_version": VERSION,
            "network_class": self.network_class,
            "network": dict(self.network),
            "vocabulary": dict(self.vocabulary),
            **self.more,
            "converted_from": str(source.path),
        }

    def of_checkpoint(self, source: SourceCheckpoint) -> dict[str, bytes]:
        """The content of a checkpoint's `run/`."""
        return run_folder.files(self.info(source), self.gin, self.vocabulary_content) | self.settings_files

    @property
    def settings_files(self) -> dict[str, bytes]:
        """The file of the tokenizer's settings, if there is one."""
        content = self.tokenizer_settings
        return {} if content is None else {run_folder.TOKENIZER_SETTINGS: content}


def files_of_run(
    model: Model,
    source: SourceCheckpoint,
    vocabulary: Mapping[str, Any],
    content: bytes | None,
    lora: LoraRecord | None = None,
) -> RunFiles:
    """What a checkpoint says of a model, whose tensors it has in the layout of the source."""
    config = model.config
    more: dict[str, Any] = dict(model.head.record)
    of, network = f"{model.path} ({model.family.name})", model_gin.network_fields(config)
    if isinstance(config, T5Config):
        of = f"{model.path} ({model.format}, {model.family.name})"
        config = layout_of(config, source.tensors)
        network = model_gin.network_fields(config)
    network |= {rate: getattr(config, rate) for rate in _RATES if hasattr(config, rate)}
    if model.ignored_config_keys:
        more["ignored_config_keys"] = list(model.ignored_config_keys)
    if model.assumed:
        more[t5_files.ASSUMED] = dict(model.assumed)
    description = None if lora is None else lora.description
    if lora is not None:
        more |= {"lora": dict(lora.description), "lora_from": [str(lora.source), fingerprint(lora.source)]}
    gin_file = model_gin.write(config, model.head, vocabulary or None, of, description)
    lora_gin = "" if description is None else model_gin.write_lora(config, model.head, description, of)
    settings = model.tokenizer_settings.content()
    return RunFiles(type(config).__name__, network, vocabulary, gin_file, content, more, settings, lora_gin)


def write_files_of_run(
    source: SourceCheckpoint, files: RunFiles, compare: Compare, out: Path, verify: bool, overwrite: bool
) -> Path:
    """Writes a run's directory and returns the checkpoint in it; arguments and errors are those of `write_run`."""
    content = files.vocabulary_content

    def add_files(folder: Path) -> None:
        write_files(folder / "dataset", {})  # Another's place in the data means nothing to our readers.
        sums = state_checksums.of_tensors(t5x_state.as_saved(source.tensors, _DTYPE))
        write_files(folder / run_folder.FOLDER, files.of_checkpoint(source) | state_checksums.to_file(sums))

    beside = {MODEL_GIN: files.gin.encode(), **files.settings_files}
    if files.lora_gin:
        beside[LORA_GIN] = files.lora_gin.encode()
    if content is not None:
        beside[run_folder.vocabulary_name(files.vocabulary)] = content
    for name, file_content in beside.items():
        if not overwrite and (out / name).exists() and (out / name).read_bytes() != file_content:
            raise ValueError(f"{out / name} is another model's; choose another OUT or give --overwrite.")
    digest = hashlib.sha256(json_text.dumps(files.info(source)).encode()).hexdigest()
    path = write_checkpoint(source, out, "orbax", _DTYPE, compare, verify, overwrite, add_files, digest)
    if run_folder.TOKENIZER_SETTINGS not in beside:  # Of what was there before.
        (out / run_folder.TOKENIZER_SETTINGS).unlink(missing_ok=True)
    for name, file_content in beside.items():
        storage.write_bytes(out / name, file_content)
    return path


def layout_of(config: T5Config, tensors: Mapping[str, SavedTensor]) -> T5Config:
    """The network with its layers as the tensors of a checkpoint have them."""
    scanned = "target/encoder/encoder/mlp/wo/kernel" in tensors
    query = tensors[f"target/encoder/{'encoder' if scanned else 'layers_0'}/attention/query/kernel"]
    return dataclasses.replace(config, scan_layers=scanned, joined_attention_kernels=query.ndim - scanned == 2)
