"""A model on disk that is not read yet, whichever format keeps it: Limba, T5X or Hugging Face."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from limba.checkpoint_files import run_folder
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.families.encoders.encoder_family import EncoderFamily
from limba.convert.families.family import Family
from limba.convert.families.heads import Head
from limba.convert.families.networks import Network
from limba.convert.families.t5_family import T5Family
from limba.convert.families.table import t5_families
from limba.convert.model_files.hf import tokenizer_settings
from limba.convert.model_files.hf.tokenizer_settings import Settings
from limba.convert.tensors import tensor_parts
from limba.files.storage import AnyPath
from limba.network.encoders.config import EncoderConfig
from limba.network.layers import LayerNorm
from limba.network.t5 import MAX_DISTANCE, T5Config


@dataclasses.dataclass(frozen=True)
class ModelHints:
    """What the user says about a model whose files do not say it. None: what the files say, or else the usual.

    Attributes:
      family: the name of a T5's in `convert.families`.
      mlp_activations: ("gelu", "linear"), ("relu",) …
      vocab: the SentencePiece model or tokenizer.json.
      extra_ids: sentinels behind its pieces.
      ignore_config_keys: keys of a Hugging Face folder's files that have no effect.
      average: whether the average of the parameters, which the run of a checkpoint kept, is meant.
      without_lora: whether the adapters of a LoRA are left out, and not merged.
      generator: whether the generator of an ELECTRA's pre-training is meant.
      learns_sentinels: whether those are meant that a ByT5's tokenizer names, which Google's weights do not know.
      config_file: in place of a Hugging Face folder's config.json.
    """

    family: str | None = None
    mlp_activations: Sequence[str] | None = None
    vocab: str | None = None
    extra_ids: int | None = None
    ignore_config_keys: tuple[str, ...] = ()
    average: bool = False
    without_lora: bool = False
    generator: bool = False
    learns_sentinels: bool = False
    config_file: Path | None = None

    @property
    def in_bytes(self) -> bool:
        """Whether the family's vocabulary is bytes."""
        return self.family is not None and t5_families()[self.family].in_bytes is True


NO_HINTS = ModelHints()


@dataclasses.dataclass(frozen=True)
class Folder:
    """What a Hugging Face folder has beside Limba's view of it.

    Attributes:
      content: of config.json, with what it leaves to transformers' defaults.
      stored: the tensors by Hugging Face's names (those of T5 itself for its relatives), as the files have them; copies
        of the embedding are left out, and what the folder lacks is new.
      format: of the weights: "safetensors", "torch" or "flax".
      pad_id: its padding, which is 0 in Limba's view.
      embedding: the name under which a T5's weights have the embedding, `shared.weight` in most.
      is_headless: whether it lacked the head of an encoder, or a part of that of sentence pairs.
      left_out: tensors that the network does without.
      config_file: of the hints, in place of the folder's config.json.
      tokenizer: the folder from whose files the vocabulary was read; None if the user gave another, or none was found.
    """

    content: Mapping[str, Any]
    stored: Mapping[str, SavedTensor]
    format: str
    pad_id: int = 0
    is_headless: bool = False
    left_out: tuple[str, ...] = ()
    config_file: Path | None = None
    tokenizer: Path | None = None
    embedding: str = ""

    @property
    def is_flax(self) -> bool:
        return self.format == "flax"


AFamily = TypeVar("AFamily", bound=Family)
ANetwork = TypeVar("ANetwork", bound=Network)


@dataclasses.dataclass(frozen=True)
class Model(Generic[AFamily, ANetwork]):
    """A model that is not read yet.

    Attributes:
      format: "Limba", "T5X" or "Hugging Face".
      family: whose class holds it.
      config: the network, unrolled and with joined kernels.
      head: what stands on it.
      tensors: by Limba's names of unrolled layers.
      vocabulary: as `run.json` records it, with a file that can be read now; None if it is not known. See
        `convert.model_files.vocabularies.known`.
      step_from: what says the step, for messages; "" where nothing does and it is 0.
      info: the content of `run.json`; empty for other formats.
      assumed: what neither the files nor the user say, with what is taken for it: `{"mlp_activations": "gelu linear"}`.
      folder: None for checkpoints.
      not_held: tensors of a checkpoint that no class of the family has a place for.
      ignored_config_keys: of the hints.
      tokenizer_settings: what its folder says of the tokenizer beside the vocabulary, or said when it was converted.
    """

    path: AnyPath
    format: str
    family: AFamily
    config: ANetwork
    head: Head
    tensors: Mapping[str, SavedTensor]
    vocabulary: Mapping[str, Any] | None
    step: int
    step_from: str = ""
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    assumed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    folder: Folder | None = None
    not_held: tuple[str, ...] = ()
    ignored_config_keys: tuple[str, ...] = ()
    tokenizer_settings: Settings = tokenizer_settings.NONE

    @property
    def vocabulary_file(self) -> str | None:
        """None for bytes, and where the vocabulary is not known."""
        return run_folder.vocabulary_file(self.vocabulary or {})

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know of the network, in sentences."""
        if "mlp_activations" not in self.assumed:
            return ()
        return (
            f"{self.path} does not say all of its network, and no gin file does. Assumed: "
            f"{', '.join(f'{name} {value}' for name, value in self.assumed.items())}; the rest is as in T5X's network "
            f"(epsilon {LayerNorm.epsilon}, distances up to {MAX_DISTANCE}, tied logits divided by sqrt(emb_dim), 0 "
            "begins the decoder). If that is wrong, give --mlp_activations, or put the config.gin of the training "
            "beside the checkpoint.",
        )

    @property
    def dtype(self) -> np.dtype:
        """Of the embedding, which stands for all."""
        return np.dtype(self.tensors["token_embedder/embedding"].dtype)

    @property
    def num_parameters(self) -> int:
        return sum(int(np.prod(t.shape, dtype=np.int64)) for t in self.tensors.values())

    @property
    def pad_id(self) -> int:
        """The padding in a folder of Hugging Face: that of the class, or of the folder that the model came from."""
        if self.folder is not None:
            return self.folder.pad_id
        return self.family.stored_pad_id(self.config) or self.tokenizer_settings.pad_id

    def stored(self, as_flax: bool = False) -> dict[str, SavedTensor]:
        """The tensors as the class of Hugging Face has them, in PyTorch or in Flax."""
        table = self.family.table(self.config, self.head, self.pad_id)
        return {t.name: t.stored(self.tensors) for t in ([t.as_flax() for t in table] if as_flax else table)}

    def cast(self, dtype: np.dtype) -> "Model[AFamily, ANetwork]":
        """The model in another dtype. Reading a tensor raises ValueError where it holds NaN or infinite values."""

        def rounded(tensors: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
            return {name: tensor_parts.cast(t, dtype, f"{self.path}: {name}") for name, t in tensors.items()}

        folder = self.folder and dataclasses.replace(self.folder, stored=rounded(self.folder.stored))
        return dataclasses.replace(self, tensors=rounded(self.tensors), folder=folder)


T5Model = Model[T5Family, T5Config]
EncoderModel = Model[EncoderFamily, EncoderConfig]
