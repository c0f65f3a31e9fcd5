"""Charts of a page, drawn by bokeh in the browser. All have the same axis, which the page can change."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from limba.addons.pages import downsampling
from limba.addons.pages.chart_choice import Chart, Line
from limba.addons.pages.required_packages import bokeh
from limba.addons.pages.run_record import AXES, RunRecord

# Different to every eye: Okabe and Ito's, with yellow left out.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
AXIS_LABELS = {
    "steps": "steps",
    "tokens": "tokens (input and target positions, padding included)",
    "hours": "hours of all starts of the run",
    "FLOPs": "FLOPs of the products of matrices",
}
# Of what all runs share.
_GRAY = "#777777"
# Pixels: of a chart at least, of one without its legend, and of a line of the legend. Names longer than so many
# characters do not fit beside each other.
_HEIGHT, _WITHOUT_LEGEND, _LEGEND_LINE = 340, 270, 23
_LONG_NAME = 36
# Pixels beside a name: in Bokeh's 20, a dot covers what tells a dashed line from a solid one.
_LEGEND_GLYPH = 40
_DASHES = ("solid", "dashed", "dotted", "dotdash", "dashdot", "10 3")
# Where an evaluation has more, its dots would hide the curve.
_MOST_DOTS = 60
_TICKS = """
const x = Math.abs(tick)
if (x >= 1e15) return tick.toExponential(1)
const unit = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([size, _]) => x >= size)
return unit ? `${+(tick / unit[0]).toPrecision(4)}${unit[1]}` : `${+tick.toPrecision(4)}`
"""


def axes_of(runs: Sequence[RunRecord]) -> list[str]:
    """The axes that all runs know."""
    steps = np.zeros(1)
    return [axis for axis in AXES if all(run.along(axis, steps) is not None for run in runs)]


class Charts:
    """The charts of some runs as models of bokeh.

    Attributes:
      lines_per_point: how many lines of a run a point has at most.
    """

    def __init__(self, runs: Sequence[RunRecord], charts: Sequence[Chart], axis: str, most_points: int):
        self._runs, self._axis, self._axes = runs, axis, axes_of(runs)
        self._models: Any = bokeh("models")
        self._plotting: Any = bokeh("plotting")
        self._x_range = self._models.DataRange1d()
        self.lines_per_point = 1
        # Metrics have any characters in their names, which templates of bokeh would read.
        self._columns: dict[tuple[int, str, str], str] = {}
        self._sources = self._make_sources(charts, most_points)
        self._spikes = [self._marks(run, [x["step"] for x in run.spikes]) for run in runs]

    def _make_sources(self, charts: Sequence[Chart], most_points: int) -> Mapping[tuple[int, str], Any]:
        metrics: dict[tuple[int, str], dict[str, None]] = {}
        for line in (line for chart in charts for line in chart.lines):
            metrics.setdefault((line.run, line.dataset), {}).update(dict.fromkeys((line.metric, *line.band)))
        sources = {}
        for (number, dataset), names in metrics.items():
            run = self._runs[number]
            reduced = downsampling.reduce(run.curves[dataset], list(names), most_points)
            self.lines_per_point = max(self.lines_per_point, reduced.lines_per_point)
            columns = self._places(run, reduced.steps)
            for name in names:
                column = self._columns[number, dataset, name] = f"m{len(columns)}"
                columns[column] = _single(reduced.means[name])
                if reduced.lines_per_point > 1:
                    columns[f"{column}_least"] = _single(reduced.least[name])
                    columns[f"{column}_greatest"] = _single(reduced.greatest[name])
            sources[number, dataset] = self._models.ColumnDataSource(columns)
        return sources

    def _places(self, run: RunRecord, steps: np.ndarray) -> dict[str, Any]:
        """`x`, and for each axis a column to which the page can set it."""
        columns = {f"x_{axis}": run.along(axis, steps) for axis in self._axes}
        return {"x": columns[f"x_{self._axis}"], **columns}

    def _marks(self, run: RunRecord, steps: Sequence[float]) -> Any:
        return self._models.ColumnDataSource(self._places(run, np.array(steps, float))) if steps else None

    def figure(self, chart: Chart) -> Any:
        """The model of a chart."""
        columns = 2 if max(len(line.label) for line in chart.lines) <= _LONG_NAME else 1
        # Of a wide page, and of one with a column of names.
        heights = [max(_HEIGHT, _WITHOUT_LEGEND - (-len(chart.lines) // n) * _LEGEND_LINE) for n in (columns, 1)]
        figure = self._plotting.figure(
            height=heights[0],
            tags=heights,
            sizing_mode="stretch_width",
            x_range=self._x_range,
            y_axis_label=chart.y_label,
            x_axis_label=AXIS_LABELS[self._axis],
            tools="pan,box_zoom,wheel_zoom,reset,save",
            active_drag="box_zoom",
            active_scroll=None,
        )
        figure.toolbar.logo = None
        figure.toolbar.autohide = True
        figure.xaxis.formatter = self._models.CustomJSTickFormatter(code=_TICKS)
        figure.yaxis.formatter = self._models.CustomJSTickFormatter(
            code=_TICKS.replace("x >= 1e15", "x >= 1e15 || (x && x < 1e-3)")
        )
        figure.xaxis.tags = ["x"]
        figure.outline_line_color = None
        figure.grid.grid_line_alpha = 0.5
        figure.y_range.default_span = self._span(chart.lines)
        items = [
            self._models.LegendItem(label={"value": _plain(line.label)}, renderers=self._draw(figure, line, *form))
            for line, form in zip(chart.lines, self._forms(chart.lines), strict=True)
        ]
        if chart.section in ("Losses", "Optimizer"):
            for source in filter(None, self._spikes):
                figure.vspan(x="x", source=source, line_color="#b00020", line_alpha=0.5, line_dash="dotted")
        legend = self._models.Legend(
            items=items,
            click_policy="hide",
            label_text_font_size="9pt",
            glyph_width=_LEGEND_GLYPH,
            border_line_color=None,
            ncols=columns,
            tags=[columns],
            location="bottom_left",
        )
        figure.add_layout(legend, "below")
        return figure

    def _draw(self, figure: Any, line: Line, color: str, dash: str) -> list[Any]:
        source = self._sources[line.run, line.dataset]
        value, low, high = (self._columns[line.run, line.dataset, name] for name in (line.metric, *line.band))
        if f"{low}_least" in source.data:
            low, high = f"{low}_least", f"{high}_greatest"
        drawn = []
        if low != high:
            drawn.append(figure.varea(x="x", y1=low, y2=high, source=source, color=color, alpha=0.2))
            # A band of one point is as wide as a hair: its edges show it.
            edge = {"source": source, "color": color, "line_width": 0.7, "alpha": 0.45}
            drawn += [figure.line("x", column, **edge) for column in (low, high)]
        form = {"source": source, "color": color, "name": line.label}
        drawn.append(figure.line("x", value, line_width=1.6, line_dash=dash, **form))
        points = len(source.data["x"])
        if points == 1 or (line.has_dots and points <= _MOST_DOTS):
            drawn.append(figure.scatter("x", value, size=5, **form))
        tips = [("curve", "$name"), ("step", "@x_steps{0,0}"), ("value", f"@{value}{{%.5g}}")]
        if low != high:
            tips.append(("from, to", f"@{low}{{%.5g}}, @{high}{{%.5g}}"))
        formatters = {f"@{column}": "printf" for column in (value, low, high)}
        hover = self._models.HoverTool(
            renderers=[drawn[-1]], tooltips=tips, formatters=formatters, mode="vline", visible=False
        )
        figure.add_tools(hover)
        return drawn

    def _span(self, lines: Sequence[Line]) -> float:
        """How much a chart shows whose values are all the same: a fifth of them."""
        columns = [self._sources[x.run, x.dataset].data[self._columns[x.run, x.dataset, x.metric]] for x in lines]
        return 0.2 * max((float(np.nanmax(np.abs(x))) for x in columns if np.isfinite(x).any()), default=0.0) or 1.0

    def _forms(self, lines: Sequence[Line]) -> list[tuple[str, str]]:
        """Colors and dashes. Of several runs each has a color, and its curves in a chart differ by their dashes."""
        if len(self._runs) == 1:
            colors = (COLORS[i % len(COLORS)] for i in range(len(lines)))
            return [(color, "dashed" if x.is_dashed else "solid") for color, x in zip(colors, lines, strict=True)]
        forms, counts = [], dict.fromkeys(range(len(self._runs)), 0)
        shared = iter(_DASHES[2:] * len(lines))
        for line in lines:
            if line.is_shared:
                forms.append((_GRAY, next(shared)))
                continue
            forms.append((COLORS[line.run % len(COLORS)], _DASHES[counts[line.run] % len(_DASHES)]))
            counts[line.run] += 1
        return forms


def _plain(label: str) -> str:
    """Two dollar signs would be TeX."""
    return label.replace("$$", "$ $")


def _single(column: np.ndarray) -> np.ndarray:
    """float32: four digits more than a screen shows, in half the bytes."""
    with np.errstate(over="ignore"):
        return column.astype(np.float32)


def scripts(figures: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    """What draws figures: a script, and for each figure the element that it fills."""
    return bokeh("embed").components(dict(figures))


def program() -> str:
    """bokeh's program for browsers, whole: a page needs no network."""
    return bokeh("resources").Resources(mode="inline", components=["bokeh"]).render_js()


def version() -> str:
    return bokeh("util.version").base_version()
