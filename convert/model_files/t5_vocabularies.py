"""The vocabulary of a T5 on disk: the user's, the one kept beside a checkpoint, or that of a Hugging Face folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.checkpoint_files import run_folder
from limba.convert.families.config_keys import tokenizer_keys
from limba.convert.model_files.hf import folder_tokenizer, hf_tokenizer
from limba.convert.model_files.model import Model, ModelHints
from limba.files import storage
from limba.files.storage import AnyPath


def known(model: Model) -> Mapping[str, Any]:
    """A model's vocabulary. Raises FileNotFoundError if nothing tells it, ValueError if the embedding is too small."""
    if model.vocabulary is None:
        raise hf_tokenizer.NoVocabularyError(
            f"{model.path} does not say its vocabulary; say where the SentencePiece model is with --vocab FILE, or "
            "--family byt5."
        )
    hf_tokenizer.check_sizes(model.vocabulary, model.config.vocab_size, str(model.path))
    return model.vocabulary


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
    if not any((path / name).is_file() for name in ("tokenizer_config.json", "tokenizer.json", hf_tokenizer.SPIECE)):
        return None
    tokenizer_keys.read(path, tokenizer_keys.T5, hints.ignore_config_keys)
    found = folder_tokenizer.read(path, hints.learns_sentinels)
    if hints.extra_ids not in (None, found["extra_ids"]):
        raise ValueError(f"--extra_ids {hints.extra_ids}: the tokenizer in {path} has {found['extra_ids']}.")
    return found


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
