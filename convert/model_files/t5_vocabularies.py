"""The vocabulary of a T5 on disk: the user's, the one kept beside a checkpoint, or that of a Hugging Face folder."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.checkpoint_files import run_folder
from limba.convert.families.config_files import t5_config
from limba.convert.families.config_keys import tokenizer_keys
from limba.convert.model_files.hf import folder_tokenizer, hf_tokenizer, older_tokenizers, padding_first
from limba.convert.model_files.hf.special_tokens import PAD_ID, SpecialTokens
from limba.convert.model_files.model import Model, ModelHints
from limba.files import storage
from limba.files.storage import AnyPath
from limba.files.untrusted_files import shown


def known(model: Model) -> Mapping[str, Any]:
    """A model's vocabulary. Raises FileNotFoundError if nothing tells it, ValueError if the embedding is too small."""
    if model.vocabulary is None:
        raise hf_tokenizer.NoVocabularyError(
            f"{model.path} does not say its vocabulary; say where the SentencePiece model is with --vocab FILE, or "
            "--family byt5."
        )
    hf_tokenizer.check_sizes(model.vocabulary, model.config.vocab_size, str(model.path))
    return model.vocabulary


def of_config(
    config_file: Path, content: Mapping[str, Any], place: Path, hints: ModelHints
) -> tuple[Mapping[str, Any] | None, dict[str, Any]]:
    """The vocabulary at a place, and the config.json with the special ids that the vocabulary has in the folder.

    Args:
      content: of the config.json, as `t5_config.read` gives it.

    Raises:
      ValueError: if the two contradict each other; a value that is the class's default, which nobody may have looked
        at, does not, and a warning says so.
    """
    given, hints = t5_config.special_ids(config_file, content), dataclasses.replace(hints, config_file=config_file)
    vocabulary, pad = of_folder(place, hints), pad_id(place, hints)
    found = {"pad_token_id": pad}
    if vocabulary is not None:
        eos = hf_tokenizer.from_vocabulary(vocabulary).special.eos.id
        found["eos_token_id"] = t5_config.in_folder(eos, pad)
    for key, id_ in found.items():
        if key in hints.ignore_config_keys or given[key] == id_:
            continue
        differ = f"{config_file}: {key} is {given[key]}, and in the vocabulary it is {id_}"
        if given[key] != t5_config.family_of(content).usual_ids[key]:
            raise ValueError(
                f"{differ}; they do not belong together. Give the tokenizer that the model was trained with, or write "
                f"{id_}, if it was trained so; --ignore_config_keys {key} takes the vocabulary's."
            )
        print(f"warning: {differ}. Limba and its exports take the vocabulary's.", file=sys.stderr)
    return vocabulary, {**content, **given, **found}


def of_checkpoint(path: AnyPath, recorded: Mapping[str, Any], hints: ModelHints) -> Mapping[str, Any] | None:
    """A checkpoint's vocabulary: the user's, kept beside it, or where the run had it."""
    if hints.extra_ids is not None and recorded.get("extra_ids", hints.extra_ids) != hints.extra_ids:
        raise ValueError(f"--extra_ids {hints.extra_ids}: the run of {path} had {recorded['extra_ids']}.")
    kept = run_folder.find_vocabulary(path)
    if (vocabulary := _hinted_vocabulary(hints, recorded)) is not None:
        if kept and not run_folder.is_bytes(vocabulary):
            _check_same(vocabulary, run_folder.with_vocabulary_file(recorded, str(kept)))
        return vocabulary
    if run_folder.is_bytes(recorded):
        return _bytes(recorded.get("extra_ids"))
    file = kept or run_folder.vocabulary_file(recorded)
    if kept and storage.is_remote(kept):
        file = hf_tokenizer.temporary_file(storage.read_bytes(kept), kept.name)
    if file is None:
        return None
    if "vocab_size" in recorded:
        return run_folder.with_vocabulary_file(recorded, str(file))
    extra_ids = hints.extra_ids if hints.extra_ids is not None else recorded.get("extra_ids")
    return hf_tokenizer.describe(storage.mounted(str(file)), extra_ids)


