"""An encoder on disk that is not read yet: a checkpoint of Limba or a Hugging Face folder, under Limba's names."""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convert.encoders import new_heads, tensors, tokenizer_folder
from convert.encoders.family import Family, value
from convert.encoders.table import find_family, of_model_type
from convert.encoders.tensors import Tensor
from convert.families import config_keys, heads
from convert.families.heads import Head
from convert.hf import hf_folder, hf_tokenizer, tokenizer_settings
from convert.hf.tokenizer_settings import Settings
from convert.model_files import any_format, lora_merge
from convert.model_files.any_format import NO_HINTS, ModelHints
from convert.tensors import names, tensor_parts, torch_files, weight_files
from limba.checkpoint_files import directories, run_folder, saved_tensors
from limba.checkpoint_files.saved_tensors import Index, SavedTensor, from_array
from limba.encoders.config import EncoderConfig
from limba.encoders.encoder import num_unscanned_layers
from limba.machine import json_text, storage, untrusted_json
from limba.machine.output_folder import read_report
from limba.machine.storage import AnyPath

_PARAMETERS = "target/"
# The engine pads rows with it.
PAD_ID = 0
# Far more than any table has: a damaged number must not decide the size of an array.
_MOST_ROWS = 2**24


@dataclasses.dataclass(frozen=True)
class Folder:
    """What a Hugging Face folder has beside Limba's view of it.

    Attributes:
      content: of config.json, with what it leaves to transformers' defaults.
      stored: the tensors by Hugging Face's names; those of a head that it lacks are new.
      pad_id: its padding.
      format: of the weights.
      is_headless: whether it lacked the head, or a part of that of sentence pairs.
      left_out: tensors that the network does without.
    """

    content: Mapping[str, Any]
    stored: Mapping[str, SavedTensor]
    pad_id: int
    format: str
    is_headless: bool
    left_out: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class EncoderModel:
    """An encoder with its head.

    Attributes:
      format: "Limba" or "Hugging Face".
      family: whose class holds it.
      config: the network, unrolled.
      head: what stands on it.
      tensors: by Limba's names of unrolled layers.
      vocabulary_file: a tokenizer.json with Limba's ids; None if it is not known.
      step_from: what says the step, for messages.
      info: the content of `run.json`; empty for a folder.
      not_held: tensors of a checkpoint that no class of the family has a place for.
      ignored_config_keys: of the hints.
      tokenizer_settings: what its folder says of the tokenizer beside tokenizer.json, or said when it was converted.
    """

    path: AnyPath
    format: str
    family: Family
    config: EncoderConfig
    head: Head
    tensors: Mapping[str, SavedTensor]
    vocabulary_file: Path | None
    step: int
    step_from: str = ""
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    folder: Folder | None = None
    not_held: tuple[str, ...] = ()
    ignored_config_keys: tuple[str, ...] = ()
    tokenizer_settings: Settings = tokenizer_settings.NONE

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.tensors["token_embedder/embedding"].dtype)

    @property
    def num_parameters(self) -> int:
        return sum(int(np.prod(t.shape, dtype=np.int64)) for t in self.tensors.values())

    @property
    def pad_id(self) -> int:
        """The padding in a folder of Hugging Face."""
        return self.folder.pad_id if self.folder else self.family.stored_pad_id(self.config)

    def stored(self) -> dict[str, SavedTensor]:
        """The tensors as the class of Hugging Face has them."""
        return {t.name: t.stored(self.tensors) for t in self.table()}

    def table(self) -> list[Tensor]:
        """The tensors of its folder."""
        return tensors.table(self.config, self.head, self.family, self.pad_id)

    def cast(self, dtype: np.dtype) -> "EncoderModel":
        def rounded(found: Mapping[str, SavedTensor]) -> dict[str, SavedTensor]:
            return {name: tensor_parts.cast(t, dtype, f"{self.path}: {name}") for name, t in found.items()}

        folder = self.folder and dataclasses.replace(self.folder, stored=rounded(self.folder.stored))
        return dataclasses.replace(self, tensors=rounded(self.tensors), folder=folder)

    def known_vocabulary(self) -> dict[str, Any]:
        """What `run.json` says of the vocabulary.

        Raises:
          FileNotFoundError: if it is not known.
          ValueError: if it lacks special tokens, has another padding than the network, or more ids than the embedding
            has rows.
        """
        if self.vocabulary_file is None:
            raise FileNotFoundError(
                f"{self.path} has no {tokenizer_folder.FILE}; give one with --vocab FILE. transformers writes it: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(OTHER)."
            )
        vocabulary = tokenizer_folder.describe(self.vocabulary_file)
        hf_tokenizer.check_sizes(
            {**vocabulary, "sentencepiece_model_file": str(self.vocabulary_file)},
            self.config.vocab_size,
            str(self.path),
        )
        pad_id = tokenizer_folder.special_ids(self.vocabulary_file)["pad"]
        if pad_id != self.config.pad_id:
            raise ValueError(
                f"The padding of {self.vocabulary_file} is {pad_id}, and that of the network in {self.path} is "
                f"{self.config.pad_id}; they do not belong together."
            )
        return vocabulary


