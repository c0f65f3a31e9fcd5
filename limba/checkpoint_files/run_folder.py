"""The folder `run/` of a checkpoint: what is needed to use the model on a machine that has nothing else of the run.

run/run.json       the record: network, vocabulary, seeds, lengths, versions
run/config.gin     the operative configuration
run/spiece.model   the SentencePiece model, or tokenizer.json; none if the vocabulary is bytes
run/tokenizer_settings.json   what the folder of Hugging Face said of its tokenizer, if the model came from one
run/state_checksums.json   of the tensors (`limba.checkpoint_files.state_checksums`)
"""

from collections.abc import Mapping
from typing import Any

from limba.checkpoint_files.directories import find_checkpoint
from limba.checkpoint_files.small_files import load_files
from limba.files import json_text, number_ranges, storage, untrusted_json
from limba.files.number_ranges import ABOVE_0, AT_LEAST_0
from limba.files.storage import AnyPath
from limba.files.untrusted_files import shown

FOLDER = "run"
RECORD, GIN, VOCABULARY, TOKENIZER = "run.json", "config.gin", "spiece.model", "tokenizer.json"
# Beside a vocabulary and in the folder (`convert.model_files.hf.tokenizer_settings`).
TOKENIZER_SETTINGS = "tokenizer_settings.json"
BYTES, SENTENCEPIECE = "ByteVocabulary", "SentencePieceVocabulary"
# tokenizer.json of encoders, and of T5s.
TOKENIZERS, T5_TOKENIZERS = "TokenizerVocabulary", "T5TokenizerVocabulary"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _has_lengths(value: object) -> bool:
    return isinstance(value, dict) and all(x is None or untrusted_json.COUNT[0](x) for x in value.values())


# Seeds, and rows of an epoch.
_LONG = AT_LEAST_0._replace(below=2**63)
# Sentinels become pieces one by one.
_MOST_EXTRA_IDS = 100_000
_EXTRA_IDS = AT_LEAST_0._replace(below=_MOST_EXTRA_IDS + 1)
_OF_VOCABULARY: untrusted_json.Values = {
    "class": (_is_text, "a text"),
    "extra_ids": (_EXTRA_IDS.has, f"a number up to {_MOST_EXTRA_IDS:,}"),
    "vocab_size": untrusted_json.COUNT,
    **dict.fromkeys(
        ("sentencepiece_model_file", "tokenizer_file"),
        (lambda value: value is None or _is_text(value), "the name of a file, or null"),
    ),
}


