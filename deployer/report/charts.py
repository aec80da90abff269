"""Line charts as SVG, drawn here so that a page loads nothing. Pure.

Colours and fonts come from the page's style sheet (``.s0``, ``.s1``, ... for series), so that they follow light,
dark and print. Series differ by marker and dash too, and every point is a target that holds its description.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 420, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 12, 38
#: Width and height that a label of two figures takes.
_LABEL = (15.0, 10.0)
_MARKERS = ("circle", "square", "diamond", "triangle", "cross", "ring")
_CROSS = [
    *((-4, -1.5), (-1.5, -1.5), (-1.5, -4), (1.5, -4), (1.5, -1.5), (4, -1.5)),
    *((4, 1.5), (1.5, 1.5), (1.5, 4), (-1.5, 4), (-1.5, 1.5), (-4, 1.5)),
]
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "12 4")


@dataclass(frozen=True)
class Point:
    """A point of a series: place, the words of its tooltip, and a label beside it (or none)."""

    x: float
    y: float
    words: str
    label: str = ""


@dataclass(frozen=True)
class Series:
    """A line: the number of its subject (its colour), its points in order, and single dots that belong to it.

    ``spans`` are low and high at each point's x, drawn as whiskers; ``path`` is where the line runs if it is finer than
    its points.
    """

    number: int
    name: str
    points: Sequence[Point]
    dots: Sequence[tuple[float, float]] = ()
    spans: Sequence[tuple[float, float, float]] = ()
    path: Sequence[tuple[float, float]] = ()

    @property
    def places(self) -> Sequence[tuple[float, float]]:
        """The places that the line goes through."""
        return self.path or [(point.x, point.y) for point in self.points]


@dataclass(frozen=True)
class Axis:
    """What an axis shows. ``ticks``: the places to mark (else round numbers); ``log`` for powers of two."""

    title: str
    ticks: Sequence[float] = ()
    log: bool = False
    top: float | None = None


def line_chart(title: str, series: Sequence[Series], x: Axis, y: Axis) -> Markup:
    """Draw one or more lines; y begins at 0."""
    xs = [*x.ticks, *(place for line in series for place, _ in line.places)]
    xs += [point.x for line in series for point in line.points]
    top = y.top or highest(series)
    y_ticks = round_ticks(top)
    x_ticks = list(x.ticks) or round_ticks(max(xs))
    low = 0.0 if not x.log else _log(min(xs)) - 0.25
    high = (_log(max(xs)) + 0.25) if x.log else max(x_ticks[-1], *xs)

    def across(value: float) -> float:
        share = ((_log(value) if x.log else value) - low) / ((high - low) or 1)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def up(value: float) -> float:
        share = value / (max(y_ticks[-1], top) or 1)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)

    parts = [Markup('<svg class="plot" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, HEIGHT, title)]
    for tick in y_ticks:
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(_LEFT, WIDTH - _RIGHT, y=up(tick))
        )
        parts.append(_text(_LEFT - 6, up(tick) + 4, figure(tick), "tick", "end"))
    for tick in x_ticks:
        parts.append(_text(across(tick), HEIGHT - _BOTTOM + 15, figure(tick), "tick", "middle"))
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, x.title, "axis", "middle"))
    parts.append(
        Markup('<text class="axis" text-anchor="middle" transform="translate(11 {}) rotate(-90)">{}</text>').format(
            (HEIGHT - _BOTTOM + _TOP) / 2, y.title
        )
    )
    placed: list[tuple[float, float]] = []
    for line in series:
        parts.append(_line(line, across, up, placed))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def _label(words: str, left: float, top: float, placed: list[tuple[float, float]]) -> Markup:
    """Return a point's label above it, or below it at the upper edge; nothing if it would lie on another."""
    x, y = left + 7, top - 6 if top - 6 > _LABEL[1] else top + 14
    if any(abs(x - other) < _LABEL[0] and abs(y - height) < _LABEL[1] for other, height in placed):
        return Markup("")
    placed.append((x, y))
    return _text(x, y, words, "label", "start")


