"""A tokenizer.json, opened: its tokens, and which of them others need."""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from limba.convert.model_files.hf import tokenizer_settings
from limba.convert.model_files.hf.tokenizer_settings import Settings
from limba.files import json_text

WORDPIECE, UNIGRAM, BPE = "WordPiece", "Unigram", "BPE"
# What Metaspace writes for the blank before a word.
BLANK = "▁"


class Tokens:
    """A tokenizer.json, opened.

    Args:
      content: of the file.
      roles: ids of the special tokens by role, such as "pad".
      settings: what its folder says beside it.

    Attributes:
      kind: of the model: `WORDPIECE`, `UNIGRAM`, `BPE` or another of the library's.
      is_byte_level: whether the characters of the tokens stand for bytes.
      special: ids of the special tokens, of those that were added, and of the unknown token.
      unk_id: -1 if there is none.
      in_bytes: ids of tokens that are one byte of a character without a token.

    Raises:
      ValueError: for a BPE model that marks the pieces inside or at the end of a word.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        roles: Mapping[str, int],
        where: str,
        settings: Settings = tokenizer_settings.NONE,
    ):
        self.content, self.roles, self.where, self.settings = content, roles, where, settings
        self.model = content["model"]
        for key in ("continuing_subword_prefix", "end_of_word_suffix"):
            if "merges" in self.model and self.model.get(key):
                raise ValueError(
                    f"{where} is a BPE model with {key} {self.model[key]!r}, whose merges Limba does not follow; "
                    "WordPiece, Unigram and byte-level BPE can be changed."
                )
        self.tokenizer = tokenizers.Tokenizer.from_str(json_text.dumps(content, ensure_ascii=False))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.kind = type(self.tokenizer.model).__name__
        self.is_byte_level = '"ByteLevel"' in json_text.dumps([content.get("pre_tokenizer"), content.get("decoder")])
        self.prefix: str = self.model.get("continuing_subword_prefix") or "" if self.kind == WORDPIECE else ""
        self.ids: dict[str, int] = self.tokenizer.get_vocab(with_added_tokens=True)
        self.names = {id_: name for name, id_ in self.ids.items()}
        self.special = {*roles.values(), *(token["id"] for token in content.get("added_tokens") or ())}
        unknown = self.model.get("unk_token")
        unk_id = self.model.get("unk_id") if unknown is None else self.ids.get(unknown)
        self.special |= {unk_id} - {None}
        self.unk_id = -1 if unk_id is None else unk_id
        self.in_bytes: Sequence[int] = [
            id_ for name, id_ in self.ids.items() if len(name) == 6 and name.startswith("<0x")
        ]

    def __len__(self) -> int:
        return max(self.names) + 1

    def check_kind(self) -> None:
        """Raises ValueError for a model whose tokens have no parts."""
        if self.kind not in (WORDPIECE, UNIGRAM, BPE):
            raise ValueError(
                f"The tokenizer.json of {self.where} is of kind {self.kind}, whose tokens are whole words; WordPiece, "
                "Unigram and BPE can be extended and replaced."
            )

    @property
    def num_ids(self) -> int:
        return len(self)

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return [x.ids for x in self.tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)]

    def words(self, text: str) -> list[str]:
        """The parts of a text that the model splits each by itself."""
        normalizer, splitter = self.tokenizer.normalizer, self.tokenizer.pre_tokenizer
        normal = normalizer.normalize_str(text) if normalizer else text
        return [word for word, _ in splitter.pre_tokenize_str(normal)] if splitter else [normal]

    @functools.cached_property
    def ranks(self) -> dict[tuple[str, str], int]:
        """The place of each merge; empty without merges."""
        return {both: i for i, both in enumerate(map(pair, self.model.get("merges") or ()))}

    @functools.cache  # noqa: B019 (as long as the file is open)
    def parts(self, id_: int) -> frozenset[int]:
        """The tokens that merges make on the way to one, with its characters; none for what no merges make.

        They are the same in each text, because no merge crosses the ends of a token.
        """
        symbols, found = [*self.names[id_]], set()
        while len(symbols) > 1:
            pairs = [self.ranks.get(both, len(self.ranks)) for both in itertools.pairwise(symbols)]
            first = int(np.argmin(pairs))
            if pairs[first] == len(self.ranks):
                return frozenset()
            found |= {*symbols}
            symbols[first : first + 2] = [symbols[first] + symbols[first + 1]]
        return frozenset(self.ids[name] for name in found if name in self.ids)


def pair(merge: str | Sequence[str]) -> tuple[str, str]:
    """Older files have the two with a blank between them."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right
