"""Fewer tokens for a tokenizer.json: those that a corpus uses, and those without which texts cannot be written."""

import copy
from collections.abc import Sequence

import numpy as np
import tokenizers

from limba.addons.surgery.tokens import Tokens, pair
from limba.convert.model_files.hf import tokenizer_folder

_BYTES = frozenset(tokenizers.pre_tokenizers.ByteLevel.alphabet())


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
    from limba.tasks.vocabularies.training_text import MULTIPLE, round_up

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
    from limba.addons.surgery.trimmed_pieces import numbers_after

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
        pairs = [(merge, *pair(merge)) for merge in model["merges"]]
        model["merges"] = [merge for merge, a, b in pairs if a in pieces and b in pieces and a + b in pieces]
    content["added_tokens"] = added
    tokenizer_folder.renumber(content, numbers.__getitem__)
    roles = {role: int(numbers[id_]) for role, id_ in tokens.roles.items()}
    new = Tokens(content, roles, tokens.where, tokens.settings)
    wanted = {name: int(numbers[id_]) for name, id_ in tokens.ids.items() if numbers[id_] >= 0}
    if new.ids != wanted:
        raise ValueError(f"The ids of {tokens.where} depend on tokens that are left out; it cannot be trimmed.")
    return new
