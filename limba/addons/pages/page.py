"""The page of `limba report`: one HTML file with everything in it."""

from collections.abc import Mapping, Sequence

from limba.addons.pages import bokeh_charts, chart_choice, page_parts
from limba.addons.pages.bokeh_charts import Charts
from limba.addons.pages.page_parts import escape
from limba.addons.pages.run_record import RunRecord
from limba.files import json_text

# Bytes that a page may have, and points of a curve that are tried until it has no more.
MOST_BYTES = 2_000_000
_POINTS = (1000, 500, 250, 120, 60, 30)

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff; margin: 0 auto }
body { max-width: 1280px; padding: 0 20px 60px }
header { position: sticky; top: 0; background: #fff; border-bottom: 1px solid #ddd; padding: 8px 0; z-index: 5 }
header h1 { font-size: 19px; margin: 0 16px 4px 0; overflow-wrap: anywhere }
nav { display: flex; flex-wrap: wrap; gap: 0 12px; white-space: nowrap }
header a { color: #0060a0; text-decoration: none } header select { font: inherit }
h2 { margin: 34px 0 8px; font-size: 20px } h3 { margin: 0 0 2px; font-size: 15px }
h4 { margin: 16px 0 4px; font-size: 14px }
section { scroll-margin-top: 90px }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(520px, 100%), 1fr)); gap: 22px 26px }
.chart { min-width: 0 }
.note { color: #666; font-size: 13px; margin: 2px 0 4px } .warning { color: #b00020 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 14px; margin: 4px 0 }
th, td { padding: 3px 12px 3px 0; border-bottom: 1px solid #eee; vertical-align: top; text-align: left }
th { font-weight: 600; color: #555 } .numbers td, .numbers th { text-align: right; font-variant-numeric: tabular-nums }
.numbers :is(td, th):first-child, .words-last :is(td, th):last-child { text-align: left }
td { overflow-wrap: break-word; max-width: 640px } .numbers td { white-space: nowrap }
.texts td { white-space: pre-wrap; unicode-bidi: plaintext; text-align: start }
.facts td:first-child { white-space: nowrap }
.texts td:first-child { white-space: nowrap; color: #555 }
table.example { margin-bottom: 14px } pre { background: #f6f6f6; padding: 10px; overflow-x: auto; font-size: 13px }
summary { cursor: pointer }
@media (max-width: 640px) {
  body { padding: 0 12px 40px } nav { flex-wrap: nowrap; overflow-x: auto }
  header h1 { white-space: nowrap; overflow: hidden; text-overflow: ellipsis }
  .facts td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 130px }
}
"""
# Below a width of 640 pixels, that of the style above, two names of curves do not fit beside each other.
_SCRIPT = """
const narrow = matchMedia("(max-width: 640px)")
const fitLegends = () => {
  for (const page of Bokeh.documents) {
    for (const model of page.all_models) {
      if (model.type === "Legend") model.ncols = narrow.matches ? 1 : model.tags[0]
      if (model.type === "Figure") model.height = model.tags[narrow.matches ? 1 : 0]
    }
  }
}
addEventListener("load", () => setTimeout(fitLegends))
narrow.addEventListener("change", fitLegends)
const labels = JSON.parse(document.getElementById("axis-labels").textContent)
document.getElementById("axis").addEventListener("change", event => {
  const axis = event.target.value
  for (const page of Bokeh.documents) {
    for (const model of page.all_models) {
      const places = model.type === "ColumnDataSource" && model.get_column("x_" + axis)
      if (places) {
        const data = model.data instanceof Map ? Object.fromEntries(model.data) : model.data
        model.data = {...data, x: places}
      } else if (model.tags.includes("x")) {
        model.axis_label = labels[axis]
      }
    }
    for (const root of page.roots()) Bokeh.index.get_by_id(root.id)?.reset()
  }
})
"""


def write(runs: Sequence[RunRecord], axis: str, price: float | None, made_at: str) -> str:
    """The page's text, with as many points as fit `MOST_BYTES`.

    Args:
      axis: of all charts, one that all runs know.
      price: of an hour, in whatever currency; None leaves prices out.
      made_at: the time of day, for people.
    """
    chosen = chart_choice.charts(runs)
    text = ""
    for most_points in _POINTS:
        text = _page(runs, chosen, axis, price, made_at, most_points)
        if len(text.encode()) <= MOST_BYTES:
            break
    return text


def _page(
    runs: Sequence[RunRecord],
    chosen: Sequence[chart_choice.Chart],
    axis: str,
    price: float | None,
    made_at: str,
    most_points: int,
) -> str:
    charts = Charts(runs, chosen, axis, most_points)
    figures = {f"chart{i}": charts.figure(chart) for i, chart in enumerate(chosen)}
    script, elements = bokeh_charts.scripts(figures) if figures else ("", {})
    sections = _sections(runs, chosen, elements, price)
    links = "".join(f'<a href="#s{i}">{escape(title)}</a>' for i, (title, _) in enumerate(sections))
    body = "".join(
        f'<section id="s{i}"><h2>{escape(title)}</h2>{content}</section>' for i, (title, content) in enumerate(sections)
    )
    names = ", ".join(run.name for run in runs)
    labels = {name: bokeh_charts.AXIS_LABELS[name] for name in bokeh_charts.axes_of(runs)}
    options = "".join(f"<option{' selected' if x == axis else ''}>{x}</option>" for x in labels)
    reduced = ""
    if charts.lines_per_point > 1:
        reduced = (
            f" A point of a long curve is the mean of up to {charts.lines_per_point:,} lines of metrics.jsonl; "
            "the band goes from the least to the greatest of them, so no spike is lost."
        )
    note = f"Made {made_at}. Charts: drag to zoom, click a name to hide its curve, hover for numbers.{reduced}"
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(names)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"{bokeh_charts.program()}</head><body>"
        f"<header><h1>{escape(names)}</h1><nav>{links}</nav>"
        f'<label>axis <select id="axis" autocomplete="off">{options}</select></label></header>'
        f'<p class="note">{escape(note)}</p>{body}'
        f'<script type="application/json" id="axis-labels">{json_text.dumps(labels)}</script>'
        f"{script}<script>{_SCRIPT}</script></body></html>\n"
    )


def _sections(
    runs: Sequence[RunRecord],
    chosen: Sequence[chart_choice.Chart],
    elements: Mapping[str, str],
    price: float | None,
) -> list[tuple[str, str]]:
    """Titles and contents, without those that are empty."""
    of_section: dict[str, list[str]] = {}
    for i, chart in enumerate(chosen):
        note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
        of_section.setdefault(chart.section, []).append(
            f'<div class="chart"><h3>{escape(chart.title)}</h3>{note}{elements[f"chart{i}"]}</div>'
        )

    def charts(section: str) -> str:
        found = of_section.get(section, [])
        return f'<div class="charts">{"".join(found)}</div>' if found else ""

    sections = [
        ("Overview", page_parts.overview(runs)),
        ("Losses", charts("Losses") + page_parts.figures_of_text(runs)),
        ("Metrics", charts("Metrics")),
        ("Spikes", page_parts.spikes(runs)),
        ("Predictions", page_parts.predictions(runs)),
        ("Optimizer", charts("Optimizer")),
        ("Speed", charts("Speed") + page_parts.time_spent(runs)),
        ("Cost", page_parts.costs(runs, price)),
        ("Data", page_parts.data(runs) + charts("Data")),
        ("Other metrics of training", charts("Other metrics of training")),
        ("Differences", page_parts.differences(runs)),
        ("Configuration", page_parts.configurations(runs)),
        ("Environment", page_parts.environment(runs)),
        ("Go on", page_parts.next_commands(runs)),
    ]
    return [(title, content) for title, content in sections if content]
