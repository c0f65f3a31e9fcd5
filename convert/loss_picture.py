"""Loss curves as a PNG, drawn with NumPy: the hub and everything else shows PNGs, and no plotting package is needed.

Lines and letters are strokes; a pixel is covered as far as its center lies within half a stroke's width.
"""

import functools
import itertools
import math
import struct
import zlib
from collections.abc import Sequence

import numpy as np

WIDTH, HEIGHT = 1200, 620
_RIGHT, _TOP, _BOTTOM = 1150, 70, 535

_INK, _GRAY, _GRID = (51, 51, 51), (110, 110, 110), (226, 226, 226)
# Blue and orange: told apart by everybody.
COLORS = ((31, 119, 180), (255, 127, 14))

# The strokes of the letters that are needed, as points "xy" on a grid: lines of text stand at y = 2, small letters end
# at 7, large ones at 9. Corners within a stroke are rounded.
_GLYPHS = {
    "0": "05-02-42-49-09-05",
    "1": "07-29 29-22",
    "2": "08-09-49-46-02 02-42",
    "3": "08-09-49-46-16 16-46-42-02-03",
    "4": "39-32 39-04 04-44",
    "5": "49-09 09-06 06-46-42-02-03",
    "6": "48-49-09-05-02-42-46-06-04",
    "7": "09-49 49-12",
    "8": "26-06-09-49-46-26 26-06-02-42-46-26",
    "9": "03-02-42-46-49-09-05-45-47",
    ".": "02-02",
    ",": "12-01",
    "-": "05-35",
    "M": "02-09 09-34 34-69 69-62",
    "a": "47-42 45-47-07-02-42-44",
    "b": "09-02 05-07-47-42-02-04",
    "c": "46-47-07-02-42-43",
    "d": "49-42 45-47-07-02-42-44",
    "e": "05-45 45-47-07-02-42-43",
    "f": "12-19-39 07-37",
    "g": "47-40-00-01 45-47-07-02-42-44",
    "i": "07-02 09-09",
    "k": "09-02 37-04 15-32",
    "l": "09-02",
    "m": "07-02 05-07-37-34 34-32 35-37-67-64 64-62",
    "n": "07-02 05-07-47-44 44-42",
    "o": "05-02-42-47-07-05",
    "p": "07-00 05-07-47-42-02-04",
    "r": "07-02 05-07-37",
    "s": "46-47-07-05-44-42-02-03",
    "t": "19-12-32 07-37",
    "v": "07-22 22-47",
    " ": "",
}
_SPACE_WIDTH, _GAP = 2.0, 2.0
_SIZE = 2.4

Curve = tuple[str, Sequence[tuple[float, float]]]


def draw(curves: Sequence[Curve], x_label: str, y_label: str) -> bytes:
    """A PNG of one or two curves.

    Args:
      curves: each a label and its points (x, y) in the order of x; together of more than one x.
      x_label: stands under the right end of the axis.
      y_label: stands above the axis.

    Labels may have the characters of `_GLYPHS` only.
    """
    points = [point for _, curve in curves for point in curve]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    # A training that goes on from a millionth step begins there.
    x_ticks = ticks(0.0 if min(xs) < 0.2 * max(xs) else min(xs), max(xs), 8, least=1.0)
    y_ticks = ticks(min(ys), max(ys), 6)
    x_start, x_end = x_ticks[0], max(xs)
    if x_ticks[-1] - x_end < 0.03 * (x_end - x_start):
        x_end = x_ticks[-1]
    y_labels = [_number(tick, y_ticks) for tick in y_ticks]
    left = max(90.0, 34 + max(_text_width(label) for label in y_labels))
    canvas = np.full((HEIGHT, WIDTH, 3), 255.0, np.float32)

    def place(x: float, y: float) -> tuple[float, float]:
        height = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return left + (x - x_start) / (x_end - x_start) * (_RIGHT - left), _BOTTOM - height * (_BOTTOM - _TOP)

    for tick, label in zip(y_ticks, y_labels, strict=True):
        _, at = place(x_start, tick)
        _stroke(canvas, [(left, at), (_RIGHT, at)], 1.5, _GRID)
        _text(canvas, label, left - 14 - _text_width(label), at + 8, _GRAY)
    for tick in (tick for tick in x_ticks if tick <= x_end):
        at, _ = place(tick, y_ticks[0])
        _stroke(canvas, [(at, _BOTTOM), (at, _BOTTOM + 8)], 1.5, _GRAY)
        label = _number(tick, x_ticks)
        _text(canvas, label, at - _text_width(label) / 2, _BOTTOM + 36, _GRAY)
    _stroke(canvas, [(left, _BOTTOM), (_RIGHT, _BOTTOM)], 1.5, _GRAY)
    _text(canvas, x_label, _RIGHT - _text_width(x_label), HEIGHT - 12, _GRAY)
    _text(canvas, y_label, 18, 36, _GRAY)
    for color, (_, curve) in zip(COLORS, curves, strict=False):
        path = [place(x, y) for x, y in _thinned(curve)]
        _stroke(canvas, path, 3.5, color)
        for point in path if len(path) <= 40 else ():
            _stroke(canvas, [point, point], 9.0, color)
    right: float = _RIGHT
    for color, (label, _) in reversed(list(zip(COLORS, curves, strict=False))):
        right -= _text_width(label)
        _text(canvas, label, right, 36, _INK)
        _stroke(canvas, [(right - 52, 28), (right - 16, 28)], 4.5, color)
        right -= 90
    return _png(np.clip(np.rint(canvas), 0, 255).astype(np.uint8))