def _line(
    line: Series,
    across: Callable[[float], float],
    up: Callable[[float], float],
    placed: list[tuple[float, float]],
) -> Markup:
    parts = [Markup('<g class="series s{}" data-series="{}">').format(line.number % 8, line.number)]
    if len(line.places) > 1:
        path = " ".join(f"{across(place)},{up(value)}" for place, value in line.places)
        parts.append(
            Markup('<polyline class="line" points="{}" stroke-dasharray="{}"/>').format(
                path, _DASHES[line.number % len(_DASHES)]
            )
        )
    for place, low, high in line.spans:
        parts.append(
            Markup('<line class="span" x1="{x}" x2="{x}" y1="{}" y2="{}"/>').format(up(low), up(high), x=across(place))
        )
    for place, value in line.dots:
        parts.append(Markup('<circle class="dot" cx="{}" cy="{}" r="1.8"/>').format(across(place), up(value)))
    for point in line.points:
        left, top = across(point.x), up(point.y)
        parts.append(
            Markup('<g class="point" tabindex="0" data-words="{}"><title>{}</title>{}<circle class="target" ').format(
                point.words, point.words, marker(line.number, left, top)
            )
            + Markup('cx="{}" cy="{}" r="11"/></g>').format(left, top)
        )
        if point.label:
            parts.append(_label(point.label, left, top, placed))
    parts.append(Markup("</g>"))
    return Markup("").join(parts)


def marker(number: int, x: float, y: float) -> Markup:
    """Return the marker of a series at a place."""
    shape = _MARKERS[number % len(_MARKERS)]
    if shape in ("circle", "ring"):
        return Markup('<circle class="marker {}" cx="{}" cy="{}" r="4"/>').format(shape, x, y)
    outline = {
        "square": [(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)],
        "diamond": [(0, -5.2), (5.2, 0), (0, 5.2), (-5.2, 0)],
        "triangle": [(0, -5), (4.6, 3.6), (-4.6, 3.6)],
        "cross": _CROSS,
    }[shape]
    corners = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in outline)
    return Markup('<polygon class="marker" points="{}"/>').format(corners)


def swatch(number: int) -> Markup:
    """Return a short piece of a series' line with its marker, for legends."""
    return Markup(
        '<svg class="swatch s{}" viewBox="0 0 30 12" aria-hidden="true">'
        '<line class="line" x1="1" x2="29" y1="6" y2="6" stroke-dasharray="{}"/>{}</svg>'
    ).format(number % 8, _DASHES[number % len(_DASHES)], marker(number, 15, 6))


def highest(series: Sequence[Series]) -> float:
    """Return the highest value that the lines show; 0 if they show nothing."""
    highs = [point.y for line in series for point in line.points]
    highs += [value for line in series for _, value in (*line.dots, *line.path)]
    highs += [high for line in series for _, _, high in line.spans]
    return max(highs, default=0.0)


def round_ticks(top: float, most: int = 6) -> list[float]:
    """Return round numbers from 0 to at least ``top``, in at most ``most`` steps."""
    if not 0 < top / most < math.inf:
        return [0.0, 1.0]
    exponent = math.floor(math.log10(top / most))
    for step in (factor * 10.0**exponent for factor in (1, 2, 2.5, 5, 10, 20)):
        if step > 0 and top / step <= most:
            return [number * step for number in range(math.ceil(top / step - 1e-9) + 1)]
    return [0.0, top]


def figure(value: float) -> str:
    """Return a number for a tick, with no more digits than it needs."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _log(value: float) -> float:
    return math.log2(max(value, 1e-9))


def _text(x: float, y: float, words: str, kind: str, anchor: str) -> Markup:
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(kind, x, y, anchor, escape(words))