def is_encoder(path: str | AnyPath) -> bool:
    """Whether a path is a Hugging Face folder or a config.json of one of the families, or a checkpoint or run of
    Limba's encoders."""
    path = storage.as_path(path)
    file = Path(path) / "config.json" if hf_folder.is_folder(path) else Path(path)
    if "://" not in str(path) and file.suffix == ".json" and file.is_file():
        return of_model_type(untrusted_json.read_object(file).get("model_type")) is not None
    if not directories.is_checkpoint(path) and not directories.checkpoint_steps(path):
        return False
    path = directories.find_checkpoint(path)
    return run_folder.has_run_info(path) and "position_embedding_type" in run_folder.load_run_info(path)["network"]


def open_model(path: str | AnyPath, hints: ModelHints = NO_HINTS, format_: str | None = None) -> EncoderModel:
    """Opens a checkpoint, a run's directory for its newest one, or a Hugging Face folder.

    `format_` is that of a folder's weights, where there are several: "safetensors" or "torch".

    Raises:
      FileNotFoundError: if there is none, or a file of it is missing.
      ValueError: if it is damaged, or Hugging Face or Limba does not have its network; or for hints about a T5.
    """
    check_hints(hints)
    path = storage.as_path(path)
    return open_folder(Path(path), hints, format_) if hf_folder.is_folder(path) else open_checkpoint(path, hints)


def check_hints(hints: ModelHints) -> None:
    """Raises ValueError for what only T5s are asked."""
    for field in ("family", "mlp_activations", "extra_ids"):
        if (given := getattr(hints, field)) is not None:
            raise ValueError(f"--{field} {given}: this is an encoder, whose files say all of it; leave it out.")


# ----------------------------------------------------- a checkpoint --------------------------------------------------


def open_checkpoint(path: str | AnyPath, hints: ModelHints = NO_HINTS) -> EncoderModel:
    """Opens a checkpoint of Limba; see `open_model`. The hints' `vocab` is a tokenizer.json.

    Raises:
      FileNotFoundError: if a file of it is missing.
      ValueError: if it is damaged, or no class of Hugging Face holds the network.
    """
    check_hints(hints)
    path = directories.find_checkpoint(path)
    info = run_folder.load_run_info(path)
    head = heads.of_run(info, path)
    try:
        config = EncoderConfig.from_json(info["network"])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path}/run/run.json does not describe an EncoderConfig of this version ({error})."
        ) from error
    family = find_family(config, head)
    saved = lora_merge.merged(saved_tensors.open_tensors(path), path)
    parameters = {n.removeprefix(_PARAMETERS): t for n, t in saved.items() if n.startswith(_PARAMETERS)}
    found = _unrolled(parameters, config)
    config = dataclasses.replace(config, scan_layers=False, remat_policy="none")
    whole = tensors.shapes(config, head)
    names.verify(f"The checkpoint {path}", {n: t.shape for n, t in found.items()}, whole)
    head = family.held(head)
    wanted = tensors.shapes(config, head)
    return EncoderModel(
        path=path,
        format="Limba",
        family=family,
        config=config,
        head=head,
        tensors={name: found[name] for name in wanted},
        vocabulary_file=_vocabulary_of_run(path, info, hints.vocab),
        step=int(np.asarray(saved["state/step"])) if "state/step" in saved else 0,
        info=info,
        not_held=tuple(name for name in whole if name not in wanted),
        tokenizer_settings=tokenizer_settings.of_checkpoint(path),
    )


