"""Which blocks of a row see which, in attention that is sparse: BigBird's layout (arXiv:2007.14062)."""

import dataclasses
import functools
from typing import Any

import numpy as np

from limba.network import config_checks

_OWNER = "BigBirdSparsityConfig"
_COUNTS = {"block": 1, "num_random_blocks": 0, "num_sliding_window_blocks": 1, "num_global_blocks": 0, "seed": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BigBirdSparsityConfig:
    """The fields of DeepSpeed's class of this name, and a seed. A row is cut into blocks; a block sees

    - the blocks of a window around it, itself included,
    - the first blocks of the row, which are global: they see all blocks, and all blocks see them,
    - blocks drawn at random. They may be ones that it sees already, as in DeepSpeed.

    The random blocks are drawn for the longest row; a shorter row has those that lie in it. So its numbers do not
    depend on the length that it is padded to. They depend on the seed alone: the raw numbers of NumPy's Philox, which
    are the same in all of its versions. All layers have the same layout.

    Attributes:
      num_heads: that of the network, which is what None stands for.
      block: tokens of a block.
      different_layout_per_head: draw the random blocks for each head; otherwise all heads share them.
      num_random_blocks: drawn for each block, without repetition.
      num_sliding_window_blocks: width of the window; odd.
      num_global_blocks: how many blocks of the row's beginning are global.
      attention: "bidirectional".
      seed: of the random blocks.

    Raises:
      ValueError: for a value outside of what its field can be.
    """

    num_heads: int | None = None
    block: int = 16
    different_layout_per_head: bool = False
    num_random_blocks: int = 1
    num_sliding_window_blocks: int = 3
    num_global_blocks: int = 1
    attention: str = "bidirectional"
    seed: int = 0

    def __post_init__(self) -> None:
        for field, least in _COUNTS.items():
            config_checks.whole_number(_OWNER, field, getattr(self, field), least)
        if self.num_heads is not None:
            config_checks.whole_number(_OWNER, "num_heads", self.num_heads, 1)
        if not isinstance(self.different_layout_per_head, bool):
            raise ValueError(
                f"{_OWNER}.different_layout_per_head is {self.different_layout_per_head!r}; it is True or False."
            )
        width = self.num_sliding_window_blocks
        if width % 2 == 0:
            raise ValueError(
                f"{_OWNER}.num_sliding_window_blocks is {width}; it is odd, the same number of blocks on each side. "
                f"DeepSpeed makes {width + 1} of it."
            )
        if self.attention == "unidirectional":
            raise ValueError(
                f"{_OWNER}.attention is 'unidirectional', and an encoder sees both sides; set it to 'bidirectional'."
            )
        config_checks.choice(_OWNER, "attention", self.attention, ("bidirectional",))

    def check_network(self, num_heads: int, longest_row: int) -> None:
        """Raises ValueError if a network with such heads and rows cannot have this layout."""
        if self.num_heads not in (None, num_heads):
            raise ValueError(
                f"{_OWNER}.num_heads is {self.num_heads}, and EncoderConfig.num_heads is {num_heads}; leave it out."
            )
        blocks = -(-longest_row // self.block)
        for field in ("num_random_blocks", "num_sliding_window_blocks", "num_global_blocks"):
            if getattr(self, field) > blocks:
                raise ValueError(
                    f"{_OWNER}.{field} is {getattr(self, field)}, and a row of EncoderConfig.max_positions, "
                    f"{longest_row}, has {blocks} blocks of {self.block} tokens; use at most {blocks}."
                )


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    """The layout of a network. Array `[heads, …]` has one head where all heads share it.

    Attributes:
      config: its kinds of blocks.
      num_heads: of the network.
      longest_row: in tokens; random blocks are drawn for it.
    """

    config: BigBirdSparsityConfig
    num_heads: int
    longest_row: int

    @property
    def block(self) -> int:
        """Tokens of a block."""
        return self.config.block

    @property
    def differs_by_head(self) -> bool:
        return self.config.different_layout_per_head

    def num_blocks(self, length: int) -> int:
        """Of a row of `length` tokens; the last may be part of one."""
        return -(-length // self.config.block)

    def random_blocks(self, num_blocks: int) -> np.ndarray:
        """The drawn blocks of the first rows of blocks, `[heads, num_blocks, num_random_blocks]`.

        Numbers from `num_blocks` on are blocks that a shorter row does not have.
        """
        return _draw(self.config, self._layout_heads, self.num_blocks(self.longest_row))[:, :num_blocks]

    def without_random(self, num_blocks: int) -> np.ndarray:
        """Bool `[num_blocks, num_blocks]`: the window and the global blocks."""
        places, first = np.arange(num_blocks), self.config.num_global_blocks
        near = np.abs(places[:, None] - places) <= self.config.num_sliding_window_blocks // 2
        return near | (places < first) | (places[:, None] < first)

    def present(self, num_blocks: int) -> np.ndarray:
        """Bool `[heads, num_blocks, num_blocks]`, True where a block of queries sees a block of keys."""
        drawn = self.random_blocks(num_blocks)
        result = np.tile(self.without_random(num_blocks), (len(drawn), 1, 1))
        heads, rows, order = np.nonzero(drawn < num_blocks)
        result[heads, rows, drawn[heads, rows, order]] = True
        return result

    @property
    def _layout_heads(self) -> int:
        return self.num_heads if self.config.different_layout_per_head else 1


@functools.cache
def _draw(config: BigBirdSparsityConfig, heads: int, num_blocks: int) -> np.ndarray:
    count = config.num_random_blocks
    raw: Any = np.random.Philox(key=config.seed).random_raw(heads * num_blocks * count)
    raw = raw.reshape(heads, num_blocks, count)
    chosen = np.empty((heads, num_blocks, 0), np.int64)
    for number in range(count):
        # The nth of the blocks that are not chosen yet; `chosen` is sorted.
        drawn = (raw[..., number] % np.uint64(num_blocks - number)).astype(np.int64)
        for earlier in range(number):
            drawn += drawn >= chosen[..., earlier]
        chosen = np.sort(np.concatenate([chosen, drawn[..., None]], axis=-1), axis=-1)
    return chosen
