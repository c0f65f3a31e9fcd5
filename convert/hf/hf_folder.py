"""A Hugging Face folder of a T5: config.json and weights in any of the formats, under Limba's names."""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.families import hf_config, other_models
from convert.families.family import Family
from convert.families.heads import Head
from convert.tensors import names, new_decoder, tensor_parts, torch_files, weight_files
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.machine import untrusted_json
from limba.machine.output_folder import REPORT, read_report
from limba.machine.storage import AnyPath
from limba.machine.untrusted_files import shown
from limba.network.t5 import T5Config

# Other names of the embedding, in PyTorch and Flax. Files may have one of them or all.
_ALIASES = {
    "torch": ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    "flax": ("shared/embedding", "encoder/embed_tokens/embedding", "decoder/embed_tokens/embedding"),
}
_OUTPUT = {"torch": "lm_head.weight", "flax": "lm_head/kernel"}
# The first T5s have it in their files; no version of the network reads it.
_UNUSED = "EncDecAttention.relative_attention_bias"
TRAINER_STATE = "trainer_state.json"
# What training scripts call the folders of their checkpoints: `checkpoint-500` and, in nanoT5, `checkpoint-pt-500`.
_CHECKPOINT_NAME = re.compile(r"checkpoint-(?:pt-)?(\d+)")


@dataclasses.dataclass(frozen=True)
class Folder:
    """An opened folder; no tensor is read yet.

    Attributes:
      family: the first with the `model_type` of config.json.
      config: the network, unrolled.
      content: of config.json, with what it leaves to transformers' defaults.
      tensors: by Limba's names.
      stored: by T5's names and in the orientation of the files, PyTorch's or Flax's; copies of the embedding left out.
      format: of the weights: "safetensors", "torch" or "flax".
      report: `conversion_report.json`; empty if Limba did not write the folder.
      head: of a classifier of tokens; None of a T5.
    """

    family: Family
    config: T5Config
    content: Mapping[str, Any]
    tensors: Mapping[str, SavedTensor]
    stored: Mapping[str, SavedTensor]
    format: str
    report: Mapping[str, Any]
    head: Head | None = None

    @property
    def is_flax(self) -> bool:
        return self.format == "flax"


def is_folder(path: AnyPath) -> bool:
    return "://" not in str(path) and (Path(path) / "config.json").is_file()


def open_folder(
    path: Path, format_: str | None = None, config_file: Path | None = None, ignored: Collection[str] = ()
) -> Folder:
    """Opens a folder.

    Args:
      format_: of the weights, where there are several: "safetensors", "torch" or "flax".
      config_file: in place of the folder's config.json.
      ignored: keys of it that the user says have no effect.

    Raises:
      FileNotFoundError: if it has no weights.
      ValueError: if it is damaged, contradicts itself, or is not a T5 that Limba has.
    """
    config_file = config_file or path / "config.json"
    content = hf_config.read(config_file, ignored)
    found, _ = weight_files.find(path, format_)
    stored = weight_files.open_tensors(path, found)
    return _open(path, config_file, content, found, stored, read_report(path))


def open_weights(file: Path, config_file: Path, ignored: Collection[str] = ()) -> Folder:
    """Opens a file that a PyTorch training script saved, its model under T5's names, and a config.json.

    Raises:
      FileNotFoundError: if one of them is not there.
      ValueError: as `open_folder`.
    """
    content = hf_config.read(config_file, ignored)
    return _open(file, config_file, content, "torch", torch_files.open_tensors([file]), {})


