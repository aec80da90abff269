"""A diagnosis, for people: the verdict in one line, how far the launch came, cause, remedy and evidence."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deployer.sglang.log.diagnosis import Diagnosis
from deployer.text import count_of, duration

#: The mark and colour of each outcome.
_MARKS = {
    "failed": ("✗", "red"),
    "stopped": ("■", "yellow"),
    "no-failure": ("✓", "green"),
    "not-sglang": ("?", "yellow"),
}


def diagnosis_view(diagnosis: Diagnosis) -> RenderableType:
    """The diagnosis of one log."""
    mark, style = _MARKS[diagnosis.outcome]
    verdict = Text.assemble((f"{mark} ", style), (diagnosis.verdict, f"bold {style}"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for label, text, colour in _rows(diagnosis):
        if text:
            table.add_row(label, Text(text, style=colour))
    parts: list[RenderableType] = [verdict, table]
    if evidence := _evidence(diagnosis):
        parts += [Text("evidence" if diagnosis.cause else "last lines", style="bold"), evidence]
    if diagnosis.notes:
        parts.append(Text("warnings that good launches print too", style="bold"))
        parts += [Text(f"  {note}", style="dim") for note in diagnosis.notes]
    return Group(*parts)


def _rows(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    """Label, text and colour; a row without text is not shown."""
    cause, origin = diagnosis.cause, diagnosis.origin
    recorded, unit = origin.get("recorded"), origin.get("unit")
    state = f"{unit['active']} ({unit['sub']}), result {unit['result'] or 'none'}" if unit else ""
    earlier = f"the last of {diagnosis.starts}; those before: {', '.join(diagnosis.earlier)}"
    return [
        ("signature", cause.signature if cause else "", ""),
        ("reached", _timeline(diagnosis), ""),
        ("cause", cause.cause if cause and diagnosis.outcome == "failed" else "", ""),
        ("remedy", cause.remedy if cause else "", ""),
        ("reference", (cause.reference if cause else None) or "", ""),
        ("recorded", f"{recorded['signature']}: {recorded['cause']}" if recorded else "", ""),
        ("unit", f"{state}, {count_of(unit['restarts'], 'restart')}" if unit else "", ""),
        ("before", origin.get("restarted", ""), "yellow"),
        ("read", origin.get("source", ""), ""),
        ("left out", origin.get("left_out", ""), "yellow"),
        ("not read", origin.get("unread", ""), "yellow"),
        ("starts", earlier if diagnosis.starts > 1 else "", ""),
    ]


def _timeline(diagnosis: Diagnosis) -> str:
    """The phases, with their times if the log has them."""
    if diagnosis.phase is None:
        return "unknown: the log does not hold the start"
    if not diagnosis.timed:
        return f"{diagnosis.state.phase} (the log has no times)"
    return ", ".join(f"{span.name} {duration(span.seconds)}" for span in diagnosis.state.spans)


def _evidence(diagnosis: Diagnosis) -> RenderableType | None:
    if diagnosis.cause is not None:
        rows = list(zip(diagnosis.cause.numbers, diagnosis.cause.evidence, strict=False))
    else:
        rows = [(line.number, line.text.strip()[:500]) for line in diagnosis.tail]
    if not rows:
        return None
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", width=8)
    table.add_column()
    for number, text in rows:
        table.add_row(str(number) if number else "kernel", Text(text))
    return table
