"""What a tokenizer's folder says beside its vocabulary: lengths, sides, special tokens, templates of chats.

`from-hf` keeps them in one file, which lies beside the vocabulary and in the checkpoint's `run/`; trainings copy it
into their checkpoints, and `to-hf` writes them again.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.checkpoint_files import run_folder
from limba.files import json_text, storage, untrusted_files, untrusted_json
from limba.files.storage import AnyPath

CONFIG, SPECIAL_TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"
# Further files that transformers keeps beside a tokenizer.
FILES = ("chat_template.jinja",)
# Keys that say where a folder came from or how it was loaded, and those that are written from the vocabulary.
_NOT_KEPT = (
    *("name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file", "init_inputs"),
    *("full_tokenizer_file", "is_local", "local_files_only", "backend", "cache_dir", "device_map", "torch_dtype"),
    *("transformers_version", "processor_class", "use_fast", "from_slow", "trust_remote_code", "auto_map", "verbose"),
    *("added_tokens_decoder", "extra_ids", "legacy", "legacy_behaviour"),
)
# Version 5's name for the general class, which version 4 does not know.
_GENERAL = {"TokenizersBackend": "PreTrainedTokenizerFast", "PreTrainedTokenizer": "PreTrainedTokenizerFast"}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is kept of a folder.

    Attributes:
      config: keys of tokenizer_config.json, and of special_tokens_map.json what the former lacks.
      files: texts of further files by name.
      pad_id: of an encoder's folder, where padding is exchanged with Limba's 0; an export has it again.
    """

    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pad_id: int = 0

    @property
    def tokenizer_class(self) -> str | None:
        """The class of both versions of transformers; None if the folder names none."""
        name = self.config.get("tokenizer_class")
        return None if name is None else _GENERAL.get(str(name), str(name))

    @property
    def special_tokens(self) -> list[str]:
        """Those without a role, of version 4's key and of version 5's list."""
        extra = self.config.get("extra_special_tokens")
        found = [*(self.config.get("additional_special_tokens") or ()), *(extra if isinstance(extra, list) else ())]
        return list(dict.fromkeys(token["content"] if isinstance(token, Mapping) else str(token) for token in found))

    @property
    def others(self) -> dict[str, Any]:
        """The keys that a new folder takes over as they are."""
        own = {"tokenizer_class", "additional_special_tokens"}
        if isinstance(self.config.get("extra_special_tokens"), list):  # Version 4 knows a dictionary of names.
            own.add("extra_special_tokens")
        return {key: x for key, x in self.config.items() if key not in own}

    def content(self) -> bytes | None:
        """Of the file; None if there is nothing to keep."""
        if self == NONE:
            return None
        return json_text.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False).encode()


NONE = Settings()


def of_folder(folder: Path) -> Settings:
    """Those of a Hugging Face folder.

    Raises:
      ValueError: if a file is damaged, or a link to elsewhere: exports have a copy of it.
    """
    from limba.tasks.vocabularies import beside_tokenizer

    for name in (SPECIAL_TOKENS_MAP, CONFIG, *FILES):
        if (folder / name).is_file():
            untrusted_files.check_stays(folder / name)
    both = (folder / SPECIAL_TOKENS_MAP, folder / CONFIG)
    of_map, config = map(beside_tokenizer.read, both)
    kept = {key: x for key, x in (of_map | config).items() if key not in _NOT_KEPT}
    # Their flags are in tokenizer.json, and version 4 reads a token as special_tokens_map.json has it in no other file.
    kept |= {key: beside_tokenizer.name(x) for key, x in kept.items() if key.endswith("_token") and isinstance(x, dict)}
    files = [folder / name for name in FILES if (folder / name).is_file()]
    return Settings(
        kept, {file.name: untrusted_files.decode(untrusted_files.read_bytes(file), str(file)) for file in files}
    )


def beside(folder: Path, vocab: str | None) -> Settings:
    """Those of a folder's own tokenizer; none where the user gives another vocabulary."""
    return of_folder(folder) if vocab is None else NONE


def of_checkpoint(checkpoint: AnyPath) -> Settings:
    """Those that travel with a checkpoint; none without the file. Raises ValueError if it is damaged."""
    file = checkpoint / run_folder.FOLDER / run_folder.TOKENIZER_SETTINGS
    if not storage.is_file(file):
        return NONE
    found = untrusted_json.parse_object(storage.read_bytes(file), str(file))
    config, files, pad_id = found.get("config"), found.get("files"), found.get("pad_id", 0)
    if not isinstance(config, dict) or not isinstance(files, dict) or not {*files} <= {*FILES}:
        raise ValueError(f"{file} is damaged: it has no `config` and `files` of a tokenizer. Remove it.")
    if not isinstance(pad_id, int):
        raise ValueError(f"{file} is damaged: its pad_id is {pad_id!r}, and no id. Remove it.")
    return Settings(config, {name: str(text) for name, text in files.items()}, pad_id)


def write(folder: Path, config: Mapping[str, Any], named: Mapping[str, Any], settings: Settings) -> None:
    """Writes tokenizer_config.json, special_tokens_map.json and the further files.

    Args:
      config: what the vocabulary says, which wins over the settings.
      named: of it, the special tokens.
    """
    text = json_text.dumps({**settings.others, **config}, indent=2, ensure_ascii=False)
    (folder / CONFIG).write_text(f"{text}\n", "utf-8")
    (folder / SPECIAL_TOKENS_MAP).write_text(json_text.dumps(named, indent=2, ensure_ascii=False) + "\n", "utf-8")
    for name, content in settings.files.items():
        (folder / name).write_text(content, "utf-8")


def added_tokens_decoder(tokens: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The key of tokenizer_config.json for the `added_tokens` of a tokenizer.json."""
    return {
        str(token["id"]): {key: x for key, x in token.items() if key != "id"}
        for token in sorted(tokens, key=lambda token: token["id"])
    }
