"""The encoder of a model as a folder of sentence-transformers: vectors of texts, pooled as `limba embed` pools them.

The names of its classes are those of version 5 and older, which every version reads.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from tqdm import tqdm

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare.comparison_rows import Comparison, compare_tensors
from limba.convert.exports.encoder_export import EncoderExport
from limba.convert.exports.export import Export
from limba.convert.exports.t5_export import T5Export
from limba.convert.families import heads, networks
from limba.convert.families.config_files import encoder_config
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.convert.families.family import Family
from limba.convert.families.networks import Network
from limba.convert.families.t5_family import TRANSFORMER
from limba.convert.model_files import any_format
from limba.convert.model_files.model import Model
from limba.convert.tensors import safetensors_files, table, tensor_parts
from limba.files import json_text

# Limba's names of poolings, and the flags of sentence-transformers.
POOLINGS = {"mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens", "first": "pooling_mode_cls_token"}
_FLAGS = (*POOLINGS.values(), "pooling_mode_mean_sqrt_len_tokens")
DTYPES = ("float32", "bfloat16")
_SHARD_BYTES = 5 * 10**9
POOLING, NORMALIZE = "1_Pooling", "2_Normalize"
_ENCODER = ("encoder/", "token_embedder/")
# Of T5s: what sentence-transformers loads as an encoder alone. It would take a UMT5Model for one, and fail.
_T5_CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel"}
# Keys of config.json and fields of a network that are the head's.
_OF_HEADS = ("id2label", "label2id", "problem_type", "classifier_dropout", "classifier_pooling")
_HEAD_FIELDS = ("head_", "logits_", "family", "name")


@dataclasses.dataclass(frozen=True)
class SentenceFolder:
    """What is written.

    Attributes:
      export: of the model, which says tokenizer and config.json.
      pooling: of `POOLINGS`.
      has_unit_length: whether vectors are divided by their length.
      max_length: tokens of a text; longer ones are cut.
    """

    export: Export
    pooling: str
    has_unit_length: bool
    max_length: int

    @property
    def model(self) -> Model:
        return self.export.model

    @property
    def model_class(self) -> str:
        """Of Hugging Face."""
        family = self.model.family
        of_t5 = _T5_CLASSES.get(family.model_type, "")
        return of_t5 or family.model_class.replace(f"For{family.usual_head.kind}", "Model")

    def tensors(self, dtype: str) -> dict[str, SavedTensor]:
        """Those of the encoder, by the names of its class."""
        model, family, kind = self.model, self.model.family, jnp.dtype(dtype)
        prefix = family.prefix if isinstance(family, EncoderFamily) else TRANSFORMER if model.head.labels else ""
        stored = model.cast(kind).stored()
        found = {}
        for tensor in family.table(model.config, model.head, model.pad_id):
            name = family.tensor_name(tensor.name)
            is_ours = all(part.limba.startswith(_ENCODER) for part in tensor.parts)
            if is_ours and (tensor.parts or name.startswith(f"{prefix}.")):
                saved = stored[tensor.name]
                saved = saved if saved.dtype == kind else tensor_parts.cast(saved, kind, name)
                found[name.removeprefix(f"{prefix}.")] = saved
        return found

    def write_beside(self, folder: Path, dtype: str) -> dict[str, Any]:
        """Writes the tokenizer; returns the JSON files by name, some in folders."""
        config = self.export.write_beside(folder, dtype)["config.json"]
        config = {key: value for key, value in config.items() if key not in _OF_HEADS}
        parts = [("", "Transformer"), (POOLING, "Pooling"), *([(NORMALIZE, "Normalize")] * self.has_unit_length)]
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(parts)
        ]
        flags = {flag: flag == POOLINGS[self.pooling] for flag in _FLAGS}
        return {
            "config.json": config | {"architectures": [self.model_class]},
            "modules.json": modules,
            # Without it version 5 takes a relative path for a name on the hub, and asks there.
            "config_sentence_transformers.json": {
                "__version__": {},
                "prompts": {},
                "default_prompt_name": None,
                "similarity_fn_name": "cosine",
            },
            "sentence_bert_config.json": {"max_seq_length": self.max_length, "do_lower_case": False},
            f"{POOLING}/config.json": {"word_embedding_dimension": self.model.config.emb_dim, **flags},
        }

    def num_bytes(self, dtype: str) -> int:
        """Of the weights on the disk."""
        return sum(map(tensor_parts.num_bytes, self.tensors(dtype).values()))

    def write(self, folder: Path, dtype: str) -> None:
        """Writes everything but the card and the report into a folder."""
        (folder / POOLING).mkdir(exist_ok=True)
        for name, content in self.write_beside(folder, dtype).items():
            (folder / name).write_text(json_text.dumps(content, indent=2) + "\n", "utf-8")
        tensors = self.tensors(dtype)
        with tqdm(total=self.num_bytes(dtype), desc="writing", unit="B", unit_scale=True, disable=None) as bar:
            safetensors_files.write(folder, tensors, bar.update, _SHARD_BYTES)

    def compare(self, folder: Path) -> list[Comparison]:
        """Reads the folder back. Raises ValueError if it is of another network."""
        written = any_format.open_model(folder)
        ours, theirs = (self._encoder(model, written) for model in (self.model, written))
        shapes_of_ours, shapes = ({name: t.shape for name, t in tensors.items()} for tensors in (ours, theirs))
        table.verify(str(folder), shapes, shapes_of_ours)
        a, b = (_settings(self.model.family, model.config) for model in (self.model, written))
        other = sorted(name for name in a | b if a.get(name) != b.get(name))
        note = f"of {len(a)}{': ' if other else ''}{', '.join(other)}"
        return [compare_tensors(ours, theirs), Comparison("settings that differ", len(other), 0, note)]

    def _encoder(self, model: Model, written: Model) -> dict[str, SavedTensor]:
        """The parameters of the encoder of one of two models, as the class has them where their networks differ."""
        ours = self.model
        if getattr(ours.config, "rotary_pairs", None) == getattr(written.config, "rotary_pairs", None):
            names = [name for name in ours.tensors if name.startswith(_ENCODER)]
            return {name: model.tensors[name] for name in names if name in model.tensors}
        rows = ours.family.table(ours.config, ours.head, ours.pad_id)
        stored = dataclasses.replace(model, folder=None).stored()
        names = [row.name for row in rows if row.parts and all(part.limba.startswith(_ENCODER) for part in row.parts)]
        return {name: stored[name] for name in names if name in stored}


def _settings(family: Family, config: Network) -> dict[str, Any]:
    """What a network is as Hugging Face's class has it, which may hold two different ones of ours; without its head."""
    network: Any = networks.plain(config)
    if isinstance(family, EncoderFamily):
        return encoder_config.settings(family, network, heads.OF_MASKED_LM, network.pad_id)
    return {name: value for name, value in vars(network).items() if not name.startswith(_HEAD_FIELDS)}


