"""The plots of a page as figures for plotly.js, to zoom and pan. Pure, except for `library`.

The page keeps its own plots for paper and for a browser without scripts. A figure holds no colours: the page's script
takes them from the style sheet.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from markupsafe import escape

from deployer.errors import UsageError
from deployer.records.codec import Json
from deployer.report.charts import Axis, Series, highest, round_ticks

#: As `charts` draws them, in plotly's names (plotly.com/javascript/reference/scatter).
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "circle-open")
_DASHES = ("solid", "7px,3px", "2px,3px", "9px,3px,2px,3px", "4px,4px", "12px,4px")


def library() -> str:
    """Return the text of plotly.js, from the Python package plotly. Raise UsageError if that is not installed."""
    try:
        return str(importlib.import_module("plotly.offline").get_plotlyjs())
    except ImportError as error:
        raise UsageError(
            f"interactive plots need the package plotly, which is not installed ({error})",
            remedy="install deployer with its extra: pip install 'deployer[plots]'; or leave out --interactive",
        ) from error


def figure(series: Sequence[Series], x: Axis, y: Axis) -> Json:
    """Return ``{"data", "layout"}`` for ``Plotly.newPlot``; ``meta`` of a trace is the number of its subject."""
    traces = [trace for line in series for trace in _traces(line)]
    across: Json = {"title": {"text": str(escape(x.title))}, "zeroline": False}
    if x.log:
        across["type"] = "log"
    if x.ticks:
        across |= {"tickvals": list(x.ticks), "ticktext": [f"{tick:g}" for tick in x.ticks]}
    top = round_ticks(y.top or highest(series))[-1]
    up: Json = {"title": {"text": str(escape(y.title))}, "range": [0, top * 1.02], "zeroline": False}
    layout = {
        "xaxis": across,
        "yaxis": up,
        "showlegend": False,
        "hovermode": "closest",
        # Room above for plotly's buttons.
        "margin": {"l": 60, "r": 14, "t": 30, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }
    return {"data": traces, "layout": layout}


def _traces(line: Series) -> list[Json]:
    labelled = any(point.label for point in line.points)
    trace: Json = {
        "type": "scatter",
        "mode": "lines+markers+text" if labelled else "lines+markers",
        "meta": line.number,
        "x": [point.x for point in line.points],
        "y": [point.y for point in line.points],
        # plotly interprets some tags in a text.
        "customdata": [str(escape(point.words)) for point in line.points],
        "hovertemplate": "%{customdata}<extra></extra>",
        "line": {"dash": _DASHES[line.number % len(_DASHES)], "width": 2},
        "marker": {"symbol": _SYMBOLS[line.number % len(_SYMBOLS)], "size": 9},
    }
    if labelled:
        trace |= {"text": [str(escape(point.label)) for point in line.points], "textposition": "top right"}
    if line.spans:
        spans = {place: (low, high) for place, low, high in line.spans}
        reach = [(point.y, *spans.get(point.x, (point.y, point.y))) for point in line.points]
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [high - value for value, _, high in reach],
            "arrayminus": [value - low for value, low, _ in reach],
            "thickness": 1.5,
            "width": 0,
        }
    if line.path:
        path = {
            **{key: trace[key] for key in ("type", "meta", "line")},
            "mode": "lines",
            "x": [place for place, _ in line.path],
            "y": [value for _, value in line.path],
            "hoverinfo": "skip",
        }
        trace = {key: value for key, value in trace.items() if key != "line"}
        trace["mode"] = trace["mode"].removeprefix("lines+")
        return [path, trace]
    if not line.dots:
        return [trace]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "meta": line.number,
        "x": [place for place, _ in line.dots],
        "y": [value for _, value in line.dots],
        "hoverinfo": "y",
        "marker": {"size": 4, "opacity": 0.5},
    }
    return [trace, dots]