# Of what is not null in a record, whose other keys nothing reads without a further look.
_OF_RECORD: untrusted_json.Values = {
    **dict.fromkeys(("limba_version", "network_class", "task"), (_is_text, "a text")),
    **dict.fromkeys(("network", "head", "generator", "lora", "commits", "environment"), (_is_table, "a table")),
    **dict.fromkeys(("batch_size", "initial_step", "total_steps"), untrusted_json.COUNT),
    **dict.fromkeys(("has_blanks", "position_saved"), (lambda value: isinstance(value, bool), "true or false")),
    "rows_per_epoch": (_LONG.has, str(_LONG)),
    "seeds": (lambda value: _is_table(value) and all(map(_LONG.has, value.values())), "a table of whole numbers"),
    "feature_lengths": (_has_lengths, "a table of whole numbers below 2**31"),
    "labels": (lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of texts"),
}


def files(info: Mapping[str, Any], gin: str, vocabulary: bytes | None) -> dict[str, bytes]:
    """The content of the folder: its record, its gin file and, unless it is None, its vocabulary's file."""
    content = {RECORD: record(info), GIN: gin.encode()}
    return content if vocabulary is None else content | {vocabulary_name(info["vocabulary"]): vocabulary}


def record(info: Mapping[str, Any]) -> bytes:
    """The content of `run.json`."""
    return json_text.dumps(info, indent=1, ensure_ascii=False).encode()


def vocabulary_record(kind: str, file: str | None, extra_ids: int, vocab_size: int) -> dict[str, Any]:
    """What `run.json` says of a vocabulary, in SeqIO's words.

    The file is None for bytes. `extra_ids` counts the sentinels behind the pieces; `vocab_size` includes them.
    """
    return {"class": kind, "sentencepiece_model_file": file, "extra_ids": extra_ids, "vocab_size": vocab_size}


def tokenizer_record(file: str, vocab_size: int, kind: str = TOKENIZERS) -> dict[str, Any]:
    """What `run.json` says of a tokenizer.json, beside the keys that all vocabularies have."""
    return vocabulary_record(kind, None, 0, vocab_size) | {"tokenizer_file": file}


def vocabulary_name(record: Mapping[str, Any]) -> str:
    """What the file of a vocabulary is called in the folder."""
    return TOKENIZER if "tokenizer_file" in record else VOCABULARY


def vocabulary_file(record: Mapping[str, Any]) -> str | None:
    """Where the run had the file of its vocabulary; None for bytes."""
    return record.get("tokenizer_file") or record.get("sentencepiece_model_file")


def with_vocabulary_file(record: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The record of a vocabulary whose file is there."""
    return {**record, "tokenizer_file" if vocabulary_name(record) == TOKENIZER else "sentencepiece_model_file": file}


def is_bytes(vocabulary: Mapping[str, Any] | None) -> bool:
    """Whether a vocabulary's record is of SeqIO's ByteVocabulary."""
    return vocabulary is not None and vocabulary.get("class") == BYTES


def has_run_info(checkpoint: AnyPath) -> bool:
    """Whether Limba wrote the checkpoint."""
    return storage.is_file(checkpoint / FOLDER / RECORD)


def load_run_info(path: str | AnyPath) -> dict[str, Any]:
    """The record of a checkpoint, or of a run's newest one; see `limba.checkpoints.run_description.run_info`.

    Raises:
      FileNotFoundError: if the checkpoint has none.
      ValueError: if it is damaged.
    """
    path = find_checkpoint(path)
    if not has_run_info(path):
        raise FileNotFoundError(f"{path}/{FOLDER}/{RECORD} does not exist: this is not a checkpoint that Limba wrote.")
    record = load_files(path, FOLDER).get(RECORD)
    if record is None:
        raise ValueError(f"{path}/{FOLDER} is damaged: its list of files lacks {RECORD}")
    where = f"{path}/{FOLDER}/{RECORD}"
    info = untrusted_json.parse_object(record, where)
    known = {key: x for key, x in info.items() if x is not None or key == "network"}
    if wrong := untrusted_json.wrong_value(known, _OF_RECORD):
        raise ValueError(f"{where} is damaged: {wrong}.")
    if info.get("vocabulary") not in (None, {}):  # It has none.
        check_vocabulary(info["vocabulary"], where)
    if (lora := info.get("lora")) is not None:
        number_ranges.check(f"{where} is damaged: alpha of its lora", lora.get("alpha"), ABOVE_0._replace(below=2**31))
    return info


def check_vocabulary(record: object, where: str) -> None:
    """Raises ValueError, which names `where`, for what is no record of a vocabulary."""
    if not isinstance(record, dict):
        raise ValueError(f"{where} is damaged: vocabulary is {shown(record)}; it is a table.")
    if wrong := untrusted_json.wrong_value({key: record.get(key) for key in _OF_VOCABULARY}, _OF_VOCABULARY):
        raise ValueError(f"{where} is damaged: vocabulary.{wrong}.")


def has_blanks(checkpoint: AnyPath) -> bool:
    """Whether the texts of a run's task may have blanks, which earlier versions did not record."""
    return not has_run_info(checkpoint) or load_run_info(checkpoint).get("has_blanks", True)


def network_class(record: Mapping[str, Any]) -> str:
    """The class of a run's network: "T5Config" or "EncoderConfig". Records of earlier versions do not name it.

    Raises:
      ValueError: if the record says nothing of a network.
    """
    if "network" not in record:
        raise ValueError(f"{FOLDER}/{RECORD} of the checkpoint is damaged: it has no network.")
    of_encoder = "position_embedding_type" in record["network"]
    return record.get("network_class", "EncoderConfig" if of_encoder else "T5Config")


def find_gin(checkpoint: AnyPath) -> AnyPath | None:
    """The operative configuration: the checkpoint's own, else that of MODEL_DIR, as T5X writes it; None without one."""
    places = (checkpoint / FOLDER / GIN, checkpoint.parent / GIN)
    return next((file for file in places if storage.is_file(file)), None)


def find_vocabulary(checkpoint: AnyPath) -> AnyPath | None:
    """The SentencePiece model or tokenizer.json that travels with the checkpoint; None without one."""
    places = (checkpoint / FOLDER / name for name in (VOCABULARY, TOKENIZER))
    return next((file for file in places if storage.is_file(file)), None)
