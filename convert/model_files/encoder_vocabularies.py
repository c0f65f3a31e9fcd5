"""The tokenizer.json of an encoder on disk: the user's, the one kept beside a checkpoint, or that of a folder."""

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from limba.checkpoint_files import run_folder
from limba.convert.families.config_files import encoder_config
from limba.convert.model_files.hf import hf_tokenizer, older_tokenizers, tokenizer_folder
from limba.convert.model_files.model import Model, ModelHints
from limba.files import json_text, storage, untrusted_files, untrusted_json
from limba.files.storage import AnyPath


def known(model: Model) -> Mapping[str, Any]:
    """A model's vocabulary, as `run.json` describes it.

    Raises:
      FileNotFoundError: if it is not known.
      ValueError: if it lacks special tokens, has another padding than the network, or more ids than the embedding has
        rows.
    """
    if (file := model.vocabulary_file) is None:
        raise FileNotFoundError(
            f"{model.path} has no {tokenizer_folder.FILE}; give one with --vocab FILE. transformers writes it: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(OTHER)."
        )
    vocabulary = tokenizer_folder.describe(file)
    hf_tokenizer.check_sizes({**vocabulary, "sentencepiece_model_file": file}, model.config.vocab_size, str(model.path))
    types = model.config.num_token_types
    if types > 1 and (highest := tokenizer_folder.highest_type(file)) >= types:
        raise ValueError(
            f"{file} gives tokens of a pair the type {highest}, and {model.path} has {types} token types: their "
            "numbers begin with 0. Write a lower type into its template (post_processor), as the model was trained."
        )
    pad_id = tokenizer_folder.special_ids(file)["pad"]
    if pad_id != encoder_config.PAD_ID:
        raise ValueError(
            f"The padding of {file} is {pad_id}, and that of the network in {model.path} is {encoder_config.PAD_ID}; "
            "they do not belong together."
        )
    return vocabulary


def of_checkpoint(path: AnyPath, recorded: Mapping[str, Any], hints: ModelHints) -> Mapping[str, Any] | None:
    """A checkpoint's vocabulary: the user's, kept beside it, or where the run had it."""
    kept = run_folder.find_vocabulary(path)
    if hints.vocab is not None:
        given = file_in(Path(hints.vocab))
        if kept is not None and not tokenizer_folder.same(given, str(kept)):
            raise ValueError(
                f"--vocab {hints.vocab} is another vocabulary than in training, which is {kept}; leave it out."
            )
        return record(given)
    if kept is not None:
        content = storage.read_bytes(kept) if storage.is_remote(kept) else None
        return record(Path(kept) if content is None else tokenizer_folder.temporary_file(content))
    file = run_folder.vocabulary_file(recorded)
    return record(Path(file)) if file and Path(file).is_file() else None


def of_folder(path: Path, default_pad_id: int, hints: ModelHints) -> tuple[Mapping[str, Any] | None, int]:
    """The folder's tokenizer.json, or the user's for it, with the ids that Limba has for its tokens; and the id of
    padding in the folder, which is the default where no tokenizer has one."""
    from limba.tasks.vocabularies import beside_tokenizer

    place = path if hints.vocab is None else Path(hints.vocab)
    file = file_in(place)
    if hints.vocab is None and not file.is_file():
        return None, default_pad_id
    if (place / tokenizer_folder.FILE).is_file():
        tokenizer_folder.check_settings(place, hints.ignore_config_keys)
        if two := older_tokenizers.differences(place):
            print(f"warning: {two} The run takes tokenizer.json, as transformers' fast classes do.", file=sys.stderr)
    if beside_tokenizer.class_of(place).lower().startswith("roformer"):
        reason = "transformers splits texts with jieba first, and Limba does not: Chinese texts have other tokens."
        print(f"warning: the tokenizer of {place} is RoFormer's: {reason}", file=sys.stderr)
    pad_id = tokenizer_folder.special_ids(file).get("pad", default_pad_id)
    return record(_with_padding_first(file, pad_id)), pad_id


def of_new_network(config_file: Path, hints: ModelHints) -> tuple[Path, int] | None:
    """The tokenizer.json for a config.json: the hints' `vocab`, or the one in its folder; None if there is none.

    Padding gets the id 0, in exchange with the token that has it; the second value is the id that it had.

    Raises:
      FileNotFoundError: if the given one is not there.
      ValueError: if it has no padding.
    """
    if hints.vocab is None and not file_in(config_file.parent).is_file():
        return None
    return given(config_file.parent if hints.vocab is None else Path(hints.vocab), hints.ignore_config_keys)


def given(place: Path, ignored: Collection[str] = ()) -> tuple[Path, int]:
    """The tokenizer.json at a place, a file or folder, as `of_new_network` returns it."""
    found = file_in(place)
    if not found.is_file():
        raise FileNotFoundError(
            f"{place} has no {tokenizer_folder.FILE}. `limba vocab build --kind wordpiece` makes one of your texts; "
            "transformers writes one for an older tokenizer: AutoTokenizer.from_pretrained(IN).save_pretrained(OUT)."
        )
    if (place / tokenizer_folder.FILE).is_file():
        tokenizer_folder.check_settings(place, ignored)
    pad_id = tokenizer_folder.special_ids(found).get("pad")
    if pad_id is None:
        raise ValueError(f"{found} has no token of padding, such as [PAD]; a network needs one.")
    return _with_padding_first(found, pad_id), pad_id


def _with_padding_first(file: Path, pad_id: int) -> Path:
    """A tokenizer.json in which the token `pad_id` has Limba's id of padding, and that one its."""
    if pad_id == encoder_config.PAD_ID:
        return file
    content = untrusted_json.read_object(file)
    content = tokenizer_folder.with_exchanged_ids(content, encoder_config.PAD_ID, pad_id, str(file))
    return tokenizer_folder.temporary_file(json_text.dumps(content, ensure_ascii=False).encode())


def file_in(place: Path) -> Path:
    """The tokenizer.json of a folder, perhaps made of older files, with what lies beside it; a file is itself."""
    from limba.tasks.vocabularies import beside_tokenizer

    if not place.is_dir():
        return place
    file = place / tokenizer_folder.FILE
    is_there = file.is_file()
    if not is_there and not older_tokenizers.has_files(place):
        return file
    text = untrusted_files.decode(untrusted_files.read_bytes(file), str(file)) if is_there else ""
    try:
        whole = beside_tokenizer.applied(place, text or older_tokenizers.content(place).decode())
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{place}: a file of the tokenizer is damaged ({error!r}). Download it again.") from error
    return file if whole == text else tokenizer_folder.temporary_file(whole.encode())


def record(file: Path) -> dict[str, Any]:
    """What `run.json` says of a tokenizer.json, without its size: the file is not opened before it is used."""
    whole = run_folder.tokenizer_record(str(file), 0)
    return {key: value for key, value in whole.items() if key != "vocab_size"}