def ticks(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Round numbers, not many more than `most` and `least` apart, of which the first and the last enclose the range."""
    if not high > low:
        low, high = low - 0.5, low + 0.5
    rough = max((high - low) / most, least)
    power = 10.0 ** math.floor(math.log10(rough) + 1e-9)
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def _number(tick: float, all_ticks: Sequence[float]) -> str:
    """A tick's label: 200k and 1.2M, or as many decimals as the ticks need."""
    if max(map(abs, all_ticks)) >= 10_000:
        size, unit = (1e6, "M") if abs(tick) >= 1e6 else (1e3, "k")
        return f"{tick / size:.10g}{unit}" if tick else "0"
    step = all_ticks[1] - all_ticks[0]
    return f"{tick:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """No more points than can be seen: means over equally many neighbors."""
    group = -(-len(curve) // (WIDTH // 2))
    parts = [curve[i : i + group] for i in range(0, len(curve), group)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def _text(canvas: np.ndarray, text: str, x: float, y: float, color: tuple[int, int, int]) -> None:
    """Writes on a line at y."""
    for character in text:
        for stroke in _strokes(character):
            _stroke(canvas, [(x + _SIZE * px, y - _SIZE * (py - 2)) for px, py in stroke], 0.9 * _SIZE, color)
        x += _SIZE * (_glyph_width(character) + _GAP)


def _text_width(text: str) -> float:
    return _SIZE * (sum(_glyph_width(c) + _GAP for c in text) - _GAP)


def _glyph_width(character: str) -> float:
    return max((x for stroke in _strokes(character) for x, _ in stroke), default=_SPACE_WIDTH)


@functools.cache
def _strokes(character: str) -> list[list[tuple[float, float]]]:
    strokes = []
    for stroke in _GLYPHS[character].split():
        points = [(float(point[0]), float(point[1])) for point in stroke.split("-")]
        for _ in range(3):
            points = _rounded(points)
        strokes.append(points)
    return strokes


def _rounded(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Chaikin's corner cutting; the ends stay."""
    cut = [points[0]]
    for (ax, ay), (bx, by) in itertools.pairwise(points):
        cut += [(0.75 * ax + 0.25 * bx, 0.75 * ay + 0.25 * by), (0.25 * ax + 0.75 * bx, 0.25 * ay + 0.75 * by)]
    return [*cut, points[-1]]


def _stroke(
    canvas: np.ndarray, points: Sequence[tuple[float, float]], width: float, color: tuple[int, int, int]
) -> None:
    """Draws a polyline with round ends, once: where its segments overlap it is no darker."""
    reach = width / 2 + 1
    left = max(0, math.floor(min(x for x, _ in points) - reach))
    top = max(0, math.floor(min(y for _, y in points) - reach))
    right = min(WIDTH, math.ceil(max(x for x, _ in points) + reach))
    bottom = min(HEIGHT, math.ceil(max(y for _, y in points) + reach))
    covered = np.zeros((bottom - top, right - left), np.float32)
    for (ax, ay), (bx, by) in itertools.pairwise(points):
        columns = slice(max(left, math.floor(min(ax, bx) - reach)), min(right, math.ceil(max(ax, bx) + reach)))
        rows = slice(max(top, math.floor(min(ay, by) - reach)), min(bottom, math.ceil(max(ay, by) + reach)))
        y, x = np.mgrid[rows, columns].astype(np.float32) + 0.5
        squared = (bx - ax) ** 2 + (by - ay) ** 2
        along = np.clip(((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / squared, 0, 1) if squared else 0.0
        distance = np.hypot(x - ax - along * (bx - ax), y - ay - along * (by - ay))
        part = covered[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
        np.maximum(part, np.clip(width / 2 + 0.5 - distance, 0, 1), out=part)
    area = canvas[top:bottom, left:right]
    area += covered[..., None] * (np.asarray(color, np.float32) - area)


def _png(image: np.ndarray) -> bytes:
    """An 8-bit RGB image `[height, width, 3]` as a PNG file."""
    height, width, _ = image.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\x00" + row.tobytes() for row in image)  # each row begins with the number of its filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks
