"""Loss curves as a PNG."""

import struct
import zlib

import numpy as np
import pytest

from convert import loss_picture


def read_png(content: bytes) -> np.ndarray:
    """The pixels, `[height, width, 3]`; checksums are checked."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        kind, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        assert struct.unpack(">I", content[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + data),)
        chunks[kind] = data
        at += 12 + length
    width, height, depth, colors, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, colors) == (8, 2)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_curves_lie_where_their_numbers_are():
    """One falls from 10 to 2, one stays at 4; the axes go from 0 to 100 and from 2 to 10."""
    falling, level = [(0, 10.0), (100, 2.0)], [(0, 4.0), (50, 4.0), (100, 4.0)]
    image = read_png(loss_picture.draw([("training", falling), ("validation", level)], "steps", "loss"))
    blue, orange = (np.all(image == color, axis=-1) for color in loss_picture.COLORS)
    left, right, top, bottom = 90, 1150, 70, 535
    for share in (0.1, 0.3, 0.5, 0.9):
        x = round(left + share * (right - left))
        rows = np.flatnonzero(blue[top:, x]) + top
        assert abs(rows.mean() - (top + share * (bottom - top))) < 1.5
        rows = np.flatnonzero(orange[top:, x]) + top
        assert abs(rows.mean() - (top + 0.75 * (bottom - top))) < 1.5
    assert not blue[top:, : left - 8].any() and not blue[top:, right + 8 :].any()


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0, 500, 8, [0, 100, 200, 300, 400, 500]),
        (2.1, 9.7, 6, [2, 4, 6, 8, 10]),
        (2.15, 2.19, 6, [2.15, 2.16, 2.17, 2.18, 2.19]),
        (3, 3, 6, [2.4, 2.6, 2.8, 3.0, 3.2, 3.4, 3.6]),
    ],
)
def test_ticks_are_round(low, high, most, expected):
    np.testing.assert_allclose(loss_picture.ticks(low, high, most), expected)


def test_ticks_of_few_steps_are_whole():
    assert loss_picture.ticks(0, 3, 8, least=1.0) == [0, 1, 2, 3]


def test_every_letter_and_range_can_be_drawn():
    letters = "".join(loss_picture._GLYPHS)
    for curve in ([(1, -2.5)], [(1_000_000, 2.5), (1_020_000, 2.50001)], [(i, 1e5 * i) for i in range(5000)]):
        image = read_png(loss_picture.draw([(letters[:30], [(0, curve[0][1]), *curve])], "steps", letters[30:]))
        assert image.shape == (loss_picture.HEIGHT, loss_picture.WIDTH, 3)
