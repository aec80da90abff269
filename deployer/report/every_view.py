"""Several services together, a line each, for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from deployer.report.service_view import status_mark
from deployer.text import age, count_of, moment

if TYPE_CHECKING:
    from deployer.deploy.apply import Preview
    from deployer.errors import DeployerError
    from deployer.inspect.doctor.checkup import Checkup
    from deployer.inspect.every import Look
    from deployer.inspect.history import History
    from deployer.inspect.status import StatusReport

T = TypeVar("T")
#: A service's state (markup), and what else there is to say of it (text).
Line = tuple[str, str]


def lines_view(looks: Iterable[Look[T]], line: Callable[[T], Line]) -> RenderableType:
    """A line for each service: name, host, and its ``line``, or the error that there was instead."""
    rows = []
    for look in looks:
        state, text = look.either(line, lambda error: ("[red]✗ unknown[/red]", error_text(error)))
        head = Text(look.service.name, style="bold"), Text(look.service.host), Text.from_markup(state)
        rows.append((*head, Text(" ".join(text.split()))))
    for column in list(zip(*rows, strict=True))[:-1]:
        width = max(cell.cell_len for cell in column) + 2
        for cell in column:
            cell.pad_right(width - cell.cell_len)
    lines = [Text("").join(row) for row in rows]  # no table: one would fold them off a terminal, too
    for text_line in lines:
        text_line.rstrip()
    return Group(*lines)


def whole_view(looks: Iterable[Look[T]], view: Callable[[T], RenderableType]) -> RenderableType:
    """The whole view of each service below its name, or the error that there was instead."""
    parts: list[RenderableType] = []
    for look in looks:
        parts += [Text("")] if parts else []
        parts.append(Text(f"{look.service.name} on {look.service.host}", style="bold"))
        parts.append(look.either(view, lambda error: Text(error_text(error), style="red")))
    return Group(*parts)


def error_text(error: DeployerError) -> str:
    """Return an error with its remedy in one line."""
    return error.message + (f"; remedy: {error.remedy}" if error.remedy else "")


def status_line(report: StatusReport) -> Line:
    """The line of `status`."""
    state, release, change = report.state, report.state.live_release, report.state.transition
    parts = []
    if state.live:
        since = f", live for {age(report.now - release.promoted)}" if release and release.promoted else ""
        parts.append(f"{(release.profile if release else '') or '?'} ({state.live.release or '?'}){since}")
        if release and release.bench_summary:
            parts.append(str(release.bench_summary))
    if state.live and not report.health.ok and not report.gave_way:
        parts.append(f"/health: {report.health.status}")
    if change:
        parts.append(
            f"to {change.to}: {change.step} ({age(report.changing_for)})"
            + (", nobody is finishing it" if report.unattended else "")
        )
    parts += [str(item) for item in (report.lease, report.observed.hold) if item]
    parts += _first("difference", report.drift)
    return status_mark(report), "; ".join(parts)


def history_line(history: History) -> Line:
    """The line of `history`: what is live, and what came of the last attempt."""
    if not history.releases:
        return "[dim]no releases[/dim]", "`deployer apply PROFILE` makes the first"
    last = history.releases[0]
    parts = [
        count_of(len(history.releases), "release"),
        f"the last: {last.release} {last.state} {moment(last.promoted or last.created)}"
        + (f" ({last.failure.cause})" if last.failure else ""),
    ]
    return f"live: {escape(history.live)}" if history.live else "[dim]nothing live[/dim]", "; ".join(parts)


def plan_line(preview: Preview) -> Line:
    """The line of `plan`."""
    plan, against = preview.plan, preview.objections
    parts = []
    if plan.action == "deploy":
        parts.append(f"{plan.release} instead of {plan.live or 'nothing'}")
        parts += [count_of(len(plan.changes), "change")] if plan.changes else []
    elif plan.live:
        parts.append(f"live as {plan.live}")
    parts += [f"stops and disables {escape(name)}" for name in plan.displaces]
    if plan.interrupts:
        parts.append(f"a restart, about {age(plan.downtime)} of downtime" if plan.downtime else "a restart")
    parts += _first("objection", [f"{item.message} ({item.remedy})" for item in against])
    parts += _first("difference", [str(item) for item in plan.differences])
    mend = "start again" if plan.restart else "mend"
    state = {"nothing": "[green]nothing to do[/green]", "converge": f"[yellow]{mend}[/yellow]"}
    refused = "[red]✗ refused[/red]" if against else ""
    return refused or state.get(plan.action, "[bold]deploy[/bold]"), "; ".join(parts)


def doctor_line(checkup: Checkup) -> Line:
    """The line of `doctor`: how many findings of each severity there are, and their titles."""
    from deployer.report.check_view import counted  # the rules behind it take longer to load than a `status`

    return counted([symptom.severity for symptom, _ in checkup.present]), "; ".join(
        symptom.title for symptom, _ in checkup.present
    )


def _first(noun: str, texts: Sequence[str]) -> list[str]:
    """Return how many there are, and the first of them."""
    if not texts:
        return []
    return [f"{count_of(len(texts), noun)}: {texts[0]}" + (" ..." if len(texts) > 1 else "")]
