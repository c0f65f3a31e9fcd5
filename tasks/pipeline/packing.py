"""Several short examples in one row, as `seqio.utils.trim_and_pack_dataset` packs them, with arrays."""

from collections.abc import Mapping

import numpy as np


def pack(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Packs examples in their order: a row is full when the next example does not fit in one of its features.

    Args:
      features: int32 `[examples, length]`, padded with 0; rows get these lengths.

    Returns:
      Each feature, int32 `[rows, length]`, and with it `<feature>_positions`, from 0 in every example, and
      `<feature>_segment_ids`, from 1 in every row, 0 on padding.
    """
    most = {name: values.shape[1] for name, values in features.items()}
    lengths = {name: np.count_nonzero(values, axis=1) for name, values in features.items()}
    # SeqIO packs as many examples together as the longest row has tokens.
    row, offsets, num_rows = _places(lengths, most, max(most.values()))
    packed: dict[str, np.ndarray] = {}
    for name, values in features.items():
        counts = lengths[name]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(row, counts), np.repeat(offsets[name], counts) + within
        tokens, positions = (np.zeros((num_rows, most[name]), np.int32) for _ in range(2))
        tokens[at] = values[np.repeat(np.arange(len(counts)), counts), within]
        positions[at] = within
        packed[name], packed[f"{name}_positions"] = tokens, positions
        packed[f"{name}_segment_ids"] = np.cumsum(positions == 0, axis=1, dtype=np.int32) * (tokens != 0)
    return packed


def _places(
    lengths: Mapping[str, np.ndarray], most: Mapping[str, int], together: int
) -> tuple[np.ndarray, dict[str, np.ndarray], int]:
    """The row of each example, its offset there by feature, and the number of rows."""
    names = list(lengths)
    columns = [lengths[name].tolist() for name in names]
    row = -1
    used = [0] * len(names)
    rows, offsets = [], []
    for number, counts in enumerate(zip(*columns, strict=True)):
        if number % together == 0 or any(
            before + count > most[name] for name, before, count in zip(names, used, counts, strict=True)
        ):
            row, used = row + 1, [0] * len(names)
        rows.append(row)
        offsets.append(used)
        used = [before + count for before, count in zip(used, counts, strict=True)]
    by_name = np.array(offsets, np.int64).reshape(-1, len(names)).T
    return np.array(rows, np.int64), dict(zip(names, by_name, strict=True)), row + 1