def _open(
    path: Path,
    config_file: Path,
    content: dict[str, Any],
    found: str,
    stored: Mapping[str, SavedTensor],
    report: Mapping[str, Any],
) -> Folder:
    family = hf_config.family_of(content)
    kind = "flax" if found == "flax" else "torch"
    if hf_config.hides_its_output(content) and family.tensor_name(_OUTPUT[kind]) in stored:
        # An output that is the embedding is not written twice.
        content = content | {"scale_decoder_outputs": False}
    config = hf_config.network_config(config_file, content)
    if config.num_encoder_layers + config.num_decoder_layers > len(stored):
        raise ValueError(
            f"{config_file}: num_layers is {config.num_encoder_layers} and num_decoder_layers "
            f"{config.num_decoder_layers}, and {path} has {len(stored)} tensors; they do not belong together."
        )
    content = hf_config.explicit(content, config)
    head = hf_config.head_of(config_file, content)
    num_labels = len(head.labels) if head else 0
    table = {t.limba: t.flax if kind == "flax" else t.torch for t in names.tensors(config, num_labels)}
    aliases = [_within(kind, name) if head else name for name in _ALIASES[kind]]
    t5_names = {family.tensor_name(name): name for name in (*aliases, *(s.name for s in table.values()))}
    named = {t5_names.get(name, name): t for name, t in stored.items()}
    if other_models.is_encoder_alone(content) and named:
        new = new_decoder.tensors(config, np.dtype(next(iter(named.values())).dtype))
        named = {table[name].name: table[name].orient(t) for name, t in new.items()} | named
    stored = _without_copies(path, kind, aliases, named)
    if not config.logits_via_embedding and hf_config.ties_output(path / "config.json"):
        stored.setdefault(_OUTPUT["torch"], stored[aliases[0]])
    if head is None:
        _check_output(path, config_file, kind, config, stored)
    names.verify(str(path), {n: t.shape for n, t in stored.items()}, {s.name: s.shape for s in table.values()})
    tensors = {name: s.orient(stored[s.name]) for name, s in table.items()}
    return Folder(family, config, content, tensors, stored, found, report, head)


def training_step(path: Path, report: Mapping[str, Any]) -> tuple[int, str]:
    """The step of training that a folder's weights are of, and what says it; 0 and "" where nothing does.

    A Hugging Face Trainer writes into folders that Limba exported too, after it, so its file comes first. Only where
    the best checkpoint of its training is what was exported, as `limba run` leaves it, the report has the step.

    Args:
      report: `conversion_report.json`.

    Raises:
      ValueError: if the Trainer's file is damaged.
    """
    file = path / TRAINER_STATE
    if file.is_file():
        try:
            state = untrusted_json.read_object(file)
        except ValueError as error:
            raise ValueError(f"{error} Repair it, or remove it for step 0.") from error
        step = state.get("global_step")
        if type(step) is not int or not 0 <= step < 2**31:
            raise ValueError(
                f"{file}: global_step is {shown(step)}; it is a whole number of at least 0, and below 2**31."
            )
        if state.get("best_global_step") != report.get("step", -1):
            return step, TRAINER_STATE
    if "step" in report:
        return report["step"], REPORT
    named = _CHECKPOINT_NAME.fullmatch(path.name)
    return (int(named[1]), "the folder's name") if named else (0, "")


def _within(kind: str, name: str) -> str:
    """The name of a tensor of the T5 in a classifier."""
    return f"{names.TRANSFORMER}{'/' if kind == 'flax' else '.'}{name}"


def _without_copies(
    path: Path, kind: str, aliases: Sequence[str], stored: Mapping[str, SavedTensor]
) -> dict[str, SavedTensor]:
    """The tensors without other names of the embedding, and with its own, the first of `aliases`.

    Raises:
      ValueError: if they differ.
    """
    unused = _UNUSED.replace(".", "/") if kind == "flax" else _UNUSED
    kept = {name: t for name, t in stored.items() if name not in aliases and unused not in name}
    present = [name for name in aliases if name in stored]
    if not present:
        raise ValueError(f"{path} has no {aliases[0]}, the embedding.")
    shared = stored[present[0]]
    for name in present[1:]:
        if not tensor_parts.equal(shared, stored[name]):
            raise ValueError(f"{path}: {present[0]} and {name} differ; a T5 has one embedding.")
    return kept | {aliases[0]: shared}


def _check_output(path: Path, config_file: Path, kind: str, config: T5Config, kept: dict[str, SavedTensor]) -> None:
    """Removes an output that is the embedding. Raises ValueError if it is not what config.json says of it."""
    shared, output = kept[_ALIASES[kind][0]], _OUTPUT[kind]
    if config.logits_via_embedding and output in kept:
        same = tensor_parts.transposed(kept[output]) if kind == "flax" else kept[output]
        if not tensor_parts.equal(shared, same):
            raise ValueError(
                f"{config_file} says that the embedding is the output too (tie_word_embeddings), but {output} is "
                "another matrix. If it is the output, set tie_word_embeddings and scale_decoder_outputs to false."
            )
        del kept[output]
    if not config.logits_via_embedding and output not in kept:
        raise ValueError(
            f"{config_file} says that the output has its own matrix (tie_word_embeddings: false), but there is "
            f"no {output}."
        )
