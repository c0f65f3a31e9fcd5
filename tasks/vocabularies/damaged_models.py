"""SentencePiece models with which the library ends the process, or makes a text long: they are refused before it.

The library calls itself for each byte of a piece, and follows the tables of the normalizer wherever they lead.
"""

from typing import Any

import numpy as np

_MOST_OF_PIECE = 10_000  # Bytes; 50,000 take the stack of a thread.
# Bytes that a few characters become. NFKC has 33 at most.
_MOST_OF_REPLACEMENT = 1_000


def check(model: Any, file: str) -> None:
    """Raises ValueError, which names the file, for such a model: a `ModelProto`."""
    if (longest := max((len(piece.piece.encode()) for piece in model.pieces), default=0)) > _MOST_OF_PIECE:
        raise ValueError(
            f"{file} has a piece of {longest:,} bytes; pieces have at most {_MOST_OF_PIECE:,}. Download it again."
        )
    for name in ("normalizer_spec", "denormalizer_spec"):
        table = getattr(model, name).precompiled_charsmap
        if table and (wrong := _wrong_table(table)):
            raise ValueError(f"{file} is damaged: precompiled_charsmap of its {name} {wrong}. Download it again.")


def _wrong_table(table: bytes) -> str | None:
    """What is wrong with a trie of Darts-clone, behind its size, and the texts that its leaves lead to."""
    size = int.from_bytes(table[:4], "little")
    if not 0 < size <= len(table) - 4 or size % 1024:
        return f"has {len(table):,} bytes, and a trie of {size:,}"
    nodes, texts = np.frombuffer(table, "<u4", size // 4, 4), table[4 + size :]
    is_leaf = nodes >= 1 << 31
    # A node's children are in one block of 256, for the 256 bytes.
    children = np.arange(len(nodes)) ^ (nodes >> 10 << (nodes >> 6 & 8))
    if (children[~is_leaf] >= len(nodes)).any() or (nodes[is_leaf] & ~np.uint32(1 << 31) >= len(texts)).any():
        return "leads out of itself"
    if (longest := max(map(len, texts.split(b"\0")))) > _MOST_OF_REPLACEMENT:
        return f"makes {longest:,} bytes of a character; at most {_MOST_OF_REPLACEMENT:,} are right"
    return None
