"""Sentinels that transformers' T5 tokenizers add to a tokenizer.json without any, as its Flax recipe trains one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from limba.checkpoint_files import run_folder
from limba.convert.model_files.hf import hf_tokenizer
from limba.data.sentinels import NAME


def of_new_network(vocabulary: Mapping[str, Any]) -> Mapping[str, Any]:
    """The vocabulary with the sentinels that `AutoTokenizer` adds to a T5's tokenizer.json; itself if it adds none.

    They stand behind all other tokens, `<extra_id_0>` first, in versions 4 and 5 of transformers. Another class than
    T5's adds none. The new tokenizer.json lies in a temporary folder.

    Args:
      vocabulary: as `run.json` describes it; other files of its tokenizer are beside it.
    """
    if vocabulary["class"] != run_folder.T5_TOKENIZERS:
        return vocabulary
    file = Path(vocabulary["tokenizer_file"])
    config = hf_tokenizer.read_json(file.parent / "tokenizer_config.json")
    kind = config.get("tokenizer_class") or hf_tokenizer.read_json(file.parent / "config.json").get("tokenizer_class")
    extra_ids = config.get("extra_ids", hf_tokenizer.DEFAULT_EXTRA_IDS)
    opened = tokenizers.Tokenizer.from_file(str(file))
    others = [_text_of(token) for token in config.get("additional_special_tokens") or ()]
    if (
        kind not in (None, *hf_tokenizer.T5_CLASSES)
        or not isinstance(extra_ids, int)
        or extra_ids < 1
        or any(NAME.fullmatch(token) for token in (*opened.get_vocab(), *others))
    ):
        return vocabulary
    opened.add_special_tokens([*others, *(f"<extra_id_{number}>" for number in range(extra_ids))])
    written = hf_tokenizer.temporary_file(opened.to_str().encode(), run_folder.TOKENIZER)
    return hf_tokenizer.from_json(written).vocabulary


def _text_of(token: Any) -> str:
    """A token of tokenizer_config.json, which has its name alone or its fields."""
    return str(token["content"] if isinstance(token, Mapping) else token)