def _vocabulary_of_run(path: AnyPath, info: Mapping[str, Any], vocab: str | None) -> Path | None:
    kept = run_folder.find_vocabulary(path)
    if vocab is not None:
        given = Path(vocab) / tokenizer_folder.FILE if Path(vocab).is_dir() else Path(vocab)
        if kept is not None and not tokenizer_folder.same(given, str(kept)):
            raise ValueError(f"--vocab {vocab} is another vocabulary than in training, which is {kept}; leave it out.")
        return given
    if kept is not None:
        return tokenizer_folder.temporary_file(storage.read_bytes(kept)) if storage.is_remote(kept) else Path(kept)
    recorded = info["vocabulary"].get("tokenizer_file")
    return Path(recorded) if recorded and Path(recorded).is_file() else None


def _unrolled(saved: Mapping[str, SavedTensor], config: EncoderConfig) -> dict[str, SavedTensor]:
    """The parameters by the names of unrolled layers; see `limba.encoders.encoder` for the scanned ones."""
    first, period = num_unscanned_layers(config), config.global_attention_every
    found = {}
    for name, tensor in saved.items():
        inside = re.fullmatch(r"encoder/encoder/(?:layers_(\d+)/)?(.*)", name)
        if inside is None:
            found[name] = tensor
            continue
        axis = min(config.param_scan_axis, tensor.ndim - 1)
        for number in range(tensor.shape[axis]):
            layer = first + number * period + int(inside[1] or 0)
            found[f"encoder/layers_{layer}/{inside[2]}"] = _layer(tensor, axis, number)
    return found


def _layer(tensor: SavedTensor, axis: int, number: int) -> SavedTensor:
    def read(index: Index) -> np.ndarray:
        return np.squeeze(tensor.read((*index[:axis], slice(number, number + 1), *index[axis:])), axis)

    return SavedTensor(tensor.shape[:axis] + tensor.shape[axis + 1 :], tensor.dtype, read)


# ------------------------------------------------------- a folder ----------------------------------------------------


def open_folder(
    path: Path, hints: ModelHints = NO_HINTS, format_: str | None = None, keeps_pooler: bool = False
) -> EncoderModel:
    """Opens a Hugging Face folder; see `open_model`. The hints' `vocab` is a tokenizer.json with the folder's ids.

    A folder of the encoder alone, such as a BertModel, gets a new head. `keeps_pooler` takes a masked language model
    whose files have BERT's pooler too, as most have, with the head of sentence pairs, which a classifier begins with.

    Raises:
      FileNotFoundError: if it has no weights.
      ValueError: if it is damaged, or Limba does not have its network.
    """
    found, _ = weight_files.find(path, format_)
    if found == "flax":
        raise ValueError(
            f"{path} has weights of Flax alone: load it in transformers 4 with from_flax=True, and save it."
        )
    step = hf_folder.training_step(path, read_report(path))
    return _open(path, path / "config.json", found, step, hints, keeps_pooler)


def open_weights(file: Path, config_file: Path, hints: ModelHints = NO_HINTS) -> EncoderModel:
    """Opens a file that a PyTorch training script saved, with the config.json of its network; see `open_folder`.

    The tokenizer.json is that of the hints, else one beside the files.
    """
    check_hints(hints)
    places = [place for place in (config_file.parent, file.parent) if (place / tokenizer_folder.FILE).is_file()]
    if hints.vocab is None and places:
        hints = dataclasses.replace(hints, vocab=str(places[0]))
    return _open(file, config_file, "torch", any_format.step_of_weights(file), hints)


def _open(
    path: Path, config_file: Path, format_: str, step: tuple[int, str], hints: ModelHints, keeps_pooler: bool = False
) -> EncoderModel:
    content, family, config, pad_id = read_config(config_file, hints.ignore_config_keys)
    head = read_head(config_file, content, family, config)
    if path.is_dir():
        weights = weight_files.open_tensors(path, format_, family.buffers)
    else:
        weights = torch_files.open_tensors([path], family.buffers)
    if keeps_pooler and head == heads.OF_MASKED_LM and new_heads.has_pooler(weights, family):
        head = heads.OF_PAIRS
    wanted = tensors.table(config, head, family, pad_id)
    is_tied = content.get("tie_word_embeddings") is not False
    given, left_out = _named(weights, {t.name for t in wanted}, family, path, is_tied)
    if config.num_layers > len(given):
        raise ValueError(
            f"{config_file}: num_hidden_layers is {config.num_layers}, and {path} has {len(given)} tensors; they "
            "do not belong together."
        )
    of_head = [t for t in wanted if not t.name.startswith(f"{family.prefix}.")]
    is_headless = head.kind == heads.MASKED_LM and not any(t.name in given for t in of_head)
    if keeps_pooler and head == heads.OF_PAIRS:
        is_headless = any(t.name not in given and t.constant is None for t in of_head)
    if is_headless:
        given |= {name: t for name, t in new_heads.new_head(config, family, pad_id, head).items() if name not in given}
    stored = {
        t.name: given.pop(t.name, from_array(t.constant)) for t in wanted if t.name in given or t.constant is not None
    }
    names.verify(str(path), {n: t.shape for n, t in (stored | given).items()}, {t.name: t.shape for t in wanted})
    settings = family.settings(config, pad_id) | family.heads[head.kind].settings(config, head)
    explicit = settings | {key: x for key, x in content.items() if x is not None}
    return EncoderModel(
        path=path,
        format="Hugging Face",
        family=family,
        config=config,
        head=head,
        tensors={name: t for tensor in wanted for name, t in tensor.limbas(stored[tensor.name]).items()},
        vocabulary_file=_vocabulary_of_folder(config_file.parent, pad_id, hints),
        step=step[0],
        step_from=step[1],
        ignored_config_keys=hints.ignore_config_keys,
        folder=Folder(explicit, stored, pad_id, format_, is_headless, left_out),
        tokenizer_settings=tokenizer_settings.of_folder(path) if hints.vocab is None else tokenizer_settings.NONE,
    )


def read_config(file: Path, ignored: Collection[str] = ()) -> tuple[dict[str, Any], Family, EncoderConfig, int]:
    """The content of a config.json, its family, the network, whose padding is 0, and the padding of the folder.

    Args:
      ignored: keys that the user says have no effect; they are left out.

    Raises:
      ValueError: if it is damaged, Limba does not have its network, or a key makes it another one.
    """
    content = untrusted_json.read_object(file)
    family = of_model_type(content.get("model_type"))
    assert family is not None, "the caller has looked at model_type"
    config_keys.check(file, content, family.keys, ignored)
    content = {key: x for key, x in content.items() if key not in ignored}
    try:
        pad_id = value(content, "pad_token_id", family.default_pad_id, int)
        if family.fixed_pad_id not in (None, pad_id):
            raise ValueError(f"pad_token_id is {pad_id}, and {family.model_class} takes {family.fixed_pad_id}")
        config = EncoderConfig(**family.fields(content, pad_id))
        if not 0 <= pad_id < config.vocab_size:
            raise ValueError(f"pad_token_id is {pad_id}, and vocab_size {config.vocab_size}")
        if max(config.vocab_size, config.max_positions) > _MOST_ROWS:
            raise ValueError(
                f"vocab_size is {config.vocab_size:,} and max_position_embeddings {config.max_positions:,}; a table "
                f"has at most {_MOST_ROWS:,} rows"
            )
    except ValueError as error:
        raise ValueError(f"{file}: {str(error).removesuffix('.')}.") from error
    return content, family, config, pad_id


