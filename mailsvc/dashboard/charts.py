"""Charts as SVG, drawn here, so that pages need no library for them. Pure: numbers in, shapes out; colours are the stylesheet's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
from markupsafe import Markup

WIDTH, HALF, HEIGHT = 720.0, 400.0, 200.0
LEFT, BOTTOM, TOP = 44.0, 22.0, 8.0


@attrs.frozen
class Step:
    """One place on the time axis. `label` is shown where there is room, `title` when it is pointed at."""

    label: str
    title: str
    values: Mapping[str, float]


def bars(steps: Sequence[Step], kinds: Sequence[str], name: str) -> Markup:
    """Stacked, in the order of `kinds`, each a class of the stylesheet."""
    top = scale(max((sum(step.values.get(kind, 0) for kind in kinds) for step in steps), default=0))
    room = (WIDTH - LEFT) / max(len(steps), 1)
    drawn: list[str] = []
    for place, step in enumerate(steps):
        x, y = LEFT + place * room, HEIGHT - BOTTOM
        for kind in kinds:
            height = step.values.get(kind, 0) / top * (HEIGHT - BOTTOM - TOP)
            if height:
                y -= height
                drawn.append(_rect(x + room * 0.15, y, room * 0.7, height, kind))
        drawn.append(_pointed(x, room, step.title))
    return _chart(name, [*_rules(top, lambda value: f"{value:,g}"), *drawn, *_labels(steps, room)])


def line(steps: Sequence[Step], kind: str, name: str, danger: float | None = None) -> Markup:
    """Shares in percent; a step without a value breaks the line. `danger`: where it gets dangerous."""
    values = [step.values.get(kind) for step in steps]
    known = [value for value in values if value is not None]
    top = min(100.0, scale(max([*known, (danger or 0) * 1.5])))
    room = (HALF - LEFT) / max(len(steps), 1)
    height = HEIGHT - BOTTOM - TOP

    def at(place: int, value: float) -> str:
        return f"{LEFT + (place + 0.5) * room:.1f},{HEIGHT - BOTTOM - min(value / top, 1) * height:.1f}"

    runs: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(at(place, value))
    drawn = [f'<polyline class="line" points="{" ".join(run)}"/>' for run in runs if len(run) > 1]
    drawn += [f'<circle class="delivered" cx="{run[0].split(",")[0]}" cy="{run[0].split(",")[1]}" r="3"/>' for run in runs if len(run) == 1]
    if danger is not None:
        y = HEIGHT - BOTTOM - danger / top * height
        drawn.append(f'<line class="danger" x1="{LEFT}" x2="{HALF:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
    drawn += [_pointed(LEFT + place * room, room, step.title) for place, step in enumerate(steps)]
    return _chart(name, [*_rules(top, lambda value: f"{value:g} %", HALF), *drawn, *_labels(steps, room)], HALF)


def scale(most: float) -> float:
    """A round number that is not below it."""
    if most <= 0:
        return 1.0
    unit = 1.0
    while unit < most:
        unit *= 10
    while unit >= most * 10:
        unit /= 10
    return next(unit * part for part in (0.2, 0.5, 1.0, 2.0) if unit * part >= most)


def _chart(name: str, parts: Sequence[str], width: float = WIDTH) -> Markup:
    label = str(Markup.escape(name))
    return Markup(  # noqa: S704  made of numbers and of escaped text
        f'<svg class="chart" viewBox="0 0 {width:g} {HEIGHT:g}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _rules(top: float, said: Callable[[float], str], width: float = WIDTH) -> list[str]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
        text = said(top * share)
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{width:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    return parts


def _labels(steps: Sequence[Step], room: float) -> list[str]:
    every = max(1, round(72 / room))
    return [
        f'<text x="{LEFT + (place + 0.5) * room:.1f}" y="{HEIGHT - 5:g}" text-anchor="middle">{Markup.escape(step.label)}</text>'
        for place, step in enumerate(steps)
        if place % every == every // 2
    ]


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="1.5"/>'


def _pointed(x: float, width: float, title: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{TOP:g}" width="{width:.1f}" height="{HEIGHT - BOTTOM - TOP:g}" fill="transparent">'
        f"<title>{Markup.escape(title)}</title></rect>"
    )
