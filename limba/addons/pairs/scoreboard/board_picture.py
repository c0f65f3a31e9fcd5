"""The picture of a scoreboard: a panel for each column, and in it a dot with its interval for each row, as SVG."""

import html
import math

from limba.addons.pairs.scoreboard.board import Board, Column, shown
from limba.reports import text_width

_ROW, _PANEL, _GAP, _TOP, _BOTTOM, _MARGIN = 24, 240, 28, 54, 30, 6
_LETTER = 7.2  # About the width of a letter at a font size of 13 pixels.
_STYLE = (
    "text { font: 13px system-ui, sans-serif; fill: #222 } .axis { font-size: 11px; fill: #666 } "
    ".grid { stroke: #ddd } .interval { stroke: #1f77b4; stroke-width: 2 } .dot { fill: #1f77b4 }"
)


def draw(board: Board) -> str:
    """The SVG; columns without an interval, such as ranks, are left out."""
    columns = [c for c in board.columns() if any((f := c.figure(row)) and f.low is not None for row in board.rows)]
    names = _LETTER * max(text_width.width(row.label) for row in board.rows) + _GAP
    width = names + len(columns) * (_PANEL + _GAP)
    height = _TOP + _ROW * len(board.rows) + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
        f'height="{height}" role="img" aria-label="scoreboard"><style>{_STYLE}</style>',
        f'<rect width="{width:.0f}" height="{height}" fill="#fff"/>',
    ]
    parts += [_text(_MARGIN, _middle(i) + 4, row.label) for i, row in enumerate(board.rows)]
    for number, column in enumerate(columns):
        parts += _panel(board, column, names + number * (_PANEL + _GAP), height)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(board: Board, column: Column, left: float, height: int) -> list[str]:
    figures = [(i, figure) for i, row in enumerate(board.rows) if (figure := column.figure(row)) is not None]
    ends = [x for _, f in figures for x in (f.value, f.low, f.high) if x is not None]
    low, high = min(ends), max(ends)
    margin = 0.05 * (high - low) or 0.5
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return left + _PANEL * (value - low) / (high - low)

    of_column, _, name = column.title.partition(" ")
    parts = [_text(left, 16, of_column), _text(left, 34, name)]
    for value in _round_values(low, high):
        x = place(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{height - _BOTTOM + 4}"/>')
        parts.append(_text(x, height - 10, f"{value:g}", "axis", "middle"))
    for i, figure in figures:
        y = _middle(i)
        if figure.low is not None and figure.high is not None:
            ends_of = f'x1="{place(figure.low):.1f}" x2="{place(figure.high):.1f}"'
            parts.append(f'<line class="interval" {ends_of} y1="{y}" y2="{y}"/>')
        tooltip = html.escape(f"{board.rows[i].label}: {shown(figure)}")
        parts.append(
            f'<circle class="dot" cx="{place(figure.value):.1f}" cy="{y}" r="4"><title>{tooltip}</title></circle>'
        )
    return parts


def _round_values(low: float, high: float) -> list[float]:
    """Two to five values between two others, multiples of 1, 2 or 5 times a power of ten."""
    exponent = math.floor(math.log10(high - low))
    steps = (factor * 10.0**power for power in (exponent, exponent - 1) for factor in (5, 2, 1))
    step = next(step for step in steps if high // step - low // step >= 2)
    first = math.floor(low / step) + 1
    return [round(i * step, 10) for i in range(first, math.floor(high / step) + 1)]


def _middle(row: int) -> int:
    return _TOP + _ROW * row + _ROW // 2


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