def notes(file: Path, ignored: Collection[str] = ()) -> Iterator[str]:
    """Sentences about what does not travel of a config.json."""
    content = untrusted_json.read_object(file)
    family = of_model_type(content.get("model_type"))
    assert family is not None, "the caller has looked at model_type"
    return config_keys.left_out(file, content, family.keys, ignored)


def read_head(file: Path, content: Mapping[str, Any], family: Family, config: EncoderConfig) -> Head:
    """The head that a config.json says, a masked language model's where it says no other.

    Raises:
      ValueError: if Limba does not have it, or the class does not hold the network.
    """
    try:
        head = family.held(heads.of_config(content))
        head = dataclasses.replace(head, **family.heads[head.kind].fields(content, config))
    except ValueError as error:
        raise ValueError(f"{file}: {str(error).removesuffix('.')}.") from error
    if problems := family.problems(config, head):
        raise ValueError(f"{file}: {'; '.join(problems)}.")
    return head


def _named(
    found: Mapping[str, SavedTensor], wanted: Collection[str], family: Family, path: Path, is_tied: bool
) -> tuple[dict[str, SavedTensor], tuple[str, ...]]:
    """The tensors by the names that the class has now, without copies, and the names of those that it does not need.

    Raises:
      ValueError: if the output is not the embedding.
    """
    own = any(name.startswith(f"{family.prefix}.") for name in found)
    named = {}
    for name, tensor in found.items():
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        named[name if own else f"{family.prefix}.{name}"] = tensor
    embedding = next(row.theirs for row in family.rows if row.limba == "token_embedder")
    bias = next(row.theirs for row in family.heads[heads.MASKED_LM].rows if row.limba == "mlm_head")
    output = "decoder" if bias == "decoder" else f"{bias}.decoder"
    if not is_tied and f"{bias}.bias" in named and f"{output}.weight" not in named:
        raise ValueError(
            f"{path}/config.json says that the output has its own matrix (tie_word_embeddings: false), but there is no "
            f"{output}.weight."
        )
    for copy, of in ((f"{output}.weight", f"{embedding}.weight"), (f"{output}.bias", f"{bias}.bias")):
        if copy == of or copy not in named:
            continue
        if of in named and not tensor_parts.equal(named[copy], named[of]):
            raise ValueError(f"{path}: {copy} is not {of}; the output of Limba's encoders is their embedding.")
        named.setdefault(of, named.pop(copy))
    ignored = re.compile(family.ignored)
    useless = [name for name in named if ignored.search(name) and name not in wanted]
    return {name: t for name, t in named.items() if name not in useless}, tuple(useless)


def _vocabulary_of_folder(path: Path, pad_id: int, hints: ModelHints) -> Path | None:
    """The folder's tokenizer.json, or the user's for it, with the ids that Limba has for its tokens."""
    place = path if hints.vocab is None else Path(hints.vocab)
    file = place / tokenizer_folder.FILE if place.is_dir() else place
    if hints.vocab is None and not file.is_file():
        return None
    if place.is_dir():
        tokenizer_folder.check_settings(place, hints.ignore_config_keys)
    if pad_id == PAD_ID or tokenizer_folder.special_ids(file).get("pad") == PAD_ID:
        return file
    content = tokenizer_folder.with_exchanged_ids(untrusted_json.read_object(file), PAD_ID, pad_id, str(file))
    return tokenizer_folder.temporary_file(json_text.dumps(content, ensure_ascii=False).encode())
