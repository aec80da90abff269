"""How a diagnosis looks: the verdict in one line, how far the launch came, cause, remedy and evidence."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deployer.sglang.log.diagnosis import Diagnosis
from deployer.text import count_of, duration

_STYLE = {"failed": "red", "stopped": "yellow", "no-failure": "green", "not-sglang": "yellow"}
_MARK = {"failed": "✗", "stopped": "■", "no-failure": "✓", "not-sglang": "?"}


def diagnosis_view(found: Diagnosis) -> RenderableType:
    """A diagnosis for people."""
    style = _STYLE[found.outcome]
    cause = found.cause
    verdict = Text.assemble((f"{_MARK[found.outcome]} ", style), (found.verdict, f"bold {style}"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    if cause is not None:
        table.add_row("signature", Text(cause.signature))
    table.add_row("reached", Text(_timeline(found)))
    if cause is not None and found.outcome == "failed":
        table.add_row("cause", Text(cause.cause))
    if cause is not None:
        table.add_row("remedy", Text(cause.remedy))
        if cause.reference:
            table.add_row("reference", Text(cause.reference))
    if recorded := found.origin.get("recorded"):
        table.add_row("recorded", Text(f"{recorded['signature']}: {recorded['cause']}"))
    if unit := found.origin.get("unit"):
        again = count_of(unit["restarts"], "restart")
        said = f"{unit['active']} ({unit['sub']}), result {unit['result'] or 'none'}, {again}"
        table.add_row("unit", Text(said))
    if restarted := found.origin.get("restarted"):
        table.add_row("before", Text(str(restarted), style="yellow"))
    if source := found.origin.get("source"):
        table.add_row("read", Text(str(source)))
    if left_out := found.origin.get("left_out"):
        table.add_row("left out", Text(str(left_out), style="yellow"))
    if unread := found.origin.get("unread"):
        table.add_row("not read", Text(str(unread), style="yellow"))
    if found.starts > 1:
        before = ", ".join(found.earlier)
        table.add_row("starts", Text(f"the last of {found.starts}; those before: {before}"))
    parts: list[RenderableType] = [verdict, table]
    if rows := _evidence(found):
        parts += [Text("evidence" if cause else "last lines", style="bold"), rows]
    if found.notes:
        parts.append(Text("warnings that good launches print too", style="bold"))
        parts += [Text(f"  {note}", style="dim") for note in found.notes]
    return Group(*parts)


def _timeline(found: Diagnosis) -> str:
    """The phases with their times, where the log has them."""
    spans = found.state.spans
    if found.phase is None:
        return "not told: the log does not hold the start"
    if not found.timed:
        return f"{found.state.phase} (the log has no times)"
    return ", ".join(f"{span.name} {duration(span.seconds)}" for span in spans)


def _evidence(found: Diagnosis) -> RenderableType | None:
    cause = found.cause
    if cause is not None:
        rows = list(zip(cause.numbers, cause.evidence, strict=False))
    else:
        rows = [(line.number, line.text.strip()[:500]) for line in found.tail]
    if not rows:
        return None
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", width=8)
    table.add_column()
    for number, text in rows:
        table.add_row(str(number) if number else "kernel", Text(text))
    return table
