"""The tokenizer files of a Hugging Face T5, written without transformers.

The SentencePiece file goes in as `spiece.model`; sentinel `<extra_id_0>` is the last id, as in SeqIO. The two settings
that matter were found by comparing ids: `legacy: false` and sentinels that do not swallow the spaces around them give
SentencePiece's own ids, also for what follows a sentinel directly.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sentencepiece

_SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A SentencePiece vocabulary in T5's layout.

    Attributes:
      model_file: the SentencePiece model.
      num_pieces: what it holds.
      extra_ids: sentinels behind them.
      byte_fallback: unknown characters are spelled in bytes, which no fast tokenizer of transformers does for T5.
    """

    model_file: Path
    num_pieces: int
    extra_ids: int
    byte_fallback: bool

    @property
    def vocab_size(self) -> int:
        return self.num_pieces + self.extra_ids


def from_vocabulary(vocabulary: Mapping[str, Any], model_file: str | None = None) -> Tokenizer:
    """The tokenizer of a run.

    Args:
      vocabulary: as `run.json` describes it.
      model_file: where the SentencePiece model is, if not where the run had it.

    Raises:
      FileNotFoundError: if the SentencePiece model is missing.
      ValueError: for another kind of vocabulary, or one without T5's special ids.
    """
    if vocabulary["class"] != "SentencePieceVocabulary":
        raise ValueError(
            f"The run's vocabulary is a {vocabulary['class']}; only a SentencePieceVocabulary can be exported yet."
        )
    path = Path(model_file or vocabulary["sentencepiece_model_file"])
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no SentencePiece model {str(path)!r} (working directory {str(Path.cwd())!r}); "
            "say where it is with --vocab FILE."
        )
    try:
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except RuntimeError as error:
        raise ValueError(f"{str(path)!r} is not a SentencePiece model.") from error
    ids = {"pad": model.pad_id(), "eos": model.eos_id(), "unk": model.unk_id()}
    if ids != {"pad": 0, "eos": 1, "unk": 2}:
        raise ValueError(
            f"The vocabulary {str(path)!r} has the special ids {ids}; a T5 tokenizer needs pad 0, eos 1, unk 2."
        )
    num_pieces = model.get_piece_size()
    names = tuple(model.id_to_piece(i) for i in range(3))
    if names != _SPECIAL_TOKENS:
        raise ValueError(
            f"The vocabulary {str(path)!r} calls its special tokens {names}; T5 calls them {_SPECIAL_TOKENS}."
        )
    tokenizer = Tokenizer(path, num_pieces, vocabulary["extra_ids"], any(map(model.is_byte, range(num_pieces))))
    if tokenizer.vocab_size != vocabulary["vocab_size"]:
        raise ValueError(
            f"The vocabulary {str(path)!r} has {num_pieces} pieces and {tokenizer.extra_ids} sentinels, "
            f"{tokenizer.vocab_size} ids; the run had {vocabulary['vocab_size']}. It is another file than in training."
        )
    return tokenizer


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes `spiece.model`, `tokenizer_config.json` and `special_tokens_map.json`."""
    shutil.copyfile(tokenizer.model_file, folder / "spiece.model")
    sentinels = [f"<extra_id_{i}>" for i in range(tokenizer.extra_ids)]
    named = dict(zip(("pad_token", "eos_token", "unk_token"), _SPECIAL_TOKENS, strict=True))
    ids = dict(enumerate(_SPECIAL_TOKENS)) | {tokenizer.vocab_size - 1 - i: token for i, token in enumerate(sentinels)}
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    config = {
        "tokenizer_class": "T5Tokenizer",
        "legacy": False,
        "extra_ids": tokenizer.extra_ids,
        "additional_special_tokens": sentinels,
        "added_tokens_decoder": {str(i): {"content": ids[i], **flags} for i in sorted(ids)},
        "clean_up_tokenization_spaces": False,
        "sp_model_kwargs": {},
        **named,
    }
    special_tokens = {**named, "additional_special_tokens": sentinels}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps(special_tokens, indent=2) + "\n", "utf-8")
