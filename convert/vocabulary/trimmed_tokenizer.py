"""Fewer tokens for a tokenizer.json: those that a corpus uses, and those without which texts cannot be written."""

import copy
import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from convert.model_files.hf import tokenizer_folder
from limba.files import json_text

_BYTES = frozenset(tokenizers.pre_tokenizers.ByteLevel.alphabet())


class Tokens:
    """A tokenizer.json, opened.

    Args:
      content: of the file.
      special: ids that are always kept, beside those of added tokens.

    Raises:
      ValueError: for a BPE model that marks the pieces inside or at the end of a word.
    """

    def __init__(self, content: Mapping[str, Any], special: Collection[int], where: str):
        self.content, self.where = content, where
        self.model = content["model"]
        for key in ("continuing_subword_prefix", "end_of_word_suffix"):
            if "merges" in self.model and self.model.get(key):
                raise ValueError(
                    f"{where} is a BPE model with {key} {self.model[key]!r}, whose merges Limba does not follow; "
                    "WordPiece, Unigram and byte-level BPE can be trimmed."
                )
        self.tokenizer = tokenizers.Tokenizer.from_str(json_text.dumps(content, ensure_ascii=False))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.ids: dict[str, int] = self.tokenizer.get_vocab(with_added_tokens=True)
        self.names = {id_: name for name, id_ in self.ids.items()}
        self.special = {*special, *(token["id"] for token in content.get("added_tokens") or ())}
        unknown = self.model.get("unk_token")
        unk_id = self.model.get("unk_id") if unknown is None else self.ids.get(unknown)
        self.special |= {unk_id} - {None}
        self.unk_id = -1 if unk_id is None else unk_id
        self.in_bytes: Sequence[int] = [
            id_ for name, id_ in self.ids.items() if len(name) == 6 and name.startswith("<0x")
        ]

    def __len__(self) -> int:
        return max(self.names) + 1

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        return [x.ids for x in self.tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)]

    @functools.cached_property
    def ranks(self) -> dict[tuple[str, str], int]:
        """The place of each merge; empty without merges."""
        return {pair: i for i, pair in enumerate(map(_pair, self.model.get("merges") or ()))}

    @functools.cache  # noqa: B019 (as long as the file is open)
    def parts(self, id_: int) -> frozenset[int]:
        """The tokens that merges make on the way to one, with its characters; none for what no merges make.

        They are the same in each text, because no merge crosses the ends of a token.
        """
        symbols, found = [*self.names[id_]], set()
        while len(symbols) > 1:
            pairs = [self.ranks.get(pair, len(self.ranks)) for pair in itertools.pairwise(symbols)]
            first = int(np.argmin(pairs))
            if pairs[first] == len(self.ranks):
                return frozenset()
            found |= {*symbols}
            symbols[first : first + 2] = [symbols[first] + symbols[first + 1]]
        return frozenset(self.ids[name] for name in found if name in self.ids)


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    """Older files have the two with a blank between them."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def choose(tokens: Tokens, counts: np.ndarray, min_count: int, size: int | None) -> np.ndarray:
    """The ids of the tokens that are kept, ascending.

    Always kept are special and added tokens, bytes, and the characters of which used tokens consist, at the beginning
    of a word and inside. The others are kept by their frequency in the corpus, each with the tokens that its merges
    need. The number of ids is rounded up to a multiple of 128 with the next tokens.

    Args:
      counts: by id, from the corpus.
      min_count, size: as of `trimmed_pieces.choose`.

    Raises:
      ValueError: if nothing is left out, or `size` is too small for what is always kept.
    """
    from tasks.vocabularies.training_text import MULTIPLE, round_up

    order = [int(i) for i in np.argsort(-counts, kind="stable") if int(i) in tokens.names]
    used = [i for i in order if counts[i] >= min_count and i not in tokens.special]
    kept = tokens.special | _characters(tokens, used)
    if size is not None and size < round_up(len(kept)):
        raise ValueError(
            f"--size is {size}, and {len(kept):,} ids are always kept (special and added tokens, bytes and the "
            f"characters of the corpus); give --size {round_up(len(kept))} or more, or a higher --min_count."
        )
    _add(tokens, kept, used, size)
    wanted = min(round_up(len(kept)), size or round_up(len(kept)))
    if wanted >= len(tokens.names):
        raise ValueError(
            f"Nothing can be trimmed: the corpus uses {len(used):,} of {len(tokens.names):,} tokens; with those that "
            f"are always kept, rounded up to a multiple of {MULTIPLE}, that is all. Give a smaller --size, or a higher "
            "--min_count."
        )
    while len(kept) < wanted:  # What one token needs may come behind it.
        _add(tokens, kept, order, wanted)
    return np.array(sorted(kept))


def _characters(tokens: Tokens, used: Sequence[int]) -> set[int]:
    """The ids of bytes, and of the characters of tokens."""
    prefix = tokens.model.get("continuing_subword_prefix") or ""
    names = [tokens.names[i] for i in used]
    characters = {c for name in names for c in (name.removeprefix(prefix) if prefix else name)}
    characters |= _BYTES if "merges" in tokens.model else set()
    found = {*characters, *(prefix + character for character in characters)} if prefix else characters
    return {tokens.ids[name] for name in found if name in tokens.ids} | {*tokens.in_bytes}


def _add(tokens: Tokens, kept: set[int], order: Sequence[int], most: int | None) -> None:
    """Adds tokens in this order, each with what it needs, as long as that is not more than `most` in all."""
    for id_ in order:
        needed = {id_, *tokens.parts(id_)} - kept
        if most is None or len(kept) + len(needed) <= most:
            kept |= needed


def trimmed(tokens: Tokens, kept: np.ndarray) -> Tokens:
    """The file with these tokens, in their order, and the merges between them."""
    from tasks.vocabularies.trimmed_pieces import numbers_after

    numbers = numbers_after(kept, len(tokens))
    content = copy.deepcopy(dict(tokens.content))
    model = content["model"]
    added = [token for token in content.get("added_tokens") or () if numbers[token["id"]] >= 0]
    names = {token["content"]: token["id"] for token in added}
    if isinstance(model["vocab"], list):
        model["vocab"] = [entry for i, entry in enumerate(model["vocab"]) if numbers[i] >= 0]
        if model.get("unk_id") is not None:
            model["unk_id"] = int(numbers[model["unk_id"]])
    else:  # Tokens that were added get a place in it, so that none depends on the order of the others.
        ids = sorted((id_, name) for name, id_ in {**model["vocab"], **names}.items() if numbers[id_] >= 0)
        model["vocab"] = {name: int(numbers[id_]) for id_, name in ids}
    if "merges" in model:
        pieces = model["vocab"]
        pairs = [(merge, *_pair(merge)) for merge in model["merges"]]
        model["merges"] = [merge for merge, a, b in pairs if a in pieces and b in pieces and a + b in pieces]
    content["added_tokens"] = added
    tokenizer_folder.renumber(content, numbers.__getitem__)
    special = {int(numbers[i]) for i in tokens.special}
    new = Tokens(content, special, tokens.where)
    wanted = {name: int(numbers[id_]) for name, id_ in tokens.ids.items() if numbers[id_] >= 0}
    if new.ids != wanted:
        raise ValueError(f"The ids of {tokens.where} depend on tokens that are left out; it cannot be trimmed.")
    return new