def _check_same(given: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    """Raises ValueError if the user's vocabulary tokenizes otherwise than the one in training."""
    from limba.tasks.pretraining import masked_text
    from limba.tasks.vocabularies import same_vocabulary

    if not same_vocabulary(masked_text.open_vocabulary(given), masked_text.open_vocabulary(kept)):
        file, other = map(run_folder.vocabulary_file, (given, kept))
        raise ValueError(f"--vocab {file} is another vocabulary than in training, which is {other}; leave it out.")


def of_folder(path: Path, hints: ModelHints) -> Mapping[str, Any] | None:
    """A Hugging Face folder's vocabulary; None if it has no tokenizer.

    Raises:
      ValueError: if the hints say that it is another one.
    """
    if hints.in_bytes and (path / hf_tokenizer.SPIECE).is_file():
        raise ValueError(f"--family {hints.family}: {path} has a {hf_tokenizer.SPIECE}.")
    if (vocabulary := _hinted_vocabulary(hints, {})) is not None:
        return vocabulary
    if not has_tokenizer(path):
        return None
    config = tokenizer_keys.of_t5(path, hints.ignore_config_keys)
    found = folder_tokenizer.read(path, hints.learns_sentinels, pad_id(path, hints))
    _check_names(path, config, hf_tokenizer.from_vocabulary(found).special)
    if hints.extra_ids not in (None, found["extra_ids"]):
        raise ValueError(f"--extra_ids {hints.extra_ids}: the tokenizer in {path} has {found['extra_ids']}.")
    return found


def has_tokenizer(path: Path) -> bool:
    """Whether a Hugging Face folder has files of a tokenizer."""
    names = ("tokenizer_config.json", "tokenizer.json", hf_tokenizer.SPIECE)
    return any((path / name).is_file() for name in names) or older_tokenizers.has_files(path)


def pad_id(path: Path, hints: ModelHints) -> int:
    """The id of padding in a Hugging Face folder, for which its vocabulary has 0.

    Raises:
      ValueError: if its tokenizer does not have the token that it names.
    """
    config_file = hints.config_file or path / "config.json"
    content = hf_tokenizer.read_json(config_file)
    is_given = content.get("pad_token_id") is not None and "pad_token_id" not in hints.ignore_config_keys
    of_config = t5_config.special_ids(config_file, content)["pad_token_id"] if is_given else None
    if hints.in_bytes or hints.vocab is not None or not has_tokenizer(path):
        return of_config or PAD_ID
    named = tokenizer_keys.of_t5(path, hints.ignore_config_keys).get("pad_token")
    return padding_first.pad_id(path, named, of_config)


def _check_names(path: Path, config: Mapping[str, Any], special: SpecialTokens) -> None:
    """Raises ValueError if tokenizer_config.json names other special tokens than the vocabulary has."""
    for role, token in special._asdict().items():
        named = config.get(f"{role}_token")
        if token is not None and named not in (None, token.name):
            raise ValueError(
                f"{path / tokenizer_keys.FILE}: {role}_token is {shown(named)}, and in the vocabulary it is "
                f"{token.name!r}. Write {token.name}, if the model was trained so, or give --vocab a tokenizer with "
                f"the other; --ignore_config_keys {role}_token passes over it."
            )


def _hinted_vocabulary(hints: ModelHints, recorded: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if hints.extra_ids is not None and hints.extra_ids < 0:
        raise ValueError(f"--extra_ids {hints.extra_ids}: a number of sentinels is 0 or more.")
    if hints.in_bytes:
        if recorded and not run_folder.is_bytes(recorded):
            raise ValueError(f"--family {hints.family}: the run's vocabulary is a {recorded['class']}, not bytes.")
        if hints.vocab is not None:
            raise ValueError(f"--vocab {hints.vocab}: the vocabulary of {hints.family} is bytes; leave it out.")
        return _bytes(hints.extra_ids)
    if hints.vocab is None:
        return None
    is_json = run_folder.vocabulary_name(recorded) == run_folder.TOKENIZER
    if not hints.vocab.endswith(".json"):
        hf_tokenizer.open_model(hints.vocab, hints.extra_ids)  # Raises an error that names it, if it is none.
    if "vocab_size" in recorded and is_json == hints.vocab.endswith(".json"):
        return run_folder.with_vocabulary_file(recorded, hints.vocab)
    extra_ids = hints.extra_ids if hints.extra_ids is not None else recorded.get("extra_ids")
    return hf_tokenizer.describe(hints.vocab, extra_ids)


def _bytes(extra_ids: int | None) -> dict[str, Any]:
    """SeqIO's ByteVocabulary, of 256 bytes and 3 special ids. ByT5 has no sentinels of its own: bytes serve."""
    return hf_tokenizer.Tokenizer(None, hf_tokenizer.NUM_BYTE_IDS, extra_ids or 0).vocabulary