def of_model(model: Model, pooling: str | None, has_unit_length: bool | None, max_length: int | None) -> SentenceFolder:
    """The folder of a model; see `SentenceFolder`. What is None is as `limba embed` has it.

    Raises:
      FileNotFoundError: if the vocabulary is not known.
      ValueError: if sentence-transformers cannot load such a model, or the model reads no texts so long.
    """
    if model.family.has_decoder and model.family.model_type not in _T5_CLASSES:
        raise ValueError(
            f"{model.path} is of {model.family.title}, whose encoder sentence-transformers does not load alone: it has "
            f"{' and '.join(_T5_CLASSES.values())}. `limba embed` writes its vectors."
        )
    export = T5Export(model) if model.family.has_decoder else EncoderExport(model)
    longest = getattr(model.config, "longest_row", None)
    if max_length is not None and (max_length < 1 or (longest is not None and max_length > longest)):
        most = "" if longest is None else f", and at most {longest}, the model's positions"
        raise ValueError(f"--max_seq_length {max_length}: it is at least 1{most}.")
    trained = model.head if model.head.kind == heads.VECTORS else heads.Head(heads.VECTORS, pooling="mean")
    usual = trained.max_length if longest is None else min(trained.max_length, longest)
    has_unit_length = trained.normalize if has_unit_length is None else has_unit_length
    return SentenceFolder(export, pooling or trained.pooling, has_unit_length, max_length or usual)


# As of `embedding.Embedder`.
USUAL_LENGTH = heads.Head().max_length


def files(folder: Path) -> list[str]:
    """The names of the files in a folder, those of its folders too."""
    found: Mapping[str, Path] = {str(file.relative_to(folder)): file for file in folder.rglob("*")}
    return sorted(name for name, file in found.items() if file.is_file() and not name.startswith("."))
